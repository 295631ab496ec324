package chargeback

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/common/expfmt"
	"pgregory.net/rapid"

	"github.com/sluicegate/sluice/tenancy"
)

// pages are books in memory: rows with the processes that have made them, and what
// those have noted.
type pages struct {
	memorySource
	noted []tenancy.Checkpoint
}

func sumUp(rows []*tenancy.Row) []tenancy.Usage {
	sums := make(map[figureKey]*tenancy.Usage)
	for _, row := range rows {
		key := figureKey{row.Tenant, row.Model, "", row.Currency}
		if sums[key] == nil {
			sums[key] = &tenancy.Usage{Tenant: row.Tenant, Model: row.Model, Totals: tenancy.Totals{Currency: row.Currency}}
		}
		sums[key].Add(row)
	}
	var list []tenancy.Usage
	for _, u := range sums {
		list = append(list, *u)
	}
	sortUsage(list)
	return list
}

func (p *pages) Usage(context.Context, time.Time, time.Time) ([]tenancy.Usage, error) {
	return sumUp(p.memorySource), nil
}

func (p *pages) Checkpoints(context.Context, time.Time) ([]tenancy.Checkpoint, error) {
	return p.noted, nil
}

func (p *pages) of(process string) []tenancy.Usage {
	var rows []*tenancy.Row
	for _, row := range p.memorySource {
		if row.Process == process {
			rows = append(rows, row)
		}
	}
	return sumUp(rows)
}

func (p *pages) Counted(context.Context, time.Time) (map[string][]tenancy.Usage, error) {
	m := make(map[string][]tenancy.Usage)
	for i := range p.noted {
		m[p.noted[i].Process] = p.of(p.noted[i].Process)
	}
	return m, nil
}

func (p *pages) Uncounted(context.Context, time.Time) (corrections, recovered, later int64, err error) {
	return 1, 2, 3, nil
}

func (p *pages) UsageOf(_ context.Context, process string, _ int64, _, _ time.Time) ([]tenancy.Usage, error) {
	return p.of(process), nil
}

// used is a row of March, by a process.
func used(process, tenant, model, currency string, in, out int64) *tenancy.Row {
	r := &tenancy.Row{
		ID: fmt.Sprint(process, tenant, model, in, out), Process: process, Tenant: tenant, Model: model, Pool: "p", Status: 200,
		Outcome: tenancy.OutcomeCompleted, Start: march.Add(time.Hour), Duration: time.Second, GPUTime: 250 * time.Millisecond,
		InputTokens: in, CachedTokens: in / 4, OutputTokens: out, ReasoningTokens: out / 2, Flags: tenancy.FlagReasoningApart, Currency: currency,
	}
	if currency != "" {
		r.Prices = tenancy.Prices{Input: 2_000_000, CachedInput: 1_000_000, Output: 3_000_000, Reasoning: 3_000_000}
		r.Costs = tenancy.Costs{Input: 2 * (in - in/4), CachedInput: in / 4, Output: 3 * (out - out/2), Reasoning: 3 * (out / 2)}
	}
	return r
}

func metricsOf(t testing.TB, rows []*tenancy.Row, process string) *TenantMetrics {
	t.Helper()
	m := newMetrics(t, MetricsConfig{Tenants: []string{"acme"}, Models: []string{"qwen", "llama"}, Currencies: []string{"USD"}})
	for i, row := range rows {
		if row.Process == process {
			m.Count([]*tenancy.Row{row}, tenancy.Counted{Seq: int64(i + 1)})
		}
	}
	return m
}

func noted(m *TenantMetrics, process string) []tenancy.Checkpoint {
	list := m.Checkpoint()
	for i := range list {
		list[i].Process = process
	}
	return list
}

func exportOf(t testing.TB, rows Source) (csv, json []byte) {
	t.Helper()
	s, err := NewStatement(t.Context(), rows, "2026-03", DefaultTerms(), PeriodOpen)
	if err != nil {
		t.Fatal(err)
	}
	if csv, err = s.CSV(); err != nil {
		t.Fatal(err)
	}
	if json, err = s.JSON(); err != nil {
		t.Fatal(err)
	}
	return csv, json
}

