package gateway

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/sluicegate/sluice/gateway/gatewaytest"
	"github.com/sluicegate/sluice/gateway/wire"
	"github.com/sluicegate/sluice/policy"
)

// spelling is another way to write the same request. A rule must see through it, or
// the request must be refused as none that the gateway has.
type spelling struct {
	name string
	// send sends the operation's request to its route.
	send func(r *rig, target string, c *operationCase, more ...string) *gatewaytest.Client
	// refused says that no such request exists, whatever rules say.
	refused bool
}

// marker stands in the prompts of these tests, and is what their label is found by.
const marker = "marked text"

func spellings() []spelling {
	post := func(change func(target string, c *operationCase, more []string) (string, string), header ...string) func(*rig, string, *operationCase, ...string) *gatewaytest.Client {
		return func(r *rig, target string, c *operationCase, more ...string) *gatewaytest.Client {
			to, body := change(target, c, more)
			return r.post(to, body, header...)
		}
	}
	target := func(f func(string) string) func(string, *operationCase, []string) (string, string) {
		return func(to string, c *operationCase, more []string) (string, string) {
			return f(to), c.body("m", marker, more...)
		}
	}
	body := func(f func(string) string) func(string, *operationCase, []string) (string, string) {
		return func(to string, c *operationCase, more []string) (string, string) {
			return to, f(c.body("m", marker, more...))
		}
	}
	method := func(name string) func(*rig, string, *operationCase, ...string) *gatewaytest.Client {
		return func(r *rig, to string, c *operationCase, more ...string) *gatewaytest.Client {
			conn := r.dial()
			text := c.body("m", marker, more...)
			if name == "GET" || name == "HEAD" || name == "DELETE" {
				text = ""
			}
			conn.Send(name, to, text, "Authorization: Bearer "+goodKey)
			return conn
		}
	}
	same := func(s string) string { return s }
	return []spelling{
		{name: "as it is", send: post(target(same))},
		{name: "an alias", send: post(func(to string, c *operationCase, more []string) (string, string) {
			return to, c.body("m-alias", marker, more...)
		})},
		{name: "the model last", send: post(body(func(s string) string {
			return "{" + strings.TrimSuffix(strings.TrimPrefix(s, `{"model":"m",`), "}") + `,"model":"m"}`
		}))},
		{name: "escaped keys", send: post(body(func(s string) string {
			return strings.NewReplacer(`"model"`, `"mod\u0065l"`, `"messages"`, `"m\u0065ssages"`, `"input"`, `"\u0069nput"`, `"tools"`, `"tool\u0073"`,
				`"prompt"`, `"promp\u0074"`, `"content"`, `"c\u006fntent"`).Replace(s)
		}))},
		{name: "escaped text", send: post(body(func(s string) string { return strings.ReplaceAll(s, marker, `m\u0061rked\u0020text`) }))},
		{name: "white space", send: post(body(func(s string) string { return " \n" + strings.ReplaceAll(s, `":`, `" : `) + "\r\n" }))},
		{name: "unknown keys before it", send: post(body(func(s string) string { return `{"Model":"other","MODEL":1,"x":{"model":"other"},` + s[1:] }))},
		{name: "a query", send: post(target(func(s string) string { return s + "?model=other&x=/v1/models" }))},
		{name: "absolute form", send: post(target(func(s string) string { return "http://elsewhere.test" + s }))},
		{name: "absolute form in capitals", send: post(target(func(s string) string { return "HTTPS://ELSEWHERE.TEST:1" + s }))},
		{name: "chunked", send: func(r *rig, to string, c *operationCase, more ...string) *gatewaytest.Client {
			conn := r.dial()
			text := c.body("m", marker, more...)
			half := len(text) / 2
			head := gatewaytest.RequestText("POST", to, "", "Content-Type: application/json", "Transfer-Encoding: chunked", "Authorization: Bearer "+goodKey)
			if err := conn.Write(head + fmt.Sprintf("%x\r\n%s\r\n%x\r\n%s\r\n0\r\n\r\n", half, text[:half], len(text)-half, text[half:])); err != nil {
				r.t.Fatal(err)
			}
			return conn
		}},
		{name: "gzip", send: post(body(gzipped), "Content-Encoding: gzip")},
		{name: "gzip in two members", send: post(body(func(s string) string { return gzipped(s[:20]) + gzipped(s[20:]) }), "Content-Encoding: GZIP")},
		{name: "zstd", send: post(body(zstdFramed), "Content-Encoding: zstd")},
		{name: "two codings", refused: true, send: post(body(func(s string) string { return gzipped(gzipped(s)) }), "Content-Encoding: gzip, gzip")},
		{name: "a coding that it has not", refused: true, send: post(target(same), "Content-Encoding: gzip")},
		{name: "headers that name another", send: post(target(same), "X-Sluice-Tenant: other", "X-Model: other", "X-HTTP-Method-Override: GET", "X-Original-URL: /v1/models", "X-Forwarded-For: 10.0.0.1")},
		{name: "a slash behind", refused: true, send: post(target(func(s string) string { return s + "/" }))},
		{name: "two slashes", refused: true, send: post(target(func(s string) string { return "/" + s }))},
		{name: "a dot", refused: true, send: post(target(func(s string) string { return "/." + s }))},
		{name: "capitals", refused: true, send: post(target(strings.ToUpper))},
		{name: "an escaped path", refused: true, send: post(target(func(s string) string {
			return strings.Replace(s, "e", "%65", 1)
		}))},
		{name: "parameters", refused: true, send: post(target(func(s string) string { return s + ";x=1" }))},
		{name: "the model twice", refused: true, send: post(body(func(s string) string { return `{"model":"secret",` + s[1:] }))},
		{name: "the model twice, escaped", refused: true, send: post(body(func(s string) string { return `{"mod\u0065l":"secret",` + s[1:] }))},
		{name: "GET", refused: true, send: method("GET")},
		{name: "PUT", refused: true, send: method("PUT")},
		{name: "PATCH", refused: true, send: method("PATCH")},
		{name: "post", refused: true, send: method("post")},
		{name: "an unknown coding", refused: true, send: post(target(same), "Content-Encoding: br")},
	}
}

