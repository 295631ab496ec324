package authn

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/sluicegate/sluice/tenancy"
	"github.com/sluicegate/sluice/tenancy/strictyaml"
)

var noon = time.Date(2026, 3, 10, 12, 0, 0, 0, time.UTC)

// secretA and secretB are well-formed and belong to nobody.
const (
	secretA = "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA"
	secretB = "b_-bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb"
)

func digest(secret string) string {
	sum := sha256.Sum256([]byte(secret))
	return hex.EncodeToString(sum[:])
}

func sample() string {
	return `# who may call
tenants:
  - id: acme
    team: search
    tier: gold
    labels: { env: prod, zone: eu }
    contentLabels: [internal]
    models: ["qwen-*", llama]
    expose: { worker: true, policy: true }
    keys:
      - id: ka1
        sha256: ` + digest(secretA) + `
        name: ci of search
        groups: [devs, batch]
        scopes: [chat]
        claims: { level: 3, ratio: 0.5, admin: false, regions: [eu, us] }
        created: 2026-01-01
        expires: 2026-04-01T00:00:00Z
  - id: globex
    disabled: true
    keys:
      - { id: kb2, sha256: ` + digest(secretB) + ` }
      - { id: kc3, sha256: ` + digest("c"+secretA[1:]) + `, disabled: true }
  - id: nokeys
`
}

func load(t *testing.T, text string) *Directory {
	t.Helper()
	d, err := Load("tenants.yaml", []byte(text))
	if err != nil {
		t.Fatalf("Load: %v", err)
	}
	return d
}

func TestIdentify(t *testing.T) {
	d := load(t, sample())
	got, err := d.IdentifyKey([]byte("slk_ka1_"+secretA), noon)
	if err != nil {
		t.Fatal(err)
	}
	want := &tenancy.Principal{
		Kind: tenancy.KindAPIKey, ID: "key:ka1", KeyID: "ka1", Subject: "ci of search",
		Groups: []string{"devs", "batch"}, Scopes: []string{"chat"},
		Claims:    map[string]any{"level": int64(3), "ratio": 0.5, "admin": false, "regions": []any{"eu", "us"}},
		ExpiresAt: time.Date(2026, 4, 1, 0, 0, 0, 0, time.UTC),
		Tenant: &tenancy.Tenant{
			ID: "acme", Team: "search", Tier: "gold", Labels: map[string]string{"env": "prod", "zone": "eu"},
			ContentLabels: []string{"internal"}, Models: []string{"qwen-*", "llama"},
			Expose: tenancy.Expose{Worker: true, Policy: true},
		},
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("principal %+v tenant %+v\nwant %+v tenant %+v", got, got.Tenant, want, want.Tenant)
	}
	got, err = d.IdentifyKey([]byte("slk_kb2_"+secretB), noon)
	if err != nil || got.Tenant.ID != "globex" || !got.Tenant.Disabled {
		t.Errorf("key of a disabled tenant: %+v, %v", got, err)
	}
	if len(d.Tenants()) != 3 || len(d.Keys()) != 3 || d.Tenant("acme").Team != "search" || d.Tenant("nobody") != nil {
		t.Errorf("tenants %v, keys %v", d.Tenants(), d.Keys())
	}
}

