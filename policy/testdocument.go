package policy

import (
	"fmt"
	"io/fs"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/google/cel-go/cel"
	"github.com/google/cel-go/common/types"
)

// TestSuite is a decoded PolicyTest document. Package policytest runs it.
type TestSuite struct {
	Name string
	// At is the place of the document, without a text.
	At Error
	// Files hold the policies, as paths from the root that was read.
	Files  []string
	Config Config
	Tests  []TestCase
}

// TestCase is one request and what is expected of the decision.
type TestCase struct {
	Name string
	At   Error
	// Input by full variable name, defaults included: string, int64, bool,
	// float64, time.Time, []string, map[string]string, map[string]int64, or nil
	// for an optional variable that is absent.
	Input map[string]any
	Usage *Usage
	// CostGiven says that Usage.Cost was written in the test; otherwise it
	// follows from the price table.
	CostGiven bool
	// Available is what is left in the counters of a limit, by policy/limit.
	Available map[string]int64
	Expect    Expectation
}

// Expectation holds the fields given under expect; others are not compared.
type Expectation struct {
	// Words are verdict, reason, rule, message, qosClass and cacheIsolation.
	Words map[string]string
	// Numbers are status, maxTokens and n.
	Numbers map[string]int64
	// Sets are denials, warnings, wouldDeny, errors, pools, labels, reserved,
	// fired, notFired and unresolved.
	Sets map[string][]string
	// Annotations is the whole map, nil when it was not given.
	Annotations map[string]string
	Limits      map[string]ExpectedLimit
}

// ExpectedLimit holds the fields given for one limit.
type ExpectedLimit struct {
	Key                    []string // nil when not given
	Limit, Reserve, Charge *int64
}

// LoadTests reads the PolicyTest documents of one file. Other documents are
// ignored. The error is a *LoadError.
func LoadTests(fsys fs.FS, file string) ([]*TestSuite, error) {
	p := &problems{}
	var out []*TestSuite
	docs, _ := readYAML(p, fsys, file)
	for _, doc := range docs {
		h, ok := decodeHeader(p, doc)
		if ok && h.kind == kindTest {
			out = append(out, decodeSuite(p, h))
		}
	}
	if len(p.list) > 0 {
		return nil, &LoadError{Errors: p.sorted()}
	}
	return out, nil
}

func decodeSuite(p *problems, h header) *TestSuite {
	s := &TestSuite{Name: h.name, At: h.root.place()}
	f := h.spec.fields(p, "files", "config", "defaults", "tests")
	if v, ok := h.spec.require(p, f, "files"); ok {
		s.Files = v.nonEmptyStrs(p)
	}
	if v, ok := f["config"]; ok {
		s.Config = decodeTestConfig(p, v)
	}
	s.Config.AllowEmpty = true
	vars := testVariables(p, h.spec, s.Config)
	defaults := map[string]any{}
	if v, ok := f["defaults"]; ok {
		defaults = vars.decode(p, v)
	}
	tests, ok := h.spec.require(p, f, "tests")
	if !ok {
		return s
	}
	names := map[string]bool{}
	for _, n := range tests.list(p) {
		t := vars.decodeCase(p, n, defaults)
		if t.Name != "" && names[t.Name] {
			n.errorf(p, "the test name is taken by another test of this document")
		}
		names[t.Name] = true
		s.Tests = append(s.Tests, t)
	}
	return s
}

func decodeTestConfig(p *problems, n node) Config {
	var c Config
	f := n.fields(p, "qosClasses", "defaultQosClass", "defaultCacheIsolation", "defaultMaxTokens", "claims", "pools", "prices")
	if v, ok := f["qosClasses"]; ok {
		c.Classes = v.nonEmptyStrs(p)
	}
	c.DefaultClass = strField(p, f, "defaultQosClass")
	c.DefaultIsolation = strField(p, f, "defaultCacheIsolation")
	if v, ok := f["defaultMaxTokens"]; ok {
		c.DefaultMaxTokens = v.integer(p)
	}
	if v, ok := f["claims"]; ok {
		c.Claims = v.stringMap(p)
	}
	if v, ok := f["pools"]; ok {
		for _, e := range v.list(p) {
			c.Pools = append(c.Pools, decodeTestPool(p, e))
		}
	}
	if v, ok := f["prices"]; ok {
		c.Prices = map[string]Price{}
		for _, e := range v.entries(p) {
			g := e.value.fields(p, "input", "cachedInput", "output", "reasoning", "currency")
			number := func(name string) int64 {
				if v, ok := g[name]; ok {
					return v.integer(p)
				}
				return 0
			}
			price := Price{
				Input: number("input"), CachedInput: number("cachedInput"), Output: number("output"), Reasoning: number("reasoning"), Currency: strField(p, g, "currency"),
			}
			_, price.ReasoningApart = g["reasoning"]
			c.Prices[e.key] = price
		}
	}
	return c
}

