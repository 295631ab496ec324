package policy

import (
	"context"
	"fmt"
	"math/bits"
	"slices"
	"strconv"
	"time"
)

// maxKeyBytes bounds the key of one counter.
const maxKeyBytes = 512

// reservation is what a decision keeps of a limit until it is settled.
type reservation struct {
	a     *activation
	limit *limit
	at    position
}

// addLimits evaluates every limit of the matching bindings. A limit that can
// never admit the request denies at once; when any does, nothing is reserved.
func (e *evaluation) addLimits(d *Decision, found []judged) {
	most := 0
	for _, j := range found {
		most += len(j.a.b.policy.limits)
	}
	if most == 0 {
		return
	}
	limits, kept := make([]Limit, 0, most), make([]reservation, 0, most)
	for _, j := range found {
		for i := range j.a.b.policy.limits {
			l := &j.a.b.policy.limits[i]
			r := reservation{j.a, l, j.a.position(LimitRule, i)}
			out, applies, err := j.a.reserve(l, i)
			switch {
			case err != nil:
				j.a.fail(d, r.at, l.ref, err)
			case !applies:
			case out.Limit == 0:
				d.deny(r.at, out.ref(NoQuota))
			case out.Estimate > out.Limit:
				d.deny(r.at, out.ref(ExceedsLimit))
			default:
				limits, kept = append(limits, out), append(kept, r)
			}
		}
	}
	if len(d.denied) > 0 {
		return
	}
	order := make([]int, len(kept))
	for i := range order {
		order[i] = i
	}
	slices.SortFunc(order, func(x, y int) int { return comparePositions(kept[x].at, kept[y].at) })
	inOrder := slices.IsSorted(order)
	if inOrder {
		d.Limits, d.kept = limits, kept
	}
	for _, i := range order {
		if !inOrder {
			d.Limits = append(d.Limits, limits[i])
			d.kept = append(d.kept, kept[i])
		}
		e.resolveForCharge(kept[i].limit)
	}
}

// resolveForCharge does the lazy work that a charge will read, since the body
// is gone by then. A failure is kept and fails the charge.
func (e *evaluation) resolveForCharge(l *limit) {
	if l.chargeTokens {
		e.countedTokens()
	}
	if l.chargeContent {
		e.scan()
	}
}

// reserve evaluates the i-th limit of the policy. applies is false when its condition is.
func (a *activation) reserve(l *limit, i int) (out Limit, applies bool, err error) {
	if a.e.otherCurrency(l) {
		return out, false, nil
	}
	if l.when != nil {
		if applies, err = a.bool(l.when); err != nil || !applies {
			return out, false, err
		}
	}
	out = Limit{
		Rule: l.ref, Binding: a.b.name, Mode: a.b.mode, Unit: l.doc.unit, Window: l.doc.window,
		OnStoreError: l.doc.onStoreError, WarnAt: l.doc.warnAt, Key: []string{},
	}
	if out.Limit, err = a.int(l.limit); err != nil {
		return out, false, err
	}
	if out.Limit < 0 {
		return out, false, &evalError{kind: ErrorValue, text: fmt.Sprintf("the limit is %d, below 0", out.Limit)}
	}
	if out.Limit == 0 {
		return out, true, nil // refuses whatever the key and the estimate are
	}
	if out.Key, err = a.key(l.key); err != nil {
		return out, false, err
	}
	out.Counter = a.b.counter(i, out.Key)
	if out.Estimate, err = a.estimate(l); err != nil {
		return out, false, err
	}
	if out.Estimate < 0 {
		return out, false, &evalError{kind: ErrorValue, text: fmt.Sprintf("the estimate is %d, below 0", out.Estimate)}
	}
	return out, true, nil
}

func (a *activation) key(parts []*expression) ([]string, error) {
	out := make([]string, len(parts))
	size := 0
	for i, x := range parts {
		s, err := a.string(x)
		if err != nil {
			return nil, err
		}
		out[i] = s
		size += len(s)
	}
	if size > maxKeyBytes {
		return nil, &evalError{kind: ErrorSize, text: fmt.Sprintf("the key has %d bytes, at most %d are allowed", size, maxKeyBytes)}
	}
	return out, nil
}

