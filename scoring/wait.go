package scoring

import (
	"math"
	"time"
)

const (
	// soonest is the least time until it is worth to look again for what comes by
	// time alone, shifting that for the best worker to be another one.
	soonest  = time.Millisecond
	shifting = 0.02 // seconds
	// drift is by how many seconds a second the costs of two workers may move
	// against each other by themselves: one works off what it has, of the other it
	// turns out that it is late.
	drift = 1.5
	// keptAhead is how many requests of those that room is kept for find it at each worker
	// whatever it holds by then.
	keptAhead = 2
)

// line is what a request meets at a worker that it is sent to now.
type line struct {
	speed             float64
	perToken, perPair float64
	// waiting are requests of other senders that wait there, others those that run.
	waiting, others float64
	// ahead and pairs are to be computed before it, on its own engine, prefill is how
	// long that takes; foreign is the part of prefill that others' requests take, rest
	// the time in which the engine works off what it is at. slot is the wait for a
	// sequence to end. All in seconds.
	ahead, pairs           float64
	prefill, foreign, rest float64
	slot                   float64
	// step is the time of a whole step of prefill, left that of a pause that the
	// worker has asked for.
	step, left float64
	idle       bool // it has nothing to do, as far as is known
}

// meet fills l with what a request of a priority meets at w, where that is of any
// matter there. mean is taken for the work of others' requests where nothing is known.
// It requires that f.mu is held.
func (f *Fleet) meet(now time.Time, w *worker, priority int64, mean float64, l *line) {
	w.advance(now)
	w.predictor.relax(now, f.cfg.IdleHalfLife)
	f.meetAt(now, w, w.predictor.speed(now, f.cfg.IdleHalfLife), priority, mean, l)
}

// meetAt is meet at a given speed of w, where nothing else changes by time.
func (f *Fleet) meetAt(now time.Time, w *worker, speed float64, priority int64, mean float64, l *line) {
	p := &w.predictor
	l.speed = speed
	l.waiting, l.others = w.workload.others(now, f.cfg.LoadStale)
	l.perToken, l.perPair = p.costs(l.speed)
	base, ranks := l.speed*p.coef[termBase], w.engines()
	before, engines := w.before(priority), float64(ranks)
	l.ahead, l.pairs, l.rest = w.ahead(now, before, base, l.perToken, l.perPair, f.cfg.BatchTokens, ranks)
	l.rest /= engines
	l.foreign = 0
	if l.waiting > 0 {
		if w.meanTokens != 0 {
			mean = w.meanTokens
		}
		tokens, pairs := l.waiting*mean/engines, l.waiting*attentionPairs(mean, 0)/engines
		l.ahead += tokens
		l.pairs += pairs
		l.foreign = l.perToken*tokens + l.perPair*pairs
	}
	l.prefill = l.perToken*l.ahead + l.perPair*l.pairs
	l.slot = w.slotWait(before.requests, l.waiting+l.others, w.slots(f.cfg.MaxSeqs))
	l.step = base + l.perToken*float64(f.cfg.BatchTokens)
	l.left = w.saturation.left(now)
	l.idle = w.inFlight() == 0 && l.waiting == 0
}

// bounded is the wait at a worker as it is compared with a bound, in seconds, if the
// longest of the waits there but for what is ahead is this. One that has asked for a pause
// is given nothing until it is over: it would refuse that, however short the pause is.
//
// What comes while a step is under way is computed in the next one, if it is there when
// that begins. So a step's work is given to the worker in time, beside what is left of the
// one under way. Where room is to be kept for more urgent requests (yields) a step's work is
// all that is given: they come behind it.
func (l *line) bounded(other float64, yields bool) float64 {
	ahead := l.prefill
	if !yields {
		ahead -= min(l.rest, l.step)
	}
	switch {
	case l.left > 0:
		return longest
	case l.idle || max(ahead, other) <= l.step:
		return 0
	}
	return max(l.prefill, other)
}

