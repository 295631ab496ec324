//go:build !race

package simulate

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/sluicegate/sluice/gateway/qos"
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
// after a second whatever they are told have no more work done than the others. The first
// minute is left out: who obeys has most of its turns after it (docs/0038).
func TestHurryingIsOfNoUse(t *testing.T) {
	mix := returnsMix(2, 10)
	mix.For = max(3*time.Minute, *overloadTime)
	for seed := uint64(1); seed <= uint64(*overloadSeeds); seed++ {
		p := play(t, mix.Plan(seed), seed, nil, nil)
		sums := p.fares(time.Minute, group)
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

// TestReturnsAreWelcome: twenty tenants of one class that all obey Retry-After, at so many
// times the capacity. Of those that come when they were told to more than eight in ten find
// room (three quarters at five times the capacity, in the first minutes), as much work as can
// be is in time, and half of the first tokens come as forecast or sooner.
func TestReturnsAreWelcome(t *testing.T) {
	const warmup = time.Minute // in which the overload begins
	for _, c := range []struct{ times, welcome, good float64 }{
		{1.2, 0.8, 0.95}, {2, 0.8, 0.9}, {5, 0.75, 0.9},
	} {
		mix := returnsMix(c.times, 0)
		mix.For = max(3*warmup, *overloadTime)
		for seed := uint64(1); seed <= uint64(*overloadSeeds); seed++ {
			m := begin(t, mix.Plan(seed), seed, nil, nil)
			// Those that are told to come after the last arrival are of no interest.
			for ended := m.until + time.Minute; m.left > 0 && m.now < ended; {
				m.step()
			}
			p := played{m, m.plan}
			f := p.fares(warmup, group)["obeys"]
			seconds := (p.until - warmup).Seconds()
			welcome, good := float64(f.welcome)/float64(max(1, f.returned)), float64(f.good)/seconds/liveCapacity
			vain, off := p.vain(warmup), p.offForecast(warmup)
			t.Logf("%gx, seed %d: %d came again, %.3f were welcome; of %d served %.3f in time; %d waited in vain; work %.0f a second, in time %.3f of the capacity; time to first token over its forecast %.2f %.2f %.2f",
				c.times, seed, f.returned, welcome, len(f.waits), float64(f.met)/float64(len(f.waits)), vain, float64(f.work)/seconds, good, off[0], off[1], off[2])
			if f.returned < 300 || welcome < c.welcome {
				t.Errorf("%gx, seed %d: %.3f of %d that came again were welcome, want %.2f", c.times, seed, welcome, f.returned, c.welcome)
			}
			if good < c.good {
				t.Errorf("%gx, seed %d: work in time is %.3f of the capacity, want %.2f", c.times, seed, good, c.good)
			}
			if off[1] < 0.7 || off[1] > 1.3 {
				t.Errorf("%gx, seed %d: half of the first tokens took %.2f times their forecast or less", c.times, seed, off[1])
			}
		}
	}
}

// vain counts those that came from a time on and waited in vain.
func (p played) vain(from time.Duration) (n int) {
	for i := range p.queue.refused {
		if r := &p.queue.refused[i]; r.Reason == qos.ReasonWaited && r.At >= from && r.At < p.until {
			n++
		}
	}
	return n
}

// offForecast are the tenth, half and nine tenths of how many times what was forecast it took
// to first tokens, of those that came from a time on and had to wait.
func (p played) offForecast(from time.Duration) (at [3]float64) {
	var all []float64
	for i := range p.record {
		if s := &p.record[i]; s.Forecast > 0 && s.TTFT > 0 && s.Sent >= from && s.Sent < p.until {
			all = append(all, s.TTFT.Seconds()/s.Forecast.Seconds())
		}
	}
	slices.Sort(all)
	for k, q := range []float64{0.1, 0.5, 0.9} {
		if len(all) > 0 {
			at[k] = all[rank(len(all), q)]
		}
	}
	return at
}
