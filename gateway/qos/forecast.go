package qos

import (
	"math"
	"time"
)

// forecast is when the first token of an arrival is expected, from its arrival, at the
// pool where that is soonest.
type forecast struct {
	total time.Duration
	// wait is the part of it in the queue.
	wait time.Duration
	band *band // where; nil: nothing waits at one of the pools, or nothing is known
	flow *flow // the tenant's there, if it is known
}

// forever bounds what is forecast.
const forever = 24 * time.Hour

// foresee forecasts an arrival, or, with booked false, one that needs not wait for
// those of its tenant that were told to come again. One that can meet its deadline comes
// before what waits and misses its own; one that can't comes after that, too.
func (q *Queue) foresee(now time.Time, e *Entry, booked bool) forecast {
	f := q.foreseeAmong(now, e, booked, false)
	if f.flow != nil && f.flow.missed > 0 && e.Arrived.Add(f.total).After(e.Deadline) {
		return q.foreseeAmong(now, e, booked, true)
	}
	return f
}

// foreseeAmong is foresee where, with late, it comes after what misses its deadline.
func (q *Queue) foreseeAmong(now time.Time, e *Entry, booked, late bool) forecast {
	least := forecast{}
	for _, id := range e.Pools {
		b := q.pools[id].bands[e.Class]
		f := b.flows[e.Tenant]
		wait, ok := q.waitAt(now, b, f, e, booked, late)
		if !ok {
			return forecast{}
		}
		if least.band == nil || wait < least.wait {
			least = forecast{wait: wait, band: b, flow: f}
		}
	}
	least.total = max(0, now.Sub(e.Arrived)) + least.wait + e.Own
	if bound := q.classes[e.Class].Bound; bound < forever {
		least.total += bound
	}
	return least
}

// waitAt is how long an arrival would wait in a band: for what comes before it, at
// the rate at which the pool takes work and that is left for the class. ok is false
// if it would not wait for anybody, or the rate is not known.
func (q *Queue) waitAt(now time.Time, b *band, f *flow, e *Entry, booked, late bool) (wait time.Duration, ok bool) {
	p := b.pool
	rate := p.rate.value(now, q.enough)
	if p.waiting == 0 || rate == 0 {
		return 0, false
	}
	var urgent, demand, shares float64
	rank := q.classes[b.class].rank
	for _, o := range p.bands {
		switch r := q.classes[o.class].rank; {
		case r < rank:
			urgent += o.work
			demand += o.arrivals.fade(now).work / recently.Seconds()
		case r > rank && o.waiting > 0:
			shares += q.classes[o.class].Share
		}
	}
	own, ahead := q.ahead(now, b, f, e, booked, late)
	seconds := math.Inf(1)
	if share := q.classes[b.class].Share; share > 0 {
		seconds = ahead / (share * rate)
	}
	// However much is more urgent, some of it will have to go elsewhere.
	if left := max(rate*(1-shares)-demand, rate/100); left > 0 {
		seconds = min(seconds, (urgent+ahead)/left)
	}
	if f != nil {
		if pace := f.pace(now, q.enough, e.Work); pace > 0 {
			seconds = max(seconds, own/pace)
		}
	}
	return time.Duration(min(seconds, forever.Seconds()) * float64(time.Second)), true
}

// looked is how many tenants that wait are looked at for a forecast; where there are
// more they are taken for the rest.
const looked = 64

// ahead is the work in a band that comes before an arrival: what its own tenant has
// waiting, and that with what each other one may have until they are level. What rests
// waits like the rest of it. Others' entries have earlier deadlines, so theirs go first until they are ahead
// by the slack; what they were told to send later goes first only where they are behind by
// that. What misses its deadline counts with late only, and not at all where its tenant is
// overloaded and it was let in before: it comes after the arrival.
func (q *Queue) ahead(now time.Time, b *band, f *flow, e *Entry, booked, late bool) (own, all float64) {
	level, slack := b.floor, float64(q.cfg.Slack)
	if f != nil {
		if len(f.timely)+len(f.late) > 0 {
			f.first(now) // moves those that have become late
		}
		own = q.counted(now, f, late)
		if booked {
			own += f.booked * f.shows
		}
		level += f.ahead(now, q.cfg.Memory)
	}
	level += own / weight(e.Weight)
	others, n := 0.0, min(len(b.lines), looked)
	for i := range n {
		g := b.lines[i*len(b.lines)/n]
		if g == f {
			continue
		}
		lead := (level - b.floor - g.ahead(now, q.cfg.Memory)) * g.weight
		work, coming := q.counted(now, g, late), g.booked*g.shows
		if booked {
			others += max(0, min(work+coming, lead+slack))
			continue
		}
		work = max(0, min(work, lead+slack))
		others += work + max(0, min(coming, lead-slack-work))
	}
	if n > 0 {
		others *= float64(len(b.lines)) / float64(n)
	}
	return own, max(0, own+others)
}

// counted is the work of a flow that waits and comes before an arrival.
func (q *Queue) counted(now time.Time, f *flow, late bool) float64 {
	if late && !q.overloaded(now, f) {
		return f.work
	}
	return f.work - f.missed
}

