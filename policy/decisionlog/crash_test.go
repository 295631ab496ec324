package decisionlog

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"
	"time"
)

// crashPath, set in the environment, makes this test binary the child that gets
// killed.
const crashPath = "SLUICE_TEST_CRASH_DECISIONLOG"

func TestMain(m *testing.M) {
	if path := os.Getenv(crashPath); path != "" {
		crashChild(path)
		return
	}
	os.Exit(m.Run())
}

// crashChild records until it is killed, and says on its output how many
// records the log counts as written.
func crashChild(path string) {
	cfg := DefaultConfig()
	cfg.Path, cfg.MaxBytes, cfg.MaxFiles = path, minFileBytes, 0
	l, err := Open(cfg, slog.New(slog.DiscardHandler))
	if err != nil {
		fmt.Println("E", err)
		return
	}
	go func() { _ = l.Run(context.Background()) }()
	for i := 0; ; i++ {
		l.queue.put(decisionKind, recordLine(fmt.Sprintf("%d-%d", os.Getpid(), i), 300+i%700))
		if i%100 == 0 {
			fmt.Println(l.Stats().Written.Decision)
		}
	}
}

// TestKilled: after kill -9, at any moment, what was counted as written is in
// the files, once; at most one line is broken; and the next start goes on.
func TestKilled(t *testing.T) {
	path := filepath.Join(t.TempDir(), "decisions.jsonl")
	var counted uint64
	for round := range 4 {
		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
		child := exec.CommandContext(ctx, os.Args[0])
		child.Env = append(os.Environ(), crashPath+"="+path)
		out, err := child.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := child.Start(); err != nil {
			t.Fatal(err)
		}
		var said uint64
		lines := bufio.NewScanner(out)
		for lines.Scan() && said < 500*uint64(round+1) {
			if _, err := fmt.Sscan(lines.Text(), &said); err != nil {
				t.Errorf("the child says %q", lines.Text())
				break
			}
		}
		if err := child.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		for lines.Scan() { // what it has said before it died counts
			_, _ = fmt.Sscan(lines.Text(), &said)
		}
		_ = child.Wait() // it was killed
		cancel()
		counted += said
	}
	// The last kill may have hit a rotation: a start makes the file anew.
	cfg := DefaultConfig()
	cfg.Path = path
	l, err := Open(cfg, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	files, stray, err := rotatedFiles(path)
	if err != nil {
		t.Fatal(err)
	}
	seen, broken := map[string]bool{}, 0
	for _, name := range append(files, path) {
		for text := range bytes.Lines(readFile(t, name)) {
			var l line
			if err := json.Unmarshal(text, &l); err != nil {
				broken++
				continue
			}
			if seen[l.DecisionID] {
				t.Errorf("%s is there twice", l.DecisionID)
			}
			seen[l.DecisionID] = true
		}
	}
	if uint64(len(seen)) < counted || broken > 4 || len(stray) > 1 {
		t.Errorf("%d of %d records, %d broken lines, stray files %v", len(seen), counted, broken, stray)
	}
	if !slices.IsSorted(files) || len(files) < 4 {
		t.Errorf("files %v", files)
	}
}
