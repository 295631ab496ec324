package scoring

import (
	"math"
	"slices"
	"time"
)

const (
	// soonest is the least time until it is worth to look again for what comes by
	// time alone, shifting that for the best worker to be another one.
	soonest  = time.Millisecond
	shifting = 20 * time.Millisecond
	// drift is by how many seconds a second the costs of two workers may move
	// against each other by themselves: one works off what it has, of the other it
	// turns out that it is late.
	drift = 1.5
)

// line is what a request meets at a worker that it is sent to now.
type line struct {
	speed             float64
	perToken, perPair float64
	// waiting are requests of other senders that wait there, others those that run.
	waiting, others float64
	// queue is the part of our own requests there that goes before it; ahead and pairs
	// are to be computed before it, on its own engine.
	queue        queued
	ahead, pairs float64
	// foreign is the time that the part of that takes which others sent, slot the wait
	// for a sequence to end, in seconds.
	foreign, slot float64
}

// line tells what a request of a priority meets at w, where that is of any matter
// there. mean is taken for the work of others' requests where nothing is known. It
// requires that f.mu is held.
func (f *Fleet) line(now time.Time, w *worker, priority int64, mean float64) line {
	w.advance(now)
	w.predictor.relax(now, f.cfg.IdleHalfLife)
	var l line
	l.speed = w.predictor.speed(now, f.cfg.IdleHalfLife)
	l.waiting, l.others = w.workload.others(now, f.cfg.LoadStale)
	l.perToken, l.perPair = w.predictor.costs(l.speed)
	l.queue = w.before(priority)
	own, pairs := w.ahead(now, l.queue, l.speed*w.predictor.coef[termBase], l.perToken, l.perPair, f.cfg.BatchTokens, w.engines())
	if w.meanTokens != 0 {
		mean = w.meanTokens
	}
	engines := float64(w.engines())
	tokens, others := l.waiting*mean/engines, l.waiting*attentionPairs(mean, 0)/engines
	l.ahead, l.pairs = own+tokens, pairs+others
	l.foreign = l.perToken*tokens + l.perPair*others
	l.slot = w.slotWait(l.queue.requests, l.waiting+l.others, w.slots(f.cfg.MaxSeqs))
	return l
}

// prefill is how long it takes to compute what is ahead, in seconds.
func (l *line) prefill() float64 { return l.perToken*l.ahead + l.perPair*l.pairs }

// idle reports whether w has nothing to do, as far as is known.
func (l *line) idle(w *worker) bool { return w.inFlight() == 0 && l.waiting == 0 }

// bounded is the wait at w as it is compared with a bound, in seconds, if the longest
// of the waits there is this. It requires that f.mu is held.
func (f *Fleet) bounded(now time.Time, w *worker, l *line, wait float64) float64 {
	if left := w.saturation.left(now); left > 0 {
		return max(wait, left)
	}
	if l.idle(w) || wait <= f.stepTime(w, l) {
		return 0
	}
	return wait
}

// stepTime is what a whole step of prefill takes at w, in seconds.
func (f *Fleet) stepTime(w *worker, l *line) float64 {
	return l.speed*w.predictor.coef[termBase] + l.perToken*float64(f.cfg.BatchTokens)
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
	least, trials := math.Inf(1), math.Inf(1)
	for _, w := range f.workers {
		if w.spec.Pool != pool || !w.ready || model != "" && !w.serves(model) {
			continue
		}
		l := f.line(now, w, math.MinInt64, 0)
		is := f.bounded(now, w, &l, max(l.prefill(), l.slot))
		if w.busyTrial() {
			trials = min(trials, is) // which takes more only where nobody else can
			continue
		}
		least = min(least, is)
		if is <= bound.Seconds() {
			continue
		}
		if at := f.lookAt(now, w, &l, bound); look.IsZero() || !at.IsZero() && at.Before(look) {
			look = at
		}
	}
	if math.IsInf(least, 1) {
		least = trials
	}
	switch {
	case math.IsInf(least, 1):
		return Unbounded, time.Time{}
	case least <= bound.Seconds():
		look = time.Time{}
	}
	return seconds(min(least, longest)), look
}