// first is the export of some rows in JSON.
func first(t testing.TB, rows []*tenancy.Row) []byte {
	t.Helper()
	_, json := exportOf(t, memorySource(rows))
	return json
}

func sampleUse() []*tenancy.Row {
	return []*tenancy.Row{
		used("one", "acme", "qwen", "USD", 100, 20), used("one", "acme", "qwen", "USD", 40, 6), used("two", "acme", "qwen", "USD", 8, 8),
		used("one", "globex", "llama", "EUR", 12, 2), used("two", "globex", "tiny", "", 16, 4), used("", "acme", "qwen", "USD", 4, 2),
	}
}

func TestReconcileAgrees(t *testing.T) {
	rows := sampleUse()
	books := &pages{memorySource: rows, noted: append(noted(metricsOf(t, rows, "one"), "one"), noted(metricsOf(t, rows, "two"), "two")...)}
	csv, json := exportOf(t, books)
	for _, text := range [][]byte{csv, json} {
		r, err := Reconcile(t.Context(), books, "2026-03", text)
		if err != nil {
			t.Fatal(err)
		}
		if len(r.Differences) != 0 || r.Rows != 6 || r.Counted != 5 || r.Processes != 2 || r.Corrections != 1 || r.Recovered != 2 || r.Later != 3 {
			t.Errorf("got %+v", r)
		}
	}
}

