package policy

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/google/cel-go/common/types"
	"github.com/google/cel-go/common/types/ref"
	"github.com/google/cel-go/common/types/traits"
)

// A rule is decided for a binding when every request that the binding selects
// gives it the same value. Nothing is known of a request but what the selector
// says; the binding's parameters are. So each expression is evaluated with all
// variables absent, which CEL's && || ?: pass over where they need not be known,
// and once for each value of the variables that are only compared with words:
// those words, and one that is none of them.

// Bounds of the search, beyond which a rule is taken for undecided.
const (
	maxCases       = 64    // values of variables together, for one rule
	maxDecideEvals = 8_000 // evaluations of one load
)

// otherWord is a value that no literal and no parameter has.
const otherWord = "\x00other"

// decider looks for rules whose value does not depend on the request.
type decider struct {
	b     *builder
	s     *Set
	evals int
	// absent are all variables of a request.
	absent map[string]bool
}

func newDecider(b *builder, s *Set) *decider {
	d := &decider{b: b, s: s, absent: map[string]bool{}}
	for _, v := range slices.Concat(requestVariables(), identityVariables()) {
		d.absent[v.name] = true
	}
	for name := range s.cfg.Claims {
		d.absent["principal.claims."+name] = true
	}
	return d
}

// constants are the bindings for which an expression always has one value.
type constants struct {
	yes, no, zero []string
}

// policy warns of the rules of one policy that its bindings decide.
func (d *decider) policy(c *compiled, bindings []*binding) {
	found := map[*expression]*constants{}
	for _, bd := range bindings {
		if d.evals > maxDecideEvals {
			return
		}
		if d.never(bd) {
			d.b.warn(WarnSelectsNone, bd.doc.at.place(), "the match conditions of policy %s contradict each other or the selector, so the binding applies to no request", c.name)
			continue
		}
		d.binding(bd, found)
	}
	report := func(x *expression, list []string, text string) {
		if x == nil || x.isConst || len(list) == 0 {
			return
		}
		where := "in every binding"
		if len(list) < len(bindings) || len(list) == 1 {
			where = "in binding " + strings.Join(list, ", ")
		}
		d.b.warn(WarnDecided, x.at, "%s %s", where, text)
	}
	of := func(x *expression) constants {
		if got := found[x]; got != nil {
			return *got
		}
		return constants{}
	}
	for _, v := range c.validations {
		report(v.expr, of(v.expr).yes, "always true: the validation never refuses")
		report(v.expr, of(v.expr).no, "always false: the validation refuses every request that it sees")
	}
	for _, e := range c.effects {
		report(e.when, of(e.when).no, "always false: the effect never applies")
	}
	for _, l := range c.limits {
		report(l.when, of(l.when).no, "always false: the limit never applies")
		report(l.limit, of(l.limit).zero, "always 0: the limit refuses every request that it applies to")
	}
}

// binding finds the rules that one binding decides.
func (d *decider) binding(bd *binding, found map[*expression]*constants) {
	note := func(x *expression) *constants {
		if found[x] == nil {
			found[x] = &constants{}
		}
		return found[x]
	}
	try := func(x *expression) (never bool) {
		if x == nil || x.isConst {
			return x != nil && x.constant == types.False
		}
		v := d.value(bd, x)
		switch v {
		case types.True:
			note(x).yes = append(note(x).yes, bd.name)
		case types.False:
			note(x).no = append(note(x).no, bd.name)
		case types.IntZero:
			note(x).zero = append(note(x).zero, bd.name)
		}
		return v == types.False
	}
	for _, v := range bd.policy.validations {
		try(v.expr)
	}
	for _, e := range bd.policy.effects {
		try(e.when)
	}
	for _, l := range bd.policy.limits {
		if !try(l.when) {
			try(l.limit)
		}
	}
}

// value is the one value that an expression has for every request that the
// binding selects and the match conditions let through, or nil.
func (d *decider) value(bd *binding, x *expression) ref.Val {
	var one ref.Val
	for _, known := range d.cases(bd, x) {
		if d.excluded(bd, known) {
			continue
		}
		v, ok := d.evaluate(bd, x, known)
		if !ok || one != nil && v != one {
			return nil
		}
		one = v
	}
	return one
}

// never reports whether the match conditions let no request through.
func (d *decider) never(bd *binding) bool {
	if len(bd.policy.match) == 0 || slices.ContainsFunc(bd.policy.match, func(m rule) bool { return m.expr.isConst }) {
		return false // reported as constant
	}
	var all []*expression
	for _, m := range bd.policy.match {
		all = append(all, m.expr)
	}
	for _, known := range d.cases(bd, all...) {
		if !d.excluded(bd, known) {
			return false
		}
	}
	return true
}

// excluded reports whether a match condition is false whatever else the request
// says.
func (d *decider) excluded(bd *binding, known map[string]any) bool {
	return slices.ContainsFunc(bd.policy.match, func(m rule) bool {
		v, ok := d.evaluate(bd, m.expr, known)
		return ok && v == types.False
	})
}

