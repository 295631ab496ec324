//go:build !race

package simulate

import (
	"fmt"
	"slices"
	"testing"
	"time"
)

// returnsMix is twenty tenants of the standard class, so many times the capacity in
// all. Those that hurry come again after a second whatever they are told.
func returnsMix(times float64, hurry int) Mix {
	rate := liveCapacity / liveWork * times / 20
	m := Mix{Name: fmt.Sprintf("returns at %gx", times), For: *overloadTime, Prompts: livePrompts(), Groups: []Group{
		{Name: "obeys", Tenants: 20 - hurry, Class: 1, Rate: rate * float64(20-hurry), Returns: 5},
	}}
	if hurry > 0 {
		m.Groups = append(m.Groups, Group{Name: "hurries", Tenants: hurry, Class: 1, Rate: rate * float64(hurry), Returns: 30, Hurry: time.Second})
	}
	return m
}

// since is the median time from when a request first came to its first token, of those
// of some tenants that were served.
func (p played) since(of string) time.Duration {
	var all []time.Duration
	for i := range p.record {
		s, r := &p.record[i], &p.asked.Requests[i]
		if !s.Refused && r.At >= overloadWarmup() && r.At < p.until && group(p.asked.Tenants[r.Tenant].Name) == of {
			all = append(all, s.Sent+s.TTFT-r.At)
		}
	}
	if len(all) == 0 {
		return 0
	}
	slices.Sort(all)
	return all[len(all)/2]
}

// TestHurryingIsOfNoUse: at twice the capacity the half of the tenants that come again
// after a second whatever they are told have no more work done than the others. How many
// of those that obey are welcome is logged: nine in ten should be, and it is missed
// (docs/0038).
func TestHurryingIsOfNoUse(t *testing.T) {
	for seed := uint64(1); seed <= uint64(*overloadSeeds); seed++ {
		p := play(t, returnsMix(2, 10).Plan(seed), seed, nil, nil)
		sums := p.fares(overloadWarmup(), group)
		obeys, hurries := sums["obeys"], sums["hurries"]
		for name, f := range sums {
			t.Logf("seed %d: %s: %d came, %d refused, met %.3f, work %d of %d wanted, %d in time; %d came again, %d were welcome; first tokens %.1f s after the first coming",
				seed, name, f.came, f.refused, f.metShare(), f.work, f.wanted, f.good, f.returned, f.welcome, p.since(name).Seconds())
		}
		if float64(hurries.work) > 1.05*float64(obeys.work) {
			t.Errorf("seed %d: those that hurry had %d tokens of work, those that obey %d", seed, hurries.work, obeys.work)
		}
	}
}
