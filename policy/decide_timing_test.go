package policy

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"
)

// timingSet has 20 policies with three expressions each: the usual mixture of
// conditions, look-ups in lists and maps, and limits. Their texts differ, except
// for the match conditions, which real sets repeat.
func timingSet(tb testing.TB, matching int) *Set {
	var b strings.Builder
	for i := range 20 {
		op := "['chat', 'completion', 'messages']"
		if i >= matching {
			op = "['embeddings']"
		}
		switch i % 4 {
		case 0:
			fmt.Fprintf(&b, "%s", policyText(fmt.Sprintf("p%d", i), fmt.Sprintf(`
  matchConditions: [{ name: m, expression: "request.operation in %s" }]
  validations: [{ name: v, expression: "tenant.tier in ['gold', 'silver'] && request.n <= %d", message: no }]
  effects: [{ name: e, when: "'batch%d' in principal.groups", qos: { class: batch } }]`, op, i+8, i), "Deny"))
		case 1:
			fmt.Fprintf(&b, "%s", policyText(fmt.Sprintf("p%d", i), fmt.Sprintf(`
  matchConditions: [{ name: m, expression: "request.operation in %s" }]
  variables: [{ name: zone, expression: "tenant.labels[?'zone%d'].orValue('onprem')" }]
  effects: [{ name: e, when: "variables.zone == 'eu'", route: { requirePoolLabels: { zone: eu } } }]`, op, i), "Deny"))
		case 2:
			fmt.Fprintf(&b, "%s", policyText(fmt.Sprintf("p%d", i), fmt.Sprintf(`
  matchConditions: [{ name: m, expression: "request.operation in %s" }]
  validations:
    - { name: v, expression: "!request.model.startsWith('external%d/')", message: no }
    - { name: w, expression: "request.max_tokens.orValue(0) <= %d", message: no }`, op, i, 100000+i), "Deny"))
		case 3:
			fmt.Fprintf(&b, "%s", policyText(fmt.Sprintf("p%d", i), fmt.Sprintf(`
  matchConditions: [{ name: m, expression: "request.operation in %s" }]
  limits: [{ name: l, unit: requests, window: 1m, limit: "tenant.tier == 'gold' ? %d : 60", key: [tenant.id] }]`, op, 600+i), "Deny"))
		}
	}
	return mustLoad(tb, testConfig(), b.String())
}

// BenchmarkDecide gives the median and the 99th percentile of a decision's CPU
// time beside the mean: on a shared machine the wall clock says what else runs.
// The unindexed case is the baseline of the index.
func BenchmarkDecide(b *testing.B) {
	for _, c := range []struct {
		matching int
		observed bool
	}{{20, false}, {20, true}, {5, false}, {5, true}, {0, false}, {0, true}} {
		b.Run(fmt.Sprintf("policies=20/matching=%d/indexed=%t", c.matching, !c.observed), func(b *testing.B) {
			s := timingSet(b, c.matching)
			in := testInput()
			if c.observed {
				in.Observer = watcher{}
			}
			d := s.Decide(context.Background(), in)
			if !d.Allow {
				b.Fatalf("denied: %+v", d.Denials)
			}
			b.ReportAllocs()
			times := make([]time.Duration, 0, 1<<20)
			for b.Loop() {
				took := cpuTime(func() { s.Decide(context.Background(), in) })
				if len(times) < cap(times) {
					times = append(times, took)
				}
			}
			slices.Sort(times)
			b.ReportMetric(float64(times[len(times)/2].Nanoseconds()), "p50-ns")
			b.ReportMetric(float64(times[len(times)*99/100].Nanoseconds()), "p99-ns")
			b.ReportMetric(float64(d.Cost.Expressions), "expressions")
		})
	}
}

// BenchmarkNotMatching: what bindings cost that a request does not match.
func BenchmarkNotMatching(b *testing.B) {
	for _, policies := range []int{0, 20, 250} {
		b.Run(fmt.Sprintf("policies=%d", policies), func(b *testing.B) {
			text := policyText("base", validations, "Deny")
			for i := range policies {
				text += policyText(fmt.Sprint("p", i), fmt.Sprintf("\n  matchConditions: [{ name: m, expression: \"request.operation == 'embeddings' && tenant.tier == 'tier%d'\" }]\n  validations: [{ name: v, expression: request.n < 5 }]", i), "Deny")
			}
			s := mustLoad(b, testConfig(), text)
			in := testInput()
			b.ReportAllocs()
			for b.Loop() {
				s.Decide(context.Background(), in)
			}
		})
	}
}

func BenchmarkLoad(b *testing.B) {
	text := policyText("p", `
  variables: [{ name: x, expression: "tenant.tier == 'gold'" }]
  validations:
    - { name: a, expression: "variables.x || request.n < 3" }
    - { name: b, expression: "request.tool_names.exists(t, t == 'x') || request.stream" }`, "Deny")
	mustLoad(b, testConfig(), text)
	b.ReportAllocs()
	for b.Loop() {
		mustLoad(b, testConfig(), text)
	}
}
