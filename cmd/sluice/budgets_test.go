package main

import (
	"context"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// dailyBudget lets globex ask three times a day, and warns from the second time on.
const dailyBudget = `apiVersion: sluice/v1alpha1
kind: AdmissionPolicy
metadata: { name: daily }
spec:
  limits:
    - { name: three, unit: requests, limit: "3", window: day, key: ["tenant.id"], warnAt: [60] }
---
apiVersion: sluice/v1alpha1
kind: AdmissionPolicyBinding
metadata: { name: daily }
spec: { policyName: daily, actions: [Deny], selector: { tenants: [globex] } }
`

func withDailyBudget(t *testing.T) func(*Config) {
	return func(cfg *Config) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(cfg.Policy.Dir, "daily.yaml"), []byte(dailyBudget), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// runApp serves until stop is called.
func runApp(t *testing.T, cfg *Config) (a *app, stop func()) {
	t.Helper()
	a, err := newApp(cfg, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() { served <- a.serve(ctx) }()
	if err := a.waitReady(ctx, len(demoWorkers)); err != nil {
		t.Fatal(err)
	}
	return a, func() {
		t.Helper()
		cancel()
		if err := <-served; err != nil {
			t.Error(err)
		}
		if err := a.Close(); err != nil {
			t.Error(err)
		}
	}
}

// TestBudgetsOutliveTheProcess: a gateway that starts again goes on where its
// budgets were.
func TestBudgetsOutliveTheProcess(t *testing.T) {
	beforeMidnight(t)
	d, _ := startStack(t, withDailyBudget(t))
	cfg := *d.cfg
	cfg.Ledger.Path = filepath.Join(t.TempDir(), "ledger.db")
	for run, want := range [][]int{{200, 200}, {200, 429}, {429}} {
		a, stop := runApp(t, &cfg)
		for _, status := range want {
			if got, err := newTour(d, a, io.Discard).ask(context.Background(), "globex", user("hello")); err != nil || got.status != status {
				t.Errorf("run %d: %d (%v), want %d", run, got.status, err, status)
			}
		}
		stop()
	}
}

// TestReplicasKnowOfEachOthersBudgets: gateways that share a ledger know what the
// others have used.
func TestReplicasKnowOfEachOthersBudgets(t *testing.T) {
	beforeMidnight(t)
	_, file := postgresLedger(t)
	d, first := startStack(t, withDailyBudget(t), func(cfg *Config) { cfg.Ledger.PostgresFile = file })
	cfg := *d.cfg
	cfg.Ledger.Path = filepath.Join(t.TempDir(), "second")
	second := serveApp(t, &cfg, slog.New(slog.DiscardHandler))
	ask := func(a *app, status int) {
		t.Helper()
		if got, err := newTour(d, a, io.Discard).ask(context.Background(), "globex", user("hello")); err != nil || got.status != status {
			t.Errorf("%d (%v), want %d", got.status, err, status)
		}
	}
	look := func(a *app) {
		t.Helper()
		if err := a.restoreBudgets(context.Background(), time.Now()); err != nil {
			t.Fatal(err)
		}
	}
	ask(first, 200)
	ask(first, 200)
	look(second)
	ask(second, 200)
	ask(second, 429)
	look(first)
	ask(first, 429)
}

// beforeMidnight waits where a new day would begin during the test.
func beforeMidnight(t testing.TB) {
	t.Helper()
	if left := time.Until(time.Now().UTC().Truncate(24 * time.Hour).Add(24 * time.Hour)); left < 3*time.Minute {
		time.Sleep(left)
	}
}
