package simulate

import (
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/sluicegate/sluice/scoring/simworker/engine"
)

// run runs one strategy by name.
func run(t *testing.T, cfg *Config, p *Plan, name string) *Result {
	t.Helper()
	s, err := ParseStrategy(name)
	if err != nil {
		t.Fatal(err)
	}
	r, err := Run(cfg, p, s)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// TestOneRequest checks the model to the nanosecond: 3,000 tokens in steps of
// 2,048 and 952, then 2 steps of one token each.
func TestOneRequest(t *testing.T) {
	cfg := DefaultConfig()
	cfg.Engine.Timing = engine.Timing{Step: 10 * time.Millisecond, PrefillToken: 100 * time.Microsecond, DecodeSeq: time.Millisecond}
	p := Prefixed{Name: "p", Requests: 1, FreshMin: 3000, FreshMax: 3000, OutputMin: 3, OutputMax: 3}.Plan(Arrivals{Rate: 1}, 1)
	for _, factor := range []time.Duration{1, 3} {
		cfg.Slow = map[int]float64{}
		for i := range cfg.Workers {
			cfg.Slow[i] = float64(factor)
		}
		got := run(t, &cfg, p, "ttft").Samples[0]
		first := factor * (2*cfg.Engine.Timing.Step + 3000*cfg.Engine.Timing.PrefillToken)
		if total := first + factor*22*time.Millisecond; got.TTFT != first || got.Total != total {
			t.Errorf("first token after %v, end after %v; want %v and %v", got.TTFT, got.Total, first, total)
		}
	}
}

// TestStreams: never more requests are under way than there are streams, and as
// many as long as requests are left.
func TestStreams(t *testing.T) {
	cfg := DefaultConfig()
	cfg.Workers = 2
	p := Prefixed{Name: "p", Requests: 100, FreshMin: 100, FreshMax: 3000, OutputMin: 1, OutputMax: 50}.Plan(Arrivals{Streams: 7}, 1)
	r := run(t, &cfg, p, "ttft")
	type change struct {
		at time.Duration
		by int
	}
	var changes []change
	for i, s := range r.Samples {
		changes = append(changes, change{s.Sent, 1}, change{s.Sent + s.Total, -1})
		if i > 0 && s.Sent < r.Samples[i-1].Sent {
			t.Errorf("request %d is sent before the one before", i)
		}
	}
	slices.SortFunc(changes, func(a, b change) int {
		if a.at != b.at {
			return int(a.at - b.at)
		}
		return a.by - b.by // a stream is free before it takes the next
	})
	n, sent := 0, 0
	for i, c := range changes {
		n += c.by
		sent += max(0, c.by)
		same := i+1 < len(changes) && changes[i+1].at == c.at
		if n > 7 || !same && sent < 100 && n < 7 {
			t.Fatalf("%d requests are under way at %v", n, c.at)
		}
	}
}

// TestTurnsAreCached: a later turn finds the conversation so far, answer and
// all, on the one worker there is.
func TestTurnsAreCached(t *testing.T) {
	cfg := DefaultConfig()
	cfg.Workers = 1
	p := MultiTurn{
		Name: "turns", Requests: 30, TurnsMin: 3, TurnsMax: 3, System: 160, FreshMin: 100, FreshMax: 200, OutputMin: 40, OutputMax: 60, Think: time.Second,
	}.Plan(Arrivals{Rate: 0.05}, 1)
	r := run(t, &cfg, p, "ttft")
	for i, s := range r.Samples {
		if !p.Requests[i].Turn {
			continue
		}
		last := r.Samples[i-1]
		if s.Sent != last.Sent+last.Total+p.Requests[i].Think {
			t.Errorf("turn %d is sent at %v", i, s.Sent)
		}
		if want := last.Prompt + last.Output + p.Requests[i].tokens(); s.Prompt != want {
			t.Errorf("turn %d has %d tokens, want %d", i, s.Prompt, want)
		}
		// The last token drawn has not been computed.
		if want := (last.Prompt + last.Output - 1) / 16 * 16; s.Cached != want {
			t.Errorf("turn %d finds %d tokens, want %d", i, s.Cached, want)
		}
	}
}

// TestSharedCores: two workers on one core serve two prompts in the time that
// one worker takes for both.
func TestSharedCores(t *testing.T) {
	cfg := DefaultConfig()
	cfg.Workers = 2
	p := Prefixed{Name: "p", Requests: 2, FreshMin: 2000, FreshMax: 2000, OutputMin: 1, OutputMax: 1}.Plan(Arrivals{Streams: 2}, 1)
	alone := run(t, &cfg, p, "round-robin").Samples[0].TTFT
	cfg.SharedCores = 1
	for i, s := range run(t, &cfg, p, "round-robin").Samples {
		// All but the fixed part of the one step.
		if off := s.TTFT - 2*alone + cfg.Engine.Timing.Step; off < -time.Microsecond || off > time.Microsecond {
			t.Errorf("request %d takes %v, alone %v", i, s.TTFT, alone)
		}
	}
	cfg.SharedCores = 2
	if got := run(t, &cfg, p, "round-robin").Samples[0].TTFT; got != alone {
		t.Errorf("on two cores a request takes %v, alone %v", got, alone)
	}
}

// TestOracleIsRight: what the oracle knows of the last request is what happens,
// as nothing comes after it, with cores apart and shared.
func TestOracleIsRight(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		cfg := drawConfig(t)
		plan := drawPlan(t, cfg.Seed)
		last := len(plan.Requests) - 1
		if plan.Streams > 0 || conversations(plan) {
			return // others may come after the last one
		}
		m, err := newSim(cfg, plan, Strategy{oracle: greedy})
		if err != nil {
			t.Fatal(err)
		}
		m.start()
		for m.record[last].Prompt == 0 { // not sent yet
			m.step()
		}
		want := m.oracle.ttft[m.record[last].Worker]
		for m.left > 0 {
			m.step()
		}
		if got := m.record[last].Sent + m.record[last].TTFT; got != want {
			t.Fatalf("the oracle said %v, the first token came at %v", want, got)
		}
	})
}

