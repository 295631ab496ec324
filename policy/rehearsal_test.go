package policy

import (
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/cel-go/common/types/ref"
)

const rehearsed = `
  validations: [{ name: v, expression: "!('pii' in content.labels) && request.headers['x-app'] == 'other'", message: no }]
  effects: [{ name: e, addLabels: [seen] }]
  limits: [{ name: l, unit: tokens, window: 1m, limit: 5000, key: [request.user.orValue('')], charge: usage.output_tokens + request.n }]
  auditAnnotations: [{ key: k, valueExpression: tenant.id }]`

func TestRehearsal(t *testing.T) {
	s := mustLoad(t, testConfig(), policyText("p", rehearsed, "Audit")+policyText("q", validations, "Deny"))
	in := testInput()
	d := s.Decide(t.Context(), in)
	if !d.Allow || d.LogInFull || len(d.Limits)+len(d.WouldDeny)+len(d.Fired) != 0 {
		t.Fatalf("the decision holds what its rehearsal finds: %+v", d)
	}
	r := d.Rehearsal()
	r.Run(t.Context(), in.Lazy)
	o := r.Outcome()
	if rules(o.WouldDeny) != "p/v" || rules(o.Fired) != "p/e" || len(o.Errors) != 0 || o.Annotations["p/k"] != "t1" || o.Skipped != 0 || !o.LogInFull {
		t.Errorf("%+v", o)
	}
	if o.Cost.Units != 0 || o.Cost.ShadowUnits == 0 || o.Cost.Expressions != 4 || o.Cost.Duration == 0 {
		t.Errorf("cost %+v", o.Cost)
	}
	if l := r.Limits(); len(l) != 1 || l[0].Mode != Shadow || l[0].Estimate != 1900 || !slices.Equal(l[0].Key, []string{"u-1"}) {
		t.Errorf("limits %+v", l)
	}
	if got := r.Charges(Usage{OutputTokens: 7}); !slices.Equal(got, []int64{8}) {
		t.Errorf("charges %v", got)
	}
	r.RefuseLimits([]LimitFailure{{Index: 0, Wait: time.Second}})
	if o := r.Outcome(); rules(o.WouldDeny) != "p/v p/l" || o.WouldDeny[1].Reason != RateLimited {
		t.Errorf("after a refusal: %+v", o.WouldDeny)
	}
	if len(d.Limits)+len(d.WouldDeny)+len(d.Fired)+len(d.ShadowAnnotations) != 0 || d.Cost.ShadowUnits != 0 {
		t.Errorf("the rehearsal changed the decision: %+v", d)
	}
}

// TestRehearsalIsFrozen: what the request's memory holds later does not reach
// the rehearsal.
func TestRehearsalIsFrozen(t *testing.T) {
	s := mustLoad(t, testConfig(), policyText("p", `
  auditAnnotations:
    - { key: a, valueExpression: "request.model + string(request.max_tokens.orValue(0)) + string(request.n)" }
    - { key: b, valueExpression: "content.declared_labels.join()" }
  validations: [{ name: c, expression: "request.headers.size() == 1 && 'shell' in request.tool_names" }]`, "Audit"))
	in := testInput()
	r := s.Decide(t.Context(), in).Rehearsal()
	in.Request.Model, in.Request.N, *in.Request.MaxTokens = "other", 99, 99
	in.Request.ToolNames[1], in.DeclaredLabels[0] = "other", "other"
	in.Request.Headers["more"] = "x"
	r.Run(t.Context(), in.Lazy)
	o := r.Outcome()
	if o.Annotations["p/a"] != "m10001" || o.Annotations["p/b"] != "internal" || len(o.WouldDeny) != 0 {
		t.Errorf("%+v", o)
	}
}