func decodeTestPool(p *problems, n node) Pool {
	f := n.fields(p, "name", "models", "labels", "cacheSalt")
	pool := Pool{Salted: []string{"*"}} // most tests are not about caches
	if v, ok := n.require(p, f, "name"); ok {
		pool.Name = v.str(p)
	}
	if v, ok := f["models"]; ok {
		pool.Models = v.strs(p)
	}
	if v, ok := f["labels"]; ok {
		pool.Labels = v.stringMap(p)
	}
	if v, ok := f["cacheSalt"]; ok {
		pool.Salted = v.strs(p)
	}
	return pool
}

// testInputs decodes inputs by the types of their variables.
type testInputs map[string]variable

func testVariables(p *problems, at node, c Config) testInputs {
	out := testInputs{}
	for _, v := range slices.Concat(requestVariables(), identityVariables()) {
		out[v.name] = v
	}
	// No expression sees it, but what a limit reserves depends on it.
	out[learnedOutput] = variable{name: learnedOutput, typ: cel.OptionalType(cel.IntType)}
	for name, t := range c.Claims {
		v, err := claimVariable(name, t)
		if err != nil {
			at.errorf(p, "config.claims: %v", err)
			continue
		}
		out[v.name] = v
	}
	return out
}

// inputSpaces are the fields of an input.
var inputSpaces = []string{"now", "request", "principal", "tenant", "content"}

func (vars testInputs) decode(p *problems, n node) map[string]any {
	out := map[string]any{}
	vars.decodeFields(p, out, n.fields(p, inputSpaces...))
	return out
}

func (vars testInputs) decodeFields(p *problems, out map[string]any, fields map[string]node) {
	for space, v := range fields {
		if space == "now" {
			out["now"] = decodeTime(p, v)
			continue
		}
		for _, e := range v.entries(p) {
			if space == "principal" && e.key == "claims" {
				for _, c := range e.value.entries(p) {
					vars.decodeOne(p, out, "principal.claims."+c.key, c)
				}
				continue
			}
			vars.decodeOne(p, out, space+"."+e.key, e)
		}
	}
}

func decodeTime(p *problems, n node) any {
	s := n.str(p)
	t, err := time.Parse(time.RFC3339Nano, s)
	if err != nil && s != "" {
		n.errorf(p, "%q is no time: write it like 2026-03-10T12:00:00Z, in quotes", cut(s, 80))
	}
	return t
}

func (vars testInputs) decodeOne(p *problems, out map[string]any, name string, e entry) {
	v, ok := vars[name]
	if !ok {
		e.keyAt.errorf(p, "there is no variable %q%s", cut(name, 120), didYouMean(name, vars.names()))
		return
	}
	t := v.typ
	if optional := t.TypeName() == "optional_type"; optional {
		t = t.Parameters()[0]
		if e.value.isNull() {
			out[name] = nil
			return
		}
	}
	if e.value.isNull() {
		e.value.errorf(p, "%s is not optional: give it a value", name)
		return
	}
	out[name] = decodeTestValue(p, e.value, t)
}

func (vars testInputs) names() []string {
	var out []string
	for name := range vars {
		out = append(out, name)
	}
	return out
}

func decodeTestValue(p *problems, n node, t *cel.Type) any {
	switch t.Kind() {
	case types.StringKind:
		return n.str(p)
	case types.IntKind:
		return n.integer(p)
	case types.DoubleKind:
		return n.double(p)
	case types.BoolKind:
		return n.boolean(p)
	case types.ListKind:
		if t.Parameters()[0].Kind() == types.StringKind {
			return n.strs(p)
		}
		out := []any{}
		for _, e := range n.list(p) {
			out = append(out, decodeTestValue(p, e, t.Parameters()[0]))
		}
		return out
	case types.MapKind:
		if t.Parameters()[1].Kind() == types.StringKind {
			return n.stringMap(p)
		}
		out := map[string]int64{}
		for _, e := range n.entries(p) {
			out[e.key] = e.value.integer(p)
		}
		return out
	}
	panic("BUG: policy: no test value of type " + t.String())
}

func (vars testInputs) decodeCase(p *problems, n node, defaults map[string]any) TestCase {
	c := TestCase{At: n.place(), Input: map[string]any{}, Available: map[string]int64{}}
	f := n.fields(p, "name", "input", "usage", "state", "expect")
	if v, ok := n.require(p, f, "name"); ok {
		c.Name = v.str(p)
	}
	maps.Copy(c.Input, defaults)
	if v, ok := f["input"]; ok {
		maps.Copy(c.Input, vars.decode(p, v))
	}
	if v, ok := f["usage"]; ok {
		c.decodeUsage(p, v)
	}
	if v, ok := f["state"]; ok {
		for _, e := range v.entries(p) {
			g := e.value.fields(p, "available")
			if a, ok := e.value.require(p, g, "available"); ok {
				c.Available[e.key] = a.integer(p)
			}
		}
	}
	if v, ok := n.require(p, f, "expect"); ok {
		c.Expect = decodeExpect(p, v)
	}
	return c
}

