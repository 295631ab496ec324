package policy

import (
	"fmt"
	"strings"
	"testing"
)

// explained loads a set with its sources and explains the test input.
func explained(t *testing.T, text string, edit func(*Input)) *Explanation {
	t.Helper()
	cfg := testConfig()
	cfg.KeepSource = true
	in := testInput()
	if edit != nil {
		edit(in)
	}
	x, err := mustLoad(t, cfg, text).Explain(t.Context(), in)
	if err != nil {
		t.Fatal(err)
	}
	return x
}

// nodesOf writes the sub-expressions of the first expression of a rule.
func nodesOf(x *Explanation, rule string) string {
	var out []string
	for _, b := range x.Bindings {
		for _, e := range b.Expressions {
			if e.Rule != rule {
				continue
			}
			for _, n := range e.Nodes {
				value := n.Value
				if !n.Evaluated {
					value = "-"
				}
				out = append(out, fmt.Sprintf("%d:%d %s%s = %s", n.Line, n.Col, strings.Repeat("  ", n.Depth), n.Text, value))
			}
			return strings.Join(out, "\n")
		}
	}
	return "no expression"
}

// TestExplainNodes: every sub-expression has its text, place and value, as the
// author wrote it, and what was not needed is not evaluated.
func TestExplainNodes(t *testing.T) {
	f := func(expr string, want ...string) {
		t.Helper()
		x := explained(t, policyText("p", "\n  validations:\n    - name: v\n      expression: |\n        "+expr, "Deny"), nil)
		if got := nodesOf(x, "p/v"); got != strings.Join(want, "\n") {
			t.Errorf("%s:\n%s\nwant\n%s", expr, got, strings.Join(want, "\n"))
		}
	}
	f("request.n < 3 && tenant.tier == 'gold'",
		`9:9 request.n < 3 && tenant.tier == "gold" = true`,
		`9:9   request.n < 3 = true`,
		`9:9     request.n = 1`,
		`9:26   tenant.tier == "gold" = true`,
		`9:26     tenant.tier = "gold"`)
	f("request.n > 3 && 'pii' in content.labels",
		`9:9 request.n > 3 && "pii" in content.labels = false`,
		`9:9   request.n > 3 = false`,
		`9:9     request.n = 1`,
		`9:26   "pii" in content.labels = -`,
		`9:35     content.labels = -`)
	f("request.stream ? request.user.orValue('x') == 'u-1' : size(request.tool_names) == 0",
		`9:9 request.stream ? (request.user.orValue("x") == "u-1") : (size(request.tool_names) == 0) = true`,
		`9:9   request.stream = true`,
		`9:26   request.user.orValue("x") == "u-1" = true`,
		`9:26     request.user.orValue("x") = "u-1"`,
		`9:26       request.user = optional.of("u-1")`,
		`9:63   size(request.tool_names) == 0 = -`,
		`9:63     size(request.tool_names) = -`,
		`9:68       request.tool_names = -`)
	f("principal.groups.exists(g, g == 'ops') && has(tenant.labels.env)",
		`9:9 principal.groups.exists(g, g == "ops") && has(tenant.labels.env) = true`,
		`9:9   principal.groups.exists(g, g == "ops") = true`,
		`9:9     principal.groups = ["devs", "ops"]`,
		`9:36     g == "ops" = true`,
		`9:36       g = "ops"`,
		`9:51   has(tenant.labels.env) = true`,
		`9:55     tenant.labels = {"env": "prod"}`)
	f("!(tenant.labels['zone'] == 'eu')",
		`9:9 !(tenant.labels["zone"] == "eu") = error: no such key: zone`,
		`9:11   tenant.labels["zone"] == "eu" = error: no such key: zone`,
		`9:11     tenant.labels["zone"] = error: no such key: zone`,
		`9:11       tenant.labels = {"env": "prod"}`)
	f("[request.n, 2].all(i, {'a': i}['a'] > 0)",
		`9:9 [request.n, 2].all(i, {"a": i}["a"] > 0) = true`,
		`9:9   [request.n, 2] = [1, 2]`,
		`9:10     request.n = 1`,
		`9:31   {"a": i}["a"] > 0 = true`,
		`9:31     {"a": i}["a"] = 2`,
		`9:31       {"a": i} = {"a": 2}`,
		`9:37         i = 2`)
}