// TestRehearsalUsesWhatTheDecisionResolved: lazy work is done once for both.
func TestRehearsalUsesWhatTheDecisionResolved(t *testing.T) {
	text := "\n  validations: [{ name: v, expression: \"'pii' in content.labels && request.input_tokens == 900\" }]"
	in := testInput()
	r := mustLoad(t, testConfig(), policyText("p", text, "Deny")+policyText("q", text, "Audit")).Decide(t.Context(), in).Rehearsal()
	r.Run(t.Context(), in.Lazy)
	if f := in.Lazy.(*fakeLazy); f.scanCall != 1 || f.tokenCalls != 1 {
		t.Errorf("%d scans, %d counts", f.scanCall, f.tokenCalls)
	}
	if o := r.Outcome(); len(o.Errors)+len(o.WouldDeny) != 0 || o.Cost.Scan != 0 {
		t.Errorf("%+v", o)
	}
	in = testInput()
	r = mustLoad(t, testConfig(), policyText("q", text, "Audit")).Decide(t.Context(), in).Rehearsal()
	r.Run(t.Context(), nil)
	if o := r.Outcome(); len(o.Errors) != 1 || o.Errors[0].ErrorKind != ErrorLazy || o.Errors[0].Mode != Shadow {
		t.Errorf("without a scanner: %+v", o)
	}
}

func TestNoRehearsal(t *testing.T) {
	if r := mustLoad(t, testConfig(), policyText("p", rehearsed, "Deny")).Decide(t.Context(), testInput()).Rehearsal(); r != nil {
		t.Error("a set without shadow bindings rehearses")
	}
	denied := mustLoad(t, testConfig(), policyText("p", rehearsed, "Audit")+policyText("q", "\n  validations: [{ name: v, expression: \"false\" }]", "Deny"))
	in := testInput()
	r := denied.Decide(t.Context(), in).Rehearsal()
	r.Run(t.Context(), in.Lazy)
	if o := r.Outcome(); rules(o.WouldDeny) != "p/v" || len(r.Limits()) != 0 {
		t.Errorf("limits of a denied request: %+v", r.Limits())
	}
}

// TestRehearsalBesideTheRequest: the race detector sees no shared state.
func TestRehearsalBesideTheRequest(t *testing.T) {
	s := mustLoad(t, testConfig(), policyText("p", rehearsed, "Audit")+policyText("w", rehearsed, "Warn")+policyText("q", rehearsed, "Deny"))
	var wg sync.WaitGroup
	for range 50 {
		in := testInput()
		in.Request.Headers["x-app"] = "other"
		in.Lazy.(*fakeLazy).content.Labels = nil
		d := s.Decide(t.Context(), in)
		r := d.Rehearsal()
		wg.Go(func() {
			r.Run(t.Context(), &fakeLazy{tokens: 1, content: Content{ScanStatus: "complete"}})
			if o := r.Outcome(); len(o.WouldDeny)+len(o.Errors) != 0 {
				t.Errorf("%+v", o)
			}
			r.Charges(Usage{OutputTokens: 3})
		})
		if got := d.Charges(Usage{OutputTokens: 5}); !slices.Equal(got, []int64{6, 6}) {
			t.Errorf("%v", got)
		}
		clear(in.Request.Headers)
		in.Request.ToolNames[0] = "reused"
	}
	wg.Wait()
}

func TestRehearsalRecovers(t *testing.T) {
	s := mustLoad(t, testConfig(), policyText("p", rehearsed, "Audit"))
	broken := *s
	broken.shadow = []*binding{{}}
	r := broken.Decide(t.Context(), testInput()).Rehearsal()
	r.Run(t.Context(), nil)
	if o := r.Outcome(); len(o.Errors) != 1 || o.Errors[0].ErrorKind != ErrorInternal {
		t.Errorf("%+v", o)
	}
}

func TestRehearsalRecord(t *testing.T) {
	s := mustLoad(t, testConfig(), policyText("q", "\n  validations: [{ name: v, expression: \"tenant.labels['x'] == ''\" }]\n  auditAnnotations: [{ key: k, valueExpression: tenant.id }]", "Audit"))
	in := testInput()
	r := s.Decide(t.Context(), in).Rehearsal()
	r.Run(t.Context(), in.Lazy)
	o := r.Outcome()
	o.Cost.ShadowUnits = 2
	got := encode(t, o.Record(RecordOptions{DecisionID: "id-1", Time: in.Now}))
	want := `{"type":"shadow","decision_id":"id-1","timestamp":"2026-03-10T11:00:00Z","wouldDeny":[{"rule":"q/v","binding":"q-b","kind":"value"}],"errors":[{"rule":"q/v","binding":"q-b","kind":"value"}],"effects":[],"annotations":{"q/k":"t1"},"shadow_units":2}`
	if got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}

