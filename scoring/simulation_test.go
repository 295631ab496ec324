package scoring

import (
	"slices"
	"testing"
	"time"
)

// sharedPrefixes submits n requests, rate a second, each one of k prefixes of
// size tokens followed by fresh tokens of its own.
func (s *simulation) sharedPrefixes(n int, rate float64, k, size, fresh int) {
	at := time.Duration(0)
	for range n {
		at += seconds(s.rng.ExpFloat64() / rate)
		tokens := prompt(uint64(1000+s.rng.IntN(k)), size)
		tokens = append(tokens, prompt(uint64(1_000_000+len(s.all)), fresh)...)
		s.submit(at, &simRequest{tokens: tokens, output: 16})
	}
}

// mixedPrefixes submits n requests, rate a second: half begin with one of k
// prefixes of 3,000 tokens, three in ten with one of 4k of 2,000, the others
// with one of 20k of 1,000; 16 to 600 fresh tokens follow.
func (s *simulation) mixedPrefixes(n int, rate float64, k int) {
	at := time.Duration(0)
	for range n {
		at += seconds(s.rng.ExpFloat64() / rate)
		kinds, size := k, 3000
		switch x := s.rng.Float64(); {
		case x > 0.8:
			kinds, size = 20*k, 1000
		case x > 0.5:
			kinds, size = 4*k, 2000
		}
		tokens := prompt(uint64(1000*size+s.rng.IntN(kinds)), size)
		tokens = append(tokens, prompt(uint64(len(s.all)), 16+s.rng.IntN(585))...)
		s.submit(at, &simRequest{tokens: tokens, output: 16})
	}
}

// roundRobin makes s send requests to the workers in turn.
func roundRobin(s *simulation) {
	n := 0
	s.pick = func(r *simRequest) *Reservation {
		var others []WorkerID
		for i, e := range s.engines {
			if i != n%len(s.engines) {
				others = append(others, e.id)
			}
		}
		n++
		return s.pickExcept(r, others)
	}
}

// outcome is what a simulation came to.
type outcome struct {
	mean      time.Duration
	p50, p90  float64 // relative errors of the predictions
	below90   float64 // share of requests whose TTFT was below the P90
	computed  float64 // share of prompt tokens that were computed
	perWorker []int
}

// simulate runs a load on n workers with and without the fleet's own choice.
func simulate(t *testing.T, n int, set func(*simulation), load func(*simulation)) (fleet, inTurn outcome) {
	t.Helper()
	run := func(turn bool) outcome {
		s := newSimulation(DefaultConfig(), n)
		set(s)
		if turn {
			roundRobin(s)
		}
		load(s)
		s.run()
		for _, w := range s.fleet.Snapshot(s.now) {
			if w.InFlight != 0 || w.Ahead != 0 {
				t.Errorf("load left: %+v", w)
			}
		}
		return s.outcome()
	}
	return run(false), run(true)
}

func (s *simulation) outcome() outcome {
	o := outcome{perWorker: make([]int, len(s.engines))}
	var errs []float64
	below := 0
	warm := s.all[len(s.all)/5:]
	for _, r := range s.all {
		o.perWorker[r.worker]++
		o.mean += r.ttft / time.Duration(len(s.all))
	}
	for _, r := range warm {
		errs = append(errs, max(r.ttft-r.res.predicted, r.res.predicted-r.ttft).Seconds()/r.ttft.Seconds())
		if r.ttft <= r.res.PredictedP90() {
			below++
		}
	}
	slices.Sort(errs)
	o.p50, o.p90 = errs[len(errs)/2], errs[len(errs)*9/10]
	o.below90 = float64(below) / float64(len(warm))
	computed, total := 0, 0
	for _, e := range s.engines {
		computed += e.computed
		total += e.total
	}
	o.computed = float64(computed) / float64(total)
	return o
}

