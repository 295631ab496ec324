package engine

import (
	"math/rand/v2"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// driven is an engine whose steps follow each other in virtual time.
type driven struct {
	e    *Engine
	busy bool
	ends time.Time
}

// before runs all that happens before a request that arrives at now.
func (d *driven) before(now time.Time) {
	for d.busy && !d.ends.After(now) {
		d.e.End(d.ends)
		d.begin(d.ends)
	}
}

func (d *driven) begin(now time.Time) {
	st, ok := d.e.Begin(now)
	d.busy, d.ends = ok, now.Add(st.Duration)
}

func (d *driven) add(t *rapid.T, now time.Time, p *Prepared) ID {
	id, err := d.e.AddPrepared(now, p)
	if err != nil {
		t.Fatal(err)
	}
	if !d.busy {
		d.begin(now)
	}
	return id
}

// firstToken adds p to a copy and runs it until p's first token.
func (d *driven) firstToken(t *rapid.T, now time.Time, p *Prepared) time.Time {
	c := driven{d.e.Clone(), d.busy, d.ends}
	id := c.add(t, now, p)
	for c.busy {
		for _, o := range c.e.End(c.ends).Outputs {
			if o.ID == id {
				return c.ends
			}
		}
		c.begin(c.ends)
	}
	t.Fatal("no first token")
	return time.Time{}
}

func drawSmallConfig(t *rapid.T) Config {
	cfg := testConfig()
	cfg.BlockSize = rapid.IntRange(1, 5).Draw(t, "block size")
	cfg.MaxModelLen = rapid.IntRange(2, 80).Draw(t, "max model len")
	cfg.Blocks = 1 + (cfg.MaxModelLen+cfg.BlockSize-1)/cfg.BlockSize + rapid.IntRange(0, 60).Draw(t, "spare blocks")
	cfg.MaxSeqs = rapid.IntRange(1, 6).Draw(t, "max seqs")
	cfg.BatchTokens = rapid.IntRange(1, 60).Draw(t, "batch tokens")
	cfg.OutputTokens = rapid.IntRange(0, 8).Draw(t, "output tokens")
	cfg.Timing.Jitter = rapid.SampledFrom([]float64{0, 0.5}).Draw(t, "jitter")
	return cfg
}

// TestAheadAgreesWithSteps adds random requests at random times to an engine
// that is driven step by step and to one that runs ahead. The second one must
// know for every request, before it is added, what the first one would do.
func TestAheadAgreesWithSteps(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		cfg := drawSmallConfig(t)
		e, err := New(cfg)
		if err != nil {
			t.Fatal(err)
		}
		d := driven{e: e}
		a, err := NewAhead(cfg)
		if err != nil {
			t.Fatal(err)
		}
		now := epoch
		unit := cfg.Timing.Step
		for range rapid.IntRange(1, 30).Draw(t, "requests") {
			now = now.Add(unit * time.Duration(rapid.SampledFrom([]int{0, 0, 1, 2, 3, 40}).Draw(t, "gap")) / 2)
			p, err := cfg.Prepare(Request{
				Prompt:    prompt(rapid.IntRange(1, 3).Draw(t, "tag"), rapid.IntRange(1, cfg.MaxModelLen-1).Draw(t, "prompt")),
				MaxTokens: rapid.IntRange(1, 30).Draw(t, "max tokens"),
			})
			if err != nil {
				t.Fatal(err)
			}
			d.before(now)
			want := d.firstToken(t, now, p)
			got, err := a.FirstToken(now, p)
			if err != nil {
				t.Fatal(err)
			}
			if !got.Equal(want) {
				t.Fatalf("first token at %v, the engine itself gives it at %v", got.Sub(epoch), want.Sub(epoch))
			}
			if rapid.Bool().Draw(t, "send") {
				d.add(t, now, p)
				if err := a.Add(now, p); err != nil {
					t.Fatal(err)
				}
			}
		}
	})
}

// TestAheadCalculates makes sure that the common case needs no copy.
func TestAheadCalculates(t *testing.T) {
	cfg := testConfig()
	a, err := NewAhead(cfg)
	if err != nil {
		t.Fatal(err)
	}
	rng := rand.New(rand.NewPCG(1, 2))
	now, calculated := epoch, 0
	for i := range 200 {
		now = now.Add(time.Duration(rng.IntN(400)) * time.Millisecond)
		p, err := cfg.Prepare(Request{Prompt: prompt(rng.IntN(8), 100+rng.IntN(1000)), MaxTokens: 10})
		if err != nil {
			t.Fatal(err)
		}
		a.advance(now)
		if _, ok := a.work(now, p); ok {
			calculated++
		}
		if err := a.Add(now, p); err != nil {
			t.Fatalf("request %d: %v", i, err)
		}
	}
	if calculated < 190 {
		t.Errorf("%d of 200 first tokens were calculated, the others rehearsed", calculated)
	}
}

// TestCloneDisturbsNothing runs an engine beside one from which copies are made
// and run at random.
func TestCloneDisturbsNothing(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		cfg := drawSmallConfig(t)
		plain, err := New(cfg)
		if err != nil {
			t.Fatal(err)
		}
		cloned, err := New(cfg)
		if err != nil {
			t.Fatal(err)
		}
		one, two := driven{e: plain}, driven{e: cloned}
		now := epoch
		for i := range rapid.IntRange(1, 20).Draw(t, "requests") {
			now = now.Add(cfg.Timing.Step * time.Duration(rapid.IntRange(0, 6).Draw(t, "gap")) / 2)
			p, err := cfg.Prepare(Request{
				Prompt:    prompt(rapid.IntRange(1, 3).Draw(t, "tag"), rapid.IntRange(1, cfg.MaxModelLen-1).Draw(t, "prompt")),
				MaxTokens: rapid.IntRange(1, 30).Draw(t, "max tokens"),
			})
			if err != nil {
				t.Fatal(err)
			}
			one.before(now)
			two.before(now)
			if rapid.Bool().Draw(t, "clone") {
				two.firstToken(t, now, p)
				c := driven{two.e.Clone(), two.busy, two.ends}
				c.before(now.Add(time.Hour))
				if !c.e.Idle() {
					t.Fatal("a copy did not end what it was given")
				}
			}
			one.add(t, now, p)
			two.add(t, now, p)
			if one.e.Stats() != two.e.Stats() || one.ends != two.ends {
				t.Fatalf("request %d: %+v until %v, beside copies %+v until %v", i, one.e.Stats(), one.ends, two.e.Stats(), two.ends)
			}
		}
		for one.busy || two.busy {
			a, b := one.e.End(one.ends), two.e.End(two.ends)
			if len(a.Outputs) != len(b.Outputs) || len(a.Events) != len(b.Events) {
				t.Fatalf("a step brings %d outputs and %d events, beside copies %d and %d", len(a.Outputs), len(a.Events), len(b.Outputs), len(b.Events))
			}
			for i := range a.Outputs {
				if x, y := a.Outputs[i], b.Outputs[i]; x.ID != y.ID || x.Token != y.Token || x.Finish != y.Finish {
					t.Fatalf("%+v, beside copies %+v", x, y)
				}
			}
			one.begin(one.ends)
			two.begin(two.ends)
		}
	})
}
