package policy

import (
	"fmt"
	"strings"
	"testing"
)

// warningsOf loads policies and writes the warnings of some kinds.
func warningsOf(t *testing.T, cfg Config, text string, kinds ...WarningKind) string {
	t.Helper()
	var out []string
	for _, w := range mustLoad(t, cfg, text).Warnings() {
		for _, k := range kinds {
			if w.Kind == k {
				out = append(out, fmt.Sprintf("%d:%d %s", w.Line, w.Col, w.Text))
			}
		}
	}
	return strings.Join(out, "\n")
}

// boundText is a policy with bindings by name: selector and parameters.
func boundText(spec string, bindings ...string) string {
	text, _, _ := strings.Cut(policyText("p", spec, "Deny"), "---")
	for i, b := range bindings {
		if b != "" {
			b = ", " + b
		}
		text += fmt.Sprintf("---\napiVersion: sluice/v1alpha1\nkind: AdmissionPolicyBinding\nmetadata: { name: b%d }\nspec: { policyName: p, actions: [Deny]%s }\n", i, b)
	}
	return text
}

// TestDecidedRules: a rule whose value no request can change is found, and no
// other is.
func TestDecidedRules(t *testing.T) {
	const schema = "\n  params: { schema: { scan: { type: bool, default: false }, word: { type: string, default: x }, list: { type: list, items: string, default: [chat, messages] }, map: { type: map, values: int, default: { gold: 1 } } } }"
	f := func(spec string, bindings []string, want ...string) {
		t.Helper()
		got := warningsOf(t, testConfig(), boundText(schema+spec, bindings...), WarnDecided, WarnSelectsNone)
		if got != strings.Join(want, "\n") {
			t.Errorf("%s %v: got\n%s\nwant\n%s", spec, bindings, got, strings.Join(want, "\n"))
		}
	}
	validation := func(expr string) string {
		return "\n  validations: [{ name: v, expression: \"" + expr + "\" }]"
	}
	one := []string{""}
	never, refuses := "7:40 in binding b0 always true: the validation never refuses", "7:40 in binding b0 always false: the validation refuses every request that it sees"

	// The binding's parameters decide.
	f(validation("!params.scan || content.scan_status == 'complete'"), one, never)
	f(validation("!params.scan || content.scan_status == 'complete'"), []string{"params: { scan: true }"})
	f(validation("params.scan && request.n == 1"), one, refuses)
	f(validation("params.scan ? request.n > 3 : true"), []string{"", "params: { scan: true }"}, never)
	f(validation("params.scan ? request.n > 3 : true"), []string{"", "params: { scan: false }"}, "7:40 in every binding always true: the validation never refuses")
	f("\n  variables: [{ name: x, expression: params.scan }]"+validation("!variables.x || request.n < 4"), one, "8:40 in binding b0 always true: the validation never refuses")

	// Words that contradict each other, whatever they are.
	f(validation("request.model == 'a' && request.model == 'b'"), one, refuses)
	f(validation("request.model != 'a' || request.model != 'b'"), one, never)
	f(validation("request.model == 'a' || request.model == 'b'"), one)
	f(validation("tenant.tier in ['gold', 'silver'] && tenant.tier == 'bronze'"), one, refuses)
	f(validation("request.stream || !request.stream"), one, never)
	f(validation("content.scan_status == 'complete' && content.scan_status == 'partial'"), one, refuses)
	f(validation("content.scan_status in ['complete', 'partial', 'timeout', 'unavailable']"), one, never)
	f(validation("tenant.tier == params.word && tenant.tier == 'y'"), one, refuses)
	f(validation("request.operation in params.list && request.operation == 'models'"), one, refuses)
	f(validation("params.map[?tenant.tier].orValue(0) > 1"), one, refuses)
	f(validation("params.map[?tenant.tier].orValue(0) > 0"), one)

	// Another use of the variable than a comparison makes its words say nothing.
	f(validation("request.model.startsWith('x') && request.model == 'a' && request.model == 'b'"), one)
	f(validation("request.model == 'a' ? request.model.size() == 1 : true"), one)
	f(validation("request.model == tenant.team && request.model == 'a' && request.model == 'b'"), one)

	// What the selector and the match conditions leave.
	f(validation("request.operation != 'chat'"), []string{"selector: { operations: [chat] }"}, refuses)
	f(validation("request.operation != 'chat'"), []string{"selector: { operations: [chat, completion] }"})
	f(validation("tenant.id.startsWith('t')"), []string{"selector: { tenants: [t1, t2] }"}, never)
	f(validation("tenant.id == 't1'"), []string{"selector: { tenants: [t1, t2], excludeTenants: [t2] }"}, never)
	f(validation("request.model.contains('m')"), []string{"selector: { models: [m] }"}, never)
	f(validation("request.model.contains('m')"), []string{"selector: { models: ['m*'] }"})
	f("\n  matchConditions: [{ name: m, expression: \"request.operation == 'chat'\" }]"+validation("request.operation in ['chat', 'completion']"), one,
		"8:40 in binding b0 always true: the validation never refuses")
	f("\n  matchConditions: [{ name: m, expression: \"request.operation == 'chat'\" }, { name: n, expression: \"request.operation == 'completion'\" }]"+validation("request.n == 1"), one,
		"10:1 the match conditions of policy p contradict each other or the selector, so the binding applies to no request")
	f("\n  matchConditions: [{ name: m, expression: \"request.operation == 'chat' && request.n > 1\" }]"+validation("request.n == 1"), []string{"selector: { operations: [completion] }", ""},
		"10:1 the match conditions of policy p contradict each other or the selector, so the binding applies to no request")

	// Effects and limits.
	f("\n  effects: [{ name: e, when: params.scan && request.n > 1, addLabels: [x] }, { name: always, when: \"!params.scan\", addLabels: [y] }]", one,
		"7:30 in binding b0 always false: the effect never applies")
	f("\n  limits: [{ name: l, when: params.scan, unit: requests, window: 1m, limit: \"params.map[?tenant.tier].orValue(0)\", key: [] }]", one,
		"7:29 in binding b0 always false: the limit never applies")
	f("\n  limits: [{ name: l, when: params.scan, unit: requests, window: 1m, limit: \"params.scan ? 5 : 0\", key: [] }]", one,
		"7:29 in binding b0 always false: the limit never applies")
	f("\n  limits: [{ name: l, unit: requests, window: 1m, limit: \"params.scan ? 5 : 0\", key: [] }]", one,
		"7:58 in binding b0 always 0: the limit refuses every request that it applies to")
	f("\n  limits: [{ name: l, when: \"effective.qos_class == 'a' && effective.qos_class == 'b'\", unit: requests, window: 1m, limit: \"5\", key: [] }]", one)
}

