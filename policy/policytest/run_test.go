package policytest

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/sluicegate/sluice/policy"
)

// TestExamples runs the format's own examples: 30 tests, every outcome seen.
func TestExamples(t *testing.T) {
	r, err := Run(os.DirFS("testdata"), []string{"examples"}, Options{Orders: 50})
	if err != nil {
		t.Fatal(err)
	}
	if got, want := len(r.Tests), 30; got != want {
		t.Errorf("%d tests, want %d", got, want)
	}
	for _, test := range r.Tests {
		for _, f := range test.Failures {
			t.Errorf("%s:%d: %s: %s", test.At.File, test.At.Line, test.Name, f)
		}
	}
	for _, m := range r.Coverage.Missing() {
		t.Errorf("%s %s was never %s", m.Kind, m.Rule, m.Outcome)
	}
}

const policies = `
apiVersion: sluice/v1alpha1
kind: AdmissionPolicy
metadata: { name: p }
spec:
  matchConditions: [{ name: m, expression: "request.operation == 'chat'" }]
  validations: [{ name: v, expression: "request.n < 5", message: too many, reason: Invalid }]
  effects:
    - { name: e, when: request.stream, qos: { class: interactive }, mutate: { max_tokens: 50 }, addLabels: [x], cacheIsolation: principal, route: { allowPools: [a] } }
  limits: [{ name: l, unit: requests, window: 1m, limit: 5, key: [tenant.id] }]
  auditAnnotations: [{ key: k, valueExpression: tenant.id }]
---
apiVersion: sluice/v1alpha1
kind: AdmissionPolicyBinding
metadata: { name: b }
spec: { policyName: p, actions: [Deny] }
`

func suiteText(tests string) string {
	return `
apiVersion: sluice/v1alpha1
kind: PolicyTest
metadata: { name: t }
spec:
  files: [../p.yaml]
  config: { pools: [{ name: a, models: [m], labels: {} }, { name: b, models: [m] }], claims: { c: int } }
  defaults: { request: { operation: chat, model: m, n: 1, stream: true }, tenant: { id: t1 } }
  tests:
` + tests
}

func run(t *testing.T, tests string, opts Options) (*Result, error) {
	t.Helper()
	return Run(fstest.MapFS{
		"p.yaml":      {Data: []byte(policies)},
		"t/test.yaml": {Data: []byte(suiteText(tests))},
	}, []string{"t"}, opts)
}