// found labels a body with the marker in any of its strings.
type found struct{}

// Classify implements Classifier.
func (found) Classify(_ context.Context, r *ClassifyRequest) policy.Content {
	var v any
	if json.Unmarshal(r.Body, &v) == nil && strings.Contains(fmt.Sprint(v), marker) {
		return policy.Content{Labels: []string{"marked"}, ScanStatus: "complete"}
	}
	return policy.Content{ScanStatus: "complete"}
}

// rule is something that a policy forbids.
type rule struct {
	name, policies string
	more           func(*operationCase) (string, bool) // a member that the rule is about; false: not for this operation
	before         int                                 // requests that are let through first
	status         int
	code           string
}

func rules() []rule {
	always := func(*operationCase) (string, bool) { return `"odd":1`, true }
	return []rule{
		{"a model", bound("model", "Deny", `
  validations:
    - { name: v, expression: "request.model != 'm'", message: no }`), always, 0, 403, "policy_denied"},
		{"a tool", bound("tool", "Deny", `
  validations:
    - { name: v, expression: "!('danger' in request.tool_names)", message: no }`),
			func(c *operationCase) (string, bool) { return c.tool, c.tool != "" }, 0, 403, "policy_denied"},
		{"a label", bound("label", "Deny", `
  validations:
    - { name: v, expression: "!('marked' in content.labels)", message: no }`), always, 0, 403, "policy_denied"},
		{"a limit", bound("limit", "Deny", `
  limits:
    - { name: l, unit: requests, window: 1h, limit: 1, key: ["tenant.id"] }`), always, 1, 429, "rate_limit_exceeded"},
		{"a budget", bound("budget", "Deny", `
  limits:
    - { name: l, unit: requests, window: day, limit: 1, key: ["tenant.id"] }`), always, 1, 429, "insufficient_quota"},
		{"a pool", bound("pool", "Deny", `
  effects:
    - { name: e, route: { allowPools: [q] } }`), always, 0, 503, "unavailable"},
	}
}

// TestNothingBypassesARule sends each operation in every spelling against each kind of
// rule: what the rule forbids is refused by it, or as no request at all, and no worker
// hears of it.
func TestNothingBypassesARule(t *testing.T) {
	for _, rule := range rules() {
		t.Run(rule.name, func(t *testing.T) {
			worker := answering(t)
			r := newRig(t, []string{worker.URL()}, allEndpoints(), withPolicies(t, rule.policies), withState(func(st *State) { st.Classifier = found{} }))
			for range rule.before {
				if resp, text := r.chat(chatBody).Answer(); resp.StatusCode != 200 {
					t.Fatalf("got %d %s", resp.StatusCode, text)
				}
			}
			for _, c := range operationCases(t) {
				more, ok := rule.more(&c)
				if !ok {
					continue
				}
				for _, s := range spellings() {
					resp, text := s.send(r, operationRoute(c.op).template, &c, more).Answer()
					if s.refused {
						if !slices.Contains([]int{400, 404, 405, 415}, resp.StatusCode) {
							t.Errorf("%s, %s: got %d %s, want it refused as no request", c.op, s.name, resp.StatusCode, text)
						}
						continue
					}
					if resp.StatusCode != rule.status || !strings.Contains(text, `"`+rule.code+`"`) {
						t.Errorf("%s, %s: got %d %s, want %d %s", c.op, s.name, resp.StatusCode, text, rule.status, rule.code)
					}
				}
			}
			if n := len(worker.Seen()); n != rule.before {
				t.Errorf("the worker got %d requests, want %d", n, rule.before)
			}
			r.idle()
		})
	}
}

