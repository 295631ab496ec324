package chargeback

import (
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"unicode/utf8"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/sluicegate/sluice/tenancy"
)

// otherLabel stands for every value that is not exported by name.
const otherLabel = "other"

// MetricsConfig says which label values TenantMetrics may export.
type MetricsConfig struct {
	// Tenants and Models are exported by name; all others are "other".
	Tenants, Models []string
	// Currencies are those of the price table.
	Currencies []string
	// MaxSeries is the hard cap on exported series, default 10,000. Pairs of
	// tenant and model beyond it are counted under "other".
	MaxSeries int
}

// Series that one pair of tenant and model can have, currencies apart: status
// classes, token kinds, reserved tokens.
var (
	statusClasses = []string{"2xx", "3xx", "4xx", "5xx", otherLabel}
	tokenKinds    = []string{"input", "cached_input", "output", "reasoning"}
)

const (
	defaultMaxSeries = 10_000
	// foldSeries are those of sluice_label_folds_total: tenant, model, currency.
	foldSeries = 3
)

// perPair is how many series one pair of tenant and model can have.
func (c MetricsConfig) perPair() int {
	return len(statusClasses) + len(tokenKinds) + 1 + len(c.Currencies) + 1
}

// pairs is how many pairs may be exported by name and as "other", the pair of
// others included.
func (c MetricsConfig) pairs() int {
	all := (len(c.Tenants) + 1) * (len(c.Models) + 1)
	return min(all, (c.maxSeries()-foldSeries)/c.perPair())
}

func (c MetricsConfig) maxSeries() int {
	if c.MaxSeries <= 0 {
		return defaultMaxSeries
	}
	return c.MaxSeries
}

// SeriesBound is the most series this configuration can ever export.
func (c MetricsConfig) SeriesBound() int { return foldSeries + c.pairs()*c.perPair() }

// Validate reports names that can't be label values, repeated ones, and a cap
// that leaves no room for anything.
func (c MetricsConfig) Validate() error {
	for _, list := range []struct {
		what   string
		values []string
	}{{"tenants", c.Tenants}, {"models", c.Models}, {"currencies", c.Currencies}} {
		seen := make(map[string]bool)
		for _, v := range list.values {
			switch {
			case v == "" || !utf8.ValidString(v):
				return fmt.Errorf("metrics: %s has an entry that is empty or no UTF-8 text", list.what)
			case v == otherLabel:
				return fmt.Errorf("metrics: %s lists %q, which stands for all that are not listed; leave it out", list.what, v)
			case seen[v]:
				return fmt.Errorf("metrics: %s lists %q twice", list.what, v)
			}
			seen[v] = true
		}
	}
	if least := foldSeries + c.perPair(); c.maxSeries() < least {
		return fmt.Errorf("metrics: a cap of %d series is too low; the totals alone need %d", c.MaxSeries, least)
	}
	return nil
}

// TenantMetrics counts requests, tokens and money by tenant and model. It is a
// prometheus.Collector. Safe for concurrent use.
type TenantMetrics struct {
	requests, tokens, cost, reserved, folds *prometheus.Desc
	foldCounts                              [foldSeries]atomic.Uint64

	// mu is held for reading while a table is used, so that a reconfiguration
	// carries over everything that was counted.
	mu    sync.RWMutex
	table *cellTable
}

const (
	foldTenant = iota
	foldModel
	foldCurrency
)

var foldNames = [foldSeries]string{"tenant", "model", "currency"}

// cells are the counters of one pair of tenant and model.
type cells struct {
	requests []atomic.Uint64 // by statusClasses
	tokens   []atomic.Uint64 // by tokenKinds
	cost     []atomic.Uint64 // by cellTable.currencies
	reserved atomic.Int64
}

// cellTable resolves names to counters under one configuration.
type cellTable struct {
	cfg               MetricsConfig
	tenants, models   []string // the last of each is "other"
	currencies        []string // likewise
	tenantAt, modelAt map[string]int
	currencyAt        map[string]int
	pairs             []atomic.Pointer[cells] // by tenant, then model
	left              atomic.Int64            // pairs that may still be made
	others            int                     // index of the pair of others
}