// TestDecidedIsTrue: what is said of every request holds for requests that are
// made up.
func TestDecidedIsTrue(t *testing.T) {
	exprs := []string{
		"request.operation == 'chat' || request.operation != 'chat'", "request.model in ['m', 'x'] && !(request.model in ['x', 'm'])",
		"request.stream == (request.stream && true)", "principal.kind == 'jwt' ? true : principal.kind != 'jwt'",
		"tenant.labels['env'] == 'prod' || true", "request.n > 0 && false",
	}
	for _, expr := range exprs {
		s := mustLoad(t, testConfig(), policyText("p", "\n  validations: [{ name: v, expression: \""+expr+"\" }]", "Deny"))
		want := map[string]bool{}
		for _, w := range s.Warnings() {
			if w.Kind == WarnDecided {
				want[w.Text] = true
			}
		}
		if len(want) != 1 {
			t.Errorf("%s: warnings %v", expr, want)
		}
		_, never := want["in binding p-b always true: the validation never refuses"]
		for _, edit := range []func(*Input){func(*Input) {}, func(in *Input) { in.Request.Stream = false }, func(in *Input) {
			in.Request.Operation, in.Request.Model, in.Principal.Kind, in.Tenant.Labels = "new", "other", "api_key", nil
		}} {
			in := testInput()
			edit(in)
			if got := strings.Contains(rules(s.Decide(t.Context(), in).Denials), "p/v"); got == never {
				t.Errorf("%s: refused %t, and %v", expr, got, want)
			}
		}
	}
}

