//go:build !race

// A simulation is of one goroutine: the race detector has nothing to find in it, and
// takes twenty times as long.

package simulate

import (
	"flag"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sluicegate/sluice/gateway/qos"
)

// The long form of the tests below, of which docs/0010 has the figures. Only that
// holds for long enough to show how much work is done in all, and who has it.
var (
	overloadSeeds = flag.Int("overload.seeds", 1, "seeds that the tests of overload run with")
	overloadTime  = flag.Duration("overload.time", 90*time.Second, "how long the tests of overload let requests come; from 3m on is the long form")
)

// longForm says whether it is that.
func longForm() bool { return *overloadTime >= 3*time.Minute }

// overloadCapacity is what [Capacity] finds for the fleet and the requests of these
// tests, in requests a second.
const overloadCapacity = 13.4

// overloadWarmup is left out of all figures.
func overloadWarmup() time.Duration { return min(time.Minute, *overloadTime/3) }

func overloadPrompts() Prefixed {
	return Prefixed{Name: "mixed", Buckets: Mixed(), FreshMin: 16, FreshMax: 600, OutputMin: 64, OutputMax: 512}
}

// overloadClasses are three classes as they might be configured.
func overloadClasses() *qos.Config {
	cfg := qos.DefaultConfig("interactive", "standard", "batch")
	for i, c := range []struct {
		target, maxWait time.Duration
		share           float64
	}{{2 * time.Second, 10 * time.Second, 0}, {8 * time.Second, 30 * time.Second, 0.1}, {time.Minute, 5 * time.Minute, 0.15}} {
		class := &cfg.Classes[i]
		class.Target, class.MaxWait, class.Share, class.Bound = c.target, c.maxWait, c.share, 0
	}
	qos.SetBounds(cfg.Classes)
	return &cfg
}

// overloadMix is 20 tenants whose requests come to so many times the capacity, most of
// them those of one standard tenant that sends 30 times what its peers do, and again
// after a second whatever it is told. Without the flood it sends what its peers do.
func overloadMix(times float64, flood bool) Mix {
	load := overloadCapacity * times
	peer := 0.12 * load / 6
	m := Mix{Name: fmt.Sprintf("overload %gx", times), For: *overloadTime, Prompts: overloadPrompts(), Groups: []Group{
		{Name: "interactive", Tenants: 8, Class: 0, Rate: 0.175 * load, Returns: 3},
		{Name: "standard", Tenants: 6, Class: 1, Rate: 6 * peer, Returns: 3},
		{Name: "flood", Tenants: 1, Class: 1, Rate: 30 * peer, Returns: 3, Hurry: time.Second},
		{Name: "batch", Tenants: 5, Class: 2, Rate: 0.105 * load, Returns: 3},
	}}
	if !flood {
		m.Groups[2].Rate = peer
	}
	return m
}

// overload runs a mix under the queue, or as change has it.
func overload(t *testing.T, m Mix, seed uint64, change func(*Config, *Plan)) *Result {
	t.Helper()
	plan := m.Plan(seed)
	cfg := DefaultConfig()
	cfg.Workers, cfg.Seed, cfg.QoS = 6, seed, overloadClasses()
	cfg.Engine.Timing.Jitter = 0.05
	for cfg.Warmup < len(plan.Requests) && plan.Requests[cfg.Warmup].At < overloadWarmup() {
		cfg.Warmup++
	}
	if change != nil {
		change(&cfg, plan)
	}
	r := run(t, &cfg, plan, "ttft")
	t.Logf("%s, seed %d:\n%s", m.Name, seed, classTable(r))
	return r
}

// classTable writes how the classes did, and the flood.
func classTable(r *Result) string {
	var b strings.Builder
	for _, c := range slices.Concat(r.Classes, r.Tenants) {
		if c.Tenant != "" && !strings.HasSuffix(c.Tenant, "-1") && c.Tenant != "flood" {
			continue
		}
		fmt.Fprintf(&b, "%-11s %-13s %5d came, %5d served, met %.3f, %.2f/s good; TTFT %.0f %.0f %.0f; waited %.0f %.0f; work %d %.3f, while waiting %.4f; returned %d, served %d; %v\n",
			c.Class, c.Tenant, c.Requests, c.Served, c.Met, c.Goodput, c.TTFT.P50, c.TTFT.P90, c.TTFT.P99,
			c.Wait.P50, c.Wait.P90, c.Work, c.Share, c.Contended, c.Returned, c.Welcome, c.Refused)
	}
	return b.String()
}