// lookAt is the earliest time at which the wait at w can have come within the bound
// by itself; zero if that is not to be expected. What the engine works off, a pause
// of its own, and others' load that was seen long ago, go by themselves. It requires
// that f.mu is held.
func (f *Fleet) lookAt(now time.Time, w *worker, l *line, bound time.Duration) time.Time {
	limit := max(bound.Seconds(), f.stepTime(w, l))
	until := max(0, w.saturation.left(now)-bound.Seconds())
	left := w.seen[0].at.Add(f.cfg.LoadStale).Sub(now).Seconds() // until others' load is forgotten
	if over := l.prefill() - limit; over > 0 {
		takes, does := f.worksOff(now, w, l, over, left)
		if !does {
			return time.Time{}
		}
		until = max(until, takes)
	}
	if over := l.slot - limit; over > 0 {
		gone := (l.waiting + l.others) * w.meanDecode / float64(w.slots(f.cfg.MaxSeqs))
		if gone < over || left <= 0 {
			return time.Time{}
		}
		until = max(until, left*over/gone)
	}
	return now.Add(max(soonest, seconds(min(until, longest))))
}

// worksOff is the least time in which w has worked off so many seconds of what is
// ahead before the next report, and whether it can. Others' load is forgotten in left
// seconds. It requires that f.mu is held.
func (f *Fleet) worksOff(now time.Time, w *worker, l *line, over, left float64) (takes float64, does bool) {
	engines := float64(w.engines())
	rate, most := 0.0, 0.0
	if l.foreign > 0 && left > 0 {
		rate, most = l.foreign/left, l.foreign
	}
	unary := -1.0 // in how many seconds the head counts as over
	if w.prefilling > 0 {
		_, _, due, spent := w.due(now, l.queue, l.perToken, l.perPair, f.cfg.BatchTokens)
		if rest := due - spent; rest > 0 {
			rate, most = rate+1/engines, most+rest/engines
		}
		if w.head.unary {
			unary = max(0, w.head.picked.Add(w.head.predicted).Sub(now).Seconds())
		}
	}
	switch {
	case most >= over && unary >= 0:
		return min(over/rate, unary), true
	case most >= over:
		return over / rate, true
	}
	return unary, unary >= 0
}

// open reports whether c is open by the terms, and the wait there in seconds. It
// requires that f.mu is held.
func (f *Fleet) open(now time.Time, p *Prepared, c *candidate, terms *Terms) (bool, float64) {
	w, l := c.worker, &c.line
	wait := max(l.prefill(), c.full)
	if terms.Bound == Unbounded && terms.Keep == (Keep{}) {
		return true, wait
	}
	if f.bounded(now, w, l, wait) > terms.Bound.Seconds() {
		return false, wait
	}
	if terms.Keep == (Keep{}) || l.idle(w) {
		return true, wait
	}
	workers := 0.0
	for _, o := range f.workers {
		if o.ready && o.spec.Pool == w.spec.Pool {
			workers++
		}
	}
	free := float64(w.slots(f.cfg.MaxSeqs)-w.inFlight()-1) - l.waiting - l.others
	if free < terms.Keep.Requests/workers {
		return false, wait
	}
	if room := w.room(); room > 0 && terms.Keep.Tokens > 0 {
		needs := w.needs(p.s.keys(c), p.s.size(c), p.req.prompt())
		if w.held(now, f.cfg.LoadStale)+float64(needs)+terms.Keep.Tokens/workers > room {
			return false, wait
		}
	}
	return true, wait
}

// refuse says why best does not take the request. It requires that f.mu is held.
func (f *Fleet) refuse(now time.Time, p *Prepared, best *candidate, wait float64, open bool, terms *Terms) Refusal {
	no := Refusal{
		Best: best.worker.id, Pool: best.worker.spec.Pool, Work: best.work, Open: open,
		Wait: seconds(wait), TTFT: seconds(best.raw),
	}
	if !open && f.bounded(now, best.worker, &best.line, wait) > terms.Bound.Seconds() {
		// Where it is space that lacks, or what must be kept, somebody's end is reported.
		byItself := max(best.line.prefill(), best.line.slot, best.worker.saturation.left(now))
		if wait <= byItself {
			no.Look = f.lookAt(now, best.worker, &best.line, terms.Bound)
		}
	}
	// Another one that is open may come to be the best.
	for i := range p.s.candidates {
		c := &p.s.candidates[i]
		if c == best || terms.Pool != "" && c.worker.spec.Pool != terms.Pool {
			continue
		}
		if is, _ := f.open(now, p, c, terms); !is {
			continue
		}
		at := now.Add(max(shifting, seconds(min((c.cost()-best.cost())/drift, longest))))
		if no.Look.IsZero() || at.Before(no.Look) {
			no.Look = at
		}
	}
	return no
}

// of is the tokens that are held for a worker.
func (h *Held) of(id WorkerID) int {
	if h != nil {
		if i := slices.Index(h.workers, id); i >= 0 {
			return h.tokens[i]
		}
	}
	return 0
}
