package policy

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// TestClock runs on synthetic time.
func TestClock(t *testing.T) {
	done := func(ctx context.Context) bool {
		synctest.Wait()
		return ctx.Err() != nil
	}
	synctest.Test(t, func(t *testing.T) {
		c := clock{limits: timeLimits{exprTimeLimit, requestTimeLimit}}
		ctx := c.enter()
		time.Sleep(99 * time.Millisecond)
		if done(ctx) {
			t.Error("an expression is interrupted before its time")
		}
		c.leave()

		// Each expression has its time; lazy work does not count.
		ctx = c.enter()
		c.pause(func() { time.Sleep(time.Hour) })
		time.Sleep(99 * time.Millisecond)
		if done(ctx) {
			t.Error("lazy work counts")
		}
		time.Sleep(2 * time.Millisecond)
		if !done(ctx) || context.Cause(ctx) == nil {
			t.Error("an expression is not interrupted")
		}
		c.leave()

		// 200 ms are spent, and time between programs does not count: the request's remaining time is less than an expression's.
		time.Sleep(time.Hour)
		ctx = c.enter()
		inner := c.enter() // a variable with a loop inside a loop
		time.Sleep(51 * time.Millisecond)
		if !done(ctx) || !done(inner) {
			t.Error("the request's time does not end")
		}
		c.leave()
		c.leave()
		ctx = c.enter()
		if !done(ctx) {
			t.Error("an expression starts after the request's time")
		}
		c.pause(func() { time.Sleep(time.Second) })
		if !done(ctx) {
			t.Error("a pause takes an interruption back")
		}
		c.leave()
	})
}

// TestInterrupt: a loop that is out of time stops at its next look at the
// clock, as an error of kind clock.
func TestInterrupt(t *testing.T) {
	s := mustLoad(t, testConfig(), policyText("p", "\n  validations: [{ name: v, expression: \"lists.range(1000).all(i, i < 1000)\" }]", "Deny"))
	e := newEvaluation(t.Context(), s, testInput())
	e.clock.spent = requestTimeLimit
	a := e.bind(s.live[0])
	_, err := a.run(s.policies[0].validations[0].expr)
	var own *evalError
	if !errors.As(err, &own) || own.kind != ErrorClock {
		t.Errorf("got %v", err)
	}
}

// TestSlowLazyWorkIsNotEvaluationTime: a scan of 300 ms inside a loop does not
// make the loop's expression an error.
func TestSlowLazyWorkIsNotEvaluationTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := mustLoad(t, testConfig(), policyText("p", "\n  validations: [{ name: v, expression: \"lists.range(500).all(i, i < 500 && content.scan_status != 'x')\" }]", "Deny"))
		in := testInput()
		in.Lazy = &fakeLazy{delay: 300 * time.Millisecond, content: Content{Labels: []string{"x"}, ScanStatus: "complete"}}
		d := s.Decide(t.Context(), in)
		if !d.Allow || d.Cost.Scan != 300*time.Millisecond {
			t.Errorf("%+v, scan %s", d.Errors, d.Cost.Scan)
		}
	})
}

// TestCostOverrun: an expression and a request beyond their cost are errors,
// whatever was estimated.
func TestCostOverrun(t *testing.T) {
	t.Run("expression", func(t *testing.T) {
		s := mustLoad(t, testConfig(), policyText("p", "\n  validations: [{ name: v, expression: \"request.tool_names.all(t, t != 'x')\" }]", "Deny"))
		in := testInput()
		s.times = timeLimits{time.Hour, time.Hour}
		in.Request.ToolNames = make([]string, 5000) // not validated, beyond the maximum
		d := s.Decide(t.Context(), in)
		if d.Allow || d.Reason != PolicyError || d.Errors[0].ErrorKind != ErrorCost || d.Cost.Units < exprCostLimit || d.Cost.Units > exprCostLimit+100 {
			t.Errorf("%+v", d)
		}
	})
	dear := "\n  validations: ["
	for i := range 12 {
		if i > 0 {
			dear += ", "
		}
		dear += "{ name: v" + string(rune('a'+i)) + ", expression: \"lists.range(1000).all(i, i < " + string(rune('1'+i%8)) + "00" + string(rune('0'+i/8)) + "00)\" }"
	}
	dear += "]"
	loose := timeLimits{time.Hour, time.Hour}
	t.Run("request", func(t *testing.T) {
		cheap := policyText("zz", "\n  validations: [{ name: v, expression: request.stream }]", "Deny")
		s := mustLoad(t, testConfig(), policyText("a", dear, "Deny")+policyText("b", dear+" ", "Deny")+cheap)
		for _, c := range s.policies { // the same texts would be paid for once
			for _, x := range c.expressions() {
				x.shared = 0
			}
		}
		s.times = loose
		d := s.Decide(t.Context(), testInput())
		if d.Allow || d.Cost.Units < requestCostLimit || d.Cost.Units > requestCostLimit+exprCostLimit {
			t.Errorf("%d units, %s", d.Cost.Units, rules(d.Errors))
		}
		if last := d.Errors[len(d.Errors)-1]; last.Rule != "zz/v" || last.ErrorKind != ErrorCost {
			t.Errorf("last error %+v", last)
		}
	})
	// Warn and Audit bindings share a budget of their own. What would follow is
	// skipped and counted: no warning, no error, nothing that would deny.
	t.Run("rehearsals are cut short", func(t *testing.T) {
		broken := "\n  matchConditions: [{ name: m, expression: \"tenant.labels['x'] == ''\" }]\n  variables: [{ name: x, expression: request.n + 1 }]\n" +
			"  validations: [{ name: v, expression: \"variables.x < 0\" }]\n  effects: [{ name: e, when: variables.x > 0, addLabels: [x] }]\n" +
			"  limits: [{ name: l, unit: requests, window: 1m, limit: \"0\", key: [] }]\n  auditAnnotations: [{ key: k, valueExpression: \"string(variables.x)\" }]"
		unconditional := strings.Replace(broken, "tenant.labels['x'] == ''", "1 < 2", 1)
		s := mustLoad(t, testConfig(), policyText("a", dear, "Warn")+policyText("b", dear+" ", "Audit")+policyText("zu", unconditional, "Warn")+
			policyText("zv", broken, "Audit")+policyText("zw", unconditional, "Audit")+policyText("zz", validations, "Deny"))
		for _, c := range s.policies {
			for _, x := range c.expressions() {
				x.shared = 0
			}
		}
		s.times = loose
		in := testInput()
		d := s.Decide(t.Context(), in)
		if !d.Allow || len(d.Errors) != 0 {
			t.Errorf("a rehearsal refuses: %+v %+v", d.Denials, d.Errors)
		}
		// Of 12 dear validations in each of a and b, 11 can be paid for.
		warned := d.Cost.ShadowUnits
		r := d.Rehearsal()
		r.Run(t.Context(), in.Lazy)
		o := r.Outcome()
		if spent := warned + o.Cost.ShadowUnits; spent < requestCostLimit || spent > requestCostLimit+exprCostLimit {
			t.Errorf("%d units", spent)
		}
		if len(o.Errors) != 0 || strings.Contains(rules(o.WouldDeny), "z") || len(o.Annotations)+len(o.Fired)+len(r.Limits()) != 0 {
			t.Errorf("%+v", o)
		}
		if o.Skipped < 3 || o.Skipped != o.Cost.Skipped {
			t.Errorf("%d skipped", o.Skipped)
		}
	})
}
