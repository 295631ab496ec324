//go:build !race

package simulate

import (
	"testing"
	"time"

	"github.com/sluicegate/sluice/gateway/qos/placing"
)

// The mix of deploy/bench/overload, which plays it against a gateway as a process
// before simulated workers: what it shows should show here, too.

// liveCapacity is the tokens of work a second that 40 streams a worker of one class
// alone reach with first tokens in 0.3 s; the live benchmark measures about as much.
const liveCapacity = 24_600.0

// livePrompts are of 100 to 2,000 tokens that nobody else has. Clients say how long
// their answers are.
func livePrompts() Prefixed {
	return Prefixed{Name: "independent", FreshMin: 100, FreshMax: 2000, OutputMin: 64, OutputMax: 512, Said: 1}
}

// liveWork is the work of a request of that kind on average.
const liveWork = (100+2000)/2.0 + placing.OutputCost*(64+512)/2.0

// liveLargest is the most work of one.
const liveLargest = 2000 + placing.OutputCost*512

// liveMix is what twenty tenants ask for, so many times the capacity in all.
func liveMix(times float64) Mix {
	rate := liveCapacity / liveWork * times / 2
	return Mix{Name: "live overload", For: *overloadTime, Prompts: livePrompts(), Groups: []Group{
		{Name: "interactive", Tenants: 8, Class: 0, Rate: 0.35 * rate, Returns: 5},
		{Name: "standard", Tenants: 6, Class: 1, Rate: 0.15 * rate, Returns: 5},
		{Name: "flood", Tenants: 1, Class: 1, Rate: 0.75 * rate}, // what is refused does not come back
		{Name: "batch", Tenants: 5, Class: 2, Rate: 0.75 * rate, Returns: 5},
	}}
}

// workDone is the tokens of work a second of answers that ended after the warm-up while
// requests came, and of those in time.
func workDone(r *Result, plan *Plan, classes []time.Duration) (all, good float64) {
	from, to := overloadWarmup(), *overloadTime
	for i := range r.Samples {
		s := &r.Samples[i]
		end := s.Sent + s.Total
		if s.Refused || end < from || end >= to {
			continue
		}
		all += float64(s.Work)
		if s.TTFT <= classes[plan.Requests[i].Class] {
			good += float64(s.Work)
		}
	}
	return all / (to - from).Seconds(), good / (to - from).Seconds()
}

// TestOverloadAsLive: the mix of the live benchmark at twice the capacity.
func TestOverloadAsLive(t *testing.T) {
	for seed := uint64(1); seed <= uint64(*overloadSeeds); seed++ {
		var plan *Plan
		r := overload(t, liveMix(2), seed, func(_ *Config, p *Plan) { plan = p })
		var targets []time.Duration
		for _, c := range overloadClasses().Classes {
			targets = append(targets, c.Target)
		}
		all, good := workDone(r, plan, targets)
		t.Logf("seed %d: %.0f tokens of work a second, %.0f in time, which is %.3f of one class alone; %d taken back by workers",
			seed, all, good, good/liveCapacity, r.Preemptions)
		if all < 0.98*liveCapacity {
			t.Errorf("seed %d: %.0f tokens of work a second, one class alone reaches %.0f", seed, all, liveCapacity)
		}
		if good < 0.95*liveCapacity {
			t.Errorf("seed %d: %.0f tokens of work a second were in time, want 0.95 of the %.0f of one class alone", seed, good, liveCapacity)
		}
		if met := r.Classes[0].Met; met < 0.99 || len(r.Classes[0].Refused) > 0 {
			t.Errorf("seed %d: %.3f of interactive requests met their target, want 0.99; refused were %v", seed, met, r.Classes[0].Refused)
		}
		// One entry can be owed to it at the end.
		least := 0.15 - liveLargest/(liveCapacity*(*overloadTime-overloadWarmup()).Seconds())
		if batch := r.Classes[2].Contended; batch < least {
			t.Errorf("seed %d: batch had %.4f of the work while it waited, its share is 0.15, less an entry %.4f", seed, batch, least)
		}
		if r.Preemptions > int64(len(r.Samples)/50) {
			t.Errorf("seed %d: workers took back %d running requests of %d", seed, r.Preemptions, len(r.Samples))
		}
	}
}
