package redis

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/sluicegate/sluice/ratelimit"
)

// need is what a request's claims want of one counter together.
type need struct {
	counter *counter
	total   int64
	part    int64 // taken of the lease while the store is asked for the rest
	lack    int64 // what the store is asked for; -1: the lease has it all
	owed    int64 // what must be there beside it, since a report is to charge it
	have    int64 // what the lease had, whether or not it may be used
	more    int64
	period  int64 // of part
	answer  answer
}

// plan is one Reserve under way.
type plan struct {
	limiter *Limiter
	claims  []ratelimit.Claim
	session *session
	needs   []need
	few     [4]need
	lacks   bool // a claim does not fit the leases
	// limbo says that the store has refused while it did not know yet what this
	// replica was giving back; again, that it has been asked before, and last, that it
	// will not be asked once more.
	limbo, again bool
	last         bool
	pinned       []*counter
	ctx          context.Context // of asking
	cancel       context.CancelFunc
}

// plans are used again, so that a request that the leases serve allocates its
// reservation alone.
var plans = sync.Pool{New: func() any { return new(plan) }}

func (p *plan) release() {
	if p.cancel != nil {
		p.cancel()
	}
	*p = plan{}
	plans.Put(p)
}

// pin keeps leases of the counter from growing and shrinking with each report, until
// the request has its answer. The shards are locked.
func (p *plan) pin(c *counter) {
	if !slices.Contains(p.pinned, c) {
		c.waits++
		p.pinned = append(p.pinned, c)
	}
}

func (p *plan) unpin() {
	for _, c := range p.pinned {
		s := p.limiter.shardFor(c)
		s.mu.Lock()
		c.waits--
		s.queue(c)
		s.mu.Unlock()
	}
}

// try decides from the leases, or asks the store.
func (p *plan) try(ctx context.Context) (ratelimit.Reservation, []ratelimit.Failure) {
	l := p.limiter
	locked := l.lockFor(p.claims)
	now := l.mono()
	p.session, p.lacks, p.limbo = l.session.Load(), false, false
	failures := p.look(now)
	if len(failures) > 0 {
		l.unlock(locked)
		l.byMemory.Add(1)
		return nil, failures
	}
	if !p.lacks {
		r := p.take(now)
		l.unlock(locked)
		l.byLease.Add(1)
		return r, nil
	}
	if failures = p.unreachable(); len(failures) > 0 {
		l.unlock(locked)
		return nil, failures
	}
	p.pledge()
	l.unlock(locked)
	a := p.ask(ctx)
	l.lock(locked)
	defer l.unlock(locked)
	return p.conclude(a)
}

// find returns the need of a claim's counter, a new one if it is the first.
func (p *plan) find(c *counter) *need {
	for i := range p.needs {
		if p.needs[i].counter == c {
			return &p.needs[i]
		}
	}
	p.needs = append(p.needs, need{counter: c, lack: -1})
	return &p.needs[len(p.needs)-1]
}

// look finds the counters, and what of the claims the leases have. Claims that no
// answer of the store would make fit fail. The shards are locked.
func (p *plan) look(now int64) (failures []ratelimit.Failure) {
	l := p.limiter
	p.needs = p.few[:0]
	for i := range p.claims {
		cl := &p.claims[i]
		c := l.getLocked(cl, now)
		if c == nil {
			failures = append(failures, storeFailure(i, cl, ratelimit.StoreOverflow))
			continue
		}
		n := p.find(c)
		n.total += min(cl.Amount, most)
		if n.total > c.limit || c.limit == 0 {
			failures = append(failures, ratelimit.Failure{
				Index: i, Available: c.left(now) - (n.total - cl.Amount), Wait: ratelimit.Never, View: c.view(now, cl.Limit),
			})
		}
	}
	if len(failures) > 0 {
		return p.known(failures, now)
	}
	trusted := p.session != nil && now-l.heardAt.Load() < int64(l.cfg.LeaseFor)
	for i := range p.needs {
		n := &p.needs[i]
		c := n.counter
		c.shrink(now)
		usable := c.usable(now, trusted)
		spend := c.spendable(usable)
		if spend >= n.total && (n.total > 0 || c.fresh(now) && c.left(now) >= 0) {
			continue
		}
		n.lack, n.owed, n.have = n.total-max(spend, 0), max(-usable, 0), max(usable, 0)
		p.lacks = true
		if !p.again && c.refusedUntil > now && n.lack+n.owed >= c.refusedNeed {
			failures = append(failures, p.failuresOf(n, min(n.total-1, usable+c.avail+c.back), c.refusedWait, now)...)
		}
	}
	return byIndex(failures)
}