func newTable(cfg MetricsConfig) *cellTable {
	index := func(values []string) ([]string, map[string]int) {
		at := make(map[string]int, len(values))
		for i, v := range values {
			at[v] = i
		}
		return append(slices.Clone(values), otherLabel), at
	}
	t := &cellTable{cfg: cfg}
	t.tenants, t.tenantAt = index(cfg.Tenants)
	t.models, t.modelAt = index(cfg.Models)
	t.currencies, t.currencyAt = index(cfg.Currencies)
	t.pairs = make([]atomic.Pointer[cells], len(t.tenants)*len(t.models))
	t.others = len(t.pairs) - 1
	t.pairs[t.others].Store(t.newCells())
	t.left.Store(int64(cfg.pairs() - 1))
	return t
}

func (t *cellTable) newCells() *cells {
	return &cells{
		requests: make([]atomic.Uint64, len(statusClasses)),
		tokens:   make([]atomic.Uint64, len(tokenKinds)),
		cost:     make([]atomic.Uint64, len(t.currencies)),
	}
}

// cellsOf returns the counters of a pair, made at its first use while there is
// room, else those of the pair of others. It says which names were folded.
func (t *cellTable) cellsOf(tenant, model string) (c *cells, foldedTenant, foldedModel bool) {
	i, named := t.tenantAt[tenant]
	if !named {
		i, foldedTenant = len(t.tenants)-1, true
	}
	j, named := t.modelAt[model]
	if !named {
		j, foldedModel = len(t.models)-1, true
	}
	slot := &t.pairs[i*len(t.models)+j]
	if c = slot.Load(); c != nil {
		return c, foldedTenant, foldedModel
	}
	if t.left.Add(-1) < 0 {
		t.left.Add(1)
		if c = slot.Load(); c != nil { // somebody else has just made it
			return c, foldedTenant, foldedModel
		}
		return t.pairs[t.others].Load(), true, true
	}
	fresh := t.newCells()
	if !slot.CompareAndSwap(nil, fresh) {
		t.left.Add(1)
	}
	return slot.Load(), foldedTenant, foldedModel
}

// NewTenantMetrics returns a collector for cfg.
func NewTenantMetrics(cfg MetricsConfig) (*TenantMetrics, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	return &TenantMetrics{
		requests: prometheus.NewDesc("sluice_tenant_requests_total",
			"Finished requests by tenant, model and class of HTTP status.", []string{"tenant", "model", "status_class"}, nil),
		tokens: prometheus.NewDesc("sluice_tenant_tokens_total",
			"Tokens charged, by tenant and model. input includes cached_input, output includes reasoning.", []string{"tenant", "model", "kind"}, nil),
		cost: prometheus.NewDesc("sluice_tenant_cost_microunits_total",
			"Cost charged, in millionths of the currency.", []string{"tenant", "model", "currency"}, nil),
		reserved: prometheus.NewDesc("sluice_tenant_reserved_tokens",
			"Tokens reserved by requests in flight.", []string{"tenant", "model"}, nil),
		folds: prometheus.NewDesc("sluice_label_folds_total",
			"Requests counted under \"other\" because the label's value is not exported by name.", []string{"label"}, nil),
		table: newTable(cfg),
	}, nil
}

// Reconfigure changes the allowlists and the cap. Counters of values that stay
// go on; series of values that leave are retired. An error changes nothing.
func (m *TenantMetrics) Reconfigure(cfg MetricsConfig) error {
	if err := cfg.Validate(); err != nil {
		return err
	}
	fresh := newTable(cfg)
	m.mu.Lock()
	defer m.mu.Unlock()
	old := m.table
	for i := range old.pairs {
		from := old.pairs[i].Load()
		if from == nil {
			continue
		}
		a, ok := place(fresh.tenantAt, len(fresh.tenants)-1, old.tenants, i/len(old.models))
		b, ok2 := place(fresh.modelAt, len(fresh.models)-1, old.models, i%len(old.models))
		slot := a*len(fresh.models) + b
		if !ok || !ok2 || slot != fresh.others && fresh.left.Add(-1) < 0 {
			continue
		}
		// The same currencies keep their counters, whatever their order.
		from.cost = fresh.costsOf(from, old)
		fresh.pairs[slot].Store(from)
	}
	fresh.left.Store(max(0, fresh.left.Load()))
	m.table = fresh
	return nil
}

