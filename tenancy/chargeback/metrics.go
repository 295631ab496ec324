package chargeback

import (
	"cmp"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/sluicegate/sluice/tenancy"
)

// TenantMetrics counts requests, tokens and money by tenant and model: as series
// for whoever is exported by name, and for everybody as what Checkpoint returns.
// One call moves both. It is a prometheus.Collector. Safe for concurrent use.
type TenantMetrics struct {
	desc descs

	mu         sync.Mutex // protects what follows
	cfg        MetricsConfig
	listed     map[string]bool // the tenants of cfg.Tenants
	models     map[string]bool
	currencies map[string]bool
	top        *ranking
	pairs      map[pair]*cells // the pair of others is always there
	retired    cells           // what series had counted that are no more
	changes    uint64          // names that came after they were counted as others, or left
	folds      [foldSeries]uint64
	usage      map[usageKey]*tenancy.Totals
	counted    tenancy.Counted
	queues     map[string]*queueCells // by tenant or otherLabel
}

// descs describe the series.
type descs struct {
	requests, tokens, cost, reserved, folds             *prometheus.Desc
	oldRequests, oldTokens, oldCost, changes, seq, wait *prometheus.Desc
	queueDepth, queueWait, queueRefusals, classRequests *prometheus.Desc
}

const (
	foldTenant = iota
	foldModel
	foldCurrency
)

var foldNames = [foldSeries]string{"tenant", "model", "currency"}

// pair are the label values of counters.
type pair struct{ tenant, model string }

var others = pair{otherLabel, otherLabel}

// cells are the counters of one pair.
type cells struct {
	requests [5]uint64 // by statusClasses
	tokens   [4]uint64 // by tokenKinds
	cost     map[string]uint64
	reserved int64
	moved    *cells // where the reservations of a retired pair have gone
}

// usageKey is what usage is summed by: by everybody's own name.
type usageKey struct {
	month                   time.Time // in which the rows ended
	tenant, model, currency string
}

// NewTenantMetrics returns a collector for cfg.
func NewTenantMetrics(cfg MetricsConfig) (*TenantMetrics, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	d := prometheus.NewDesc
	m := &TenantMetrics{
		desc: descs{
			requests: d("sluice_tenant_requests_total",
				"Finished requests by tenant, model and class of HTTP status.", []string{"tenant", "model", "status_class"}, nil),
			tokens: d("sluice_tenant_tokens_total",
				"Tokens charged, by tenant and model. input includes cached_input, output includes reasoning.", []string{"tenant", "model", "kind"}, nil),
			cost: d("sluice_tenant_cost_microunits_total",
				"Cost charged, in millionths of the currency.", []string{"tenant", "model", "currency"}, nil),
			reserved: d("sluice_tenant_reserved_tokens",
				"Tokens reserved by requests in flight.", []string{"tenant", "model"}, nil),
			folds: d("sluice_label_folds_total",
				"Requests counted under \"other\" because the label's value is not exported by name.", []string{"label"}, nil),
			oldRequests: d("sluice_tenant_retired_requests_total",
				"What series of sluice_tenant_requests_total had counted that are no more.", nil, nil),
			oldTokens: d("sluice_tenant_retired_tokens_total",
				"What series of sluice_tenant_tokens_total had counted that are no more.", []string{"kind"}, nil),
			oldCost: d("sluice_tenant_retired_cost_microunits_total",
				"What series of sluice_tenant_cost_microunits_total had counted that are no more.", []string{"currency"}, nil),
			changes: d("sluice_tenant_name_changes_total",
				"Series of tenants that were retired, and names that came after they were counted as \"other\".", nil, nil),
			seq: d("sluice_ledger_counted_seq",
				"Place in the ledger up to which this process's rows are counted in the series of tenants.", nil, nil),
			wait: d("sluice_ledger_counted_waiting",
				"Rows that are counted and durable, but not in the ledger's database yet.", nil, nil),
			queueDepth: d("sluice_tenant_queue_depth",
				"Requests of the tenant that wait in the queue, each once.", []string{"tenant"}, nil),
			queueWait: d("sluice_tenant_queue_wait_seconds_total",
				"Time that requests have waited in the queue, counted when they end.", []string{"tenant"}, nil),
			queueRefusals: d("sluice_tenant_queue_refusals_total",
				"Requests that the queue refused, by reason.", []string{"tenant", "reason"}, nil),
			classRequests: d("sluice_tenant_class_requests_total",
				"Requests that asked for a worker, by class and result, as sluice_class_requests_total counts them.", []string{"tenant", "class", "result"}, nil),
		},
		top: newRanking(), pairs: make(map[pair]*cells), usage: make(map[usageKey]*tenancy.Totals), queues: make(map[string]*queueCells),
		retired: cells{cost: make(map[string]uint64)},
	}
	m.configureLocked(cfg)
	m.pairs[others] = newCells()
	return m, nil
}

