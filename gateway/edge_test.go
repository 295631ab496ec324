package gateway

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"
	"testing/fstest"
	"time"

	"github.com/sluicegate/sluice/gateway/gatewaytest"
	"github.com/sluicegate/sluice/policy"
	"github.com/sluicegate/sluice/scoring"
	"github.com/sluicegate/sluice/tenancy"
)

func TestChatWithoutStream(t *testing.T) {
	worker := gatewaytest.NewWorker(t, gatewaytest.Chat("a", "b", "c"))
	r := newRig(t, []string{worker.URL()})
	body := `{ "model" : "m-alias", "seed": 18446744073709551615, "x": 1.0, "messages":[{"role":"user","content":"h\u00e9llo"}],"priority":5 }`
	c := r.chat(body, "X-Request-Id: mine-1", "X-Tenant-Id: other", "X-Sluice-Tenant: other", "Cookie: a=b", "X-Forwarded-For: 1.2.3.4",
		"traceparent: 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")
	resp, answer := c.Answer()
	if resp.StatusCode != 200 || resp.Header.Get("X-Request-Id") != "mine-1" || resp.Header.Get("Content-Type") != "application/json" {
		t.Fatalf("got %d %v %s", resp.StatusCode, resp.Header, answer)
	}
	seen := worker.Next(t)
	for _, name := range []string{"Authorization", "Content-Type", "Content-Length", "Accept", "Accept-Encoding", "X-Request-Id", "Traceparent"} {
		if seen.Header.Get(name) == "" {
			t.Errorf("the worker got no %s", name)
		}
		seen.Header.Del(name)
	}
	if len(seen.Header) > 0 {
		t.Errorf("the worker got headers beyond the allowlist: %v", seen.Header)
	}
	var sent map[string]json.RawMessage
	if err := json.Unmarshal(seen.Body, &sent); err != nil {
		t.Fatal(err)
	}
	if string(sent["model"]) != `"m"` || sent["priority"] != nil || len(sent["cache_salt"]) != 45 || string(sent["seed"]) != "18446744073709551615" {
		t.Errorf("the worker got %s", seen.Body)
	}
	row := r.row()
	if row.Outcome != tenancy.OutcomeCompleted || row.Status != 200 || row.InputTokens != 10 || row.OutputTokens != 3 ||
		row.Model != "m" || row.RequestedModel != "m-alias" || row.Tenant != "acme" || row.Team != "search" || row.Worker != "w1" ||
		row.KeyID != "test" || row.RequestID != "mine-1" || row.Attempts != 1 || row.Phase != tenancy.PhaseDone {
		t.Errorf("row: %+v", row)
	}
	if len(r.ledger.intents) != 1 || r.ledger.intents[0].ID != row.ID {
		t.Errorf("intents: %+v", r.ledger.intents)
	}
}

// TestWorkerGetsItsOwnCredential keeps the client's key from every worker.
func TestWorkerGetsItsOwnCredential(t *testing.T) {
	worker := gatewaytest.NewWorker(t, gatewaytest.Chat("a"))
	r := newRig(t, []string{worker.URL()})
	r.chat(chatBody).Answer()
	if got := worker.Next(t).Header.Get("Authorization"); got != "Bearer "+workerKey {
		t.Errorf("the worker got the authorization %q", got)
	}
}

