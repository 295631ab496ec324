package simulate

import (
	"time"

	"github.com/sluicegate/sluice/gateway/qos"
	"github.com/sluicegate/sluice/scoring"
)

// queue is the queue in front of the fleet: the gateway's own, of which this is the
// shell in virtual time. It decides nothing.
type queue struct {
	*qos.Queue
	sim   *sim
	dirty []bool // by pool: room may have come there
	held  scoring.Held
	out   []qos.Outcome
	// answers are the tenants' answers so far.
	answers []answers
	refused []Refused
	// waits counts the entries of each class, got and contended the work that was
	// given to it, and to all, while it waited, from the end of the warm-up on and
	// as long as requests come.
	waits          []int
	got, contended []int64
}

// answers are the lengths of a tenant's answers, by which the next one's is told.
type answers struct {
	ended, tokens int
}

const (
	// firstAnswer is what is believed of a tenant's answers before the first.
	firstAnswer = 256
	// outputCost is the prompt tokens that cost as much as one token of an answer.
	outputCost = 4
	// waitBytes are what a request holds while it waits, and tokenBytes what each
	// token of its prompt adds: text, id and key.
	waitBytes, tokenBytes = 4096, 10
	// leastReturn is the least that a client is told to wait.
	leastReturn = time.Second
)

// expect is how long the answer to a request is likely to be, by what its tenant's
// others were, and at most what its client says.
func (q *queue) expect(r *Request) int64 {
	n := int64(firstAnswer)
	if a := &q.answers[r.Tenant]; a.ended > 0 {
		n = int64(a.tokens / a.ended)
	}
	if r.MaxTokens > 0 {
		n = min(n, int64(r.MaxTokens))
	}
	return n
}

func newQueue(m *sim) (*queue, error) {
	q := &queue{
		sim: m, dirty: make([]bool, len(m.pools)), answers: make([]answers, max(1, len(m.plan.Tenants))),
		waits: make([]int, len(m.cfg.QoS.Classes)),
		got:   make([]int64, len(m.cfg.QoS.Classes)), contended: make([]int64, len(m.cfg.QoS.Classes)),
	}
	var err error
	if q.Queue, err = qos.New(*m.cfg.QoS, m.pools); err != nil {
		return nil, err
	}
	m.fleet.OnRoom(func(pool string) {
		id, _ := q.Pool(pool)
		q.dirty[id] = true
	})
	return q, nil
}

// next is when the queue is to be looked at although nothing happens; never, if
// that is not needed.
func (q *queue) next() time.Duration {
	for i, is := range q.dirty {
		if is {
			q.dirty[i] = false
			q.Dirty(qos.PoolID(i))
		}
	}
	at, ok := q.Next()
	if !ok {
		return never
	}
	return max(q.sim.now, at.Sub(epoch))
}

// arrive sends a request to a worker, or lets it wait, or refuses it.
func (q *queue) arrive(c *call) {
	now := q.sim.clock()
	q.fill(c)
	e := &c.entry
	if q.Waiting() == 0 {
		if place, ok := q.Place(now, e, q.Open(now, e.Class, e.Pools)); ok {
			q.Passed(now, e, place.Pool, place.Work)
			c.charged = place.Work
			q.sim.dispatch(c)
			return
		}
	}
	q.waits[e.Class]++
	q.out = q.Admit(now, e, q, q.out[:0])
	q.take()
}

// fill makes the call's entry.
func (q *queue) fill(c *call) {
	r := &q.sim.plan.Requests[c.index]
	now := q.sim.clock()
	class := q.Settings(qos.ClassID(r.Class))
	var tenant Tenant
	if len(q.sim.plan.Tenants) > 0 {
		tenant = q.sim.plan.Tenants[r.Tenant]
	}
	prompt, answer := int64(len(c.prepared.Prompt())), q.expect(r)
	c.entry = qos.Entry{
		Class: qos.ClassID(r.Class), Tenant: tenant.Name, Weight: tenant.Weight, Payload: c,
		Key:  mix(uint64(c.index) + 1),
		Work: prompt + outputCost*answer, Room: prompt + answer,
		Arrived: now, Deadline: now.Add(class.Target), Until: now.Add(class.MaxWait),
		Bytes: waitBytes + tokenBytes*prompt,
	}
	for _, name := range c.req.Pools {
		id, _ := q.Pool(name)
		c.entry.Pools = append(c.entry.Pools, id)
	}
}