// counterPrefix encodes what makes a counter, its key aside: each part with its
// length, so that no choice of separators can make two identities equal. The
// mode is part of it, as a rehearsal never counts in the real counter, and so is
// the currency, which no sum survives a change of.
func counterPrefix(b *binding, l *limit, currency string) string {
	window := l.doc.window.Calendar
	if window == "" {
		window = strconv.FormatInt(int64(l.doc.window.Duration/time.Second), 10)
	}
	var out []byte
	for _, p := range []string{b.policy.name, l.doc.name, b.name, string(b.mode), string(l.doc.unit), window} {
		out = appendPart(out, p)
	}
	if currency != "" {
		out = appendPart(out, currency)
	}
	return string(out)
}

func appendPart(dst []byte, part string) []byte {
	dst = strconv.AppendInt(dst, int64(len(part)), 10)
	dst = append(dst, ':')
	return append(dst, part...)
}

// counter is the whole identity of the i-th limit's counter.
func (b *binding) counter(i int, key []string) string {
	var space [256]byte
	out := append(space[:0], b.counters[i]...)
	for _, k := range key {
		out = appendPart(out, k)
	}
	return string(out)
}

// estimate is the amount to reserve, by the unit where the policy gives none.
func (a *activation) estimate(l *limit) (int64, error) {
	if l.estimate != nil {
		return a.int(l.estimate)
	}
	switch l.doc.unit {
	case InputTokens:
		return a.e.inputEstimate()
	case OutputTokens:
		return a.e.outputTokens()
	case Tokens:
		input, err := a.e.inputEstimate()
		if err != nil {
			return 0, err
		}
		output, err := a.e.outputTokens()
		if err != nil {
			return 0, err
		}
		return addInt(input, output)
	case Cost:
		return a.e.costEstimate()
	}
	return 1, nil // requests and concurrency
}

func (e *evaluation) inputEstimate() (int64, error) {
	if e.in.Observer != nil {
		e.in.Observer.Read("request.input_tokens")
	}
	t := e.promptTokens()
	return t.n, t.err
}

// ref names a limit that does not admit the request.
func (l *Limit) ref(reason Reason) RuleRef {
	return RuleRef{Rule: l.Rule, Binding: l.Binding, Mode: l.Mode, Kind: LimitRule, Reason: reason, Message: "limit " + l.Rule}
}

// RefuseLimits records that limits could not be reserved. Failures of enforced
// limits turn the decision into a denial, after which Limits is empty since
// nothing is reserved; those of Warn limits are added to Warnings, those of a
// rehearsal to WouldDeny. An index that is out of range is a bug of the caller and
// panics.
func (d *Decision) RefuseLimits(failed []LimitFailure) {
	for _, f := range failed {
		if f.Index < 0 || f.Index >= len(d.Limits) {
			panic("BUG: policy: limit failure out of range")
		}
		l := &d.Limits[f.Index]
		d.deny(d.kept[f.Index].at, l.ref(l.refusal(f)))
		if l.Mode != Enforced {
			continue
		}
		wait := f.Wait
		if l.Unit == Concurrency {
			wait = max(wait, time.Second)
		}
		d.RetryAfter = max(d.RetryAfter, wait)
	}
	if len(d.denied) > 0 {
		d.Limits, d.kept = nil, nil
	}
	d.conclude()
}

// NoteUsed says how much of Limits[i] is used, once it is reserved: the request's
// own estimate included. It returns the highest threshold of its warnAt that is
// reached, and whether this request is the one that has reached it; 0 for none.
func (d *Decision) NoteUsed(i int, used, limit int64) (percent int64, crossed bool) {
	l := &d.Limits[i]
	for _, at := range l.WarnAt {
		if reached(used, limit, at) {
			l.Warned = at
		}
	}
	return l.Warned, l.Warned > 0 && !reached(used-l.Estimate, limit, l.Warned)
}

