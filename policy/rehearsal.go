package policy

import (
	"context"
	"maps"
	"slices"
	"strings"
)

// Rehearsal evaluates the bindings that only audit, on what was frozen of one
// decision. It shares no state with the Decision, so it may run on another
// goroutine while the request goes on; it is itself used by one goroutine at a
// time. Nothing that it finds changes the decision.
//
// The order of calls is Run, then RefuseLimits for those of Limits that could
// not be reserved, then Charges once the response has ended, and Outcome at any
// time after Run.
type Rehearsal struct {
	bindings []*binding
	e        *evaluation
	d        *Decision
	allowed  bool
	// carried are the units that Warn bindings have spent of the budget that
	// they share with the rehearsal.
	carried uint64
}

// RehearsalOutcome is what the bindings that only audit say about a request.
type RehearsalOutcome struct {
	// WouldDeny lists what Deny bindings would have refused, Errors the
	// evaluation errors, Fired the effects that would have applied.
	WouldDeny, Errors, Fired []RuleRef
	// Annotations by policy/key. For the log only.
	Annotations map[string]string
	// Skipped counts the expressions that the request's budget left out.
	Skipped int
	// LogInFull says that one of the bindings matched, so the decision is logged
	// whatever the sampling.
	LogInFull bool
	// LeftOut says that the rehearsal found no room and nothing is known of it. The
	// decision is logged all the same, since a binding may have matched.
	LeftOut bool
	// Cost of the rehearsal alone; Units is zero.
	Cost CostReport
}

// Rehearsal freezes what the bindings that only audit need: a copy of the
// request's variables, the lazy values that the decision has resolved, and the
// combined outcome. It is nil where no such binding can match the request.
//
// It is called once the verdict stands, that is after RefuseLimits, and before
// the caller reuses the memory that the input refers to. Input.Principal and
// Input.Tenant are not copied: identities do not change.
func (d *Decision) Rehearsal() *Rehearsal {
	if !d.Rehearses() {
		return nil
	}
	e := &evaluation{set: d.e.set, in: d.e.in.freeze(), indexed: d.e.indexed, tokens: d.e.tokens, scanned: d.e.scanned, effective: d.e.effective, tracer: d.e.tracer}
	e.other.used = d.e.other.used
	return &Rehearsal{bindings: d.rehearse, e: e, d: &Decision{Revision: d.Revision, e: e}, allowed: d.Allow, carried: e.other.used}
}

// Rehearses says whether [Decision.Rehearsal] is not nil, without freezing
// anything.
func (d *Decision) Rehearses() bool { return d.e != nil && len(d.rehearse) > 0 }

// Run evaluates the bindings, within a budget of their own. lazy resolves the
// lazy variables that only they need; nil makes a read of one an evaluation
// error. When ctx ends, what has not been evaluated yet is an evaluation error.
// Run must be called once.
func (r *Rehearsal) Run(ctx context.Context, lazy Lazy) {
	d, e := r.d, r.e
	defer func() {
		if p := recover(); p != nil {
			d.addError(position{}, RuleRef{Mode: Shadow, Reason: PolicyError, Message: textPolicyError, ErrorKind: ErrorInternal, Detail: cut(panicText(p), maxDetail)})
		}
		d.sortLists()
		d.Cost = e.report()
	}()
	e.in.Lazy = lazy
	e.restart(ctx)
	found := e.judgeAll(slices.Values(r.bindings), d)
	for _, f := range firedBy(found) {
		d.Fired = append(d.Fired, f.ref)
	}
	if r.allowed {
		e.addLimits(d, found)
	}
}

// Limits are the reservations that the bindings would ask for, each to be
// reserved by itself. There are none where the request was denied.
func (r *Rehearsal) Limits() []Limit { return r.d.Limits }

// RefuseLimits records that limits could not be reserved, by their index in
// Limits, as what would have denied.
func (r *Rehearsal) RefuseLimits(failed []LimitFailure) { r.d.RefuseLimits(failed) }

// Charges is what each of Limits is charged for the usage, like
// [Decision.Charges].
func (r *Rehearsal) Charges(u Usage) []int64 { return r.d.Charges(u) }

// Outcome is what is known so far. It shares nothing with the Rehearsal.
func (r *Rehearsal) Outcome() RehearsalOutcome {
	d := r.d
	cost := d.Cost
	cost.ShadowUnits -= int64(min(r.carried, uint64(cost.ShadowUnits)))
	return RehearsalOutcome{
		WouldDeny: slices.Clone(d.WouldDeny), Errors: slices.Clone(d.Errors), Fired: slices.Clone(d.Fired),
		Annotations: maps.Clone(d.ShadowAnnotations), Skipped: cost.Skipped, LogInFull: d.LogInFull, Cost: cost,
	}
}

// Record is the decision log's line for a rehearsal.
func (o *RehearsalOutcome) Record(opts RecordOptions) *ShadowRecord {
	return &ShadowRecord{
		Type: "shadow", DecisionID: opts.DecisionID, Timestamp: opts.Time.UTC(), WouldDeny: recordRules(o.WouldDeny), Errors: recordRules(o.Errors),
		Effects: recordEffects(o.Fired), Annotations: notNilMap(o.Annotations), ShadowUnits: o.Cost.ShadowUnits,
		LeftOut: o.LeftOut,
	}
}

// freeze copies what a gateway builds in the memory of one request.
func (in *Input) freeze() *Input {
	out := *in
	out.Lazy = nil
	r := &out.Request
	for _, s := range []*string{&r.Operation, &r.Dialect, &r.Method, &r.Path, &r.Model, &r.RequestedModel, &r.ModelFamily, &r.SourceIP} {
		*s = strings.Clone(*s)
	}
	if r.MaxTokens != nil {
		n := *r.MaxTokens
		r.MaxTokens = &n
	}
	if r.LearnedOutput != nil {
		n := *r.LearnedOutput
		r.LearnedOutput = &n
	}
	r.SessionID, r.User = cloneText(r.SessionID), cloneText(r.User)
	r.ToolNames, r.Modalities = cloneTexts(r.ToolNames), cloneTexts(r.Modalities)
	out.DeclaredLabels = cloneTexts(in.DeclaredLabels)
	headers := make(map[string]string, len(r.Headers))
	for k, v := range r.Headers {
		headers[strings.Clone(k)] = strings.Clone(v)
	}
	r.Headers = headers
	return &out
}

func cloneText(s *string) *string {
	if s == nil {
		return nil
	}
	c := strings.Clone(*s)
	return &c
}

func cloneTexts(in []string) []string {
	if in == nil {
		return nil
	}
	out := make([]string, len(in))
	for i, s := range in {
		out[i] = strings.Clone(s)
	}
	return out
}