// TestSpellingsAreRequests: what the rules have to see through is let through where
// there is no rule. Otherwise the test above would show nothing.
func TestSpellingsAreRequests(t *testing.T) {
	worker := answering(t)
	r := newRig(t, []string{worker.URL()}, allEndpoints())
	for _, c := range operationCases(t) {
		for _, s := range spellings() {
			resp, text := s.send(r, operationRoute(c.op).template, &c, `"odd":1`).Answer()
			if (resp.StatusCode == 200) == s.refused {
				t.Errorf("%s, %s: got %d %s", c.op, s.name, resp.StatusCode, text)
			}
		}
	}
	r.idle()
}

// TestIsolationOfEveryOperation: whatever the operation and however it is written, a
// prompt reaches an engine with the tenant's salt alone, and what puts no prompt through
// an engine brings no salt at all.
func TestIsolationOfEveryOperation(t *testing.T) {
	const theirs = `"cache_salt":"mine"`
	for _, c := range operationCases(t) {
		t.Run(c.op.String(), func(t *testing.T) {
			worker := answering(t)
			r := newRig(t, []string{worker.URL()}, allEndpoints(), withPolicies(t, bound("isolate", "Deny", `
  effects:
    - { name: e, cacheIsolation: tenant }`)))
			want := cacheSalt([]byte(cacheKey), "tenant", "acme", "key:test", "mine")
			for _, s := range spellings() {
				if s.refused {
					continue
				}
				resp, text := s.send(r, operationRoute(c.op).template, &c, theirs).Answer()
				if resp.StatusCode != 200 {
					t.Errorf("%s: got %d %s", s.name, resp.StatusCode, text)
					continue
				}
				var sent struct {
					Salt *string `json:"cache_salt"`
				}
				if err := json.Unmarshal(worker.Next(t).Body, &sent); err != nil {
					t.Fatal(err)
				}
				switch prompted := operationRoute(c.op).billsTokens; {
				case prompted && (sent.Salt == nil || *sent.Salt != want):
					t.Errorf("%s: the salt is %v, want %s", s.name, optional(sent.Salt), want)
				case !prompted && sent.Salt != nil:
					t.Errorf("%s: the salt %s went to a route without a cache", s.name, *sent.Salt)
				}
			}
			r.idle()
		})
	}
}

// TestIsolationFailsClosed: a pool of which the configuration does not say that it keeps
// caches apart for an operation gets none of its isolated requests, whatever it says of
// others.
func TestIsolationFailsClosed(t *testing.T) {
	for _, c := range operationCases(t) {
		for _, salted := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, salted %t", c.op, salted), func(t *testing.T) {
				var ops []string
				for _, op := range wire.Operations() {
					if (op == c.op) == salted {
						ops = append(ops, op.String())
					}
				}
				set, err := policy.Load(policy.Config{
					Pools:            []policy.Pool{{Name: "p", Models: []string{"m"}, Salted: ops}},
					Models:           map[string]policy.Model{"m": {DefaultMaxTokens: 100}},
					DefaultIsolation: "tenant", AllowEmpty: true,
				}, fstest.MapFS{})
				if err != nil {
					t.Fatal(err)
				}
				worker := answering(t)
				r := newRig(t, []string{worker.URL()}, allEndpoints(), withState(func(st *State) { st.Policies = set }))
				resp, text := r.post(operationRoute(c.op).template, c.body("m", "hello")).Answer()
				served := salted || !operationRoute(c.op).billsTokens
				if (resp.StatusCode == 200) != served || !served && (resp.StatusCode != 403 || len(worker.Seen()) > 0) {
					t.Errorf("got %d %s, the worker %d requests", resp.StatusCode, text, len(worker.Seen()))
				}
			})
		}
	}
}

// TestNobodyIsAnonymous: on every route that policies judge a request without a
// credential is a 401 before its body, before any policy and before any limit. So
// principal.kind is never anonymous there.
func TestNobodyIsAnonymous(t *testing.T) {
	worker := answering(t)
	r := newRig(t, []string{worker.URL()}, allEndpoints())
	asked := 0
	r.decider.set(func(_ context.Context, in *policy.Input) *policy.Decision {
		asked++
		return allow(in)
	})
	for _, route := range allRoutes {
		if route.operation == "" {
			continue
		}
		method, target := "POST", strings.ReplaceAll(route.template, "{id}", "m")
		if route.get {
			method = "GET"
		}
		for _, header := range [][]string{nil, {"Authorization: Bearer "}, {"Authorization: Basic bTpt"}, {"X-Api-Key:"}, {"X-Sluice-Principal: key:test", "X-User: root"}} {
			conn := r.dial()
			body := ""
			if method == "POST" {
				body = `{"model":"m"}`
			}
			conn.Send(method, target, body, header...)
			resp, text := conn.Answer()
			if resp.StatusCode != 401 || resp.Header.Get("WWW-Authenticate") != "Bearer" {
				t.Errorf("%s %s with %q: got %d %s, want 401", method, target, header, resp.StatusCode, text)
			}
		}
	}
	r.idle()
	if asked != 0 || len(r.ledger.all()) != 0 || len(worker.Seen()) != 0 {
		t.Errorf("%d questions to policies, %d rows and %d requests at the worker, want none", asked, len(r.ledger.all()), len(worker.Seen()))
	}
}
