package main

import (
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// What a gateway has decided can be explained by the id that the client got, and judged anew: its own
// policies change nothing, others what they say.
func TestToolsOnALiveLog(t *testing.T) {
	r := startReloading(t, unwatched, func(dir string) {
		editConfig(dir, "decisionLog: { path: decisions.jsonl, hashKeyFile: cache.key }\n")
	})
	ask := func(tenant string, more map[string]any) string {
		t.Helper()
		body := user("tell me of rivers")
		maps.Copy(body, more)
		got, err := r.tour.ask(t.Context(), tenant, body)
		if err != nil {
			t.Fatal(err)
		}
		return got.header.Get("x-sluice-decision-id")
	}
	tools := map[string]any{"tools": []any{map[string]any{"type": "function", "function": map[string]any{"name": "shell"}}}}
	allowed, denied := ask("acme", nil), ask("initech", tools)
	file := filepath.Join(r.d.dir, "decisions.jsonl")
	soon(t, "the records", stackPatience, func() bool {
		if _, err := os.Stat(file); err != nil {
			return false
		}
		list := readRecords(t, file)
		return !slices.ContainsFunc([]string{allowed, denied}, func(id string) bool {
			return !slices.ContainsFunc(list, func(rec record) bool { return rec.Type == "decision" && rec.ID == id })
		})
	})
	config, policies := filepath.Join(r.d.dir, "sluice.yaml"), filepath.Join(r.d.dir, "policies")
	run := func(want int, args ...string) string {
		t.Helper()
		var out, errs strings.Builder
		if code := execute(t.Context(), scriptNow, args, strings.NewReader(""), &out, &errs); code != want {
			t.Errorf("%v: exit code %d, want %d:\n%s%s", args, code, want, out.String(), errs.String())
		}
		return out.String()
	}
	text := run(exitFound, "policy", "explain", "-c", config, "--request", file, "--id", denied, policies)
	for _, part := range []string{"deny 403 Forbidden by tool-use/", `request.tool_names = ["shell"]`, r.status().Revision} {
		if !strings.Contains(text, part) {
			t.Errorf("the explanation lacks %s:\n%s", part, text)
		}
	}
	text = run(exitOK, "policy", "explain", "-c", config, "--request", file, "--id", allowed, policies)
	if !strings.HasPrefix(text, "allow\n") || strings.Contains(text, "not known:") {
		t.Errorf("the explanation of an allow:\n%s", text)
	}
	if text = run(exitOK, "policy", "replay", "-c", config, "--log", file, "--candidate", policies); !strings.Contains(text, "2 unchanged, 0 changed, 0 indeterminate") {
		t.Errorf("the same policies:\n%s", text)
	}
	stricter := t.TempDir()
	if err := os.WriteFile(filepath.Join(stricter, "p.yaml"), []byte(`
apiVersion: sluice/v1alpha1
kind: AdmissionPolicy
metadata: { name: only-initech }
spec: { validations: [{ name: tenant, expression: "tenant.id == 'initech'" }] }
---
apiVersion: sluice/v1alpha1
kind: AdmissionPolicyBinding
metadata: { name: only-initech-all }
spec: { policyName: only-initech, actions: [Deny] }
`), 0o600); err != nil {
		t.Fatal(err)
	}
	text = run(exitFound, "policy", "replay", "-c", config, "--log", file, "--candidate", stricter)
	for _, part := range []string{"allow to deny", "only-initech/tenant", allowed, "deny to allow", denied, "0 unchanged, 2 changed"} {
		if !strings.Contains(text, part) {
			t.Errorf("the replay lacks %s:\n%s", part, text)
		}
	}
}
