package scoring

import (
	"math"
	"time"
)

// workload is what one worker has in hand: the requests this process sent it,
// and what its own metrics show beyond them. Guarded by Fleet.mu.
type workload struct {
	// head and tail are the reservations without a first token, in the order
	// they were picked, which is the order the engine takes them in.
	head, tail *Reservation
	// prefilling counts them; running counts those past their first token.
	prefilling, running int
	// tokens and pairs sum their uncached tokens and attention pairs, levels the same
	// by priority: those of which there are any.
	tokens int
	pairs  float64
	levels []level
	// mark is when the head of the queue came to be the head.
	mark time.Time
	// heard is when a first token was last seen.
	heard time.Time

	// seen are the last two observations, newest first.
	seen [2]observation
	// meanTokens is the running mean of uncached tokens per request, meanDecode
	// that of the time from first token to end, in seconds.
	meanTokens, meanDecode float64
	// interToken is what the worker last said of the time between two tokens,
	// in seconds; 0 when it has not.
	interToken float64
	// decoded counts the requests that meanDecode was learned from.
	decoded int64
	// ranks is how many engines there are as the worker last said, 0 when it has
	// not; mostRunning the most requests that it said it runs at once.
	ranks, mostRunning int
	arrivals
}

// observation is what a worker's metrics showed beyond our own requests.
type observation struct {
	at               time.Time
	load             Load
	waiting, running int
}

const (
	// meanGain is the weight of a new value in meanTokens and meanDecode.
	meanGain = 0.1
	// firstDecode is assumed until a request has ended, in seconds.
	firstDecode = 2
	// arrivalWindow is the time constant of the arrival rate, in seconds.
	arrivalWindow = 10
	// busiest bounds the utilisation that a delay is worked out with.
	busiest = 0.8
)

// inFlight counts the requests that have not ended.
func (l *workload) inFlight() int { return l.prefilling + l.running }

// push adds a picked request to the end of the queue.
func (l *workload) push(now time.Time, r *Reservation) { l.insert(now, r, l.tail) }

// insert adds a picked request behind another one of the queue; behind nil, to an
// empty queue.
func (l *workload) insert(now time.Time, r, behind *Reservation) {
	if l.prefilling == 0 {
		l.mark = now
	}
	r.prev, r.next = behind, nil
	if behind == nil {
		l.head = r
	} else {
		r.next, behind.next = behind.next, r
	}
	if r.next == nil {
		l.tail = r
	} else {
		r.next.prev = r
	}
	r.phase = prefilling
	l.count(r, 1)
	l.prefilling++
	l.tokens += r.work
	l.pairs += r.pairs
	if l.meanTokens == 0 {
		l.meanTokens = float64(r.work)
	}
	l.meanTokens += meanGain * (float64(r.work) - l.meanTokens)
}

// pop takes a request out of the queue.
func (l *workload) pop(now time.Time, r *Reservation) {
	if r == l.head {
		l.mark = now
		l.head = r.next
	} else {
		r.prev.next = r.next
	}
	if r == l.tail {
		l.tail = r.prev
	} else {
		r.next.prev = r.prev
	}
	r.prev, r.next = nil, nil
	l.count(r, -1)
	l.prefilling--
	l.tokens -= r.work
	if l.pairs -= r.pairs; l.prefilling == 0 {
		l.pairs = 0 // sheds what rounding left
	}
}

// run moves a request from prefill to decode.
func (l *workload) run(now time.Time, r *Reservation) {
	l.pop(now, r)
	r.phase, r.first = running, now
	l.running++
}

// advance moves the unary requests at the head of the queue on whose predicted
// first token is past: nobody will report it.
func (l *workload) advance(now time.Time) {
	for r := l.head; r != nil && r.unary; r = l.head {
		due := r.picked.Add(r.predicted)
		if due.After(now) {
			return
		}
		l.run(due, r)
	}
}

// end takes a request out, whichever phase it is in.
func (l *workload) end(now time.Time, r *Reservation, out Outcome) {
	if r.phase == prefilling {
		l.pop(now, r)
	} else {
		l.running--
		if out == Completed {
			l.decoded++
			l.meanDecode += max(meanGain, 1/float64(l.decoded)) * (max(0, now.Sub(r.first).Seconds()) - l.meanDecode)
		}
	}
	r.phase = ended
}

