package simulate

import (
	"math/bits"
	"time"

	"github.com/sluicegate/sluice/gateway/qos"
	"github.com/sluicegate/sluice/gateway/qos/placing"
	"github.com/sluicegate/sluice/scoring"
)

// queue is the queue in front of the fleet: the gateway's own, of which this is the
// shell in virtual time. It decides nothing.
type queue struct {
	*qos.Queue
	placing.Placer
	sim   *sim
	cost  func(prompt int, output int64) int64 // of a request; tests count otherwise
	dirty []bool                               // by pool: room may have come there
	// marked says that some pool was, and is to be looked at without a pause.
	marked bool
	out    []qos.Outcome
	// answers are the tenants' answers so far, by the magnitude of what their clients
	// said of them.
	answers []map[int]answers
	refused []Refused
	// begins and ends are what the queue had counted when the warm-up was over, and when
	// no more requests were to come.
	begins, ends *qos.Stats
}

// answers are the lengths of some answers, by which the next one's is told.
type answers struct {
	ended, tokens int
}

const (
	// firstAnswer is what is believed of a tenant's answers until leastAnswers of them
	// are known.
	firstAnswer, leastAnswers = 256, 5
	// waitBytes are what a request holds while it waits, and tokenBytes what each
	// token of its prompt adds: text and id.
	waitBytes, tokenBytes = 16 << 10, 8
)

// expect is how long the answer to a request is expected to be: as its tenant's others
// were where as much was said of them, and no longer than its client says.
func (q *queue) expect(r *Request) int64 {
	a := q.answers[r.Tenant][bits.Len(uint(r.MaxTokens))]
	switch {
	case a.ended >= leastAnswers && r.MaxTokens > 0:
		return int64(min(a.tokens/a.ended, r.MaxTokens))
	case a.ended >= leastAnswers:
		return int64(a.tokens / a.ended)
	case r.MaxTokens > 0:
		return int64(r.MaxTokens)
	}
	return firstAnswer
}

func newQueue(m *sim) (*queue, error) {
	q := &queue{
		sim: m, cost: placing.Cost, dirty: make([]bool, len(m.pools)), answers: make([]map[int]answers, max(1, len(m.plan.Tenants))),
	}
	var err error
	if q.Queue, err = qos.New(*m.cfg.QoS, m.pools); err != nil {
		return nil, err
	}
	q.Placer = placing.Placer{Fleet: m.fleet, Pools: q}
	m.fleet.OnRoom(func(pool string) {
		if q.Waiting() > 0 { // else it is no news for anybody
			id, _ := q.ID(pool)
			q.dirty[id] = true
		}
	})
	return q, nil
}

// next is when the queue is to be looked at although nothing happens; never, if
// that is not needed.
func (q *queue) next() time.Duration {
	marked := false
	for i, is := range q.dirty {
		if is {
			q.dirty[i], marked = false, true
			q.Dirty(qos.PoolID(i))
		}
	}
	if q.marked = q.marked || marked; q.marked {
		return q.sim.now
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
	terms := scoring.Terms{Pool: placing.NoPool}
	if q.Waiting() == 0 {
		open := q.Open(now, e.Class, e.Pools)
		terms = q.Terms(&open)
	}
	res, met, err := q.sim.fleet.Offer(now, c.offer, terms)
	if err != nil {
		panic("BUG: no worker although all are ready: " + err.Error())
	}
	if res != nil {
		c.Reserve(res)
		c.charged = c.Costs(res.Prompt() - res.Cached())
		pool, _ := q.ID(res.Worker().Pool)
		q.Passed(now, e, pool, c.charged)
		q.sim.dispatch(c)
		return
	}
	e.Work, e.Own = c.Costs(met.Work), placing.Own(&met)
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
	prompt := len(c.prepared.Prompt())
	c.output = q.expect(r)
	c.req.Output = int(c.output)
	c.entry = qos.Entry{
		Class: qos.ClassID(r.Class), Tenant: tenant.Name, Weight: tenant.Weight, Payload: c,
		Key:  mix(uint64(c.index) + 1),
		Work: c.Costs(prompt), Room: int64(prompt) + c.output,
		Arrived: now, Deadline: now.Add(class.Target), Until: now.Add(class.MaxWait),
		Bytes: waitBytes + tokenBytes*int64(prompt),
	}
	for _, name := range c.req.Pools {
		id, _ := q.ID(name)
		c.entry.Pools = append(c.entry.Pools, id)
	}
}

// pump gives out what room there is.
func (q *queue) pump() {
	q.marked = false
	q.out = q.Pump(q.sim.clock(), q, q.out[:0])
	q.take()
}

// take deals with what became of entries.
func (q *queue) take() {
	for i := range q.out {
		o := &q.out[i]
		c := o.Entry.Payload.(*call)
		if o.State == qos.Granted {
			c.charged, c.forecast = o.Work, o.Forecast
			q.sim.dispatch(c)
		}
		if o.State == qos.Refused {
			q.refuse(c, o)
		}
	}
}

// mark notes what the queue has counted when the time begins that is measured, and when it
// ends.
func (q *queue) mark(begins bool) {
	is := new(qos.Stats)
	q.Stats(q.sim.clock(), is)
	if begins {
		q.begins = is
	} else {
		q.ends = is
	}
}

// contended is a class's part of the work that went to its pools while it waited there,
// by the queue's own account: as it was expected, and corrected when answers ended. 0:
// it never waited.
func (q *queue) contended(class qos.ClassID) float64 {
	if q.begins == nil {
		return 0
	}
	if q.ends == nil {
		q.mark(false)
	}
	got, all := int64(0), int64(0)
	for i := range q.ends.Bands {
		if b := &q.ends.Bands[i]; b.Class == class {
			got += b.Got - q.begins.Bands[i].Got
			all += b.Contended - q.begins.Bands[i].Contended
		}
	}
	return float64(got) / max(1, float64(all))
}

// refuse sends a client away, who may come again.
func (q *queue) refuse(c *call, o *qos.Outcome) {
	m := q.sim
	c.offer.Release()
	after := o.Told()
	q.refused = append(q.refused, Refused{Request: c.index, Return: c.returns, At: c.sent, Reason: o.Reason, RetryAfter: after})
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
	if q.answers[r.Tenant] == nil {
		q.answers[r.Tenant] = make(map[int]answers)
	}
	said := bits.Len(uint(r.MaxTokens))
	a := q.answers[r.Tenant][said]
	q.answers[r.Tenant][said] = answers{a.ended + 1, a.tokens + s.Output}
	s.Work = int64(s.Prompt-s.Cached) + placing.OutputCost*int64(s.Output)
	q.Settle(q.sim.clock(), &c.entry, q.cost(s.Prompt-s.Cached, int64(s.Output))-c.charged)
}

// ID implements [placing.Pools].
func (q *queue) ID(name string) (qos.PoolID, bool) { return q.Pool(name) }

// Name implements [placing.Pools].
func (q *queue) Name(id qos.PoolID) string { return q.sim.pools[id] }

// Prepared implements [placing.Request].
func (c *call) Prepared() *scoring.Prepared { return c.offer }

// Costs implements [placing.Request].
func (c *call) Costs(prompt int) int64 { return c.sim.queue.cost(prompt, c.output) }

// Reserve implements [placing.Request].
func (c *call) Reserve(res *scoring.Reservation) {
	c.res = res
	c.offer.Release()
}
