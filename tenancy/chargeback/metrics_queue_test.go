package chargeback

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
)

func TestQueueMetrics(t *testing.T) {
	cfg := MetricsConfig{Tenants: []string{"acme", "globex"}, Classes: []string{"fast", "slow"}, Reasons: []string{"full"}}
	m := newMetrics(t, cfg)
	for _, u := range []QueueUse{
		{Tenant: "acme", Class: "fast", Result: "met", Wait: 1500 * time.Millisecond},
		{Tenant: "acme", Class: "fast", Result: "met"},
		{Tenant: "acme", Class: "slow", Result: "refused", Reason: "full"},
		{Tenant: "acme", Class: "unknown", Result: "met", Wait: time.Second},
		{Tenant: "acme", Class: "fast", Result: "unknown", Reason: "unknown"},
		{Tenant: "initech", Class: "fast", Result: "missed"},
		{Tenant: "hooli", Class: "fast", Result: "missed"},
		{Tenant: "globex", Class: "slow", Result: "failed"},
		{Class: "fast", Result: "met"}, // of nobody
	} {
		m.ObserveQueue(u)
	}
	compare := func(want string) {
		t.Helper()
		head := `
# HELP sluice_tenant_class_requests_total Requests that asked for a worker, by class and result, as sluice_class_requests_total counts them.
# TYPE sluice_tenant_class_requests_total counter
# HELP sluice_tenant_queue_refusals_total Requests that the queue refused, by reason.
# TYPE sluice_tenant_queue_refusals_total counter
# HELP sluice_tenant_queue_wait_seconds_total Time that requests have waited in the queue, counted when they end.
# TYPE sluice_tenant_queue_wait_seconds_total counter
`
		if err := testutil.CollectAndCompare(m, strings.NewReader(head+want), "sluice_tenant_class_requests_total", "sluice_tenant_queue_refusals_total", "sluice_tenant_queue_wait_seconds_total"); err != nil {
			t.Error(err)
		}
	}
	compare(`sluice_tenant_class_requests_total{class="fast",result="met",tenant="acme"} 2
sluice_tenant_class_requests_total{class="slow",result="refused",tenant="acme"} 1
sluice_tenant_class_requests_total{class="slow",result="failed",tenant="globex"} 1
sluice_tenant_class_requests_total{class="fast",result="missed",tenant="other"} 2
sluice_tenant_queue_refusals_total{reason="full",tenant="acme"} 1
sluice_tenant_queue_wait_seconds_total{tenant="acme"} 2.5
sluice_tenant_queue_wait_seconds_total{tenant="globex"} 0
sluice_tenant_queue_wait_seconds_total{tenant="other"} 0
`)
	cfg.Tenants, cfg.Classes = []string{"acme"}, []string{"fast"}
	if err := m.Reconfigure(cfg); err != nil {
		t.Fatal(err)
	}
	compare(`sluice_tenant_class_requests_total{class="fast",result="met",tenant="acme"} 2
sluice_tenant_class_requests_total{class="fast",result="missed",tenant="other"} 2
sluice_tenant_queue_refusals_total{reason="full",tenant="acme"} 1
sluice_tenant_queue_wait_seconds_total{tenant="acme"} 2.5
sluice_tenant_queue_wait_seconds_total{tenant="other"} 0
`)
	cfg.Classes = nil
	if err := m.Reconfigure(cfg); err != nil {
		t.Fatal(err)
	}
	m.ObserveQueue(QueueUse{Tenant: "acme", Class: "fast", Result: "met"})
	if len(m.queues) > 0 {
		t.Errorf("without classes there is %v", m.queues)
	}
}

// Who waits is told by the names that tenants are exported by, and at 0 when nobody
// does.
func TestQueueDepths(t *testing.T) {
	cfg := MetricsConfig{Tenants: []string{"acme", "globex"}, Classes: []string{"fast"}}
	m := newMetrics(t, cfg)
	for _, c := range []struct{ waiting, want map[string]int }{
		{nil, map[string]int{}},
		{map[string]int{"acme": 3, "initech": 1, "hooli": 4}, map[string]int{"acme": 3, "other": 5}},
		{nil, map[string]int{"acme": 0, "other": 0}},
		{map[string]int{"globex": 2}, map[string]int{"acme": 0, "globex": 2, "other": 0}},
	} {
		if got := m.depths(c.waiting); !maps.Equal(got, c.want) {
			t.Errorf("of %v: %v, want %v", c.waiting, got, c.want)
		}
	}
	ch := make(chan prometheus.Metric, 10)
	m.CollectDepths(ch, map[string]int{"acme": 1})
	if len(ch) != 3 {
		t.Errorf("%d series", len(ch))
	}
	cfg.Classes = nil
	if err := m.Reconfigure(cfg); err != nil {
		t.Fatal(err)
	}
	if got := m.depths(map[string]int{"acme": 1}); len(got) != 0 {
		t.Errorf("without classes: %v", got)
	}
}

// Whoever uses the queue, its series stay within the bound, those of rows beside them.
func TestQueueSeriesBoundHolds(t *testing.T) {
	names := func(prefix string, n int) (out []string) {
		for i := range n {
			out = append(out, fmt.Sprint(prefix, i))
		}
		return out
	}
	for _, cfg := range []MetricsConfig{
		{Tenants: names("t", 30), Models: names("m", 3), Classes: names("c", 4), Reasons: names("r", 7)},
		{Tenants: names("t", 30), Top: 10, Models: names("m", 20), Classes: names("c", 16), Reasons: names("r", 7)},
		{Tenants: names("t", 30), Models: names("m", 3), Classes: names("c", 4), Reasons: names("r", 7), MaxSeries: 400},
		{Tenants: names("t", 30), Models: names("m", 3), Classes: names("c", 4), Reasons: names("r", 7), MaxSeries: 100},
		{Models: names("m", 3), Classes: names("c", 1), Reasons: names("r", 7), MaxSeries: 23},
	} {
		m := newMetrics(t, cfg)
		rng := rand.New(rand.NewPCG(1, 2))
		for range 20_000 {
			tenant := fmt.Sprint("t", rng.IntN(60))
			m.Observe(row(tenant, fmt.Sprint("m", rng.IntN(30)), 100*(1+rng.IntN(6))))
			m.ObserveQueue(QueueUse{
				Tenant: tenant, Class: fmt.Sprint("c", rng.IntN(20)), Result: ClassResults[rng.IntN(len(ClassResults))], Reason: fmt.Sprint("r", rng.IntN(10)),
			})
		}
		waiting := make(map[string]int)
		for i := range 60 {
			waiting[fmt.Sprint("t", i)] = 1
		}
		if got, bound := len(m.depths(waiting))+series(t, m), m.SeriesBound(); got > bound || bound > cfg.maxSeries() {
			t.Errorf("%d series, bound %d, cap %d", got, bound, cfg.maxSeries())
		}
		if len(m.queues) > cfg.queueTenants() {
			t.Errorf("%d tenants have series of the queue, at most %d may", len(m.queues), cfg.queueTenants())
		}
	}
	wide := MetricsConfig{Tenants: names("t", 30), Classes: names("c", 4), Reasons: names("r", 7)}
	if n := wide.queueTenants(); n != 31 {
		t.Errorf("with room for all, %d tenants have series of the queue, want 31", n)
	}
}
