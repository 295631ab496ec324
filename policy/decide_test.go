package policy

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
)

// decide loads one policy and judges the test input, changed by edit.
func decide(t *testing.T, spec, actions string, edit func(*Input)) *Decision {
	t.Helper()
	s := mustLoad(t, testConfig(), policyText("p", spec, actions))
	in := testInput()
	if edit != nil {
		edit(in)
	}
	return s.Decide(t.Context(), in)
}

func TestValidationVerdicts(t *testing.T) {
	f := func(name, rule string, allow bool, status int, reason Reason, message string) {
		t.Run(name, func(t *testing.T) {
			d := decide(t, "\n  validations: ["+rule+"]", "Deny", nil)
			if d.Allow != allow || d.Status != status || d.Reason != reason || d.Message != message {
				t.Errorf("allow %t, status %d, reason %q, message %q, errors %+v", d.Allow, d.Status, d.Reason, d.Message, d.Errors)
			}
			if !allow && d.Rule != "p/v" {
				t.Errorf("rule %q", d.Rule)
			}
		})
	}
	f("true allows", `{ name: v, expression: "request.stream" }`, true, 0, "", "")
	f("false denies", `{ name: v, expression: "!request.stream" }`, false, 403, Forbidden, "request denied by p/v")
	f("invalid is 400", `{ name: v, expression: "!request.stream", reason: Invalid }`, false, 400, Invalid, "request denied by p/v")
	f("message", `{ name: v, expression: "!request.stream", message: not now }`, false, 403, Forbidden, "not now")
	f("messageExpression", `{ name: v, expression: "!request.stream", message: not now, messageExpression: "'model ' + request.model" }`, false, 403, Forbidden, "model m")
	f("message after an error", `{ name: v, expression: "!request.stream", message: not now, messageExpression: "tenant.labels['x']" }`, false, 403, Forbidden, "not now")
	f("message after an empty text", `{ name: v, expression: "!request.stream", message: not now, messageExpression: "''" }`, false, 403, Forbidden, "not now")
	f("message after a control character", `{ name: v, expression: "!request.stream", messageExpression: "'a\\nb'" }`, false, 403, Forbidden, "request denied by p/v")
	f("message too long", `{ name: v, expression: "!request.stream", messageExpression: "lists.range(300).map(i, 'abcd').join('')" }`, false, 403, Forbidden, "request denied by p/v")
	f("an error denies", `{ name: v, expression: "tenant.labels['x'] == 'y'" }`, false, 403, PolicyError, "policy evaluation failed")
}

// TestErrorsFollowFailurePolicy: each kind of evaluation error denies under
// Fail and counts as absent under Ignore.
func TestErrorsFollowFailurePolicy(t *testing.T) {
	cases := []struct {
		name, expr string
		kind       ErrorKind
		edit       func(*Input)
	}{
		{"missing key", "tenant.labels['x'] == 'y'", ErrorValue, nil},
		{"value of none", "request.user.value() == 'x'", ErrorValue, func(in *Input) { in.Request.User = nil }},
		{"division by zero", "1 / (request.n - 1) > 0", ErrorValue, nil},
		{"overflow", "request.body_bytes * 9223372036854775807 > 0", ErrorValue, nil},
		{"index out of range", "principal.groups[7] == 'x'", ErrorValue, nil},
		{"no address", "cidr('10.0.0.0/8').containsIP(tenant.id)", ErrorValue, nil},
		{"lazy failure", "content.labels == []", ErrorLazy, func(in *Input) { in.Lazy = &fakeLazy{err: errFake} }},
		{"lazy panic", "request.input_tokens > 0", ErrorLazy, func(in *Input) { in.Lazy = &fakeLazy{panics: true} }},
		{"lazy unset", "content.scan_status == 'complete'", ErrorLazy, func(in *Input) { in.Lazy = nil }},
		{"lazy nonsense", "content.scan_status == 'done'", ErrorLazy, func(in *Input) { in.Lazy = &fakeLazy{content: Content{ScanStatus: "done"}} }},
		{"lazy too large", "content.labels == []", ErrorSize, func(in *Input) {
			in.Lazy = &fakeLazy{content: Content{ScanStatus: "complete", Labels: strings.Fields(strings.Repeat("a b c d e f g h ", 9))}}
			for i := range 65 {
				in.DeclaredLabels = append(in.DeclaredLabels, fmt.Sprint("l", i))
			}
		}},
		{"claim of another type", "principal.claims.clearance.orValue(0) > 1", ErrorValue, func(in *Input) { in.Principal.Claims["clearance"] = "three" }},
		{"claim list of another type", "principal.claims.regions.orValue([]) == []", ErrorValue, func(in *Input) { in.Principal.Claims["regions"] = []any{1.0} }},
		{"absent", "request.model == 'm'", ErrorAbsent, func(in *Input) { in.Absent = map[string]bool{"request.model": true} }},
	}
	for _, c := range cases {
		for _, ignore := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s/ignore=%t", c.name, ignore), func(t *testing.T) {
				spec := "\n  validations: [{ name: v, expression: \"" + c.expr + "\" }]"
				if ignore {
					spec = "\n  failurePolicy: Ignore" + spec
				}
				d := decide(t, spec, "Deny", c.edit)
				if d.Allow != ignore {
					t.Errorf("allow %t", d.Allow)
				}
				if len(d.Errors) != 1 || d.Errors[0].ErrorKind != c.kind || d.Errors[0].Rule != "p/v" || d.Errors[0].Detail == "" {
					t.Errorf("errors %+v, want kind %s", d.Errors, c.kind)
				}
				if !ignore && (d.Reason != PolicyError || d.Status != 403 || d.Message != "policy evaluation failed") {
					t.Errorf("denial %d %s %q", d.Status, d.Reason, d.Message)
				}
			})
		}
	}
}