// place finds where the i-th of the old names is in the new order; the last one
// is "other" in both.
func place(at map[string]int, other int, names []string, i int) (int, bool) {
	if i == len(names)-1 {
		return other, true
	}
	j, ok := at[names[i]]
	return j, ok
}

func (t *cellTable) costsOf(from *cells, old *cellTable) []atomic.Uint64 {
	costs := make([]atomic.Uint64, len(t.currencies))
	for i := range from.cost {
		if j, ok := place(t.currencyAt, len(t.currencies)-1, old.currencies, i); ok {
			costs[j].Store(from.cost[i].Load())
		}
	}
	return costs
}

// Observe counts a finished request.
func (m *TenantMetrics) Observe(row *tenancy.Row) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	c, foldedTenant, foldedModel := m.table.cellsOf(row.Tenant, row.Model)
	if foldedTenant {
		m.foldCounts[foldTenant].Add(1)
	}
	if foldedModel && row.Model != "" { // a request without a model has no name that could be folded
		m.foldCounts[foldModel].Add(1)
	}
	c.requests[statusClass(row.Status)].Add(1)
	for i, n := range [...]int64{row.InputTokens, row.CachedTokens, row.OutputTokens, row.ReasoningTokens} {
		c.tokens[i].Add(uint64(max(0, n)))
	}
	total := row.Costs.Total()
	if total <= 0 {
		return
	}
	i, named := m.table.currencyAt[row.Currency]
	if !named {
		i = len(m.table.currencies) - 1
		m.foldCounts[foldCurrency].Add(1)
	}
	c.cost[i].Add(uint64(total))
}

// statusClass is the index of a status in statusClasses.
func statusClass(status int) int {
	if class := status / 100; class >= 2 && class <= 5 {
		return class - 2
	}
	return len(statusClasses) - 1
}

// Reserved is a share of sluice_tenant_reserved_tokens that a request in flight
// holds. The zero value holds nothing.
type Reserved struct {
	cells  *cells
	tokens int64
}

// Reserve adds to the tokens reserved by requests in flight. Release takes them
// off again, under the same label values whatever was reconfigured meanwhile.
func (m *TenantMetrics) Reserve(tenant, model string, tokens int64) Reserved {
	m.mu.RLock()
	defer m.mu.RUnlock()
	c, _, _ := m.table.cellsOf(tenant, model)
	c.reserved.Add(tokens)
	return Reserved{cells: c, tokens: tokens}
}

// Release gives the share back; only the first call has an effect.
func (r *Reserved) Release() {
	if r.cells != nil {
		r.cells.reserved.Add(-r.tokens)
		r.cells = nil
	}
}

// SeriesBound is the most series the present configuration can ever export.
func (m *TenantMetrics) SeriesBound() int {
	m.mu.RLock()
	defer m.mu.RUnlock()
	return m.table.cfg.SeriesBound()
}

// Describe implements prometheus.Collector.
func (m *TenantMetrics) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{m.requests, m.tokens, m.cost, m.reserved, m.folds} {
		ch <- d
	}
}

// Collect implements prometheus.Collector. A series appears once its pair of
// tenant and model was seen.
func (m *TenantMetrics) Collect(ch chan<- prometheus.Metric) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	counter := func(d *prometheus.Desc, v uint64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(v), labels...)
	}
	t := m.table
	for i := range t.pairs {
		c := t.pairs[i].Load()
		if c == nil {
			continue
		}
		tenant, model := t.tenants[i/len(t.models)], t.models[i%len(t.models)]
		for k := range c.requests {
			if n := c.requests[k].Load(); n > 0 {
				counter(m.requests, n, tenant, model, statusClasses[k])
			}
		}
		for k := range c.tokens {
			counter(m.tokens, c.tokens[k].Load(), tenant, model, tokenKinds[k])
		}
		for k := range c.cost {
			if n := c.cost[k].Load(); n > 0 {
				counter(m.cost, n, tenant, model, t.currencies[k])
			}
		}
		ch <- prometheus.MustNewConstMetric(m.reserved, prometheus.GaugeValue, float64(c.reserved.Load()), tenant, model)
	}
	for k := range m.foldCounts {
		counter(m.folds, m.foldCounts[k].Load(), foldNames[k])
	}
}
