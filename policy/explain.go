package policy

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/google/cel-go/common/types"
	"github.com/google/cel-go/common/types/ref"
)

// Explanation says how one request was decided: what every binding says and
// why, the value of every sub-expression, and how the outcome was combined. It
// holds values of the request, text that the client has written among them: it
// is for whoever may see the request.
type Explanation struct {
	// Decision is the one that a gateway makes.
	Decision *Decision
	// Rehearsed is what the bindings that only audit say.
	Rehearsed RehearsalOutcome
	// Bindings in the order of policy and binding names.
	Bindings []BindingTrace
	// Steps of the combination, in the order of reports.
	Steps []Step
}

// BindingTrace is what one binding says about the request.
type BindingTrace struct {
	Policy, Binding string
	Mode            Mode
	// Selected: the selector matches. Applies: the match conditions hold, too.
	Selected, Applies bool
	// Why says what decided that.
	Why string
	// Expressions of the policy in the order of its document; none if the binding
	// is not selected.
	Expressions []ExpressionTrace
}

// ExpressionTrace is the evaluation of one expression for one binding.
type ExpressionTrace struct {
	ExpressionInfo
	Text string
	// Evaluated is false where nothing asked for the value. Value is written as a
	// literal; Err is the text of an evaluation error instead.
	Evaluated  bool
	Value, Err string
	// Cost in units, 0 where the result of an equal expression was taken, of at
	// most Estimate.
	Cost, Estimate int64
	// Lazy names the work that this read was the first to need: tokenize, scan.
	Lazy []string
	// Nodes are the sub-expressions, each before its own parts. Of a loop they
	// show the last iteration.
	Nodes []NodeValue
}

// NodeValue is the value of one sub-expression.
type NodeValue struct {
	// Line and Col of the file, from 1. Depth counts the expressions around it.
	Line, Col, Depth int
	Text             string
	// Value as a literal, or the error; empty where it was not evaluated, as
	// behind a && that was false already.
	Value     string
	Evaluated bool
}

// Step is one step of the combination.
type Step struct {
	// What is pools, class, preemptible, ttftTarget, max_tokens, n, cacheIsolation,
	// labels, deny, warning, would deny, error or limit.
	What string
	// Rule and Binding that make the step; empty for where it starts.
	Rule, Binding string
	// Before and After are the values, equal where the rule changes nothing.
	Before, After string
}

// Explain decides a request as [Set.Decide] and its rehearsal do, and then looks
// at every expression again with a program that tracks values. The set must
// have been loaded with [Config.KeepSource]; otherwise the error says so. The
// second pass has no cost limit: it runs what has ended within the limits
// before, and when ctx ends it stops.
func (s *Set) Explain(ctx context.Context, in *Input) (*Explanation, error) {
	if !s.cfg.KeepSource {
		return nil, errors.New("cannot explain: the policies were loaded without their sources")
	}
	c := &collector{seen: map[traceKey]*traced{}}
	e := newEvaluation(ctx, s, in)
	e.indexed = false // an index passes over bindings without a word
	c.e, e.tracer = e, c.trace
	x := &Explanation{Decision: s.decide(e)}
	c.rehearse(ctx, x)
	for _, b := range s.all() {
		x.Bindings = append(x.Bindings, c.binding(ctx, b))
	}
	x.Steps = c.steps(x)
	return x, nil
}

// all lists the bindings of every mode in the canonical order.
func (s *Set) all() []*binding {
	out := slices.Concat(s.live, s.shadow)
	slices.SortFunc(out, compareBindings)
	return out
}

// collector keeps what the evaluation asks for.
type collector struct {
	e    *evaluation
	seen map[traceKey]*traced
	// tokenized and scanned say what lazy work has been seen done.
	tokenized, scanned bool
}

type traceKey struct {
	b *binding
	x *expression
}

// traced is one evaluated expression.
type traced struct {
	val  ref.Val
	cost uint64
	err  error
	lazy []string
}

func (c *collector) trace(a *activation, x *expression, v ref.Val, cost uint64, err error) {
	t := &traced{val: v, cost: cost, err: err}
	if a.e.tokens.done && !c.tokenized {
		c.tokenized = true
		t.lazy = append(t.lazy, "tokenize")
	}
	if a.e.scanned.done && !c.scanned {
		c.scanned = true
		t.lazy = append(t.lazy, "scan")
	}
	key := traceKey{a.b, x}
	if c.seen[key] == nil {
		c.seen[key] = t
	}
}

// rehearse runs the bindings that only audit.
func (c *collector) rehearse(ctx context.Context, x *Explanation) {
	r := x.Decision.Rehearsal()
	if r == nil {
		return
	}
	r.Run(ctx, c.e.in.Lazy)
	x.Rehearsed = r.Outcome()
	// What it resolved serves the second pass.
	c.e.tokens, c.e.scanned = r.e.tokens, r.e.scanned
}

