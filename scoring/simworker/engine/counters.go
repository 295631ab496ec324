package engine

// counters only grow.
type counters struct {
	steps        uint64
	queried      uint64 // prompt tokens looked up in the prefix cache
	cachedHits   uint64 // of those, found
	prompt       uint64 // prompt tokens of requests that drew a first token
	promptCached uint64
	generated    uint64
	preemptions  uint64
	finished     [Repetition + 1]uint64
}

// Stats is a snapshot of an engine.
type Stats struct {
	Running, Waiting int
	// BlocksHeld is held by running requests, BlocksCached have content that
	// can be found, held or not, BlocksTotal is how many there are.
	BlocksHeld, BlocksCached, BlocksTotal int
	Steps                                 uint64
	// Queried and Hits are the prefix cache's, in tokens, counted when a
	// request is first scheduled.
	Queried, Hits uint64
	// Prompt and PromptCached are prompt tokens of requests that got as far as
	// their first token.
	Prompt, PromptCached uint64
	Generated            uint64
	Preemptions          uint64
	// Finished is indexed by Reason.
	Finished [Repetition + 1]uint64
}

// Stats returns a snapshot.
func (e *Engine) Stats() Stats {
	return Stats{
		Running: len(e.running), Waiting: len(e.waiting),
		BlocksHeld: e.pool.held(), BlocksCached: e.pool.named, BlocksTotal: len(e.pool.blocks),
		Steps: e.steps, Queried: e.queried, Hits: e.cachedHits,
		Prompt: e.prompt, PromptCached: e.promptCached, Generated: e.generated,
		Preemptions: e.preemptions, Finished: e.finished,
	}
}

// Usage is the share of blocks held by running requests, 0 to 1.
func (s Stats) Usage() float64 {
	if s.BlocksTotal == 0 {
		return 0
	}
	return float64(s.BlocksHeld) / float64(s.BlocksTotal)
}
