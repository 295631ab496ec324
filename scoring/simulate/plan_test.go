package simulate

import (
	"math"
	"testing"
	"time"
)

func TestPrefixed(t *testing.T) {
	l := Prefixed{Name: "mixed", Requests: 20_000, Buckets: Mixed(), FreshMin: 16, FreshMax: 600, OutputMin: 5, OutputMax: 9}
	p := l.Plan(Arrivals{Rate: 50}, 3)
	byLength := map[int]int{}
	prefixes := map[Segment]bool{}
	own := map[uint64]bool{}
	for i := range p.Requests {
		r := &p.Requests[i]
		if len(r.Prompt) != 2 || r.Prompt[1].Tokens < 16 || r.Prompt[1].Tokens > 600 || r.Output < 5 || r.Output > 9 || r.Turn {
			t.Fatalf("request %d: %+v", i, r)
		}
		if i > 0 && r.At < p.Requests[i-1].At {
			t.Fatalf("request %d arrives before the one before", i)
		}
		byLength[r.Prompt[0].Tokens]++
		prefixes[r.Prompt[0]] = true
		own[r.Prompt[1].ID] = true
	}
	for length, share := range map[int]float64{3000: 0.5, 2000: 0.3, 1000: 0.2} {
		if got := float64(byLength[length]) / 20_000; math.Abs(got-share) > 0.02 {
			t.Errorf("%.3f of the prefixes have %d tokens, want %.1f", got, length, share)
		}
	}
	if len(prefixes) != 50 {
		t.Errorf("%d prefixes, want 50", len(prefixes))
	}
	if len(own) != 20_000 {
		t.Errorf("%d prompts have tokens of their own, want all", len(own))
	}
	if last := p.Requests[len(p.Requests)-1].At.Seconds(); math.Abs(last-400) > 20 {
		t.Errorf("20,000 requests at 50 a second take %.0f s", last)
	}
	other := l.Plan(Arrivals{Rate: 50}, 4)
	if other.Requests[0].Prompt[1].ID == p.Requests[0].Prompt[1].ID {
		t.Error("two seeds give the same fresh tokens")
	}
}

func TestMultiTurn(t *testing.T) {
	l := MultiTurn{
		Name: "turns", Requests: 10_000, TurnsMin: 2, TurnsMax: 4, System: 100,
		FreshMin: 10, FreshMax: 20, OutputMin: 1, OutputMax: 3, Think: time.Second,
	}
	p := l.Plan(Arrivals{Streams: 7}, 1)
	if p.Streams != 7 {
		t.Errorf("%d streams", p.Streams)
	}
	turns, think, later := 0, time.Duration(0), 0
	for i := range p.Requests {
		r := &p.Requests[i]
		if !r.Turn {
			if i > 0 && (turns < 2 || turns > 4) {
				t.Fatalf("a conversation before request %d has %d turns", i, turns)
			}
			if r.Prompt[0] != (Segment{1, 100}) || len(r.Prompt) != 2 {
				t.Fatalf("request %d begins with %+v", i, r.Prompt)
			}
			turns = 0
		} else {
			think += r.Think
			later++
		}
		turns++
	}
	if mean := (think / time.Duration(later)).Seconds(); math.Abs(mean-1) > 0.05 {
		t.Errorf("the mean time to think is %.2f s, want 1", mean)
	}
}

func TestSpreadAndHurry(t *testing.T) {
	p := &Plan{Requests: make([]Request, 1000)}
	for i := range p.Requests {
		p.Requests[i].At = 6 * time.Second
	}
	p.Spread(3*time.Second, 1)
	sum := 0.0
	for i := range p.Requests {
		at := p.Requests[i].At
		if at < 6*time.Second || at >= 9*time.Second {
			t.Fatalf("request %d arrives at %v", i, at)
		}
		sum += at.Seconds()
	}
	if mean := sum / 1000; math.Abs(mean-7.5) > 0.1 {
		t.Errorf("requests arrive at %.2f s on average, want 7.5", mean)
	}
	at := p.Requests[0].At
	p.Hurry(4)
	if got := p.Requests[0].At; got < at/4-time.Nanosecond || got > at/4+time.Nanosecond {
		t.Errorf("%v became %v at four times the speed", at, got)
	}
}

func TestPlanCheck(t *testing.T) {
	one := func(r Request) *Plan { return &Plan{Name: "p", Requests: []Request{r}} }
	good := Request{Prompt: []Segment{{1, 10}}, Output: 5}
	turn := good
	turn.Turn = true
	f := func(p *Plan, want string) {
		t.Helper()
		err := p.check(20)
		if got := errText(err); got != want {
			t.Errorf("got  %s\nwant %s", got, want)
		}
	}
	f(one(good), "")
	f(&Plan{Name: "p"}, "p has no requests")
	f(&Plan{Name: "p", Streams: -1, Requests: []Request{good}}, "p: -1 streams; it must not be negative")
	f(one(turn), "p: the first request is a later turn")
	f(one(Request{Output: 1}), "p: request 1 has 0 tokens and asks for 1; both must be at least 1")
	f(one(Request{Prompt: good.Prompt}), "p: request 1 has 10 tokens and asks for 0; both must be at least 1")
	f(one(Request{Prompt: good.Prompt, Output: 1, At: -1}), "p: request 1 has a negative time")
	f(one(Request{Prompt: good.Prompt, Output: 11}), "p: request 1 needs 21 tokens of cache, a worker has 20")
	f(&Plan{Name: "p", Requests: []Request{good, turn}}, "p: request 2 needs 30 tokens of cache, a worker has 20")
}

func errText(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

func TestConfigValidate(t *testing.T) {
	f := func(change func(*Config), want string) {
		t.Helper()
		cfg := DefaultConfig()
		change(&cfg)
		if got := errText(cfg.Validate()); got != want {
			t.Errorf("got  %s\nwant %s", got, want)
		}
	}
	for _, p := range Profiles {
		f(func(c *Config) { c.Engine, c.SharedCores = p.Engine, p.SharedCores }, "")
	}
	f(func(c *Config) { c.Workers = 0 }, "simulate: Workers is 0; it must be between 1 and 1024")
	f(func(c *Config) { c.Slow = map[int]float64{8: 2} }, "simulate: Slow names worker 8; there are 8, counted from 0")
	f(func(c *Config) { c.Slow = map[int]float64{1: 0} }, "simulate: Slow is 0 for worker 1; it must be between 0.001 and 1000")
	f(func(c *Config) { c.SharedCores = math.NaN() }, "simulate: SharedCores is NaN; it must be between 0 and 1024")
	f(func(c *Config) { c.EventDelay = -1 }, "simulate: EventDelay is -1ns; it must be between 0 and 1h")
	f(func(c *Config) { c.Warmup = -1 }, "simulate: Warmup is -1; it must not be negative")
	f(func(c *Config) { c.Engine.Timing.Step = 0 }, "simulate: Timing.Step is 0s for worker 0; it must be at least 1µs")
	f(func(c *Config) { c.Engine.Timing.Jitter = 1 }, "timing: Jitter is 1; it must be at least 0 and below 1")
	f(func(c *Config) { c.Engine.Blocks = 1 }, "engine: BlockSize 16, MaxSeqs 256, BatchTokens 2048 and Vocab 131072 must be at least 1, MaxModelLen 0 at least 2")
}
