package scoring

import "time"

// inferShare is the share of a unary request's time that its decoding may take
// for its prefill to be worked out.
const inferShare = 0.5

// phase is how far a reservation's request is.
type phase uint8

const (
	prefilling phase = iota + 1
	running
	ended
)

// Reservation is one request's claim on the worker that [Fleet.Pick] chose.
// The caller must call Done once it is finished with the worker. FirstToken and
// Done may be called in any order, any number of times and from any goroutine:
// the first Done counts, and the first FirstToken before it. They stay safe when
// the worker is removed meanwhile.
type Reservation struct {
	fleet  *Fleet
	worker *worker
	info   WorkerInfo

	picked    time.Time
	predicted time.Duration
	p90       time.Duration
	cached    int
	prompt    int
	unary     bool

	// work is the uncached tokens the request adds to the queue, pairs its
	// attention pairs in millions; x, raw and fixed are what its prediction was
	// made from, in seconds; see predictor.train.
	work       int
	pairs      float64
	priority   int64
	x          vector
	raw, fixed float64
	record     uint64

	// Guarded by fleet.mu.
	phase      phase
	output     int // tokens of the answer; 0 when unknown
	inferred   time.Duration
	seen       bool // FirstToken was called
	first      time.Time
	prev, next *Reservation
	expects    *expectation
	holds      claim
}

// Worker says where to send the request.
func (r *Reservation) Worker() WorkerInfo { return r.info }

// Predicted is the median TTFT that was predicted for the chosen worker.
func (r *Reservation) Predicted() time.Duration { return r.predicted }

// PredictedP90 is the time that the TTFT was predicted to stay below in nine
// cases of ten.
func (r *Reservation) PredictedP90() time.Duration { return r.p90 }

// Cached is how many of the prompt's tokens the worker is known, or expected
// from recent picks, to hold.
func (r *Reservation) Cached() int { return r.cached }

// Prompt is the prompt's length in tokens, or the caller's estimate.
func (r *Reservation) Prompt() int { return r.prompt }

// Work is how many of the prompt's tokens the worker has to compute, with the cost of
// reading others from slow tiers of its cache.
func (r *Reservation) Work() int { return r.work }

// FirstToken reports that the first token arrived at now. It releases the
// request's prefill load and trains the worker's prediction.
func (r *Reservation) FirstToken(now time.Time) {
	if r.fleet.firstToken(now, r) {
		r.fleet.madeRoom(r.info.Pool)
	}
}

// firstToken takes over a first token, if it is the first report of it.
func (f *Fleet) firstToken(now time.Time, r *Reservation) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if r.seen || r.phase == ended {
		return false
	}
	r.seen = true
	w := r.worker
	if r.phase == prefilling {
		w.run(now, r)
		w.heard = now
		w.again(&r.holds, now)
	}
	w.saturation.answer()
	if !r.unary {
		f.learn(now, r)
	}
	return true
}

// learn trains the prediction with a first token that arrived now. It requires
// that f.mu is held.
func (f *Fleet) learn(now time.Time, r *Reservation) {
	w, actual := r.worker, max(now.Sub(r.picked), minTTFT)
	f.stats.FirstTokens++
	f.stats.ActualSum += actual
	f.stats.ErrorSum += max(actual-r.predicted, r.predicted-actual)
	f.errors.add(actual, r.predicted)
	if rec := f.ring.find(r.record); rec != nil {
		rec.Actual = actual
	}
	if w.removed {
		return
	}
	w.firstTokens++
	f.train(now, r, actual.Seconds())
}

// Output tells how many tokens the answer has, before Done. For a request whose
// first token could not be seen, it lets its time be worked out and learned.
func (r *Reservation) Output(tokens int) {
	r.fleet.mu.Lock()
	defer r.fleet.mu.Unlock()
	r.output = tokens
}

// infer trains the prediction with a unary request that is complete as of now:
// all tokens but the first took the time between tokens that the worker reports.
// Where that is most of the time, too little is left to be told from noise. It
// requires that f.mu is held.
func (f *Fleet) infer(now time.Time, r *Reservation) {
	w := r.worker
	if r.output < 1 || w.removed {
		return
	}
	took := now.Sub(r.picked).Seconds()
	decode := float64(r.output-1) * w.interToken
	if r.output > 1 && w.interToken == 0 || decode > inferShare*took {
		return
	}
	first := max(took-decode, minTTFT.Seconds())
	r.inferred = time.Duration(first * float64(time.Second))
	f.train(now, r, first)
}

// Inferred is the time from the pick to the first token of an answer in one piece, as
// worked out when it was whole; 0 if it could not be.
func (r *Reservation) Inferred() time.Duration {
	r.fleet.mu.Lock()
	defer r.fleet.mu.Unlock()
	return r.inferred
}

// train trains the worker's and its pool's prediction with what r took, in
// seconds. It requires that f.mu is held.
func (f *Fleet) train(now time.Time, r *Reservation, actual float64) {
	p := &r.worker.predictor
	if p.train(now, f.cfg.IdleHalfLife, r.x, r.raw, r.fixed, actual) {
		p.pool.learn(now, p.coef)
	}
}

// Done reports at now how the request ended and releases everything it still
// holds. Unless the prefill happened, its blocks are no longer expected in the
// worker's cache.
func (r *Reservation) Done(now time.Time, out Outcome) {
	if r.fleet.done(now, r, out) {
		r.fleet.madeRoom(r.info.Pool)
	}
}

// done takes over the end of a request, if it is the first report of it.
func (f *Fleet) done(now time.Time, r *Reservation, out Outcome) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if r.phase == ended {
		return false
	}
	if out == Completed {
		r.worker.saturation.answer()
	}
	if prefilled := r.seen || out == Completed; !prefilled || out == NotSent {
		f.soon.drop(r.expects)
	}
	r.expects = nil
	if r.unary && out == Completed {
		f.infer(now, r)
	}
	if out == Completed && !r.unary && r.phase == running {
		r.worker.paced(now.Sub(r.first), r.output-1)
	}
	r.worker.end(now, r, out)
	r.worker.forward(now)
	r.worker.leave(&r.holds)
	f.inFlight--
	f.stats.count(out)
	if out == WorkerFailed || out == NotSent {
		r.worker.failures++
	}
	if rec := f.ring.find(r.record); rec != nil {
		rec.Outcome = out
	}
	return true
}
