//go:build !race

package policy

import (
	"fmt"
	"strings"
	"testing"
)

// TestAllocationsOfPoliciesThatDoNotMatch: a policy whose condition is false,
// or whose binding selects another tenant, costs no allocation, whether the
// index knows its condition or not.
func TestAllocationsOfPoliciesThatDoNotMatch(t *testing.T) {
	in := testInput()
	count := func(policies int, condition, selector string) float64 {
		text := policyText("base", validations, "Deny")
		for i := range policies {
			text += strings.Replace(policyText(fmt.Sprint("p", i), "\n  matchConditions: [{ name: m, expression: \""+condition+"\" }]\n  variables: [{ name: x, expression: request.n }]\n  validations: [{ name: v, expression: \"variables.x < 5\" }]", "Deny"),
				"actions:", "selector: {"+selector+"}, actions:", 1)
		}
		s := mustLoad(t, testConfig(), text)
		return testing.AllocsPerRun(200, func() { s.Decide(t.Context(), in) })
	}
	for _, c := range []struct{ condition, selector string }{
		{"request.operation == 'embeddings'", ""},
		{"request.model.startsWith('external/')", ""},
		{"true", "tenants: [other]"},
		{"true", "models: ['other-*']"},
	} {
		few, many := count(2, c.condition, c.selector), count(250, c.condition, c.selector)
		if many > few+2 { // the evaluator's pools are emptied now and then
			t.Errorf("%s {%s}: %.0f allocations with 2 policies that do not match, %.0f with 250", c.condition, c.selector, few, many)
		}
	}
}