func (o outcome) checkPredictions(t *testing.T, p50, p90 float64) {
	t.Helper()
	if o.p50 > p50 || o.p90 > p90 {
		t.Errorf("prediction errors are %.2f and %.2f at the median and the 90th percentile, want at most %.2f and %.2f", o.p50, o.p90, p50, p90)
	}
	if o.below90 < 0.85 || o.below90 > 0.97 {
		t.Errorf("%.2f of the first tokens came within the predicted P90, want about 0.90", o.below90)
	}
}

func ordinary(*simulation) {}

func TestSimSharedPrefixes(t *testing.T) {
	for _, c := range []struct {
		rate, gain float64
	}{{4, 2}, {20, 4}, {40, 8}} {
		fleet, inTurn := simulate(t, 3, ordinary, func(s *simulation) { s.sharedPrefixes(600, c.rate, 24, 3000, 64) })
		t.Logf("%v requests a second: %+v, in turn %+v", c.rate, fleet, inTurn)
		if float64(inTurn.mean) < c.gain*float64(fleet.mean) {
			t.Errorf("%v requests a second: mean TTFT %v, in turn %v; want a gain of %v", c.rate, fleet.mean, inTurn.mean, c.gain)
		}
		if fleet.computed > 0.6*inTurn.computed {
			t.Errorf("%v requests a second: %.2f of the prompt tokens computed, in turn %.2f", c.rate, fleet.computed, inTurn.computed)
		}
		fleet.checkPredictions(t, 0.15, 0.45)
	}
}

// TestSimNoCollapse has more prefixes than the caches hold, near the capacity
// that the workers have when each prefix is at home on one of them. A scorer
// that leaves a queue for a cold worker whenever that is sooner for this request
// computes ever more, until no queue is short: the load is borne only if each
// request also counts what it costs the others.
func TestSimNoCollapse(t *testing.T) {
	run := func(by Strategy) outcome {
		cfg := DefaultConfig()
		cfg.Strategy = by
		s := newSimulation(cfg, 4)
		for _, e := range s.engines {
			e.blockSize, e.blocks, e.slots = 32, 512, 8
			e.stepTime, e.tokenTime, e.seqTime, e.pairTime = 0.025, 1.0/2300, 0.003, 0.01
			s.fleet.SetCapacity(e.id, 32, 512)
		}
		s.mixedPrefixes(1200, 7.25, 4)
		s.run()
		return s.outcome()
	}
	affinity, fleet := run(StrategyPrefixOnly), run(StrategyTTFT)
	t.Logf("by the prefix alone %+v, by the prediction %+v", affinity, fleet)
	if float64(fleet.computed) > 1.05*float64(affinity.computed) {
		t.Errorf("%.2f of the prompt tokens computed, by the prefix alone %.2f", fleet.computed, affinity.computed)
	}
	if fleet.mean > affinity.mean {
		t.Errorf("mean TTFT %v, by the prefix alone %v", fleet.mean, affinity.mean)
	}
}

func TestSimIndependentPrompts(t *testing.T) {
	for _, rate := range []float64{3, 10, 14} {
		fleet, inTurn := simulate(t, 3, ordinary, func(s *simulation) { s.sharedPrefixes(600, rate, 1, 0, 1500) })
		t.Logf("%v requests a second: %+v, in turn %+v", rate, fleet, inTurn)
		if float64(fleet.mean) > 1.05*float64(inTurn.mean) {
			t.Errorf("%v requests a second: mean TTFT %v, in turn %v", rate, fleet.mean, inTurn.mean)
		}
		fleet.checkPredictions(t, 0.12, 0.35)
	}
}

// TestSimHotPrefix has one prefix for all, and more load than one worker bears.
func TestSimHotPrefix(t *testing.T) {
	fleet, inTurn := simulate(t, 3, ordinary, func(s *simulation) { s.sharedPrefixes(1000, 80, 1, 3000, 200) })
	t.Logf("%+v, in turn %+v", fleet, inTurn)
	if float64(fleet.mean) > 1.1*float64(inTurn.mean) {
		t.Errorf("mean TTFT %v, in turn %v", fleet.mean, inTurn.mean)
	}
	for i, n := range fleet.perWorker {
		if n < 1000/3*10/13 || n > 1000/3*13/10 {
			t.Errorf("worker %d got %d of 1000: %v", i, n, fleet.perWorker)
		}
	}
	fleet.checkPredictions(t, 0.2, 0.45)
}

