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
// those of its tenant that were told to come again.
func (q *Queue) foresee(now time.Time, e *Entry, booked bool) forecast {
	least := forecast{}
	for _, id := range e.Pools {
		b := q.pools[id].bands[e.Class]
		f := b.flows[e.Tenant]
		wait, ok := q.waitAt(now, b, f, e, booked)
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
func (q *Queue) waitAt(now time.Time, b *band, f *flow, e *Entry, booked bool) (wait time.Duration, ok bool) {
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
	ahead := b.ahead(now, f, e, booked, q.cfg.Memory)
	seconds := math.Inf(1)
	if share := q.classes[b.class].Share; share > 0 {
		seconds = ahead / (share * rate)
	}
	// However much is more urgent, some of it will have to go elsewhere.
	if left := max(rate*(1-shares)-demand, rate/100); left > 0 {
		seconds = min(seconds, (urgent+ahead)/left)
	}
	return time.Duration(min(seconds, forever.Seconds()) * float64(time.Second)), true
}

// looked is how many tenants that wait are looked at for a forecast; where there are
// more they are taken for the rest.
const looked = 64

// ahead is the work in a band that comes before an arrival: what its tenant has
// waiting, and what each other one may have until they are level. Where a tenant is
// overloaded, what misses its deadline does not count: it comes after the arrival.
func (b *band) ahead(now time.Time, f *flow, e *Entry, booked bool, memory time.Duration) float64 {
	all, own, level := b.work, 0.0, b.floor
	if f != nil {
		own = f.work
		if len(f.timely)+len(f.late) > 0 {
			f.first(now) // moves those that have become late
		}
		if f.overloaded {
			all -= b.missed
			own -= f.missed
		}
		if booked {
			all += b.booked * f.shows
			own += f.booked * f.shows
		}
		level += f.ahead(now, memory)
	}
	level += own / weight(e.Weight)
	others, n := 0.0, min(len(b.ready), looked)
	for _, g := range b.ready[:n] {
		if g == f {
			continue
		}
		work := g.work
		if g.overloaded {
			work -= g.missed
		}
		if booked {
			work += g.booked * g.shows
		}
		others += max(0, min(work, (level-g.key())*g.weight))
	}
	if n > 0 {
		others *= float64(len(b.ready)) / float64(n)
	}
	return max(0, min(all, own+others))
}

const (
	// leastRetry is the least that a client is told to wait, longestDrain the most
	// where no booking says when.
	leastRetry   = time.Second
	longestDrain = time.Minute
)

// limits are up to which part of what it may take at most an arrival is let in: one
// of a tenant none of which was refused before, one of a tenant that is being refused,
// and one that comes when it was told to.
type limits struct{ fresh, refusing, booked float64 }

// An arrival may take as long as its class's MaxWait. Where its tenant is overloaded,
// whose first token misses its target will not be served: those that still
// can meet theirs come first, and there will always be such.
var (
	ofMaxWait = limits{1, 0.9, 1.2}
	ofTarget  = limits{0.9, 0.8, 1}
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
	if f.band == nil || f.total <= q.limit(e, f.flow, told) {
		if f.flow != nil && !told {
			f.flow.refusing = false
			if f.flow.missed == 0 && f.total <= q.classes[e.Class].Target/2 {
				f.flow.overloaded = false
			}
		}
		if booked != nil {
			q.unbook(booked, true)
		}
		return false, f, 0
	}
	if booked != nil && !told {
		// Who comes early does not do what it was told, and is not expected to. That
		// is known long before the time that it was told.
		own := booked.key.flow
		own.shows -= showing * own.shows
		f.band.refusedAt = now
		return true, f, booked.due.Sub(now)
	}
	if booked != nil {
		q.unbook(booked, true)
	}
	flow := q.flow(f.band, e.Tenant)
	if flow.waiting == 0 && !flow.idle {
		flow.at = now
		q.sleep(flow)
	}
	flow.refusing, f.band.refusedAt = true, now
	retry = max(f.total-q.limit(e, flow, true), leastRetry)
	retry += time.Duration(float64(retry) * 0.1 * spread(e.Key))
	q.book(now, flow, e, retry)
	return true, f, retry
}

// limit is up to which time to first token an arrival is let in.
func (q *Queue) limit(e *Entry, f *flow, told bool) time.Duration {
	c := &q.classes[e.Class]
	most, by := c.MaxWait, ofMaxWait
	if f != nil && f.overloaded {
		most, by = min(c.MaxWait, max(e.Deadline.Sub(e.Arrived), e.Own)), ofTarget
	}
	part := by.fresh
	switch {
	case told:
		part = by.booked
	case f != nil && f.refusing:
		part = by.refusing
	}
	return time.Duration(part * float64(most))
}

// drain is when one that was refused for want of room, or has waited in vain, may come
// again; 0: nothing is known.
func (q *Queue) drain(now time.Time, e *Entry) time.Duration {
	f := q.foresee(now, e, true)
	if f.band == nil {
		return 0
	}
	return min(max(f.wait, leastRetry), longestDrain)
}
