package gateway

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/sluicegate/sluice/gateway/gatewaytest"
)

// corsOf is what an answer says of CORS.
func corsOf(h http.Header) map[string]string {
	out := make(map[string]string)
	for name, values := range h {
		if strings.HasPrefix(name, "Access-Control-") || name == "Vary" {
			out[name] = strings.Join(values, "; ")
		}
	}
	return out
}

// TestCORSOff: nothing of it is in any answer.
func TestCORSOff(t *testing.T) {
	worker := gatewaytest.NewWorker(t, gatewaytest.Chat("a"))
	r := newRig(t, []string{worker.URL()})
	for _, c := range []struct{ method, path, body string }{
		{"OPTIONS", "/v1/chat/completions", ""}, {"POST", "/v1/chat/completions", chatBody}, {"GET", "/v1/models", ""}, {"GET", "/nowhere", ""},
	} {
		client := r.dial()
		client.Send(c.method, c.path, c.body, "Origin: https://app.example", "Access-Control-Request-Method: POST", "Authorization: Bearer "+goodKey)
		if resp, _ := client.Answer(); len(corsOf(resp.Header)) > 0 {
			t.Errorf("%s %s: %v", c.method, c.path, corsOf(resp.Header))
		}
	}
}

// TestCORS: an origin that is allowed, to the letter, may call and read every answer, errors included. Others
// are served like any client, and their browsers keep the answer from them.
func TestCORS(t *testing.T) {
	worker := gatewaytest.NewWorker(t)
	r := newRig(t, []string{worker.URL()}, withConfig(func(c *Config) {
		c.CORS = CORS{Origins: []string{"https://app.example", "http://localhost:3000"}, MaxAge: 10 * time.Minute}
	}))
	ask := func(method, path, body string, header ...string) *http.Response {
		t.Helper()
		worker.Script(gatewaytest.Chat("a"))
		client := r.dial()
		client.Send(method, path, body, header...)
		resp, _ := client.Answer()
		return resp
	}
	const key = "Authorization: Bearer " + goodKey
	for _, c := range []struct {
		name, method, path, body string
		header                   []string
		status                   int
		origin                   string // that is allowed; empty: none
	}{
		{"chat", "POST", "/v1/chat/completions", chatBody, []string{key, "Origin: https://app.example"}, 200, "https://app.example"},
		{"stream", "POST", "/v1/chat/completions", streamBody, []string{key, "Origin: http://localhost:3000"}, 200, "http://localhost:3000"},
		{"no credential", "POST", "/v1/chat/completions", chatBody, []string{"Origin: https://app.example"}, 401, "https://app.example"},
		{"no such route", "GET", "/nowhere", "", []string{"Origin: https://app.example"}, 404, "https://app.example"},
		{"bad body", "POST", "/v1/chat/completions", "{", []string{key, "Origin: https://app.example"}, 400, "https://app.example"},
		{"no origin", "GET", "/v1/models", "", []string{key}, 200, ""},
		{"another origin", "GET", "/v1/models", "", []string{key, "Origin: https://evil.example"}, 200, ""},
		{"another scheme", "GET", "/v1/models", "", []string{key, "Origin: http://app.example"}, 200, ""},
		{"another port", "GET", "/v1/models", "", []string{key, "Origin: https://app.example:8443"}, 200, ""},
		{"longer", "GET", "/v1/models", "", []string{key, "Origin: https://app.example.evil.example"}, 200, ""},
		{"another case", "GET", "/v1/models", "", []string{key, "Origin: https://APP.example"}, 200, ""},
		{"null", "GET", "/v1/models", "", []string{key, "Origin: null"}, 200, ""},
		{"two", "GET", "/v1/models", "", []string{key, "Origin: https://app.example", "Origin: https://app.example"}, 200, ""},
	} {
		resp := ask(c.method, c.path, c.body, c.header...)
		got := corsOf(resp.Header)
		if resp.StatusCode != c.status || got["Access-Control-Allow-Origin"] != c.origin || got["Vary"] != "Origin" {
			t.Errorf("%s: %d %v", c.name, resp.StatusCode, got)
		}
		if (c.origin != "") != (got["Access-Control-Expose-Headers"] != "") || got["Access-Control-Allow-Credentials"] != "" {
			t.Errorf("%s: %v", c.name, got)
		}
	}
	exposed := corsOf(ask("GET", "/v1/models", "", key, "Origin: https://app.example").Header)["Access-Control-Expose-Headers"]
	for _, name := range []string{"x-request-id", "retry-after", "x-ratelimit-remaining-tokens", "anthropic-ratelimit-requests-reset", "request-id"} {
		if !strings.Contains(exposed, name) {
			t.Errorf("%s is not exposed", name)
		}
	}
}

// TestPreflight is answered before any credential is asked for.
func TestPreflight(t *testing.T) {
	r := newRig(t, nil, withConfig(func(c *Config) {
		c.CORS = CORS{Origins: []string{"https://app.example"}, MaxAge: 10 * time.Minute}
	}))
	f := func(path string, want map[string]string, header ...string) {
		t.Helper()
		client := r.dial()
		client.Send("OPTIONS", path, "", header...)
		resp, body := client.Answer()
		got := corsOf(resp.Header)
		delete(got, "Access-Control-Expose-Headers")
		if resp.StatusCode != 204 && resp.StatusCode != 404 || len(got) != len(want) {
			t.Errorf("%s %q: %d %v %s, want %v", path, header, resp.StatusCode, got, body, want)
		}
		for name, value := range want {
			if got[name] != value {
				t.Errorf("%s %q: %s is %q, want %q", path, header, name, got[name], value)
			}
		}
	}
	const vary = "Origin, Access-Control-Request-Method, Access-Control-Request-Headers"
	f("/v1/chat/completions", map[string]string{
		"Access-Control-Allow-Origin": "https://app.example", "Vary": vary, "Access-Control-Allow-Methods": "OPTIONS, POST",
		"Access-Control-Allow-Headers": "authorization, content-type, x-stainless-os", "Access-Control-Max-Age": "600",
	}, "Origin: https://app.example", "Access-Control-Request-Method: POST", "Access-Control-Request-Headers: authorization,content-type, x-stainless-os")
	f("/v1/models", map[string]string{
		"Access-Control-Allow-Origin": "https://app.example", "Vary": vary, "Access-Control-Allow-Methods": "GET, HEAD, OPTIONS", "Access-Control-Max-Age": "600",
	}, "Origin: https://app.example", "Access-Control-Request-Method: GET", "Access-Control-Request-Headers: bad name")
	f("/v1/models", map[string]string{"Vary": "Origin"}, "Origin: https://evil.example", "Access-Control-Request-Method: GET")
	f("/v1/models", map[string]string{"Vary": "Origin", "Access-Control-Allow-Origin": "https://app.example"}, "Origin: https://app.example")
	f("/nowhere", map[string]string{"Vary": "Origin", "Access-Control-Allow-Origin": "https://app.example"}, "Origin: https://app.example", "Access-Control-Request-Method: GET")
}