func newCells() *cells { return &cells{cost: make(map[string]uint64)} }

func (m *TenantMetrics) configureLocked(cfg MetricsConfig) {
	set := func(values []string) map[string]bool {
		s := make(map[string]bool, len(values))
		for _, v := range values {
			s[v] = true
		}
		return s
	}
	m.cfg, m.top.places = cfg, cfg.Top
	m.listed, m.models, m.currencies = set(cfg.Tenants), set(cfg.Models), set(cfg.Currencies)
}

func (m *TenantMetrics) knownLocked(tenant string) bool {
	return m.cfg.Known == nil || m.cfg.Known[tenant]
}

func (m *TenantMetrics) namedLocked(tenant string) bool {
	return (m.listed[tenant] || m.top.members[tenant]) && m.knownLocked(tenant)
}

// Reconfigure changes the allowlists and the cap. Counters of values that stay
// go on; series of values that leave are retired. An error changes nothing.
func (m *TenantMetrics) Reconfigure(cfg MetricsConfig) error {
	if err := cfg.Validate(); err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.changes += m.newNamesLocked(cfg)
	m.configureLocked(cfg)
	for tenant := range m.top.members {
		if m.listed[tenant] || !m.knownLocked(tenant) {
			delete(m.top.members, tenant)
		}
	}
	for _, tenant := range m.top.shrink(m.top.last) {
		delete(m.top.members, tenant)
	}
	m.retireLocked()
	m.retireQueuesLocked()
	return nil
}

// newNamesLocked counts what cfg exports by name and may have been counted as
// others until now.
func (m *TenantMetrics) newNamesLocked(cfg MetricsConfig) (n uint64) {
	for _, tenant := range cfg.Tenants {
		if !m.namedLocked(tenant) {
			n++
		}
	}
	for _, model := range cfg.Models {
		if !m.models[model] {
			n++
		}
	}
	for _, currency := range cfg.Currencies {
		if !m.currencies[currency] {
			n++
		}
	}
	if cfg.Top > m.cfg.Top {
		n++ // who gets a new place may have been counted before
	}
	if len(m.pairs) >= m.cfg.pairs() && cfg.pairs() > m.cfg.pairs() {
		n++ // there is room for pairs that had none
	}
	return n
}

// retireLocked takes away the pairs whose names are not exported any more, and
// those that are too many.
func (m *TenantMetrics) retireLocked() {
	order := slices.SortedFunc(maps.Keys(m.pairs), func(a, b pair) int {
		return cmp.Or(strings.Compare(a.tenant, b.tenant), strings.Compare(a.model, b.model))
	})
	left := m.cfg.pairs() - 1
	for _, p := range order {
		if p == others {
			continue
		}
		if (p.tenant == otherLabel || m.namedLocked(p.tenant)) && (p.model == otherLabel || m.models[p.model]) && left > 0 {
			left--
			continue
		}
		c := m.pairs[p]
		delete(m.pairs, p)
		m.changes++
		for i, n := range c.requests {
			m.retired.requests[i] += n
		}
		for i, n := range c.tokens {
			m.retired.tokens[i] += n
		}
		for currency, n := range c.cost {
			m.retired.cost[currency] += n
		}
		c.moved = m.pairs[others]
		c.moved.reserved += c.reserved
	}
	// What was counted in a currency that is no more stays in the sum.
	for _, c := range m.pairs {
		for currency, n := range c.cost {
			if currency != otherLabel && !m.currencies[currency] {
				delete(c.cost, currency)
				m.retired.cost[otherLabel] += n
				m.changes++
			}
		}
	}
	for currency, n := range m.retired.cost {
		if currency != otherLabel && !m.currencies[currency] {
			delete(m.retired.cost, currency)
			m.retired.cost[otherLabel] += n
		}
	}
}