// TestExplainEveryExpression: whatever a policy of any shape reads, the second
// pass gives the value of the first, and no lazy work is done twice or in vain.
func TestExplainEveryExpression(t *testing.T) {
	text := policyText("p", `
  params: { schema: { most: { type: int, default: 4 } } }
  matchConditions: [{ name: m, expression: "request.operation == 'chat'" }]
  variables:
    - { name: zone, expression: "tenant.labels[?'zone'].orValue('none')" }
    - { name: big, expression: "request.input_tokens > 500" }
  validations: [{ name: v, expression: "request.n <= params.most", messageExpression: "'zone %s'.format([variables.zone])" }]
  effects: [{ name: e, when: variables.big, mutate: { max_tokens: "100 + params.most" }, qos: { class: batch, preemptible: true, ttftTarget: 2s }, route: { allowPools: [a, c] }, cacheIsolation: principal, addLabels: [big] }]
  limits: [{ name: l, when: "effective.qos_class == 'batch'", unit: tokens, window: 1m, limit: 5000, key: [tenant.id, variables.zone], charge: usage.output_tokens }]
  auditAnnotations: [{ key: k, valueExpression: "variables.big ? optional.of(variables.zone) : optional.none()" }]`, "Deny")
	x := explained(t, text, func(in *Input) {
		f := in.Lazy.(*fakeLazy)
		t.Cleanup(func() {
			if f.tokenCalls != 1 || f.scanCall != 0 {
				t.Errorf("%d counts, %d scans", f.tokenCalls, f.scanCall)
			}
		})
	})
	var got []string
	for _, e := range x.Bindings[0].Expressions {
		value := e.Value
		switch {
		case !e.Evaluated:
			value = "-"
		case e.Err != "":
			value = "error"
		case len(e.Nodes) > 0 && e.Nodes[0].Value != e.Value:
			t.Errorf("%s: %s, and the second time %s", e.Text, e.Value, e.Nodes[0].Value)
		}
		got = append(got, strings.TrimSpace(fmt.Sprint(e.Rule, " ", e.Field, " ", value, " ", strings.Join(e.Lazy, ","))))
	}
	want := `p/m expression true
p/zone expression "none"
p/big expression true tokenize
p/v expression true
p/v messageExpression -
p/e when true
p/e mutate.max_tokens 104
p/l when true
p/l limit 5000
p/l key[0] "t1"
p/l key[1] "none"
p/l charge -
p/k valueExpression optional.of("none")`
	if strings.Join(got, "\n") != want {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), want)
	}
	if b := x.Bindings[0]; !b.Selected || !b.Applies || b.Why != "all match conditions hold" {
		t.Errorf("%+v", b)
	}
	if got, want := stepsText(x), `pools: [a b c]
class: standard
max_tokens: 1000
n: 1
cacheIsolation: tenant
labels: []
pools: [a b c] -> [a c] by p/e (p-b)
class: standard -> batch by p/e (p-b)
preemptible: false -> true by p/e (p-b)
ttftTarget: 0s -> 2s by p/e (p-b)
max_tokens: 1000 -> 104 by p/e (p-b)
cacheIsolation: tenant -> principal by p/e (p-b)
labels: [] -> [big] by p/e (p-b)
limit: reserve 1004 of 5000 tokens in 1m0s, key ["t1", "none"] by p/l (p-b)`; got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

func stepsText(x *Explanation) string {
	var out []string
	for _, s := range x.Steps {
		text := s.What + ": "
		if s.Before != "" {
			text += s.Before + " -> "
		}
		text += s.After
		if s.Rule != "" {
			text += fmt.Sprintf(" by %s (%s)", s.Rule, s.Binding)
		}
		out = append(out, text)
	}
	return strings.Join(out, "\n")
}

// TestExplainWhy: for every way a binding can be left out or not, the reason is
// given.
func TestExplainWhy(t *testing.T) {
	f := func(spec, selector string, selected, applies bool, want string) {
		t.Helper()
		text := strings.Replace(policyText("p", spec+"\n  validations: [{ name: v, expression: \"true\" }]", "Deny"), "actions:", "selector: { "+selector+" }, actions:", 1)
		text = strings.Replace(text, "selector: {  }, ", "", 1)
		b := explained(t, text, nil).Bindings[0]
		if b.Why != want || b.Selected != selected || b.Applies != applies {
			t.Errorf("%s %s: %+v, want %s", spec, selector, b, want)
		}
	}
	match := func(expr string) string {
		return "\n  matchConditions: [{ name: m, expression: \"" + expr + "\" }]"
	}
	f("", "", true, true, "there are no match conditions")
	f(match("request.stream"), "", true, true, "all match conditions hold")
	f(match("request.n > 9"), "", true, false, "match condition p/m is false")
	f(match("tenant.labels['x'] == ''"), "", true, false, "match condition p/m failed, which failurePolicy Fail counts as a refusal")
	f("\n  failurePolicy: Ignore"+match("tenant.labels['x'] == ''"), "", true, false, "match condition p/m failed, and failurePolicy Ignore leaves the policy out")
	f("", "tenants: [t2]", false, false, `selector.tenants does not name "t1"`)
	f("", "excludeTenants: [t1]", false, false, `selector.excludeTenants names "t1"`)
	f("", "matchTenantLabels: { zone: eu }", false, false, "selector.matchTenantLabels asks for zone, which the tenant does not have")
	f("", "matchTenantLabels: { env: dev }", false, false, `selector.matchTenantLabels asks for env "dev", and the tenant's is "prod"`)
	f("", "operations: [completion]", false, false, `selector.operations does not name "chat"`)
	f("", "models: ['b*']", false, false, `selector.models does not match "m"`)
	f("", "tenants: [t1], models: ['*'], operations: [chat]", true, true, "there are no match conditions")
}