// TestMismatchesFail: every field that can be expected is compared.
func TestMismatchesFail(t *testing.T) {
	f := func(test, want string) {
		t.Helper()
		r, err := run(t, "    - { name: x, "+test+" }\n", Options{})
		if err != nil {
			t.Errorf("%s: %v", test, err)
			return
		}
		if got := strings.Join(r.Tests[0].Failures, "\n"); got != want || r.Passed() != (want == "") {
			t.Errorf("%s:\n got %s\nwant %s", test, got, want)
		}
	}
	f("expect: { verdict: allow, status: 0, reason: '', rule: '', message: '', qosClass: interactive, cacheIsolation: principal, maxTokens: 50, n: 1, denials: [], warnings: [], wouldDeny: [], errors: [], pools: [a], labels: [x], reserved: [p/l], fired: [p/e], notFired: [], annotations: { p/k: t1 }, unresolved: [content.labels], limits: { p/l: { key: [t1], limit: 5, reserve: 1 } } }", "")
	f("input: { request: { n: 7 } }, expect: { verdict: deny, status: 400, reason: Invalid, rule: p/v, message: too many, denials: [p/v], reserved: [] }", "")
	f("expect: { verdict: deny }", `verdict: want "deny", got "allow"`)
	f("expect: { status: 403 }", "status: want 403, got 0")
	f("expect: { reason: Forbidden }", `reason: want "Forbidden", got ""`)
	f("expect: { rule: p/v }", `rule: want "p/v", got ""`)
	f("expect: { message: x }", `message: want "x", got ""`)
	f("expect: { qosClass: batch }", `qosClass: want "batch", got "interactive"`)
	f("expect: { cacheIsolation: none }", `cacheIsolation: want "none", got "principal"`)
	f("expect: { maxTokens: 51 }", "maxTokens: want 51, got 50")
	f("expect: { n: 2 }", "n: want 2, got 1")
	f("expect: { denials: [p/v] }", "denials: want [p/v], got []")
	f("expect: { warnings: [p/v] }", "warnings: want [p/v], got []")
	f("expect: { wouldDeny: [p/v] }", "wouldDeny: want [p/v], got []")
	f("expect: { errors: [p/v] }", "errors: want [p/v], got []")
	f("expect: { pools: [a, b] }", "pools: want [a b], got [a]")
	f("expect: { labels: [] }", "labels: want [], got [x]")
	f("expect: { reserved: [] }", "reserved: want [], got [p/l]")
	f("input: { request: { stream: false } }, expect: { fired: [p/e] }", "fired: want [p/e], got []")
	f("expect: { notFired: [p/e] }", "notFired: want [p/e], got [p/e]")
	f("expect: { annotations: {} }", "annotations: want map[], got map[p/k:t1]")
	f("expect: { limits: { p/l: { key: [t2], limit: 6, reserve: 2 } } }", `limits: p/l: key: want ["t2"], got ["t1"]; limit: want 6, got 5; reserve: want 2, got 1`)
	f("expect: { limits: { p/l: { charge: 1 } } }", "limits: p/l: charge: the test gives no usage to settle")
	f("usage: { output_tokens: 1 }, expect: { limits: { p/l: { charge: 2 } } }", "limits: p/l: charge: want 2, got 1")
	f("state: { p/l: { available: 0 } }, expect: { verdict: deny, status: 429, reason: RateLimited, reserved: [], limits: { p/l: { limit: 5 } } }", "limits: p/l: it was not reserved")
	f("state: { p/l: { available: 1 } }, expect: { verdict: allow }", "")
	f("expect: { notFired: [p/f], reserved: [p/v], limits: { p/x: {} } }, state: { p/y: { available: 0 } }",
		"expect.notFired: there is no such rule: p/f\nexpect.reserved: there is no such rule: p/v\nexpect.limits: there is no such rule: p/x\nstate: there is no such rule: p/y")
	f("expect: { rule: v, unresolved: [request.model] }", "expect.rule: \"v\" is no rule: write policy/name\nexpect.unresolved: request.model is no lazy variable")
}

func TestUnresolved(t *testing.T) {
	r, err := Run(fstest.MapFS{
		"p.yaml":      {Data: []byte(strings.Replace(policies, "request.n < 5", "request.n < 5 || 'x' in content.labels", 1))},
		"t/test.yaml": {Data: []byte(suiteText("    - { name: x, input: { request: { n: 9 }, content: { labels: [x], scan_status: complete } }, expect: { verdict: allow, unresolved: [content.labels] } }\n"))},
	}, []string{"t/test.yaml"}, Options{})
	if err != nil || strings.Join(r.Tests[0].Failures, "") != "unresolved: want content.labels unread, got it was read" {
		t.Errorf("%+v, %v", r, err)
	}
}

// TestAbsentVariables: a test that does not give what is read fails, even when
// the verdict is the one expected.
func TestAbsentVariables(t *testing.T) {
	f := func(expr, verdict, want string) {
		t.Helper()
		r, err := Run(fstest.MapFS{
			"p.yaml":      {Data: []byte(strings.Replace(policies, "request.n < 5", expr, 1))},
			"t/test.yaml": {Data: []byte(suiteText("    - { name: x, expect: { verdict: " + verdict + " } }\n"))},
		}, []string{"t"}, Options{})
		if err != nil {
			t.Fatal(err)
		}
		if got := strings.Join(r.Tests[0].Failures, "\n"); got != want {
			t.Errorf("%s: got %q, want %q", expr, got, want)
		}
	}
	f("request.body_bytes > 0 || request.n < 5", "allow", "request.body_bytes was read, and the test gives no value for it")
	f("'x' in content.labels", "deny", "content.labels was read, and the test gives no value for it")
	f("request.input_tokens > 0", "deny", "request.input_tokens was read, and the test gives no value for it")
	f("now.getHours() > 3", "deny", "now was read, and the test gives no value for it")
	f("request.user.orValue('a') == 'a' && principal.claims.c.orValue(1) == 1", "allow", "")
}

