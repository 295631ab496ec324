package policytest

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/sluicegate/sluice/policy"
)

// unknownNames reports rules and variables of a test that do not exist. A
// mistyped notFired would otherwise always hold.
func unknownNames(rules []policy.RuleInfo, s *policy.TestSuite, c *policy.TestCase) []string {
	var out []string
	known := func(where, name string, kinds ...policy.RuleKind) {
		match := func(r policy.RuleInfo) bool {
			return r.Rule == name && (len(kinds) == 0 || slices.Contains(kinds, r.Kind))
		}
		if !slices.ContainsFunc(rules, match) {
			out = append(out, fmt.Sprintf("%s: there is no such rule: %s", where, name))
		}
	}
	for _, set := range []string{"fired", "notFired"} {
		for _, name := range c.Expect.Sets[set] {
			known("expect."+set, name, policy.Effect)
		}
	}
	for _, name := range c.Expect.Sets["reserved"] {
		known("expect.reserved", name, policy.LimitRule)
	}
	for _, name := range slices.Sorted(maps.Keys(c.Expect.Limits)) {
		known("expect.limits", name, policy.LimitRule)
	}
	for _, name := range slices.Sorted(maps.Keys(c.Available)) {
		known("state", name, policy.LimitRule)
	}
	if rule, ok := c.Expect.Words["rule"]; ok && rule != "" && !strings.Contains(rule, "/") {
		out = append(out, fmt.Sprintf("expect.rule: %q is no rule: write policy/name", rule))
	}
	vars, _ := policy.Variables(s.Config.Claims)
	for _, name := range c.Expect.Sets["unresolved"] {
		if !slices.ContainsFunc(vars, func(v policy.VariableInfo) bool { return v.Name == name && v.Lazy }) {
			out = append(out, fmt.Sprintf("expect.unresolved: %s is no lazy variable", name))
		}
	}
	return out
}

// compare holds the decision against what was expected.
func compare(run *execution, want *policy.Expectation) []string {
	var out []string
	d := run.d
	fail := func(field string, want, got any) {
		out = append(out, fmt.Sprintf("%s: want %v, got %v", field, want, got))
	}
	words := decisionWords(d)
	for _, field := range slices.Sorted(maps.Keys(want.Words)) {
		if w := want.Words[field]; words[field] != w {
			fail(field, strconv.Quote(w), strconv.Quote(words[field]))
		}
	}
	numbers := decisionNumbers(d)
	for _, field := range slices.Sorted(maps.Keys(want.Numbers)) {
		if w := want.Numbers[field]; numbers[field] != w {
			fail(field, w, numbers[field])
		}
	}
	for _, field := range slices.Sorted(maps.Keys(want.Sets)) {
		compareSet(run, field, want.Sets[field], fail)
	}
	if want.Annotations != nil && !maps.Equal(want.Annotations, d.Annotations) {
		fail("annotations", want.Annotations, d.Annotations)
	}
	for _, rule := range slices.Sorted(maps.Keys(want.Limits)) {
		if text := run.compareLimit(rule, want.Limits[rule]); text != "" {
			out = append(out, "limits: "+rule+": "+text)
		}
	}
	if len(out) > 0 {
		out = append(out, run.errorDetails()...)
	}
	return out
}

func decisionWords(d *policy.Decision) map[string]string {
	verdict := "deny"
	if d.Allow {
		verdict = "allow"
	}
	return map[string]string{
		"verdict": verdict, "reason": string(d.Reason), "rule": d.Rule, "message": d.Message,
		"qosClass": d.Class, "cacheIsolation": d.CacheIsolation,
	}
}

func decisionNumbers(d *policy.Decision) map[string]int64 {
	out := map[string]int64{"status": int64(d.Status), "n": d.N}
	if d.MaxTokens != nil {
		out["maxTokens"] = *d.MaxTokens
	}
	return out
}

// errorDetails lists evaluation errors, which explain most surprises.
func (run *execution) errorDetails() []string {
	var out []string
	for _, e := range slices.Concat(run.d.Errors, run.rehearsed.Errors) {
		out = append(out, fmt.Sprintf("evaluation error in %s (%s): %s", e.Rule, e.Binding, e.Detail))
	}
	return out
}

func compareSet(run *execution, field string, want []string, fail func(string, any, any)) {
	want = sortedSet(want)
	fired := ruleSet(run.d.Fired, policy.Enforced)
	switch field {
	case "fired":
		if missing := without(want, fired); len(missing) > 0 {
			fail(field, want, fired)
		}
	case "notFired":
		if len(without(want, fired)) < len(want) {
			fail(field, want, fired)
		}
	case "unresolved":
		for _, name := range want {
			if run.observed.reads[name] {
				fail(field, name+" unread", "it was read")
			}
		}
	default:
		if got := decisionSet(run, field); !slices.Equal(want, got) {
			fail(field, want, got)
		}
	}
}

func decisionSet(run *execution, field string) []string {
	d := run.d
	switch field {
	case "denials":
		return ruleSet(d.Denials, "")
	case "warnings":
		return ruleSet(d.Warnings, "")
	case "wouldDeny":
		return ruleSet(run.rehearsed.WouldDeny, "")
	case "errors":
		return ruleSet(slices.Concat(d.Errors, run.rehearsed.Errors), "")
	case "pools":
		return sortedSet(d.Pools)
	case "labels":
		return sortedSet(d.Labels)
	case "reserved":
		var out []string
		for _, l := range d.Limits {
			if l.Mode == policy.Enforced && run.reserved[l.Rule] {
				out = append(out, l.Rule)
			}
		}
		return sortedSet(out)
	}
	panic("BUG: policytest: no set " + field)
}

func ruleSet(refs []policy.RuleRef, mode policy.Mode) []string {
	var out []string
	for _, r := range refs {
		if mode == "" || r.Mode == mode {
			out = append(out, r.Rule)
		}
	}
	return sortedSet(out)
}

func sortedSet(l []string) []string {
	l = slices.Clone(l)
	slices.Sort(l)
	return slices.Compact(l)
}

func without(l, minus []string) []string {
	return slices.DeleteFunc(slices.Clone(l), func(s string) bool { return slices.Contains(minus, s) })
}

// compareLimit looks for an enforced limit of the rule that has all the given
// fields; a policy with several bindings has several.
func (run *execution) compareLimit(rule string, want policy.ExpectedLimit) string {
	text := "it was not reserved"
	for i, l := range run.d.Limits {
		if l.Rule != rule || l.Mode != policy.Enforced {
			continue
		}
		if text = run.limitDiff(i, want); text == "" {
			return ""
		}
	}
	return text
}

func (run *execution) limitDiff(i int, want policy.ExpectedLimit) string {
	l := run.d.Limits[i]
	var diffs []string
	number := func(name string, want *int64, got int64) {
		if want != nil && *want != got {
			diffs = append(diffs, fmt.Sprintf("%s: want %d, got %d", name, *want, got))
		}
	}
	if want.Key != nil && !slices.Equal(want.Key, l.Key) {
		diffs = append(diffs, fmt.Sprintf("key: want %q, got %q", want.Key, l.Key))
	}
	number("limit", want.Limit, l.Limit)
	number("reserve", want.Reserve, l.Estimate)
	if want.Charge != nil {
		if run.charges == nil {
			return "charge: the test gives no usage to settle"
		}
		number("charge", want.Charge, run.charges[i])
	}
	return strings.Join(diffs, "; ")
}
