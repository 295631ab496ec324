package main

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/sluicegate/sluice/tenancy"
	"github.com/sluicegate/sluice/tenancy/ledger"
	"github.com/sluicegate/sluice/tenancy/secretstest"
)

// replicas are gateways before the same workers that share their ledger.
type replicas struct {
	*testing.T
	d       *demo
	apps    []*app
	bases   []string
	dsn     string
	books   *books
	secrets *secretstest.Secrets
}

// startReplicas starts so many gateways from the same files, each with a folder of
// its own for what only it knows. edit changes the files before the start.
func startReplicas(t *testing.T, n int, edit ...func(dir string)) *replicas {
	t.Helper()
	r := &replicas{T: t, books: &books{t: t, workers: newAccounts(), calm: true}, secrets: new(secretstest.Secrets)}
	log := r.secrets.Log(t, slog.New(slog.DiscardHandler))
	opts := demoOptions{public: "127.0.0.1:0", admin: "127.0.0.1:0", timeScale: 0.1, worker: r.books.workers.watch}
	var err error
	if r.d, err = newDemo(opts, log); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := r.d.Close(); err != nil {
			t.Errorf("close the demo: %v", err)
		}
	})
	addKeys(r.secrets, r.d)
	r.books.exact = r.d.native
	_, dsnFile := postgresLedger(t)
	text, err := os.ReadFile(dsnFile)
	if err != nil {
		t.Fatal(err)
	}
	r.dsn = strings.TrimSpace(string(text))
	file := filepath.Join(r.d.dir, "sluice.yaml")
	replaceIn(t, file, "path: ledger.db", "path: ledger.db, postgresFile: "+dsnFile)
	for _, f := range edit {
		f(r.d.dir)
	}
	for i := range n {
		cfg, _, err := LoadConfig(file)
		if err != nil {
			t.Fatal(err)
		}
		if i > 0 {
			cfg.Ledger.Path = filepath.Join(t.TempDir(), "ledger")
		}
		a := serveApp(t, cfg, log)
		t.Cleanup(func() { noSecretTold(t, r.secrets, a) })
		r.apps, r.bases = append(r.apps, a), append(r.bases, a.baseURL())
	}
	return r
}

// generous lets many clients in at once; the bronze tenant's limits stay small.
func generous(dir string) {
	file := filepath.Join(dir, "policies", "qos-tiers.yaml")
	text, err := os.ReadFile(file)
	if err != nil {
		panic(err)
	}
	for _, pair := range [][2]string{
		{"{ gold: 2000000, silver: 200000, bronze: 6000 }", "{ gold: 2000000000, silver: 2000000000, bronze: 6000 }"},
		{"{ gold: 6000,    silver: 300,    bronze: 6 }", "{ gold: 6000000, silver: 6000000, bronze: 6 }"},
		{"{ gold: 64,      silver: 8,      bronze: 2 }", "{ gold: 1000, silver: 1000, bronze: 2 }"},
	} {
		if !strings.Contains(string(text), pair[0]) {
			panic("qos-tiers.yaml has no " + pair[0])
		}
		text = []byte(strings.Replace(string(text), pair[0], pair[1], 1))
	}
	if err := os.WriteFile(file, text, 0o600); err != nil {
		panic(err)
	}
}

// load sends requests from so many clients to all gateways, of some kinds or of
// every kind.
func (r *replicas) load(clients, least int, d time.Duration, only ...string) {
	a := newAskers(r.d.keys, fmt.Sprint("asked", len(r.books.askers)), testSeed(r.T))
	a.only = only
	r.books.askers = append(r.books.askers, a)
	a.run(a.asMany(least, d), clients, r.bases...)
}

// reconcile holds the shared ledger against workers and clients.
func (r *replicas) reconcile() {
	r.Helper()
	for _, a := range r.apps {
		soon(r.T, "nothing to be in flight", childPatience, func() bool {
			st := a.ledger.Stats()
			return a.gateway.InFlight() == 0 && st.OpenIntents == 0 && st.Queued == 0 && st.SpoolRows == 0 && !st.Failing
		})
	}
	ctx, cancel := context.WithTimeout(r.Context(), childPatience)
	defer cancel()
	for name, w := range r.d.workers {
		if err := w.WaitIdle(ctx); err != nil {
			r.Fatalf("worker %s: %v", name, err)
		}
	}
	reader, err := ledger.OpenPostgresReader(r.dsn)
	if err != nil {
		r.Fatal(err)
	}
	defer reader.Close()
	for _, a := range r.apps {
		r.barrier(a)
		if st := a.ledger.Stats(); st.Failed != 0 {
			r.Errorf("the ledger has refused %d rows", st.Failed)
		}
	}
	r.books.check(reader)
}

// barrier returns when all rows are stored that a gateway has taken so far, those of
// refused requests too, which nobody waits for.
func (r *replicas) barrier(a *app) {
	r.Helper()
	row := &tenancy.Row{ID: fmt.Sprintf("barrier-%d", time.Now().UnixNano()), Tenant: "nobody", Outcome: tenancy.OutcomeDenied, Start: time.Now()}
	row.RequestID = row.ID
	if err := a.ledger.Record(r.Context(), row); err != nil {
		r.Fatal(err)
	}
}

// TestReplicas: 200 clients of every kind before two gateways that share a ledger.
// It then has what the workers counted, to the token. SLUICE_TEST_SECONDS says for
// how long; `make replicas` takes a minute.
func TestReplicas(t *testing.T) {
	r := startReplicas(t, 2, generous)
	r.load(200, 600, time.Duration(testNumber(t, "SLUICE_TEST_SECONDS", 2))*time.Second)
	r.reconcile()
	for _, word := range []string{"told whole", "told left", "told 403", "told 404", "told 429", "row client_aborted"} {
		if r.books.seen[word] == 0 {
			t.Errorf("no request was %q: %v", word, r.books.seen)
		}
	}
	t.Log(r.books.seen)
}