// Wait returns the least time that a request would wait for what is there already
// at a worker of the pool that serves the model and may take work; [Unbounded] if
// there is none. It is 0 where the worker is open to everybody; see [Fleet.Offer].
// Where that is over bound, look is the earliest time at which it can be within it
// without anything being reported to the fleet; zero if that is not to be expected.
// With model empty every worker of the pool counts.
//
// It is of no request, and therefore the least that one can meet: one without
// priority over others' may wait longer, and one may need space that is not there.
func (f *Fleet) Wait(now time.Time, pool, model string, bound time.Duration) (wait time.Duration, look time.Time) {
	f.mu.Lock()
	defer f.mu.Unlock()
	of, limit := f.pools[pool], bound.Seconds()
	least, soon := math.Inf(1), math.Inf(1)
	trial, trialSoon := math.Inf(1), math.Inf(1) // who takes more only where nobody else can
	var l line
	for _, w := range f.workers {
		if w.predictor.pool != of || !w.ready || model != "" && !w.serves(model) {
			continue
		}
		w.advance(now)
		f.meetAt(now, w, w.predictor.lately(now, f.cfg.IdleHalfLife), math.MinInt64, 0, &l)
		is := l.bounded(l.slot, false)
		if w.busyTrial() {
			trial, trialSoon = min(trial, is), min(trialSoon, f.byItself(now, w, &l, limit, false))
			continue
		}
		if least = min(least, is); least == 0 {
			return 0, time.Time{}
		}
		soon = min(soon, f.byItself(now, w, &l, limit, false))
	}
	if math.IsInf(least, 1) {
		least, soon = trial, trialSoon
	}
	switch {
	case math.IsInf(least, 1):
		return Unbounded, time.Time{}
	case least <= limit:
		return seconds(least), time.Time{}
	}
	return seconds(min(least, longest)), after(now, soon)
}

// after is the time in so many seconds, which are not less than it is worth to look
// again for; zero for never.
func after(now time.Time, soon float64) time.Time {
	if soon > longest {
		return time.Time{}
	}
	return now.Add(max(soonest, seconds(soon)))
}

// byItself is the least time in which the wait at w, except for space, can have come
// within the limit before the next report; infinite if that is not to be expected.
// What the engine works off, a pause of its own, and others' load that was seen long
// ago, go by themselves. All in seconds. It requires that f.mu is held.
func (f *Fleet) byItself(now time.Time, w *worker, l *line, limit float64, yields bool) float64 {
	soon := l.left
	limit = max(limit, l.step)
	forgotten := 0.0
	if l.waiting+l.others > 0 {
		forgotten = w.seen[0].at.Add(f.cfg.LoadStale).Sub(now).Seconds()
	}
	if over := l.prefill - limit; over > 0 {
		in := l.worksOff(now, w, over, forgotten)
		if !yields {
			in = min(in, l.fillsNext(now, w, forgotten))
		}
		soon = max(soon, in)
	}
	if over := l.slot - limit; over > 0 {
		gone := (l.waiting + l.others) * w.meanDecode / float64(w.slots(f.cfg.MaxSeqs))
		if gone < over {
			return math.Inf(1)
		}
		soon = max(soon, forgotten*over/gone)
	}
	return soon
}

// worksOff is the least time in which w has worked off so many seconds of what is
// ahead before the next report; infinite if it can't. Others' load is forgotten in so
// many seconds.
func (l *line) worksOff(now time.Time, w *worker, over, forgotten float64) float64 {
	rate, most := 0.0, l.rest
	if l.rest > 0 {
		rate = 1 / float64(w.engines())
	}
	if l.foreign > 0 && forgotten > 0 {
		rate, most = rate+l.foreign/forgotten, most+l.foreign
	}
	soon := math.Inf(1)
	if most >= over {
		soon = over / rate
	}
	return min(soon, w.nextHead(now))
}

// fillsNext is the least time in which no more is ahead at w, before the next report, than
// what is left of a step and one more; infinite if that can't be. What the engine works off
// is of the step under way, so of what is beyond that only others' load goes by itself.
func (l *line) fillsNext(now time.Time, w *worker, forgotten float64) float64 {
	soon := 0.0
	if beyond := l.prefill - l.rest - l.step; beyond > 0 {
		soon = math.Inf(1)
		if forgotten > 0 && l.foreign >= beyond {
			soon = forgotten * beyond / l.foreign
		}
		soon = min(soon, w.nextHead(now))
	}
	if over := l.prefill - 2*l.step; over > 0 {
		soon = max(soon, l.worksOff(now, w, over, forgotten))
	}
	return soon
}

// nextHead is the time in which w's head counts as over by itself, and the next is begun;
// infinite if only a report says so.
func (w *worker) nextHead(now time.Time) float64 {
	if w.head == nil || !w.head.unary {
		return math.Inf(1)
	}
	return max(0, w.head.picked.Add(w.head.predicted).Sub(now).Seconds())
}

