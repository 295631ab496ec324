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
	if err := l.identity(&policy.RequestDoc{Values: map[string]any{"principal.key_id": "7k2m9x4c0qpd"}}, values); err != nil {
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