// again is an evaluation in which nothing lazy is left to be done.
func (c *collector) again(ctx context.Context) *evaluation {
	in := *c.e.in
	in.Observer = nil
	e := newEvaluation(ctx, c.e.set, &in)
	e.tokens, e.scanned, e.effective = c.e.tokens, c.e.scanned, c.e.effective
	return e
}

func (c *collector) binding(ctx context.Context, b *binding) BindingTrace {
	t := BindingTrace{Policy: b.policy.name, Binding: b.name, Mode: b.mode}
	if why := b.selector.mismatch(c.e.in); why != "" {
		t.Why = why
		return t
	}
	t.Selected = true
	t.Applies, t.Why = c.applies(b)
	a := c.again(ctx).bind(b)
	b.policy.each(func(r placedRule, field string, x *expression) {
		t.Expressions = append(t.Expressions, c.expression(ctx, a, r, field, x))
	})
	return t
}

// applies says whether the match conditions hold, and which decided.
func (c *collector) applies(b *binding) (bool, string) {
	var failed string
	for _, m := range b.policy.match {
		t := c.seen[traceKey{b, m.expr}]
		switch {
		case t == nil:
		case t.err != nil:
			failed = m.ref
		case t.val == types.False:
			return false, "match condition " + m.ref + " is false"
		}
	}
	switch {
	case failed != "" && b.policy.ignore:
		return false, "match condition " + failed + " failed, and failurePolicy Ignore leaves the policy out"
	case failed != "":
		return false, "match condition " + failed + " failed, which failurePolicy Fail counts as a refusal"
	case len(b.policy.match) == 0:
		return true, "there are no match conditions"
	}
	return true, "all match conditions hold"
}

func (c *collector) expression(ctx context.Context, a *activation, r placedRule, field string, x *expression) ExpressionTrace {
	out := ExpressionTrace{
		ExpressionInfo: ExpressionInfo{Rule: r.ref, Kind: r.kind, Field: field, Result: resultKind(x.typ), At: x.at},
		Text:           strings.Join(strings.Fields(x.text), " "), Estimate: int64(x.estimate),
	}
	t := c.seen[traceKey{a.b, x}]
	if t == nil {
		return out
	}
	out.Evaluated, out.Cost, out.Lazy = true, int64(t.cost), t.lazy
	if t.err != nil {
		out.Err = cut(strings.ToValidUTF8(t.err.Error(), "?"), maxShown)
	} else {
		out.Value = show(t.val)
	}
	out.Nodes = nodeValues(ctx, a, x)
	return out
}

// mismatch says which field of a selector leaves the request out; nothing when
// none does.
func (s *selector) mismatch(in *Input) string {
	var unknown string
	s.reads(func(name string) {
		if in.Absent[name] && unknown == "" {
			unknown = name
		}
	})
	if unknown != "" {
		return "the selector reads " + unknown + ", which the input does not give"
	}
	id := in.Tenant.ID
	switch {
	case len(s.tenants) > 0 && !slices.Contains(s.tenants, id):
		return fmt.Sprintf("selector.tenants does not name %q", id)
	case slices.Contains(s.exclude, id):
		return fmt.Sprintf("selector.excludeTenants names %q", id)
	}
	for _, k := range sortedKeys(s.labels) {
		got, ok := in.Tenant.Labels[k]
		switch {
		case !ok:
			return fmt.Sprintf("selector.matchTenantLabels asks for %s, which the tenant does not have", k)
		case got != s.labels[k]:
			return fmt.Sprintf("selector.matchTenantLabels asks for %s %q, and the tenant's is %q", k, s.labels[k], got)
		}
	}
	if len(s.operations) > 0 && !slices.Contains(s.operations, in.Request.Operation) {
		return fmt.Sprintf("selector.operations does not name %q", in.Request.Operation)
	}
	if len(s.models) > 0 && !slices.ContainsFunc(s.models, func(p string) bool { return globMatch(p, in.Request.Model) }) {
		return fmt.Sprintf("selector.models does not match %q", in.Request.Model)
	}
	return ""
}

func sortedKeys(m map[string]string) []string {
	out := make([]string, 0, len(m))
	for k := range m {
		out = append(out, k)
	}
	slices.Sort(out)
	return out
}