// TestSimSlowWorker has one worker of four compute at a quarter of the speed.
func TestSimSlowWorker(t *testing.T) {
	slow := func(s *simulation) { s.engines[2].slow = 4 }
	fleet, inTurn := simulate(t, 4, slow, func(s *simulation) { s.sharedPrefixes(600, 12, 1, 0, 1500) })
	t.Logf("%+v, in turn %+v", fleet, inTurn)
	if fleet.mean > inTurn.mean/4 {
		t.Errorf("mean TTFT %v, in turn %v", fleet.mean, inTurn.mean)
	}
	if n := fleet.perWorker[2]; n > 90 {
		t.Errorf("the slow worker got %d of 600: %v", n, fleet.perWorker)
	}
	fleet.checkPredictions(t, 0.15, 0.45)
}

// TestSimWorkerSlowsDown has one worker become three times slower on the way,
// and recover.
func TestSimWorkerSlowsDown(t *testing.T) {
	s := newSimulation(DefaultConfig(), 2)
	s.sharedPrefixes(1200, 6, 1, 0, 1000)
	s.after(60*time.Second, func() { s.engines[0].slow = 3 })
	s.after(120*time.Second, func() { s.engines[0].slow = 1 })
	s.run()
	share := func(from, to int) (picks int, off float64) {
		n := 0
		for _, r := range s.all {
			at := int(r.arrived.Sub(epoch) / time.Second)
			if at < from || at >= to {
				continue
			}
			n++
			if r.worker == 0 {
				picks++
				off += max(r.ttft-r.res.predicted, r.res.predicted-r.ttft).Seconds() / r.ttft.Seconds()
			}
		}
		if picks == 0 {
			return 0, 0
		}
		return 100 * picks / n, off / float64(picks)
	}
	for _, c := range []struct {
		what             string
		from, to, lo, hi int
	}{
		{"before", 20, 60, 40, 60},
		{"from 20 s after it slowed down", 80, 120, 1, 35},
		{"from 40 s after it recovered", 160, 200, 40, 60},
	} {
		picks, off := share(c.from, c.to)
		t.Logf("%s: %d %% of the picks, mean error %.2f", c.what, picks, off)
		if picks < c.lo || picks > c.hi {
			t.Errorf("%s the worker gets %d %% of the requests, want %d to %d", c.what, picks, c.lo, c.hi)
		}
		if off > 0.4 {
			t.Errorf("%s its predictions are off by %.2f on average", c.what, off)
		}
	}
}

// TestSimCachedBehindCold sends a cached prompt to a worker in the middle of a
// cold prefill, again and again: the prediction knows that it waits.
func TestSimCachedBehindCold(t *testing.T) {
	s := newSimulation(DefaultConfig(), 1)
	warm := prompt(1, 1000)
	at := time.Duration(0)
	var behind []*simRequest
	for i := range 120 {
		at += 3 * time.Second
		s.submit(at, &simRequest{tokens: prompt(uint64(100+i), 4000), output: 4})
		r := &simRequest{tokens: warm, output: 4}
		s.submit(at+time.Duration(s.rng.IntN(450))*time.Millisecond, r)
		s.submit(at+2*time.Second, &simRequest{tokens: warm, output: 4})
		behind = append(behind, r)
	}
	s.run()
	var errs []float64
	for _, r := range behind[30:] {
		errs = append(errs, max(r.ttft-r.res.predicted, r.res.predicted-r.ttft).Seconds()/r.ttft.Seconds())
	}
	slices.Sort(errs)
	t.Logf("error p50 %.3f p90 %.3f", errs[len(errs)/2], errs[len(errs)*9/10])
	if p50 := errs[len(errs)/2]; p50 > 0.2 {
		t.Errorf("the median error of cached prompts behind cold ones is %.2f, want at most 0.2", p50)
	}
}
