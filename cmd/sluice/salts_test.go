package main

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// What a pool is configured to salt reaches the policies.
func TestSaltedPoolsReachPolicies(t *testing.T) {
	cfg, _, err := LoadConfig("testdata/config/full.yaml")
	if err != nil {
		t.Fatal(err)
	}
	if got := policyConfig(cfg, nil, time.Now()).Pools[0].Salted; !slices.Equal(got, []string{"chat", "completion"}) {
		t.Errorf("got %v", got)
	}
}

// A configuration that isolates caches does not load before somebody has said of every pool whether its
// engines keep them apart, and check warns where nothing is left to serve a model.
func TestIsolationNeedsAWordOnPools(t *testing.T) {
	const given = "cacheSalt: [chat, completion], "
	for _, c := range []struct {
		name, salt, isolation, policy string
		want                          string // part of what check prints; "": neither error nor warning of it
		code                          int
	}{
		{"said", given, "tenant", "", "", exitOK},
		{"not said", "", "tenant", "", "pools[0].cacheSalt is missing from the configuration, should list the operations", exitFailed},
		{"said without a value", "cacheSalt: null, ", "tenant", "", "pools[0].cacheSalt is missing", exitFailed},
		{"not said, for principals", "", "principal", "", "pools[0].cacheSalt is missing", exitFailed},
		{"not said, and nothing isolates", "", "none", "", "", exitOK},
		{"not said, and a policy isolates", "", "none", isolating, "pools[0].cacheSalt is missing", exitFailed},
		{"every operation", `cacheSalt: ["*"], `, "tenant", "", "", exitOK},
		{"no operation", "cacheSalt: [], ", "tenant", "", `warning: no pool that serves "tiny" has chat or completion in its cacheSalt`, exitOK},
		{"one of two", "cacheSalt: [chat], ", "tenant", "", `warning: no pool that serves "tiny" has completion in its cacheSalt`, exitOK},
		{"another route that the pool offers", given + "endpoints: [chat, responses], ", "tenant", "", `warning: no pool that serves "tiny" has responses in its cacheSalt`, exitOK},
		{"a route that the pool doesn't offer", "cacheSalt: [chat], endpoints: [chat, tokenize], ", "tenant", "", "", exitOK},
		{"no operation, and nothing isolates", "cacheSalt: [], ", "none", "", "", exitOK},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := t.TempDir()
			if err := os.CopyFS(dir, os.DirFS("testdata/script/files")); err != nil {
				t.Fatal(err)
			}
			file := filepath.Join(dir, "sluice.yaml")
			edit(t, file, given, c.salt)
			edit(t, file, "cacheIsolation: { ", "cacheIsolation: { default: "+c.isolation+", ")
			if c.policy != "" {
				write(t, dir, map[string]string{"policies/apart.yaml": c.policy})
			}
			var out bytes.Buffer
			code := execute(t.Context(), scriptNow, []string{"check", "-c", file}, strings.NewReader(""), &out, &out)
			if code != c.code || !strings.Contains(out.String(), c.want) || c.want == "" && strings.Contains(out.String(), "in its cacheSalt") {
				t.Errorf("exit code %d, want %d and %q:\n%s", code, c.code, c.want, out.String())
			}
		})
	}
}
