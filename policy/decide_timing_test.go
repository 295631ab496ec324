package policy

import (
	"context"
	"fmt"
	"strings"
	"testing"
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

func BenchmarkDecide(b *testing.B) {
	for _, matching := range []int{20, 5, 0} {
		b.Run(fmt.Sprintf("policies=20/matching=%d", matching), func(b *testing.B) {
			s := timingSet(b, matching)
			in := testInput()
			d := s.Decide(context.Background(), in)
			if !d.Allow {
				b.Fatalf("denied: %+v", d.Denials)
			}
			b.ReportMetric(float64(d.Cost.Expressions), "expressions")
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
