package chargeback

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"pgregory.net/rapid"

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
	if got := m.pairs[pair{"acme", "qwen"}].reserved; got != 0 {
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
		{Tenants: names("t", 5), Models: names("m", 5), MaxSeries: 23},
		{Tenants: names("t", 5), Top: 7, Models: names("m", 5), MaxSeries: 400},
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
		requests, _, cost := counted(m)
		if requests != workers*each || cost[""] != 8*workers*each {
			t.Errorf("%d requests and %d micro-units counted of %d and %d", requests, cost[""], workers*each, 8*workers*each)
		}
	}
}

// counted sums what all series have, and what retired ones had: requests, tokens
// by kind, cost by currency; under "" that of all currencies.
func counted(m *TenantMetrics) (requests uint64, tokens [4]uint64, cost map[string]uint64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	cost = make(map[string]uint64)
	add := func(c *cells) {
		for _, n := range c.requests {
			requests += n
		}
		for i, n := range c.tokens {
			tokens[i] += n
		}
		for currency, n := range c.cost {
			cost[currency] += n
			cost[""] += n
		}
	}
	for _, c := range m.pairs {
		add(c)
	}
	add(&m.retired)
	return requests, tokens, cost
}

// TestNobodyIsFoldedWhileThereIsRoom: many who use the same pairs for the first
// time at once get the series that there is room for.
func TestNobodyIsFoldedWhileThereIsRoom(t *testing.T) {
	cfg := MetricsConfig{Tenants: []string{"a", "b"}, Models: []string{"m"}}
	cfg.MaxSeries = cfg.fixed() + 3*cfg.perPair() // two pairs and that of the others
	for range 200 {
		m := newMetrics(t, cfg)
		var wg sync.WaitGroup
		for i := range 8 {
			wg.Go(func() { m.Observe(row([]string{"a", "b"}[i%2], "m", 200)) })
		}
		wg.Wait()
		for _, tenant := range cfg.Tenants {
			if c := m.pairs[pair{tenant, "m"}]; c == nil || c.requests[0] != 4 {
				t.Fatalf("tenant %s has %+v, want its 4 requests", tenant, c)
			}
		}
		if m.folds[foldTenant] != 0 {
			t.Fatalf("%d requests were folded", m.folds[foldTenant])
		}
	}
}

// TestRemovedTenantInFlight: a tenant that is removed while it has a request in
// flight leaves the series, and neither that request's end nor a scrape in
// between brings it back.
func TestRemovedTenantInFlight(t *testing.T) {
	cfg := MetricsConfig{Tenants: []string{"acme"}, Top: 1, Models: []string{"m"}, Known: map[string]bool{"acme": true, "globex": true}}
	for _, tenant := range []string{"acme", "globex"} { // listed, and by its usage
		m := newMetrics(t, cfg)
		scrape := func() string {
			reg := prometheus.NewPedanticRegistry()
			reg.MustRegister(m)
			families, err := reg.Gather()
			if err != nil {
				t.Fatal(err)
			}
			return fmt.Sprint(families)
		}
		m.Observe(row(tenant, "m", 200))
		held := m.Reserve(tenant, "m", 7)
		if !strings.Contains(scrape(), tenant) {
			t.Fatalf("%s has no series", tenant)
		}
		left := cfg
		left.Known = map[string]bool{"initech": true}
		if err := m.Reconfigure(left); err != nil {
			t.Fatal(err)
		}
		if text := scrape(); strings.Contains(text, tenant) {
			t.Errorf("after its removal: %s", text)
		}
		held.Release()
		m.Observe(row(tenant, "m", 200)) // the end of what was in flight
		if text := scrape(); strings.Contains(text, tenant) {
			t.Errorf("after the end of its request: %s", text)
		}
		if got := m.pairs[others].reserved; got != 0 {
			t.Errorf("%d tokens stay reserved", got)
		}
		if c := m.pairs[pair{otherLabel, "m"}]; c.requests[0] != 1 {
			t.Errorf("the last request was counted as %+v", c)
		}
	}
}

