package simulate

import (
	"time"

	"github.com/sluicegate/sluice/gateway/qos"
)

// Refused is one refusal: of a request's first coming, or of a return.
type Refused struct {
	// Request is its index in the plan, Return how often it had been refused before.
	Request, Return int
	// At is when it had come, since the start.
	At time.Duration
	// Reason is why, RetryAfter what its client was told.
	Reason     qos.Reason
	RetryAfter time.Duration
}

// ClassResult is how the requests of one class fared, or those of one tenant in it.
// All figures are of comings after the warm-up: a request that was refused and came
// again counts twice.
type ClassResult struct {
	Class string `json:"class"`
	// Tenant is empty where all of the class are meant.
	Tenant string `json:"tenant,omitempty"`
	// Requests is all of them, Served those not refused, Refused the others by
	// reason.
	Requests int            `json:"requests"`
	Served   int            `json:"served"`
	Refused  map[string]int `json:"refused,omitempty"`
	// Met is the share of all whose first token came within the class's target,
	// Goodput how many those are a second of the time in which requests came.
	Met     float64 `json:"target_met"`
	Goodput float64 `json:"goodput_rps"`
	// TTFT, Total and Wait are of those served; Wait is the time in the queue.
	TTFT  Times `json:"ttft_ms"`
	Total Times `json:"e2e_ms"`
	Wait  Times `json:"queue_wait_ms"`
	// Work is the tokens of work, as the queue counts them, of those that workers
	// were given while requests came, and Share its part of all such work.
	Work  int64   `json:"work_tokens"`
	Share float64 `json:"work_share"`
	// Contended is the class's part of the work that was given out while it
	// waited, by the queue's account; 0 if it never did, and for tenants.
	Contended float64 `json:"work_share_while_waiting"`
	// Returned counts those that came after a refusal, and Welcome those of them
	// that were not refused again.
	Returned int `json:"returned"`
	Welcome  int `json:"returned_and_served"`
}

// sumClasses sums up by class, and then by tenant and class.
func (m *sim) sumClasses(r *Result) {
	seconds := (min(m.until, m.end) - m.from).Seconds()
	names := m.cfg.QoS.Classes
	byClass := make([]*tally, len(names))
	byTenant := make(map[[2]int]*tally)
	for i := range m.plan.Requests {
		req := &m.plan.Requests[i]
		key := [2]int{req.Class, req.Tenant}
		if byClass[req.Class] == nil {
			byClass[req.Class] = &tally{}
		}
		if byTenant[key] == nil {
			byTenant[key] = &tally{}
		}
	}
	all := int64(0)
	each := func(request int, add func(*tally)) {
		req := &m.plan.Requests[request]
		add(byClass[req.Class])
		add(byTenant[[2]int{req.Class, req.Tenant}])
	}
	for i := range m.queue.refused {
		if f := &m.queue.refused[i]; f.At >= m.from {
			each(f.Request, func(t *tally) { t.refuse(f) })
		}
	}
	for i := range m.record {
		s := &m.record[i]
		if s.Refused {
			continue
		}
		// Who is let in when all have come is of no interest: there is room for all.
		if m.measures(s.Sent + s.Queued) {
			all += s.Work
			each(i, func(t *tally) { t.Work += s.Work })
		}
		if s.Sent >= m.from {
			target := names[m.plan.Requests[i].Class].Target
			each(i, func(t *tally) { t.serve(s, target) })
		}
	}
	for c, t := range byClass {
		if t == nil {
			continue
		}
		sum := t.result(names[c].Name, seconds, all)
		sum.Contended = m.queue.contended(qos.ClassID(c))
		r.Classes = append(r.Classes, sum)
	}
	for c := range names {
		for k, tenant := range m.plan.Tenants {
			if t := byTenant[[2]int{c, k}]; t != nil {
				sum := t.result(names[c].Name, seconds, all)
				sum.Tenant = tenant.Name
				r.Tenants = append(r.Tenants, sum)
			}
		}
	}
}

// tally adds up a ClassResult.
type tally struct {
	ClassResult
	met               int
	ttft, total, wait []time.Duration
}

func (t *tally) refuse(f *Refused) {
	if t.Refused == nil {
		t.Refused = make(map[string]int)
	}
	t.Requests++
	t.Refused[f.Reason.String()]++
	if f.Return > 0 {
		t.Returned++
	}
}

func (t *tally) serve(s *Sample, target time.Duration) {
	t.Requests++
	t.Served++
	if s.Return > 0 {
		t.Returned++
		t.Welcome++
	}
	if s.TTFT <= target {
		t.met++
	}
	t.ttft, t.total, t.wait = append(t.ttft, s.TTFT), append(t.total, s.Total), append(t.wait, s.Queued)
}

func (t *tally) result(class string, seconds float64, work int64) ClassResult {
	r := t.ClassResult
	r.Class = class
	r.TTFT, r.Total, r.Wait = times(t.ttft), times(t.total), times(t.wait)
	if t.Requests > 0 {
		r.Met = float64(t.met) / float64(t.Requests)
	}
	if seconds > 0 {
		r.Goodput = float64(t.met) / seconds
	}
	if work > 0 {
		r.Share = float64(t.Work) / float64(work)
	}
	return r
}
