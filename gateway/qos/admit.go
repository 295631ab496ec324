package qos

import (
	"slices"
	"time"
)

// Open returns the terms on which a request of a class may go to a worker of one
// of these pools past the queue, while nobody waits; see Passed.
func (q *Queue) Open(now time.Time, class ClassID, pools []PoolID) Terms {
	terms := Terms{Pool: AnyPool, Bound: q.classes[class].Bound}
	for _, id := range pools {
		keep := q.keep(now, q.pools[id], class)
		terms.Keep.Requests = max(terms.Keep.Requests, keep.Requests)
		terms.Keep.Tokens = max(terms.Keep.Tokens, keep.Tokens)
	}
	return terms
}

// keep is what more urgent classes will want of a pool before their targets are
// over, going by what they did lately.
func (q *Queue) keep(now time.Time, p *pool, class ClassID) Keep {
	var keep Keep
	for _, c := range q.ranked[:q.classes[class].rank] {
		m := p.bands[c].arrivals.fade(now)
		seconds := q.classes[c].Target.Seconds() / recently.Seconds()
		keep.Requests += m.requests * seconds
		keep.Tokens += m.room * seconds
	}
	return keep
}

// Admit takes an arrival in. It appends to out what became of entries by that:
// of others that were taken out for it, and last of e itself, if that is known
// already: it was granted at once, or refused. Otherwise e waits.
//
// An arrival is refused by forecast only where others wait at each of its pools and
// none of them has a worker for it now.
//
// It is offered at once only where nobody comes before it. Otherwise Next tells
// when to pump.
func (q *Queue) Admit(now time.Time, e *Entry, p Placer, out []Outcome) []Outcome {
	q.check(e)
	q.forget(now)
	e.state = entryState{since: now, links: e.state.links}
	q.classes[e.Class].stats.Arrived++
	if q.tenantFull(e) {
		return q.refuse(now, e, ReasonTenantFull, q.drain(now, e), out)
	}
	refused, f, retry := q.refusesByForecast(now, e)
	e.state.forecast = f.total
	if refused {
		if placed, ok := q.offerRefused(now, e, p); ok {
			return append(out, placed)
		}
		return q.refuse(now, e, ReasonForecast, retry, out)
	}
	if q.full(e) {
		var ok bool
		if out, ok = q.makeRoom(now, e, out); !ok {
			return q.refuse(now, e, ReasonFull, q.comeBack(now, e), out)
		}
	}
	q.insert(now, e)
	q.begin(p)
	best := AnyPool
	for i, id := range e.Pools {
		pool := q.pools[id]
		wait, _ := p.Wait(now, id, Unbounded)
		c, ok := q.next(now, pool, wait)
		if !ok {
			q.watch(now, pool, p)
			continue
		}
		if (c.ref != ref{e, i}) {
			q.Dirty(id)
			continue
		}
		if best != AnyPool && best != id {
			continue
		}
		placed, ok := q.offer(now, pool, c, p)
		if ok {
			out = append(out, q.grant(now, c, placed))
			pool.dirty = true
			return out
		}
		best = placed.Pool
		if pool.waiting > 1 { // those behind see now that it holds for a worker
			q.Dirty(id)
		}
	}
	return out
}

// offerRefused offers an arrival that is about to be refused to those of its pools that
// are open although others wait there: these wait for other workers. Nobody is refused
// who has a worker.
func (q *Queue) offerRefused(now time.Time, e *Entry, p Placer) (Outcome, bool) {
	q.begin(p)
	for i, id := range e.Pools {
		pool, bound := q.pools[id], q.classes[e.Class].Bound
		if wait, _ := p.Wait(now, id, bound); wait > bound || wait == Unbounded || pool.behind {
			continue
		}
		c := choice{ref: ref{e, i}, bound: bound}
		if placed, ok := q.offer(now, pool, c, p); ok {
			if b := q.bookingOf(e); b != nil {
				q.unbook(b, true)
			}
			q.insert(now, e)
			pool.dirty = true
			return q.grant(now, c, placed), true
		}
	}
	return Outcome{}, false
}

// check finds mistakes of the caller.
func (q *Queue) check(e *Entry) {
	switch {
	case e.state.state == Waiting:
		panic("BUG: an entry was admitted that waits already")
	case e.Class < 0 || int(e.Class) >= len(q.classes):
		panic("BUG: an entry has a class that the queue never had")
	case len(e.Pools) == 0 || len(e.Pools) > MaxPools:
		panic("BUG: an entry has no pool, or more than MaxPools")
	case e.Work < 1:
		panic("BUG: an entry's work is less than 1")
	}
	for i, id := range e.Pools {
		if id < 0 || int(id) >= len(q.pools) || slices.Contains(e.Pools[:i], id) {
			panic("BUG: an entry has a pool that the queue never had, or one twice")
		}
	}
}

// tenantFull says whether e's tenant holds as much of the queue as it may. What e could
// take the place of is left to it.
func (q *Queue) tenantFull(e *Entry) bool {
	own := q.tenants[e.Tenant]
	if own == nil {
		return false
	}
	left := tenant{q.cfg.MaxEntries - len(q.expiry) + own.entries, q.cfg.MaxBytes - q.bytes + own.bytes}
	for _, id := range q.ranked[q.classes[e.Class].rank+1:] {
		c := &q.classes[id]
		left.add(c.exposed.entries, c.exposed.bytes)
		if g := c.byTenant[e.Tenant]; g != nil { // they are own ones already
			left.add(-g.held.entries, -g.held.bytes)
		}
	}
	share := q.cfg.MaxTenantShare
	return float64(own.entries+1) > share*float64(left.entries) || float64(own.bytes+e.Bytes) > share*float64(left.bytes)
}

