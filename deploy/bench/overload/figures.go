package main

import (
	"cmp"
	"slices"
	"time"
)

// figures are what one run has shown, in the model's time.
type figures struct {
	Run     string          `json:"run"`
	Factor  float64         `json:"load"`                 // in capacities
	Seconds float64         `json:"seconds"`              // of the measured time
	Work    float64         `json:"work_per_second"`      // of all that ended in it
	Goodput float64         `json:"good_work_per_second"` // of those that met their target
	Classes []*groupFigures `json:"classes"`              //
	Tenants []*groupFigures `json:"tenants"`              //
	Left    float64         `json:"queued_at_the_end"`    // by the gateway's own gauge
	// Preempted is how often a worker took back a running request for want of memory.
	Preempted float64            `json:"preempted"`
	Lag       float64            `json:"lag_p99_ms"`           // real: how late requests were sent
	CPU       map[string]float64 `json:"processors,omitempty"` // used on average, by whom
}

// groupFigures are of a class or of a tenant. A request that was refused and came
// again counts twice.
type groupFigures struct {
	Name     string         `json:"name"`
	Class    string         `json:"class"`
	Comings  int            `json:"comings"`
	Served   int            `json:"served"`
	Met      float64        `json:"met"` // part of all comings whose first token came within the class's target
	Refused  int            `json:"refused"`
	Failed   int            `json:"failed"`
	Errors   map[string]int `json:"errors,omitempty"`
	P50      float64        `json:"ttft_p50_s"`
	P90      float64        `json:"ttft_p90_s"`
	P99      float64        `json:"ttft_p99_s"`
	Work     float64        `json:"work_per_second"` // of answers that ended in the measured time
	Share    float64        `json:"work_share"`
	Asked    float64        `json:"asked_per_second"` // work of first comings in the measured time
	Done     float64        `json:"done_per_second"`  // of that, what was served in the end
	Returns  int            `json:"returns"`
	Welcome  int            `json:"welcome"` // returns that were not refused again
	first    []float64
	metCount int
}

// figure adds up the records of the time from warm to length, both real.
func figure(run string, factor float64, records []record, warm, length time.Duration, scale float64) *figures {
	f := &figures{Run: run, Factor: factor, Seconds: (length - warm).Seconds() / scale}
	byClass, byTenant := make(map[string]*groupFigures), make(map[string]*groupFigures)
	group := func(in map[string]*groupFigures, list *[]*groupFigures, name, class string) *groupFigures {
		if in[name] == nil {
			in[name] = &groupFigures{Name: name, Class: class}
			*list = append(*list, in[name])
		}
		return in[name]
	}
	var lags []float64
	for i := range records {
		r := &records[i]
		target := targetOf(r.Class)
		met := r.FirstMS > 0 && r.served() && r.FirstMS/1000/scale <= target.Seconds()
		for _, g := range []*groupFigures{group(byClass, &f.Classes, r.Class, r.Class), group(byTenant, &f.Tenants, r.Tenant, r.Class)} {
			if r.At >= warm.Seconds() && r.At < length.Seconds() {
				g.come(r, met, scale)
			}
			if r.served() && r.First >= warm.Seconds() && r.First < length.Seconds() {
				g.Done += r.Work / f.Seconds
			}
			if r.served() && r.End >= warm.Seconds() && r.End < length.Seconds() {
				g.Work += r.Work / f.Seconds
			}
		}
		if r.served() && r.End >= warm.Seconds() && r.End < length.Seconds() {
			f.Work += r.Work / f.Seconds
			if met {
				f.Goodput += r.Work / f.Seconds
			}
		}
		lags = append(lags, r.LagMS)
	}
	f.Lag = quantile(lags, 0.99)
	for _, g := range slices.Concat(f.Classes, f.Tenants) {
		g.finish(f)
	}
	byOrder := func(a, b *groupFigures) int { return classOf(a.Class) - classOf(b.Class) }
	slices.SortStableFunc(f.Classes, byOrder)
	slices.SortStableFunc(f.Tenants, func(a, b *groupFigures) int {
		if c := byOrder(a, b); c != 0 {
			return c
		}
		if a.Name < b.Name {
			return -1
		}
		return 1
	})
	return f
}

func (g *groupFigures) come(r *record, met bool, scale float64) {
	g.Comings++
	if r.Return == 0 {
		g.Asked += r.Work
	} else {
		g.Returns++
		if !r.Refused {
			g.Welcome++
		}
	}
	switch {
	case r.Refused:
		g.Refused++
	case r.served():
		g.Served++
	default:
		g.Failed++
		if g.Errors == nil {
			g.Errors = make(map[string]int)
		}
		g.Errors[r.Error]++
	}
	if r.FirstMS > 0 {
		g.first = append(g.first, r.FirstMS/1000/scale)
	}
	if met {
		g.metCount++
	}
}

func (g *groupFigures) finish(f *figures) {
	g.P50, g.P90, g.P99 = quantile(g.first, 0.5), quantile(g.first, 0.9), quantile(g.first, 0.99)
	g.Asked /= f.Seconds
	if g.Comings > 0 {
		g.Met = float64(g.metCount) / float64(g.Comings)
	}
	if f.Work > 0 {
		g.Share = g.Work / f.Work
	}
}

func (f *figures) class(name string) *groupFigures  { return find(f.Classes, name) }
func (f *figures) tenant(name string) *groupFigures { return find(f.Tenants, name) }

// find returns empty figures for what sent nothing.
func find(list []*groupFigures, name string) *groupFigures {
	for _, g := range list {
		if g.Name == name {
			return g
		}
	}
	return &groupFigures{Name: name}
}

func classOf(name string) int {
	return slices.IndexFunc(classes, func(c class) bool { return c.name == name })
}

func targetOf(name string) time.Duration { return classes[classOf(name)].target }

// quantile sorts v; of nothing it is 0.
func quantile(v []float64, q float64) float64 {
	if len(v) == 0 {
		return 0
	}
	slices.Sort(v)
	return v[min(len(v)-1, int(q*float64(len(v))))]
}

// fair is the max-min fair part of total for each demand: nobody gets more than
// it asks for, and what is left is the same for all others.
func fair(total float64, demands []float64) []float64 {
	parts := make([]float64, len(demands))
	open := make([]int, len(demands))
	for i := range open {
		open[i] = i
	}
	slices.SortFunc(open, func(a, b int) int { return cmp.Compare(demands[a], demands[b]) })
	for k, i := range open {
		parts[i] = min(demands[i], total/float64(len(open)-k))
		total -= parts[i]
	}
	return parts
}
