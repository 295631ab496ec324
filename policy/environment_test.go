package policy

import (
	"slices"
	"strings"
	"testing"
)

// TestEnvironment: what is printed is what expressions meet: each variable
// reads, each function that a text can name is there, and no other library is.
func TestEnvironment(t *testing.T) {
	env, err := Environment(map[string]string{"level": "int"})
	if err != nil {
		t.Fatal(err)
	}
	config := testConfig()
	config.Claims = map[string]string{"level": "int"}
	for _, v := range env.Variables {
		if v.ReadableIn == "charge" || v.ReadableIn == "limit" {
			continue
		}
		mustLoad(t, config, policyText("p", "\n  validations: [{ name: v, expression: \"["+v.Name+"].size() == 1\" }]", "Deny"))
		if got := v.ClientText; got != slices.Contains([]string{"request.user", "request.session_id", "request.headers", "request.tool_names", "request.requested_model"}, v.Name) {
			t.Errorf("%s: written by the client: %t", v.Name, got)
		}
	}
	names := map[string][]string{}
	for _, f := range env.Functions {
		names[f.Name] = f.Overloads
		if len(f.Overloads) == 0 {
			t.Errorf("%s has no overload", f.Name)
		}
	}
	if got := strings.Join(names["startsWith"], ", "); got != "string.startsWith(string) -> bool" {
		t.Errorf("startsWith: %s", got)
	}
	for _, name := range []string{"join", "format", "cidr", "math.ceil", "sets.contains", "lists.range", "@in"} {
		if names[name] == nil {
			t.Errorf("%s is missing", name)
		}
	}
	for _, name := range []string{"base64.encode", "regex.replace", "proto.getExt"} {
		if names[name] != nil {
			t.Errorf("%s is there", name)
		}
	}
	for _, l := range env.Limits {
		if l.Value <= 0 {
			t.Errorf("limit %s is %d", l.Name, l.Value)
		}
	}
	if !slices.Contains(env.Macros, "exists_one") {
		t.Errorf("macros %v", env.Macros)
	}
	if _, err := Environment(map[string]string{"level": "uint"}); err == nil || !strings.Contains(err.Error(), `unknown type "uint"`) {
		t.Errorf("got %v", err)
	}
}
