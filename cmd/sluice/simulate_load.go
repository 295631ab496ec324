package main

import (
	"fmt"
	"os"
	"strconv"
	"strings"

	"github.com/sluicegate/sluice/scoring/simulate"
)

// plan reads the trace or makes the synthetic load.
func (f *simulateFlags) plan(cfg *simulate.Config) (*simulate.Plan, error) {
	if f.trace != "" {
		return f.tracePlan()
	}
	arrivals := simulate.Arrivals{Rate: f.rate, Streams: f.streams}
	l := simulate.Prefixed{Name: f.workload, Requests: f.requests, FreshMin: 64, FreshMax: 64, OutputMin: 16, OutputMax: 16}
	switch f.workload {
	case "shared-prefix":
		if f.prefixTokens < 1 {
			return nil, &usageError{"--prefix-tokens is 0, should be at least 1 for shared-prefix (independent prompts share nothing)"}
		}
		l.Buckets = []simulate.Bucket{{Weight: 1, Prefixes: f.prefixes, Tokens: f.prefixTokens}}
	case "mixed":
		l.Buckets = simulate.Mixed()
		l.FreshMin, l.FreshMax = 16, 600
	case "independent":
		l.FreshMin, l.FreshMax = 1500, 1500
	case "multi-turn":
		return f.conversations(arrivals)
	default:
		return nil, &usageError{fmt.Sprintf("--workload is %q, should be shared-prefix, mixed, multi-turn or independent", f.workload)}
	}
	if f.given("buckets") {
		if f.workload != "mixed" {
			return nil, &usageError{"--buckets does not go with --workload " + f.workload + ": it shapes mixed"}
		}
		var err error
		if l.Buckets, err = readBuckets(f.buckets); err != nil {
			return nil, err
		}
	}
	if err := readRange("fresh", f.fresh, &l.FreshMin, &l.FreshMax); err != nil {
		return nil, err
	}
	if err := readRange("output", f.output, &l.OutputMin, &l.OutputMax); err != nil {
		return nil, err
	}
	if len(f.tenants) > 0 {
		l.Said = f.said
		return f.mix(cfg, l)
	}
	return l.Plan(arrivals, f.seed), nil
}

func (f *simulateFlags) conversations(arrivals simulate.Arrivals) (*simulate.Plan, error) {
	l := simulate.MultiTurn{
		Name: f.workload, Requests: f.requests, System: f.prefixTokens, Think: f.think,
		FreshMin: 50, FreshMax: 500, OutputMin: 50, OutputMax: 300,
	}
	if err := readRange("fresh", f.fresh, &l.FreshMin, &l.FreshMax); err != nil {
		return nil, err
	}
	if err := readRange("output", f.output, &l.OutputMin, &l.OutputMax); err != nil {
		return nil, err
	}
	if err := readRange("turns", f.turns, &l.TurnsMin, &l.TurnsMax); err != nil {
		return nil, err
	}
	return l.Plan(arrivals, f.seed), nil
}

func (f *simulateFlags) tracePlan() (*simulate.Plan, error) {
	file, err := os.Open(f.trace)
	if err != nil {
		return nil, fmt.Errorf("cannot read the trace: %w", err)
	}
	defer file.Close()
	limit := 0
	if f.given("requests") {
		limit = f.requests
	}
	p, err := simulate.ReadTrace(f.trace, file, limit)
	if err != nil {
		return nil, err
	}
	p.Spread(f.traceSpread, f.seed)
	p.Hurry(f.rateScale)
	p.Streams = f.streams
	return p, nil
}

// readRange reads "N" or "MIN..MAX", with N at least 1. Without a value the bounds stay as they are.
func readRange(flag, s string, lo, hi *int) error {
	if s == "" {
		return nil
	}
	first, last, two := strings.Cut(s, "..")
	if !two {
		last = first
	}
	a, err := strconv.Atoi(first)
	b, err2 := strconv.Atoi(last)
	if err != nil || err2 != nil || a < 1 || b < a || b > maxSimTokens {
		return &usageError{fmt.Sprintf("--%s is %q, should be a whole number from 1 to %d, or two of them as in 16..600", flag, s, maxSimTokens)}
	}
	*lo, *hi = a, b
	return nil
}

// readBuckets reads --buckets.
func readBuckets(values []string) ([]simulate.Bucket, error) {
	var out []simulate.Bucket
	for _, s := range values {
		weight, rest, _ := strings.Cut(s, ":")
		prefixes, tokens, _ := strings.Cut(rest, "x")
		w, err := strconv.ParseFloat(weight, 64)
		n, err2 := strconv.Atoi(prefixes)
		t, err3 := strconv.Atoi(tokens)
		if err != nil || err2 != nil || err3 != nil || !(w > 0 && w <= 1e9) || n < 1 || n > maxSimRequests || t < 1 || t > maxSimTokens {
			return nil, &usageError{fmt.Sprintf("--buckets has %q, should have a weight above 0, a number of prefixes and their tokens, as in 50:2x3000", s)}
		}
		out = append(out, simulate.Bucket{Weight: w, Prefixes: n, Tokens: t})
	}
	return out, nil
}
