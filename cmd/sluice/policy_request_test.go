package main

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/sluicegate/sluice/policy"
)

// A key that a request names by its id alone brings its declared claims along, as it does in the gateway; what
// the request says of itself stands.
func TestExplainedKeyBringsItsClaims(t *testing.T) {
	dir := t.TempDir()
	write(t, dir, map[string]string{"tenants.yaml": `tenants:
  - id: break-glass
    keys:
      - { id: 7k2m9x4c0qpd, sha256: ` + strings.Repeat("ab", 32) + `, name: ada, claims: { incident: INC-1234, level: 3, other: x } }
`})
	l := &policyLoader{cfg: &Config{
		Tenants: TenantsConfig{File: filepath.Join(dir, "tenants.yaml")},
		Policy:  PolicyConfig{Claims: map[string]string{"incident": "string", "level": "int", "absent": "string"}},
	}}
	values := map[string]any{}
	if _, err := l.identity(&policy.RequestDoc{Values: map[string]any{"principal.key_id": "7k2m9x4c0qpd"}}, values); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]any{
		"principal.subject": "ada", "tenant.id": "break-glass",
		"principal.claims.incident": "INC-1234", "principal.claims.level": int64(3), "principal.claims.other": nil, "principal.claims.absent": nil,
	} {
		if values[name] != want {
			t.Errorf("%s is %v, want %v", name, values[name], want)
		}
	}
}

// An HTTP request is explained with the labels that the gateway would give it.
func TestExplainedLabels(t *testing.T) {
	dir := t.TempDir()
	write(t, dir, map[string]string{"tenants.yaml": `tenants:
  - id: acme
    contentLabels: [internal]
    keys:
      - { id: 7k2m9x4c0qpd, sha256: ` + strings.Repeat("ab", 32) + `, name: ada, claims: { labels: "phi secret" } }
      - { id: 8k2m9x4c0qpd, sha256: ` + strings.Repeat("cd", 32) + `, name: bob, claims: { labels: "No Label" } }
`})
	l := &policyLoader{now: scriptNow(), cfg: &Config{
		Tenants: TenantsConfig{File: filepath.Join(dir, "tenants.yaml")},
		Policy:  PolicyConfig{LabelPrincipals: []string{"key:7k2m9x4c0qpd"}}, Labels: LabelsConfig{Claim: "labels"},
		Models: []ModelConfig{{Name: "m", ContextLength: 100}},
	}}
	for _, c := range []struct{ name, caller, headers, want string }{
		{"a claim", "principal: { key_id: 7k2m9x4c0qpd }", "{}", "internal phi secret"},
		{"a claim and a header", "principal: { key_id: 7k2m9x4c0qpd }", "{ X-Sluice-Content-Labels: 'pii, internal' }", "internal phi pii secret"},
		{"a malformed header", "principal: { key_id: 7k2m9x4c0qpd }", "{ x-sluice-content-labels: 'PII' }", "error: a gateway refuses the request before any policy: header x-sluice-content-labels"},
		{"a malformed claim", "principal: { key_id: 8k2m9x4c0qpd }", "{}", "error: a gateway refuses the request before any policy: the credential's claim of content labels"},
		{"a header of a caller who is not listed", "tenant: { id: acme }", "{ x-sluice-content-labels: 'pii' }", "internal"},
		{"the document's own word", "principal: { key_id: 7k2m9x4c0qpd }\ncontent: { declared_labels: [own] }", "{ x-sluice-content-labels: 'pii' }", "own"},
	} {
		t.Run(c.name, func(t *testing.T) {
			file := filepath.Join(dir, "request.yaml")
			write(t, dir, map[string]string{"request.yaml": "http: { method: POST, path: /v1/chat/completions, headers: " + c.headers + ", body: { model: m, messages: [] } }\n" + c.caller + "\n"})
			in, err := l.request(t.Context(), file, "", nil)
			if err != nil {
				if prefix, is := strings.CutPrefix(c.want, "error: "); !is || !strings.Contains(err.Error(), prefix) {
					t.Errorf("got %v", err)
				}
				return
			}
			if got := strings.Join(in.DeclaredLabels, " "); got != c.want {
				t.Errorf("got %q, want %q", got, c.want)
			}
		})
	}
}
