package policy

import (
	"fmt"
	"strings"
	"testing"
)

func TestWarnings(t *testing.T) {
	f := func(name, text string, want ...string) {
		t.Run(name, func(t *testing.T) {
			cfg := testConfig()
			cfg.Headers = []string{"x-app"}
			var got []string
			for _, w := range mustLoad(t, cfg, text).Warnings() {
				got = append(got, fmt.Sprintf("%s %s", w.Kind, w.Error.Error()))
			}
			if strings.Join(got, "\n") != strings.Join(want, "\n") {
				t.Errorf("got:\n%s\nwant:\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
			}
		})
	}
	const fine = "\n  validations: [{ name: v, expression: request.stream }]"
	f("nothing to warn of", policyText("p", fine, "Deny"))
	f("unbound", strings.Split(policyText("p", fine, "Deny"), "---")[0],
		"unbound-policy p.yaml:1:1: AdmissionPolicy/p: no binding names the policy, so it does nothing")
	f("constant", policyText("p", `
  matchConditions: [{ name: m, expression: "1 < 2" }]
  validations: [{ name: v, expression: "false" }]
  effects: [{ name: e, when: "'a' == 'b'", addLabels: [x] }, { name: f, when: "[1, 2].exists(i, i == 2)", addLabels: [x] }]`, "Deny"),
		`constant-rule p.yaml:6:44: AdmissionPolicy/p.spec.matchConditions[0].expression: always true: the condition always holds: remove it`,
		`constant-rule p.yaml:7:40: AdmissionPolicy/p.spec.validations[0].expression: always false: the validation refuses every request that it sees`,
		`constant-rule p.yaml:8:30: AdmissionPolicy/p.spec.effects[0].when: always false: the effect never applies`,
		"constant-rule p.yaml:8:79: AdmissionPolicy/p.spec.effects[1].when: always true: the effect always applies: remove `when`")
	f("unused", policyText("p", "\n  params: { schema: { a: { type: int, default: 1 } } }\n  variables: [{ name: x, expression: request.n }]"+fine, "Deny"),
		"unread-param p.yaml:6:26: AdmissionPolicy/p.spec.params.schema.a: no expression reads params.a",
		"unused-variable p.yaml:7:15: AdmissionPolicy/p.spec.variables[0]: no expression reads variables.x")
	f("headers", policyText("p", `
  validations:
    - { name: a, expression: "request.headers['x-app'] == 'a'" }
    - { name: b, expression: "request.headers[?'x-ap'].orValue('') == 'a'" }
    - { name: c, expression: "'X-App' in request.headers && has(request.headers.host)" }`, "Deny"),
		`header-not-allowed p.yaml:8:30: AdmissionPolicy/p.spec.validations[1].expression: the header "x-ap" is not on the allowlist, so request.headers never has it; did you mean "x-app"?`,
		`header-not-allowed p.yaml:9:30: AdmissionPolicy/p.spec.validations[2].expression: the header "X-App" is not on the allowlist, so request.headers never has it; header names are lower case`,
		`header-not-allowed p.yaml:9:30: AdmissionPolicy/p.spec.validations[2].expression: the header "host" is not on the allowlist, so request.headers never has it`)
	f("ignore", policyText("p", `
  failurePolicy: Ignore
  effects: [{ name: e, route: { denyPools: [a] } }, { name: f, addLabels: [x] }, { name: g, cacheIsolation: principal }]
  limits: [{ name: l, unit: requests, window: 1m, limit: 1, key: [] }]`, "Deny"),
		"ignore-protects p.yaml:7:13: AdmissionPolicy/p.spec.effects[0]: failurePolicy Ignore drops this effect when it fails, which opens what it protects: use Fail",
		"ignore-protects p.yaml:7:82: AdmissionPolicy/p.spec.effects[2]: failurePolicy Ignore drops this effect when it fails, which opens what it protects: use Fail",
		"ignore-protects p.yaml:8:12: AdmissionPolicy/p.spec.limits[0]: failurePolicy Ignore drops this limit when it fails, which admits without it: use Fail")
	f("ways up", policyText("p", "\n  effects: [{ name: e, qos: { class: critical, override: true } }, { name: f, qos: { class: interactive } }, { name: g, qos: { class: batch } }, { name: h, cacheIsolation: none }]", "Deny"),
		"override p.yaml:6:13: AdmissionPolicy/p.spec.effects[0]: override lifts requests to class critical above what other policies say",
		"raises-class p.yaml:6:68: AdmissionPolicy/p.spec.effects[1]: names class interactive, above the default standard, where no other policy names one",
		"loosens-isolation p.yaml:6:146: AdmissionPolicy/p.spec.effects[3]: names isolation none, looser than the default tenant, where no other policy names one")
	f("client key", policyText("p", "\n  variables: [{ name: who, expression: \"request.user.orValue('')\" }]\n  limits: [{ name: l, unit: requests, window: 1m, limit: 1, key: [tenant.id, variables.who] }]", "Deny"),
		"client-key p.yaml:7:78: AdmissionPolicy/p.spec.limits[0].key[1]: the key holds text written by the client, who can change it to get a fresh counter")
	f("no pool left", policyText("p", "\n  effects: [{ name: e, route: { allowPools: [a], requirePoolLabels: { zone: us } } }]", "Deny"),
		"no-pool-left p.yaml:6:13: AdmissionPolicy/p.spec.effects[0]: the effect leaves no pool of the configuration, so it refuses every request that it applies to")
	f("selects nothing", strings.Replace(policyText("p", fine, "Deny"), "actions:", "selector: { tenants: [a], excludeTenants: [a, b], models: ['qwen*'], operations: [chat, compltion] }, actions:", 1),
		`selects-nothing p.yaml:8:1: AdmissionPolicyBinding/p-b: every tenant that the binding selects is excluded, so it selects nothing`,
		`selects-nothing p.yaml:11:82: AdmissionPolicyBinding/p-b.spec.selector.models: no pool serves a model that matches, so the binding selects nothing`,
		`unknown-operation p.yaml:11:105: AdmissionPolicyBinding/p-b.spec.selector.operations: the gateway has no operation "compltion"; did you mean "completion"?`)
	f("effects without Deny", policyText("p", "\n  effects: [{ name: e, addLabels: [x] }]", "Audit"),
		"effect-not-applied p.yaml:8:1: AdmissionPolicyBinding/p-b: the policy has effects only, which apply with the action Deny alone")
	var dear strings.Builder
	for i := range 12 {
		dear.WriteString(policyText(fmt.Sprint("p", i), "\n  validations: [{ name: v, expression: \"sets.intersects(content.labels, principal.groups)\" }, { name: w, expression: request.stream }]", "Deny"))
	}
	f("cost of all together", dear.String()+policyText("q", fine, "Warn"))
	dear.WriteString(policyText("r", "\n  validations: [{ name: v, expression: \"sets.contains(content.labels, principal.groups)\" }, { name: w, expression: request.stream }]", "Deny"))
	f("cost beyond the request's", dear.String(),
		"cost-sum the estimates of all enforced bindings add up to 106548, more than the 100000 of one request: a request that matches them all can be refused")
}

func TestGlobMatch(t *testing.T) {
	for _, c := range []struct {
		pattern, name string
		want          bool
	}{
		{"a", "a", true}, {"a", "ab", false}, {"*", "", true}, {"*", "a/b", true}, {"a*", "a", true}, {"a*", "b", false}, {"*b", "ab", true},
		{"a*b", "ab", true}, {"a*b*b", "ab", false}, {"a*b*b", "abb", true}, {"a*b*c", "axxbxxc", true}, {"a*b*c", "axxcxxb", false}, {"", "", true}, {"", "a", false},
		{"**", "x", true}, {"a?", "ab", false}, {"a?", "a?", true}, {"[a]", "a", false}, {"*aab", "aaab", true},
	} {
		if got := globMatch(c.pattern, c.name); got != c.want {
			t.Errorf("%q matches %q: %t", c.pattern, c.name, got)
		}
	}
}

func TestNearest(t *testing.T) {
	names := []string{"request.model", "request.method", "request.modalities", "tenant.id", "now"}
	for in, want := range map[string]string{
		"request.modle": "request.model", "reqest.model": "request.model", "request.methode": "request.method", "tennant.id": "tenant.id",
		"something.else": "", "nwo": "now", "n": "", "": "", strings.Repeat("x", 300): "",
	} {
		if got := nearest(in, names); got != want {
			t.Errorf("nearest to %q: %q, want %q", in, got, want)
		}
	}
}
