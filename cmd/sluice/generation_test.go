package main

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sluicegate/sluice/policy"
	"github.com/sluicegate/sluice/tenancy/chargeback"
)

// changeLeaves calls f for every key of a configuration with the configuration in which that key alone has
// another value.
func changeLeaves(t *testing.T, load func() *Config, f func(path string, changed *Config)) {
	t.Helper()
	var paths []string
	var walk func(v reflect.Value, path string, only string)
	walk = func(v reflect.Value, path, only string) {
		switch {
		case v.Kind() == reflect.Struct:
			for sf, field := range v.Fields() {
				walk(field, joinPath(path, sf.Tag.Get("yaml")), only)
			}
			return
		case v.Kind() == reflect.Slice && v.Type().Elem().Kind() == reflect.Struct && v.Len() > 0:
			walk(v.Index(0), path+"[]", only)
			return
		case only == "":
			paths = append(paths, path)
			return
		case only != path:
			return
		}
		switch v.Kind() {
		case reflect.String:
			v.SetString(v.String() + "x")
		case reflect.Bool:
			v.SetBool(!v.Bool())
		case reflect.Int, reflect.Int64:
			v.SetInt(v.Int() + 1)
		case reflect.Float64:
			v.SetFloat(v.Float() + 1)
		case reflect.Slice:
			v.Set(reflect.Append(v, reflect.New(v.Type().Elem()).Elem()))
		case reflect.Map:
			changed := reflect.MakeMap(v.Type())
			changed.SetMapIndex(reflect.ValueOf("changed"), reflect.Zero(v.Type().Elem()))
			v.Set(changed)
		default:
			t.Fatalf("%s is of a kind that the test can't change: %v", path, v.Type())
		}
	}
	walk(reflect.ValueOf(load()).Elem(), "", "")
	for _, path := range paths {
		cfg := load()
		walk(reflect.ValueOf(cfg).Elem(), "", path)
		f(path, cfg)
	}
}

// Every key is either documented as one that a reload changes, or refused with its name.
func TestWhatAReloadChanges(t *testing.T) {
	text, err := os.ReadFile("../../docs/configuration.md")
	if err != nil {
		t.Fatal(err)
	}
	_, section, _ := strings.Cut(string(text), "These can be changed without a restart")
	section, _, _ = strings.Cut(section, "A change of any other key")
	var reloads []string
	for _, m := range regexp.MustCompile("`([a-zA-Z.*\\[\\]]+)`").FindAllStringSubmatch(section, -1) {
		reloads = append(reloads, m[1])
	}
	covers := func(pattern, path string) bool {
		prefix, all := strings.CutSuffix(pattern, "*")
		return pattern == path || all && strings.HasPrefix(path, prefix)
	}
	used := make(map[string]bool)
	load := func() *Config {
		cfg, _, err := LoadConfig("testdata/config/full.yaml")
		if err != nil {
			t.Fatal(err)
		}
		return cfg
	}
	changeLeaves(t, load, func(path string, changed *Config) {
		keys := needsRestart(load(), changed)
		documented := slices.ContainsFunc(reloads, func(pattern string) bool {
			if !covers(pattern, path) {
				return false
			}
			used[pattern] = true
			return true
		})
		switch {
		case documented && len(keys) > 0:
			t.Errorf("%s is documented as reloaded, but %v needs a restart", path, keys)
		case !documented && len(keys) != 1:
			t.Errorf("a change of %s needs a restart of %v, want of that key alone", path, keys)
		case !documented && strings.ReplaceAll(strings.ReplaceAll(keys[0], "[0]", "[]"), "[1]", "[]") != path:
			t.Errorf("a change of %s is named %s", path, keys[0])
		}
	})
	for _, pattern := range reloads {
		if !used[pattern] {
			t.Errorf("%s is documented as reloaded, but no key", pattern)
		}
	}
	longer := load()
	longer.Models = append(longer.Models, ModelConfig{Name: "more"})
	if keys := needsRestart(load(), longer); !slices.Equal(keys, []string{"models"}) {
		t.Errorf("one more model: %v", keys)
	}
}

// The next change of prices is the nearest beginning or end of one.
func TestNextPrice(t *testing.T) {
	prices, err := chargeback.ParsePrices("prices.yaml", []byte(`currency: EUR
prices:
  - { model: a, input: 1, output: 1, validFrom: 2026-01-01, validTo: 2026-03-01 }
  - { model: a, input: 2, output: 1, validFrom: 2026-03-01 }
  - { model: b, input: 2, output: 1, validTo: 2026-02-01 }
`))
	if err != nil {
		t.Fatal(err)
	}
	day := func(text string) time.Time {
		at, err := time.Parse(time.DateOnly, text)
		if err != nil {
			t.Fatal(err)
		}
		return at
	}
	for _, c := range []struct{ now, want string }{
		{"2025-06-01", "2026-01-01"}, {"2026-01-01", "2026-02-01"}, {"2026-02-01", "2026-03-01"},
	} {
		if got := prices.Next(day(c.now)); !got.Equal(day(c.want)) {
			t.Errorf("after %s: %v, want %s", c.now, got, c.want)
		}
	}
	if got := prices.Next(day("2026-03-01")); !got.IsZero() {
		t.Errorf("after the last: %v", got)
	}
	if got := (*chargeback.Prices)(nil).Next(day("2026-01-01")); !got.IsZero() {
		t.Errorf("without prices: %v", got)
	}
}

