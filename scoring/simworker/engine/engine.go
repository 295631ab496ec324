package engine

import (
	"fmt"
	"slices"
	"time"
)

// Config sizes an engine.
type Config struct {
	// BlockSize is tokens a block; Blocks their number, one of which stays
	// unused, as in vLLM.
	BlockSize, Blocks int
	// MaxModelLen bounds prompt plus generated tokens.
	MaxModelLen int
	// MaxSeqs bounds running requests, BatchTokens the tokens of one step.
	MaxSeqs, BatchTokens int
	// Priority takes waiting requests in the order of their priority, and of
	// arrival where that is equal, as vLLM does with its scheduling policy
	// "priority". Otherwise they are taken in order of arrival alone.
	Priority bool
	// OutputTokens is the mean length at which texts end by themselves, 0 for
	// never. A text's own length lies evenly between half and one and a half
	// times that.
	OutputTokens int
	// Vocab is the number of ids that text is drawn from.
	Vocab  int
	Timing Timing
	// Seed decides texts and their lengths, and with JitterSeed the jitter, so
	// that two engines may say the same at different speeds.
	Seed, JitterSeed uint64
}

// Validate reports the first field that no engine can run with.
func (c *Config) Validate() error {
	switch {
	case c.BlockSize < 1 || c.MaxModelLen < 2 || c.MaxSeqs < 1 || c.BatchTokens < 1 || c.Vocab < 1:
		return fmt.Errorf("engine: BlockSize %d, MaxSeqs %d, BatchTokens %d and Vocab %d must be at least 1, MaxModelLen %d at least 2",
			c.BlockSize, c.MaxSeqs, c.BatchTokens, c.Vocab, c.MaxModelLen)
	case (c.Blocks-1)*c.BlockSize < c.MaxModelLen:
		return fmt.Errorf("engine: %d usable blocks of %d tokens cannot hold one request of MaxModelLen %d",
			c.Blocks-1, c.BlockSize, c.MaxModelLen)
	case c.OutputTokens < 0:
		return fmt.Errorf("engine: OutputTokens is %d; it must not be negative", c.OutputTokens)
	}
	return c.Timing.Validate()
}

// Engine schedules requests in steps. A step is Begin, then the time it
// takes, then End; requests may be added and aborted in between.
type Engine struct {
	cfg     Config
	pool    *pool
	waiting []*sequence // in the order in which they are taken
	running []*sequence // oldest first
	byID    map[ID]*sequence
	batch   []*sequence // of the step under way
	stepped bool        // a step is under way
	left    int         // tokens of its budget that nobody took, 0 if nobody else could
	factor  float64     // of its duration, by jitter
	lastID  ID
	jitter  noise
	outputs []Output
	hits    []int32   // scratch
	future  []decoder // scratch
	counters
}

// New returns an idle engine with an empty cache.
func New(cfg Config) (*Engine, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	return &Engine{
		cfg:    cfg,
		pool:   newPool(cfg.Blocks - 1),
		byID:   make(map[ID]*sequence),
		jitter: noise(cfg.Seed ^ cfg.JitterSeed ^ 0x6a697474),
	}, nil
}

// Add queues a request. It fails if the prompt is empty or leaves no room for
// a single token.
func (e *Engine) Add(now time.Time, r Request) (ID, error) {
	p, err := e.cfg.prepare(r, min(r.MaxTokens, drawRoom))
	if err != nil {
		return 0, err
	}
	return e.queue(now, p, p.tokens), nil
}

// queue adds a sequence whose tokens are p's, with room to grow if they have
// it.
func (e *Engine) queue(now time.Time, p *Prepared, tokens []uint32) ID {
	e.lastID++
	s := &sequence{
		id: e.lastID, req: p.req, arrived: now,
		hasher: hasher{lora: p.req.LoRA, salt: p.req.Salt},
		tokens: tokens, hashes: p.hashes, noise: p.noise,
	}
	if n := e.cfg.OutputTokens; n > 0 && !p.req.IgnoreEOS {
		length := s.noise // a copy: where a text ends does not change its words
		s.natural = max(1, p.req.MinTokens, n/2+length.below(n+1))
	}
	e.byID[s.id] = s
	if e.cfg.Priority {
		e.line(s)
	} else {
		e.waiting = append(e.waiting, s)
	}
	return s.id
}

// Finish ends a request early: Abort for a client that left, Stop for a stop
// string. Its blocks are free at once. It returns nil if the request has ended
// already.
func (e *Engine) Finish(now time.Time, id ID, why Reason) *Summary {
	s := e.byID[id]
	if s == nil {
		return nil
	}
	return e.end(now, s, why)
}

// end takes s out of the engine.
func (e *Engine) end(now time.Time, s *sequence, why Reason) *Summary {
	delete(e.byID, s.id)
	is := func(o *sequence) bool { return o == s }
	if s.running {
		e.running = slices.DeleteFunc(e.running, is)
		e.pool.release(s.blocks)
	} else {
		e.waiting = slices.DeleteFunc(e.waiting, is)
	}
	s.running, s.blocks = false, nil
	e.finished[why]++
	return s.summary(now, why)
}