func TestIsolates(t *testing.T) {
	f := func(def, effect, actions string, want bool) {
		t.Helper()
		cfg := testConfig()
		cfg.DefaultIsolation = def
		if got := mustLoad(t, cfg, policyText("p", "\n  effects: [{ name: e, "+effect+" }]", actions)).Isolates(); got != want {
			t.Errorf("default %s, %s, %s: %t", def, effect, actions, got)
		}
	}
	f("", "addLabels: [x]", "Deny", true) // tenant by default
	f("none", "addLabels: [x]", "Deny", false)
	f("none", "cacheIsolation: none", "Deny", false)
	f("none", "cacheIsolation: tenant", "Deny", true)
	f("none", "cacheIsolation: principal", "Deny, Audit", true)
	f("none", "cacheIsolation: principal", "Warn", false)
	f("none", "cacheIsolation: principal", "Audit", false)
	f("principal", "addLabels: [x]", "Deny", true)
}

func TestReadsContent(t *testing.T) {
	f := func(spec string, want bool) {
		t.Helper()
		text := policyText("p", spec, "Audit")
		if got := mustLoad(t, testConfig(), text).ReadsContent(); got != want {
			t.Errorf("%s: %t", spec, got)
		}
		unbound, _, _ := strings.Cut(text, "---")
		if mustLoad(t, testConfig(), unbound).ReadsContent() {
			t.Errorf("%s: a policy without a binding reads", spec)
		}
	}
	f(validations, false)
	f("\n  validations: [{ name: v, expression: \"content.declared_labels == []\" }]", false)
	f("\n  validations: [{ name: v, expression: \"content.findings == {}\" }]", true)
	f("\n  validations: [{ name: v, expression: \"request.stream\", messageExpression: content.scan_status }]", true)
	f("\n  variables: [{ name: x, expression: content.detectors }]\n  validations: [{ name: v, expression: \"variables.x == []\" }]", true)
	f("\n  limits: [{ name: l, unit: requests, window: 1m, limit: 1, key: [], charge: content.labels.size() }]", true)
}

// TestTracer: a tracer sees every expression that a binding asks for, with its
// place and syntax tree where the source is kept.
func TestTracer(t *testing.T) {
	cfg := testConfig()
	cfg.KeepSource = true
	s := mustLoad(t, cfg, policyText("p", "\n  variables: [{ name: x, expression: request.n + 1 }]\n  validations: [{ name: v, expression: variables.x == 2 }, { name: w, expression: \"tenant.labels['x'] == ''\" }]", "Deny")+
		policyText("q", "\n  validations: [{ name: w, expression: \"tenant.labels['x'] == ''\" }]", "Deny"))
	e := newEvaluation(t.Context(), s, testInput())
	var seen []string
	e.tracer = func(a *activation, x *expression, _ ref.Val, cost uint64, err error) {
		word := "value"
		if err != nil {
			word = "error"
		}
		if cost == 0 {
			word += " shared"
		}
		seen = append(seen, a.b.name+" "+x.source.text+" "+word)
		if x.checked == nil || a.b.policy.env == nil {
			t.Errorf("%s: the source is not kept", x.text)
		}
	}
	s.decide(e)
	want := "p-b request.n + 1 value|p-b variables.x == 2 value|p-b tenant.labels['x'] == '' error|q-b tenant.labels['x'] == '' error shared"
	if got := strings.Join(seen, "|"); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	if x := mustLoad(t, testConfig(), policyText("p", validations, "Deny")).policies[0]; x.env != nil || x.validations[0].expr.checked != nil {
		t.Error("a gateway keeps sources")
	}
}
