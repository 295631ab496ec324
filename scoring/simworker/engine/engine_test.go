package engine

import (
	"slices"
	"testing"
	"time"
)

// epoch is where virtual time begins.
var epoch = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// testConfig is the recorded worker: blocks of 32, 512 of them, 1,024 tokens a
// step.
func testConfig() Config {
	return Config{
		BlockSize: 32, Blocks: 512, MaxModelLen: 8192, MaxSeqs: 8, BatchTokens: 1024, Vocab: 1000, Seed: 7,
		Timing: Timing{
			Step: 10 * time.Millisecond, PrefillToken: 100 * time.Microsecond, DecodeSeq: time.Millisecond,
			Context: 2 * time.Millisecond, Attention: 50 * time.Millisecond,
		},
	}
}

// run is an engine in virtual time.
type run struct {
	t      *testing.T
	e      *Engine
	now    time.Time
	tokens map[ID][]uint32
	first  map[ID]time.Duration // since it was added
	ended  map[ID]*Summary
	steps  []Step
	events [][]Event // by step that had any
}

func newRun(t *testing.T, cfg Config) *run {
	t.Helper()
	e, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return &run{t: t, e: e, now: epoch, tokens: map[ID][]uint32{}, first: map[ID]time.Duration{}, ended: map[ID]*Summary{}}
}

func (r *run) add(req Request) ID {
	r.t.Helper()
	id, err := r.e.Add(r.now, req)
	if err != nil {
		r.t.Fatal(err)
	}
	return id
}

// step runs one step and returns false if there was nothing to do.
func (r *run) step() bool {
	st, ok := r.e.Begin(r.now)
	if !ok {
		return false
	}
	r.now = r.now.Add(st.Duration)
	r.steps = append(r.steps, st)
	r.end()
	return true
}

func (r *run) end() {
	res := r.e.End(r.now)
	for _, o := range res.Outputs {
		r.tokens[o.ID] = append(r.tokens[o.ID], o.Token)
		if o.First {
			r.first[o.ID] = o.Wait
		}
		if o.Finish != 0 {
			r.ended[o.ID] = o.Summary
		}
	}
	if len(res.Events) > 0 {
		r.events = append(r.events, res.Events)
	}
}

// drain steps until nothing is left.
func (r *run) drain() {
	for r.step() {
	}
	if !r.e.Idle() {
		r.t.Fatal("engine has requests left and no step to take")
	}
}

// serve runs one request to its end.
func (r *run) serve(req Request) *Summary {
	r.t.Helper()
	id := r.add(req)
	r.drain()
	return r.ended[id]
}

// prompt returns n tokens that differ for each tag.
func prompt(tag, n int) []uint32 {
	p := make([]uint32, n)
	for i := range p {
		p[i] = uint32(tag*100_000 + i)
	}
	return p
}

func TestChunkedPrefillTakesTheTimeOfItsSteps(t *testing.T) {
	r := newRun(t, testConfig())
	id := r.add(Request{Prompt: prompt(1, 1208), MaxTokens: 3})
	r.drain()

	// 1,024 tokens with nothing before them, then 184 after 1,024.
	first := 10*time.Millisecond + 1024*100*time.Microsecond + time.Duration(50e6*float64(1024*1024/2)/1e6)
	second := 10*time.Millisecond + 184*100*time.Microsecond + time.Duration(50e6*float64(184*1024+184*184/2)/1e6)
	if got := r.first[id]; got.Round(time.Microsecond) != (first + second).Round(time.Microsecond) {
		t.Errorf("first token after %v, want %v + %v", got, first, second)
	}
	want := []Step{{Prefill: 1024}, {Prefill: 184}, {Decode: 1}, {Decode: 1}}
	for i, s := range r.steps {
		if s.Prefill != want[i].Prefill || s.Decode != want[i].Decode {
			t.Errorf("step %d: prefill %d decode %d, want %d and %d", i, s.Prefill, s.Decode, want[i].Prefill, want[i].Decode)
		}
	}
	if len(r.steps) != len(want) {
		t.Errorf("%d steps, want %d", len(r.steps), len(want))
	}
	decode := 10*time.Millisecond + time.Millisecond + time.Duration(2e6*1208/1e3)
	if got := r.steps[2].Duration; got != decode {
		t.Errorf("first decode step takes %v, want %v", got, decode)
	}
}

