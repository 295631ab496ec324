package main

import (
	"bytes"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sluicegate/sluice/tenancy/ledger"
)

// inLedger changes a ledger behind everybody's back.
func inLedger(t *testing.T, path, text string) {
	t.Helper()
	db, err := sql.Open("sqlite", "file:"+path+"?_pragma=busy_timeout(5000)")
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	if res, err := db.Exec(text); err != nil {
		t.Fatal(err)
	} else if n, err := res.RowsAffected(); err != nil || n != 1 {
		t.Fatalf("%d rows changed, %v", n, err)
	}
}

// copyFiles copies a ledger as a kill at this moment would leave it.
func copyFiles(t *testing.T, path string) string {
	t.Helper()
	to := filepath.Join(t.TempDir(), "killed.db")
	names, err := filepath.Glob(path + "*")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(to+strings.TrimPrefix(name, path), text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return to
}

// thisMonth keeps a test from beginning in one month and ending in another.
func thisMonth() string {
	for {
		now := time.Now().UTC()
		if now.Add(3*time.Minute).Month() == now.Month() {
			return now.Format("2006-01")
		}
		time.Sleep(time.Second)
	}
}

// startStopping runs the demo's platform until stop is called.
func startStopping(t *testing.T) (d *demo, a *app, stop func()) {
	t.Helper()
	d, err := newDemo(demoOptions{public: "127.0.0.1:0", admin: "127.0.0.1:0", timeScale: 0.1}, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = d.Close() })
	if a, err = newApp(d.cfg, slog.New(slog.DiscardHandler)); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() { served <- a.serve(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := errors.Join(<-served, a.Close()); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(stop)
	if err := a.waitReady(ctx, len(demoWorkers)); err != nil {
		t.Fatal(err)
	}
	return d, a, stop
}

// TestReconcile: the export, the ledger and the metrics of a gateway agree while it
// serves, after it was killed and after it has stopped; each thing that is changed
// behind its back is named.
func TestReconcile(t *testing.T) {
	month := thisMonth()
	d, a, stop := startStopping(t)
	path, tour := d.cfg.Ledger.Path, newTour(d, a, io.Discard)
	url := "http://" + a.admin.Addr().String() + "/metrics"
	ask := func() {
		t.Helper()
		for _, tenant := range []string{"acme", "acme", "globex"} {
			if got, err := tour.ask(context.Background(), tenant, user("hello")); err != nil || got.status != 200 {
				t.Fatalf("%v %+v", err, got)
			}
		}
	}
	reconcile := func(want int, args ...string) string {
		t.Helper()
		code, out, errs := sluice(t, append([]string{"chargeback", "reconcile", "--period", month}, args...)...)
		if code != want {
			t.Fatalf("exit code %d, want %d: %s%s", code, want, out, errs)
		}
		return out
	}
	contains := func(text string, parts ...string) {
		t.Helper()
		for _, part := range parts {
			if !strings.Contains(text, part) {
				t.Errorf("no %q in:\n%s", part, text)
			}
		}
	}
	ask()
	// Under load the scrape is compared with what it counts, and not with what has
	// come since.
	var load sync.WaitGroup
	for range 4 {
		load.Go(func() {
			for range 10 {
				if _, err := tour.ask(context.Background(), "acme", user("hello")); err != nil {
					t.Error(err)
				}
			}
		})
	}
	for range 5 {
		contains(reconcile(exitOK, "--ledger", path, "--metrics", url), "the metrics equal the ledger's rows of process ")
	}
	load.Wait()
	soon(t, "all rows", stackPatience, func() bool { return len(rows(t, a)) == 43 })
	contains(reconcile(exitOK, "--ledger", path, "--metrics", url),
		month+": the export equals the ledger, 43 rows.\n", "43 rows are not compared with the metrics: later than the last note")

	export := filepath.Join(t.TempDir(), "export.csv")
	if code, _, errs := sluice(t, "chargeback", "export", "--ledger", path, "--period", month, "--open", "-o", export); code != exitOK {
		t.Fatalf("export: %s", errs)
	}
	// The metrics of a gateway whose books have lost a row.
	killed := copyFiles(t, path)
	if l, err := ledger.Open(killed, ledger.Options{}); err != nil {
		t.Fatal(err)
	} else if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	contains(reconcile(exitOK, "--ledger", killed, "--export", export), "43 rows are not compared with the metrics")
	inLedger(t, killed, "DELETE FROM requests WHERE tenant = 'globex'")
	contains(reconcile(exitFound, "--ledger", killed, "--export", export, "--metrics", url),
		month+`: export: tenant "globex", model "demo-chat", input, EUR: `, `, the ledger has 0 (+`,
		url+`: metrics: sluice_tenant_requests_total{tenant="globex",model="demo-chat"} is 1, the ledger has 0 (+1)`, " differences.\n")

	stop()
	contains(reconcile(exitOK, "-c", filepath.Join(d.dir, "sluice.yaml"), "--export", export),
		"the metrics equal the ledger in 43 rows that 1 process has counted.\n")
	inLedger(t, path, "UPDATE usage_checkpoints SET counted = replace(counted, '\"Rows\":1,', '\"Rows\":2,')")
	contains(reconcile(exitFound, "--ledger", path), `tenant "globex", model "demo-chat", requests, EUR: 2 rows, the ledger has 1 (+1)`, "1 difference.\n")
}

// TestGPUCommand: what a pool costs is shared among those who used it, to the last
// micro-unit.
func TestGPUCommand(t *testing.T) {
	t.Chdir(t.TempDir())
	month := thisMonth()
	r := startReloading(t, unwatched, func(dir string) {
		file := filepath.Join(dir, "sluice.yaml")
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, pool := range []string{"general", "restricted"} {
			text = bytes.Replace(text, []byte("  - name: "+pool+"\n"),
				[]byte("  - name: "+pool+"\n    gpus: 4\n    hourlyCost: [{ amount: 7000001, currency: USD, gpus: 8 }]\n"), 1)
		}
		if err := os.WriteFile(file, text, 0o600); err != nil {
			t.Fatal(err)
		}
	})
	for _, tenant := range []string{"acme", "globex"} {
		if got, err := r.tour.ask(context.Background(), tenant, user("hello")); err != nil || got.status != 200 {
			t.Fatalf("%v %+v", err, got)
		}
	}
	var busy, worked time.Duration
	soon(t, "both rows", stackPatience, func() bool { return len(rows(t, r.a)) == 2 })
	for _, row := range rows(t, r.a) {
		worked += row.GPUTime
	}
	for _, d := range r.a.gateway.GPUTime(time.Now()) {
		busy += d.Truncate(time.Microsecond)
	}
	if worked <= 0 || worked != busy {
		t.Errorf("the rows have %s of GPU time, the GPUs were busy for %s", worked, busy)
	}
	if text := metricsText(t, r.a); !strings.Contains(text, "\nsluice_gpu_busy_seconds_total{pool=") {
		t.Error("the metrics do not say how busy the GPUs were")
	}
	for _, format := range []string{"csv", "json"} {
		code, out, errs := sluice(t, "chargeback", "gpu", "-c", filepath.Join(r.d.dir, "sluice.yaml"), "--period", month, "--format", format, "--idle", "spread")
		if code != exitOK || !strings.Contains(out, "acme") || !strings.Contains(out, "globex") || !strings.Contains(errs, "the month is not over") {
			t.Errorf("%s: exit code %d\n%s%s", format, code, out, errs)
		}
	}
	for _, args := range [][]string{{"--idle", "mine"}, {"--format", "xml"}} {
		code, _, errs := sluice(t, append([]string{"chargeback", "gpu", "-c", filepath.Join(r.d.dir, "sluice.yaml"), "--period", month}, args...)...)
		if code != exitUsage || !strings.Contains(errs, fmt.Sprintf("%q is not known", args[1])) {
			t.Errorf("%v: exit code %d, %s", args, code, errs)
		}
	}
}

// TestReconcileInPostgres: each of two gateways that share a ledger is compared
// with its own rows, through an outage of the server.
func TestReconcileInPostgres(t *testing.T) {
	server, file := postgresLedger(t)
	month := thisMonth()
	d, first := startStack(t, func(cfg *Config) { cfg.Ledger.PostgresFile = file })
	cfg := *d.cfg
	cfg.Ledger.Path = filepath.Join(t.TempDir(), "second")
	second := serveApp(t, &cfg, slog.New(slog.DiscardHandler))
	config := filepath.Join(d.dir, "postgres.yaml")
	text, err := os.ReadFile(filepath.Join(d.dir, "sluice.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	text = bytes.Replace(text, []byte("ledger: { "), []byte("ledger: { postgresFile: "+file+", "), 1)
	if err := os.WriteFile(config, text, 0o600); err != nil {
		t.Fatal(err)
	}
	ask := func() {
		t.Helper()
		for i, a := range []*app{first, second, first} {
			if got, err := newTour(d, a, io.Discard).ask(context.Background(), "acme", user("hello")); err != nil || got.status != 200 {
				t.Fatalf("request %d: %v %+v", i, err, got)
			}
		}
	}
	args := []string{"chargeback", "reconcile", "-c", config, "--period", month}
	for _, a := range []*app{first, second} {
		args = append(args, "--metrics", "http://"+a.admin.Addr().String()+"/metrics")
	}
	ask()
	server.Kill()
	ask()
	if err := server.Start(); err != nil {
		t.Fatal(err)
	}
	soon(t, "the spools to be empty", stackPatience, func() bool {
		return !first.ledger.Stats().Failing && !second.ledger.Stats().Failing
	})
	code, out, errs := sluice(t, args...)
	if code != exitOK || strings.Count(out, "the metrics equal the ledger's rows of process ") != 2 || !strings.Contains(out, "the export equals the ledger, 6 rows.") {
		t.Errorf("exit code %d: %s%s", code, out, errs)
	}
}
