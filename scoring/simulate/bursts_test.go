//go:build !race

package simulate

import (
	"testing"
	"time"
)

// The bursts of the test below: ten seconds of every minute.
const (
	burstFor   = 10 * time.Second
	burstEvery = time.Minute
)

// burstMix asks for so many times the capacity. During a burst the requests of one group,
// or of all, come factor times as often.
func burstMix(which string, times, factor float64) Mix {
	rate := times * liveCapacity / liveWork
	m := Mix{Name: "burst of " + which, For: 2*burstEvery + *overloadTime, Prompts: livePrompts(), Groups: []Group{
		{Name: "interactive", Tenants: 8, Class: 0, Rate: 0.35 * rate, Returns: 5},
		{Name: "standard", Tenants: 5, Class: 1, Rate: 0.25 * rate, Returns: 5},
		{Name: "one", Tenants: 1, Class: 1, Rate: 0.05 * rate, Returns: 5},
		{Name: "batch", Tenants: 5, Class: 2, Rate: 0.35 * rate, Returns: 5},
	}}
	for i := range m.Groups {
		if g := &m.Groups[i]; g.Name == which || which == "all" {
			g.Burst = Burst{Factor: factor, For: burstFor, Every: burstEvery}
		}
	}
	return m
}

// recovery is how long after the end of a burst requests still came that waited for a
// second or more, at most.
func (p played) recovery(of string) (longest time.Duration) {
	for i := range p.record {
		s, r := &p.record[i], &p.asked.Requests[i]
		if s.Sent < burstEvery || s.Queued < time.Second || group(p.asked.Tenants[r.Tenant].Name) != of {
			continue
		}
		if after := s.Sent%burstEvery - burstFor; after > longest {
			longest = after
		}
	}
	return longest
}

// TestBurstsWait: what comes in a burst waits and is not refused, as long as targets
// can be met after it; who is more urgent, and the others of the class, hardly notice.
// A tenant's burst is as large as that of a class.
func TestBurstsWait(t *testing.T) {
	for _, b := range []struct {
		of            string
		times, factor float64
		spared        []string // who meets its target all the same
		met           float64  // that often
	}{
		{"interactive", 0.8, 3, []string{"interactive", "standard", "one", "batch"}, 0.99},
		{"batch", 0.8, 3, []string{"interactive", "standard", "one", "batch"}, 0.99},
		{"one", 0.8, 15, []string{"interactive", "standard", "batch"}, 0.99},
		{"all", 0.7, 3, []string{"interactive", "batch"}, 0.95}, // 0.93 on average
	} {
		for seed := uint64(1); seed <= uint64(*overloadSeeds); seed++ {
			p := play(t, burstMix(b.of, b.times, b.factor).Plan(seed), seed, nil, nil)
			sums := p.fares(burstEvery, group)
			for _, name := range []string{"interactive", "standard", "one", "batch"} {
				f := sums[name]
				t.Logf("burst of %s, seed %d: %s: %d came, %d refused, met %.3f; waited at most %.1f s, for %.1f s after a burst's end; %d taken back",
					b.of, seed, name, f.came, f.refused, f.metShare(), f.longest().Seconds(), p.recovery(name).Seconds(), p.preemptions())
				if f.refused > 0 {
					t.Errorf("burst of %s, seed %d: %d of %s were refused", b.of, seed, f.refused, name)
				}
			}
			for _, name := range b.spared {
				if f := sums[name]; f.metShare() < b.met {
					t.Errorf("burst of %s, seed %d: %s met %.3f of its targets", b.of, seed, name, f.metShare())
				}
			}
		}
	}
}
