package qos

import "time"

// choice is the entry that is offered next.
type choice struct {
	ref   ref
	bound time.Duration
	owed  bool
}

// next returns the most entitled entry of a pool that a worker with this wait may
// be open for, of those that do not rest.
//
// A class that is owed is bound as the most urgent one is: its own bound is less, and
// more urgent work would keep every worker above it for ever.
func (q *Queue) next(now time.Time, p *pool, wait time.Duration) (choice, bool) {
	if wait == Unbounded {
		return choice{}, false
	}
	var next choice
	largest, most := q.classes[q.ranked[0]].Bound, -1.0
	for _, c := range q.ranked {
		b, share := p.bands[c], q.classes[c].Share
		if share <= 0 || b.credit < 0 || b.credit/share <= most || largest < wait ||
			b.credit == 0 && len(b.again) == 0 {
			continue
		}
		if r, ok := b.first(now, q.cfg.Slack); ok && b.owed(share, r) {
			next, most = choice{r, largest, true}, b.credit/share
		}
	}
	if most >= 0 {
		return next, true
	}
	for _, c := range q.ranked {
		if bound := q.classes[c].Bound; bound >= wait {
			if r, ok := p.bands[c].first(now, q.cfg.Slack); ok {
				return choice{r, bound, false}, true
			}
		}
	}
	return choice{}, false
}

// keepPause is when to look again for an entry that room was kept free of: what is to be
// kept falls by itself.
const keepPause = 50 * time.Millisecond

// offer offers an entry to the placer. Where it is not placed, it notes when to look at
// the pool again.
//
// One that holds for a worker in another pool is not offered here: its best worker is
// known, and what it holds there would stand in its own way.
func (q *Queue) offer(now time.Time, p *pool, c choice, placer Placer) (Placement, bool) {
	s := &c.ref.entry.state
	if s.held == q.looks && s.best != p.id {
		return Placement{Pool: s.best}, false
	}
	terms := Terms{Pool: p.id, Bound: c.bound}
	if !c.owed {
		terms.Keep = q.keep(now, p, c.ref.entry.Class)
	}
	placed, ok := placer.Place(now, c.ref.entry, terms)
	if !ok && placed.Pool == p.id {
		s.held, s.best = q.looks, p.id
	}
	if !ok {
		p.sooner(placed.Look)
		if terms.Keep != (Keep{}) {
			p.sooner(now.Add(keepPause))
		}
	}
	return placed, ok
}

// grant takes out an entry that was placed.
func (q *Queue) grant(now time.Time, c choice, placed Placement) Outcome {
	e, l := c.ref.entry, c.ref.link()
	o := Outcome{
		Entry: e, State: Granted, Pool: l.band.pool.id,
		Waited: e.waited(now), Forecast: e.state.forecast,
	}
	if !e.state.charged {
		o.Work = placed.Work
		if o.Work == 0 {
			o.Work = e.Work
		}
		q.classes[e.Class].stats.Granted++
		l.band.floor = max(l.band.floor, l.flow.tag-float64(q.cfg.Slack)/l.flow.weight)
		if !c.owed {
			l.band.pool.step = 0
		}
		q.charge(now, l.flow, o.Work)
		e.state.charged, e.state.pool = true, o.Pool
		if l.band.pool.rate.since.IsZero() { // no worker took any, which says nothing of the tenant's pace
			l.flow.rate.pause()
		}
		l.flow.rate.placed(now, o.Work, q.enough)
		l.band.pool.rate.placed(now, o.Work, q.enough)
	}
	pool := l.band.pool
	q.remove(now, e, Granted, o.Pool)
	pool.dirty = pool.dirty || pool.shared > 0 // the worker may have been the best for others
	return o
}

