package simworker

import (
	"net/http"
	"time"
)

// Stats is a snapshot of what a worker did and holds. Token and request
// counters only grow.
type Stats struct {
	// Seen is requests received on the generating routes, whatever became of
	// them. Open is how many of those still have a handler at work.
	Seen uint64
	Open int
	// Running and Waiting are engine requests: a choice or a prompt of a batch
	// each is one.
	Running, Waiting int
	// Finished counts engine requests by finished_reason: stop, length, abort,
	// error, repetition. The map is the caller's.
	Finished map[string]uint64
	// Aborted is Finished["abort"]: requests whose client left.
	Aborted uint64
	// PromptComputed and PromptCached are prompt tokens by source.
	PromptComputed, PromptCached uint64
	// GenerationTokens counts generated tokens.
	GenerationTokens uint64
	// Preemptions counts requests that lost their blocks to another.
	Preemptions uint64
	// BlocksHeld is blocks of running requests, BlocksCached those that can be
	// found by the prefix cache, held or not; BlocksTotal is usable blocks.
	BlocksHeld, BlocksCached, BlocksTotal int
	// Steps counts scheduler steps, Batches the event batches published.
	Steps, Batches uint64
}

// ReceivedRequest is one request as it came in.
type ReceivedRequest struct {
	Time   time.Time
	Method string
	Path   string
	Header http.Header
	Body   []byte
}

// Account is what one request came to, by the worker's own count.
type Account struct {
	// RequestID is the X-Request-Id that it came with, or empty.
	RequestID string
	// Prompt, Cached and Output are the tokens of its usage: of all choices, as
	// far as they were generated when it ended.
	Prompt, Cached, Output int
	// Whole says that the answer was written to its end. Whether it arrived, a
	// worker doesn't know.
	Whole bool
}
