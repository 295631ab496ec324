package scoring

import (
	"math"
	"slices"
	"time"
)

// WorkerSnapshot is the state of one worker at one moment.
type WorkerSnapshot struct {
	Worker           WorkerInfo
	Models, Adapters []string
	Added            time.Time
	// Ready says whether the worker may be picked; Reason says why not.
	Ready  bool
	Reason string
	// Retired says that it only finishes what it has, see [Fleet.Retire]. Another
	// worker may have its name by now.
	Retired bool
	// Trial says that it gets one request at a time, see [Fleet.SetTrial].
	Trial bool
	// Views holds one entry per rank that was heard of, by rank.
	Views []ViewSnapshot
	// InFlight counts the requests sent and not finished, Prefilling those of
	// them without a first token yet.
	InFlight, Prefilling int
	// Ahead is the uncached prompt tokens of the requests in Prefilling, less
	// what is believed to be done of them.
	Ahead int
	// Coefficients are what was learned, Speed the factor that currently
	// multiplies them (1 is as learned, 2 is twice as slow).
	Coefficients Coefficients
	Speed        float64
	// Trained counts the first tokens it was learned from.
	Trained int64
	// ErrorP50 and ErrorP90 are quantiles of actual/predicted TTFT over the
	// last first tokens; 1 is a perfect prediction.
	ErrorP50, ErrorP90 float64
	// Load is what the worker last said of itself, and when.
	Load         Load
	LoadObserved time.Time
	// Picks, FirstTokens and Failures count since the worker was added.
	Picks, FirstTokens, Failures int64
}

// Serves reports whether the worker answers to the name.
func (w *WorkerSnapshot) Serves(model string) bool {
	return slices.Contains(w.Models, model) || slices.Contains(w.Adapters, model)
}

// ViewSnapshot is the state of the view of one rank.
type ViewSnapshot struct {
	Rank  int
	State ViewState
	// BlockSize is in tokens; Capacity is in blocks, 0 when unknown.
	BlockSize, Capacity int
	// GPU, CPU and Disk count the blocks held in each tier; Disk is all of the
	// slower stores together. Groups counts the KV cache groups heard of.
	GPU, CPU, Disk, Groups int
	// Held counts blocks kept aside until their parent is known.
	Held int
}

// PredictionRecord is one recent pick with what it was decided on.
type PredictionRecord struct {
	Seq    uint64
	Picked time.Time
	Model  string
	// Prompt is the prompt's length in tokens; TokensKnown is false when none of
	// them was known and it is the caller's estimate.
	Prompt      int
	TokensKnown bool
	Winner      WorkerID
	// Why says what decided.
	Why Reason
	// Candidates holds every eligible worker's prediction.
	Candidates []Prediction
	// Outcome is 0 until the request is done. Actual is 0 until the first token.
	Outcome Outcome
	Actual  time.Duration
}

// Prediction is one candidate's predicted TTFT and its parts.
type Prediction struct {
	Worker WorkerID
	// Total is the prediction (a median), P90 what nine in ten stay below.
	Total, P90 time.Duration
	// Base, Wait and Prefill sum to Total.
	Base, Wait, Prefill time.Duration
	// Delay is the time that later requests would lose on this worker, all
	// together, as far as the choice counts it, and what work that was set aside for
	// the worker takes; see [Held]. The pick has the least Total plus Delay.
	Delay time.Duration
	// Cached is the tokens believed to be in the worker's cache, Assumed those
	// that a worker with an unknown view was credited with on top.
	Cached, Assumed int
	// Ahead is the uncached tokens that must be prefilled first, Running the
	// sequences decoded meanwhile, those of other senders included; on the
	// request's own rank, where the worker has several.
	Ahead, Running int
}

// Reason says what decided a pick.
type Reason uint8

const (
	// ReasonOnly: there was one candidate.
	ReasonOnly Reason = iota + 1
	// ReasonLeast: its cost was the least.
	ReasonLeast
	// ReasonFewest: among those of equal cost it had the fewest requests.
	ReasonFewest
	// ReasonChance: it was drawn among equals.
	ReasonChance
	// ReasonStrategy: the configured strategy does not go by the prediction.
	ReasonStrategy
)

// String returns the reason as the debug page shows it.
func (r Reason) String() string {
	switch r {
	case ReasonOnly:
		return "only candidate"
	case ReasonLeast:
		return "least cost"
	case ReasonFewest:
		return "fewest in flight of equal cost"
	case ReasonChance:
		return "chance among equals"
	case ReasonStrategy:
		return "strategy"
	}
	return "invalid"
}

// Stats are a fleet's totals since it was made, and its present size.
type Stats struct {
	Picks, NoWorker, NotReady, TooLong int64
	// PromptTokens and CachedTokens sum over picks; unknown prompts count as
	// their estimate and as not cached.
	PromptTokens, CachedTokens int64
	// UnknownTokens counts picks without token ids.
	UnknownTokens int64
	FirstTokens   int64
	Completed     int64
	ClientGone    int64
	WorkerFailed  int64
	NotSent       int64
	// ActualSum and ErrorSum sum, over first tokens, the TTFT and the absolute
	// difference between it and its prediction.
	ActualSum, ErrorSum time.Duration
	// ErrorP50 and ErrorP90 are quantiles of |actual-predicted|/actual over the
	// most recent first tokens of all workers.
	ErrorP50, ErrorP90 float64
	// Events sums what [Fleet.ApplyEvents] did.
	Events ApplyStats
	// Keys counts the distinct blocks in the index, Blocks the (rank, block)
	// pairs, Held those kept aside, Speculative those that picks put there.
	Keys, Blocks, Held, Speculative int
	// Bytes is the memory of the index's tables.
	Bytes int
	// Workers and ReadyWorkers count the fleet without those that are retired.
	Workers, ReadyWorkers int
	// InFlight counts the open reservations.
	InFlight int
}