func TestCachedPrefixIsNotComputedAgain(t *testing.T) {
	r := newRun(t, testConfig())
	cold := r.serve(Request{Prompt: prompt(1, 1208), MaxTokens: 1})
	warm := r.serve(Request{Prompt: prompt(1, 1208), MaxTokens: 1})
	if cold.Cached != 0 || warm.Cached != 37*32 {
		t.Errorf("cached %d then %d tokens, want 0 and %d", cold.Cached, warm.Cached, 37*32)
	}
	if c, w := cold.FirstToken.Sub(cold.Arrived), warm.FirstToken.Sub(warm.Arrived); w*5 > c {
		t.Errorf("first token after %v cold and %v warm, want warm well below", c, w)
	}
	if n := len(r.events); n != 2 {
		t.Errorf("%d batches of events, want 2: a full hit publishes nothing", n)
	}
}

func TestHitStopsShortOfTheLastToken(t *testing.T) {
	r := newRun(t, testConfig())
	r.serve(Request{Prompt: prompt(1, 64), MaxTokens: 1})
	warm := r.serve(Request{Prompt: prompt(1, 64), MaxTokens: 1})
	if warm.Cached != 32 {
		t.Errorf("a prompt of two full blocks found %d tokens, want 32: its last token must be computed", warm.Cached)
	}
	// The second block now exists twice: stored twice, and removed twice later.
	last := r.events[1][0]
	if last.Kind != Stored || last.Hashes[0] != r.events[0][0].Hashes[1] {
		t.Errorf("second batch is %+v, want the second block stored again", last)
	}
	if got := r.e.Stats().BlocksCached; got != 3 {
		t.Errorf("%d blocks cached, want 3", got)
	}
}

func TestRunningRequestsGoBeforeWaitingOnes(t *testing.T) {
	r := newRun(t, testConfig())
	a := r.add(Request{Prompt: prompt(1, 100), MaxTokens: 50})
	r.step()
	b := r.add(Request{Prompt: prompt(2, 3000), MaxTokens: 1})
	c := r.add(Request{Prompt: prompt(3, 10), MaxTokens: 1})
	for range 3 {
		r.step()
	}
	// The running sequence decodes in every step, the rest of the budget is
	// prefill in order of arrival.
	for i, want := range []Step{{Prefill: 1023, Decode: 1}, {Prefill: 1023, Decode: 1}, {Prefill: 954 + 10, Decode: 1}} {
		got := r.steps[1+i]
		if got.Prefill != want.Prefill || got.Decode != want.Decode {
			t.Errorf("step %d: prefill %d decode %d, want %d and %d", i+1, got.Prefill, got.Decode, want.Prefill, want.Decode)
		}
	}
	if len(r.tokens[a]) != 4 || len(r.tokens[b]) != 1 || len(r.tokens[c]) != 1 {
		t.Errorf("tokens %d, %d, %d; want 4, 1, 1", len(r.tokens[a]), len(r.tokens[b]), len(r.tokens[c]))
	}
}

func TestMaxSeqsHoldsRequestsBack(t *testing.T) {
	cfg := testConfig()
	cfg.MaxSeqs = 2
	r := newRun(t, cfg)
	for i := range 5 {
		r.add(Request{Prompt: prompt(i+1, 20), MaxTokens: 4})
	}
	r.step()
	if s := r.e.Stats(); s.Running != 2 || s.Waiting != 3 {
		t.Errorf("running %d, waiting %d; want 2 and 3", s.Running, s.Waiting)
	}
	r.drain()
	if s := r.e.Stats(); s.Finished[Length] != 5 || s.BlocksHeld != 0 {
		t.Errorf("finished %d, held %d; want 5 and 0", s.Finished[Length], s.BlocksHeld)
	}
}