// TestUnknownWords: a word that a variable never has is named with its place and
// the nearest one that it can have.
func TestUnknownWords(t *testing.T) {
	cfg := testConfig()
	cfg.Tenants = []TenantInfo{{ID: "acme", Team: "search", Tier: "gold", Labels: map[string]string{"env": "prod"}}, {ID: "globex", Tier: "silver"}}
	cfg.Models = map[string]Model{"spare": {}}
	f := func(expr string, want ...string) {
		t.Helper()
		got := warningsOf(t, cfg, policyText("p", "\n  validations: [{ name: v, expression: \""+expr+"\" }]", "Deny"), WarnUnknownWord)
		if got != strings.Join(want, "\n") {
			t.Errorf("%s: got\n%s\nwant\n%s", expr, got, strings.Join(want, "\n"))
		}
	}
	f("request.operation == 'compltion' || request.operation in ['chat', 'mesages']",
		`6:62 the gateway has no operation "compltion"; did you mean "completion"?`,
		`6:107 the gateway has no operation "mesages"; did you mean "messages"?`)
	f("!('vidoe' in request.modalities)", `6:43 there is no modality "vidoe"; did you mean "video"?`)
	f("principal.kind != 'apikey' && request.dialect != 'openia' && content.scan_status != 'done'",
		`6:59 there is no kind of principal "apikey"; did you mean "api_key"?`,
		`6:90 there is no dialect "openia"; did you mean "openai"?`,
		`6:125 there is no scan status "done"`)
	f("request.model in ['m', 'big', 'spare', '', 'bug']", `6:84 the configuration has no model "bug"; did you mean "big"?`)
	f("tenant.id == 'acem' || tenant.team == 'serach' || tenant.tier in ['gold', 'sliver', 'platinum']",
		`6:54 there is no tenant "acem"; did you mean "acme"?`,
		`6:79 no tenant is of the team "serach"; did you mean "search"?`,
		`6:115 no tenant is of the tier "sliver"; did you mean "silver"?`)
	f("tenant.tier == 'compltion' && request.model.contains('compltion')")

	got := warningsOf(t, cfg, policyText("p", "\n  limits: [{ name: l, when: \"effective.qos_class == 'btach'\", unit: requests, window: 1m, limit: 5, key: [] }]", "Deny"), WarnUnknownWord)
	if got != `6:53 the configuration has no class "btach"; did you mean "batch"?` {
		t.Errorf("got %s", got)
	}
	spec := "\n  params: { schema: { models: { type: list, items: string, default: [m, bgi] }, byTier: { type: map, values: int, required: true } } }\n  validations: [{ name: v, expression: \"request.model in params.models && params.byTier[tenant.tier] > 0 && tenant.tier in params.byTier\" }]"
	got = warningsOf(t, cfg, boundText(spec, "params: { models: [m, mm, bog], byTier: { sliver: 1, other: 2 } }", "params: { byTier: { gold: 1 } }"), WarnUnknownWord)
	if want := `12:49 no tenant is of the tier "sliver"; did you mean "silver"? (tenant.tier is compared with it)
12:49 the configuration has no model "bog"; did you mean "big"? (request.model is compared with it)
12:49 the configuration has no model "mm" (request.model is compared with it)
17:49 the configuration has no model "bgi"; did you mean "big"? (request.model is compared with it)`; got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

// TestUnknownTenants: selectors are held against the tenants, where those are
// known.
func TestUnknownTenants(t *testing.T) {
	f := func(tenants []TenantInfo, selector string, want ...string) {
		t.Helper()
		cfg := testConfig()
		cfg.Tenants = tenants
		got := warningsOf(t, cfg, boundText("\n  validations: [{ name: v, expression: request.n == 1 }]", "selector: { "+selector+" }"), WarnSelectsNone, WarnUnknownTenant)
		if got != strings.Join(want, "\n") {
			t.Errorf("%s: got\n%s\nwant\n%s", selector, got, strings.Join(want, "\n"))
		}
	}
	known := []TenantInfo{{ID: "acme", Labels: map[string]string{"env": "prod"}}, {ID: "globex"}}
	none := "11:62 no tenant matches the selector, so the binding selects nothing"
	f(known, "tenants: [acme]")
	f(known, "tenants: [acem, globex]", `11:62 there is no tenant "acem"; did you mean "acme"?`)
	f(known, "excludeTenants: [initech]", `11:69 there is no tenant "initech"`)
	f(known, "tenants: [initech]", none, `11:62 there is no tenant "initech"`)
	f(known, "matchTenantLabels: { env: dev }", strings.Replace(none, "11:62", "11:72", 1))
	f(known, "matchTenantLabels: { env: prod }")
	f(known, "tenants: [globex], matchTenantLabels: { env: prod }", none)
	f([]TenantInfo{}, "models: ['*']", strings.Replace(none, "11:62", "8:1", 1))
	f(nil, "tenants: [initech]")
}

// TestDecidingFollowsEachVariableOnce: variables that read two earlier ones each
// have more paths than could ever be walked.
func TestDecidingFollowsEachVariableOnce(t *testing.T) {
	spec := "\n  variables:\n    - { name: v0, expression: request.stream }\n    - { name: v1, expression: variables.v0 }"
	for i := 2; i < maxRules; i++ {
		spec += fmt.Sprintf("\n    - { name: v%d, expression: variables.v%d && variables.v%d }", i, i-1, i-2)
	}
	spec += fmt.Sprintf("\n  validations: [{ name: v, expression: \"variables.v%d || !request.stream\" }]", maxRules-1)
	got := warningsOf(t, testConfig(), policyText("p", spec, "Deny"), WarnDecided)
	if !strings.HasSuffix(got, "in binding p-b always true: the validation never refuses") {
		t.Errorf("got %s", got)
	}
}

// TestDecidingIsBounded: a set that would take too long to decide is loaded
// without its last warnings.
func TestDecidingIsBounded(t *testing.T) {
	var words []string
	for i := range 60 {
		words = append(words, fmt.Sprintf("'w%d'", i))
	}
	expr := "request.model in [" + strings.Join(words, ", ") + "] && tenant.id in [" + strings.Join(words, ", ") + "]"
	var text strings.Builder
	for i := range 40 {
		fmt.Fprintf(&text, "%s", policyText(fmt.Sprint("p", i), "\n  validations: [{ name: v, expression: \""+expr+"\" }, { name: w, expression: \""+expr+" || request.n > 1\" }]", "Deny"))
	}
	s := mustLoad(t, testConfig(), text.String())
	b := &builder{cfg: s.cfg}
	d := newDecider(b, s)
	for _, c := range s.policies {
		d.policy(c, s.live[:1])
	}
	if d.evals > maxDecideEvals+1 {
		t.Errorf("%d evaluations", d.evals)
	}
}
