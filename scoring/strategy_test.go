package scoring

import (
	"fmt"
	"slices"
	"testing"
	"time"
)

func TestStrategyNames(t *testing.T) {
	for s := range Strategy(strategies) {
		if got, err := ParseStrategy(s.String()); err != nil || got != s {
			t.Errorf("ParseStrategy(%q) = %v, %v", s, got, err)
		}
	}
	if _, err := ParseStrategy("fastest"); err == nil {
		t.Error("an unknown name was accepted")
	}
	cfg := DefaultConfig()
	cfg.Strategy = strategies
	if err := cfg.Validate(); err == nil {
		t.Error("an unknown strategy validates")
	}
}

// TestStrategies has worker 0 hold the prompt, worker 1 have a request in
// flight, and worker 2 neither.
func TestStrategies(t *testing.T) {
	shared := prompt(1, 640)
	for _, c := range []struct {
		by   Strategy
		want map[int]bool // the workers that the next picks may take
	}{
		{StrategyTTFT, map[int]bool{0: true}},
		{StrategyRandom, map[int]bool{0: true, 1: true, 2: true}},
		{StrategyRoundRobin, map[int]bool{0: true, 2: true}},
		{StrategyLeastLoaded, map[int]bool{0: true, 2: true}},
		{StrategyPrefixOnly, map[int]bool{0: true}},
	} {
		seen := map[int]bool{}
		for seed := range uint64(30) {
			cfg := DefaultConfig()
			cfg.Seed, cfg.Strategy = seed, c.by
			f := NewFleet(cfg)
			ids := addWorkers(t, f, 3)
			holds(f, ids[0], 0, shared)
			busy, err := f.Pick(epoch, &Request{Model: "m", Pools: []string{"p"}, Tokens: prompt(9, 64), Exclude: []WorkerID{ids[0], ids[2]}})
			if err != nil {
				t.Fatal(err)
			}
			r, err := f.Pick(epoch, &Request{Model: "m", Pools: []string{"p"}, Tokens: shared})
			if err != nil {
				t.Fatal(err)
			}
			for i, id := range ids {
				if r.Worker().ID == id {
					seen[i] = true
				}
			}
			r.Done(epoch, Completed)
			busy.Done(epoch, Completed)
		}
		for i := range 3 {
			if seen[i] != c.want[i] {
				t.Errorf("%v: worker %d taken %v, want %v", c.by, i, seen[i], c.want[i])
			}
		}
	}
}

func TestRoundRobinTakesTurns(t *testing.T) {
	cfg := DefaultConfig()
	cfg.Strategy = StrategyRoundRobin
	f := NewFleet(cfg)
	ids := addWorkers(t, f, 5)
	var order []WorkerID
	for i := range 20 {
		r, err := f.Pick(epoch, &Request{Model: "m", Pools: []string{"p"}, Estimate: 100})
		if err != nil {
			t.Fatal(err)
		}
		order = append(order, r.Worker().ID)
		if i >= len(ids) && order[i] != order[i-len(ids)] {
			t.Fatalf("picks %v: not in turns", order)
		}
	}
}

// TestSlowStart adds a worker to one that has been there for long: it gets a
// tenth at first, ever more, and its equal share in the end.
func TestSlowStart(t *testing.T) {
	cfg := DefaultConfig()
	cfg.SlowStart, cfg.Strategy = 10*time.Second, StrategyRandom
	f := NewFleet(cfg)
	addWorkers(t, f, 1)
	late := epoch.Add(time.Minute)
	id, err := f.Add(late, WorkerSpec{Name: "late", Pool: "p", Models: []string{"m"}})
	if err != nil {
		t.Fatal(err)
	}
	f.SetReady(late, id, true, "")
	share := func(after time.Duration) float64 {
		n := 0
		for range 2000 {
			r, err := f.Pick(late.Add(after), &Request{Model: "m", Pools: []string{"p"}, Estimate: 100})
			if err != nil {
				t.Fatal(err)
			}
			if r.Worker().ID == id {
				n++
			}
			r.Done(late.Add(after), Completed)
		}
		return float64(n) / 2000
	}
	for _, c := range []struct {
		after  time.Duration
		lo, hi float64
	}{{0, 0.03, 0.07}, {5 * time.Second, 0.2, 0.3}, {10 * time.Second, 0.45, 0.55}, {time.Hour, 0.45, 0.55}} {
		if got := share(c.after); got < c.lo || got > c.hi {
			t.Errorf("%v after it became ready it gets %.3f of the requests, want %v to %v", c.after, got, c.lo, c.hi)
		}
	}
	r, err := f.Pick(late, &Request{Model: "m", Pools: []string{"p"}, Exclude: []WorkerID{id - 1}})
	if err != nil || r.Worker().ID != id {
		t.Errorf("the only candidate is held back: %v", err)
	}
}

// TestSlowStartOfMany adds many workers to a few: those that were there get no
// more than about twice their even part.
func TestSlowStartOfMany(t *testing.T) {
	for _, c := range []struct{ warm, added int }{{1, 7}, {2, 6}, {4, 4}, {1, 1}, {7, 1}} {
		cfg := DefaultConfig()
		cfg.SlowStart, cfg.Strategy = 10*time.Second, StrategyRandom
		f := NewFleet(cfg)
		old := addWorkers(t, f, c.warm)
		late := epoch.Add(time.Minute)
		for i := range c.added {
			id, err := f.Add(late, WorkerSpec{Name: fmt.Sprintf("late%d", i), Pool: "p", Models: []string{"m"}})
			if err != nil {
				t.Fatal(err)
			}
			f.SetReady(late, id, true, "")
		}
		n := 0
		const requests = 10_000
		for range requests {
			r := pick(t, f, late, &Request{Estimate: 100})
			if slices.Contains(old, r.Worker().ID) {
				n++
			}
			r.Done(late, Completed)
		}
		even := float64(c.warm) / float64(c.warm+c.added)
		if got := float64(n) / requests; got < even || got > 2.4*even {
			t.Errorf("%d workers and %d new ones: the former get %.2f of the requests, their even part is %.2f", c.warm, c.added, got, even)
		}
	}
}