func TestRefusals(t *testing.T) {
	auth := "Authorization: Bearer " + goodKey
	cases := []struct {
		name, method, target, body string
		header                     []string
		status                     int
		code                       string
		row                        bool
	}{
		{"no credential", "POST", "/v1/chat/completions", chatBody, nil, 401, "invalid_api_key", false},
		{"unknown key", "POST", "/v1/chat/completions", chatBody, []string{"Authorization: Bearer nope"}, 401, "invalid_api_key", false},
		{"basic", "POST", "/v1/chat/completions", chatBody, []string{"Authorization: Basic " + goodKey}, 401, "invalid_api_key", false},
		{"two keys, one good", "POST", "/v1/chat/completions", chatBody, []string{auth, "x-api-key: other"}, 401, "invalid_api_key", false},
		{"repeated header", "POST", "/v1/chat/completions", chatBody, []string{auth, auth}, 401, "invalid_api_key", false},
		{"key in the query", "POST", "/v1/chat/completions?api-key=" + goodKey, chatBody, nil, 401, "invalid_api_key", false},
		{"unparsable JSON", "POST", "/v1/chat/completions", `{"model":"m",`, []string{auth}, 400, "invalid_json", true},
		{"no body", "POST", "/v1/chat/completions", ``, []string{auth, "Content-Type: application/json"}, 400, "invalid_json", true},
		{"missing model", "POST", "/v1/chat/completions", `{"messages":[]}`, []string{auth}, 400, "invalid_request", true},
		{"unknown model", "POST", "/v1/chat/completions", `{"model":"nope","messages":[]}`, []string{auth}, 404, "model_not_found", true},
		{"model of others", "POST", "/v1/chat/completions", `{"model":"secret","messages":[]}`, []string{auth}, 404, "model_not_found", true},
		{"stream as text", "POST", "/v1/chat/completions", `{"model":"m","stream":"true","messages":[]}`, []string{auth}, 400, "invalid_request", true},
		{"model twice", "POST", "/v1/chat/completions", `{"model":"m","mod\u0065l":"secret","messages":[]}`, []string{auth}, 400, "duplicate_key", true},
		{"form body", "POST", "/v1/chat/completions", chatBody, []string{auth, "Content-Type: text/plain"}, 415, "unsupported_media_type", true},
		{"brotli", "POST", "/v1/chat/completions", chatBody, []string{auth, "Content-Encoding: br"}, 415, "unsupported_media_type", true},
		{"unknown route", "POST", "/v1/nothing", chatBody, []string{auth}, 404, "unknown_url", false},
		{"worker's own route", "POST", "/reset_prefix_cache", ``, []string{auth}, 404, "unknown_url", false},
		{"metrics", "GET", "/metrics", ``, []string{auth}, 404, "unknown_url", false},
		{"double slash", "POST", "//v1/chat/completions", chatBody, []string{auth}, 404, "unknown_url", false},
		{"dots", "POST", "/v1/x/../chat/completions", chatBody, []string{auth}, 404, "unknown_url", false},
		{"escape", "POST", "/v1/chat%2Fcompletions", chatBody, []string{auth}, 404, "unknown_url", false},
		{"case", "POST", "/v1/Chat/completions", chatBody, []string{auth}, 404, "unknown_url", false},
		{"trailing slash", "POST", "/v1/chat/completions/", chatBody, []string{auth}, 404, "unknown_url", false},
		{"method", "GET", "/v1/chat/completions", ``, []string{auth}, 405, "method_not_allowed", false},
		{"method before credential", "DELETE", "/v1/models", ``, nil, 405, "method_not_allowed", false},
		{"too large", "POST", "/v1/chat/completions", strings.Repeat(" ", 2<<20), []string{auth}, 413, "request_too_large", true},
		{"too large without a credential", "POST", "/v1/chat/completions", strings.Repeat(" ", 2<<20), nil, 401, "invalid_api_key", false},
		{"too large for no route", "POST", "/v1/nothing", strings.Repeat(" ", 2<<20), nil, 404, "unknown_url", false},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			worker := gatewaytest.NewWorker(t, gatewaytest.Chat("a"))
			r := newRig(t, []string{worker.URL()}, withConfig(func(cfg *Config) { cfg.BodyBytes = 1 << 20 }))
			conn := r.dial()
			_ = conn.Write(gatewaytest.RequestText(c.method, c.target, c.body, c.header...)) // a refusal may come first
			resp, body := conn.Answer()
			wantError(t, resp, body, c.status, c.code)
			if c.status == 401 && resp.Header.Get("WWW-Authenticate") != "Bearer" {
				t.Error("a 401 without WWW-Authenticate")
			}
			if c.status == 405 && resp.Header.Get("Allow") == "" {
				t.Error("a 405 without Allow")
			}
			r.idle()
			if rows := r.ledger.all(); (len(rows) == 1) != c.row || len(rows) > 1 {
				t.Errorf("the ledger has %d rows, want one: %v", len(rows), c.row)
			}
			if len(worker.Seen()) > 0 {
				t.Error("a worker was called")
			}
		})
	}
}

// TestAnthropicPathsGetAnthropicErrors holds the dialect to the path.
func TestAnthropicPathsGetAnthropicErrors(t *testing.T) {
	r := newRig(t, nil)
	c := r.dial()
	c.Send("POST", "/v1/messages/batches", `{}`)
	resp, body := c.Answer()
	if resp.StatusCode != 404 || !strings.Contains(body, `{"type":"error","error":{"type":"not_found_error"`) || !strings.Contains(body, `"error_code":"unknown_url"`) {
		t.Errorf("got %d %s", resp.StatusCode, body)
	}
}

