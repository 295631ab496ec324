package policy

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"strings"
	"time"
)

// Decide judges one request by all enforced and warning bindings. It never
// returns nil and never panics for what a policy or a request contains: an
// error denies unless its policy says failurePolicy Ignore. When ctx ends, what
// has not been evaluated yet is an evaluation error.
func (s *Set) Decide(ctx context.Context, in *Input) (d *Decision) {
	defer func() {
		if r := recover(); r != nil {
			d = s.failed(panicText(r))
		}
	}()
	return s.decide(newEvaluation(ctx, s, in))
}

// decide is Decide for an evaluation that has only begun.
func (s *Set) decide(e *evaluation) *Decision {
	d := &Decision{Revision: s.revision, e: e}
	found := e.judgeAll(e.matching(s.live, s.liveIndex), d)
	e.combine(d, found)
	if len(d.denied) == 0 {
		e.addLimits(d, found)
	}
	d.rehearse = slices.Collect(e.matching(s.shadow, s.shadowIndex))
	d.conclude()
	d.Cost = e.report()
	return d
}

// failed is the decision after a fault of the evaluator: a denial.
func (s *Set) failed(detail string) *Decision {
	ref := RuleRef{Mode: Enforced, Reason: PolicyError, Message: textPolicyError, ErrorKind: ErrorInternal, Detail: cut(detail, maxDetail)}
	d := &Decision{Revision: s.revision, LogInFull: true}
	d.deny(position{}, ref)
	d.addError(position{}, ref)
	d.conclude()
	return d
}

func (e *evaluation) report() CostReport {
	return CostReport{
		Units: int64(e.live.used), ShadowUnits: int64(e.other.used), Expressions: e.expressions, Skipped: e.skipped,
		Scan: e.scanTime, Tokenize: e.tokenizeTime, Duration: time.Since(e.began),
	}
}

// judged is what one binding says about the request.
type judged struct {
	a     *activation
	fired []fired
}

// fired is an effect that applies, with its caps evaluated. A cap of 0 is none.
type fired struct {
	effect       *effect
	ref          RuleRef
	maxTokens, n int64
	at           position
}

// position orders what several policies say: policy name, position in the
// document, binding name.
type position struct {
	policy  string
	section RuleKind
	index   int
	binding string
}

var sections = []RuleKind{SelectorRule, MatchCondition, Variable, Validation, Effect, LimitRule, AuditAnnotation}

func comparePositions(a, b position) int {
	return cmp.Or(
		strings.Compare(a.policy, b.policy),
		cmp.Compare(slices.Index(sections, a.section), slices.Index(sections, b.section)),
		cmp.Compare(a.index, b.index),
		strings.Compare(a.binding, b.binding),
	)
}

// matching yields the bindings of a list that the request can match, in their
// order.
func (e *evaluation) matching(list []*binding, x *index) iter.Seq[*binding] {
	if !e.indexed || len(list) == 0 {
		return slices.Values(list)
	}
	return func(yield func(*binding) bool) {
		c := x.find(e.in)
		c.each(func(i int) bool { return yield(list[i]) })
	}
}

// judgeAll evaluates every binding that matches. None is skipped because
// another has denied.
func (e *evaluation) judgeAll(bindings iter.Seq[*binding], d *Decision) []judged {
	var out []judged
	var spare *activation // of a binding that does not apply: it has read no variable
	for b := range bindings {
		if !e.selects(b, d) {
			continue
		}
		if spare == nil {
			spare = &activation{}
		}
		spare.reset(e, b)
		if !spare.applies(d) {
			continue
		}
		j := judged{a: spare}
		spare = nil
		d.LogInFull = d.LogInFull || b.audit
		j.a.validate(d)
		j.fired = j.a.fire(d)
		j.a.annotate(d)
		out = append(out, j)
	}
	return out
}

// selects applies the binding's selector. What a selector reads is reported
// like the reads of an expression, and like there an absent variable is an error
// unless another part of the selector says no.
func (e *evaluation) selects(b *binding, d *Decision) bool {
	if e.in.Observer == nil && e.in.Absent == nil {
		return e.indexed && b.selected || b.selector.matches(e.in)
	}
	var unknown string
	b.selector.reads(func(name string) {
		if _, failed := e.observed(name); failed && unknown == "" {
			unknown = name
		}
	})
	if unknown == "" {
		return b.selector.matches(e.in)
	}
	if known := b.selector.without(e.in.Absent); known.matches(e.in) {
		a := e.bind(b)
		at := a.position(SelectorRule, 0)
		a.fail(d, at, b.policy.name, &evalError{kind: ErrorAbsent, text: "the selector reads " + unknown + ", which the input does not give"})
	}
	return false
}

// reads names the variables that a selector looks at.
func (s *selector) reads(read func(name string)) {
	if len(s.tenants)+len(s.exclude) > 0 {
		read("tenant.id")
	}
	if len(s.labels) > 0 {
		read("tenant.labels")
	}
	if len(s.models) > 0 {
		read("request.model")
	}
	if len(s.operations) > 0 {
		read("request.operation")
	}
}

