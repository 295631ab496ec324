package engine

import "time"

// ID names a request in one engine. It is never reused.
type ID uint64

// Reason is why a request ended. The zero value means it has not.
type Reason uint8

const (
	// Stop is a text that ended by itself or by a stop string.
	Stop Reason = iota + 1
	// Length is a text that reached its token limit.
	Length
	// Abort is a request whose client left.
	Abort
	// Error is a request that the engine gave up.
	Error
	// Repetition is a text cut because it repeats itself; noise never does.
	Repetition
)

// Reasons lists all reasons in the order in which the engine exports them.
var Reasons = [...]Reason{Stop, Length, Abort, Error, Repetition}

// String returns the engine's own word.
func (r Reason) String() string {
	switch r {
	case Stop:
		return "stop"
	case Length:
		return "length"
	case Abort:
		return "abort"
	case Error:
		return "error"
	case Repetition:
		return "repetition"
	}
	return ""
}

// Request is one text to generate.
type Request struct {
	// Prompt is the token ids. The engine copies it.
	Prompt []uint32
	// MaxTokens bounds the generated tokens; at least 1.
	MaxTokens int
	// IgnoreEOS keeps the text from ending by itself, MinTokens only before
	// that length.
	IgnoreEOS bool
	MinTokens int
	// Priority counts with [Config.Priority] alone: a lower one is taken earlier.
	Priority int64
	// Choice tells the texts of one prompt apart, Seed is the client's.
	Choice int
	Seed   uint64
	// Salt and LoRA keep cache chains apart.
	Salt, LoRA string
	// ReportCached publishes the blocks found in the cache again, as the real
	// engine does for kv_cache_report_mode "full".
	ReportCached bool
}

// Output is one token of one request.
type Output struct {
	ID    ID
	Token uint32
	// EOS is set if the token is the end of a text that ended by itself; it
	// has no text of its own.
	EOS bool
	// Cached is the prompt tokens that were found in the cache.
	Cached int
	// First is set on a request's first token. Wait is then the time since the
	// request was added, else the time since its last token.
	First bool
	Wait  time.Duration
	// Finish is set on the last token, and Summary with it.
	Finish  Reason
	Summary *Summary
}

// Summary is what a request was and cost, for latency histograms.
type Summary struct {
	ID ID
	// Prompt, Cached and Generated are tokens. Cached is what was found in the
	// prefix cache when the request was first scheduled.
	Prompt, Cached, Generated int
	// MaxTokens is the limit that was asked for.
	MaxTokens int
	// Preemptions counts how often it lost its blocks.
	Preemptions int
	Reason      Reason
	// Arrived, Scheduled, FirstToken, LastToken and Ended are moments; those
	// that did not come are zero.
	Arrived, Scheduled, FirstToken, LastToken, Ended time.Time
}

// sequence is a Request at work.
type sequence struct {
	id     ID
	req    Request
	tokens []uint32 // prompt, then generated; only ever appended to
	hashes []Hash   // of the full blocks of tokens
	hasher hasher
	blocks []int32

	computed  int // leading tokens whose KV is in blocks
	stored    int // leading blocks whose content is in the prefix cache
	scheduled int // tokens computed by the step under way
	hit       int // tokens found in the cache at first scheduling
	running   bool
	natural   int // length at which the text ends by itself; 0 for never
	noise     noise

	preemptions                               int
	arrived, firstScheduled, firstToken, last time.Time
}

// before says whether s is taken before o where priorities count.
func (s *sequence) before(o *sequence) bool {
	switch {
	case s.req.Priority != o.req.Priority:
		return s.req.Priority < o.req.Priority
	case !s.arrived.Equal(o.arrived):
		return s.arrived.Before(o.arrived)
	}
	return s.id < o.id
}

func (s *sequence) generated() int { return len(s.tokens) - len(s.req.Prompt) }

// pending returns the tokens that have to be computed before the next one
// can be drawn.
func (s *sequence) pending() int { return len(s.tokens) - s.computed }

// prefilling says whether the next step works on more than the last token
// drawn: a prompt, or a text computed again after a preemption.
func (s *sequence) prefilling() bool { return s.generated() == 0 || s.pending() > 1 }

func (s *sequence) summary(now time.Time, why Reason) *Summary {
	return &Summary{
		ID: s.id, Prompt: len(s.req.Prompt), Cached: s.hit, Generated: s.generated(),
		MaxTokens: s.req.MaxTokens, Preemptions: s.preemptions, Reason: why,
		Arrived: s.arrived, Scheduled: s.firstScheduled, FirstToken: s.firstToken,
		LastToken: s.last, Ended: now,
	}
}
