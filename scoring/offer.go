package scoring

import (
	"math"
	"time"
)

// Prepared is a request on its way to a worker, whether it is given one at once or
// waits for one. It holds no load. Make it with [Fleet.Prepare], offer it as often
// as it takes, also after an attempt that failed, and give it back with Release. It
// must not be used by two goroutines at a time.
type Prepared struct {
	fleet *Fleet
	req   *Request
}

// Unbounded is a bound that every wait is within.
const Unbounded = time.Duration(math.MaxInt64)

// Terms are the conditions of an offer.
type Terms struct {
	// Bound is up to which wait a worker is open. A worker without work is open
	// whatever it is predicted to be.
	Bound time.Duration
	// Pool is the one that the request may go to now; empty is any. The best worker
	// is looked for in all its pools whatever it is: where that is in another one,
	// the offer is not taken.
	Pool string
	// KeepRequests and KeepTokens are what the worker must have left after the
	// request: free sequences, and room in its KV cache. Zero is nothing.
	KeepRequests, KeepTokens float64
}

// Refusal is why an offer was not taken: what the request would have met at the
// worker that is the best for it.
type Refusal struct {
	// Best is the worker with the least cost, Pool its pool. It is worth waiting for:
	// another one may be free, but the request would cost more there.
	Best WorkerID
	Pool string
	// Work is the prompt tokens that Best would have to compute.
	Work int
	// Wait is how long the request would wait at Best for what is there already, TTFT
	// the whole time to its first token, Wait included. Both are medians.
	Wait, TTFT time.Duration
	// Look is the earliest time at which a worker can be within the bound without
	// anything being reported to the fleet; zero if that is not to be expected.
	Look time.Time
}

// Held is work that was set aside for workers: requests that wait for a worker and
// come before the one to be offered. It counts in the cost of these workers, as it
// will be there before the request, and not against the bound. The zero value holds
// nothing; a nil *Held may be read.
type Held struct {
	workers []WorkerID
	tokens  []int
}

// Add sets aside tokens of work for a worker.
func (h *Held) Add(id WorkerID, tokens int) {
	for i, w := range h.workers {
		if w == id {
			h.tokens[i] += tokens
			return
		}
	}
	h.workers, h.tokens = append(h.workers, id), append(h.tokens, tokens)
}

// Reset forgets what was added and keeps the memory.
func (h *Held) Reset() { h.workers, h.tokens = h.workers[:0], h.tokens[:0] }

// Prepare does what can be done for a request before it is offered: it finds out
// whether anybody could take it, and hashes its prompt. req is read by each offer,
// so it stays as it is until Release, but for Exclude. The error is [ErrNoWorker] or
// [ErrNotReady].
func (f *Fleet) Prepare(now time.Time, req *Request) (*Prepared, error) {
	s := f.scratch.Get().(*scratch)
	defer f.scratch.Put(s)
	if err := f.gather(now, req, s); err != nil {
		return nil, err
	}
	return &Prepared{fleet: f, req: req}, nil
}

// Release gives p's memory back. p must not be used from then on.
func (p *Prepared) Release() { p.fleet, p.req = nil, nil }

// Offer gives the request to the worker with the least cost, as [Fleet.Pick] does,
// if that is open by the terms. Otherwise nothing is
// counted anywhere, the reservation is nil, and the refusal says what there was; it
// does not go to another worker that happens to be free. now must be fresh. The error is [ErrNoWorker] or
// [ErrNotReady].
func (f *Fleet) Offer(now time.Time, p *Prepared, terms Terms, held *Held) (*Reservation, Refusal, error) {
	r, err := f.Pick(now, p.req)
	if err != nil {
		return nil, Refusal{}, err
	}
	f.mu.Lock()
	wait := f.waitAt(now, r.worker, r)
	f.mu.Unlock()
	if wait > terms.Bound || terms.Pool != "" && terms.Pool != r.info.Pool {
		r.Done(now, NotSent)
		return nil, Refusal{
			Best: r.info.ID, Pool: r.info.Pool, Work: r.work, Wait: wait, TTFT: r.predicted, Look: now.Add(max(0, wait-terms.Bound)),
		}, nil
	}
	return r, Refusal{}, nil
}

// Wait returns the least time that a request would wait for what is there already
// at a worker of the pool that serves the model and may take work; [Unbounded] if
// there is none. Where that is over bound, look is the earliest time at which it can
// be within it without anything being reported to the fleet; zero if that is not to
// be expected. With model empty every worker of the pool counts.
func (f *Fleet) Wait(now time.Time, pool, model string, bound time.Duration) (wait time.Duration, look time.Time) {
	f.mu.Lock()
	defer f.mu.Unlock()
	wait = Unbounded
	for _, w := range f.workers {
		if w.spec.Pool != pool || !w.ready || w.busyTrial() || model != "" && !w.serves(model) {
			continue
		}
		if is := f.waitAt(now, w, nil); is < wait {
			wait = is
		}
	}
	if wait > bound && wait < Unbounded {
		look = now.Add(wait - bound)
	}
	return wait, look
}

// waitAt is the wait at one worker, without the request r that is the last there. It
// requires that f.mu is held.
func (f *Fleet) waitAt(now time.Time, w *worker, r *Reservation) time.Duration {
	w.advance(now)
	speed := w.predictor.speed(now, f.cfg.IdleHalfLife)
	perToken, perPair := w.predictor.costs(speed)
	tokens, pairs := w.ahead(now, speed*w.predictor.coef[termBase], perToken, perPair, f.cfg.BatchTokens, w.engines())
	if r != nil {
		tokens, pairs = max(0, tokens-float64(r.work)), max(0, pairs-r.pairs)
	}
	return seconds(max(perToken*tokens+perPair*pairs, w.saturation.left(now)))
}