// TestErrorDetailStaysInside: the engine's text can hold input values, so it is
// cut, and no client-visible field has it.
func TestErrorDetailStaysInside(t *testing.T) {
	secret := strings.Repeat("hunter2", 60)
	d := decide(t, "\n  validations: [{ name: v, expression: \"tenant.labels[request.user.orValue('')] == 'y'\" }]", "Warn, Audit", func(in *Input) { in.Request.User = &secret })
	if !d.Allow || len(d.Warnings) != 1 || len(d.Errors) != 1 {
		t.Fatalf("%+v", d)
	}
	if !strings.Contains(d.Errors[0].Detail, "hunter2") || len(d.Errors[0].Detail) > maxDetail {
		t.Errorf("detail of %d bytes: %q", len(d.Errors[0].Detail), d.Errors[0].Detail)
	}
	for _, h := range d.WarningHeaders() {
		if strings.Contains(h, "hunter2") {
			t.Errorf("the client sees %q", h)
		}
	}
}

// panickingLazy fails with the text that it works on.
type panickingLazy struct{ text string }

func (l panickingLazy) InputTokens(context.Context) (int64, bool, error) { panic(l.text) }

func (l panickingLazy) Content(context.Context) (Content, error) { panic(errors.New(l.text)) }

// TestPanicOfLazyWorkKeepsThePrompt: what lazy work panics with can be the prompt, which no log may hold.
func TestPanicOfLazyWorkKeepsThePrompt(t *testing.T) {
	for _, x := range []string{"request.input_tokens > 0", "content.labels == []"} {
		d := decide(t, "\n  validations: [{ name: v, expression: \""+x+"\" }]", "Deny", func(in *Input) { in.Lazy = panickingLazy{"my diary"} })
		if d.Allow || len(d.Errors) != 1 || d.Errors[0].ErrorKind != ErrorLazy {
			t.Fatalf("%s: %+v", x, d)
		}
		if detail := d.Errors[0].Detail; strings.Contains(detail, "diary") || !strings.Contains(detail, "panic") {
			t.Errorf("%s: detail %q", x, detail)
		}
	}
}

// panickingObserver fails with what it is told of.
type panickingObserver struct{}

func (panickingObserver) Read(string)     { panic("my diary") }
func (panickingObserver) Outcome(Outcome) { panic(errors.New("my diary")) }

// TestPanicKeepsTheRequest: a panic anywhere in a decision denies, and no log gets more than its type.
func TestPanicKeepsTheRequest(t *testing.T) {
	d := decide(t, "\n  validations: [{ name: v, expression: \"request.stream\" }]", "Deny", func(in *Input) { in.Observer = panickingObserver{} })
	if d.Allow || len(d.Errors) != 1 {
		t.Fatalf("%+v", d)
	}
	if detail := d.Errors[0].Detail; strings.Contains(detail, "diary") || !strings.Contains(detail, "panic") {
		t.Errorf("detail %q", detail)
	}
}

