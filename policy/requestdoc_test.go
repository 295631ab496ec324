package policy

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
)

func TestReadRequest(t *testing.T) {
	read := func(text string) (*RequestDoc, error) {
		return ReadRequest(fsOf(map[string]string{"r.yaml": text}), "r.yaml", map[string]string{"level": "int"})
	}
	values := func(d *RequestDoc) string {
		var out []string
		for _, k := range slices.Sorted(maps.Keys(d.Values)) {
			out = append(out, fmt.Sprintf("%s=%v", k, d.Values[k]))
		}
		return strings.Join(out, " ")
	}
	f := func(text, want string) *RequestDoc {
		t.Helper()
		d, err := read(text)
		if err != nil {
			t.Fatal(err)
		}
		if got := values(d); got != want {
			t.Errorf("%s: got %s, want %s", text, got, want)
		}
		return d
	}
	f("input: { request: { n: 2, user: null }, tenant: { id: a } }", "request.n=2 request.user=<nil> tenant.id=a")
	f("request: { tool_names: [x] }\nprincipal: { claims: { level: 3 } }", "principal.claims.level=3 request.tool_names=[x]")
	f(`{"content":{"labels":["pii"]},"now":"2026-03-10T12:00:00Z"}`, "content.labels=[pii] now=2026-03-10 12:00:00 +0000 UTC")
	h := f("http: { path: /v1/models, method: GET }", "").HTTP
	if h.Method != "GET" || h.Path != "/v1/models" || h.Body != nil {
		t.Errorf("%+v", h)
	}
	h = f("http:\n  path: /v1/chat/completions\n  headers: { x-app: demo }\n  body:\n    model: m\n    n: 2\n    messages: [{ role: user, content: hello }]\n", "").HTTP
	if h.Method != "POST" || h.Headers["x-app"] != "demo" || string(h.Body) != `{"messages":[{"content":"hello","role":"user"}],"model":"m","n":2}` || h.At.Line != 5 {
		t.Errorf("%+v %s", h, h.Body)
	}
	h = f("http:\n  path: /x\n  body: |\n    {\"model\": \"m\"}\n", "").HTTP
	if string(h.Body) != "{\"model\": \"m\"}\n" {
		t.Errorf("%q", h.Body)
	}
	fails := func(text, want string) {
		t.Helper()
		_, err := read(text)
		var le *LoadError
		if !errors.As(err, &le) || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want %s", text, err, want)
		}
	}
	fails("request: { modle: m }", `r.yaml:1:12: request: there is no variable "request.modle"; did you mean "request.model"?`)
	fails("requests: {}", `unknown field "requests"; did you mean "request"?`)
	fails("http: { method: GET }", "field path is missing")
	fails("request: {}\n---\nrequest: {}\n", "the file has 2 documents, should have one request")
	fails("", "the file has 0 documents")
	fails("[]", "expected a mapping, found a list")
}

// FuzzReadRequest: no text makes the reader panic.
func FuzzReadRequest(f *testing.F) {
	f.Add("http: { path: /x, body: { a: [1, {b: .inf}] } }\ninput: { request: { n: 1 } }")
	f.Add("now: 2026\nprincipal: { claims: { level: [] } }")
	f.Fuzz(func(t *testing.T, text string) {
		_, err := ReadRequest(fsOf(map[string]string{"r.yaml": text}), "r.yaml", map[string]string{"level": "int"})
		var le *LoadError
		if err != nil && !errors.As(err, &le) {
			t.Errorf("%T", err)
		}
	})
}
