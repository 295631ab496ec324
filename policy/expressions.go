package policy

import (
	"fmt"
	"slices"
	"strings"

	"github.com/google/cel-go/cel"
	"github.com/google/cel-go/common/types"
	"github.com/google/cel-go/common/types/ref"
)

// ResultKind says what the value of an expression tells.
type ResultKind string

// The kinds of results.
const (
	ResultBool     ResultKind = "bool"     // true or false
	ResultOptional ResultKind = "optional" // given or none
	ResultValue    ResultKind = "value"    // any other
)

// ExpressionInfo describes one expression of a loaded set.
type ExpressionInfo struct {
	// Rule is policy/name: of the match condition, variable, validation, effect,
	// limit or annotation that the expression belongs to.
	Rule string
	Kind RuleKind
	// Field of the rule, as the document writes it: expression, when,
	// messageExpression, mutate.max_tokens, key[0] and so on.
	Field  string
	Result ResultKind
	// At is the expression's place, without a text.
	At Error
}

// Expressions lists every expression of a set, by policy name and place in the
// document.
func (s *Set) Expressions() []ExpressionInfo {
	var out []ExpressionInfo
	for _, c := range s.policies {
		c.each(func(r placedRule, field string, x *expression) {
			out = append(out, ExpressionInfo{Rule: r.ref, Kind: r.kind, Field: field, Result: resultKind(x.typ), At: x.at})
		})
	}
	return out
}

func resultKind(t *cel.Type) ResultKind {
	switch {
	case t.IsExactType(cel.BoolType):
		return ResultBool
	case t.TypeName() == "optional_type":
		return ResultOptional
	}
	return ResultValue
}

// placedRule is a rule and its index among those of its kind.
type placedRule struct {
	kind  RuleKind
	ref   string
	index int
}

// each calls f for every expression of a policy, in the order of the document's
// sections, with the rule that it belongs to and its field there.
func (c *compiled) each(f func(r placedRule, field string, x *expression)) {
	call := func(r placedRule, field string, x *expression) {
		if x != nil {
			f(r, field, x)
		}
	}
	for i, m := range c.match {
		call(placedRule{MatchCondition, m.ref, i}, "expression", m.expr)
	}
	for i, x := range c.variables {
		call(placedRule{Variable, c.name + "/" + strings.TrimPrefix(c.varNames[i], "variables."), i}, "expression", x)
	}
	for i, v := range c.validations {
		r := placedRule{Validation, v.ref, i}
		call(r, "expression", v.expr)
		call(r, "messageExpression", v.dynamic)
	}
	for i, e := range c.effects {
		r := placedRule{Effect, e.ref, i}
		call(r, "when", e.when)
		call(r, "mutate.max_tokens", e.maxTokens)
		call(r, "mutate.n", e.n)
	}
	for i := range c.limits {
		l, r := &c.limits[i], placedRule{LimitRule, c.limits[i].ref, i}
		call(r, "when", l.when)
		call(r, "limit", l.limit)
		for k, x := range l.key {
			call(r, fmt.Sprintf("key[%d]", k), x)
		}
		call(r, "estimate", l.estimate)
		call(r, "charge", l.charge)
	}
	for i, a := range c.annotations {
		call(placedRule{AuditAnnotation, a.ref, i}, "valueExpression", a.expr)
	}
}

// ExpressionObserver is an [Observer] that is told of every expression, too.
type ExpressionObserver interface {
	Observer
	// Evaluated reports that a binding asked for the value of an expression.
	Evaluated(e Evaluated)
}

// Evaluated is the outcome of one expression for one binding.
type Evaluated struct {
	// At is the expression's place, as in [ExpressionInfo].
	At      Error
	Binding string
	Mode    Mode
	// True is a boolean's value, and whether an optional has one. It says nothing
	// for other results or when Err is set.
	True bool
	Err  error
}

// observeExpressions makes a tracer for an observer that wants one.
func observeExpressions(o Observer) func(*activation, *expression, ref.Val, uint64, error) {
	to, ok := o.(ExpressionObserver)
	if !ok {
		return nil
	}
	operands := func(*activation, *expression) {}
	if with, ok := o.(OperandObserver); ok {
		operands = observeOperands(with)
	}
	return func(a *activation, x *expression, v ref.Val, _ uint64, err error) {
		e := Evaluated{At: x.at, Binding: a.b.name, Mode: a.b.mode, Err: err}
		switch v := v.(type) {
		case types.Bool:
			e.True = bool(v)
		case *types.Optional:
			e.True = v.HasValue()
		}
		to.Evaluated(e)
		operands(a, x)
	}
}

// Touch is a part of the combined outcome that an effect bears on.
type Touch string

// What effects bear on.
const (
	TouchPools     Touch = "pools"
	TouchClass     Touch = "class"
	TouchMaxTokens Touch = "max_tokens"
	TouchN         Touch = "n"
	TouchIsolation Touch = "cacheIsolation"
	TouchLabels    Touch = "labels"
)

// Touches lists, by the rule of every effect, what it bears on.
func (s *Set) Touches() map[string][]Touch {
	out := map[string][]Touch{}
	for _, c := range s.policies {
		for i := range c.effects {
			out[c.effects[i].ref] = c.effects[i].touches()
		}
	}
	return out
}

// touches lists what an effect bears on. Isolation bears on the pools as well,
// since it removes those that cannot isolate.
func (e *effect) touches() []Touch {
	var out []Touch
	add := func(yes bool, t ...Touch) {
		if yes {
			out = append(out, t...)
		}
	}
	d := e.doc
	add(len(d.allowPools)+len(d.denyPools)+len(d.poolLabels) > 0, TouchPools)
	add(d.class.text != "", TouchClass)
	add(e.maxTokens != nil, TouchMaxTokens)
	add(e.n != nil, TouchN)
	add(d.isolation != "", TouchIsolation, TouchPools)
	add(len(d.labels) > 0, TouchLabels)
	slices.Sort(out)
	return slices.Compact(out)
}
