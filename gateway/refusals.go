package gateway

import (
	"cmp"
	"slices"
	"time"

	"github.com/sluicegate/sluice/gateway/qos"
)

// refusals are the latest ones of the queue.
type refusals struct {
	ring [MaxQueueRefusals]QueueRefusal
	next int
	n    int
}

// add notes a request that was refused. The caller holds turns.mu.
func (r *refusals) add(tn *turn) {
	o := &tn.outcome
	r.ring[r.next] = QueueRefusal{
		At: time.Now(), RequestID: tn.ex.requestID, Tenant: tn.entry.Tenant, Class: tn.class.Name, Reason: o.Reason,
		Pools: tn.ex.pick.Pools, Work: tn.entry.Work, Waited: o.Waited, Forecast: o.Forecast, MaxWait: tn.class.MaxWait,
		RetryAfter: o.Told(),
	}
	r.next = (r.next + 1) % len(r.ring)
	r.n = min(r.n+1, len(r.ring))
}

// latest returns them, the last one first.
func (r *refusals) latest() []QueueRefusal {
	out := make([]QueueRefusal, 0, r.n)
	for i := range r.n {
		out = append(out, r.ring[(r.next-1-i+len(r.ring))%len(r.ring)])
	}
	return out
}

// QueueState fills dst with what the queue holds and has done, using its memory again.
// It reports false, and changes nothing, if no generation has had a queue.
func (g *Gateway) QueueState(dst *QueueState) bool {
	if !g.turns.state(dst, true) {
		return false
	}
	slices.SortFunc(dst.Flows, func(a, b qos.FlowStats) int { return cmp.Compare(b.Work, a.Work) })
	dst.Flows = dst.Flows[:min(len(dst.Flows), MaxQueueFlows)]
	return true
}

// QueueCounts is QueueState without Flows and Refused: requests wait for the queue's lock
// less long, however many others there are.
func (g *Gateway) QueueCounts(dst *QueueState) bool { return g.turns.state(dst, false) }

// state fills dst, with all flows and in no order.
func (t *turns) state(dst *QueueState, detail bool) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.queue == nil {
		return false
	}
	t.takeNotes()
	dst.Config = t.placer.conf.config
	if t.conf.Load() == nil {
		dst.Config.Classes = nil
	}
	t.queue.Stats(time.Now(), &dst.Stats)
	if dst.Tenants == nil {
		dst.Tenants = make(map[string]int)
	}
	clear(dst.Tenants)
	t.queue.Tenants(dst.Tenants)
	dst.LateWakeups = t.late.Load()
	dst.Flows, dst.Refused = dst.Flows[:0], nil
	if detail {
		dst.Flows, dst.Refused = t.queue.Flows(dst.Flows), t.refused.latest()
	}
	return true
}