// known adds the claims that do not fit as far as is known here, where others never
// do, so that the store need not be asked.
func (p *plan) known(failures []ratelimit.Failure, now int64) []ratelimit.Failure {
	for i := range p.needs {
		n := &p.needs[i]
		c := n.counter
		if had := c.left(now); c.known && had < n.total && n.total <= c.limit && c.limit > 0 {
			wait := time.Second
			switch {
			case c.kind == kindBucket:
				wait = c.refillTime(n.total - had)
			case c.kind.calendar():
				wait = time.Duration(max(1, c.periodEnd-now))
			}
			failures = append(failures, p.failuresOf(n, had, wait, now)...)
		}
	}
	return byIndex(failures)
}

func byIndex(failures []ratelimit.Failure) []ratelimit.Failure {
	slices.SortFunc(failures, func(a, b ratelimit.Failure) int { return a.Index - b.Index })
	return failures
}

// fresh reports whether the store has shown the counter a moment ago.
func (c *counter) fresh(now int64) bool {
	return c.known && now-c.seenAt < int64(time.Second) && (!c.kind.calendar() || now < c.periodEnd)
}

// failuresOf is what to say of a counter of which so much could be had.
func (p *plan) failuresOf(n *need, had int64, wait time.Duration, now int64) (failures []ratelimit.Failure) {
	sum := int64(0)
	for i := range p.claims {
		cl := &p.claims[i]
		if (identity{cl.Counter, cl.Unit, cl.Window}) != n.counter.id {
			continue
		}
		if sum += min(cl.Amount, most); sum > had {
			failures = append(failures, ratelimit.Failure{
				Index: i, Available: had - (sum - cl.Amount), Wait: wait, View: n.counter.view(now, cl.Limit),
			})
		}
	}
	return failures
}

func storeFailure(i int, c *ratelimit.Claim, s ratelimit.StoreState) ratelimit.Failure {
	return ratelimit.Failure{Index: i, Wait: time.Second, View: ratelimit.View{Limit: c.Limit}, Store: s}
}

// unreachable are the failures of claims that the store would have to be asked for,
// when it is known not to answer.
func (p *plan) unreachable() []ratelimit.Failure {
	state := p.limiter.health.unreachable()
	if p.session == nil {
		state = ratelimit.StoreDown
	}
	if state == "" {
		return nil
	}
	return p.storeFailures(state)
}

// storeFailures are those of the claims that the leases do not have.
func (p *plan) storeFailures(s ratelimit.StoreState) (failures []ratelimit.Failure) {
	for i := range p.claims {
		cl := &p.claims[i]
		for k := range p.needs {
			if n := &p.needs[k]; n.lack >= 0 && n.counter.id == (identity{cl.Counter, cl.Unit, cl.Window}) {
				failures = append(failures, storeFailure(i, cl, s))
			}
		}
	}
	return failures
}

// take makes the reservation of leases that have it all. The shards are locked.
func (p *plan) take(now int64) ratelimit.Reservation {
	l := p.limiter
	r := newReservation(l, len(p.claims))
	for i := range p.claims {
		cl := &p.claims[i]
		s := &l.shards[l.shardOf(cl.Counter)]
		c := s.counters[identity{cl.Counter, cl.Unit, cl.Window}]
		r.holds[i] = c.take(min(cl.Amount, most), now)
		r.holds[i].limit = cl.Limit
		s.queue(c)
	}
	for i := range r.holds {
		r.holds[i].view = r.holds[i].counter.view(now, r.holds[i].limit)
	}
	return r
}

// pledge takes of the leases what they have, while the store is asked for the rest.
func (p *plan) pledge() {
	near := p.limiter.near.Load()
	for i := range p.needs {
		n := &p.needs[i]
		c := n.counter
		c.asks++
		n.period = c.period
		n.part = n.total
		if n.lack >= 0 {
			n.part = n.total - n.lack
		}
		c.free -= n.part
		if n.lack >= 0 && !c.asking {
			c.asking = true
			n.more = c.wanted(n.total, p.limiter.cfg.LeaseShare, near)
		} else {
			n.more = -1
		}
	}
}

// wanted is what the counter should have leased beyond what it has, to serve a few
// times what has lately been taken between two reports, and n of now.
func (c *counter) wanted(n int64, share float64, near int64) int64 {
	return max(0, min(c.enough(n), c.share(share, near))-max(0, c.free))
}

// enough is a lease that lasts for a few reports.
func (c *counter) enough(n int64) int64 { return 4 * max(c.demand, c.takes+n) }

// share is what the replica may have leased.
func (c *counter) share(share float64, near int64) int64 {
	return int64(float64(c.limit) * share / float64(max(near, 1)))
}

// asked is what came of asking the store.
type asked struct {
	granted bool
	state   ratelimit.StoreState // it could not be asked
	sent    int64
}

