package policy

import (
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"testing"
)

const validations = `
  validations: [{ name: v, expression: "true" }]`

func TestLoadFiles(t *testing.T) {
	one := policyText("one", validations, "Deny")
	test := "apiVersion: sluice/v1alpha1\nkind: PolicyTest\nmetadata: { name: t }\nspec: { anything: [goes] }\n"
	s, err := Load(testConfig(), fsOf(map[string]string{
		"a.yaml": one, "deep/er/b.yml": "# a comment\n---\n---\n" + policyText("two", validations, "Deny") + "...\n# end\n",
		"deep/tests.yaml": test, "readme.md": "not yaml: [", "c.yaml.bak": "not: [",
	}))
	if err != nil {
		t.Fatal(err)
	}
	if len(s.policies) != 2 || len(s.live) != 2 {
		t.Errorf("%d policies and %d bindings, want 2 and 2", len(s.policies), len(s.live))
	}
}

func TestLoadErrorsNameEveryFault(t *testing.T) {
	_, err := Load(testConfig(), fsOf(map[string]string{
		"b.yaml": policyText("b", "\n  validations: [{ name: v, expression: request.strem }]", "Deny"),
		"a.yaml": policyText("a", "\n  validations: [{ name: v, expression: request.n }, { name: w, expression: tenant.tire }]", "Dny"),
	}))
	want := `a.yaml:6:40: AdmissionPolicy/a.spec.validations[0].expression: the result is int, it must be bool
a.yaml:6:76: AdmissionPolicy/a.spec.validations[1].expression: unknown name "tenant.tire"; did you mean "tenant.tier"?
a.yaml:11:34: AdmissionPolicyBinding/a-b.spec.actions[0]: unknown value "Dny"; did you mean "Deny"?: use Deny, Warn, Audit
b.yaml:6:40: AdmissionPolicy/b.spec.validations[0].expression: unknown name "request.strem"; did you mean "request.stream"?`
	if err == nil || err.Error() != want {
		t.Errorf("got:\n%v\nwant:\n%s", err, want)
	}
}

func TestLoadEmptySet(t *testing.T) {
	for _, files := range []map[string]string{{}, {"a.yaml": "# nothing\n"}, {"a.txt": "x"}} {
		_, err := Load(testConfig(), fsOf(files))
		if err == nil || err.Error() != "no policy was found: check the directory, or allow an empty set with policy.allowEmpty: true" {
			t.Errorf("%v: got %v", files, err)
		}
		cfg := testConfig()
		cfg.AllowEmpty = true
		s, err := Load(cfg, fsOf(files))
		if err != nil {
			t.Fatalf("%v: %v", files, err)
		}
		if d := s.Decide(t.Context(), testInput()); !d.Allow || len(d.Pools) != 3 || d.Class != "standard" || d.CacheIsolation != "tenant" {
			t.Errorf("an empty set decides %+v", d)
		}
	}
}

type brokenFS struct{ fs.FS }

func (brokenFS) Open(string) (fs.File, error) { return nil, errors.New("disk on fire") }

func TestLoadUnreadable(t *testing.T) {
	f := func(fsys fs.FS, files []string, want string) {
		t.Helper()
		_, err := LoadFiles(testConfig(), fsys, files)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q", err, want)
		}
	}
	f(brokenFS{}, []string{"x.yaml"}, "x.yaml: cannot read file: disk on fire")
	f(fsOf(nil), []string{"x.yaml"}, "x.yaml: cannot read file: open x.yaml: file does not exist")
	f(fsOf(map[string]string{"x.yaml": strings.Repeat("# padding\n", 120_000)}), []string{"x.yaml"}, "1200000 bytes, at most 1048576 are allowed: split it")
	f(fsOf(map[string]string{"x.yaml": "a: \xff\n"}), []string{"x.yaml"}, "x.yaml:1:1: the file is not UTF-8")
	if _, err := Load(testConfig(), brokenFS{}); err == nil || !strings.Contains(err.Error(), "cannot list the policy files: disk on fire") {
		t.Errorf("got %v", err)
	}
}

func TestLoadMaxima(t *testing.T) {
	var many strings.Builder
	for i := range maxPolicies + 1 {
		fmt.Fprintf(&many, "apiVersion: sluice/v1alpha1\nkind: AdmissionPolicy\nmetadata: { name: p%d }\nspec: { auditAnnotations: [{ key: k, valueExpression: \"'x'\" }] }\n---\n", i)
	}
	if _, err := load(testConfig(), many.String()); err == nil || err.Error() != "257 policies, at most 256 are allowed" {
		t.Errorf("got %v", err)
	}
	many.Reset()
	many.WriteString(policyText("p", validations, "Deny"))
	for i := range maxBindings {
		fmt.Fprintf(&many, "apiVersion: sluice/v1alpha1\nkind: AdmissionPolicyBinding\nmetadata: { name: b%d }\nspec: { policyName: p, actions: [Deny] }\n---\n", i)
	}
	if _, err := load(testConfig(), many.String()); err == nil || err.Error() != "1025 bindings, at most 1024 are allowed" {
		t.Errorf("got %v", err)
	}
}

// TestLoadWindowsText: line ends and a byte order mark do not matter.
func TestLoadWindowsText(t *testing.T) {
	text := policyText("p", "\n  validations:\n    - name: v\n      expression: |\n        request.stream\n          && request.strem", "Deny")
	_, err := load(testConfig(), "\ufeff"+strings.ReplaceAll(text, "\n", "\r\n"))
	want := `p.yaml:10:14: AdmissionPolicy/p.spec.validations[0].expression: unknown name "request.strem"; did you mean "request.stream"?`
	if err == nil || err.Error() != want {
		t.Errorf("got:\n%v\nwant:\n%s", err, want)
	}
}