// open reports whether c is open by the terms, and the wait there in seconds. It
// requires that f.mu is held.
func (f *Fleet) open(now time.Time, p *Prepared, c *candidate, terms *Terms) (bool, float64) {
	l := &c.line
	wait := max(l.prefill, c.full)
	if terms.Bound == Unbounded && terms.Keep == (Keep{}) {
		return true, wait
	}
	if l.bounded(c.full, terms.yields()) > terms.Bound.Seconds() {
		return false, wait
	}
	return c.kept == 0, wait
}

// yields says that more urgent requests are expected.
func (t *Terms) yields() bool { return t.Keep != (Keep{}) }

// keptWait is how much longer than for itself a request waits at c until what must be
// kept free will be, in seconds; 0 if it is: room for those at the worker and the
// request to grow, and what the terms want. They are waited for as for a sequence and
// for space: see [workload.slotWait] and [worker.spaceWait]. It requires that f.mu is
// held, and that readyWorkers was called.
func (f *Fleet) keptWait(now time.Time, p *Prepared, c *candidate, terms *Terms) float64 {
	w, l, keep := c.worker, &c.line, terms.Keep
	if l.idle || terms.Bound == Unbounded && keep == (Keep{}) {
		return 0
	}
	closed, wait, soon := false, 0.0, 0.0
	n, slots := max(1, float64(w.inFlight())+l.others), float64(w.slots(f.cfg.MaxSeqs))
	if keep != (Keep{}) {
		workers := float64(w.predictor.pool.ready)
		keep.Tokens /= workers
		soon = min(keep.Tokens, keptAhead*terms.Keep.Tokens/max(1, keep.Requests))
		if over := float64(w.inFlight()+1) + l.waiting + l.others + keep.Requests/workers - slots; over > 0 {
			closed, wait = true, over*w.meanDecode/slots
		}
	}
	if room := w.room(); room > 0 {
		needs := w.needs(p.s.keys(c), p.s.size(c), p.req.prompt())
		most := w.expects(needs, p.req.Output, room, f.cfg.LoadStale)
		set := float64(terms.Held.at(w.id).room)
		lacks := most + max(soon, set) - room*(1-spare)
		if lacks > 0 && set == 0 && !terms.yields() && w.growsBy(p.req.Output) <= room*spare {
			lacks = 0
		}
		if lacks > 0 {
			c.lacks = needs + p.req.Output
		}
		// For all that is to be kept there must be room now. When those at the worker are
		// at their largest, what is for those who come later will have become free.
		if keep.Tokens > 0 {
			lacks = max(lacks, w.held(now, f.cfg.LoadStale)+float64(needs)+keep.Tokens-room)
		}
		if lacks > 0 {
			closed, wait = true, max(wait, w.meanDecode/n*clamp(lacks*n/room, 1, n))
		}
	}
	if !closed {
		return 0
	}
	return max(minTTFT.Seconds(), wait-max(l.prefill, c.full))
}

// readyWorkers counts the ready workers of each pool. It requires that f.mu is held.
func (f *Fleet) readyWorkers() {
	for _, p := range f.pools {
		p.ready = 0
	}
	for _, w := range f.workers {
		if w.ready {
			w.predictor.pool.ready++
		}
	}
}

// refuse says why best does not take the request. It requires that f.mu is held.
func (f *Fleet) refuse(now time.Time, p *Prepared, best *candidate, wait float64, open bool, terms *Terms) Refusal {
	no := Refusal{
		Best: best.worker.id, Pool: best.worker.spec.Pool, Work: best.work, Open: open,
		Wait: seconds(wait), TTFT: seconds(best.raw), Room: best.lacks,
	}
	l := &best.line
	soon := math.Inf(1)
	if limit := terms.Bound.Seconds(); !open && l.bounded(best.full, terms.yields()) > limit && wait <= max(l.prefill, l.slot, l.left) {
		soon = f.byItself(now, best.worker, l, limit, terms.yields())
	} // else it is space that lacks, or what must be kept, and somebody's end is reported
	// Another one that is open may come to be the best.
	for i := range p.s.candidates {
		c := &p.s.candidates[i]
		if c == best || terms.Pool != "" && c.worker.spec.Pool != terms.Pool {
			continue
		}
		if is, _ := f.open(now, p, c, terms); !is {
			continue
		}
		soon = min(soon, max(shifting, (c.cost()-best.cost())/drift))
	}
	no.Look = after(now, soon)
	return no
}