func (c *TestCase) decodeUsage(p *problems, n node) {
	u := Usage{Complete: true}
	to := map[string]*int64{
		"input_tokens": &u.InputTokens, "cached_input_tokens": &u.CachedInputTokens,
		"output_tokens": &u.OutputTokens, "reasoning_tokens": &u.ReasoningTokens, "cost": &u.Cost,
	}
	f := n.fields(p, "input_tokens", "cached_input_tokens", "output_tokens", "reasoning_tokens", "cost", "complete")
	for name, dst := range to {
		if v, ok := f[name]; ok {
			*dst = v.integer(p)
		}
	}
	_, c.CostGiven = f["cost"]
	if v, ok := f["complete"]; ok {
		u.Complete = v.boolean(p)
	}
	c.Usage = &u
}

var (
	expectWords   = []string{"verdict", "reason", "rule", "message", "qosClass", "cacheIsolation"}
	expectNumbers = []string{"status", "maxTokens", "n"}
	expectSets    = []string{"denials", "warnings", "wouldDeny", "errors", "pools", "labels", "reserved", "fired", "notFired", "unresolved"}
)

func decodeExpect(p *problems, n node) Expectation {
	x := Expectation{Words: map[string]string{}, Numbers: map[string]int64{}, Sets: map[string][]string{}, Limits: map[string]ExpectedLimit{}}
	f := n.fields(p, slices.Concat(expectWords, expectNumbers, expectSets, []string{"annotations", "limits"})...)
	if len(f) == 0 {
		n.errorf(p, "the test expects nothing: give it at least a verdict")
	}
	for name, v := range f {
		switch {
		case name == "verdict":
			x.Words[name] = v.oneOf(p, "allow", "deny")
		case slices.Contains(expectWords, name):
			x.Words[name] = v.str(p)
		case slices.Contains(expectNumbers, name):
			x.Numbers[name] = v.integer(p)
		case slices.Contains(expectSets, name):
			x.Sets[name] = v.strs(p)
		case name == "annotations":
			x.Annotations = v.stringMap(p)
		case name == "limits":
			for _, e := range v.entries(p) {
				x.Limits[e.key] = decodeExpectedLimit(p, e.value)
			}
		}
	}
	return x
}

func decodeExpectedLimit(p *problems, n node) ExpectedLimit {
	var l ExpectedLimit
	f := n.fields(p, "key", "limit", "reserve", "charge")
	if v, ok := f["key"]; ok {
		l.Key = v.strs(p)
	}
	for name, dst := range map[string]**int64{"limit": &l.Limit, "reserve": &l.Reserve, "charge": &l.Charge} {
		if v, ok := f[name]; ok {
			i := v.integer(p)
			*dst = &i
		}
	}
	return l
}

// VariableInfo describes a variable of section 2.
type VariableInfo struct {
	Name string
	// Type in CEL's notation.
	Type           string
	Optional, Lazy bool
	// ReadableIn is "", "limit" or "charge".
	ReadableIn string
	// Size is the most characters of a text or entries of a list or map, 1 for
	// what has no size; Elem is the most characters of an entry, 0 for none.
	Size, Elem int
	// ClientText: written by the client, so neither messages nor annotations may
	// read it.
	ClientText bool
}

// Variables lists the variables that every expression can read, those of
// limits and charges included, and the declared claims.
func Variables(claims map[string]string) ([]VariableInfo, error) {
	all := baseVariables()
	for name, t := range claims {
		v, err := claimVariable(name, t)
		if err != nil {
			return nil, fmt.Errorf("cannot declare the claims: %w", err)
		}
		all = append(all, v)
	}
	slices.SortFunc(all, func(a, b variable) int { return strings.Compare(a.name, b.name) })
	out := make([]VariableInfo, len(all))
	for i, v := range all {
		out[i] = VariableInfo{
			Name: v.name, Type: v.typ.String(), Optional: v.typ.TypeName() == "optional_type",
			Lazy: v.lazy != notLazy, ReadableIn: []string{"", "limit", "charge"}[v.scope],
			Size: int(v.size.self), Elem: int(v.size.elem), ClientText: v.client,
		}
	}
	return out, nil
}

// RuleInfo describes a rule of a loaded set.
type RuleInfo struct {
	Rule string // policy/name
	Kind RuleKind
	// Conditional is false for an effect or limit without `when`.
	Conditional bool
	// Bound says that a binding applies the policy.
	Bound bool
	// At is the rule's place, without a text.
	At Error
}

// Rules lists the match conditions, validations, effects and limits of a set,
// by policy name and place in the document.
func (s *Set) Rules() []RuleInfo {
	bound := map[*compiled]bool{}
	for _, b := range slices.Concat(s.live, s.shadow) {
		bound[b.policy] = true
	}
	var out []RuleInfo
	for _, c := range s.policies {
		add := func(kind RuleKind, ref string, conditional bool, at node) {
			out = append(out, RuleInfo{ref, kind, conditional, bound[c], at.place()})
		}
		for i, m := range c.match {
			add(MatchCondition, m.ref, true, c.doc.match[i].at)
		}
		for i, v := range c.validations {
			add(Validation, v.ref, true, c.doc.validations[i].at)
		}
		for _, e := range c.effects {
			add(Effect, e.ref, e.when != nil, e.doc.at)
		}
		for _, l := range c.limits {
			add(LimitRule, l.ref, l.when != nil, l.doc.at)
		}
	}
	return out
}