// TestTopTenants: places go to those that use most, and change seldom.
func TestTopTenants(t *testing.T) {
	start := time.Date(2026, 3, 1, 0, 0, 0, 0, time.UTC)
	at := start
	m := newMetrics(t, MetricsConfig{Tenants: []string{"listed"}, Top: 2, Models: []string{"m"}})
	use := func(tenant string, tokens int64) {
		m.Observe(&tenancy.Row{Tenant: tenant, Model: "m", Status: 200, InputTokens: tokens, Start: at})
	}
	members := func() string { return strings.Join(slices.Sorted(maps.Keys(m.top.members)), " ") }
	check := func(when, want string) {
		t.Helper()
		if got := members(); got != want {
			t.Fatalf("%s: %s, want %s", when, got, want)
		}
	}
	use("listed", 1_000_000)
	use("a", 100)
	check("the first to come has a place", "a")
	use("b", 100)
	use("c", 100_000)
	use("bad\nname", 1_000_000)
	check("there is no place left, and no hurry", "a b")
	if m.changes != 0 {
		t.Errorf("%d changes of names", m.changes)
	}
	at = at.Add(9 * time.Minute)
	use("c", 1)
	check("after nine minutes", "a b")
	at = at.Add(time.Minute)
	use("a", 50)
	check("after ten, the weakest gives way", "a c")
	if got := m.retired.tokens[0]; got != 100 || m.changes == 0 {
		t.Errorf("the retired series had %d tokens, %d changes; want b's 100", got, m.changes)
	}
	at = at.Add(rankEvery)
	use("b", 100) // 201 against 152: not one and a half times
	check("a little more is not enough", "a c")
	at = at.Add(rankEvery)
	use("b", 500)
	at = at.Add(rankEvery)
	use("c", 1)
	check("enough", "b c")
	at = at.Add(100 * halfLife)
	use("d", 10)
	check("who uses nothing any more gives way", "c d")
	if got := len(m.top.scores); got > 4 {
		t.Errorf("%d tenants are remembered", got)
	}
	at = start
	use("e", 1)
	check("a clock that was set back changes nothing", "c d")
	at = at.Add(rankEvery)
	use("e", 1_000_000)
	check("and is waited for no longer", "c e")
	if err := m.Reconfigure(MetricsConfig{Tenants: []string{"c"}, Top: 1, Models: []string{"m"}}); err != nil {
		t.Fatal(err)
	}
	check("who is listed needs no place", "e")
	if c := m.pairs[pair{"c", "m"}]; c == nil || c.tokens[0] != 1 {
		t.Errorf("who is listed now goes on from %+v", c)
	}
	if err := m.Reconfigure(MetricsConfig{Models: []string{"m"}}); err != nil {
		t.Fatal(err)
	}
	check("no places", "")
	if len(m.pairs) != 2 {
		t.Errorf("%d pairs are left: %v", len(m.pairs), m.pairs)
	}
}