// charge notes work that a flow has had, or with a sign that it did not have.
func (q *Queue) charge(now time.Time, f *flow, work int64) {
	if f.waiting == 0 {
		f.tag, f.at = f.band.floor+f.ahead(now, q.cfg.Memory), now
		defer q.sleep(f)
	}
	f.tag += float64(work) / f.weight
	if f.ready >= 0 {
		f.settle()
	}
	p := f.band.pool
	p.step = max(p.step, work)
	for _, b := range p.bands {
		if b == f.band {
			b.placed += work
		}
		if b.waiting == 0 {
			continue
		}
		b.contended += work
		b.credit += q.classes[b.class].Share * float64(work)
		if b == f.band {
			b.got += work
			b.credit -= float64(work)
		}
		b.cut(q.classes[b.class].Share)
	}
}

// Passed notes a request that went to a pool past the queue, on the terms of
// Open, and what it costs there (0: e.Work). e need not have been in the queue.
func (q *Queue) Passed(now time.Time, e *Entry, pool PoolID, work int64) {
	q.check(e)
	q.forget(now)
	if work == 0 {
		work = e.Work
	}
	q.seq++
	e.state = entryState{
		state: Granted, seq: q.seq, pool: pool, charged: true, links: e.state.links,
	}
	q.classes[e.Class].stats.Passed++
	b := q.pools[pool].bands[e.Class]
	q.arrives(now, e, work)
	q.correct(now, b, e, work)
}

// Settle corrects what e was charged by what it truly was: off is the true work
// less the charged. It has no effect on one that was never granted.
func (q *Queue) Settle(now time.Time, e *Entry, off int64) {
	if e.state.charged {
		q.correct(now, q.pools[e.state.pool].bands[e.Class], e, off)
	}
}

// correct charges work to the tenant of an entry that may have nothing waiting.
func (q *Queue) correct(now time.Time, b *band, e *Entry, work int64) {
	f := q.flow(b, e.Tenant)
	if f.waiting == 0 {
		f.weight = weight(e.Weight)
	}
	q.charge(now, f, work)
}

// Dirty says that room may have come at a pool, or that a worker of it is not the best
// any more for what waits: another pool's may be.
func (q *Queue) Dirty(pool PoolID) { q.pools[pool].dirty = true }

// gather says which pools are in a look: those where something has happened, or whose pause
// is over, and with one of them that shares entries all that do. A placement there, or
// one that holds for a worker, can make another pool's worker the best for those
// behind, and it shows in that look only.
func (q *Queue) gather(now time.Time) {
	shared := false
	for _, p := range q.pools {
		p.looked = p.dirty || p.behind && !p.tried.Add(p.pace).After(now)
		shared = shared || p.looked && p.shared > 0
	}
	for _, p := range q.pools {
		p.looked = p.looked || shared && p.shared > 0
	}
}

const (
	// pause is the least time between two pumps of a pool where nothing has happened
	// but arrivals, or where there are more to look at.
	pause = time.Millisecond
	// slowest is the most that pauses come to where one look after another is in vain:
	// little beside a step of an engine.
	slowest = 4 * time.Millisecond
)

// due is when a pool is to be looked at although nothing happens; zero: there is no
// need.
func (p *pool) due() time.Time {
	at := p.look
	if p.dirty || p.behind {
		pump := p.tried.Add(pause)
		if !p.dirty {
			pump = p.tried.Add(p.pace)
		}
		if at.IsZero() || pump.Before(at) {
			at = pump
		}
	}
	return at
}

// paced sets the pause after a pump that had no time for all. It grows while nobody is
// placed, and is less again when somebody was: so about every second look finds
// somebody, and those that are in vain take no processor from what they look for. What
// happens meanwhile is looked at as soon as ever.
func (p *pool) paced(placed bool) {
	if placed {
		p.pace = max(pause, p.pace/2)
	} else {
		p.pace = min(max(pause, 2*p.pace), slowest)
	}
}