func TestMatchConditions(t *testing.T) {
	f := func(name, conditions, policy string, applies bool, errs int) {
		t.Run(name, func(t *testing.T) {
			d := decide(t, "\n  failurePolicy: "+policy+"\n  matchConditions: ["+conditions+"]\n  validations: [{ name: v, expression: \"false\" }]", "Deny", nil)
			if denied := !d.Allow; denied != applies || len(d.Errors) != errs {
				t.Errorf("denied %t by %q, errors %+v", denied, d.Rule, d.Errors)
			}
		})
	}
	const yes, no, broken = `{ name: y, expression: "request.stream" }`, `{ name: n, expression: "!request.stream" }`, `{ name: b, expression: "tenant.labels['x'] == 'y'" }`
	f("all true", yes, "Fail", true, 0)
	f("one false", yes+", "+no, "Fail", false, 0)
	f("false beats an error before it", broken+", "+no, "Fail", false, 0)
	f("false beats an error after it", no+", "+broken, "Fail", false, 0)
	f("an error denies", yes+", "+broken, "Fail", true, 1)
	f("an error under Ignore: not applied", yes+", "+broken, "Ignore", false, 1)
	d := decide(t, "\n  matchConditions: ["+broken+"]\n  validations: [{ name: v, expression: \"false\" }]", "Deny", nil)
	if d.Rule != "p/b" || d.Reason != PolicyError {
		t.Errorf("denied by %s, %s", d.Rule, d.Reason)
	}
}

func TestSelectors(t *testing.T) {
	f := func(selector string, want bool, edit func(*Input)) {
		t.Helper()
		text := strings.Replace(policyText("p", "\n  validations: [{ name: v, expression: \"false\" }]", "Deny"), "actions:", "selector: { "+selector+" }, actions:", 1)
		in := testInput()
		if edit != nil {
			edit(in)
		}
		d := mustLoad(t, testConfig(), text).Decide(t.Context(), in)
		if d.Allow == want {
			t.Errorf("%s: matches %t", selector, !d.Allow)
		}
	}
	f("", true, nil)
	f("tenants: [t1, t2]", true, nil)
	f("tenants: [t2]", false, nil)
	f("excludeTenants: [t1]", false, nil)
	f("excludeTenants: [t2]", true, nil)
	f("tenants: [t1], excludeTenants: [t1]", false, nil)
	f("matchTenantLabels: { env: prod }", true, nil)
	f("matchTenantLabels: { env: dev }", false, nil)
	f("matchTenantLabels: { env: prod, x: y }", false, nil)
	f("operations: [chat]", true, nil)
	f("operations: [completion]", false, nil)
	f("models: [m]", true, nil)
	f("models: ['q*', 'm*']", true, nil)
	f("models: ['qwen-*']", false, nil)
	f("models: ['meta/*-8b']", true, func(in *Input) { in.Request.Model = "meta/llama/3-8b" })
	f("models: ['*']", true, func(in *Input) { in.Request.Model, in.Request.Operation = "", "models" })
	f("tenants: [t1], operations: [chat], models: [m], matchTenantLabels: { env: prod }", true, nil)
	f("tenants: [t1], operations: [chat], models: [x]", false, nil)
}

