package main

import (
	"fmt"
	"io"
	"slices"
	"sort"
	"time"
)

// quantile is a distribution in milliseconds.
type quantile struct {
	Mean float64 `json:"mean"`
	P50  float64 `json:"p50"`
	P90  float64 `json:"p90"`
	P99  float64 `json:"p99"`
	Max  float64 `json:"max"`
}

func ms(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

// quantiles sorts d.
func quantiles(d []time.Duration) quantile {
	if len(d) == 0 {
		return quantile{}
	}
	slices.Sort(d)
	var sum time.Duration
	for _, v := range d {
		sum += v
	}
	at := func(q float64) float64 { return ms(d[int(q*float64(len(d)-1)+0.5)]) }
	return quantile{Mean: ms(sum) / float64(len(d)), P50: at(0.5), P90: at(0.9), P99: at(0.99), Max: ms(d[len(d)-1])}
}

// median returns the middle value, of an even number the mean of the middle two.
func median(v []float64) float64 {
	if len(v) == 0 {
		return 0
	}
	s := slices.Sorted(slices.Values(v))
	return (s[(len(s)-1)/2] + s[len(s)/2]) / 2
}

// cell is what all repetitions of one router at one load gave, as medians.
type cell struct {
	workload, router string
	load             int
	reps             int
	rate             float64
	mean, p50, p90   float64
	p99, total       float64
	low, high        float64 // least and greatest mean
	hit, computed    float64
	spread           float64 // busiest worker over the mean one
	cpu, rss         float64
	errors, requests int
	lag, machine     float64 // greatest of all repetitions
}

// cells groups results and takes medians, in order of first appearance.
func cells(results []*result) []*cell {
	type key struct {
		workload, router string
		load             int
	}
	groups := make(map[key][]*result)
	var order []key
	for _, r := range results {
		if r.Failed != "" {
			continue // named where it failed, and in the JSON
		}
		k := key{r.Workload, r.Router, r.Load}
		if groups[k] == nil {
			order = append(order, k)
		}
		groups[k] = append(groups[k], r)
	}
	var out []*cell
	for _, k := range order {
		out = append(out, newCell(groups[k]))
	}
	return out
}

func newCell(rs []*result) *cell {
	of := func(f func(*result) float64) []float64 {
		var v []float64
		for _, r := range rs {
			v = append(v, f(r))
		}
		return v
	}
	means := of(func(r *result) float64 { return r.TTFT.Mean })
	c := &cell{
		workload: rs[0].Workload, router: rs[0].Router, load: rs[0].Load, reps: len(rs), rate: rs[0].Rate,
		mean: median(means), low: slices.Min(means), high: slices.Max(means),
		p50:      median(of(func(r *result) float64 { return r.TTFT.P50 })),
		p90:      median(of(func(r *result) float64 { return r.TTFT.P90 })),
		p99:      median(of(func(r *result) float64 { return r.TTFT.P99 })),
		total:    median(of(func(r *result) float64 { return r.Total.Mean })),
		hit:      median(of(func(r *result) float64 { return r.Hit })),
		computed: median(of(func(r *result) float64 { return r.Computed })),
		spread:   median(of(func(r *result) float64 { return unevenness(r.PerWorker) })),
		cpu:      median(of(func(r *result) float64 { return r.RouterCPU })),
		rss:      median(of(func(r *result) float64 { return float64(r.RouterRSS) / (1 << 20) })),
		lag:      slices.Max(of(func(r *result) float64 { return r.Lag.P99 })),
		machine:  slices.Max(of(func(r *result) float64 { return 100 * r.MachineCPU / r.MachineCores })),
	}
	for _, r := range rs {
		c.errors += r.Errors
		c.requests += r.Requests
	}
	return c
}

// unevenness is the busiest worker's requests over the mean.
func unevenness(perWorker []int) float64 {
	sum := 0
	for _, n := range perWorker {
		sum += n
	}
	if sum == 0 {
		return 0
	}
	return float64(slices.Max(perWorker)) * float64(len(perWorker)) / float64(sum)
}

// writeTable writes a table for each workload and load, with Sluice against
// the best of the others.
func writeTable(w io.Writer, all []*cell) {
	type key struct {
		workload string
		load     int
	}
	groups := make(map[key][]*cell)
	var order []key
	for _, c := range all {
		k := key{c.workload, c.load}
		if groups[k] == nil {
			order = append(order, k)
		}
		groups[k] = append(groups[k], c)
	}
	sort.SliceStable(order, func(i, j int) bool {
		if order[i].workload != order[j].workload {
			return order[i].workload < order[j].workload
		}
		return order[i].load < order[j].load
	})
	for _, k := range order {
		group := groups[k]
		fmt.Fprintf(w, "\n%s at %d %% (%.1f requests/s, %d repetitions)\n\n", k.workload, k.load, group[0].rate, group[0].reps)
		fmt.Fprintln(w, "| router | TTFT mean (range) | p50 | p90 | p99 ms | whole answer ms | hit | computed tokens | busiest worker | router CPU | RSS MB | errors | lag p99 ms | machine |")
		fmt.Fprintln(w, "|---|---|---|---|---|---|---|---|---|---|---|---|---|---|")
		for _, c := range group {
			fmt.Fprintf(w, "| %s | %.0f (%.0f-%.0f) | %.0f | %.0f | %.0f | %.0f | %.1f %% | %.0fk | %.2fx | %.2f | %.0f | %d/%d | %.1f | %.0f %% |\n",
				c.router, c.mean, c.low, c.high, c.p50, c.p90, c.p99, c.total, 100*c.hit, c.computed/1e3, c.spread, c.cpu, c.rss, c.errors, c.requests, c.lag, c.machine)
		}
		writeRatios(w, group)
	}
}

// writeRatios compares the gateway with the best other router, by each figure.
func writeRatios(w io.Writer, group []*cell) {
	i := slices.IndexFunc(group, func(c *cell) bool { return c.router == "sluice" })
	var others []*cell
	for _, c := range group {
		if !isSluice(c.router) {
			others = append(others, c)
		}
	}
	if i < 0 || len(others) == 0 {
		return
	}
	ratio := func(f func(*cell) float64) string {
		best := slices.MinFunc(others, func(a, b *cell) int {
			if f(a) < f(b) {
				return -1
			}
			return 1
		})
		return fmt.Sprintf("%.2fx (%s)", f(group[i])/f(best), best.router)
	}
	fmt.Fprintf(w, "\nSluice over the best other: mean %s, p90 %s, computed tokens %s.\n",
		ratio(func(c *cell) float64 { return c.mean }), ratio(func(c *cell) float64 { return c.p90 }), ratio(func(c *cell) float64 { return c.computed }))
}