func TestCoverage(t *testing.T) {
	r, err := run(t, "    - { name: x, expect: { verdict: allow } }\n", Options{})
	if err != nil {
		t.Fatal(err)
	}
	var missing []string
	for _, m := range r.Coverage.Missing() {
		missing = append(missing, m.Rule+" "+m.Outcome)
	}
	if got, want := strings.Join(missing, ", "), "p/m false, p/v false, p/e unfired, p/l denied"; got != want || r.Coverage.Percent() != 100*8/12. {
		t.Errorf("missing %s (%.0f %%), want %s", got, r.Coverage.Percent(), want)
	}
	r, err = run(t, `
    - { name: a, expect: { verdict: allow } }
    - { name: b, input: { request: { n: 9, stream: false } }, expect: { verdict: deny } }
    - { name: c, input: { request: { operation: models } }, expect: { verdict: allow } }
    - { name: d, state: { p/l: { available: 0 } }, expect: { verdict: deny } }
`, Options{})
	if err != nil || !r.Passed() || r.Coverage.Percent() != 100 {
		t.Errorf("%+v, %v", r, err)
	}
}

// TestExpressionCoverage: every expression counts, with both outcomes where it
// has two, until a test shows it.
func TestExpressionCoverage(t *testing.T) {
	const wide = `
apiVersion: sluice/v1alpha1
kind: AdmissionPolicy
metadata: { name: p }
spec:
  variables:
    - { name: flag, expression: request.stream }
    - { name: number, expression: request.n + 1 }
    - { name: unused, expression: request.n > 100 }
  validations: [{ name: v, expression: variables.number < 5, messageExpression: "'at most %d'.format([4])" }]
  effects: [{ name: e, mutate: { max_tokens: "50", n: variables.number } }]
  limits: [{ name: l, when: variables.flag, unit: requests, window: 1m, limit: 5, key: [tenant.id, "'x'"], estimate: request.n, charge: "1" }]
  auditAnnotations:
    - { key: sometimes, valueExpression: "variables.flag ? optional.of('x') : optional.none()" }
    - { key: always, valueExpression: tenant.id }
---
apiVersion: sluice/v1alpha1
kind: AdmissionPolicyBinding
metadata: { name: b }
spec: { policyName: p, actions: [Deny] }
`
	f := func(tests string, want ...string) {
		t.Helper()
		r, err := Run(fstest.MapFS{"p.yaml": {Data: []byte(wide)}, "t/test.yaml": {Data: []byte(suiteText(tests))}}, []string{"t"}, Options{})
		if err != nil || !r.Passed() {
			t.Fatalf("%+v, %v", r, err)
		}
		var got []string
		for _, m := range r.Coverage.Missing() {
			got = append(got, strings.Join(strings.Fields(m.Rule+" "+m.Field+" "+m.Outcome), " "))
		}
		if strings.Join(got, ", ") != strings.Join(want, ", ") {
			t.Errorf("missing\n%s, want\n%s", strings.Join(got, ", "), strings.Join(want, ", "))
		}
	}
	unused := []string{"p/unused expression false", "p/unused expression true"}
	f("    - { name: x, input: { request: { stream: false } }, expect: { verdict: allow } }\n",
		"p/flag expression true", unused[0], unused[1], "p/v false", "p/v messageExpression evaluated",
		"p/l denied", "p/l reserved", "p/l limit evaluated", "p/l key[0] evaluated", "p/l key[1] evaluated", "p/l estimate evaluated", "p/l charge evaluated",
		"p/sometimes valueExpression given")
	f("    - { name: x, expect: { verdict: allow } }\n",
		"p/flag expression false", unused[0], unused[1], "p/v false", "p/v messageExpression evaluated",
		"p/l denied", "p/l unfired", "p/l charge evaluated", "p/sometimes valueExpression none")
	f(`
    - { name: a, usage: { output_tokens: 1 }, expect: { verdict: allow } }
    - { name: b, input: { request: { n: 9, stream: false } }, expect: { verdict: deny } }
    - { name: c, state: { p/l: { available: 0 } }, expect: { verdict: deny } }
    - { name: d, input: { request: { stream: false } }, expect: { verdict: allow } }
`, unused...)
}