// TestLazyVariables: short-circuit evaluation reads only what it needs, and
// what has been read is kept for the request, whoever reads it.
func TestLazyVariables(t *testing.T) {
	f := func(name, spec string, scans, tokens int) {
		t.Run(name, func(t *testing.T) {
			lazy := &fakeLazy{tokens: 5, content: Content{ScanStatus: "complete"}}
			text := policyText("p", spec, "Deny") + policyText("q", spec, "Warn") + policyText("r", spec, "Audit")
			s := mustLoad(t, testConfig(), text)
			in := testInput()
			in.Lazy = lazy
			d := s.Decide(t.Context(), in)
			shadow(t.Context(), in, d)
			d.Charges(Usage{InputTokens: 5})
			if lazy.scanCall != scans || lazy.tokenCalls != tokens {
				t.Errorf("%d scans and %d counts, want %d and %d; errors %+v", lazy.scanCall, lazy.tokenCalls, scans, tokens, d.Errors)
			}
		})
	}
	f("nothing read", "\n  validations: [{ name: v, expression: request.stream }]", 0, 0)
	f("&& stops", "\n  validations: [{ name: v, expression: \"!(tenant.tier == 'silver' && 'pii' in content.labels)\" }]", 0, 0)
	f("&& goes on", "\n  validations: [{ name: v, expression: \"!(tenant.tier == 'gold' && 'pii' in content.labels)\" }]", 1, 0)
	f("|| stops", "\n  validations: [{ name: v, expression: \"request.stream || request.input_tokens < 10\" }]", 0, 0)
	f("?: reads one branch", "\n  validations: [{ name: v, expression: \"request.stream ? request.input_tokens < 10 : content.labels == []\" }]", 0, 1)
	f("four variables, one scan", "\n  validations: [{ name: v, expression: \"content.labels.size() + content.findings.size() + content.detectors.size() < 9 && content.scan_status == 'complete'\" }]", 1, 0)
	f("both token variables, one count", "\n  validations: [{ name: v, expression: \"!request.input_tokens_exact && request.input_tokens == 5\" }]", 0, 1)
	f("a variable that nothing reads", "\n  variables: [{ name: x, expression: content.labels }]\n  validations: [{ name: v, expression: request.stream }]", 0, 0)
	f("a limit with the default estimate", "\n  limits: [{ name: l, unit: tokens, window: 1m, limit: 100000, key: [] }]", 0, 1)
	f("a limit of output only", "\n  limits: [{ name: l, unit: output_tokens, window: 1m, limit: 100000, key: [] }]", 0, 0)
	f("a limit with a cost", "\n  limits: [{ name: l, unit: cost, window: day, limit: 1000000, key: [] }]", 0, 1)
	f("a charge that reads lazily", "\n  limits: [{ name: l, unit: requests, window: 1m, limit: 10, key: [], charge: \"'pii' in content.labels ? 2 : 1\" }]", 1, 0)
}

// TestVariablesEvaluateOnce: a policy's variable is evaluated once for each
// request and binding, however many expressions read it.
func TestVariablesEvaluateOnce(t *testing.T) {
	text := policyText("p", `
  variables:
    - { name: a, expression: "tenant.tier + request.model" }
    - { name: b, expression: "variables.a + variables.a" }
  validations:
    - { name: v, expression: "variables.b.size() > 0 && variables.a != ''" }
    - { name: w, expression: "variables.b.size() < 99" }
  auditAnnotations: [{ key: k, valueExpression: variables.b }]`, "Deny") + `apiVersion: sluice/v1alpha1
kind: AdmissionPolicyBinding
metadata: { name: second }
spec: { policyName: p, actions: [Deny] }
`
	d := mustLoad(t, testConfig(), text).Decide(t.Context(), testInput())
	// For each of two bindings: a, b, v, w and the annotation.
	if d.Cost.Expressions != 10 || d.Annotations["p/k"] != "goldmgoldm" {
		t.Errorf("%d expressions, annotations %v", d.Cost.Expressions, d.Annotations)
	}
}

func TestVariableSize(t *testing.T) {
	for expr, ok := range map[string]bool{
		"request.tool_names.filter(t, t != 'x')": false, "request.tool_names.slice(0, 10)": true,
		"principal.groups.map(g, [g])": true, "request.headers.transformMap(k, v, v)": true, "optional.of(request.tool_names)": false,
	} {
		s := mustLoad(t, testConfig(), policyText("p", "\n  variables: [{ name: x, expression: \""+expr+"\" }]\n  validations: [{ name: v, expression: \"optional.of(variables.x).hasValue()\" }]", "Deny"))
		d := s.Decide(t.Context(), largestInput())
		failed := len(d.Errors) == 1 && d.Errors[0].ErrorKind == ErrorSize
		if failed == ok {
			t.Errorf("%s: errors %+v", expr, d.Errors)
		}
	}
}