func TestModels(t *testing.T) {
	r := newRig(t, nil)
	get := func(target string) (*http.Response, string) {
		c := r.dial()
		c.Send("GET", target, "", "Authorization: Bearer "+goodKey)
		return c.Answer()
	}
	resp, body := get("/v1/models")
	if resp.StatusCode != 200 || !strings.Contains(body, `"id":"m"`) || strings.Contains(body, "secret") {
		t.Errorf("got %d %s", resp.StatusCode, body)
	}
	if resp, body = get("/v1/models/%6D"); resp.StatusCode != 200 || !strings.Contains(body, `"id":"m"`) {
		t.Errorf("got %d %s", resp.StatusCode, body)
	}
	for _, id := range []string{"secret", "nope", "%zz"} {
		resp, body = get("/v1/models/" + id)
		wantError(t, resp, body, 404, "model_not_found")
	}
	r.idle()
}

func TestHealth(t *testing.T) {
	r := newRig(t, nil)
	get := func(target string) (int, string) {
		c := r.dial()
		c.Send("GET", target, "")
		resp, body := c.Answer()
		return resp.StatusCode, body
	}
	if status, body := get("/healthz"); status != 200 || body != "ok" {
		t.Errorf("healthz: %d %s", status, body)
	}
	if status, body := get("/readyz"); status != 200 {
		t.Errorf("readyz: %d %s", status, body)
	}
	r.g.BeginDrain()
	if status, body := get("/readyz"); status != 503 || body != `{"status":"not_ready","reasons":["draining"]}` {
		t.Errorf("readyz: %d %s", status, body)
	}
	if status, _ := get("/healthz"); status != 200 {
		t.Errorf("healthz: %d", status)
	}
	if len(r.ledger.all()) > 0 {
		t.Error("a health check left a ledger row")
	}
}

// TestDenials maps every reason of a policy's refusal to its answer.
func TestDenials(t *testing.T) {
	for _, c := range []struct {
		reason       policy.Reason
		status       int
		kind, code   string
		retry, never string
	}{
		{policy.Forbidden, 403, "permission_error", "policy_denied", "", ""},
		{policy.PolicyError, 403, "permission_error", "policy_denied", "", ""},
		{policy.NoPermittedPool, 403, "permission_error", "policy_denied", "", ""},
		{policy.NoQuota, 403, "permission_error", "policy_denied", "", ""},
		{policy.Invalid, 400, "invalid_request_error", "policy_invalid", "", ""},
		{policy.ExceedsLimit, 400, "invalid_request_error", "request_exceeds_limit", "", ""},
		{policy.BudgetExhausted, 429, "insufficient_quota", "insufficient_quota", "3", "false"},
		{policy.LimitStoreUnavailable, 503, "server_error", "unavailable", "5", ""},
	} {
		t.Run(string(c.reason), func(t *testing.T) {
			worker := gatewaytest.NewWorker(t, gatewaytest.Chat("a"))
			r := newRig(t, []string{worker.URL()})
			r.tenant.Expose.Policy = true
			r.decider.set(func(context.Context, *policy.Input) *policy.Decision {
				return &policy.Decision{
					Status: c.status, Reason: c.reason, Rule: "a/b", Message: "because", RetryAfter: 3 * time.Second, Revision: "sha256:test",
				}
			})
			resp, body := r.chat(chatBody).Answer()
			wantError(t, resp, body, c.status, c.code)
			if !strings.Contains(body, `"type":"`+c.kind+`"`) || !strings.Contains(body, `"message":"because"`) {
				t.Errorf("body %s", body)
			}
			if resp.Header.Get("Retry-After") != c.retry || resp.Header.Get("x-should-retry") != c.never {
				t.Errorf("headers %v", resp.Header)
			}
			if got := resp.Header.Get("x-sluice-policy"); got != "sha256:test a/b" {
				t.Errorf("x-sluice-policy is %q", got)
			}
			row := r.row()
			if row.PolicyRule != "a/b" || row.InputTokens != 0 || len(worker.Seen()) > 0 {
				t.Errorf("row %+v, worker called %d times", row, len(worker.Seen()))
			}
		})
	}
}