// cellsLocked returns the counters of a pair, made at its first use while there
// is room, else those of the pair of others. It says which names were folded.
func (m *TenantMetrics) cellsLocked(tenant, model string) (c *cells, foldedTenant, foldedModel bool) {
	p := pair{tenant, model}
	if !m.namedLocked(tenant) {
		p.tenant, foldedTenant = otherLabel, true
	}
	if !m.models[model] {
		p.model, foldedModel = otherLabel, true
	}
	if c = m.pairs[p]; c != nil {
		return c, foldedTenant, foldedModel
	}
	if len(m.pairs) >= m.cfg.pairs() {
		return m.pairs[others], true, true
	}
	c = newCells()
	m.pairs[p] = c
	return c, foldedTenant, foldedModel
}

// Observe counts a finished request.
func (m *TenantMetrics) Observe(row *tenancy.Row) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.observeLocked(row)
}

// Count counts rows that have become durable, in the order in which they did, and
// notes how far the ledger's database has them.
func (m *TenantMetrics) Count(rows []*tenancy.Row, at tenancy.Counted) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, row := range rows {
		m.observeLocked(row)
	}
	m.counted = at
}

func (m *TenantMetrics) observeLocked(row *tenancy.Row) {
	if row.Tenant == "" {
		return
	}
	m.useLocked(row)
	m.rankLocked(row)
	c, foldedTenant, foldedModel := m.cellsLocked(row.Tenant, row.Model)
	if foldedTenant {
		m.folds[foldTenant]++
	}
	if foldedModel && row.Model != "" { // a request without a model has no name that could be folded
		m.folds[foldModel]++
	}
	c.requests[statusClass(row.Status)]++
	for i, n := range [...]int64{row.InputTokens, row.CachedTokens, row.OutputTokens, row.ReasoningTokens} {
		c.tokens[i] += uint64(max(0, n))
	}
	total := row.Costs.Total()
	if total <= 0 {
		return
	}
	currency := row.Currency
	if !m.currencies[currency] {
		currency = otherLabel
		m.folds[foldCurrency]++
	}
	c.cost[currency] += uint64(total)
}

// useLocked adds a row to the sums that Checkpoint returns.
func (m *TenantMetrics) useLocked(row *tenancy.Row) {
	key := usageKey{tenancy.Month(row.End()), row.Tenant, row.Model, row.Currency}
	sum := m.usage[key]
	if sum == nil {
		sum = &tenancy.Totals{Currency: row.Currency}
		m.usage[key] = sum
	}
	sum.Add(row)
}

// rankLocked sees to the tenants that are exported for what they use.
func (m *TenantMetrics) rankLocked(row *tenancy.Row) {
	if m.cfg.Top == 0 || m.listed[row.Tenant] {
		return
	}
	at := row.End()
	eligible := func(tenant string) bool { return !m.listed[tenant] && m.knownLocked(tenant) && FitsLabel(tenant) }
	if !m.top.members[row.Tenant] && len(m.top.members) < m.top.places && eligible(row.Tenant) {
		m.top.members[row.Tenant] = true
		if m.top.scores[row.Tenant] != nil {
			m.changes++ // it has been counted as one of the others
		}
	}
	m.top.use(row.Tenant, row.InputTokens+row.OutputTokens, at)
	if !m.top.due(at) {
		return
	}
	leave, join := m.top.swaps(at, eligible)
	for i := range leave {
		delete(m.top.members, leave[i])
		m.top.members[join[i]] = true
		m.changes++
	}
	if len(leave) > 0 {
		m.retireLocked()
		m.retireQueuesLocked()
	}
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
	of     *TenantMetrics
	cells  *cells
	tokens int64
}

// Reserve adds to the tokens reserved by requests in flight. Release takes them
// off again, from the series of "other" if that of the tenant was retired
// meanwhile.
func (m *TenantMetrics) Reserve(tenant, model string, tokens int64) Reserved {
	m.mu.Lock()
	defer m.mu.Unlock()
	c, _, _ := m.cellsLocked(tenant, model)
	c.reserved += tokens
	return Reserved{of: m, cells: c, tokens: tokens}
}

// Release gives the share back; only the first call has an effect.
func (r *Reserved) Release() {
	if r.cells == nil {
		return
	}
	r.of.mu.Lock()
	defer r.of.mu.Unlock()
	for r.cells.moved != nil {
		r.cells = r.cells.moved
	}
	r.cells.reserved -= r.tokens
	r.cells = nil
}

