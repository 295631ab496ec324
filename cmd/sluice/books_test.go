package main

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sluicegate/sluice/tenancy/ledger/ledgertest"
)

// postgresServer starts a PostgreSQL of the test's own. A machine without one skips the test, unless the tests
// were started as CI does, with SLUICE_TEST_SERVICES=required: then it fails.
func postgresServer(t testing.TB) *ledgertest.Server {
	t.Helper()
	s, err := ledgertest.New()
	if errors.Is(err, ledgertest.ErrNotInstalled) && !ledgertest.Required() {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Stop)
	return s
}

// postgresLedger starts a server and returns a file that names a database of it.
func postgresLedger(t testing.TB) (server *ledgertest.Server, file string) {
	t.Helper()
	server = postgresServer(t)
	dsn, err := server.Database()
	if err != nil {
		t.Fatal(err)
	}
	file = filepath.Join(t.TempDir(), "ledger.dsn")
	if err := os.WriteFile(file, []byte(dsn+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	return server, file
}

func readyText(t *testing.T, a *app) string {
	t.Helper()
	resp, err := http.Get("http://" + a.public.Addr().String() + "/readyz")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// TestBooksInPostgres: two gateways keep one ledger, through a crash of its
// server, and it has what the workers counted to the token.
func TestBooksInPostgres(t *testing.T) {
	server, file := postgresLedger(t)
	d, first := startStack(t, func(cfg *Config) { cfg.Ledger.PostgresFile = file })
	cfg := *d.cfg
	cfg.Ledger.Path = filepath.Join(t.TempDir(), "second")
	second := serveApp(t, &cfg, slog.New(slog.DiscardHandler))
	ask := func(a *app) {
		t.Helper()
		if got, err := newTour(d, a, io.Discard).ask(context.Background(), "acme", user("hello")); err != nil || got.status != 200 {
			t.Fatalf("%v %+v", err, got)
		}
	}
	ask(first)
	ask(second)
	server.Kill()
	ask(first)
	ask(second)
	for _, a := range []*app{first, second} {
		if text := readyText(t, a); !strings.Contains(text, `"ledger_failing"`) {
			t.Errorf("/readyz says %s", text)
		}
		a.beginBudgets()
		text := metricsText(t, a)
		for _, want := range []string{"sluice_ledger_failing 1", `sluice_degraded{part="limits",reason="budgets_unread"} 1`} {
			if !strings.Contains(text, "\n"+want+"\n") {
				t.Errorf("the metrics lack %s", want)
			}
		}
	}
	if err := server.Start(); err != nil {
		t.Fatal(err)
	}
	ask(first)
	ask(second)
	soon(t, "the spools to be empty", stackPatience, func() bool {
		return !first.ledger.Stats().Failing && !second.ledger.Stats().Failing
	})
	first.beginBudgets()
	if text := metricsText(t, first); !strings.Contains(text, `sluice_degraded{part="limits",reason="budgets_unread"} 0`) {
		t.Error("budgets can be read again, and the metrics do not say so")
	}
	said, err := newTour(d, first, io.Discard).chargeback(context.Background())
	if err != nil || !strings.HasPrefix(said, "6 rows, ") {
		t.Errorf("the books: %s, %v", said, err)
	}
}

// TestNoPlaceForBooks: with no place for rows new requests are refused, and the
// row at hand is booked once there is one.
func TestNoPlaceForBooks(t *testing.T) {
	server, file := postgresLedger(t)
	d, a := startStack(t, func(cfg *Config) { cfg.Ledger.PostgresFile, cfg.Ledger.Spool = file, 0 })
	server.Kill()
	ctx := context.Background()
	statuses := make(chan int, 1)
	go func() {
		got, err := newTour(d, a, io.Discard).ask(ctx, "acme", user("hello"))
		if err != nil {
			t.Error(err)
			statuses <- 0
			return
		}
		statuses <- got.status
	}()
	soon(t, "the ledger to be full", stackPatience, func() bool { return a.ledger.Healthy() != nil })
	got, err := newTour(d, a, io.Discard).ask(ctx, "acme", user("hello"))
	if err != nil || got.status != 503 {
		t.Errorf("with no place for its row a request got %v %+v", err, got)
	}
	if text := readyText(t, a); !strings.Contains(text, `"ledger_full"`) {
		t.Errorf("/readyz says %s", text)
	}
	if err := server.Start(); err != nil {
		t.Fatal(err)
	}
	if status := <-statuses; status != 200 {
		t.Errorf("the request at hand got %d", status)
	}
	soon(t, "both rows", stackPatience, func() bool { return a.ledger.Healthy() == nil && len(rows(t, a)) == 2 })
	if got, err := newTour(d, a, io.Discard).ask(ctx, "acme", user("hello")); err != nil || got.status != 200 {
		t.Errorf("afterwards a request got %v %+v", err, got)
	}
	said, err := newTour(d, a, io.Discard).chargeback(ctx)
	if err != nil || !strings.HasPrefix(said, "3 rows, ") {
		t.Errorf("the books: %s, %v", said, err)
	}
}