func TestEvictionTakesTheLeafFirst(t *testing.T) {
	cfg := testConfig()
	cfg.Blocks, cfg.MaxModelLen = 12, 330
	r := newRun(t, cfg)
	r.serve(Request{Prompt: prompt(1, 200), MaxTokens: 1}) // 7 blocks, 6 of them full
	chain := r.events[0][0].Hashes
	r.events = nil
	r.serve(Request{Prompt: prompt(2, 250), MaxTokens: 1}) // 8 blocks, 5 without content are free

	got := r.events[0]
	if len(got) != 4 {
		t.Fatalf("%d events, want three removals and a store", len(got))
	}
	for i := range 3 {
		if got[i].Kind != Removed || len(got[i].Hashes) != 1 || got[i].Hashes[0] != chain[5-i] {
			t.Errorf("event %d is not the removal of block %d of the old chain", i, 5-i)
		}
	}
	if got[3].Kind != Stored || len(got[3].Hashes) != 7 || got[3].Parent != nil {
		t.Errorf("last event %+v, want the store of seven blocks", got[3])
	}
	if warm := r.serve(Request{Prompt: prompt(1, 200), MaxTokens: 1}); warm.Cached != 96 {
		t.Errorf("%d tokens of the old chain left, want 96", warm.Cached)
	}
}

func TestGeneratedTokensBecomeBlocks(t *testing.T) {
	r := newRun(t, testConfig())
	id := r.add(Request{Prompt: prompt(1, 30), MaxTokens: 40})
	r.drain()
	full := slices.Concat(prompt(1, 30), r.tokens[id])
	// The last token drawn is never computed: 69 tokens fill two blocks.
	if len(r.events) != 2 || !slices.Equal(r.events[1][0].Tokens, full[32:64]) {
		t.Fatalf("%d batches, want one for each of two blocks of prompt and generated tokens", len(r.events))
	}
	if *r.events[1][0].Parent != r.events[0][0].Hashes[0] {
		t.Error("the second block's parent is not the first block")
	}
	next := r.serve(Request{Prompt: append(full, 1, 2, 3), MaxTokens: 1})
	if next.Cached != 64 {
		t.Errorf("the next turn found %d tokens, want 64", next.Cached)
	}
}

func TestSaltAndLoRAKeepChainsApart(t *testing.T) {
	r := newRun(t, testConfig())
	variants := []Request{{}, {Salt: "a"}, {Salt: "b"}, {LoRA: "a"}, {LoRA: "a", Salt: "a"}}
	seen := map[Hash]int{}
	for i, v := range variants {
		v.Prompt, v.MaxTokens = prompt(1, 100), 1
		if s := r.serve(v); s.Cached != 0 {
			t.Errorf("variant %d found %d tokens of another", i, s.Cached)
		}
		for _, h := range r.events[len(r.events)-1][0].Hashes {
			if j, dup := seen[h]; dup {
				t.Errorf("variants %d and %d share a hash", i, j)
			}
			seen[h] = i
		}
		if s := r.serve(v); s.Cached != 96 {
			t.Errorf("variant %d found %d of its own tokens, want 96", i, s.Cached)
		}
	}
}

func TestResetIsPublishedWithTheNextStep(t *testing.T) {
	r := newRun(t, testConfig())
	id := r.add(Request{Prompt: prompt(1, 100), MaxTokens: 5})
	r.step()
	if r.e.Reset() {
		t.Error("reset succeeds while a request runs")
	}
	r.drain()
	if len(r.tokens[id]) != 5 || !r.e.Reset() {
		t.Fatal("reset fails on an idle engine")
	}
	if _, ok := r.e.Begin(r.now); ok {
		t.Fatal("an idle engine takes a step")
	}
	r.events = nil
	r.serve(Request{Prompt: prompt(1, 10), MaxTokens: 1})
	if len(r.events) != 1 || len(r.events[0]) != 1 || r.events[0][0].Kind != Cleared {
		t.Errorf("events %+v, want a clear alone", r.events)
	}
	if s := r.serve(Request{Prompt: prompt(1, 100), MaxTokens: 1}); s.Cached != 0 {
		t.Errorf("%d tokens survived the reset", s.Cached)
	}
}