// TestOperandCoverage: what && || ?: join counts when it is asked for, outside of
// loops, and what was passed over has not been seen.
func TestOperandCoverage(t *testing.T) {
	const wide = `
apiVersion: sluice/v1alpha1
kind: AdmissionPolicy
metadata: { name: p }
spec:
  variables: [{ name: gold, expression: "tenant.tier == 'gold' || tenant.id == 'vip'" }]
  validations:
    - { name: v, expression: "(variables.gold ? request.n < 9 : request.n < 3) && (true || request.stream) && request.tool_names.all(t, t != 'x' && t != 'y')" }
---
apiVersion: sluice/v1alpha1
kind: AdmissionPolicyBinding
metadata: { name: b }
spec: { policyName: p, actions: [Deny] }
`
	f := func(tests string, want ...string) {
		t.Helper()
		files := fstest.MapFS{"p.yaml": {Data: []byte(wide)}, "t/test.yaml": {Data: []byte(suiteText(tests))}}
		r, err := Run(files, []string{"t"}, Options{Operands: true})
		if err != nil || !r.Passed() {
			t.Fatalf("%+v, %v", r, err)
		}
		var got []string
		for _, m := range r.Coverage.Missing() {
			if m.Operand != "" {
				got = append(got, fmt.Sprintf("%d:%d %s %s", m.At.Line, m.At.Col, m.Operand, m.Outcome))
			}
		}
		if strings.Join(got, "\n") != strings.Join(want, "\n") {
			t.Errorf("missing\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
		}
		if r, err = Run(files, []string{"t"}, Options{}); err != nil || slices.ContainsFunc(r.Coverage.Items, func(i CoverageItem) bool { return i.Operand != "" }) {
			t.Errorf("operands count unasked: %v", err)
		}
	}
	const tools = "tool_names: [a]"
	f("    - { name: a, input: { tenant: { tier: gold }, request: { "+tools+" } }, expect: { verdict: allow } }\n",
		`6:42 tenant.tier == "gold" false`, `6:67 tenant.id == "vip" false`, `6:67 tenant.id == "vip" true`,
		`8:32 variables.gold false`, `8:92 request.stream false`, `8:92 request.stream true`,
		`8:111 request.tool_names.all(t, t != "x" && t != "y") false`)
	f(`
    - { name: a, input: { tenant: { tier: gold }, request: { tool_names: [a] } }, expect: { verdict: allow } }
    - { name: b, input: { tenant: { tier: silver }, request: { tool_names: [x] } }, expect: { verdict: deny } }
    - { name: c, input: { tenant: { tier: silver, id: vip }, request: { tool_names: [] } }, expect: { verdict: allow } }
`, `8:92 request.stream false`, `8:92 request.stream true`)
}

func TestSelection(t *testing.T) {
	two := "    - { name: first, expect: { verdict: allow } }\n    - { name: second, expect: { verdict: deny } }\n"
	r, err := run(t, two, Options{Run: regexp.MustCompile("^t/first$")})
	if err != nil || len(r.Tests) != 1 || !r.Passed() {
		t.Errorf("%+v, %v", r, err)
	}
	_, err = run(t, two, Options{Run: regexp.MustCompile("third")})
	if err == nil || err.Error() != "no test was found: check the paths and the selection" {
		t.Errorf("got %v", err)
	}
	if r, err := run(t, two, Options{}); err != nil || r.Passed() {
		t.Errorf("a failing test passes: %+v, %v", r, err)
	}
}

func TestFaultyTests(t *testing.T) {
	f := func(tests, want string) {
		t.Helper()
		_, err := run(t, tests, Options{})
		var le *policy.LoadError
		if !errors.As(err, &le) || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want %s", tests, err, want)
		}
	}
	f("    - { name: x, input: { request: { modle: m } }, expect: { verdict: allow } }\n", `t/test.yaml:10:38: PolicyTest/t.spec.tests[0].input.request: there is no variable "request.modle"; did you mean "request.model"?`)
	f("    - { name: x, input: { request: { n: null } }, expect: { verdict: allow } }\n", "request.n is not optional: give it a value")
	f("    - { name: x, input: { request: { n: many } }, expect: { verdict: allow } }\n", "expected an integer, found a string")
	f("    - { name: x, input: { principal: { claims: { d: 1 } } }, expect: { verdict: allow } }\n", `there is no variable "principal.claims.d"`)
	f("    - { name: x, input: { now: noon }, expect: { verdict: allow } }\n", `"noon" is no time`)
	f("    - { name: x, expect: { verdikt: allow } }\n", `unknown field "verdikt"; did you mean "verdict"?`)
	f("    - { name: x, expect: { verdict: maybe } }\n", `unknown value "maybe": use allow, deny`)
	f("    - { name: x, expect: {} }\n", "the test expects nothing")
	f("    - { name: x }\n", "field expect is missing")
	f("    - { name: x, expect: { verdict: allow } }\n    - { name: x, expect: { verdict: allow } }\n", "the test name is taken")
	f("    - { name: x, usage: { tokens: 1 }, expect: { verdict: allow } }\n", `unknown field "tokens"`)
	f("    - { name: x, state: { p/l: { left: 1 } }, expect: { verdict: allow } }\n", `unknown field "left"`)

	_, err := Run(fstest.MapFS{
		"p.yaml":      {Data: []byte(strings.Replace(policies, "request.n", "request.m", 1))},
		"t/test.yaml": {Data: []byte(suiteText("    - { name: x, expect: { verdict: allow } }\n"))},
	}, []string{"t"}, Options{})
	if err == nil || !strings.Contains(err.Error(), `p.yaml:7:41: AdmissionPolicy/p.spec.validations[0].expression: unknown name "request.m"`) {
		t.Errorf("got %v", err)
	}
	if _, err := Run(fstest.MapFS{}, []string{"nowhere"}, Options{}); err == nil || !strings.Contains(err.Error(), "cannot read nowhere") {
		t.Errorf("got %v", err)
	}
}