const (
	// leastRetry is the least that a client is told to wait, longestDrain the most where it
	// is refused for what its tenant has waiting, whatever the forecast.
	leastRetry   = time.Second
	longestDrain = time.Minute
	// jitter is the most by which those are spread that are told the same.
	jitter = time.Second
)

// limits are up to which part of the longest wait an arrival is let in: one of a tenant none
// of which was refused before, one of a tenant that is being refused, and one that comes when
// it was told to. Such are told to come when the wait is the part aim.
type limits struct{ fresh, refusing, booked, aim float64 }

// An arrival may take as long as its class's MaxWait. Where its tenant is overloaded, who is
// let in is to meet its target. What comes then are those that were told to, one after the
// other at the rate at which the pool takes work, and the line they find is short: between
// aim and booked is what forecasts and comings may be off.
var (
	ofMaxWait = limits{1, 0.9, 1.2, 1}
	ofTarget  = limits{0.3, 0.25, 0.85, 0.2}
	// ofStrangers is where nobody comes when told to: no room need be left for such.
	ofStrangers = limits{fresh: 0.5, refusing: 0.4}
)

// refusesByForecast says whether an arrival is to be refused because its first token
// would come too late, and when it may come again.
func (q *Queue) refusesByForecast(now time.Time, e *Entry) (refused bool, f forecast, retry time.Duration) {
	q.expire(now)
	booked := q.bookingOf(e)
	told := booked != nil && !now.Before(booked.due)
	if booked != nil { // it does not wait for itself
		booked.key.flow.books(-booked.work)
	}
	f = q.foresee(now, e, !told)
	if booked != nil {
		booked.key.flow.books(booked.work)
	}
	if f.band == nil || f.wait <= q.limit(now, e, f.flow, told) {
		if f.flow != nil && !told {
			f.flow.refusing = false
		}
		if booked != nil {
			q.unbook(booked, true)
		}
		return false, f, 0
	}
	if booked != nil && !told {
		// Who comes early does not do what it was told, and is not expected to. That
		// is known long before the time that it was told.
		if own := booked.key.flow; !booked.waited {
			own.shows -= showing * own.shows
		}
		f.band.refusedAt = now
		return true, f, booked.due.Sub(now)
	}
	again := f
	if booked != nil { // there is less room than was told: it comes after those that were told to come later
		q.unbook(booked, true)
		again = q.foresee(now, e, true)
	}
	flow := q.flow(f.band, e.Tenant)
	flow.refusing, f.band.refusedAt = true, now
	if q.overloaded(now, flow) {
		flow.strained = now
	}
	return true, f, q.tell(now, flow, e, again, false)
}

// tell is when an entry that is refused may come again; room is kept for it. waited says that
// it had been let in before.
func (q *Queue) tell(now time.Time, flow *flow, e *Entry, f forecast, waited bool) time.Duration {
	if flow.waiting == 0 && !flow.idle {
		flow.at = now
		q.sleep(flow)
	}
	most, by := q.terms(now, e, flow)
	retry := max(f.wait-time.Duration(by.aim*float64(most)), leastRetry)
	retry += time.Duration(min(float64(retry)*0.1, float64(jitter)) * spread(e.Key))
	q.book(now, flow, e, retry, waited)
	return retry
}

// terms are how long an arrival may wait at most in the queue, and which parts of that
// count. Who would miss its target with nobody before it has no target to be let in by.
func (q *Queue) terms(now time.Time, e *Entry, f *flow) (time.Duration, limits) {
	c := &q.classes[e.Class]
	most, by, after := c.MaxWait, ofMaxWait, e.Own
	if c.Bound < forever {
		after += c.Bound
	}
	if target := min(c.MaxWait, e.Deadline.Sub(e.Arrived)); f != nil && target > after && q.overloaded(now, f) {
		most, by = target, ofTarget
		by.fresh += (1 - f.shows) * (ofStrangers.fresh - by.fresh)
		by.refusing += (1 - f.shows) * (ofStrangers.refusing - by.refusing)
	}
	return max(0, most-after), by
}

// limit is up to which wait in the queue an arrival is let in.
func (q *Queue) limit(now time.Time, e *Entry, f *flow, told bool) time.Duration {
	most, by := q.terms(now, e, f)
	part := by.fresh
	switch {
	case told:
		part = by.booked
	case f != nil && f.refusing:
		part = by.refusing
	}
	return time.Duration(part*float64(most)) - max(0, now.Sub(e.Arrived))
}

// drain is when one that was refused for want of room may come again; 0: nothing is
// known.
func (q *Queue) drain(now time.Time, e *Entry) time.Duration {
	f := q.foresee(now, e, true)
	if f.band == nil {
		return 0
	}
	return min(max(f.wait, leastRetry), longestDrain)
}

// comeBack is when one may come again that has waited in vain, or gave way to another one, or
// found the queue full; room is kept for it.
func (q *Queue) comeBack(now time.Time, e *Entry) time.Duration {
	f := q.foresee(now, e, true)
	if f.band == nil {
		return 0
	}
	return q.tell(now, q.flow(f.band, e.Tenant), e, f, true)
}
