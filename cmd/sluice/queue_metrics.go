package main

import (
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/sluicegate/sluice/gateway"
	"github.com/sluicegate/sluice/gateway/qos"
	"github.com/sluicegate/sluice/tenancy"
	"github.com/sluicegate/sluice/tenancy/chargeback"
)

var (
	waitBuckets     = []float64{0, .01, .05, .1, .25, .5, 1, 2, 4, 8, 15, 30, 60, 120, 300}
	forecastBuckets = []float64{.1, .25, .5, .65, .8, .9, 1, 1.1, 1.25, 1.5, 2, 4, 10}
)

// classMetrics are the series of classes that requests move.
type classMetrics struct {
	names              *liveClasses
	requests, refusals *prometheus.CounterVec
	turns              *prometheus.CounterVec
	wait, forecast     *prometheus.HistogramVec
}

// otherClass labels what is counted of requests whose class has left the configuration since they came.
const otherClass = "other"

// liveClasses are the classes in force: the only ones that may label a series.
type liveClasses struct {
	mu    sync.RWMutex // protects what follows, and keeps a class's series from coming back after it left
	known map[string]bool
}

// with calls count with the label for a class.
func (n *liveClasses) with(class string, count func(label string)) {
	n.mu.RLock()
	defer n.mu.RUnlock()
	if !n.known[class] {
		class = otherClass
	}
	count(class)
}

func newClassMetrics(counter func(name, help string, labels ...string) *prometheus.CounterVec, histogram func(name, help string, buckets []float64, labels ...string) *prometheus.HistogramVec) classMetrics {
	return classMetrics{
		names:    &liveClasses{known: make(map[string]bool)},
		requests: counter("sluice_class_requests_total", "Requests that asked for a worker, by class and whether the first token met the class's target: met, missed; refused (by the queue, or without a worker), failed (by a worker, or within the gateway), unmeasured. Streams are judged by their first token as the client got it, answers in one piece by what the time they took tells of it, embeddings by that time; where that tells nothing they are unmeasured, as are clients that left before the target.", "class", "result"),
		refusals: counter("sluice_queue_refusals_total", "Requests that got no worker, by reason: forecast (the first token could not come within maxWait), full, tenant_full (the tenant holds its part of the queue), preempted (gave way to a more urgent one, or to one of a tenant with less waiting), waited (for maxWait), no_worker, draining, memory (the gateway had no room for it), ledger (it could not account for it), internal (it failed on it).", "class", "reason"),
		turns:    counter("sluice_queue_turns_total", "Requests that were not refused, by how they came to a worker: passed (at once), granted (after a wait); or left (the client has, or its credentials were taken back). With sluice_queue_refusals_total it counts each request once, when it ends.", "class", "result"),
		wait:     histogram("sluice_queue_wait_seconds", "Time that requests which got a worker have waited for it, by the pool where they went; those that did not have to wait count with 0.", waitBuckets, "pool", "class"),
		forecast: histogram("sluice_queue_forecast_error_ratio", "Predicted over actual time to first token of requests that came while others waited.", forecastBuckets, "class"),
	}
}

// vecs are those with the label class.
func (m *classMetrics) vecs() []*prometheus.MetricVec {
	return []*prometheus.MetricVec{m.requests.MetricVec, m.refusals.MetricVec, m.turns.MetricVec, m.wait.MetricVec, m.forecast.MetricVec}
}

// inForce makes these classes those in force, and calls gone for each that is none of them any more. Counters
// begin at 0 and not at the first request, or nobody could tell a rate of it.
func (m *classMetrics) inForce(classes []string, gone func(class string)) {
	m.names.mu.Lock()
	defer m.names.mu.Unlock()
	for class := range m.names.known {
		if !slices.Contains(classes, class) {
			delete(m.names.known, class)
			gone(class)
		}
	}
	for _, class := range classes {
		m.names.known[class] = true
		for _, result := range chargeback.ClassResults {
			m.requests.WithLabelValues(class, result)
		}
		for _, reason := range gateway.QueueReasons() {
			m.refusals.WithLabelValues(class, reason)
		}
		for _, turn := range gateway.QueueTurns() {
			m.turns.WithLabelValues(class, turn)
		}
	}
}

// observeQueue counts a request that asked for a worker.
func (m *metrics) observeQueue(s *gateway.Summary) {
	if !s.Queued {
		return
	}
	row, c := s.Row, &m.classes
	result := classResult(s)
	c.names.with(row.Class, func(class string) { c.observe(s, class, result) })
	m.tenants.ObserveQueue(chargeback.QueueUse{Tenant: row.Tenant, Class: row.Class, Result: result, Reason: s.QueueRefused, Wait: s.QueueWait})
}

func (m *classMetrics) observe(s *gateway.Summary, class, result string) {
	m.requests.WithLabelValues(class, result).Inc()
	if s.QueueRefused != "" {
		m.refusals.WithLabelValues(class, s.QueueRefused).Inc()
	} else {
		m.turns.WithLabelValues(class, s.QueueTurn).Inc()
	}
	if s.QueueTurn == gateway.TurnPassed || s.QueueTurn == gateway.TurnGranted {
		m.wait.WithLabelValues(s.Row.Pool, class).Observe(s.QueueWait.Seconds())
	}
	if s.FirstToken > 0 && s.QueueForecast > 0 {
		m.forecast.WithLabelValues(class).Observe(ratio(s.QueueForecast, s.FirstToken))
	}
}