// TestOptInHeaders are on every answer of a request that policies have judged,
// and only where the tenant asked for them.
func TestOptInHeaders(t *testing.T) {
	for _, exposed := range []bool{false, true} {
		worker := gatewaytest.NewWorker(t, gatewaytest.Chat("a"), gatewaytest.Fail(500))
		r := newRig(t, []string{worker.URL()})
		if exposed {
			r.tenant.Expose = tenancy.Expose{Worker: true, Policy: true, Overhead: true}
		}
		r.decider.set(func(_ context.Context, in *policy.Input) *policy.Decision {
			d := allow(in)
			d.Warnings = []policy.RuleRef{{Rule: "a/b", Message: "mind"}}
			return d
		})
		for _, want := range []int{200, 502, 0} {
			var resp *http.Response
			if want == 0 {
				c := r.dial()
				c.Send("GET", "/v1/models", "", "Authorization: Bearer "+goodKey)
				resp, _ = c.Answer()
			} else if resp, _ = r.chat(chatBody).Answer(); resp.StatusCode != want {
				t.Fatalf("got %d, want %d", resp.StatusCode, want)
			}
			h := resp.Header
			if h.Get("Warning") != `299 sluice "a/b: mind"` || (h.Get("x-sluice-policy") == "sha256:test") != exposed ||
				(h.Get("x-sluice-worker") == "w1") != (exposed && want > 0) || (h.Get("x-sluice-overhead-us") != "") != (exposed && want > 0) {
				t.Errorf("exposed %v, status %d: headers %v", exposed, want, h)
			}
		}
	}
}

const limitPolicy = `
apiVersion: sluice/v1alpha1
kind: AdmissionPolicy
metadata: { name: p }
spec:
  limits:
    - { name: rpm, unit: requests, window: 1m, limit: 2, key: [tenant.id] }
    - { name: tpm, unit: tokens, window: 1m, limit: 1000, key: [tenant.id], estimate: 100 }
    - { name: size, unit: tokens, window: 1s, limit: 50, key: [], estimate: "request.input_tokens > 50 ? request.input_tokens : 0" }
---
apiVersion: sluice/v1alpha1
kind: AdmissionPolicyBinding
metadata: { name: b }
spec: { policyName: p, actions: [Deny] }
`

// TestShadowLimits: a binding that only audits counts in counters of its own and
// says what it would have refused; the client sees nothing of it.
func TestShadowLimits(t *testing.T) {
	set, err := policy.Load(policy.Config{Pools: []policy.Pool{{Name: "p", Models: []string{"m"}, Salted: []string{"*"}}}}, fstest.MapFS{
		"limits.yaml": &fstest.MapFile{Data: []byte(strings.Replace(limitPolicy, "[Deny]", "[Audit]", 1))},
	})
	if err != nil {
		t.Fatal(err)
	}
	for name, body := range map[string]string{"not streaming": chatBody, "stream": streamBody} {
		t.Run(name, func(t *testing.T) {
			worker := gatewaytest.NewWorker(t, gatewaytest.Chat("a", "b"))
			r := newRig(t, []string{worker.URL()})
			st := *r.g.State()
			st.Policies = set
			r.g.Swap(&st)
			for i := range 3 {
				resp, text := r.chat(body).Answer()
				if resp.StatusCode != 200 || resp.Header.Get("x-ratelimit-limit-requests") != "" {
					t.Fatalf("got %d %v %s", resp.StatusCode, resp.Header, text)
				}
				eventually(t, "the rehearsal to be measured", func() bool { return len(r.meter.rehearsals()) == i+1 })
				var would []string
				for _, ref := range r.meter.rehearsals()[i].WouldDeny {
					would = append(would, ref.Rule)
				}
				if want := map[bool][]string{true: {"p/rpm"}}[i == 2]; !slices.Equal(would, want) {
					t.Errorf("request %d: would deny %v, want %v", i, would, want)
				}
			}
			r.idle()
		})
	}
}

// TestLimitHeaders shows the reservation on success and the refusing limit on
// a 429.
func TestLimitHeaders(t *testing.T) {
	worker := gatewaytest.NewWorker(t, gatewaytest.Chat("a"))
	r := newRig(t, []string{worker.URL()})
	set, err := policy.Load(policy.Config{Pools: []policy.Pool{{Name: "p", Models: []string{"m"}, Salted: []string{"*"}}}}, fstest.MapFS{
		"limits.yaml": &fstest.MapFile{Data: []byte(limitPolicy)},
	})
	if err != nil {
		t.Fatal(err)
	}
	r.decider.set(set.Decide)
	for want := 1; want >= 0; want-- {
		resp, body := r.chat(chatBody).Answer()
		if resp.StatusCode != 200 || resp.Header.Get("x-ratelimit-limit-requests") != "2" ||
			resp.Header.Get("x-ratelimit-remaining-requests") != string(rune('0'+want)) || resp.Header.Get("x-ratelimit-limit-tokens") != "1000" {
			t.Fatalf("got %d %v %s", resp.StatusCode, resp.Header, body)
		}
	}
	resp, body := r.chat(chatBody).Answer()
	wantError(t, resp, body, 429, "rate_limit_exceeded")
	if resp.Header.Get("Retry-After") == "" || resp.Header.Get("x-ratelimit-remaining-requests") != "0" || !strings.Contains(body, "p/rpm") {
		t.Errorf("got %v %s", resp.Header, body)
	}
	if len(worker.Seen()) != 2 {
		t.Errorf("the worker saw %d requests, want 2", len(worker.Seen()))
	}
	r.idle()
}

