package scoring

import "time"

// Reservation is one request's claim on the worker that [Fleet.Pick] chose.
// The caller must call Done exactly once it is finished with the worker;
// further calls, in any order and from any goroutine, have no effect.
type Reservation struct {
	fleet  *Fleet
	worker *worker
	info   WorkerInfo

	predicted time.Duration
	cached    int
	prompt    int

	// Guarded by fleet.mu.
	prefilling bool
	done       bool
	picked     time.Time
}

// Worker says where to send the request.
func (r *Reservation) Worker() WorkerInfo { return r.info }

// Predicted is the TTFT that was predicted for the chosen worker.
func (r *Reservation) Predicted() time.Duration { return r.predicted }

// Cached is how many of the prompt's tokens the worker was believed to hold.
func (r *Reservation) Cached() int { return r.cached }

// Prompt is the prompt's length in tokens, or the caller's estimate.
func (r *Reservation) Prompt() int { return r.prompt }

// FirstToken reports that the first token arrived. It releases the prefill load
// and trains the worker's prediction. Only the first call before Done counts.
func (r *Reservation) FirstToken(now time.Time) {
	r.fleet.mu.Lock()
	defer r.fleet.mu.Unlock()
	r.releasePrefillLocked()
}

// Done reports how the request ended and releases everything it still holds.
// Only the first call counts.
func (r *Reservation) Done(now time.Time, out Outcome) {
	r.fleet.mu.Lock()
	defer r.fleet.mu.Unlock()
	if r.done {
		return
	}
	r.releasePrefillLocked()
	r.done = true
	r.worker.inFlight--
}

func (r *Reservation) releasePrefillLocked() {
	if r.done || !r.prefilling {
		return
	}
	r.prefilling = false
	r.worker.ahead -= r.prompt - r.cached
}
