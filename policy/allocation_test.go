//go:build !race

package policy

import "testing"

// TestAllocationsOfPoliciesThatDoNotMatch: a policy whose condition is false,
// or whose binding selects another tenant, costs no allocation.
func TestAllocationsOfPoliciesThatDoNotMatch(t *testing.T) {
	in := testInput()
	count := func(policies int) float64 {
		text := policyText("base", validations, "Deny")
		for i := range policies {
			text += policyText(string(rune('a'+i)), "\n  matchConditions: [{ name: m, expression: \"request.operation == 'embeddings'\" }]\n  variables: [{ name: x, expression: request.n }]\n  validations: [{ name: v, expression: \"variables.x < 5\" }]", "Deny")
		}
		s := mustLoad(t, testConfig(), text)
		return testing.AllocsPerRun(200, func() { s.Decide(t.Context(), in) })
	}
	few, many := count(2), count(20)
	if many > few+2 { // the evaluator's pools are emptied now and then
		t.Errorf("%.0f allocations with 2 policies that do not match, %.0f with 20", few, many)
	}
}