// Next returns when to pump although nothing happens; false: there is no need.
func (q *Queue) Next() (time.Time, bool) {
	if len(q.expiry) == 0 {
		return time.Time{}, false
	}
	next := q.expiry[0].Until
	for _, p := range q.pools {
		if p.waiting == 0 {
			continue
		}
		if at := p.due(); !at.IsZero() && at.Before(next) {
			next = at
		}
	}
	return next, true
}

// begin begins a look.
func (q *Queue) begin(p Placer) {
	q.looks++
	p.Begin()
}

// Pump refuses whose time is over and gives out what room there is. It appends to out
// what became of entries.
func (q *Queue) Pump(now time.Time, p Placer, out []Outcome) []Outcome {
	q.forget(now)
	for len(q.expiry) > 0 && !q.expiry[0].Until.After(now) {
		e := q.expiry[0].Entry
		for i := range e.Pools {
			if f := (ref{e, i}).link().flow; f != nil {
				f.strained = now
			}
		}
		q.remove(now, e, Refused, AnyPool)
		out = q.refuse(now, e, ReasonWaited, q.comeBack(now, e), out)
	}
	q.begin(p)
	for _, pool := range q.pools {
		if !pool.look.IsZero() && !pool.look.After(now) {
			pool.dirty = true
		}
	}
	q.gather(now)
	for _, pool := range q.pools {
		if pool.looked || pool.dirty {
			out = q.pump(now, pool, p, out)
		}
	}
	return out
}

// pump offers the entries of one pool in their order, until the pool is not open
// for any or Tries were looked at in vain. These rest until the others had
// their turn, but for the first half of them, which are looked at every time.
func (q *Queue) pump(now time.Time, p *pool, placer Placer, out []Outcome) []Outcome {
	happened := p.dirty
	p.dirty, p.behind, p.look, p.tried = false, false, time.Time{}, now
	if p.waiting == 0 {
		return out
	}
	failed, old, before := q.failed[:0], p.resting.len(), len(out)
	rise := func(n int) {
		for n = min(n, old); n > 0; n-- {
			p.resting.oldest().rise(q.cfg.Slack)
			old--
		}
	}
	if happened { // else those behind have their turn first
		rise(q.cfg.Tries / 4)
	}
	for {
		wait, _ := placer.Wait(now, p.id, Unbounded)
		c, ok := q.next(now, p, wait)
		more := old > 0 && wait <= q.classes[q.ranked[0]].Bound
		if len(failed) == q.cfg.Tries && (ok || more) {
			// Those behind have their turn soon.
			p.behind = true
			p.paced(len(out) > before)
			for _, r := range failed[q.cfg.Tries/2:] { // else who has many waiting comes after who has few
				r.settle()
			}
			clear(failed[q.cfg.Tries/2:])
			failed = failed[:q.cfg.Tries/2]
			break
		}
		if !ok && more {
			rise(q.cfg.Tries - len(failed))
			continue
		}
		if !ok {
			if wait == Unbounded {
				p.rate.pause()
			}
			q.watch(now, p, placer)
			break
		}
		if placed, ok := q.offer(now, p, c, placer); ok {
			out = append(out, q.grant(now, c, placed))
			p.dirty = p.dirty || len(failed) > 0 // another worker may be the best for these now
			rise(1)
			continue
		}
		c.ref.rest(q.cfg.Slack)
		failed = append(failed, c.ref)
	}
	if !p.behind {
		p.pace = 0
	}
	for _, r := range failed {
		r.rise(q.cfg.Slack)
	}
	clear(failed)
	q.failed = failed[:0]
	return out
}

// watch notes when the pool can have become open for an entry that it is not open for.
func (q *Queue) watch(now time.Time, p *pool, placer Placer) {
	bound := time.Duration(0)
	if p.resting.len() > 0 {
		bound = q.classes[q.ranked[0]].Bound
	}
	if c, ok := q.next(now, p, 0); ok {
		bound = max(bound, c.bound)
	}
	if bound > 0 {
		_, look := placer.Wait(now, p.id, bound)
		p.sooner(look)
	}
}
