package policy

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/cel-go/common/types"
	"github.com/google/cel-go/common/types/ref"
)

// TestMapsHaveOneOrder: whatever a map comes from, a loop sees its keys sorted,
// so texts, first elements and costs are the same in every run.
func TestMapsHaveOneOrder(t *testing.T) {
	letters := strings.Split("qwertyuiopasdfghjklzxcvbnm", "")
	labels := map[string]string{}
	findings := map[string]int64{}
	var param, literal strings.Builder
	for _, l := range letters {
		labels[l] = l
		findings[l] = 1
		fmt.Fprintf(&param, "%s: %s, ", l, l)
		fmt.Fprintf(&literal, "'%s': '%s', ", l, l)
	}
	params := "params: { table: {" + param.String() + "}, want: [" + strings.Join(slices.Sorted(slices.Values(letters)), ", ") + "] }, actions:"
	lit := "{" + strings.TrimSuffix(literal.String(), ", ") + "}"
	for _, expr := range []string{
		"tenant.labels.map(k, k)",
		"tenant.labels.transformList(k, v, v)",
		"tenant.labels.filter(k, k != '')",
		"content.findings.map(k, k)",
		"content.findings.transformList(k, n, k)",
		"params.table.map(k, k)",
		"params.table.transformList(k, v, v)",
		"variables.made.map(k, k)",
		"variables.made.transformList(k, v, v)",
		"variables.maybe.value().map(k, k)",
		lit + ".map(k, k)",
		lit + ".transformList(k, v, v)",
		"tenant.labels.transformMap(k, v, v + '').map(k, k)",
		"tenant.labels.transformMapEntry(k, v, {v: k}).transformList(k, v, v)",
		"(request.stream ? tenant.labels.transformMap(k, v, v) : {}).map(k, k)",
		"[tenant.labels.transformMap(k, v, v)].map(m, m.map(k, k))[0]",
	} {
		text := strings.Replace(policyText("p", fmt.Sprintf(`
  params: { schema: { table: { type: map, values: string, required: true }, want: { type: list, items: string, required: true } } }
  variables:
    - { name: made, expression: "tenant.labels.transformMap(k, v, v)" }
    - { name: maybe, expression: "optional.of(tenant.labels.transformMap(k, v, v))" }
  validations: [{ name: v, expression: "%s == params.want" }]`, expr), "Deny"), "actions:", params, 1)
		s, err := load(testConfig(), text)
		if err != nil {
			t.Errorf("%s: %v", expr, err)
			continue
		}
		units := map[int64]bool{}
		for range 20 {
			in := testInput()
			in.Tenant.Labels = labels
			in.Lazy = &fakeLazy{content: Content{Findings: findings, ScanStatus: "complete"}}
			d := s.Decide(t.Context(), in)
			if !d.Allow {
				t.Errorf("%s: not in order, errors %+v", expr, d.Errors)
				break
			}
			units[d.Cost.Units] = true
		}
		if len(units) != 1 {
			t.Errorf("%s: %d different costs", expr, len(units))
		}
	}
}

// TestCostOfSearchesInMaps: where a search ends decides what it costs.
func TestCostOfSearchesInMaps(t *testing.T) {
	s := mustLoad(t, testConfig(), policyText("p", "\n  validations: [{ name: v, expression: \"request.headers.exists(k, v, v == '7')\" }]", "Deny"))
	var first int64
	for i := range 50 {
		in := testInput()
		in.Request.Headers = map[string]string{}
		for j := range 20 {
			in.Request.Headers[fmt.Sprint("h", j)] = fmt.Sprint(j)
		}
		d := s.Decide(t.Context(), in)
		if i == 0 {
			first = d.Cost.Units
		}
		if !d.Allow || d.Cost.Units != first {
			t.Fatalf("%d units, then %d", first, d.Cost.Units)
		}
	}
}

func TestCompareKeys(t *testing.T) {
	keys := []ref.Val{types.String("b"), types.Int(10), types.True, types.String("a"), types.Uint(7), types.Int(-3), types.False, types.String("")}
	slices.SortFunc(keys, compareKeys)
	want := []ref.Val{types.False, types.True, types.Int(-3), types.Int(10), types.String(""), types.String("a"), types.String("b"), types.Uint(7)}
	if !slices.Equal(keys, want) {
		t.Errorf("%v", keys)
	}
	if got := compareKeys(types.NullValue, types.NullValue); got != 0 {
		t.Errorf("keys without an order: %d", got)
	}
}

// TestSortedMapIsAMap: order aside, a sorted map does what the library's does.
func TestSortedMapIsAMap(t *testing.T) {
	for _, expr := range []string{
		"tenant.labels == {'env': 'prod'}", "{'env': 'prod'} == tenant.labels", "tenant.labels != {}", "tenant.labels.size() == 1", "'env' in tenant.labels",
		"tenant.labels.env == 'prod'", "tenant.labels['env'] == 'prod'", "tenant.labels[?'x'].orValue('none') == 'none'", "has(tenant.labels.env) && !has(tenant.labels.x)",
		"optional.ofNonZeroValue(tenant.labels).hasValue()", "!optional.ofNonZeroValue(variables.none).hasValue()", "type(tenant.labels) == map",
		"'%s'.format([tenant.labels]) == '{env: prod}'",
	} {
		s := mustLoad(t, testConfig(), policyText("p", "\n  variables: [{ name: none, expression: \"tenant.labels.transformMap(k, v, k == '', v)\" }]\n  validations: [{ name: v, expression: \""+expr+"\" }]", "Deny"))
		if d := s.Decide(t.Context(), testInput()); !d.Allow {
			t.Errorf("%s: %+v", expr, d.Errors)
		}
	}
}
