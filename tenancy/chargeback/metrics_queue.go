package chargeback

import (
	"maps"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// ClassResults are what can become of a request that asked for a worker.
var ClassResults = []string{"met", "missed", "refused", "failed", "unmeasured"}

// QueueUse is what became of one request in the queue.
type QueueUse struct {
	Tenant, Class string
	// Result is one of ClassResults.
	Result string
	// Reason is why the queue refused it; empty if it did not.
	Reason string
	Wait   time.Duration
}

// queueCells are the counters of one tenant's requests in the queue.
type queueCells struct {
	wait    time.Duration
	refused map[string]uint64
	results map[classResult]uint64
}

type classResult struct{ class, result string }

// perQueueTenant is how many series of the queue one tenant can have.
func (c MetricsConfig) perQueueTenant() int {
	return 1 + len(c.Reasons) + len(c.Classes)*len(ClassResults)
}

// queueTenants is how many tenants can have series of the queue, otherLabel included:
// as many as are exported by name, in a quarter of the room for series.
func (c MetricsConfig) queueTenants() int {
	if len(c.Classes) == 0 {
		return 0
	}
	room := c.maxSeries() - c.fixed() - c.perPair()
	return max(0, min(len(c.Tenants)+c.Top+1, room/4/c.perQueueTenant()))
}

// ObserveQueue counts a finished request that asked for a worker. What has no name in
// the configuration is counted for other, a tenant, or not at all, a class or reason.
func (m *TenantMetrics) ObserveQueue(u QueueUse) {
	m.mu.Lock()
	defer m.mu.Unlock()
	most := m.cfg.queueTenants()
	if most == 0 || u.Tenant == "" {
		return
	}
	if !m.namedLocked(u.Tenant) {
		u.Tenant = otherLabel
	}
	c := m.queuesLocked(u.Tenant, most)
	c.wait += max(0, u.Wait)
	if slices.Contains(m.cfg.Reasons, u.Reason) {
		c.refused[u.Reason]++
	}
	if slices.Contains(m.cfg.Classes, u.Class) && slices.Contains(ClassResults, u.Result) {
		c.results[classResult{u.Class, u.Result}]++
	}
}

// queuesLocked returns the counters of a tenant that is exported by name, or those of
// the others where all places but theirs are taken.
func (m *TenantMetrics) queuesLocked(tenant string, most int) *queueCells {
	taken := len(m.queues)
	if m.queues[otherLabel] == nil {
		taken++
	}
	if m.queues[tenant] == nil && tenant != otherLabel && taken >= most {
		tenant = otherLabel
	}
	c := m.queues[tenant]
	if c == nil {
		c = &queueCells{refused: make(map[string]uint64), results: make(map[classResult]uint64)}
		m.queues[tenant] = c
	}
	return c
}

// retireQueuesLocked takes away what has no name in the configuration any more. The
// ledger has no such counts, so that what they had counted ends with them.
func (m *TenantMetrics) retireQueuesLocked() {
	most := m.cfg.queueTenants()
	left := most - 1
	for _, tenant := range slices.Sorted(maps.Keys(m.queues)) {
		if tenant != otherLabel && (left <= 0 || !m.namedLocked(tenant)) || most == 0 {
			delete(m.queues, tenant)
			continue
		}
		if tenant != otherLabel {
			left--
		}
		c := m.queues[tenant]
		for key := range c.results {
			if !slices.Contains(m.cfg.Classes, key.class) {
				delete(c.results, key)
			}
		}
		for reason := range c.refused {
			if !slices.Contains(m.cfg.Reasons, reason) {
				delete(c.refused, reason)
			}
		}
	}
}

func (m *TenantMetrics) collectQueuesLocked(list []prometheus.Metric) []prometheus.Metric {
	d := &m.desc
	counter := func(d *prometheus.Desc, v float64, labels ...string) {
		list = append(list, prometheus.MustNewConstMetric(d, prometheus.CounterValue, v, labels...))
	}
	for tenant, c := range m.queues {
		counter(d.queueWait, c.wait.Seconds(), tenant)
		for reason, n := range c.refused {
			counter(d.queueRefusals, float64(n), tenant, reason)
		}
		for key, n := range c.results {
			counter(d.classRequests, float64(n), tenant, key.class, key.result)
		}
	}
	return list
}