// goodput is the requests a second of all classes that met their targets.
func goodput(r *Result) float64 {
	sum := 0.0
	for _, c := range r.Classes {
		sum += c.Goodput
	}
	return sum
}

func tenantResult(t *testing.T, r *Result, name string) ClassResult {
	t.Helper()
	for _, c := range r.Tenants {
		if c.Tenant == name {
			return c
		}
	}
	t.Fatalf("there is no tenant %s", name)
	return ClassResult{}
}

// TestOverload: at twice the capacity with one tenant that floods, who is urgent meets
// its target, who is not gets its share, the flood gets what its peers leave it, and
// as much is done in time as can be.
//
// In the short form some three hundred urgent requests come for each seed, and what is
// waiting at its end is not in the work that is done. So the bounds are on all seeds
// together.
func TestOverload(t *testing.T) {
	var came, met, contended float64
	var allPeers, allAlone int64
	seeds := uint64(max(3, *overloadSeeds))
	for seed := uint64(1); seed <= seeds; seed++ {
		with := overload(t, overloadMix(2, true), seed, nil)
		without := overload(t, overloadMix(2, false), seed, nil)
		interactive, standard, batch := with.Classes[0], with.Classes[1], with.Classes[2]
		came += float64(interactive.Requests)
		met += interactive.Met * float64(interactive.Requests)
		contended += batch.Contended / float64(seeds)
		var peers, alone int64
		for k := range 6 {
			name := fmt.Sprintf("standard-%d", k+1)
			p, a := tenantResult(t, with, name), tenantResult(t, without, name)
			peers, alone = peers+p.Work, alone+a.Work
			if longForm() && p.Met < 0.8 {
				t.Errorf("seed %d: %s met %.3f of its targets beside the flood", seed, name, p.Met)
			}
		}
		allPeers, allAlone = allPeers+peers, allAlone+alone
		t.Logf("seed %d: interactive %.3f, batch %.3f, peers %.3f", seed, interactive.Met, batch.Contended, float64(peers)/float64(alone))
		// They want less than an equal part, so what they leave is the flood's.
		fair := standard.Work - alone
		if got := tenantResult(t, with, "flood").Work; longForm() && (got < fair*9/10 || got > fair*11/10) {
			t.Errorf("seed %d: the flood had %d tokens of work, its part is %d", seed, got, fair)
		}
		if good := goodput(with); longForm() && good < 0.88*overloadCapacity {
			t.Errorf("seed %d: %.2f requests a second met their targets, want 0.88 of %.1f", seed, good, overloadCapacity)
		}
	}
	if met < 0.99*came {
		t.Errorf("%.4f of interactive requests met their target, want 0.99", met/came)
	}
	if contended < 0.15*0.99 {
		t.Errorf("batch had %.4f of the work while it waited, its share is 0.15", contended)
	}
	if float64(allPeers) < 0.98*float64(allAlone) {
		t.Errorf("beside the flood its peers had %d tokens of work, without it %d", allPeers, allAlone)
	}
}

// TestNobodyIsRefusedWithoutOverload: at 0.7 times the capacity none is, and all
// targets are met.
func TestNobodyIsRefusedWithoutOverload(t *testing.T) {
	for seed := uint64(1); seed <= uint64(*overloadSeeds); seed++ {
		for _, c := range overload(t, overloadMix(0.7, true), seed, nil).Classes {
			if len(c.Refused) > 0 || c.Met < 0.99 {
				t.Errorf("seed %d: of %s %v were refused, %.3f of the targets met", seed, c.Class, c.Refused, c.Met)
			}
		}
	}
}

// TestWarmupIsLeftOutOfShares: what waited before the warm-up is over is in no figure.
func TestWarmupIsLeftOutOfShares(t *testing.T) {
	const before, after = 40, 10
	p := Prefixed{Name: "p", Requests: before + after, FreshMin: 2000, FreshMax: 2000, OutputMin: 64, OutputMax: 64}.Plan(Arrivals{Rate: 100}, 1)
	for i := range p.Requests {
		r := &p.Requests[i]
		if r.Class = 2; i >= before {
			r.Class, r.At = 0, time.Minute+10*time.Second*time.Duration(i-before)
		}
	}
	for warmup, waited := range map[int]bool{0: true, before: false} {
		cfg := DefaultConfig()
		cfg.Workers, cfg.QoS, cfg.Warmup = 1, overloadClasses(), warmup
		classes := run(t, &cfg, p, "ttft").Classes
		if got := classes[len(classes)-1].Contended; (got > 0) != waited {
			t.Errorf("with a warm-up of %d requests batch had %v of the work while it waited", warmup, got)
		}
	}
}