// TestStrategiesRank: on a load of shared prefixes the router's own choice comes
// close to the oracle's and is far ahead of chance, and a slow worker is spared
// by those who can see that it is slow.
func TestStrategiesRank(t *testing.T) {
	cfg := DefaultConfig()
	cfg.Workers = 4
	p := Prefixed{Name: "p", Requests: 800, Buckets: Mixed(), FreshMin: 16, FreshMax: 600, OutputMin: 16, OutputMax: 16}.Plan(Arrivals{Rate: 25}, 1)
	oracle, ttft, random := run(t, &cfg, p, "oracle"), run(t, &cfg, p, "ttft"), run(t, &cfg, p, "random")
	t.Logf("oracle %.0f ms, ttft %.0f ms, random %.0f ms", oracle.TTFT.Mean, ttft.TTFT.Mean, random.TTFT.Mean)
	// The oracle is greedy, so it is not the least there can be.
	if oracle.TTFT.Mean > 1.1*ttft.TTFT.Mean {
		t.Errorf("the oracle's mean TTFT is %.0f ms, the router's %.0f ms", oracle.TTFT.Mean, ttft.TTFT.Mean)
	}
	if ttft.TTFT.Mean > 1.25*oracle.TTFT.Mean {
		t.Errorf("the router's mean TTFT is %.0f ms, the oracle's %.0f ms", ttft.TTFT.Mean, oracle.TTFT.Mean)
	}
	if random.TTFT.Mean < 2*ttft.TTFT.Mean {
		t.Errorf("by chance the mean TTFT is %.0f ms, the router's %.0f ms", random.TTFT.Mean, ttft.TTFT.Mean)
	}
	cfg.Slow = map[int]float64{2: 10}
	for _, name := range []string{"oracle", "ttft"} {
		if n := run(t, &cfg, p, name).Workers[2].Requests; n > 40 {
			t.Errorf("%s sends %d of 800 requests to a worker ten times slower", name, n)
		}
	}
}

// TestForesight: who knows what comes next does better than who does not, on a
// load at which it matters.
func TestForesight(t *testing.T) {
	cfg := DefaultConfig()
	cfg.Workers = 3
	p := Prefixed{Name: "p", Requests: 150, Buckets: Mixed(), FreshMin: 16, FreshMax: 600, OutputMin: 16, OutputMax: 16}.Plan(Arrivals{Rate: 20}, 1)
	greedy, foreseen := run(t, &cfg, p, "oracle"), run(t, &cfg, p, "oracle-foresight")
	t.Logf("greedy %.0f ms, with foresight %.0f ms", greedy.TTFT.Mean, foreseen.TTFT.Mean)
	if foreseen.TTFT.Mean > 0.97*greedy.TTFT.Mean {
		t.Errorf("mean TTFT is %.0f ms with foresight, %.0f ms without", foreseen.TTFT.Mean, greedy.TTFT.Mean)
	}
}

// TestStaleEvents: the longer events take, the less the router knows.
func TestStaleEvents(t *testing.T) {
	cfg := DefaultConfig()
	cfg.Workers, cfg.Engine.Blocks = 3, 1000
	p := Prefixed{Name: "p", Requests: 600, Buckets: []Bucket{{1, 12, 3000}}, FreshMin: 64, FreshMax: 64, OutputMin: 16, OutputMax: 16}.Plan(Arrivals{Rate: 5}, 1)
	fresh := run(t, &cfg, p, "ttft")
	cfg.EventDelay = time.Minute
	stale := run(t, &cfg, p, "ttft")
	if stale.HitRatio > fresh.HitRatio-0.02 {
		t.Errorf("%.3f of the tokens are found when events take a minute, %.3f when they take a millisecond", stale.HitRatio, fresh.HitRatio)
	}
}

func TestWarmup(t *testing.T) {
	cfg := DefaultConfig()
	p := Prefixed{Name: "p", Requests: 10, FreshMin: 100, FreshMax: 100, OutputMin: 2, OutputMax: 2}.Plan(Arrivals{Rate: 10}, 1)
	cfg.Warmup = 4
	r := run(t, &cfg, p, "ttft")
	if r.Requests != 6 || r.Prompt != 1000 || len(r.Samples) != 10 {
		t.Errorf("%d requests count, of %d tokens", r.Requests, r.Prompt)
	}
	cfg.Warmup = 10
	if r := run(t, &cfg, p, "ttft"); r.Requests != 0 || r.TTFT != (Times{}) || r.Throughput != 0 {
		t.Errorf("all is warm-up: %+v", r)
	}
}

func TestParseStrategy(t *testing.T) {
	for _, s := range append(Strategies(), Strategy{oracle: foresight}) {
		if got, err := ParseStrategy(s.String()); err != nil || got != s {
			t.Errorf("%s: %v, %v", s, got, err)
		}
	}
	_, err := ParseStrategy("fastest")
	if want := `"fastest" is no strategy, should be one of ttft, random, round-robin, least-loaded, prefix-only, oracle, oracle-foresight`; errText(err) != want {
		t.Errorf("got %v", err)
	}
}