// pump gives out what room there is.
func (q *queue) pump() {
	q.out = q.Pump(q.sim.clock(), q, q.out[:0])
	q.take()
}

// take deals with what became of entries.
func (q *queue) take() {
	for i := range q.out {
		o := &q.out[i]
		c := o.Entry.Payload.(*call)
		if o.State == qos.Granted {
			q.count(o)
			c.charged = o.Work
			q.sim.dispatch(c)
		}
		q.waits[o.Entry.Class]--
		if o.State == qos.Refused {
			q.refuse(c, o)
		}
	}
}

// count adds up who got what while whom waited.
func (q *queue) count(o *qos.Outcome) {
	if !q.sim.measures(q.sim.now) {
		return
	}
	for class, n := range q.waits {
		if n > 0 {
			q.contended[class] += o.Work
		}
	}
	q.got[o.Entry.Class] += o.Work
}

// refuse sends a client away, who may come again.
func (q *queue) refuse(c *call, o *qos.Outcome) {
	m := q.sim
	c.offer.Release()
	q.refused = append(q.refused, Refused{Request: c.index, Return: c.returns, At: c.sent, Reason: o.Reason, RetryAfter: o.RetryAfter})
	after := max(leastReturn, o.RetryAfter)
	patience := 0
	if len(m.plan.Tenants) > 0 {
		t := &m.plan.Tenants[m.plan.Requests[c.index].Tenant]
		if patience = t.Returns; t.Hurry > 0 {
			after = t.Hurry
		}
	}
	if c.returns < patience {
		m.returns[c.index] = c.returns + 1
		m.text[c.index] = c.before
		m.agenda.add(m.now+after, requestArrives, c.index)
		return
	}
	m.lose(c)
}

// ended learns from a request that ended.
func (q *queue) ended(c *call, s *Sample) {
	r := &q.sim.plan.Requests[c.index]
	q.answers[r.Tenant].ended++
	q.answers[r.Tenant].tokens += s.Output
	s.Work = int64(s.Prompt-s.Cached) + outputCost*int64(s.Output)
	q.Settle(q.sim.clock(), &c.entry, s.Work-c.charged)
}

// Begin, Wait and Place are the fleet as the queue needs it.

func (q *queue) Begin() { q.held.Reset() }

func (q *queue) Wait(now time.Time, pool qos.PoolID, bound time.Duration) (time.Duration, time.Time) {
	return q.sim.fleet.Wait(now, q.sim.pools[pool], model, bound)
}

func (q *queue) Place(now time.Time, e *qos.Entry, terms qos.Terms) (qos.Placement, bool) {
	c := e.Payload.(*call)
	t := scoring.Terms{Bound: terms.Bound, Keep: scoring.Keep(terms.Keep), Held: &q.held}
	if terms.Pool != qos.AnyPool {
		t.Pool = q.sim.pools[terms.Pool]
	}
	res, refusal, err := q.sim.fleet.Offer(now, c.offer, t)
	if err != nil {
		panic("BUG: no worker although all are ready: " + err.Error())
	}
	answer := q.expect(&q.sim.plan.Requests[c.index])
	if res == nil {
		pool, _ := q.Pool(refusal.Pool)
		if pool == terms.Pool { // else it is offered there, too
			q.held.Add(refusal.Best, refusal.Work)
		}
		return qos.Placement{Pool: pool, Work: int64(refusal.Work) + outputCost*answer, Look: refusal.Look}, false
	}
	c.res = res
	c.offer.Release()
	pool, _ := q.Pool(res.Worker().Pool)
	return qos.Placement{Pool: pool, Work: int64(res.Prompt()-res.Cached()) + outputCost*answer}, true
}