// TestPropertySeriesEqualUsage: whatever is counted and reconfigured, the series
// with what retired ones had sum to what the checkpoints say, which sum to the
// rows; and the bound holds.
func TestPropertySeriesEqualUsage(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		names := func(prefix string, n int) *rapid.Generator[[]string] {
			return rapid.Custom(func(t *rapid.T) []string {
				return rapid.SliceOfNDistinct(rapid.Map(rapid.IntRange(0, n), func(i int) string { return fmt.Sprint(prefix, i) }), 0, n, rapid.ID).Draw(t, prefix)
			})
		}
		config := rapid.Custom(func(t *rapid.T) MetricsConfig {
			return MetricsConfig{
				Tenants: names("t", 4).Draw(t, "tenants"), Models: names("m", 2).Draw(t, "models"), Top: rapid.IntRange(0, 3).Draw(t, "top"),
				Currencies: names("C", 2).Draw(t, "currencies"), MaxSeries: rapid.IntRange(60, 300).Draw(t, "cap"),
			}
		})
		m, err := NewTenantMetrics(config.Draw(t, "config"))
		if err != nil {
			t.Fatal(err)
		}
		at := time.Date(2026, 3, 31, 20, 0, 0, 0, time.UTC)
		want := tenancy.Totals{}
		var held []Reserved
		var reserved int64
		for range rapid.IntRange(1, 80).Draw(t, "steps") {
			at = at.Add(time.Duration(rapid.Int64Range(0, int64(time.Hour)).Draw(t, "pause")))
			tenant, model := fmt.Sprint("t", rapid.IntRange(0, 8).Draw(t, "tenant")), fmt.Sprint("m", rapid.IntRange(0, 3).Draw(t, "model"))
			switch rapid.IntRange(0, 5).Draw(t, "what") {
			case 0:
				if err := m.Reconfigure(config.Draw(t, "config")); err != nil {
					t.Fatal(err)
				}
			case 1:
				n := rapid.Int64Range(1, 100).Draw(t, "reserved")
				held, reserved = append(held, m.Reserve(tenant, model, n)), reserved+n
			case 2:
				if len(held) > 0 {
					reserved -= held[0].tokens
					held[0].Release()
					held = held[1:]
				}
			default:
				r := row(tenant, model, 100*rapid.IntRange(0, 6).Draw(t, "status"))
				r.Start, r.Currency = at, fmt.Sprint("C", rapid.IntRange(0, 3).Draw(t, "currency"))
				r.InputTokens += rapid.Int64Range(0, 5000).Draw(t, "tokens")
				m.Count([]*tenancy.Row{r}, tenancy.Counted{})
				want.Add(r)
			}
		}
		sum := tenancy.Totals{}
		for _, c := range m.Checkpoint() {
			for _, u := range c.Usage {
				sum.Rows += u.Rows
				sum.InputTokens += u.InputTokens
				sum.CachedTokens += u.CachedTokens
				sum.OutputTokens += u.OutputTokens
				sum.ReasoningTokens += u.ReasoningTokens
				sum.Costs = sum.Costs.Add(u.Costs)
			}
		}
		if sum != want {
			t.Fatalf("checkpoints sum to %+v, the rows to %+v", sum, want)
		}
		requests, tokens, cost := counted(m)
		if requests != uint64(want.Rows) || cost[""] != uint64(want.Costs.Total()) ||
			tokens != [4]uint64{uint64(want.InputTokens), uint64(want.CachedTokens), uint64(want.OutputTokens), uint64(want.ReasoningTokens)} {
			t.Fatalf("series count %d, %v, %v; the rows are %+v", requests, tokens, cost, want)
		}
		var gauge int64
		for _, c := range m.pairs {
			gauge += c.reserved
		}
		if gauge != reserved {
			t.Fatalf("%d tokens reserved in the series, %d in truth", gauge, reserved)
		}
		if got := len(m.collect()); got > m.SeriesBound() {
			t.Fatalf("%d series, bound %d", got, m.SeriesBound())
		}
	})
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
	if got := m.pairs[others].reserved; got != 5 {
		t.Errorf("%d tokens of the tenant that has left are reserved by others, want 5", got)
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
# HELP sluice_tenant_retired_cost_microunits_total What series of sluice_tenant_cost_microunits_total had counted that are no more.
# TYPE sluice_tenant_retired_cost_microunits_total counter
sluice_tenant_retired_cost_microunits_total{currency="USD"} 8
`
	if err := testutil.CollectAndCompare(m, strings.NewReader(want), "sluice_tenant_retired_cost_microunits_total", "sluice_tenant_cost_microunits_total", "sluice_tenant_reserved_tokens"); err != nil {
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

// A tenant that has places only since a reload has been counted as one of the
// others: its series begins in the middle, and so it is said.
func TestReconfigureTop(t *testing.T) {
	m := newMetrics(t, MetricsConfig{Models: []string{"m", "n"}, Currencies: []string{"USD"}})
	m.Observe(row("acme", "m", 200))
	if err := m.Reconfigure(MetricsConfig{Top: 1, Models: []string{"m", "n"}, Currencies: []string{"USD"}}); err != nil {
		t.Fatal(err)
	}
	m.Observe(row("acme", "m", 200))
	if m.pairs[pair{"acme", "m"}] == nil {
		t.Fatal("the tenant has no series")
	}
	if m.changes == 0 {
		t.Error("a name came after it was counted as one of the others, and no change is counted")
	}
}

// What is counted of a month stays counted while a clock is far ahead for a moment,
// and is let go of when there are later ones.
func TestCheckpointsOverTime(t *testing.T) {
	m := newMetrics(t, MetricsConfig{Currencies: []string{"USD"}})
	count := func(end time.Time) map[string]int64 {
		r := row("acme", "m", 200)
		r.Start = end
		m.Observe(r)
		got := make(map[string]int64)
		for _, c := range m.Checkpoint() {
			for _, u := range c.Usage {
				got[c.Month.Format("2006-01")] += u.Rows
			}
		}
		return got
	}
	count(march)
	count(march.AddDate(4, 0, 0))
	if got := count(march.Add(time.Hour)); got["2026-03"] != 2 || got["2030-03"] != 1 {
		t.Errorf("after a clock was ahead: %v", got)
	}
	count(march.AddDate(0, 1, 0))
	count(march.AddDate(0, 2, 0))
	if got := count(march.AddDate(0, 3, 0)); got["2026-03"] != 0 || got["2026-06"] != 1 || got["2026-05"] != 1 {
		t.Errorf("months later: %v", got)
	}
}

func TestBadMetricsConfig(t *testing.T) {
	f := func(cfg MetricsConfig, want string) {
		t.Helper()
		if _, err := NewTenantMetrics(cfg); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: %v, want %q", cfg, err, want)
		}
	}
	f(MetricsConfig{Tenants: []string{"a", ""}}, "entry 2 of tenants is empty")
	f(MetricsConfig{Models: []string{"\xff"}}, "entry 1 of models is empty or no UTF-8 text")
	f(MetricsConfig{Tenants: []string{"a\nb"}}, "entry 1 of tenants holds a control character")
	f(MetricsConfig{Tenants: []string{"a\u200bb"}}, "entry 1 of tenants holds a control character or another one that can't be seen")
	f(MetricsConfig{Models: []string{strings.Repeat("m", 129)}}, "entry 1 of models is longer than 128 bytes")
	f(MetricsConfig{Models: []string{"other"}}, `entry 1 of models is "other", which stands for all`)
	f(MetricsConfig{Top: -1}, "-1 tenants can't be exported")
	f(MetricsConfig{Currencies: []string{"USD", "USD"}}, `currencies lists "USD" twice`)
	f(MetricsConfig{MaxSeries: 13}, "too low; the totals alone need 23")
}

func BenchmarkObserve(b *testing.B) {
	m := newMetrics(b, MetricsConfig{Tenants: []string{"acme"}, Models: []string{"qwen"}, Currencies: []string{"USD"}})
	r := row("acme", "qwen", 200)
	b.ReportAllocs()
	for b.Loop() {
		m.Observe(r)
	}
}
