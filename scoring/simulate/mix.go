package simulate

import (
	"cmp"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"time"
)

// Group is some tenants who ask for the same at the same rate.
type Group struct {
	// Name is the one tenant's name; several are numbered, from First + 1.
	Name    string
	First   int
	Tenants int
	// Class is the index of their requests' class.
	Class int
	// Rate is the requests a second of all of them together.
	Rate float64
	// Weight, Returns and Hurry are as in [Tenant].
	Weight  float64
	Returns int
	Hurry   time.Duration
	// Burst varies the rate.
	Burst Burst
}

// Burst makes requests come Factor times as often for a time, again and again; the
// zero value never.
type Burst struct {
	Factor     float64
	For, Every time.Duration
}

// rate is the factor at that time.
func (b Burst) rate(at float64) float64 {
	if b.Every > 0 && math.Mod(at, b.Every.Seconds()) < b.For.Seconds() {
		return b.Factor
	}
	return 1
}

// Mix is an open loop of several tenants' requests, which are all of one kind.
type Mix struct {
	Name   string
	Groups []Group
	// For is how long requests arrive.
	For time.Duration
	// Prompts say what the requests are; its number of requests does not count.
	Prompts Prefixed
}

// Plan makes the load's plan. What one tenant sends, and when, does not depend on
// the other tenants.
func (m Mix) Plan(seed uint64) *Plan {
	p := &Plan{Name: m.Name}
	for _, g := range m.Groups {
		for k := range g.Tenants {
			t := Tenant{Name: g.Name, Weight: g.Weight, Returns: g.Returns, Hurry: g.Hurry}
			if g.First > 0 || g.Tenants > 1 {
				t.Name = fmt.Sprintf("%s-%d", g.Name, g.First+k+1)
			}
			m.arrive(p, &g, seed)
			p.Tenants = append(p.Tenants, t)
		}
	}
	slices.SortStableFunc(p.Requests, func(a, b Request) int { return cmp.Compare(a.At, b.At) })
	return p
}

// arrive adds the requests of the next tenant, one of g.
func (m *Mix) arrive(p *Plan, g *Group, seed uint64) {
	tenant := len(p.Tenants)
	own := mix(seed) ^ mix(uint64(tenant)+1)
	times := rand.New(rand.NewPCG(own, 0xa441))
	most := max(1, g.Burst.Factor)
	var at []time.Duration
	for t := 0.0; ; {
		t += times.ExpFloat64() / (g.Rate / float64(g.Tenants) * most)
		if !(t < m.For.Seconds()) {
			break
		}
		// A process whose rate varies is one at its highest rate of which some are
		// left out.
		if times.Float64()*most < g.Burst.rate(t) {
			at = append(at, time.Duration(t*float64(time.Second)))
		}
	}
	l := m.Prompts
	l.Requests = len(at)
	requests := l.Plan(Arrivals{Streams: 1}, own).Requests
	for i := range requests {
		requests[i].At, requests[i].Tenant, requests[i].Class = at[i], tenant, g.Class
	}
	p.Requests = append(p.Requests, requests...)
}
