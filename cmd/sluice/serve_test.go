package main

import (
	"bytes"
	"encoding/json"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// SIGHUP asks for a reload, once however often it comes, and ends nothing. The first SIGTERM ends the
// context that serve runs under; stop leaves no goroutine and no handler behind.
func TestFirstSignalDrains(t *testing.T) {
	ctx, hangups, stop := onSignals(t.Context(), slog.New(slog.DiscardHandler))
	defer stop()
	for range 3 {
		if err := syscall.Kill(os.Getpid(), syscall.SIGHUP); err != nil {
			t.Fatal(err)
		}
		select {
		case <-hangups:
		case <-time.After(stackPatience):
			t.Fatal("SIGHUP is not told")
		}
	}
	if ctx.Err() != nil {
		t.Fatal("SIGHUP ended the context")
	}
	if err := syscall.Kill(os.Getpid(), syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	select {
	case <-ctx.Done():
	case <-time.After(stackPatience):
		t.Fatal("the context goes on after SIGTERM")
	}
}

func TestLogger(t *testing.T) {
	var out bytes.Buffer
	log := newLogger(&out, LogConfig{Level: "warn", Format: "json"})
	log.Info("left out")
	log.Warn("kept")
	var line map[string]any
	if err := json.Unmarshal(out.Bytes(), &line); err != nil || line["msg"] != "kept" {
		t.Errorf("got %q, %v", out.String(), err)
	}
	out.Reset()
	newLogger(&out, LogConfig{Level: "debug", Format: "text"}).Debug("kept")
	if !strings.Contains(out.String(), "level=DEBUG msg=kept") {
		t.Errorf("got %q", out.String())
	}
}

// serve starts what its configuration names, and says clearly why it cannot.
func TestServeFails(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	f := func(change func(config string) string, want string) {
		t.Helper()
		dir := t.TempDir()
		if err := os.CopyFS(dir, os.DirFS("testdata/script/files")); err != nil {
			t.Fatal(err)
		}
		file := filepath.Join(dir, "sluice.yaml")
		config, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		text := strings.ReplaceAll(string(config), ", tokenizer: tokenizer", "")
		text = strings.Replace(text, "0.0.0.0:8080", "127.0.0.1:0", 1)
		text = strings.Replace(text, "listen:\n", "listen:\n  admin: { address: \"127.0.0.1:0\" }\n", 1)
		if err := os.WriteFile(file, []byte(change(text)), 0o600); err != nil {
			t.Fatal(err)
		}
		var errs bytes.Buffer
		code := execute(t.Context(), time.Now, []string{"serve", "-c", file}, strings.NewReader(""), io.Discard, &errs)
		if code != exitFailed || !strings.Contains(errs.String(), want) {
			t.Errorf("exit code %d, want %d and %q in:\n%s", code, exitFailed, want, errs.String())
		}
	}
	address := taken.Addr().String()
	f(func(s string) string {
		return strings.Replace(s, "address: \"127.0.0.1:0\"", "address: \""+address+"\"", 1)
	},
		"cannot listen on listen.admin.address")
	f(func(s string) string { return strings.Replace(s, "path: ledger.db", "path: prices.yaml", 1) },
		"is no SQLite database")
	f(func(s string) string { return strings.Replace(s, "dir: policies", "dir: bad-policies", 1) },
		`unknown name "request.modle"; did you mean "request.model"?`)
	f(func(s string) string { return strings.Replace(s, "ledger:", "ledgre:", 1) },
		`ledgre: unknown key; did you mean "ledger"?`)
}