func TestActions(t *testing.T) {
	spec := `
  validations: [{ name: v, expression: "request.n > 5", message: too few }, { name: e, expression: "tenant.labels['x'] == ''" }]
  effects: [{ name: f, qos: { class: batch }, route: { allowPools: [a] }, mutate: { max_tokens: 5 }, cacheIsolation: principal, addLabels: [seen] }]
  auditAnnotations: [{ key: k, valueExpression: tenant.id }]`
	t.Run("Deny", func(t *testing.T) {
		d := decide(t, spec, "Deny", nil)
		if d.Allow || rules(d.Denials) != "p/v p/e" || len(d.Warnings)+len(d.WouldDeny) != 0 || d.Class != "batch" || *d.MaxTokens != 5 || d.LogInFull {
			t.Errorf("%+v", d)
		}
	})
	t.Run("Warn", func(t *testing.T) {
		d := decide(t, spec, "Warn", nil)
		untouched(t, d)
		if rules(d.Warnings) != "p/v p/e" || len(d.Denials)+len(d.WouldDeny) != 0 || rules(d.Fired) != "p/f" || d.Fired[0].Mode != Warn || d.Annotations["p/k"] != "t1" {
			t.Errorf("%+v", d)
		}
		want := []string{`299 sluice "p/v: too few"`, `299 sluice "p/e: policy evaluation failed"`}
		if got := d.WarningHeaders(); strings.Join(got, "\n") != strings.Join(want, "\n") {
			t.Errorf("headers %q", got)
		}
	})
	t.Run("Audit alone", func(t *testing.T) {
		s := mustLoad(t, testConfig(), policyText("p", spec, "Audit"))
		in := testInput()
		d := s.Decide(t.Context(), in)
		untouched(t, d)
		if d.Cost.Expressions != 0 || len(d.Fired)+len(d.WouldDeny)+len(d.Errors) != 0 {
			t.Errorf("shadow ran before the response: %+v", d)
		}
		shadow(t.Context(), in, d)
		untouched(t, d)
		if rules(d.WouldDeny) != "p/v p/e" || rules(d.Fired) != "p/f" || len(d.Errors) != 1 || d.Errors[0].Mode != Shadow ||
			d.ShadowAnnotations["p/k"] != "t1" || len(d.Annotations) != 0 || d.Cost.Units != 0 || d.Cost.ShadowUnits == 0 || !d.LogInFull {
			t.Errorf("%+v", d)
		}
		if len(d.WarningHeaders()) != 0 {
			t.Error("shadow outcomes reach the client")
		}
	})
	t.Run("Deny with Audit", func(t *testing.T) {
		if d := decide(t, spec, "Deny, Audit", nil); d.Allow || !d.LogInFull {
			t.Errorf("%+v", d)
		}
	})
}

// untouched fails when a decision changes anything of the request.
func untouched(t *testing.T, d *Decision) {
	t.Helper()
	if !d.Allow || d.Class != "standard" || *d.MaxTokens != 1000 || d.MaxTokensChanged || d.CacheIsolation != "tenant" || len(d.Labels) != 0 || strings.Join(d.Pools, "") != "abc" {
		t.Errorf("the request is changed: %+v", d)
	}
}

func TestNothingIsSkippedAfterADenial(t *testing.T) {
	text := policyText("a", "\n  validations: [{ name: v, expression: \"false\" }, { name: w, expression: \"false\", reason: Invalid }]", "Deny") +
		policyText("b", "\n  validations: [{ name: v, expression: \"false\" }]\n  effects: [{ name: e, addLabels: [x] }]\n  limits: [{ name: l, unit: requests, window: 1m, limit: 0, key: [] }]", "Deny")
	d := mustLoad(t, testConfig(), text).Decide(t.Context(), testInput())
	if rules(d.Denials) != "a/v a/w b/v" || rules(d.Fired) != "b/e" || len(d.Limits) != 0 || d.Rule != "a/v" {
		t.Errorf("%+v", d)
	}
}