// steps shows the combination: what holds without any effect, what each fired
// effect makes of it, then what refuses and what is reserved. Each step is the
// combination of the effects so far by the same rules as that of them all, which
// do not depend on the order.
func (c *collector) steps(x *Explanation) []Step {
	fired := c.fired(x.Decision)
	before := c.combined(nil)
	out := stepsFrom(before)
	for i, f := range fired {
		after := c.combined(fired[:i+1])
		out = append(out, stepsBetween(before, after, f)...)
		before = after
	}
	d := x.Decision
	for _, l := range []struct {
		what string
		refs []RuleRef
	}{{"error", d.Errors}, {"error", x.Rehearsed.Errors}, {"warning", d.Warnings}, {"would deny", x.Rehearsed.WouldDeny}, {"deny", d.Denials}} {
		for _, r := range l.refs {
			text := string(r.Reason) + ": " + r.Message
			if l.what == "error" {
				text = string(r.ErrorKind) + ": " + r.Detail
			}
			out = append(out, Step{What: l.what, Rule: r.Rule, Binding: r.Binding, After: text})
		}
	}
	for i := range d.Limits {
		l := &d.Limits[i]
		out = append(out, Step{What: "limit", Rule: l.Rule, Binding: l.Binding, After: l.describe()})
	}
	return out
}

// describe says what a limit is asked for.
func (l *Limit) describe() string {
	window := l.Window.Calendar
	if window == "" && l.Window.Duration > 0 {
		window = l.Window.Duration.String()
	}
	text := fmt.Sprintf("reserve %d of %d %s", l.Estimate, l.Limit, l.Unit)
	if window != "" {
		text += " in " + window
	}
	quoted := make([]string, len(l.Key))
	for i, k := range l.Key {
		quoted[i] = strconv.Quote(k)
	}
	return text + ", key [" + strings.Join(quoted, ", ") + "]"
}

// fired finds the enforced effects of a decision again, with their caps.
func (c *collector) fired(d *Decision) []fired {
	var out []fired
	for _, b := range c.e.set.live {
		for i := range b.policy.effects {
			e := &b.policy.effects[i]
			at := slices.IndexFunc(d.Fired, func(r RuleRef) bool { return r.Rule == e.ref && r.Binding == b.name && r.Mode == Enforced })
			if at < 0 {
				continue
			}
			out = append(out, fired{
				effect: e, ref: d.Fired[at], at: position{b.policy.name, Effect, i, b.name},
				maxTokens: c.number(b, e.maxTokens), n: c.number(b, e.n),
			})
		}
	}
	slices.SortFunc(out, func(a, b fired) int { return comparePositions(a.at, b.at) })
	return out
}

// number is the value of a cap that was evaluated; 0 for none.
func (c *collector) number(b *binding, x *expression) int64 {
	if t := c.seen[traceKey{b, x}]; t != nil {
		if n, ok := t.val.(types.Int); ok {
			return int64(n)
		}
	}
	return 0
}

// combined is the outcome of some effects alone.
func (c *collector) combined(some []fired) *Decision {
	e := newEvaluation(c.e.ctx, c.e.set, c.e.in)
	d := &Decision{e: e}
	e.combine(d, []judged{{fired: some}})
	return d
}

// outcomeParts are the parts of the combined outcome, by the names of steps.
func (d *Decision) outcomeParts() []Step {
	max := "-"
	if d.MaxTokens != nil {
		max = strconv.FormatInt(*d.MaxTokens, 10)
	}
	pools := "not judged"
	if d.e != nil && len(d.e.set.cfg.Pools) > 0 && d.e.in.Request.Operation != operationModels {
		pools = "[" + strings.Join(d.Pools, " ") + "]"
	}
	return []Step{
		{What: "pools", After: pools}, {What: "class", After: d.Class}, {What: "preemptible", After: strconv.FormatBool(d.Preemptible)},
		{What: "ttftTarget", After: d.TTFTTarget.String()}, {What: "max_tokens", After: max}, {What: "n", After: strconv.FormatInt(d.N, 10)},
		{What: "cacheIsolation", After: d.CacheIsolation}, {What: "labels", After: "[" + strings.Join(d.Labels, " ") + "]"},
	}
}

// stepsFrom says what holds without any effect.
func stepsFrom(d *Decision) []Step {
	return slices.DeleteFunc(d.outcomeParts(), func(s Step) bool { return slices.Contains([]string{"preemptible", "ttftTarget"}, s.What) })
}

// stepsBetween says what one effect has changed, and what it bears on without
// changing it.
func stepsBetween(before, after *Decision, f fired) []Step {
	touched := map[string]bool{}
	for _, t := range f.effect.touches() {
		touched[string(t)] = t != TouchPools || f.effect.removes != nil
	}
	var out []Step
	was := before.outcomeParts()
	for i, s := range after.outcomeParts() {
		if s.After != was[i].After || touched[s.What] {
			out = append(out, Step{s.What, f.ref.Rule, f.ref.Binding, was[i].After, s.After})
		}
	}
	return out
}