// without leaves out the parts that read an absent variable.
func (s *selector) without(absent map[string]bool) selector {
	out := *s
	if absent["tenant.id"] {
		out.tenants, out.exclude = nil, nil
	}
	if absent["tenant.labels"] {
		out.labels = nil
	}
	if absent["request.model"] {
		out.models = nil
	}
	if absent["request.operation"] {
		out.operations = nil
	}
	return out
}

// applies evaluates the match conditions: one false, and the policy does not
// apply, even if another failed; else an error is the failure policy's.
func (a *activation) applies(d *Decision) bool {
	type failure struct {
		i   int
		err error
	}
	var failures []failure
	for i, m := range a.b.policy.match {
		if a.e.indexed && a.b.decided[i] {
			continue // true, or the index had ruled the binding out
		}
		ok, err := a.bool(m.expr)
		a.observe(MatchCondition, m.ref, ok, err)
		if err != nil {
			failures = append(failures, failure{i, err})
		} else if !ok {
			return false
		}
	}
	for _, f := range failures {
		a.fail(d, a.position(MatchCondition, f.i), a.b.policy.match[f.i].ref, f.err)
	}
	return len(failures) == 0
}

func (a *activation) validate(d *Decision) {
	for i := range a.b.policy.validations {
		v := &a.b.policy.validations[i]
		ok, err := a.bool(v.expr)
		a.observe(Validation, v.ref, ok, err)
		at := a.position(Validation, i)
		if err != nil {
			a.fail(d, at, v.ref, err)
			continue
		}
		if ok {
			continue
		}
		text, err := a.messageOf(v)
		if err != nil && !skipped(err) {
			d.addError(at, a.errorRef(Validation, v.ref, err))
		}
		d.deny(at, RuleRef{Rule: v.ref, Binding: a.b.name, Mode: a.b.mode, Kind: Validation, Reason: v.reason, Message: text})
	}
}

// fire evaluates the effects. One whose condition or cap fails is no effect.
func (a *activation) fire(d *Decision) []fired {
	var out []fired
	for i := range a.b.policy.effects {
		x := &a.b.policy.effects[i]
		applies, err := true, error(nil)
		if x.when != nil {
			applies, err = a.bool(x.when)
		}
		f := fired{effect: x, at: a.position(Effect, i)}
		if err == nil && applies {
			f.maxTokens, err = a.capOf(x.maxTokens, "max_tokens")
		}
		if err == nil && applies {
			f.n, err = a.capOf(x.n, "n")
		}
		a.observe(Effect, x.ref, applies, err)
		switch {
		case err != nil:
			a.fail(d, f.at, x.ref, err)
		case applies:
			f.ref = RuleRef{Rule: x.ref, Binding: a.b.name, Mode: a.b.mode, Kind: Effect}
			if out == nil {
				out = make([]fired, 0, len(a.b.policy.effects)-i)
			}
			out = append(out, f)
		}
	}
	return out
}

// capOf evaluates an upper bound; 0 stands for none.
func (a *activation) capOf(x *expression, name string) (int64, error) {
	if x == nil {
		return 0, nil
	}
	n, err := a.int(x)
	if err == nil && n < 1 {
		err = &evalError{kind: ErrorValue, text: fmt.Sprintf("the cap on %s is %d, below 1", name, n)}
	}
	return n, err
}

func (a *activation) annotate(d *Decision) {
	for i, n := range a.b.policy.annotations {
		s, given, err := a.optionalString(n.expr)
		if err != nil {
			a.fail(d, a.position(AuditAnnotation, i), n.ref, err)
			continue
		}
		if given {
			d.annotate(a.b, n.ref, cut(s, maxAnnotation))
		}
	}
}

func (a *activation) position(section RuleKind, i int) position {
	return position{a.b.policy.name, section, i, a.b.name}
}

func (a *activation) observe(kind RuleKind, ref string, ok bool, err error) {
	if o := a.e.in.Observer; o != nil {
		o.Outcome(Outcome{Kind: kind, Rule: ref, Binding: a.b.name, Mode: a.b.mode, True: ok, Err: err})
	}
}

// fail records an evaluation error: under Fail it denies, warns or would deny,
// under Ignore the erring rule alone counts as absent.
func (a *activation) fail(d *Decision, at position, rule string, err error) {
	if skipped(err) {
		return
	}
	ref := a.errorRef(at.section, rule, err)
	d.addError(at, ref)
	if !a.b.policy.ignore {
		d.deny(at, ref)
	}
}

func (a *activation) errorRef(kind RuleKind, rule string, err error) RuleRef {
	ref := RuleRef{Rule: rule, Binding: a.b.name, Mode: a.b.mode, Kind: kind, Reason: PolicyError, Message: textPolicyError, ErrorKind: ErrorValue}
	if own, ok := errors.AsType[*evalError](err); ok {
		ref.ErrorKind = own.kind
	}
	ref.Detail = cut(strings.ToValidUTF8(err.Error(), "?"), maxDetail)
	return ref
}