func TestReportCachedPublishesAHitAgain(t *testing.T) {
	r := newRun(t, testConfig())
	r.serve(Request{Prompt: prompt(1, 100), MaxTokens: 1})
	r.events = nil
	r.serve(Request{Prompt: prompt(1, 100), MaxTokens: 1, ReportCached: true})
	if len(r.events) != 1 || len(r.events[0][0].Hashes) != 3 || r.events[0][0].Parent != nil {
		t.Errorf("events %+v, want the three cached blocks again", r.events)
	}
}

func TestPreemptionRecomputesTheNewest(t *testing.T) {
	serve := func(blocks int) (*run, []ID) {
		cfg := testConfig()
		cfg.Blocks, cfg.MaxModelLen = blocks, 320
		r := newRun(t, cfg)
		var ids []ID
		for i := range 3 {
			ids = append(ids, r.add(Request{Prompt: prompt(i+1, 100), MaxTokens: 150}))
		}
		r.drain()
		return r, ids
	}
	ample, a := serve(100)
	tight, b := serve(14) // 13 usable; three requests end up with 8 each
	if n := tight.e.Stats().Preemptions; n == 0 {
		t.Fatal("no preemption although blocks ran out")
	}
	if ample.e.Stats().Preemptions != 0 {
		t.Error("preemption although blocks were ample")
	}
	for i := range a {
		if !slices.Equal(ample.tokens[a[i]], tight.tokens[b[i]]) {
			t.Errorf("request %d: preemption changed the text", i)
		}
	}
	if s := tight.ended[b[0]]; s.Preemptions != 0 {
		t.Errorf("the oldest request was preempted %d times", s.Preemptions)
	}
	if s := tight.e.Stats(); s.BlocksHeld != 0 || s.Prompt != 300 {
		t.Errorf("held %d blocks, counted %d prompt tokens; want 0 and 300", s.BlocksHeld, s.Prompt)
	}
}

func TestFinishDuringAStep(t *testing.T) {
	r := newRun(t, testConfig())
	a := r.add(Request{Prompt: prompt(1, 100), MaxTokens: 10})
	b := r.add(Request{Prompt: prompt(2, 100), MaxTokens: 2})
	w := r.add(Request{Prompt: prompt(3, 2000), MaxTokens: 2})
	if _, ok := r.e.Begin(r.now); !ok {
		t.Fatal("no step")
	}
	if s := r.e.Finish(r.now, a, Abort); s == nil || s.Reason != Abort || s.Generated != 0 {
		t.Errorf("summary %+v, want an abort without tokens", s)
	}
	if s := r.e.Stats(); s.Running != 2 || s.Finished[Abort] != 1 {
		t.Errorf("running %d, aborted %d; want 2 and 1 at once", s.Running, s.Finished[Abort])
	}
	if r.e.Finish(r.now, a, Abort) != nil {
		t.Error("a request ends twice")
	}
	r.end()
	if len(r.tokens[a]) != 0 || len(r.tokens[b]) != 1 {
		t.Errorf("tokens %d and %d, want 0 and 1", len(r.tokens[a]), len(r.tokens[b]))
	}
	r.e.Finish(r.now, w, Abort)
	r.drain()
	if s := r.e.Stats(); s.BlocksHeld != 0 || s.Finished[Abort] != 2 || s.Finished[Length] != 1 {
		t.Errorf("%+v: want nothing held, two aborts, one end", s)
	}
}

