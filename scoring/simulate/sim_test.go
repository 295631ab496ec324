package simulate

import (
	"reflect"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// drawConfig draws a fleet that is small enough to be in trouble at times.
func drawConfig(t *rapid.T) *Config {
	cfg := DefaultConfig()
	cfg.Workers = rapid.IntRange(1, 4).Draw(t, "workers")
	cfg.Engine.BlockSize = rapid.SampledFrom([]int{4, 16}).Draw(t, "block size")
	cfg.Engine.Blocks = rapid.IntRange(60, 200).Draw(t, "blocks")
	cfg.Engine.BatchTokens = rapid.IntRange(8, 200).Draw(t, "batch tokens")
	cfg.Engine.MaxSeqs = rapid.IntRange(1, 8).Draw(t, "max seqs")
	cfg.Engine.Timing.Jitter = rapid.SampledFrom([]float64{0, 0.2}).Draw(t, "jitter")
	cfg.SharedCores = rapid.SampledFrom([]float64{0, 1, 1.5}).Draw(t, "shared cores")
	cfg.EventDelay = rapid.SampledFrom([]time.Duration{0, time.Millisecond, time.Second}).Draw(t, "event delay")
	cfg.LoadInterval = rapid.SampledFrom([]time.Duration{0, 100 * time.Millisecond}).Draw(t, "load interval")
	cfg.Prior = rapid.Bool().Draw(t, "prior")
	cfg.Seed = rapid.Uint64().Draw(t, "seed")
	if rapid.Bool().Draw(t, "slow") {
		cfg.Slow = map[int]float64{0: 3}
	}
	return &cfg
}

// drawPlan draws a small load.
func drawPlan(t *rapid.T, seed uint64) *Plan {
	a := Arrivals{Rate: rapid.SampledFrom([]float64{1, 50, 1000}).Draw(t, "rate")}
	if rapid.Bool().Draw(t, "closed") {
		a.Streams = rapid.IntRange(1, 10).Draw(t, "streams")
	}
	n := rapid.IntRange(1, 40).Draw(t, "requests")
	if rapid.Bool().Draw(t, "conversations") {
		return MultiTurn{
			Name: "turns", Requests: n, TurnsMin: 1, TurnsMax: 4, System: 20,
			FreshMin: 1, FreshMax: 20, OutputMin: 1, OutputMax: 10, Think: 100 * time.Millisecond,
		}.Plan(a, seed)
	}
	return Prefixed{
		Name: "prefixed", Requests: n, Buckets: []Bucket{{2, 1, 100}, {1, 3, 60}},
		FreshMin: 0, FreshMax: 50, OutputMin: 1, OutputMax: 30,
	}.Plan(a, seed)
}

// TestRunKeepsAccount runs random loads on random fleets: every request ends
// exactly once, no load is left, no token is lost, and a second run is equal.
func TestRunKeepsAccount(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		cfg := drawConfig(t)
		plan := drawPlan(t, cfg.Seed)
		s := rapid.SampledFrom(append(Strategies(), Strategy{oracle: foresight})).Draw(t, "strategy")
		m, err := newSim(cfg, plan, s)
		if foreseeable := cfg.SharedCores == 0 && plan.Streams == 0 && !conversations(plan); s.oracle == foresight && !foreseeable {
			if err == nil {
				t.Fatal("the oracle with foresight runs where it can't know what comes")
			}
			return
		}
		if err != nil {
			t.Fatal(err)
		}
		m.start()
		for m.left > 0 {
			m.step()
		}
		r := m.result(s)
		checkAccount(t, m, plan, r)
		again, err := Run(cfg, plan, s)
		if err != nil {
			t.Fatal(err)
		}
		if !reflect.DeepEqual(r, again) {
			t.Fatalf("two runs of %s differ:\n%+v\n%+v", s, r, again)
		}
	})
}

func conversations(p *Plan) bool {
	return slices.ContainsFunc(p.Requests, func(r Request) bool { return r.Turn })
}

func checkAccount(t *rapid.T, m *sim, plan *Plan, r *Result) {
	t.Helper()
	for i, s := range r.Samples {
		if s.TTFT <= 0 || s.Total < s.TTFT || s.Cached >= s.Prompt {
			t.Fatalf("request %d: %+v", i, s)
		}
	}
	finished, prompt := 0, int64(0)
	for i, n := range m.nodes {
		st := n.eng.Stats()
		if !n.eng.Idle() || st.BlocksHeld != 0 || len(n.calls) != 0 {
			t.Fatalf("worker %d has requests left: %+v", i, st)
		}
		for _, k := range st.Finished {
			finished += int(k)
		}
		if got := int64(st.Hits) + int64(n.computed); st.Preemptions == 0 && got != int64(st.Queried) {
			t.Fatalf("worker %d: %d tokens cached or computed of %d", i, got, st.Queried)
		}
	}
	for i := range r.Samples {
		prompt += int64(r.Samples[i].Prompt)
	}
	if finished != len(plan.Requests) {
		t.Fatalf("%d requests ended, %d were sent", finished, len(plan.Requests))
	}
	if r.Prompt != prompt {
		t.Fatalf("the engines saw %d prompt tokens, %d were sent", r.Prompt, prompt)
	}
	for _, w := range m.fleet.Snapshot(m.clock()) {
		if w.InFlight != 0 || w.Prefilling != 0 || w.Ahead != 0 {
			t.Fatalf("load is left on %s: %+v", w.Worker.Name, w)
		}
	}
	if st := m.fleet.Stats(); st.InFlight != 0 || st.Completed != int64(len(plan.Requests)) || st.FirstTokens != st.Completed {
		t.Fatalf("the router counts %+v", st)
	}
}
