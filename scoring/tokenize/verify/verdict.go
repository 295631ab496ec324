package verify

import (
	"sync"
	"sync/atomic"
	"time"
)

const (
	// firstRetry is how long after a disagreement a shape is compared again; the
	// time doubles with each disagreement up to lastRetry.
	firstRetry = 10 * time.Minute
	lastRetry  = 6 * time.Hour
	// freshSamples of a shape's requests are sampled whatever the rate, so that
	// what the probes don't have shows at once, and again after a doubt.
	freshSamples = 3
	// maxEvidence is the largest body that is kept as evidence.
	maxEvidence = 64 << 10
	// never is longer than any process runs.
	never = 100 * 365 * 24 * time.Hour
)

// verdict is what is known of one shape. state and fresh are read on the path of
// requests, the rest is guarded by mu.
type verdict struct {
	state atomic.Uint32 // a State
	fresh atomic.Int32  // requests that will be sampled whatever the rate

	mu sync.Mutex
	ShapeStatus
	// evidence is the body that disagreed, which must agree before the shape is
	// trusted again: a mismatch that one text in a hundred brings about would
	// otherwise come and go. It is sent to workers of its own pools only.
	evidence *Probe
	retry    time.Time
	pause    time.Duration
}

// ShapeStatus is the public part of a verdict.
type ShapeStatus struct {
	Shape Shape
	State State
	// Probes and Samples count comparisons with fixed and with live requests,
	// Agreed, Disagreed and Undecided what both of them found.
	Probes, Samples              int64
	Agreed, Disagreed, Undecided int64
	// Worker, At and When tell of the last disagreement: the worker's name, the
	// index of the first id that differed, and the time; zero if there was none.
	Worker string
	At     int
	When   time.Time
}

// trusted says whether requests of the shape are served locally.
func (v *verdict) trusted() bool { return State(v.state.Load()) != Mismatch }

// set changes the state. It requires that mu is held.
func (v *verdict) set(s State) {
	v.State = s
	v.state.Store(uint32(s))
}

// count notes a comparison. It requires that mu is held.
func (v *verdict) count(res result, sample bool) {
	if sample {
		v.Samples++
	} else {
		v.Probes++
	}
	switch res {
	case agree:
		v.Agreed++
	case disagree:
		v.Disagreed++
	default:
		v.Undecided++
	}
}

// agreed notes that a worker has the same ids.
func (v *verdict) agreed(sample bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.count(agree, sample)
	if v.State == Unverified {
		v.set(Verified)
	}
}

// undecided notes a comparison without a result.
func (v *verdict) undecided(sample bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.count(undecided, sample)
}

// disagreed notes that a worker has other ids for p. It reports whether the
// shape was trusted before.
func (v *verdict) disagreed(now time.Time, p *Probe, worker string, at int, sample bool) (news bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.count(disagree, sample)
	v.Worker, v.At, v.When = worker, at, now
	news = v.State != Mismatch
	v.set(Mismatch)
	v.pause = min(max(2*v.pause, firstRetry), lastRetry)
	v.retry = now.Add(v.pause)
	switch {
	case !sample:
	case len(p.Body) <= maxEvidence:
		v.evidence = p
	default:
		// Without it the probes would clear the shape, and the next such request
		// would set it aside again: only another worker can put it right.
		v.retry = now.Add(never)
	}
	return news
}

// due returns what is to be compared before the shape is trusted again, beside
// the probes, and whether it is time to. evidence may be nil.
func (v *verdict) due(now time.Time) (evidence *Probe, due bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.evidence, v.State == Mismatch && !now.Before(v.retry)
}

// hurry makes a disagreement due now.
func (v *verdict) hurry() {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.retry = time.Time{}
}

// postpone makes it due later without a result.
func (v *verdict) postpone(now time.Time) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.retry = now.Add(time.Minute)
}

// recover trusts the shape again. How often it disagreed is kept, the evidence is
// not.
func (v *verdict) recover() {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.set(Verified)
	v.evidence = nil
	v.fresh.Store(freshSamples)
}

// status returns a copy of the public part.
func (v *verdict) status() ShapeStatus {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.ShapeStatus
}
