package chargeback

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/sluicegate/sluice/tenancy"
)

func row(tenant, model string, status int) *tenancy.Row {
	return &tenancy.Row{
		Tenant: tenant, Model: model, Status: status, InputTokens: 10, CachedTokens: 4, OutputTokens: 3, ReasoningTokens: 1,
		Currency: "USD", Costs: tenancy.Costs{Input: 5, CachedInput: 1, Output: 2},
	}
}

func newMetrics(t testing.TB, cfg MetricsConfig) *TenantMetrics {
	t.Helper()
	m, err := NewTenantMetrics(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func TestTenantMetrics(t *testing.T) {
	m := newMetrics(t, MetricsConfig{Tenants: []string{"acme"}, Models: []string{"qwen"}, Currencies: []string{"USD"}})
	for _, r := range []*tenancy.Row{row("acme", "qwen", 200), row("acme", "qwen", 499), row("acme", "x", 503), row("globex", "x", 0), row("initech", "qwen", 200)} {
		m.Observe(r)
	}
	euro := row("acme", "qwen", 200)
	euro.Currency = "EUR"
	m.Observe(euro)
	m.Observe(&tenancy.Row{Tenant: "acme", Status: 404}) // names no model, so there is none to fold
	held := m.Reserve("acme", "qwen", 1900)
	want := `
# HELP sluice_label_folds_total Requests counted under "other" because the label's value is not exported by name.
# TYPE sluice_label_folds_total counter
sluice_label_folds_total{label="currency"} 1
sluice_label_folds_total{label="model"} 2
sluice_label_folds_total{label="tenant"} 2
# HELP sluice_tenant_cost_microunits_total Cost charged, in millionths of the currency.
# TYPE sluice_tenant_cost_microunits_total counter
sluice_tenant_cost_microunits_total{currency="USD",model="other",tenant="acme"} 8
sluice_tenant_cost_microunits_total{currency="USD",model="other",tenant="other"} 8
sluice_tenant_cost_microunits_total{currency="USD",model="qwen",tenant="acme"} 16
sluice_tenant_cost_microunits_total{currency="USD",model="qwen",tenant="other"} 8
sluice_tenant_cost_microunits_total{currency="other",model="qwen",tenant="acme"} 8
# HELP sluice_tenant_requests_total Finished requests by tenant, model and class of HTTP status.
# TYPE sluice_tenant_requests_total counter
sluice_tenant_requests_total{model="other",status_class="4xx",tenant="acme"} 1
sluice_tenant_requests_total{model="other",status_class="5xx",tenant="acme"} 1
sluice_tenant_requests_total{model="other",status_class="other",tenant="other"} 1
sluice_tenant_requests_total{model="qwen",status_class="2xx",tenant="acme"} 2
sluice_tenant_requests_total{model="qwen",status_class="4xx",tenant="acme"} 1
sluice_tenant_requests_total{model="qwen",status_class="2xx",tenant="other"} 1
# HELP sluice_tenant_reserved_tokens Tokens reserved by requests in flight.
# TYPE sluice_tenant_reserved_tokens gauge
sluice_tenant_reserved_tokens{model="other",tenant="acme"} 0
sluice_tenant_reserved_tokens{model="other",tenant="other"} 0
sluice_tenant_reserved_tokens{model="qwen",tenant="acme"} 1900
sluice_tenant_reserved_tokens{model="qwen",tenant="other"} 0
`
	names := []string{"sluice_label_folds_total", "sluice_tenant_cost_microunits_total", "sluice_tenant_requests_total", "sluice_tenant_reserved_tokens"}
	if err := testutil.CollectAndCompare(m, strings.NewReader(want), names...); err != nil {
		t.Error(err)
	}
	tokens := `
# HELP sluice_tenant_tokens_total Tokens charged, by tenant and model. input includes cached_input, output includes reasoning.
# TYPE sluice_tenant_tokens_total counter
sluice_tenant_tokens_total{kind="cached_input",model="other",tenant="acme"} 4
sluice_tenant_tokens_total{kind="cached_input",model="other",tenant="other"} 4
sluice_tenant_tokens_total{kind="cached_input",model="qwen",tenant="acme"} 12
sluice_tenant_tokens_total{kind="cached_input",model="qwen",tenant="other"} 4
sluice_tenant_tokens_total{kind="input",model="other",tenant="acme"} 10
sluice_tenant_tokens_total{kind="input",model="other",tenant="other"} 10
sluice_tenant_tokens_total{kind="input",model="qwen",tenant="acme"} 30
sluice_tenant_tokens_total{kind="input",model="qwen",tenant="other"} 10
sluice_tenant_tokens_total{kind="output",model="other",tenant="acme"} 3
sluice_tenant_tokens_total{kind="output",model="other",tenant="other"} 3
sluice_tenant_tokens_total{kind="output",model="qwen",tenant="acme"} 9
sluice_tenant_tokens_total{kind="output",model="qwen",tenant="other"} 3
sluice_tenant_tokens_total{kind="reasoning",model="other",tenant="acme"} 1
sluice_tenant_tokens_total{kind="reasoning",model="other",tenant="other"} 1
sluice_tenant_tokens_total{kind="reasoning",model="qwen",tenant="acme"} 3
sluice_tenant_tokens_total{kind="reasoning",model="qwen",tenant="other"} 1
`
	if err := testutil.CollectAndCompare(m, strings.NewReader(tokens), "sluice_tenant_tokens_total"); err != nil {
		t.Error(err)
	}
	if problems, err := testutil.CollectAndLint(m); err != nil || len(problems) > 0 {
		t.Errorf("lint: %v, %v", problems, err)
	}
	held.Release()
	held.Release()
	if got := m.table.pairs[0].Load().reserved.Load(); got != 0 {
		t.Errorf("%d tokens stay reserved", got)
	}
}

func series(t testing.TB, m *TenantMetrics) int {
	t.Helper()
	reg := prometheus.NewPedanticRegistry()
	if err := reg.Register(m); err != nil {
		t.Fatal(err)
	}
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for _, f := range families {
		n += len(f.GetMetric())
	}
	return n
}

// Whatever comes in, the exported series stay within the bound, which the
// configuration alone tells, and no count is lost.
func TestSeriesBoundHolds(t *testing.T) {
	names := func(prefix string, n int) []string {
		var out []string
		for i := range n {
			out = append(out, fmt.Sprint(prefix, i))
		}
		return out
	}
	for _, cfg := range []MetricsConfig{
		{},
		{Tenants: names("t", 3), Models: names("m", 2), Currencies: []string{"USD", "EUR"}},
		{Tenants: names("t", 50), Models: names("m", 20), Currencies: []string{"USD"}},
		{Tenants: names("t", 50), Models: names("m", 20), MaxSeries: 300},
		{Tenants: names("t", 5), Models: names("m", 5), MaxSeries: 14},
	} {
		m := newMetrics(t, cfg)
		bound := m.SeriesBound()
		if bound != cfg.SeriesBound() || bound > cfg.maxSeries() {
			t.Fatalf("bound %d of %+v", bound, cfg)
		}
		const workers, each = 4, 3000
		var wg sync.WaitGroup
		for w := range workers {
			wg.Go(func() {
				rng := rand.New(rand.NewPCG(uint64(w), 1))
				for range each {
					r := row(fmt.Sprint("t", rng.IntN(60)), fmt.Sprint("m", rng.IntN(30)), 100*(1+rng.IntN(6)))
					r.Currency = []string{"USD", "EUR", "GBP"}[rng.IntN(3)]
					m.Observe(r)
				}
			})
		}
		wg.Wait()
		if got := series(t, m); got > bound {
			t.Errorf("%d series, bound %d, of %+v", got, bound, cfg)
		}
		var requests, cost uint64
		for i := range m.table.pairs {
			if c := m.table.pairs[i].Load(); c != nil {
				for k := range c.requests {
					requests += c.requests[k].Load()
				}
				for k := range c.cost {
					cost += c.cost[k].Load()
				}
			}
		}
		if requests != workers*each || cost != 8*workers*each {
			t.Errorf("%d requests and %d micro-units counted of %d and %d", requests, cost, workers*each, 8*workers*each)
		}
	}
}

func TestReconfigure(t *testing.T) {
	m := newMetrics(t, MetricsConfig{Tenants: []string{"stays", "leaves"}, Models: []string{"m"}, Currencies: []string{"EUR", "USD"}})
	for _, tenant := range []string{"stays", "leaves", "nobody"} {
		m.Observe(row(tenant, "m", 200))
	}
	held := m.Reserve("leaves", "m", 5)
	if err := m.Reconfigure(MetricsConfig{Tenants: []string{"comes", "stays"}, Models: []string{"n", "m"}, Currencies: []string{"USD"}}); err != nil {
		t.Fatal(err)
	}
	held.Release()
	m.Observe(row("stays", "m", 200))
	m.Observe(row("comes", "m", 200))
	m.Observe(row("leaves", "m", 200))
	want := `
# HELP sluice_tenant_cost_microunits_total Cost charged, in millionths of the currency.
# TYPE sluice_tenant_cost_microunits_total counter
sluice_tenant_cost_microunits_total{currency="USD",model="m",tenant="comes"} 8
sluice_tenant_cost_microunits_total{currency="USD",model="m",tenant="other"} 16
sluice_tenant_cost_microunits_total{currency="USD",model="m",tenant="stays"} 16
# HELP sluice_tenant_reserved_tokens Tokens reserved by requests in flight.
# TYPE sluice_tenant_reserved_tokens gauge
sluice_tenant_reserved_tokens{model="m",tenant="comes"} 0
sluice_tenant_reserved_tokens{model="m",tenant="other"} 0
sluice_tenant_reserved_tokens{model="m",tenant="stays"} 0
sluice_tenant_reserved_tokens{model="other",tenant="other"} 0
`
	if err := testutil.CollectAndCompare(m, strings.NewReader(want), "sluice_tenant_cost_microunits_total", "sluice_tenant_reserved_tokens"); err != nil {
		t.Error(err)
	}
	before := m.SeriesBound()
	if err := m.Reconfigure(MetricsConfig{Tenants: []string{""}}); err == nil || m.SeriesBound() != before {
		t.Errorf("a bad configuration gave %v", err)
	}
	// A lower cap holds for what was carried over too.
	if err := m.Reconfigure(MetricsConfig{Tenants: []string{"comes", "stays"}, Models: []string{"m"}, MaxSeries: 30}); err != nil {
		t.Fatal(err)
	}
	if got := series(t, m); got > m.SeriesBound() || m.SeriesBound() > 30 {
		t.Errorf("%d series, bound %d, cap 30", got, m.SeriesBound())
	}
}

func TestBadMetricsConfig(t *testing.T) {
	f := func(cfg MetricsConfig, want string) {
		t.Helper()
		if _, err := NewTenantMetrics(cfg); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: %v, want %q", cfg, err, want)
		}
	}
	f(MetricsConfig{Tenants: []string{""}}, "tenants has an entry that is empty")
	f(MetricsConfig{Models: []string{"\xff"}}, "models has an entry")
	f(MetricsConfig{Models: []string{"other"}}, `models lists "other"`)
	f(MetricsConfig{Currencies: []string{"USD", "USD"}}, `currencies lists "USD" twice`)
	f(MetricsConfig{MaxSeries: 13}, "too low; the totals alone need 14")
}

func BenchmarkObserve(b *testing.B) {
	m := newMetrics(b, MetricsConfig{Tenants: []string{"acme"}, Models: []string{"qwen"}, Currencies: []string{"USD"}})
	r := row("acme", "qwen", 200)
	b.ReportAllocs()
	for b.Loop() {
		m.Observe(r)
	}
}