// Each kind of difference is named by whose it is.
func TestReconcileNamesDifferences(t *testing.T) {
	rows := sampleUse()
	one := noted(metricsOf(t, rows, "one"), "one")
	two := noted(metricsOf(t, rows, "two"), "two")
	csv, json := exportOf(t, memorySource(rows))
	f := func(name string, books *pages, text []byte, want ...string) {
		t.Helper()
		r, err := Reconcile(t.Context(), books, "2026-03", text)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		var got []string
		for _, d := range r.Differences {
			got = append(got, d.String())
		}
		if !slices.Equal(got, want) {
			t.Errorf("%s: got\n%s\nwant\n%s", name, strings.Join(got, "\n"), strings.Join(want, "\n"))
		}
	}
	f("a row is gone", &pages{memorySource: rows[1:], noted: one}, csv,
		`export: tenant "acme", model "qwen", cached_input, USD: 38 tokens, the ledger has 13 (+25)`,
		`export: tenant "acme", model "qwen", cached_input, USD: 38 micro-units, the ledger has 13 (+25)`,
		`export: tenant "acme", model "qwen", gpu_seconds, USD: 1000000 microseconds, the ledger has 750000 (+250000)`,
		`export: tenant "acme", model "qwen", input, USD: 114 tokens, the ledger has 39 (+75)`,
		`export: tenant "acme", model "qwen", input, USD: 228 micro-units, the ledger has 78 (+150)`,
		`export: tenant "acme", model "qwen", output, USD: 18 tokens, the ledger has 8 (+10)`,
		`export: tenant "acme", model "qwen", output, USD: 54 micro-units, the ledger has 24 (+30)`,
		`export: tenant "acme", model "qwen", reasoning, USD: 18 tokens, the ledger has 8 (+10)`,
		`export: tenant "acme", model "qwen", reasoning, USD: 54 micro-units, the ledger has 24 (+30)`,
		`metrics of process one: tenant "acme", model "qwen", cached_input, USD: 35 tokens, the ledger has 10 (+25)`,
		`metrics of process one: tenant "acme", model "qwen", cached_input, USD: 35 micro-units, the ledger has 10 (+25)`,
		`metrics of process one: tenant "acme", model "qwen", gpu_seconds, USD: 500000 microseconds, the ledger has 250000 (+250000)`,
		`metrics of process one: tenant "acme", model "qwen", input, USD: 105 tokens, the ledger has 30 (+75)`,
		`metrics of process one: tenant "acme", model "qwen", input, USD: 210 micro-units, the ledger has 60 (+150)`,
		`metrics of process one: tenant "acme", model "qwen", output, USD: 13 tokens, the ledger has 3 (+10)`,
		`metrics of process one: tenant "acme", model "qwen", output, USD: 39 micro-units, the ledger has 9 (+30)`,
		`metrics of process one: tenant "acme", model "qwen", reasoning, USD: 13 tokens, the ledger has 3 (+10)`,
		`metrics of process one: tenant "acme", model "qwen", reasoning, USD: 39 micro-units, the ledger has 9 (+30)`,
		`metrics of process one: tenant "acme", model "qwen", requests, USD: 2 rows, the ledger has 1 (+1)`)
	off := noted(metricsOf(t, rows, "two"), "two")
	off[0].Usage[0].OutputTokens++
	f("a counter is off by one", &pages{memorySource: rows, noted: off}, csv,
		`metrics of process two: tenant "acme", model "qwen", output, USD: 5 tokens, the ledger has 4 (+1)`)
	edit := func(from, to string) []byte {
		t.Helper()
		edited := bytes.Replace(json, []byte(from), []byte(to), 1)
		if bytes.Equal(edited, json) {
			t.Fatalf("the export has no %s:\n%s", from, json)
		}
		return edited
	}
	f("a quantity was edited", &pages{memorySource: rows}, edit(`"ConsumedQuantity":12,`, `"ConsumedQuantity":13,`),
		`export: tenant "globex", model "tiny", input, no price: 13 tokens, the ledger has 12 (+1)`)
	f("a cost was edited", &pages{memorySource: rows}, edit(`"BilledCost":0.000228`, `"BilledCost":-0.000228`),
		`export: tenant "acme", model "qwen", input, USD: -228 micro-units, the ledger has 228 (-456)`)
	f("a tenant was renamed", &pages{memorySource: rows[4:5]}, bytes.ReplaceAll(first(t, rows[4:5]), []byte(`"globex"`), []byte(`"initech"`)),
		`export: tenant "globex", model "tiny", cached_input, no price: 0 tokens, the ledger has 4 (-4)`,
		`export: tenant "globex", model "tiny", gpu_seconds, no price: 0 microseconds, the ledger has 250000 (-250000)`,
		`export: tenant "globex", model "tiny", input, no price: 0 tokens, the ledger has 12 (-12)`,
		`export: tenant "globex", model "tiny", output, no price: 0 tokens, the ledger has 2 (-2)`,
		`export: tenant "globex", model "tiny", reasoning, no price: 0 tokens, the ledger has 2 (-2)`,
		`export: tenant "initech", model "tiny", cached_input, no price: 4 tokens, the ledger has 0 (+4)`,
		`export: tenant "initech", model "tiny", gpu_seconds, no price: 250000 microseconds, the ledger has 0 (+250000)`,
		`export: tenant "initech", model "tiny", input, no price: 12 tokens, the ledger has 0 (+12)`,
		`export: tenant "initech", model "tiny", output, no price: 2 tokens, the ledger has 0 (+2)`,
		`export: tenant "initech", model "tiny", reasoning, no price: 2 tokens, the ledger has 0 (+2)`)
	if r, err := Reconcile(t.Context(), &pages{memorySource: rows}, "2026-03", nil); err != nil || len(r.Differences) == 0 {
		t.Errorf("an empty file: %+v, %v", r, err)
	}
	gone := &pages{memorySource: nil, noted: two}
	r, err := Reconcile(t.Context(), gone, "2026-03", []byte(strings.Join(header, ",")+"\n"))
	if err != nil || len(r.Differences) == 0 || r.Differences[0].Process != "two" || r.Differences[0].Ledger != 0 {
		t.Errorf("a process all of whose rows are gone: %+v, %v", r, err)
	}
}