func TestIdentifyRefuses(t *testing.T) {
	d := load(t, sample())
	f := func(name, credential string, now time.Time, want error) {
		t.Helper()
		p, err := d.IdentifyKey([]byte(credential), now)
		if p != nil || !errors.Is(err, want) {
			t.Errorf("%s: %v, %v; want %v", name, p, err, want)
		}
		if err != nil && len(credential) > 0 && strings.Contains(err.Error(), credential) {
			t.Errorf("%s: the error shows the credential", name)
		}
	}
	expiry := time.Date(2026, 4, 1, 0, 0, 0, 0, time.UTC)
	f("at expiry", "slk_ka1_"+secretA, expiry, ErrExpired)
	f("disabled key", "slk_kc3_c"+secretA[1:], noon, ErrRevoked)
	f("disabled key, wrong secret", "slk_kc3_"+secretB, noon, ErrUnknown)
	f("expired key, wrong secret", "slk_ka1_"+secretB, expiry, ErrUnknown)
	f("wrong secret", "slk_ka1_"+secretB, noon, ErrUnknown)
	f("other key's secret", "slk_kb2_"+secretA, noon, ErrUnknown)
	f("unknown id", "slk_zz9_"+secretA, noon, ErrUnknown)
	f("empty", "", noon, ErrUnknown)
	f("prefix alone", "slk_", noon, ErrUnknown)
	f("no secret", "slk_ka1_", noon, ErrUnknown)
	f("no id", "slk__"+secretA, noon, ErrUnknown)
	f("upper-case prefix", "SLK_ka1_"+secretA, noon, ErrUnknown)
	f("upper-case id", "slk_KA1_"+secretA, noon, ErrUnknown)
	f("short secret", "slk_ka1_"+secretA[1:], noon, ErrUnknown)
	f("long secret", "slk_ka1_"+secretA+"A", noon, ErrUnknown)
	f("space before", " slk_ka1_"+secretA, noon, ErrUnknown)
	f("line break after", "slk_ka1_"+secretA+"\n", noon, ErrUnknown)
	f("NUL inside", "slk_ka1_"+secretA[:42]+"\x00", noon, ErrUnknown)
	f("standard base64", "slk_ka1_"+secretA[:42]+"+", noon, ErrUnknown)
	f("a JWT", "eyJhbGciOiJub25lIn0.e30.", noon, ErrUnknown)
	f("a megabyte", "slk_ka1_"+strings.Repeat("A", 1<<20), noon, ErrUnknown)
	if _, err := d.IdentifyKey([]byte("slk_ka1_"+secretA), expiry.Add(-1)); err != nil {
		t.Errorf("just before expiry: %v", err)
	}
	if _, err := load(t, "tenants: []\n").IdentifyKey([]byte("slk_ka1_"+secretA), noon); !errors.Is(err, ErrUnknown) {
		t.Errorf("empty directory: %v", err)
	}
	// The hash of the stand-in is all zeros; no credential may match it.
	if d.nobody.principal != nil {
		t.Error("the stand-in for unknown ids has a principal")
	}
}