// TestExplainOutcomes: refusals, warnings, rehearsals and errors are steps.
func TestExplainOutcomes(t *testing.T) {
	x := explained(t,
		policyText("a", "\n  validations: [{ name: v, expression: \"false\", message: never, reason: Invalid }]", "Deny")+
			policyText("b", "\n  validations: [{ name: v, expression: \"false\", message: soon }]", "Warn")+
			policyText("c", "\n  validations: [{ name: v, expression: \"'pii' in content.labels && tenant.labels['x'] == ''\" }]", "Audit"), nil)
	if got, want := strings.Join(strings.Split(stepsText(x), "\n")[6:], "\n"), `error: value: no such key: x by c/v (c-b)
warning: Forbidden: soon by b/v (b-b)
would deny: PolicyError: policy evaluation failed by c/v (c-b)
deny: Invalid: never by a/v (a-b)`; got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	if d := x.Decision; d.Allow || d.Status != 400 || x.Bindings[2].Mode != Shadow || x.Bindings[2].Expressions[0].Lazy[0] != "scan" {
		t.Errorf("%+v %+v", d, x.Bindings[2])
	}
	if x := explained(t, policyText("a", "\n  validations: [{ name: v, expression: \"false\" }]", "Deny"), func(in *Input) { in.Request.Operation = operationModels }); x.Steps[0].After != "not judged" {
		t.Errorf("models: %+v", x.Steps[0])
	}
}

// TestExplainDecides: an explanation's decision is that of the gateway, whatever
// the request lacks.
func TestExplainDecides(t *testing.T) {
	text := policyText("p", "\n  validations: [{ name: v, expression: \"request.user.orValue('') != ''\" }]", "Deny") +
		policyText("q", "\n  validations: [{ name: v, expression: \"request.n > 0\" }]", "Deny")
	cfg := testConfig()
	s := mustLoad(t, cfg, text)
	for _, edit := range []func(*Input){
		func(*Input) {}, func(in *Input) { in.Request.N = 0 }, func(in *Input) { in.Absent = map[string]bool{"request.user": true} }, func(in *Input) { in.Lazy = nil },
	} {
		in := testInput()
		edit(in)
		d, x := s.Decide(t.Context(), in), explained(t, text, edit)
		if d.Allow != x.Decision.Allow || rules(d.Denials) != rules(x.Decision.Denials) || d.Cost.Units != x.Decision.Cost.Units || d.Revision != x.Decision.Revision {
			t.Errorf("%+v, explained %+v", d, x.Decision)
		}
	}
	if _, err := s.Explain(t.Context(), testInput()); err == nil || err.Error() != "cannot explain: the policies were loaded without their sources" {
		t.Errorf("got %v", err)
	}
}

// TestShow: values are written as CEL would, maps in one order, and cut.
func TestShow(t *testing.T) {
	f := func(expr, want string) {
		t.Helper()
		x := explained(t, policyText("p", "\n  variables: [{ name: x, expression: \""+expr+"\" }]\n  validations: [{ name: v, expression: \"[variables.x].size() == 1\" }]", "Deny"), nil)
		if got := x.Bindings[0].Expressions[0].Value; got != want {
			t.Errorf("%s: %s, want %s", expr, got, want)
		}
	}
	f("'a\\\\n' + string(request.n)", `"a\n1"`)
	f("now", `timestamp("2026-03-10T11:00:00Z")`)
	f("duration('90s')", `duration("1m30s")`)
	f("1.5 + double(request.n)", "2.5")
	f("uint(request.n)", "1u")
	f("request.stream", "true")
	f("request.max_tokens", "optional.of(1000)")
	f("{'b': 1, 'a': 2}", `{"a": 2, "b": 1}`)
	f("[[request.n], [2]]", "[[1], [2]]")
	f("b'ab'", "bytes(ab)")
	f("ip('10.0.0.1')", "net.IP(10.0.0.1)")
	f("lists.range(200)", "[0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31, 32, 33, 34, 35, 36, 37, 38, 39, 40, 41, 42, 43, 44, 45, 46, 47, 48, 49, 50, 51, 52, 53, 54, 55, 56, 57, 58, 59, 60, 61, 62, 63, 64, 65, 6…")
}