const isolating = `apiVersion: sluice/v1alpha1
kind: AdmissionPolicy
metadata: { name: isolate }
spec: { effects: [{ name: apart, cacheIsolation: tenant }] }
---
apiVersion: sluice/v1alpha1
kind: AdmissionPolicyBinding
metadata: { name: isolate }
spec: { policyName: isolate, actions: [Deny] }
`

// A configuration that isolates, by its default or by a policy in force, does not load without a key. Where
// nothing isolates, the salts of clients have a key all the same, of this process alone.
func TestIsolationNeedsAKey(t *testing.T) {
	for _, c := range []struct {
		name, policies, def, key string
		fails, spare             bool
	}{
		{"nothing isolates", "", "none", "", false, true},
		{"a policy isolates", isolating, "none", "", true, false},
		{"a policy isolates that no binding applies", strings.SplitAfter(isolating, "---\n")[0], "none", "", false, true},
		{"a policy isolates in a rehearsal", strings.Replace(isolating, "[Deny]", "[Audit]", 1), "none", "", false, true},
		{"a policy isolates, with a key", isolating, "none", "cache.key", false, false},
		{"the default isolates, with a key", "", "tenant", "cache.key", false, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := t.TempDir()
			if err := os.CopyFS(dir, os.DirFS("testdata/script/files")); err != nil {
				t.Fatal(err)
			}
			write(t, dir, map[string]string{"apart/policy.yaml": strings.TrimSuffix(c.policies, "---\n")})
			cfg, _, err := LoadConfig(filepath.Join(dir, "sluice.yaml"))
			if err != nil {
				t.Fatal(err)
			}
			cfg.Policy.Dir, cfg.Policy.AllowEmpty = filepath.Join(dir, "apart"), true
			cfg.CacheIsolation = CacheIsolationConfig{Default: c.def}
			if c.key != "" {
				cfg.CacheIsolation.KeyFile = filepath.Join(dir, c.key)
			}
			base, err := newLasting(cfg, time.Now(), nil)
			if err != nil {
				t.Fatal(err)
			}
			g, err := base.generation(cfg, nil, time.Now())
			if c.fails {
				if err == nil || !strings.Contains(err.Error(), "cacheIsolation.keyFile is missing") {
					t.Fatalf("got %v", err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if len(g.state.CacheKey) < minKeyBytes || c.spare != reflect.DeepEqual(g.state.CacheKey, base.spareKey) {
				t.Errorf("the key has %d bytes, spare %v", len(g.state.CacheKey), reflect.DeepEqual(g.state.CacheKey, base.spareKey))
			}
		})
	}
}

// Types that pass the configuration's check are those that policies know, and the other way round.
func TestClaimTypes(t *testing.T) {
	for _, typ := range []string{
		"string", "int", "double", "bool", "list(string)", "list(int)", "list(double)", "list(bool)",
		"uint", "bytes", "duration", "timestamp", "list(bytes)", "list(string", "string)", "list", "list(list(string))", "dyn", "map(string, string)",
	} {
		_, err := policy.Load(policy.Config{AllowEmpty: true, Claims: map[string]string{"c": typ}}, os.DirFS(t.TempDir()))
		if known := err == nil; known != claimTypePattern.MatchString(typ) {
			t.Errorf("%s: known to policies: %v, accepted: %v", typ, known, !known)
		}
	}
}

// Whoever asks for a scan that there is not is told.
func TestPoliciesWithoutDetectors(t *testing.T) {
	dir := t.TempDir()
	if err := os.CopyFS(dir, os.DirFS("testdata/script/files")); err != nil {
		t.Fatal(err)
	}
	edit(t, filepath.Join(dir, "tenants.yaml"), "id: acme", "id: globex")
	write(t, dir, map[string]string{"policies/content.yaml": noCards})
	check := func() string {
		var out bytes.Buffer
		if code := execute(t.Context(), scriptNow, []string{"check", "-c", filepath.Join(dir, "sluice.yaml")}, strings.NewReader(""), &out, &out); code != exitOK {
			t.Fatalf("exit code %d:\n%s", code, out.String())
		}
		return out.String()
	}
	if got := check(); !strings.Contains(got, "labels: warning: no detector is configured") {
		t.Errorf("got\n%s", got)
	}
	editConfig(dir, "labels: { detectors: { email: pii } }\n")
	if got := check(); strings.Contains(got, "no detector is configured") {
		t.Errorf("with a detector: got\n%s", got)
	}
}

// A load that fails names everything that is wrong, in all files.
func TestGenerationListsAllErrors(t *testing.T) {
	cfg, _, err := LoadConfig("testdata/script/files/sluice.yaml")
	if err != nil {
		t.Fatal(err)
	}
	dir := "testdata/script/files"
	cfg.Tenants.File, cfg.Prices.File, cfg.Policy.Dir = filepath.Join(dir, "bad-tenants.yaml"), filepath.Join(dir, "bad-prices.yaml"), filepath.Join(dir, "bad-policies")
	base, err := newLasting(cfg, time.Now(), nil)
	if err != nil {
		t.Fatal(err)
	}
	_, err = base.generation(cfg, nil, time.Now())
	for _, file := range []string{"bad-tenants.yaml:", "bad-prices.yaml:", "typo.yaml:"} {
		if err == nil || !strings.Contains(err.Error(), file) {
			t.Errorf("the errors lack %s: %v", file, err)
		}
	}
	if errors.Is(err, errUnstable) {
		t.Error("files that stay the same count as changing")
	}
}