// reached reports whether used is percent or more of limit.
func reached(used, limit, percent int64) bool {
	if used < 0 {
		return false
	}
	uh, ul := bits.Mul64(uint64(used), 100)
	lh, ll := bits.Mul64(uint64(max(limit, 0)), uint64(percent))
	return uh > lh || uh == lh && ul >= ll
}

func (l *Limit) refusal(f LimitFailure) Reason {
	switch {
	case f.StoreFailed:
		return LimitStoreUnavailable
	case l.Window.Calendar != "":
		return BudgetExhausted
	default:
		return RateLimited
	}
}

// Charges returns what each of Limits is charged for the usage, parallel to
// Limits. A charge that fails or is negative is the estimate instead, and is
// added to Errors. Concurrency limits are charged 0.
func (d *Decision) Charges(u Usage) []int64 {
	out := d.charges(u, func(i int, err error) {
		if !skipped(err) {
			d.addError(d.kept[i].at, d.kept[i].a.errorRef(LimitRule, d.Limits[i].Rule, err))
		}
	})
	d.sortLists()
	return out
}

// ChargesSoFar is Charges for a request that runs on, of what it has used by now.
// Nothing is added to Errors: what fails now fails at the end too, or is of no
// account then.
func (d *Decision) ChargesSoFar(u Usage) []int64 { return d.charges(u, func(int, error) {}) }

func (d *Decision) charges(u Usage, failed func(i int, err error)) []int64 {
	out := make([]int64, len(d.Limits))
	if d.e == nil || len(out) == 0 {
		return out
	}
	for i := range d.Limits {
		l, e := &d.Limits[i], d.kept[i].a.e
		if e.usage == nil { // the decision's evaluation or a rehearsal's
			e.restart(context.Background())
			e.usage = &u
			e.live, e.other = budget{}, budget{}
		}
		amount, err := e.charge(&d.kept[i], u, l.Estimate)
		if err == nil && amount < 0 {
			err = &evalError{kind: ErrorValue, text: fmt.Sprintf("the charge is %d, below 0", amount)}
		}
		if err != nil {
			amount = l.Estimate
			failed(i, err)
		}
		out[i] = amount
	}
	for i := range d.kept {
		d.kept[i].a.e.usage = nil
	}
	return out
}

// OutputReserved is how many tokens of output the request may have before it is
// beyond what any of its limits has reserved for them. Where a limit has an
// estimate or a charge of its own nobody can tell, and it is 0. ok is false where
// no limit counts output.
func (d *Decision) OutputReserved() (tokens int64, ok bool) {
	for i := range d.kept {
		r := &d.kept[i]
		switch {
		case r.limit.doc.unit == Concurrency:
			continue
		case r.limit.charge != nil || r.limit.estimate != nil && r.limit.doc.unit.countsOutput():
			return 0, true
		case !r.limit.doc.unit.countsOutput():
			continue
		}
		n, err := r.a.e.outputTokens()
		if err != nil {
			return 0, true
		}
		tokens, ok = n, true
	}
	return tokens, ok
}

// countsOutput reports whether more output is more of the unit.
func (u Unit) countsOutput() bool { return u == OutputTokens || u == Tokens || u == Cost }

func (e *evaluation) charge(r *reservation, u Usage, estimate int64) (amount int64, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = &evalError{kind: ErrorInternal, text: panicText(p)}
		}
	}()
	if r.limit.charge != nil {
		return r.a.int(r.limit.charge)
	}
	switch r.limit.doc.unit {
	case InputTokens:
		return u.InputTokens, nil
	case OutputTokens:
		return u.OutputTokens, nil
	case Tokens:
		return addInt(u.InputTokens, u.OutputTokens)
	case Cost:
		return u.Cost, nil
	case Concurrency:
		return 0, nil
	}
	return estimate, nil
}