// Reset empties the prefix cache. It does nothing and returns false while any
// block is held. The event comes with the next step's.
func (e *Engine) Reset() bool { return e.pool.reset() }

// Idle says that no request is left.
func (e *Engine) Idle() bool { return len(e.byID) == 0 }

// Step describes a step under way.
type Step struct {
	// Duration is how long it takes.
	Duration time.Duration
	// Prefill and Decode are tokens computed of each kind.
	Prefill, Decode int
}

// Begin schedules the next step. It returns false if there is nothing to do.
// A step under way must be ended first.
func (e *Engine) Begin(now time.Time) (Step, bool) {
	if e.stepped {
		panic("BUG: Begin before the step under way was ended")
	}
	e.batch = e.batch[:0]
	budget, preempted := e.cfg.BatchTokens, true
	// With priorities the request to be served first may be the one to give way,
	// and its step then has nothing: the next, without it, begins at once.
	for preempted && len(e.batch) == 0 {
		if preempted = e.scheduleRunning(&budget); !preempted {
			e.scheduleWaiting(now, &budget)
		}
	}
	if len(e.batch) == 0 {
		return Step{}, false
	}
	e.stepped = true
	e.steps++
	e.left = 0
	if !preempted && len(e.waiting) == 0 && len(e.running) < e.cfg.MaxSeqs {
		e.left = budget
	}
	e.factor = e.nextFactor(&e.jitter)
	return e.current(), true
}

// current describes the step under way.
func (e *Engine) current() Step {
	l := e.load()
	return Step{Duration: e.duration(l, e.factor), Prefill: l.prefill, Decode: l.decode}
}

// duration is what a step of load l takes.
func (e *Engine) duration(l load, factor float64) time.Duration {
	d := e.cfg.Timing.duration(l)
	if factor == 1 {
		return d
	}
	return time.Duration(float64(d) * factor)
}

// load adds up the work of the batch.
func (e *Engine) load() load {
	var l load
	for _, s := range e.batch {
		n, before := s.scheduled, s.computed
		if !s.prefilling() {
			l.decode++
			l.context += int64(before)
			continue
		}
		l.prefill += n
		l.pairs += int64(n)*int64(before) + int64(n)*int64(n)/2
	}
	return l
}

// scheduleRunning gives each running request its next tokens, oldest first.
// When blocks run out one of them is preempted: it loses its blocks and waits
// again. It says whether that happened.
func (e *Engine) scheduleRunning(budget *int) (preempted bool) {
	for i := 0; i < len(e.running) && *budget > 0; i++ {
		s := e.running[i]
		n := min(s.pending(), *budget)
		for !e.grow(s, n) {
			victim := e.victim()
			if victim < i {
				i--
			}
			lost := e.running[victim]
			e.preempt(victim, budget)
			preempted = true
			if lost == s {
				return true
			}
		}
		e.include(s, n, budget)
	}
	return preempted
}

// victim is the index of the running request to preempt: the newest, with
// priorities the least urgent and of these the last to arrive.
func (e *Engine) victim() int {
	last := len(e.running) - 1
	if !e.cfg.Priority {
		return last
	}
	for i := last - 1; i >= 0; i-- {
		if e.running[last].before(e.running[i]) {
			last = i
		}
	}
	return last
}

// preempt takes running request i's blocks, and what the step was to compute of
// it, and lets it wait: in front, with priorities in its place.
func (e *Engine) preempt(i int, budget *int) {
	s := e.running[i]
	e.running = slices.Delete(e.running, i, i+1)
	if at := slices.Index(e.batch, s); at >= 0 {
		e.batch = slices.Delete(e.batch, at, at+1)
		*budget += s.scheduled
	}
	e.pool.release(s.blocks)
	s.running, s.blocks, s.computed, s.stored, s.scheduled = false, nil, 0, 0, 0
	s.preemptions++
	e.preemptions++
	if e.cfg.Priority {
		e.line(s)
	} else {
		e.waiting = slices.Insert(e.waiting, 0, s)
	}
}

// line lets s wait in its place by priority.
func (e *Engine) line(s *sequence) {
	at, _ := slices.BinarySearchFunc(e.waiting, s, func(o, s *sequence) int {
		if o.before(s) {
			return -1
		}
		return 1
	})
	e.waiting = slices.Insert(e.waiting, at, s)
}