// TestAcceptedDocuments: what looks odd and is allowed.
func TestAcceptedDocuments(t *testing.T) {
	for name, spec := range map[string]string{
		"unquoted true":       "\n  validations: [{ name: v, expression: true }]",
		"unquoted number":     "\n  limits: [{ name: l, unit: requests, window: 1m, limit: 10, key: [] }]",
		"counted repetition":  "\n  validations: [{ name: v, expression: \"request.model.matches('^a{2}$') || true\" }]",
		"global matches":      "\n  validations: [{ name: v, expression: \"matches(request.model, '^a{2}$') || true\" }]",
		"optional annotation": "\n  auditAnnotations: [{ key: k, valueExpression: \"request.stream ? optional.of('a') : optional.none()\" }]",
		"has on map keys":     "\n  validations: [{ name: v, expression: \"has(request.headers.host) || has(tenant.labels.env)\" }]",
		"comments everywhere": " # c\n  # c\n  validations: # c\n    # c\n    - name: v # c\n      expression: request.stream # c",
		"mixed format list":   "\n  validations: [{ name: v, expression: \"true\", messageExpression: \"'%s %d'.format([tenant.id, request.n])\" }]",
	} {
		t.Run(name, func(t *testing.T) { mustLoad(t, testConfig(), policyText("p", spec, "Deny")) })
	}
}

func TestConfigFaults(t *testing.T) {
	cfg := testConfig()
	cfg.Classes = []string{"high", "high", "Low"}
	cfg.DefaultClass = "hgh"
	cfg.DefaultIsolation = "all"
	cfg.DefaultMaxTokens = -1
	cfg.Models = map[string]Model{"m": {DefaultMaxTokens: -1}}
	cfg.Prices = map[string]Price{"m": {Input: -1}}
	cfg.Claims = map[string]string{"a-b": "int", "c": "bytes", "d": "list(list(int))"}
	cfg.Pools = []Pool{{Name: ""}, {Name: "x"}, {Name: "x"}}
	_, err := load(cfg, policyText("p", validations, "Deny"))
	want := `policy.claims: claim c: unknown type "bytes": use string, int, double, bool or list(T)
policy.claims: claim d: unknown type "list(list(int))": use string, int, double, bool or list of one
policy.claims: claim name "a-b" is no CEL identifier
policy.classes: class "Low" is not allowed: give each class once, as 1 to 63 of a-z, 0-9 and -
policy.classes: class "high" is not allowed: give each class once, as 1 to 63 of a-z, 0-9 and -
policy.defaultClass: "hgh" is no class; did you mean "high"?
policy.defaultIsolation: "all" is no scope: use none, tenant or principal
policy.defaultMaxTokens: -1 is below 1
policy.models: model "m": defaultMaxTokens -1 is below 0
policy.pools: a pool has no name
policy.pools: the pool "x" is given twice
policy.prices: model "m": a price is below 0`
	if err == nil || err.Error() != want {
		t.Errorf("got:\n%v\nwant:\n%s", err, want)
	}
}

func TestConfigIsCopied(t *testing.T) {
	cfg := testConfig()
	s := mustLoad(t, cfg, policyText("p", validations, "Deny"))
	cfg.Pools[0].Models[0] = "other"
	cfg.Pools[1].Name = "changed"
	if d := s.Decide(t.Context(), testInput()); strings.Join(d.Pools, " ") != "a b c" {
		t.Errorf("pools %v follow the caller's configuration", d.Pools)
	}
}

func TestRevision(t *testing.T) {
	base := policyText("p", `
  failurePolicy: Fail
  limits: [{ name: l, unit: requests, window: 1m, limit: 10, key: [tenant.id] }]`, "Deny")
	first := mustLoad(t, testConfig(), base).Revision()
	if !strings.HasPrefix(first, "sha256:") || len(first) != len("sha256:")+64 {
		t.Errorf("revision %q", first)
	}
	same := map[string]string{
		"comment":  "# hello\n" + base,
		"layout":   strings.Replace(base, "{ name: p }", "{\n    name: \"p\" }", 1),
		"quoting":  strings.Replace(base, "limit: 10", "limit: \"10\"", 1),
		"key":      strings.Replace(base, "[tenant.id]", "['tenant.id']", 1),
		"new file": "---\n" + base,
	}
	for name, text := range same {
		if got := mustLoad(t, testConfig(), text).Revision(); got != first {
			t.Errorf("%s changes the revision", name)
		}
	}
	swapped := strings.Split(base, "---\n")
	if got := mustLoad(t, testConfig(), swapped[1]+"---\n"+swapped[0]).Revision(); got != first {
		t.Error("the order of documents changes the revision")
	}
	differs := map[string]string{
		"expression": strings.Replace(base, "limit: 10", "limit: 11", 1),
		"action":     strings.Replace(base, "[Deny]", "[Warn]", 1),
		"name":       strings.ReplaceAll(base, "name: l", "name: k"),
	}
	for name, text := range differs {
		if mustLoad(t, testConfig(), text).Revision() == first {
			t.Errorf("another %s leaves the revision", name)
		}
	}
	cfg := testConfig()
	cfg.Claims = map[string]string{"clearance": "string"}
	if mustLoad(t, cfg, base).Revision() == first {
		t.Error("another claim type leaves the revision")
	}
}