// TestWarningsAreKept: what check would warn of is part of the result.
func TestWarningsAreKept(t *testing.T) {
	r, err := run(t, "    - { name: x, expect: { verdict: allow } }\n", Options{})
	if err != nil || len(r.Warnings) != 1 || r.Warnings[0].Kind != policy.WarnRaise {
		t.Errorf("%+v, %v", r.Warnings, err)
	}
}

// TestRehearsalsCount: what Warn and Audit bindings say of a limit covers it,
// and can be expected.
func TestRehearsalsCount(t *testing.T) {
	for action, field := range map[string]string{"Warn": "warnings", "Audit": "wouldDeny"} {
		tests := `
    - { name: full, expect: { verdict: allow, reserved: [] } }
    - { name: spent, state: { p/l: { available: 0 } }, expect: { verdict: allow, ` + field + `: [p/l], errors: [] } }
`
		r, err := Run(fstest.MapFS{
			"p.yaml":      {Data: []byte(strings.Replace(policies, "actions: [Deny]", "actions: ["+action+"]", 1))},
			"t/test.yaml": {Data: []byte(suiteText(tests))},
		}, []string{"t"}, Options{})
		if err != nil || !r.Passed() {
			t.Fatalf("%s: %+v, %v", action, r, err)
		}
		for _, m := range r.Coverage.Missing() {
			if m.Kind == policy.LimitRule {
				t.Errorf("%s: %s %s was never %s", action, m.Rule, m.Field, m.Outcome)
			}
		}
	}
}

// TestFilesAreTheLoadersFiles: a mounted folder has the versions of its files in hidden folders, and may be a
// link itself.
func TestFilesAreTheLoadersFiles(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{
		"mount/a.yaml": "", "mount/..2026/a.yaml": "", "mount/.a.yaml.swp": "", "mount/.b.yaml": "", "mount/notes.txt": "", "volume/c.yml": "",
	} {
		file := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink("../volume", filepath.Join(dir, "mount", "linked")); err != nil {
		t.Fatal(err)
	}
	got, err := testFiles(os.DirFS(dir), []string{"mount", "mount/a.yaml"})
	if want := []string{"mount/a.yaml", "mount/linked/c.yml"}; err != nil || !slices.Equal(got, want) {
		t.Errorf("got %v, %v, want %v", got, err, want)
	}
}

// TestOrderFaults: a decision that another order of bindings changes fails the
// test. No set that loads has one, so that the outcomes are given here.
func TestOrderFaults(t *testing.T) {
	outcomes := func(seed uint64) string { return map[uint64]string{1: "same", 2: "same", 3: "other"}[seed] }
	if got := orderFaults(2, "same", outcomes); got != nil {
		t.Errorf("got %q", got)
	}
	if got := orderFaults(4, "same", outcomes); len(got) != 1 || got[0] != "the decision depends on the order of the bindings:\n  same\n  other" {
		t.Errorf("got %q", got)
	}
}