// TestOrderOfReports: failed validations come before errors, before pools.
func TestOrderOfReports(t *testing.T) {
	broken := "\n  validations: [{ name: v, expression: \"tenant.labels['x'] == ''\" }]"
	no := "\n  validations: [{ name: v, expression: \"false\" }]"
	pools := "\n  effects: [{ name: e, route: { denyPools: [a, b, c] } }]"
	f := func(want string, reason Reason, specs ...string) {
		t.Helper()
		var text string
		for i, spec := range specs {
			text += policyText(string(rune('a'+i)), spec, "Deny")
		}
		d := mustLoad(t, testConfig(), text).Decide(t.Context(), testInput())
		if rules(d.Denials) != want || d.Reason != reason {
			t.Errorf("%s, %s; want %s, %s", rules(d.Denials), d.Reason, want, reason)
		}
	}
	f("b/v a/v", Forbidden, broken, no, pools)
	f("b/v", PolicyError, pools, broken)
	f("a/e", NoPermittedPool, pools)
}

func TestCancelledContextDenies(t *testing.T) {
	s := mustLoad(t, testConfig(), policyText("p", validations, "Deny"))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	d := s.Decide(ctx, testInput())
	if d.Allow || d.Reason != PolicyError || d.Errors[0].ErrorKind != ErrorCancelled {
		t.Errorf("%+v", d)
	}
}

// TestPanicDenies: a fault of the evaluator never admits.
func TestPanicDenies(t *testing.T) {
	s := mustLoad(t, testConfig(), policyText("p", validations, "Deny"))
	broken := *s
	broken.live = []*binding{nil}
	d := broken.Decide(t.Context(), testInput())
	if d.Allow || d.Status != 403 || d.Reason != PolicyError || d.Message != "policy evaluation failed" || d.Errors[0].ErrorKind != ErrorInternal {
		t.Errorf("%+v", d)
	}
	d.Charges(Usage{})
	shadow(t.Context(), testInput(), d)
}

func TestWarningHeaderBounds(t *testing.T) {
	d := &Decision{}
	for i := range 9 {
		d.Warnings = append(d.Warnings, RuleRef{Rule: fmt.Sprintf("p/r%d", i), Message: "é\"\\\n" + strings.Repeat("x", 300)}, RuleRef{Rule: "p/r0", Message: "é\"\\\n" + strings.Repeat("x", 300)})
	}
	got := d.WarningHeaders()
	if len(got) != maxWarnings {
		t.Fatalf("%d headers", len(got))
	}
	for i, h := range got {
		if len(h) != 256 || !strings.HasPrefix(h, fmt.Sprintf(`299 sluice "p/r%d: ?'??xxx`, i)) || strings.Count(h, `"`) != 2 {
			t.Errorf("%d bytes: %s", len(h), h)
		}
	}
}

func TestAnnotations(t *testing.T) {
	text := policyText("p", `
  params: { schema: { x: { type: string, required: true } } }
  auditAnnotations:
    - { key: a, valueExpression: "params.x" }
    - { key: b, valueExpression: "params.x == 'one' ? optional.of('only') : optional.none()" }
    - { key: c, valueExpression: "optional.none()" }
    - { key: d, valueExpression: "'same'" }
    - { key: e, valueExpression: "lists.range(200).map(i, 'é').join('')" }`, "Deny")
	text = strings.Replace(text, "actions: [Deny]", "actions: [Deny], params: { x: one }", 1) + `apiVersion: sluice/v1alpha1
kind: AdmissionPolicyBinding
metadata: { name: a-second }
spec: { policyName: p, actions: [Warn], params: { x: two } }
`
	text = strings.Replace(text, `"optional.none()"`, `"request.stream ? optional.none() : optional.of('x')"`, 1)
	d := mustLoad(t, testConfig(), text).Decide(t.Context(), testInput())
	want := map[string]string{"p/a": "two,one", "p/b": "only", "p/d": "same", "p/e": strings.Repeat("é", 128)}
	if len(d.Annotations) != len(want) {
		t.Errorf("annotations %v", d.Annotations)
	}
	for k, v := range want {
		if d.Annotations[k] != v {
			t.Errorf("%s: %q, want %q", k, d.Annotations[k], v)
		}
	}
}