// observe takes over what the worker's metrics show. Waiting requests beyond
// ours without a first token are others' (or ours, preempted); so are running
// ones beyond all of ours. What counts is the lesser of two observations in a
// row, because one may have been taken just before a first token that this
// process knows of already.
func (l *workload) observe(now time.Time, load Load, stale time.Duration) {
	l.ranks, l.mostRunning = load.Ranks, max(l.mostRunning, load.Running)
	own := l.prefilling + l.running
	o := observation{at: now, load: load}
	o.waiting = max(0, load.Waiting-l.prefilling)
	o.running = max(0, load.Running+load.Waiting-own-o.waiting)
	l.seen[1], l.seen[0] = l.seen[0], o
	if now.Sub(l.seen[1].at) > stale {
		l.seen[1] = o
	}
}

// others is the work of other senders as of now: requests that wait, and those
// that run. An observation's weight falls linearly to nothing at stale.
func (l *workload) others(now time.Time, stale time.Duration) (waiting, running float64) {
	o := &l.seen[0]
	if o.waiting|o.running == 0 {
		return 0, 0
	}
	weight := clamp(1-now.Sub(o.at).Seconds()/stale.Seconds(), 0, 1)
	return weight * float64(min(o.waiting, l.seen[1].waiting)),
		weight * float64(min(o.running, l.seen[1].running))
}

// ahead is how many uncached tokens, and attention pairs in millions, the engine
// must still prefill before a request that arrives now, if it takes perToken and
// perPair seconds for one of them, and up to batch tokens a step. base is the time
// of a request that no prefill is part of, in seconds.
//
// The engine works at the head of the queue, so what it has done since mark is
// taken off; but no more than the head's own, or one step's, as otherwise a
// first token would have been seen. When even that is overdue, by more than base,
// the worker is slower than believed, and the longer it is, the longer it will
// be: half the overdue time is added. A first token of a request behind the head shows that
// not the worker is late, but something with the head; the time before it does
// not count then.
//
// Several engines side by side have the queue in equal parts, as far as is known.
//
// q is the part of the queue that matters, the head always among it. rest is the time
// that what may be taken off still takes, in seconds.
func (l *workload) ahead(now time.Time, q queued, base, perToken, perPair float64, batch, engines int) (tokens, pairs, rest float64) {
	if l.prefilling == 0 {
		return 0, 0, 0
	}
	tokens, pairs = float64(q.tokens), q.pairs
	dueTokens, duePairs := float64(l.head.work), l.head.pairs
	if step := float64(min(batch, q.tokens)); dueTokens < step {
		dueTokens, duePairs = step, pairs*step/tokens
	}
	due := dueTokens*perToken + duePairs*perPair
	spent := max(0, now.Sub(l.mark).Seconds())
	done := 1.0
	if due > spent {
		done = spent / due
	}
	tokens, pairs = (tokens-done*dueTokens)/float64(engines), (pairs-done*duePairs)/float64(engines)
	if late := spent - due - base; late > 0 {
		if late = min(late, now.Sub(l.heard).Seconds()); late > 0 {
			tokens += late / 2 / perToken
		}
	}
	return tokens, max(0, pairs), max(0, due-spent)
}

// slotWait is how long a request that arrives now waits for a sequence to end
// when all of the engine's are taken, in seconds. waiting of ours are before it.
func (l *workload) slotWait(waiting int, others float64, slots int) float64 {
	over := float64(waiting+l.running) + others - float64(slots) + 1
	if over <= 0 {
		return 0
	}
	return over * l.meanDecode / float64(slots)
}

// arrivals is the rate of picks, in requests a second, that forgets with
// arrivalWindow: of those that had to come here for what the worker holds, and of
// those that might have gone elsewhere.
type arrivals struct {
	bound, free float64
	arrived     time.Time // the last one
}

// rates are the rates as of then.
func (a *arrivals) rates(then time.Time) (bound, free float64) {
	if a.arrived.IsZero() {
		return 0, 0
	}
	keep := math.Exp(-max(0, then.Sub(a.arrived).Seconds()) / arrivalWindow)
	return keep * a.bound, keep * a.free
}

// arrive counts one request, of which a share had to come here.
func (a *arrivals) arrive(now time.Time, share float64) {
	a.bound, a.free = a.rates(now)
	a.bound += share / arrivalWindow
	a.free += (1 - share) / arrivalWindow
	a.arrived = now
}
