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
	return 2 + len(c.Reasons) + len(c.Classes)*len(ClassResults)
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
	c := m.queues[m.queueNameLocked(u.Tenant, most)]
	c.wait += max(0, u.Wait)
	if slices.Contains(m.cfg.Reasons, u.Reason) {
		c.refused[u.Reason]++
	}
	if slices.Contains(m.cfg.Classes, u.Class) && slices.Contains(ClassResults, u.Result) {
		c.results[classResult{u.Class, u.Result}]++
	}
}

// CollectDepths sends how many requests of each tenant wait at this moment, by the names
// that tenants have in the series of the queue; 0 for who has such and no request that
// waits. It is beside Collect, since who waits is known elsewhere.
func (m *TenantMetrics) CollectDepths(ch chan<- prometheus.Metric, waiting map[string]int) {
	for name, n := range m.depths(waiting) {
		ch <- prometheus.MustNewConstMetric(m.desc.queueDepth, prometheus.GaugeValue, float64(n), name)
	}
}

func (m *TenantMetrics) depths(waiting map[string]int) map[string]int {
	m.mu.Lock()
	defer m.mu.Unlock()
	most := m.cfg.queueTenants()
	if most == 0 {
		return nil
	}
	by := make(map[string]int)
	for _, tenant := range slices.Sorted(maps.Keys(waiting)) {
		by[m.queueNameLocked(tenant, most)] += waiting[tenant]
	}
	for name := range m.queues {
		by[name] += 0
	}
	return by
}

// queueNameLocked is the name by which a tenant is exported in the series of the queue,
// which has counters from then on: its own, or otherLabel where it has none, or where all
// places but that of the others are taken.
func (m *TenantMetrics) queueNameLocked(tenant string, most int) string {
	if !m.namedLocked(tenant) {
		tenant = otherLabel
	}
	taken := len(m.queues)
	if m.queues[otherLabel] == nil {
		taken++
	}
	if m.queues[tenant] == nil && tenant != otherLabel && taken >= most {
		tenant = otherLabel
	}
	if m.queues[tenant] == nil {
		m.queues[tenant] = &queueCells{refused: make(map[string]uint64), results: make(map[classResult]uint64)}
	}
	return tenant
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