// TestMatchConditionsReadParams: a binding's parameters decide where its policy
// applies.
func TestMatchConditionsReadParams(t *testing.T) {
	text := policyText("p", "\n  params: { schema: { ops: { type: list, items: string, required: true } } }\n  matchConditions: [{ name: m, expression: request.operation in params.ops }]\n  validations: [{ name: v, expression: \"false\" }]", "Deny")
	for ops, applies := range map[string]bool{"chat": true, "completion": false, "'completion', chat": true} {
		d := mustLoad(t, testConfig(), strings.Replace(text, "actions:", "params: { ops: ["+ops+"] }, actions:", 1)).Decide(t.Context(), testInput())
		if d.Allow == applies {
			t.Errorf("params.ops [%s]: applies %t", ops, !d.Allow)
		}
	}
}

// TestScanBeyondItsMaxima: what a scan reports is held against the maxima of
// its variables and the form of labels.
func TestScanBeyondItsMaxima(t *testing.T) {
	many := func(n, size int) []string {
		out := make([]string, n)
		for i := range out {
			out[i] = fmt.Sprintf("%0*d", size, i)
		}
		return out
	}
	table := func(keys ...string) map[string]int64 {
		out := map[string]int64{}
		for _, k := range keys {
			out[k] = 1
		}
		return out
	}
	f := func(name string, c Content, kind ErrorKind) {
		t.Helper()
		c.ScanStatus = "complete"
		for _, variable := range []string{"content.labels == []", "content.findings == {}", "content.detectors == []", "content.scan_status != ''"} {
			d := decide(t, "\n  validations: [{ name: v, expression: \""+variable+" || true\" }, { name: w, expression: \""+variable+" || request.stream == request.stream\" }, { name: x, expression: \""+variable+"\" }]", "Deny",
				func(in *Input) { in.Lazy = &fakeLazy{content: c} })
			bad := slices.ContainsFunc(d.Errors, func(r RuleRef) bool { return r.Rule == "p/x" && r.ErrorKind == kind })
			if want := kind != ""; bad != want {
				t.Errorf("%s, %s: errors %+v, want %q", name, variable, d.Errors, kind)
			}
		}
	}
	f("at the maxima", Content{Labels: many(63, 63), Findings: table(many(64, 63)...), Detectors: many(64, 63)}, "")
	f("too many labels", Content{Labels: many(65, 3)}, ErrorSize)
	f("a long label", Content{Labels: many(1, 64)}, ErrorSize)
	f("too many findings", Content{Findings: table(many(65, 3)...)}, ErrorSize)
	f("a long finding", Content{Findings: table(many(1, 64)...)}, ErrorSize)
	f("too many detectors", Content{Detectors: many(65, 3)}, ErrorSize)
	f("a long detector", Content{Detectors: many(1, 64)}, ErrorSize)
	f("a label that is none", Content{Labels: []string{"PII"}}, ErrorLazy)
	f("a finding that is no label", Content{Findings: table("e mail")}, ErrorLazy)
}

// TestSelectorsOfAbsentVariables: a selector that needs what the input lacks is
// neither true nor false, unless another part of it is false.
func TestSelectorsOfAbsentVariables(t *testing.T) {
	f := func(selector string, absent string, errs int) {
		t.Helper()
		text := strings.Replace(policyText("p", "\n  validations: [{ name: v, expression: \"false\" }]", "Deny"), "actions:", "selector: { "+selector+" }, actions:", 1)
		in := testInput()
		in.Absent = map[string]bool{absent: true}
		d := mustLoad(t, testConfig(), text).Decide(t.Context(), in)
		if len(d.Errors) != errs {
			t.Errorf("%s without %s: errors %+v", selector, absent, d.Errors)
		}
		if errs > 0 && (d.Allow || d.Errors[0].ErrorKind != ErrorAbsent || d.Errors[0].Kind != SelectorRule || d.Errors[0].Rule != "p" || d.Errors[0].Binding != "p-b") {
			t.Errorf("%s: allow %t, %+v", selector, d.Allow, d.Errors[0])
		}
	}
	f("tenants: [t1]", "tenant.id", 1)
	f("excludeTenants: [t1]", "tenant.id", 1)
	f("matchTenantLabels: { env: prod }", "tenant.labels", 1)
	f("models: [m]", "request.model", 1)
	f("operations: [chat]", "request.operation", 1)
	f("tenants: [t1]", "tenant.labels", 0)
	f("tenants: [t1], operations: [completion]", "tenant.id", 0)
	f("tenants: [t1], operations: [chat]", "tenant.id", 1)
	f("tenants: [t2], models: [m]", "request.model", 0)
}