// classResult says what became of a request's target, in a word of chargeback.ClassResults.
func classResult(s *gateway.Summary) string {
	row, first := s.Row, s.FirstToken
	switch {
	case s.QueueRefused != "":
		return "refused"
	case row.Outcome == tenancy.OutcomeUpstreamError || row.Status >= 500:
		return "failed"
	case row.Outcome == tenancy.OutcomeClientAborted && first == 0 && row.Duration > s.TTFTTarget:
		return "missed" // it has waited longer than it had to
	case first == 0 || s.TTFTTarget <= 0 || row.Outcome == tenancy.OutcomeRejected:
		return "unmeasured"
	case first <= s.TTFTTarget:
		return "met"
	}
	return "missed"
}

var (
	descClassTarget  = desc("sluice_class_target_seconds", "Time to first token that the class promises.", "class")
	descClassMaxWait = desc("sluice_class_max_wait_seconds", "The most that a first token of the class may take; what is predicted to take longer is refused.", "class")
	descClassShare   = desc("sluice_class_share_ratio", "Part of a contended pool's work that the class gets whatever is more urgent.", "class")
	descClassRank    = desc("sluice_class_rank", "Place of the class in policy.classes: 1 is the most urgent.", "class")
	descQueueDepth   = desc("sluice_queue_depth", "Requests that wait; one that may go to several pools counts at each.", "pool", "class")
	descQueueWork    = desc("sluice_queue_work_tokens", "What waits, in tokens of work: prompts that no worker has cached, and expected answers in the tokens of prompt that take as long.", "pool", "class")
	descQueueOldest  = desc("sluice_queue_oldest_seconds", "How long the request has waited that waits longest; 0 if none waits.", "class")
	descQueueCount   = desc("sluice_queue_requests", "Requests that wait, each once.")
	descQueueMost    = desc("sluice_queue_requests_limit", "The most requests that may wait.")
	descQueueBytes   = desc("sluice_queue_bytes", "Memory of the requests that wait.")
	descQueueRoom    = desc("sluice_queue_bytes_limit", "The most that it may be.")
	descQueuePlaced  = desc("sluice_queue_placed_tokens_total", "Work that went to the pool, in tokens.", "pool", "class")
	descContended    = desc("sluice_queue_contended_tokens_total", "Work of all classes that went to the pool while this class waited there.", "pool", "class")
	descGot          = desc("sluice_queue_got_tokens_total", "This class's own part of it: over sluice_queue_contended_tokens_total it is the share that the class really had.", "pool", "class")
	descLateWakeups  = desc("sluice_queue_late_wakeups_total", "Requests that got a worker only since the queue looks again after a while; above 0 is a fault of the gateway.")
)

// collectQueue tells what waits, and what the classes are.
func (c *stateCollector) collectQueue(ch chan<- prometheus.Metric) {
	g := c.reloads.generation()
	classes := g.cfg.QoS.queue(g.cfg.Policy.Classes).Classes
	for i := range classes {
		class := &classes[i]
		gauge(ch, descClassTarget, class.Target.Seconds(), class.Name)
		gauge(ch, descClassMaxWait, class.MaxWait.Seconds(), class.Name)
		gauge(ch, descClassShare, class.Share, class.Name)
		gauge(ch, descClassRank, float64(i+1), class.Name)
	}
	var s gateway.QueueState
	if c.queue(&s) {
		collectQueueState(ch, &s, time.Now())
		c.tenants.CollectDepths(ch, s.Tenants)
	}
}

func collectQueueState(ch chan<- prometheus.Metric, s *gateway.QueueState, now time.Time) {
	gauge(ch, descQueueCount, float64(s.Waiting))
	gauge(ch, descQueueMost, float64(s.Config.MaxEntries))
	gauge(ch, descQueueBytes, float64(s.Bytes))
	gauge(ch, descQueueRoom, float64(s.Config.MaxBytes))
	counter(ch, descLateWakeups, float64(s.LateWakeups))
	classes := make(map[qos.ClassID]string, len(s.Classes)) // those in force
	for i := range s.Classes {
		class := &s.Classes[i]
		if class.Gone {
			continue
		}
		classes[class.ID] = class.Name
		oldest := time.Duration(0)
		if !class.Oldest.IsZero() {
			oldest = max(0, now.Sub(class.Oldest))
		}
		gauge(ch, descQueueOldest, oldest.Seconds(), class.Name)
	}
	pools := make(map[qos.PoolID]string, len(s.Pools))
	for i := range s.Pools {
		pools[s.Pools[i].ID] = s.Pools[i].Name
	}
	for i := range s.Bands {
		b := &s.Bands[i]
		class, ok := classes[b.Class]
		if !ok {
			continue
		}
		pool := pools[b.Pool]
		gauge(ch, descQueueDepth, float64(b.Waiting), pool, class)
		gauge(ch, descQueueWork, float64(b.Work), pool, class)
		counter(ch, descQueuePlaced, float64(b.Placed), pool, class)
		counter(ch, descContended, float64(b.Contended), pool, class)
		counter(ch, descGot, float64(b.Got), pool, class)
	}
}