// badFiles are written for this test; each is a small tenants file with one
// mistake and the exact message.
func TestBadFiles(t *testing.T) {
	f := func(text string, want ...string) {
		t.Helper()
		_, err := Load("t.yaml", []byte(text))
		if err == nil {
			t.Errorf("loaded:\n%s", text)
			return
		}
		got := strings.Split(err.Error(), "\n")
		for i := range want {
			want[i] = "t.yaml:" + want[i]
		}
		if !reflect.DeepEqual(got, want) {
			t.Errorf("of\n%s\ngot  %q\nwant %q", text, got, want)
		}
	}
	h := digest(secretA)
	f("", "1:1: the file is empty; it should hold a `tenants:` list")
	f("# nothing\n", "1:1: the file is empty; it should hold a `tenants:` list")
	f("\xff", "1:1: the file is not UTF-8 text")
	f("- a\n", "1:1: the file should be a mapping, not a list")
	f("tenant: []\n", "1:1: unknown key \"tenant\" in the file; did you mean \"tenants\"?")
	f("tenants: x\n", "1:10: tenants should be a list, not text")
	f("tenants:\n  - id: [\n", "2:9: not valid YAML: sequence end token ']' not found")
	f("tenants: []\n---\ntenants: []\n", "3:1: a second document; put all tenants under one `tenants:` list")
	f("tenants:\n  - acme\n", "2:5: a tenant should be a mapping, not text")
	f("tenants:\n  - team: x\n", "2:5: a tenant has no id")
	f("tenants:\n  - id: 12\n", "2:9: id should be text, not a number; put it in quotes")
	f("tenants:\n  - id: ''\n", "2:9: a tenant's id should be 1 to 63 letters, digits, dots, underscores and hyphens, starting with a letter or digit")
	f("tenants:\n  - id: ../x\n", "2:9: a tenant's id should be 1 to 63 letters, digits, dots, underscores and hyphens, starting with a letter or digit")
	f("tenants:\n  - id: a\n  - id: b\n  - id: a\n", "4:9: this tenant id is used twice, first in line 2")
	f("tenants:\n  - id: a\n    id: b\n", "3:5: key \"id\" appears twice in a tenant, first in line 2")
	f("tenants:\n  - id: a\n    teir: gold\n", "3:5: unknown key \"teir\" in a tenant; did you mean \"tier\"?")
	f("tenants:\n  - id: a\n    quota: 1\n", "3:5: unknown key \"quota\" in a tenant; known keys are contentLabels, disabled, expose, id, keys, labels, models, team, tier, weight")
	f("tenants:\n  - id: a\n    disabled: \"yes\"\n", "3:15: disabled should be true or false, not text")
	f("tenants:\n  - id: a\n    tier: true\n", "3:11: tier should be text, not true or false; put it in quotes")
	f("tenants:\n  - id: a\n    weight: heavy\n", "3:13: weight should be a finite number, not text")
	f("tenants:\n  - id: a\n    weight: 0\n", "3:13: weight should be between 0.01 and 100; 1 is what a tenant without it has")
	f("tenants:\n  - id: a\n    weight: .nan\n", "3:13: weight should be a finite number, not a number")
	f("tenants:\n  - id: a\n    weight: 100.5\n", "3:13: weight should be between 0.01 and 100; 1 is what a tenant without it has")
	f("tenants:\n  - id: a\n    tier:\n", "3:11: tier should be text, not nothing")
	f("tenants:\n  - id: a\n    labels: [x]\n", "3:13: labels should be a mapping, not a list")
	f("tenants:\n  - id: a\n    labels: { env: 1 }\n", "3:20: the value of a label should be text, not a number; put it in quotes")
	f("tenants:\n  - id: a\n    contentLabels: [PII]\n", "3:20: a content label should be lower-case letters, digits and inner hyphens")
	f("tenants:\n  - id: a\n    models: ['[']\n", "3:14: an entry of models is no usable glob: write a name, or a pattern like qwen-*")
	f("tenants:\n  - id: a\n    models: []\n", "3:13: models lists nothing; leave it out to allow all models, or set disabled to refuse the tenant")
	f("tenants:\n  - id: a\n    expose: { workers: true }\n", "3:15: unknown key \"workers\" in expose; did you mean \"worker\"?")
	f("tenants:\n  - id: a\n    team: &x b\n", "3:11: team should be text, not an anchor, which is not allowed here")
	f("tenants:\n  - id: a\n    team: !!str b\n", "3:11: team should be text, not a tag, which is not allowed here")
	f("tenants:\n  - id: a\n    keys: {}\n", "3:11: keys should be a list, not a mapping")
	key := func(fields string) string { return "tenants:\n  - id: a\n    keys:\n      - { " + fields + " }\n" }
	f(key("id: k1"), "4:9: a key has no sha256; `sluice keys create` makes one")
	f(key("sha256: "+h), "4:9: a key has no id")
	f(key("id: K1, sha256: "+h), "4:15: a key's id should be 1 to 32 lower-case letters and digits, the part between the underscores of the key")
	f(key("id: k1, sha256: "+h[1:]), "4:27: sha256 should be 64 lower-case hexadecimal digits, the digest of the key's secret; never put the secret itself here")
	f(key("id: k1, sha256: "+secretA), "4:27: sha256 should be 64 lower-case hexadecimal digits, the digest of the key's secret; never put the secret itself here")
	f(key("id: k1, sha256: "+h+", expires: soon"), "4:102: expires should be a date like 2027-01-31 or a time like 2027-01-31T12:00:00Z")
	f(key("id: k1, sha256: "+h+", expires: 2027"), "4:102: expires should be a date or time, not a number")
	f(key("id: k1, sha256: "+h+", groups: [1]"), "4:102: an entry of groups should be text, not a number; put it in quotes")
	f(key("id: k1, sha256: "+h+", claims: { a: { b: 1 } }"), "4:106: a claim should be text, a number, true, false, or a list of those, not a mapping")
	f(key("id: k1, sha256: "+h+", slk_k1_"+secretA+": 1"), "4:93: unknown key (not shown) in a key; known keys are claims, created, disabled, expires, groups, id, models, name, operations, rotatedFrom, scopes, sha256")
	f("tenants:\n  - id: a\n    keys:\n      - { id: k1, sha256: "+h+" }\n      - { id: k1, sha256: "+h+" }\n",
		"5:15: this key id is used twice, first in line 4", "5:27: this secret is used twice, first in line 4")
	f("tenants:\n  - id: a\n    keys:\n      - { id: k1, sha256: "+h+", groups: ["+strings.Repeat("g, ", 129)+"] }\n",
		"4:101: groups has 129 entries, at most 128 are allowed")
}