// Checkpoint returns what has been counted, one for each month, in order; the
// ledger's fields are not filled in.
func (m *TenantMetrics) Checkpoint() []tenancy.Checkpoint {
	m.mu.Lock()
	defer m.mu.Unlock()
	byMonth := make(map[time.Time]*tenancy.Checkpoint)
	for key, sum := range m.usage {
		c := byMonth[key.month]
		if c == nil {
			c = &tenancy.Checkpoint{Month: key.month}
			byMonth[key.month] = c
		}
		c.Usage = append(c.Usage, tenancy.Usage{Tenant: key.tenant, Model: key.model, Totals: *sum})
	}
	list := make([]tenancy.Checkpoint, 0, len(byMonth))
	for _, c := range byMonth {
		sortUsage(c.Usage)
		list = append(list, *c)
	}
	slices.SortFunc(list, func(a, b tenancy.Checkpoint) int { return a.Month.Compare(b.Month) })
	m.forgetLocked(list)
	return list
}

// keepMonths is of how many months usage is kept: it may still be added to earlier
// ones, by requests that run over an end and by a clock that is set back. They are
// those that there is usage of, so that a clock which was years ahead for a moment
// does not end the count of the present month.
const keepMonths = 3

// forgetLocked drops the months that a checkpoint has now for the last time.
func (m *TenantMetrics) forgetLocked(list []tenancy.Checkpoint) {
	if len(list) <= keepMonths {
		return
	}
	oldest := list[len(list)-keepMonths].Month
	maps.DeleteFunc(m.usage, func(k usageKey, _ *tenancy.Totals) bool { return k.month.Before(oldest) })
}

func sortUsage(list []tenancy.Usage) {
	slices.SortFunc(list, func(a, b tenancy.Usage) int {
		return cmp.Or(strings.Compare(a.Tenant, b.Tenant), strings.Compare(a.Model, b.Model), strings.Compare(a.Currency, b.Currency))
	})
}

// SeriesBound is the most series the present configuration can ever export.
func (m *TenantMetrics) SeriesBound() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.cfg.SeriesBound()
}

// Describe implements prometheus.Collector.
func (m *TenantMetrics) Describe(ch chan<- *prometheus.Desc) {
	d := &m.desc
	for _, desc := range []*prometheus.Desc{
		d.requests, d.tokens, d.cost, d.reserved, d.folds, d.oldRequests, d.oldTokens, d.oldCost, d.changes, d.seq, d.wait,
		d.queueDepth, d.queueWait, d.queueRefusals, d.classRequests,
	} {
		ch <- desc
	}
}

// Collect implements prometheus.Collector. A series appears once its pair of
// tenant and model was seen. All of them are of one moment.
func (m *TenantMetrics) Collect(ch chan<- prometheus.Metric) {
	for _, metric := range m.collect() {
		ch <- metric // without the lock: rows don't wait for a reader
	}
}

func (m *TenantMetrics) collect() (list []prometheus.Metric) {
	m.mu.Lock()
	defer m.mu.Unlock()
	d := &m.desc
	counter := func(d *prometheus.Desc, v uint64, labels ...string) {
		list = append(list, prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(v), labels...))
	}
	gauge := func(d *prometheus.Desc, v int64, labels ...string) {
		list = append(list, prometheus.MustNewConstMetric(d, prometheus.GaugeValue, float64(v), labels...))
	}
	for p, c := range m.pairs {
		for k, n := range c.requests {
			if n > 0 {
				counter(d.requests, n, p.tenant, p.model, statusClasses[k])
			}
		}
		for k, n := range c.tokens {
			counter(d.tokens, n, p.tenant, p.model, tokenKinds[k])
		}
		for currency, n := range c.cost {
			counter(d.cost, n, p.tenant, p.model, currency)
		}
		gauge(d.reserved, c.reserved, p.tenant, p.model)
	}
	for k, n := range m.folds {
		counter(d.folds, n, foldNames[k])
	}
	var requests uint64
	for _, n := range m.retired.requests {
		requests += n
	}
	counter(d.oldRequests, requests)
	for k, n := range m.retired.tokens {
		counter(d.oldTokens, n, tokenKinds[k])
	}
	for currency, n := range m.retired.cost {
		counter(d.oldCost, n, currency)
	}
	counter(d.changes, m.changes)
	gauge(d.seq, m.counted.Seq)
	gauge(d.wait, m.counted.Waiting)
	return m.collectQueuesLocked(list)
}