func TestTextsEndByThemselves(t *testing.T) {
	cfg := testConfig()
	cfg.OutputTokens = 20
	r := newRun(t, cfg)
	for i := range 30 {
		s := r.serve(Request{Prompt: prompt(i+1, 10), MaxTokens: 1000})
		if s.Reason != Stop || s.Generated < 10 || s.Generated > 30 {
			t.Errorf("text %d: %v after %d tokens, want stop after 10 to 30", i, s.Reason, s.Generated)
		}
		if s := r.serve(Request{Prompt: prompt(i+1, 10), MaxTokens: 40, IgnoreEOS: true}); s.Reason != Length || s.Generated != 40 {
			t.Errorf("text %d with ignore_eos: %v after %d tokens, want length after 40", i, s.Reason, s.Generated)
		}
		if s := r.serve(Request{Prompt: prompt(i+1, 10), MaxTokens: 1000, MinTokens: 35}); s.Generated != 35 {
			t.Errorf("text %d with min_tokens: %d tokens, want 35", i, s.Generated)
		}
	}
	if s := r.serve(Request{Prompt: prompt(1, 8000), MaxTokens: 1000, IgnoreEOS: true}); s.Reason != Length || s.Generated != 192 {
		t.Errorf("%v after %d tokens, want length after the 192 that MaxModelLen leaves", s.Reason, s.Generated)
	}
}

func TestNoiseIsTheSameForTheSameRequest(t *testing.T) {
	text := func(seed uint64, req Request) []uint32 {
		cfg := testConfig()
		cfg.Seed = seed
		r := newRun(t, cfg)
		req.MaxTokens = 20
		id := r.add(req)
		r.drain()
		return r.tokens[id]
	}
	base := text(1, Request{Prompt: prompt(1, 10)})
	if !slices.Equal(base, text(1, Request{Prompt: prompt(1, 10)})) {
		t.Error("the same request gives another text")
	}
	for name, other := range map[string][]uint32{
		"engine seed":  text(2, Request{Prompt: prompt(1, 10)}),
		"request seed": text(1, Request{Prompt: prompt(1, 10), Seed: 5}),
		"choice":       text(1, Request{Prompt: prompt(1, 10), Choice: 1}),
		"prompt":       text(1, Request{Prompt: prompt(1, 11)}),
	} {
		if slices.Equal(base, other) {
			t.Errorf("another %s gives the same text", name)
		}
	}
	for _, tok := range base {
		if tok >= 1000 {
			t.Errorf("token %d lies outside the vocabulary", tok)
		}
	}
}

func TestAddRefuses(t *testing.T) {
	r := newRun(t, testConfig())
	for name, req := range map[string]Request{
		"empty prompt":  {MaxTokens: 1},
		"no room":       {Prompt: prompt(1, 8192), MaxTokens: 1},
		"no max tokens": {Prompt: prompt(1, 5)},
	} {
		if _, err := r.e.Add(r.now, req); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
	if !r.e.Idle() {
		t.Error("a refused request stays")
	}
}

func TestConfigValidate(t *testing.T) {
	f := func(want bool, change func(*Config)) {
		t.Helper()
		cfg := testConfig()
		change(&cfg)
		if _, err := New(cfg); (err == nil) != want {
			t.Errorf("New: %v", err)
		}
	}
	f(true, func(*Config) {})
	f(false, func(c *Config) { c.BlockSize = 0 })
	f(false, func(c *Config) { c.Blocks = 256 }) // 255 usable hold 8,160 tokens
	f(true, func(c *Config) { c.Blocks = 257 })
	f(false, func(c *Config) { c.BatchTokens = 0 })
	f(false, func(c *Config) { c.OutputTokens = -1 })
	f(false, func(c *Config) { c.Timing.Step = -1 })
	f(false, func(c *Config) { c.Timing.Jitter = 1 })
}

func TestJitterStaysInBounds(t *testing.T) {
	cfg := testConfig()
	plain := newRun(t, cfg)
	cfg.Timing.Jitter = 0.2
	jittery := newRun(t, cfg)
	for _, r := range []*run{plain, jittery} {
		r.serve(Request{Prompt: prompt(1, 500), MaxTokens: 100})
	}
	differ := 0
	for i := range plain.steps {
		p, j := float64(plain.steps[i].Duration), float64(jittery.steps[i].Duration)
		if j < p*0.79 || j > p*1.21 {
			t.Errorf("step %d: %v with jitter 0.2, %v without", i, jittery.steps[i].Duration, plain.steps[i].Duration)
		}
		if j != p {
			differ++
		}
	}
	if differ < 90 {
		t.Errorf("only %d of %d steps vary", differ, len(plain.steps))
	}
}
