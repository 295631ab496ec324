package scoring

import "time"

// WorkerSnapshot is the state of one worker at one moment.
type WorkerSnapshot struct {
	Worker WorkerInfo
	Models []string
	// Ready says whether the worker may be picked; Reason says why not.
	Ready  bool
	Reason string
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

// ViewSnapshot is the state of the view of one rank.
type ViewSnapshot struct {
	Rank  int
	State ViewState
	// BlockSize is in tokens; Capacity is in blocks, 0 when unknown.
	BlockSize, Capacity int
	// GPU, CPU and Disk count the blocks held in each tier.
	GPU, CPU, Disk int
	// Held counts blocks kept aside until their parent is known.
	Held int
}

// PredictionRecord is one recent pick with what it was decided on.
type PredictionRecord struct {
	Seq    uint64
	Picked time.Time
	Model  string
	// Prompt is the prompt's length in tokens; TokensKnown is false when it was
	// the caller's estimate.
	Prompt      int
	TokensKnown bool
	Winner      WorkerID
	// Candidates holds every eligible worker's prediction.
	Candidates []Prediction
	// Outcome is 0 until the request is done. Actual is 0 until the first token.
	Outcome Outcome
	Actual  time.Duration
}

// Prediction is one candidate's predicted TTFT and its parts.
type Prediction struct {
	Worker WorkerID
	// Total is the median prediction, P90 the time that nine in ten stay below.
	Total, P90 time.Duration
	// Base, Wait and Prefill sum to the prediction before its median correction.
	Base, Wait, Prefill time.Duration
	// Cached is the tokens believed to be in the worker's cache, Assumed those
	// that a worker with an unknown view was credited with on top.
	Cached, Assumed int
	// Ahead is the uncached tokens that must be prefilled first, Running the
	// sequences decoded meanwhile, those of other senders included.
	Ahead, Running int
}

// Stats are a fleet's totals since it was made, and its present size.
type Stats struct {
	Picks, NoWorker, NotReady int64
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
	// Workers and ReadyWorkers count the fleet.
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