// scheduleWaiting admits requests in their order while there is budget, a free
// place and enough blocks for the next piece.
func (e *Engine) scheduleWaiting(now time.Time, budget *int) {
	for len(e.waiting) > 0 && *budget > 0 && len(e.running) < e.cfg.MaxSeqs {
		s := e.waiting[0]
		// The last token is always computed, as its output is needed.
		limit := (len(s.tokens) - 1) / e.cfg.BlockSize
		e.hits = e.pool.lookup(e.hits[:0], s.hashes[:min(limit, len(s.hashes))])
		cached := len(e.hits) * e.cfg.BlockSize
		n := min(len(s.tokens)-cached, *budget)
		need := e.blocksFor(cached+n) - len(e.hits)
		if need+e.pool.freeAmong(e.hits) > e.pool.free {
			return
		}
		e.waiting[0] = nil
		e.waiting = e.waiting[1:]
		e.admit(now, s, cached)
		if !e.grow(s, n) {
			panic("BUG: blocks were counted as free and are not")
		}
		e.include(s, n, budget)
	}
}

// admit makes s a running request that holds the cached blocks in e.hits.
func (e *Engine) admit(now time.Time, s *sequence, cached int) {
	e.pool.take(e.hits)
	s.blocks = append(s.blocks[:0], e.hits...)
	s.computed, s.stored = cached, len(e.hits)
	s.running = true
	e.running = append(e.running, s)
	if s.firstScheduled.IsZero() {
		s.firstScheduled, s.hit = now, cached
		e.queried += uint64(len(s.tokens))
		e.cachedHits += uint64(cached)
	}
	if s.req.ReportCached && len(e.hits) > 0 {
		e.report(s, 0, len(e.hits))
	}
}

func (e *Engine) include(s *sequence, n int, budget *int) {
	s.scheduled = n
	*budget -= n
	e.batch = append(e.batch, s)
}

func (e *Engine) blocksFor(tokens int) int {
	return (tokens + e.cfg.BlockSize - 1) / e.cfg.BlockSize
}

// grow makes room for n more tokens of s and puts the blocks that they fill
// into the prefix cache. It returns false, and changes nothing, if blocks lack.
func (e *Engine) grow(s *sequence, n int) bool {
	need := e.blocksFor(s.computed+n) - len(s.blocks)
	if need > e.pool.free {
		return false
	}
	if need > 0 {
		s.blocks = e.pool.alloc(s.blocks, need)
	}
	if full := (s.computed + n) / e.cfg.BlockSize; full > s.stored {
		e.pool.store(s.blocks, s.hashes, s.stored, full)
		e.report(s, s.stored, full)
		s.stored = full
	}
	return true
}

// report publishes blocks [from, to) of s as stored.
func (e *Engine) report(s *sequence, from, to int) {
	bs := e.cfg.BlockSize
	ev := Event{
		Kind:   Stored,
		Hashes: s.hashes[from:to:to],
		Tokens: s.tokens[from*bs : to*bs : to*bs],
		First:  from, LoRA: s.req.LoRA, Salt: s.req.Salt,
	}
	if from > 0 {
		ev.Parent = &s.hashes[from-1]
	}
	e.pool.events = append(e.pool.events, ev)
}

// Result is what a step brought.
type Result struct {
	// Outputs are valid until the next End.
	Outputs []Output
	// Events belong to the caller. They are what happened since the last End,
	// so a Reset between steps comes with the next one.
	Events []Event
}

// End finishes the step under way: requests that reached the end of their
// tokens draw one more. Requests aborted since Begin get nothing.
func (e *Engine) End(now time.Time) Result {
	if !e.stepped {
		panic("BUG: End without a step under way")
	}
	e.stepped = false
	clear(e.outputs)
	e.outputs = e.outputs[:0]
	for i, s := range e.batch {
		e.batch[i] = nil
		if e.byID[s.id] != s {
			continue
		}
		s.computed += s.scheduled
		s.scheduled = 0
		if s.pending() == 0 {
			e.outputs = append(e.outputs, e.draw(now, s))
		}
	}
	return Result{Outputs: e.outputs, Events: e.pool.takeEvents()}
}

// draw appends the next token to s and ends it if that was the last.
func (e *Engine) draw(now time.Time, s *sequence) Output {
	out := Output{ID: s.id, Cached: s.hit, First: s.generated() == 0, Wait: now.Sub(s.last)}
	if out.First {
		s.firstToken = now
		out.Wait = now.Sub(s.arrived)
		e.prompt += uint64(len(s.req.Prompt))
		e.promptCached += uint64(s.hit)
	}
	s.last = now
	out.Token = uint32(s.noise.below(e.cfg.Vocab))
	if len(s.tokens) == cap(s.tokens) {
		s.tokens = slices.Grow(s.tokens, min(max(1, s.req.MaxTokens-s.generated()), drawRoom))
	}
	s.tokens = append(s.tokens, out.Token)
	s.hashes = s.hasher.extend(s.hashes, s.tokens, e.cfg.BlockSize)
	e.generated++
	switch n := s.generated(); {
	case s.natural > 0 && n >= s.natural:
		out.Finish, out.EOS = Stop, true
	case n >= s.req.MaxTokens || len(s.tokens) >= e.cfg.MaxModelLen:
		out.Finish = Length
	}
	if out.Finish != 0 {
		out.Summary = e.end(now, s, out.Finish)
	}
	return out
}