// What is no export of the month is an error and no difference.
func TestReconcileRefusesOtherFiles(t *testing.T) {
	rows := sampleUse()
	csv, json := exportOf(t, memorySource(rows))
	replace := func(text []byte, from, to string) []byte { return bytes.ReplaceAll(text, []byte(from), []byte(to)) }
	for _, c := range []struct {
		name string
		text []byte
		want string
	}{
		{"another month", replace(csv, "2026-03-01T00:00:00Z", "2026-02-01T00:00:00Z"), `its BillingPeriodStart is "2026-02-01T00:00:00Z", should be 2026-03-01T00:00:00Z`},
		{"another file", []byte("a,b\n1,2\n"), `line 1 of the charges: its BillingPeriodStart is ""`},
		{"a meter", replace(json, `"SkuMeter":"output"`, `"SkuMeter":"images"`), `its SkuMeter is "images"`},
		{"a number", replace(json, `"BilledCost":0.000054`, `"BilledCost":5.4e-5`), "its BilledCost"},
		{"half a line", csv[:len(csv)-30], "can't be read"},
	} {
		_, err := Reconcile(t.Context(), &pages{memorySource: rows}, "2026-03", c.text)
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", c.name, err, c.want)
		}
	}
	if _, err := Reconcile(t.Context(), &pages{}, "03/2026", csv); err == nil {
		t.Error("03/2026 is no month")
	}
}

// failer is a test, of rapid, too.
type failer interface {
	Helper()
	Fatal(args ...any)
}

// scrapeOf is what a gateway with these metrics answers.
func scrapeOf(t failer, m *TenantMetrics, process string, waiting int64) []byte {
	t.Helper()
	reg := prometheus.NewPedanticRegistry()
	info := prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "sluice_ledger_process_info"}, []string{"gateway", "process"})
	info.WithLabelValues("gw", process).Set(1)
	reg.MustRegister(m, info)
	m.mu.Lock()
	m.counted.Waiting = waiting
	m.mu.Unlock()
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	var buf bytes.Buffer
	for _, f := range families {
		if _, err := expfmt.MetricFamilyToText(&buf, f); err != nil {
			t.Fatal(err)
		}
	}
	return buf.Bytes()
}

func compareLive(t testing.TB, rows []*tenancy.Row, text []byte) (list []string, err error) {
	t.Helper()
	s, err := ReadScrape(bytes.NewReader(text))
	if err != nil {
		return nil, err
	}
	differences, err := CompareLive(t.Context(), &pages{memorySource: rows}, s)
	for _, d := range differences {
		list = append(list, d.String())
	}
	return list, err
}

func TestCompareLive(t *testing.T) {
	rows := sampleUse()
	text := scrapeOf(t, metricsOf(t, rows, "one"), "one", 0)
	if got, err := compareLive(t, rows, text); err != nil || len(got) != 0 {
		t.Errorf("got %q, %v", got, err)
	}
	edit := func(from, to string) []byte {
		t.Helper()
		edited := bytes.Replace(text, []byte(from), []byte(to), 1)
		if bytes.Equal(edited, text) {
			t.Fatalf("no %q in\n%s", from, text)
		}
		return edited
	}
	for _, c := range []struct{ from, to, want string }{
		{`sluice_tenant_tokens_total{kind="output",model="qwen",tenant="acme"} 26`, `sluice_tenant_tokens_total{kind="output",model="qwen",tenant="acme"} 27`,
			`metrics: sluice_tenant_tokens_total{tenant="acme",model="qwen",kind="output"} is 27, the ledger has 26 (+1)`},
		{`sluice_tenant_requests_total{model="llama",status_class="2xx",tenant="other"} 1`, `sluice_tenant_requests_total{model="llama",status_class="2xx",tenant="other"} 0`,
			`metrics: the sum of the other sluice_tenant_requests_total is 0, the ledger has 1 (-1)`},
		{`sluice_tenant_cost_microunits_total{currency="other",model="llama",tenant="other"} 27`, `sluice_tenant_cost_microunits_total{currency="other",model="llama",tenant="other"} 30`,
			`metrics: the sum of the other sluice_tenant_cost_microunits_total{currency="other"} is 30, the ledger has 27 (+3)`},
	} {
		if got, err := compareLive(t, rows, edit(c.from, c.to)); err != nil || !slices.Equal(got, []string{c.want}) {
			t.Errorf("got %q, %v, want %q", got, err, c.want)
		}
	}
	if got, err := compareLive(t, rows[1:], text); err != nil || len(got) == 0 || !strings.Contains(got[0], `tenant="acme",model="qwen"`) {
		t.Errorf("a row is gone: %q, %v", got, err)
	}
	if _, err := compareLive(t, rows, scrapeOf(t, metricsOf(t, rows, "one"), "one", 3)); !errors.Is(err, ErrWaiting) {
		t.Errorf("rows in the spool: %v", err)
	}
	if _, err := compareLive(t, rows, bytes.ReplaceAll(text, []byte(`sluice_ledger_process_info`), []byte(`something_else`))); !errors.Is(err, ErrNoGateway) {
		t.Errorf("no gateway: %v", err)
	}
	if _, err := compareLive(t, rows, edit(`tenant="acme"} 26`, `tenant="acme"} 1e17`)); err == nil || !strings.Contains(err.Error(), "2^53") {
		t.Errorf("a number too large: %v", err)
	}
	if _, err := compareLive(t, rows, []byte("<html>")); err == nil {
		t.Error("a page was read")
	}
}

