package main

import (
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sluicegate/sluice/tenancy"
)

// BenchmarkLedgerBesideGateway stores rows as fast as the ledger takes them, each
// announced before, while the gateway that has it open serves clients before
// simulated workers on the same processors. `deploy/bench/ledger.sh` runs it for a
// minute on each database.
func BenchmarkLedgerBesideGateway(b *testing.B) {
	b.Run("sqlite", func(b *testing.B) { ledgerBesideGateway(b, func(*Config) {}) })
	b.Run("postgres", func(b *testing.B) {
		_, file := postgresLedger(b)
		ledgerBesideGateway(b, func(cfg *Config) { cfg.Ledger.PostgresFile = file })
	})
}

func ledgerBesideGateway(b *testing.B, change func(*Config)) {
	d, a := startStack(b, change)
	clients := newAskers(d.keys, "asked", 1)
	var over atomic.Bool
	served := make(chan struct{})
	go func() {
		defer close(served)
		clients.run(func() bool { return !over.Load() }, 8, a.baseURL())
	}()
	before := a.ledger.Stats()
	var n atomic.Int64
	run := time.Now().UnixNano()
	b.SetParallelism(128)
	b.ResetTimer()
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			row := benchRow(fmt.Sprintf("bench-%d-%d", run, n.Add(1)))
			in := tenancy.Intent{ID: row.ID, RequestID: row.RequestID, Tenant: row.Tenant, Model: row.Model, Start: row.Start}
			if err := a.ledger.Begin(b.Context(), &in); err != nil {
				b.Error(err)
			}
			if err := a.ledger.Record(b.Context(), row); err != nil {
				b.Error(err)
			}
		}
	})
	b.StopTimer()
	over.Store(true)
	<-served
	after, took := a.ledger.Stats(), b.Elapsed().Seconds()
	whole := 0
	for _, got := range clients.heard {
		if got.whole && got.status == 200 {
			whole++
		}
	}
	b.ReportMetric(float64(b.N)/took, "rows/s")
	b.ReportMetric(float64(whole)/took, "answers/s")
	b.ReportMetric(float64(after.Rows-before.Rows)/float64(after.Batches-before.Batches), "rows/commit")
	b.ReportMetric(float64(after.Spooled-before.Spooled), "spooled")
}

func benchRow(id string) *tenancy.Row {
	now := time.Now()
	day, month := now.UTC().Truncate(24*time.Hour), time.Date(now.Year(), now.Month(), 1, 0, 0, 0, 0, time.UTC)
	return &tenancy.Row{
		Charges: []tenancy.Charge{
			{Counter: [16]byte{1}, Unit: "tokens", Window: "day", Period: day, Amount: 1150},
			{Counter: [16]byte{2}, Unit: "cost", Window: "month", Period: month, Amount: 555},
		},
		ID: id, RequestID: id, DecisionID: id, PolicyRevision: "sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef",
		Tenant: "acme", Team: "search", Principal: "key:bench", KeyID: "bench", Operation: "chat", Dialect: "openai",
		Model: demoModel, RequestedModel: demoModel, Pool: "general", Worker: "general-1", Class: "interactive",
		Status: 200, Outcome: tenancy.OutcomeCompleted, Phase: tenancy.PhaseDone, Flags: tenancy.FlagStream, Attempts: 1,
		InputTokens: 900, CachedTokens: 600, OutputTokens: 250, Currency: "EUR",
		Prices: tenancy.Prices{Input: 500_000, CachedInput: 50_000, Output: 1_500_000},
		Costs:  tenancy.Costs{Input: 150, CachedInput: 30, Output: 375},
		Start:  now, TTFT: 90 * time.Millisecond, Duration: 4 * time.Second,
	}
}