// full says whether there is no room for e, whoever it is of.
func (q *Queue) full(e *Entry) bool {
	c := &q.classes[e.Class]
	return !q.fits(e, tenant{}) || c.MaxQueue > 0 && c.waiting >= c.MaxQueue
}

// fits says whether the whole queue has room for e if so much leaves it.
func (q *Queue) fits(e *Entry, less tenant) bool {
	return len(q.expiry)-less.entries < q.cfg.MaxEntries && q.bytes-less.bytes+e.Bytes <= q.cfg.MaxBytes
}

// refuse refuses an entry that is not in the queue, or not any more.
func (q *Queue) refuse(now time.Time, e *Entry, reason Reason, retry time.Duration, out []Outcome) []Outcome {
	e.state.state = Refused
	if !e.state.charged { // else it was granted, and failed
		q.classes[e.Class].stats.Refused[reason]++
	}
	return append(out, Outcome{
		Entry: e, State: Refused, Reason: reason, RetryAfter: retry,
		Waited: e.waited(now), Forecast: e.state.forecast,
	})
}

func (e *Entry) waited(now time.Time) time.Duration { return max(0, now.Sub(e.state.since)) }

// insert puts an entry in.
func (q *Queue) insert(now time.Time, e *Entry) {
	e.state.state = Waiting
	if !e.state.charged {
		q.seq++
		e.state.seq = q.seq
		for _, id := range e.Pools {
			f := q.pools[id].bands[e.Class].flows[e.Tenant]
			e.state.promised = e.state.promised || f != nil && q.overloaded(now, f)
		}
		q.arrives(now, e, e.Work)
	}
	e.state.links = slices.Grow(e.state.links[:0], len(e.Pools))[:len(e.Pools)]
	for i, id := range e.Pools {
		q.enter(now, q.pools[id].bands[e.Class], ref{e, i})
	}
	q.expiry.push(expiring{e})
	q.hold(e)
}

// arrives counts an arrival of so much work that the queue takes in or that goes past
// it.
func (q *Queue) arrives(now time.Time, e *Entry, work int64) {
	for _, id := range e.Pools {
		q.pools[id].bands[e.Class].arrivals.add(now, e, work)
	}
}

// remove takes an entry out, which was granted at a pool, unless that is AnyPool. What is
// first now at its others may be owed.
func (q *Queue) remove(now time.Time, e *Entry, state State, at PoolID) {
	for i, id := range e.Pools {
		q.leave(now, ref{e, i})
		q.pools[id].dirty = q.pools[id].dirty || at != AnyPool && id != at
	}
	q.expiry.remove(e.state.expires)
	q.free(e)
	e.state.state = state
	clear(e.state.links)
}

// Leave takes e out, if it waits. It returns what e was until then: where that
// is Granted, the caller has to give back what the Placer committed.
func (q *Queue) Leave(now time.Time, e *Entry) State {
	return q.takeOut(now, e, Left)
}

// Drain is Leave of an entry whose client would have waited on, and is refused
// (ReasonDraining): the caller knows that, and there is no Outcome.
func (q *Queue) Drain(now time.Time, e *Entry) State {
	return q.takeOut(now, e, Refused)
}

func (q *Queue) takeOut(now time.Time, e *Entry, state State) (was State) {
	if was = e.state.state; was != Waiting {
		return was
	}
	q.remove(now, e, state, AnyPool)
	for _, id := range e.Pools { // as in remove
		q.pools[id].dirty = true
	}
	switch stats := &q.classes[e.Class].stats; {
	case e.state.charged: // it was granted, and failed
	case state == Left:
		stats.Left++
	default:
		stats.Refused[ReasonDraining]++
	}
	return was
}

// Strand refuses e, if it waits, because there is no worker that could take it and
// none is expected (ReasonNoWorker), and appends that to out. The queue doesn't know
// who can take what: a pool without a worker, or one that a configuration has taken away,
// is closed to it like any other, and its entries wait until their time is over.
func (q *Queue) Strand(now time.Time, e *Entry, out []Outcome) []Outcome {
	if e.state.state != Waiting {
		return out
	}
	q.remove(now, e, Refused, AnyPool)
	return q.refuse(now, e, ReasonNoWorker, 0, out)
}

// retryTime is the least time that a request has in which it is tried again.
const retryTime = 2 * time.Second

// Again lets e wait again, after a worker failed it to which it was granted, or
// to which it went past the queue (Passed). It comes first in its class and is
// not charged again; Until is at least 2 s from now. It is not refused for want of
// room. A pump will place it.
func (q *Queue) Again(now time.Time, e *Entry) {
	q.check(e)
	if !e.state.charged {
		panic("BUG: an entry is to be tried again that was never granted")
	}
	e.state.since = now
	if least := now.Add(retryTime); e.Until.Before(least) {
		e.Until = least
	}
	q.insert(now, e)
	for _, id := range e.Pools {
		q.pools[id].dirty = true
	}
}