// evaluate runs an expression with some variables known and all others absent.
func (d *decider) evaluate(bd *binding, x *expression, known map[string]any) (ref.Val, bool) {
	d.evals++
	if d.evals > maxDecideEvals {
		return nil, false
	}
	in := &Input{Absent: maps.Clone(d.absent), Lazy: knownLazy(known)}
	for name, v := range known {
		delete(in.Absent, name)
		in.set(name, v)
	}
	v, err := newEvaluation(context.Background(), d.s, in).bind(bd).run(x)
	return v, err == nil
}

// set gives a variable that can be known before a request its value.
func (in *Input) set(name string, v any) {
	text, _ := v.(string)
	switch name {
	case "request.operation":
		in.Request.Operation = text
	case "request.dialect":
		in.Request.Dialect = text
	case "request.method":
		in.Request.Method = text
	case "request.model":
		in.Request.Model = text
	case "request.model_family":
		in.Request.ModelFamily = text
	case "request.stream":
		in.Request.Stream, _ = v.(bool)
	case "principal.kind":
		in.Principal.Kind = text
	case "tenant.id":
		in.Tenant.ID = text
	case "tenant.team":
		in.Tenant.Team = text
	case "tenant.tier":
		in.Tenant.Tier = text
	}
}

// knowable are the variables that cases are made of.
var knowable = []string{
	"request.operation", "request.stream", "request.model", "request.model_family", "request.dialect", "request.method",
	"principal.kind", "tenant.id", "tenant.team", "tenant.tier", "content.scan_status",
}

// knownLazy gives a scan's status where that is known.
type knownLazy map[string]any

// InputTokens implements Lazy. It is never asked, since the variable is absent.
func (knownLazy) InputTokens(context.Context) (int64, bool, error) {
	return 0, false, fmt.Errorf("not known before a request")
}

// Content implements Lazy.
func (k knownLazy) Content(context.Context) (Content, error) {
	status, _ := k["content.scan_status"].(string)
	return Content{ScanStatus: status}, nil
}

// cases are the assignments of the variables that some expressions and the match
// conditions read, as far as they can be told apart. A variable that would make
// too many is left absent.
func (d *decider) cases(bd *binding, of ...*expression) []map[string]any {
	for _, m := range bd.policy.match {
		of = append(of, m.expr)
	}
	uses, seen := map[string]*use{}, map[*expression]bool{}
	for _, x := range of {
		bd.policy.mergeUses(uses, seen, x)
	}
	out := []map[string]any{{}}
	for _, name := range knowable {
		values := d.values(bd, name, uses[name])
		if len(values) == 0 || len(values)*len(out) > maxCases {
			continue
		}
		next := make([]map[string]any, 0, len(out)*len(values))
		for _, base := range out {
			for _, v := range values {
				c := maps.Clone(base)
				c[name] = v
				next = append(next, c)
			}
		}
		out = next
	}
	return out
}

// values are those that a variable has to be tried with; none leave it absent.
func (d *decider) values(bd *binding, name string, u *use) []any {
	sel := bd.selector
	var closed []string
	switch {
	case u == nil:
		return nil
	case name == "request.stream":
		return []any{false, true}
	case name == "request.operation":
		closed = sel.operations
	case name == "tenant.id":
		closed = slices.DeleteFunc(slices.Clone(sel.tenants), func(t string) bool { return slices.Contains(sel.exclude, t) })
	case name == "request.model" && !slices.ContainsFunc(sel.models, func(m string) bool { return strings.Contains(m, "*") }):
		closed = sel.models
	case name == "content.scan_status":
		closed = scanStatuses
	}
	if len(closed) == 0 {
		if u.open {
			return nil
		}
		closed = []string{otherWord}
		for _, w := range u.words {
			closed = append(closed, w.text)
		}
		for _, p := range u.params {
			closed = append(closed, bd.wordsOf(p)...)
		}
	}
	closed = slices.Compact(slices.Sorted(slices.Values(closed)))
	out := make([]any, len(closed))
	for i, w := range closed {
		out[i] = w
	}
	return out
}

// mergeUses adds how an expression uses the base variables, also through
// variables.*. Each expression counts once, however many paths lead to it.
func (c *compiled) mergeUses(into map[string]*use, seen map[*expression]bool, x *expression) {
	if seen[x] {
		return
	}
	seen[x] = true
	for name, u := range x.uses {
		have := into[name]
		if have == nil {
			have = &use{}
			into[name] = have
		}
		have.words = append(have.words, u.words...)
		have.params = append(have.params, u.params...)
		have.open = have.open || u.open
	}
	for _, name := range x.reads {
		if i, ok := c.varIndex[name]; ok && c.variables[i] != nil {
			c.mergeUses(into, seen, c.variables[i])
		}
	}
}

// iterate calls f for the elements of a list or the keys of a map.
func iterate(v ref.Val, f func(any)) {
	it, ok := v.(traits.Iterable)
	if !ok {
		return
	}
	for i := it.Iterator(); i.HasNext() == types.True; {
		f(i.Next())
	}
}