// ApplyStats counts what a batch of events did, in blocks unless said otherwise.
type ApplyStats struct {
	// Stored counts blocks new to the view (or to a tier of it), Repeated those
	// it already had.
	Stored, Repeated int
	// Removed counts blocks taken out, UnknownRemoved removals of blocks the view
	// did not have.
	Removed, UnknownRemoved int
	// Cleared counts AllBlocksCleared events.
	Cleared int
	// HeldBack counts blocks put aside because their parent is unknown,
	// HeldDropped those given up because too many waited.
	HeldBack, HeldDropped int
	// Unusable counts blocks that a request can't reproduce the key of.
	Unusable int
	// UnknownStored counts blocks stored without tokens under an unknown hash.
	UnknownStored int
	// Evicted counts blocks dropped because the view was over its capacity.
	Evicted int
	// Malformed counts events whose parts contradict each other.
	Malformed int
	// Ignored counts events for a worker that is gone or a rank out of range.
	Ignored int
}

func (s *ApplyStats) add(o ApplyStats) {
	s.Stored += o.Stored
	s.Repeated += o.Repeated
	s.Removed += o.Removed
	s.UnknownRemoved += o.UnknownRemoved
	s.Cleared += o.Cleared
	s.HeldBack += o.HeldBack
	s.HeldDropped += o.HeldDropped
	s.Unusable += o.Unusable
	s.UnknownStored += o.UnknownStored
	s.Evicted += o.Evicted
	s.Malformed += o.Malformed
	s.Ignored += o.Ignored
}

func (s *Stats) count(out Outcome) {
	switch out {
	case Completed:
		s.Completed++
	case ClientGone:
		s.ClientGone++
	case WorkerFailed:
		s.WorkerFailed++
	case NotSent:
		s.NotSent++
	}
}

// Snapshot returns the state of every worker as of now, in the order they were
// added.
func (f *Fleet) Snapshot(now time.Time) []WorkerSnapshot {
	f.mu.Lock()
	out := make([]WorkerSnapshot, 0, len(f.workers))
	views := make([][]*view, 0, len(f.workers))
	for _, w := range f.workers {
		out = append(out, f.snapshot(now, w))
		views = append(views, w.views)
	}
	f.mu.Unlock()

	// A view may be busy with a long batch; picks shall not wait for it.
	for i := range out {
		for _, v := range views[i] {
			out[i].Views = append(out[i].Views, v.snapshot())
		}
		slices.SortFunc(out[i].Views, func(a, b ViewSnapshot) int { return a.Rank - b.Rank })
	}
	return out
}

// snapshot is a worker's state without its views. It requires that f.mu is held.
func (f *Fleet) snapshot(now time.Time, w *worker) WorkerSnapshot {
	w.advance(now)
	p := &w.predictor
	speed := p.speed(now, f.cfg.IdleHalfLife)
	perToken, perPair := p.costs(speed)
	ahead, _, _ := w.ahead(now, w.all(), speed*p.coef[termBase], perToken, perPair, f.cfg.BatchTokens, 1)
	return WorkerSnapshot{
		Worker: w.info(), Models: slices.Clone(w.spec.Models), Adapters: slices.Clone(w.spec.Adapters),
		Ready: w.ready, Reason: w.reason, Retired: w.retired, Trial: w.trial, Added: w.added,
		InFlight: w.inFlight(), Prefilling: w.prefilling,
		Ahead:        int(ahead),
		Coefficients: p.coef.coefficients(), Speed: speed, Trained: p.trained,
		ErrorP50: math.Exp(p.median), ErrorP90: math.Exp(p.upper),
		Load: w.seen[0].load, LoadObserved: w.seen[0].at,
		Picks: w.picks, FirstTokens: w.firstTokens, Failures: w.failures,
	}
}

// Predictions returns the recent picks, oldest first.
func (f *Fleet) Predictions() []PredictionRecord {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.ring.copy()
}

// Stats returns the fleet's totals.
func (f *Fleet) Stats() Stats {
	f.mu.Lock()
	st := f.stats
	st.ErrorP50, st.ErrorP90 = f.errors.quantiles()
	st.Speculative = f.soon.keys
	st.InFlight = f.inFlight
	var views []*view
	for _, w := range f.workers {
		if !w.retired {
			st.Workers++
		}
		if w.ready {
			st.ReadyWorkers++
		}
		views = append(views, w.views...)
	}
	f.mu.Unlock()

	st.Keys, st.Bytes = f.idx.keys(), f.idx.bytes()
	for _, v := range views {
		s := v.snapshot()
		st.Blocks += s.GPU + s.CPU + s.Disk
		st.Held += s.Held
		st.Bytes += v.bytes()
	}
	return st
}