// faulty is parts of the gateway that panic.
type faulty struct {
	Health
	Ledger
}

func (faulty) ReportSuccess(scoring.WorkerID)             { panic("a bug") }
func (faulty) Record(context.Context, *tenancy.Row) error { panic("a bug") }
func (faulty) Price(*tenancy.Row)                         { panic("a bug") }

// TestPanicIsOneRequestsTrouble: whatever panics, nothing stays taken of the
// request and the process goes on.
func TestPanicIsOneRequestsTrouble(t *testing.T) {
	decide := func(context.Context, *policy.Input) *policy.Decision { panic("a bug") }
	for _, c := range []struct {
		name   string
		parts  func(*Parts)
		state  func(*State)
		decide func(context.Context, *policy.Input) *policy.Decision
		stream bool
		status int
		rows   int
	}{
		{name: "policies", decide: decide, status: 500, rows: 1},
		{name: "tokenizer", parts: func(p *Parts) { p.Tokenizer = nil }, status: 500, rows: 1},
		{name: "prices", state: func(st *State) { st.Pricer = faulty{} }, status: 200},
		{name: "prices of a stream", state: func(st *State) { st.Pricer = faulty{} }, stream: true, status: 200},
		{name: "ledger", parts: func(p *Parts) { p.Ledger = faulty{Ledger: p.Ledger} }, status: 200},
		{name: "health", parts: func(p *Parts) { p.Health = faulty{Health: p.Health} }, status: 500, rows: 1},
		{name: "health in a stream", parts: func(p *Parts) { p.Health = faulty{Health: p.Health} }, stream: true, status: 200, rows: 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			worker := gatewaytest.NewWorker(t, gatewaytest.Chat("a"))
			open := make(chan struct{})
			if c.stream { // it ends after its answer has begun
				worker.Script(gatewaytest.Gate(open, []string{gatewaytest.RoleEvent, gatewaytest.ContentEvent("a", "")},
					[]string{gatewaytest.ContentEvent("b", "stop"), gatewaytest.DoneEvent}))
			}
			opts := []rigOption{}
			if c.parts != nil {
				opts = append(opts, withParts(c.parts))
			}
			if c.state != nil {
				opts = append(opts, withState(c.state))
			}
			r := newRig(t, []string{worker.URL()}, opts...)
			r.decider.set(limited)
			if c.decide != nil {
				r.decider.set(c.decide)
			}
			body := chatBody
			if c.stream {
				body = streamBody
			}
			resp := r.chat(body).Head()
			close(open)
			all, _ := io.ReadAll(resp.Body) // it may be cut off
			text := string(all)
			if resp.StatusCode != c.status || c.status == 500 && !strings.Contains(text, `"code":"internal_error"`) {
				t.Errorf("got %d %s, want %d", resp.StatusCode, text, c.status)
			}
			if decided := resp.Header.Get("X-Sluice-Decision-Id") != ""; decided != (c.decide == nil) {
				t.Errorf("the answer names a decision: %v", decided)
			}
			r.idle()
			if n := len(r.ledger.all()); n != c.rows {
				t.Errorf("the ledger has %d rows, want %d", n, c.rows)
			}
			c := r.dial()
			c.Send("GET", "/healthz", "")
			if resp, body := c.Answer(); resp.StatusCode != 200 {
				t.Errorf("the next request got %d %s", resp.StatusCode, body)
			}
		})
	}
}

// TestUnaccountableRequestsAreNotSent keeps a request from the workers that
// the ledger can't note.
func TestUnaccountableRequestsAreNotSent(t *testing.T) {
	worker := gatewaytest.NewWorker(t, gatewaytest.Chat("a"))
	r := newRig(t, []string{worker.URL()})
	r.ledger.fail = errors.New("disk full")
	resp, body := r.chat(chatBody).Answer()
	wantError(t, resp, body, 503, "unavailable")
	if len(worker.Seen()) > 0 {
		t.Error("a worker was called")
	}
}

func TestDisabledTenant(t *testing.T) {
	r := newRig(t, nil)
	r.tenant.Disabled = true
	resp, body := r.chat(chatBody).Answer()
	wantError(t, resp, body, 403, "tenant_disabled")
}