// ask is the round trip. No lock is held.
func (p *plan) ask(ctx context.Context) asked {
	l, s := p.limiter, p.session
	if p.ctx == nil {
		p.ctx, p.cancel = context.WithTimeout(ctx, l.cfg.Timeout)
	}
	call := s.begin(p.needs)
	sent, began := l.mono(), time.Now()
	text, err := s.reserve(p.ctx, call.seq, p.needs)
	l.trips.observe(time.Since(began))
	granted := false
	if err == nil {
		granted, err = p.read(text)
	}
	s.end(call, err == nil)
	if err == nil {
		l.health.answered()
		l.byStore.Add(1)
		return asked{granted: granted, sent: sent}
	}
	if errors.Is(err, errSession) {
		l.lose(s, err)
		return asked{state: ratelimit.StoreDown}
	}
	l.health.failed(err)
	l.kick()
	if errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) {
		return asked{state: ratelimit.StoreSlow}
	}
	return asked{state: ratelimit.StoreDown}
}

// conclude takes what the store granted, or gives back what was pledged. The shards
// are locked.
func (p *plan) conclude(a asked) (ratelimit.Reservation, []ratelimit.Failure) {
	l, now := p.limiter, p.limiter.mono()
	same := l.session.Load() == p.session
	for i := range p.needs {
		n := &p.needs[i]
		n.counter.asks--
		if n.more >= 0 {
			n.counter.asking = false
		}
		n.counter.usedAt = now
	}
	for i := range p.needs {
		if same {
			p.receive(&p.needs[i], a, now)
		}
	}
	switch {
	case !same || a.state != "":
		if a.state == "" {
			a.state = ratelimit.StoreDown
		}
		return nil, p.storeFailures(a.state)
	case a.granted:
		return p.takeGranted(now), nil
	}
	var failures []ratelimit.Failure
	for i := range p.needs {
		if n := &p.needs[i]; n.lack >= 0 && n.lack+n.owed > n.answer.avail {
			// What is owed may have been charged meanwhile.
			p.limbo = p.limbo || n.owed > 0 || n.counter.untold(n.answer.turn)
			// What is there may be more than was asked for, but in pieces that can't be
			// put together yet.
			had := min(n.total-1, n.answer.avail-n.owed+n.have+n.counter.back)
			failures = append(failures, p.failuresOf(n, had, n.answer.wait, now)...)
		}
	}
	for i := range p.needs {
		if p.limbo {
			p.pin(p.needs[i].counter)
		}
	}
	return nil, byIndex(failures)
}

// receive follows the store's answer about one counter, and puts back what was
// pledged of the lease if that lease is still one.
func (p *plan) receive(n *need, a asked, now int64) {
	c := n.counter
	if n.lack >= 0 && a.state == "" {
		c.rollOver(n.answer.period)
		if c.period == n.answer.period {
			c.glimpse(sight{n.answer.turn, n.answer.avail, n.answer.rest, a.sent}, n.answer.granted, now)
			p.limiter.recall(c)
			c.free += n.answer.granted
		}
		if !a.granted && n.lack+n.owed > n.answer.avail && (p.last || !c.untold(n.answer.turn)) {
			c.refuse(n, now)
		}
	}
	if n.period == c.period {
		c.free += n.part
	}
	p.limiter.shardFor(c).queue(c)
}

// untold reports whether the store may not have known, at that turn, of something
// that this replica has given back or is about to: reports and other questions are
// under way.
func (c *counter) untold(turn int64) bool {
	return c.asks > 0 || c.flight != nil || c.turn > turn || c.back > 0 || c.free > 0 || len(c.settles) > 0
}

// refusedFor bounds how long a refusal stands without asking the store again.
const refusedFor = int64(20 * time.Millisecond)

// refuse remembers that the store has refused so much, so that a flood of requests
// that can't be served does not become a flood of questions.
func (c *counter) refuse(n *need, now int64) {
	c.refusedWait, c.refusedNeed = n.answer.wait, n.lack+n.owed
	c.refusedUntil = now + min(refusedFor, int64(n.answer.wait))
}

// takeGranted makes the reservation. What it takes of a calendar window that ended
// while the store was asked is of the old period, and leaves the new lease alone.
func (p *plan) takeGranted(now int64) ratelimit.Reservation {
	r := p.take(now)
	for i := range p.needs {
		n := &p.needs[i]
		c := n.counter
		period := n.period
		if n.lack >= 0 {
			period = n.answer.period
		}
		if period == c.period {
			continue
		}
		old := &batch{session: c.session, period: -1, told: true}
		for k := range r.(*reservation).holds {
			if h := &r.(*reservation).holds[k]; h.counter == c {
				c.free, c.taken, h.batch = c.free+h.amount, c.taken-h.amount, old
			}
		}
	}
	return r
}