func TestWeights(t *testing.T) {
	d := load(t, "tenants:\n  - { id: a, weight: 2 }\n  - { id: b, weight: 0.25 }\n  - { id: c }\n  - { id: d, weight: 100 }\n")
	for id, want := range map[string]float64{"a": 2, "b": 0.25, "c": 0, "d": 100} {
		if got := d.Tenant(id).Weight; got != want {
			t.Errorf("%s has weight %v, want %v", id, got, want)
		}
	}
}

func TestErrorsAreBounded(t *testing.T) {
	text := "tenants:\n" + strings.Repeat("  - {}\n", 200)
	_, err := Load("t.yaml", []byte(text))
	var le *strictyaml.Error
	if !errors.As(err, &le) || len(le.Lines()) != strictyaml.MaxProblems+1 || le.Lines()[strictyaml.MaxProblems] != "t.yaml: 150 more problems" {
		t.Errorf("got %v", err)
	}
}

func TestLoadFile(t *testing.T) {
	dir := t.TempDir()
	if _, err := LoadFile(filepath.Join(dir, "none.yaml")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("missing file: %v", err)
	}
	path := filepath.Join(dir, "tenants.yaml")
	if err := os.WriteFile(path, []byte("tenants:\n  - idd: a\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	_, err := LoadFile(path)
	if err == nil || !strings.HasPrefix(err.Error(), path+":2:5: ") {
		t.Errorf("bad file: %v", err)
	}
}

func TestIdentifyDoesNotAllocate(t *testing.T) {
	d := load(t, sample())
	for _, credential := range []string{"slk_ka1_" + secretA, "slk_zz9_" + secretA, "nonsense"} {
		raw := []byte(credential)
		if got := testing.AllocsPerRun(100, func() { _, _ = d.IdentifyKey(raw, noon) }); got != 0 {
			t.Errorf("%v allocations", got)
		}
	}
}

func BenchmarkIdentify(b *testing.B) {
	var text strings.Builder
	text.WriteString("tenants:\n  - id: a\n    keys:\n")
	for i := range 10_000 {
		fmt.Fprintf(&text, "      - { id: k%d, sha256: %s }\n", i, digest(fmt.Sprint(i)))
	}
	d, err := Load("t.yaml", []byte(text.String()))
	if err != nil {
		b.Fatal(err)
	}
	credential := []byte("slk_k77_" + secretA)
	b.ReportAllocs()
	for b.Loop() {
		_, _ = d.IdentifyKey(credential, noon)
	}
}
