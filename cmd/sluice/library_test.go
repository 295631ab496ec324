package main

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sluicegate/sluice/policies"
	"github.com/sluicegate/sluice/tenancy/authn"
)

// libraryTenants are the tenants of TestLibraryInForce by the name of their
// caller: break-glass has two.
var libraryTenants = []struct {
	caller, tenant string
	fields         []string
	groups         []string
	claims         map[string]any
}{
	{caller: "acme", tenant: "acme", fields: []string{"team: search", "tier: gold", "expose: { worker: true }"}},
	{caller: "globex", tenant: "globex", fields: []string{"team: support", "tier: silver", "labels: { workload: trickle, tools: allowed }"}},
	{caller: "initech", tenant: "initech", fields: []string{"team: interns", "tier: bronze"}},
	{caller: "ada", tenant: "break-glass", fields: []string{"tier: gold"}, groups: []string{"on-call"}, claims: map[string]any{"incident": "INC-1234"}},
	{caller: "bob", tenant: "break-glass", groups: []string{"on-call"}},
}

// library puts the whole policy library in force, with the demo's model and
// teams in the bindings, and returns the callers' credentials.
func library(t *testing.T, cfg *Config) map[string]string {
	t.Helper()
	dir := filepath.Join(filepath.Dir(cfg.Tenants.File), "library")
	if err := os.CopyFS(dir, policies.FS); err != nil {
		t.Fatal(err)
	}
	for file, change := range map[string]*strings.Replacer{
		"model-allowlist/binding.yaml": strings.NewReplacer("qwen3-32b: search records", demoModel+": search support"),
		"budgets/binding.yaml":         strings.NewReplacer("records:", "support:", "campus: 20000000", "interns: 20000000"),
	} {
		text, err := os.ReadFile(filepath.Join(dir, file))
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, file), []byte(change.Replace(string(text))), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	cfg.Labels.Detectors = map[string]string{"payment-card": "pii"}
	cfg.Policy.Dir, cfg.Policy.Claims = dir, map[string]string{"incident": "string"}
	for i := range cfg.Pools {
		cfg.Pools[i].Labels = map[string]string{"zone": "eu"}
	}
	text, keys, last := []byte("tenants:\n"), map[string]string{}, ""
	for _, c := range libraryTenants {
		key, err := authn.NewKey()
		if err != nil {
			t.Fatal(err)
		}
		key.Name, key.Groups, key.Claims = c.caller, c.groups, c.claims
		keys[c.caller] = key.Reveal()
		if c.tenant != last {
			text = fmt.Appendf(text, "  - id: %s\n", c.tenant)
			for _, field := range c.fields {
				text = fmt.Appendf(text, "    %s\n", field)
			}
			text = append(text, "    keys:\n"...)
		}
		text, last = key.AppendYAML(text, 6), c.tenant
	}
	if err := os.WriteFile(cfg.Tenants.File, text, 0o600); err != nil {
		t.Fatal(err)
	}
	return keys
}

// TestLibraryInForce runs the whole policy library in a gateway and asks over
// HTTP, since its own tests end where requests, credentials and time zones
// become variables.
func TestLibraryInForce(t *testing.T) {
	var keys map[string]string
	d, a := startStack(t, func(cfg *Config) { keys = library(t, cfg) })
	d.keys = keys
	tour := newTour(d, a, io.Discard)
	defer tour.client.CloseIdleConnections()
	with := func(body map[string]any, name string, value any) map[string]any {
		body[name] = value
		return body
	}
	card := "charge 4111 1111 1111 1111 for the room"
	search := []any{map[string]any{"type": "function", "function": map[string]any{"name": "search"}}}
	nameless := []any{map[string]any{"type": "custom", "custom": map[string]any{"name": "shell"}}}
	for _, c := range []struct {
		name, caller string
		body         map[string]any
		status       int
		says         string
		worker       string
	}{
		{"an ordinary request", "acme", user("hello"), 200, "", "general-"},
		{"a number of a card", "acme", user(card), 200, "", "restricted-1"},
		{"a number that is none", "acme", user(strings.ReplaceAll(card, "1111 f", "1112 f")), 200, "", "general-"},
		{"a number of a card beside a tool", "globex", with(user(card), "tools", search), 403, "tools are not allowed with data labelled pii", ""},
		{"a prompt beyond the class", "acme", user(words(1, 12000)), 400, "limit max-context/context", ""},
		{"a tool without a name", "acme", with(user("hello"), "tools", nameless), 403, "this tenant may not use tools", ""},
		{"a team without the model", "initech", user("hello"), 403, "team interns may not use model " + demoModel, ""},
		{"batch work in one of its slots", "globex", with(user("hello"), "stream", true), 200, "", ""},
		{"an emergency", "ada", with(user("hello"), "stream", true), 200, "", ""},
		{"a key without an incident", "bob", user("hello"), 403, "the credential names no incident", ""},
	} {
		got, err := tour.ask(t.Context(), c.caller, c.body)
		if err != nil {
			t.Fatalf("%s: %v", c.name, err)
		}
		if got.status != c.status || !bytes.Contains(got.body, []byte(c.says)) {
			t.Errorf("%s: %d %s; want %d with %q", c.name, got.status, got.body, c.status, c.says)
		}
		if worker := got.worker(); c.worker != "" && !strings.HasPrefix(worker, c.worker) {
			t.Errorf("%s: served by %q, want %s", c.name, worker, c.worker)
		}
		// The limit of the context holds nothing: the tier's own limit is shown.
		if limit := got.header.Get("x-ratelimit-limit-tokens"); c.caller == "acme" && c.status == 200 && limit != "2000000" {
			t.Errorf("%s: the answer shows a limit of %q tokens", c.name, limit)
		}
	}
	for _, line := range []string{
		`sluice_ttft_seconds_count{class="batch",model="demo-chat",pool="general"} 1`,
		`sluice_ttft_seconds_count{class="critical",model="demo-chat",pool="general"} 1`,
	} {
		soon(t, "the metrics to have "+line, stackPatience, func() bool { return strings.Contains(metricsText(t, a), "\n"+line+"\n") })
	}
}