// TestPropertyLiveEqualsRows: whatever names come and go, what a gateway exports
// agrees with its rows, and one row more or less is found.
// since notes from when on rows are asked for.
type since struct {
	pages
	from time.Time
}

func (s *since) UsageOf(ctx context.Context, process string, seq int64, from, to time.Time) ([]tenancy.Usage, error) {
	s.from = from
	return s.pages.UsageOf(ctx, process, seq, from, to)
}

// Rows are looked for from a day before the gateway's start on, but not in an earlier
// month, which may be archived.
func TestCompareLiveLooksBack(t *testing.T) {
	for _, c := range []struct{ started, from time.Time }{
		{march.AddDate(0, 0, 9), march.AddDate(0, 0, 8)},
		{march.Add(time.Hour), march},
		{time.Time{}, time.Unix(0, 0)},
	} {
		var books since
		if _, err := CompareLive(t.Context(), &books, &Scrape{Process: "one", Started: c.started}); err != nil || !books.from.Equal(c.from) {
			t.Errorf("started %v: rows from %v on, %v, want %v", c.started, books.from, err, c.from)
		}
	}
}

func TestPropertyLiveEqualsRows(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		name := func(prefix string, n int) string { return fmt.Sprint(prefix, rapid.IntRange(0, n).Draw(t, prefix)) }
		cfg := MetricsConfig{
			Tenants: []string{"t0"}, Top: rapid.IntRange(0, 2).Draw(t, "top"), Models: []string{"m0", "m1"}, Currencies: []string{"C0"},
			MaxSeries: rapid.SampledFrom([]int{60, 10_000}).Draw(t, "cap"),
		}
		m, err := NewTenantMetrics(cfg)
		if err != nil {
			t.Fatal(err)
		}
		var rows []*tenancy.Row
		at := march
		for i := range rapid.IntRange(1, 40).Draw(t, "rows") {
			if rapid.IntRange(0, 9).Draw(t, "what") == 0 {
				next := cfg
				next.Tenants = []string{name("t", 3)}
				if err := m.Reconfigure(next); err != nil {
					t.Fatal(err)
				}
			}
			row := used("p", name("t", 5), name("m", 3), name("C", 2), rapid.Int64Range(0, 1000).Draw(t, "in"), 10)
			at = at.Add(time.Duration(rapid.Int64Range(0, int64(20*time.Minute)).Draw(t, "pause")))
			row.ID, row.Start = fmt.Sprint(i), at
			rows = append(rows, row)
			m.Count([]*tenancy.Row{row}, tenancy.Counted{Seq: int64(i + 1)})
		}
		text := scrapeOf(t, m, "p", 0)
		s, err := ReadScrape(bytes.NewReader(text))
		if err != nil {
			t.Fatal(err)
		}
		got, err := CompareLive(context.Background(), &pages{memorySource: rows}, s)
		if err != nil || len(got) != 0 {
			t.Fatalf("got %v, %v from\n%s", got, err, text)
		}
		out := rapid.IntRange(0, len(rows)-1).Draw(t, "gone")
		if got, err = CompareLive(context.Background(), &pages{memorySource: slices.Delete(slices.Clone(rows), out, out+1)}, s); err != nil || len(got) == 0 {
			t.Fatalf("without row %d: %v, %v", out, got, err)
		}
	})
}
