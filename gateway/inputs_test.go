package gateway

import (
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sluicegate/sluice/gateway/gatewaytest"
	"github.com/sluicegate/sluice/policy"
	"github.com/sluicegate/sluice/tenancy"
)

// TestWhatPoliciesSee maps requests to every variable of the policy format that the
// edge gives (its section 2).
func TestWhatPoliciesSee(t *testing.T) {
	const image = `{"type":"image_url","image_url":{"url":"https://images.example/x.png"}}`
	const tools = `[{"type":"function","function":{"name":"b"}},{"type":"function","function":{"name":"a"}}]` // text too: it is in the prompt
	rich := `{"model":"m-alias","stream":true,"n":2,"best_of":3,"max_completion_tokens":7,"user":"u1","tools":` + tools + `,` +
		`"messages":[{"role":"system","content":"123456789"},{"role":"user","content":[{"type":"text","text":"123"},` + image + `]}]}`
	for _, c := range []struct {
		name, method, target, body string
		header                     []string
		want                       map[string]any
	}{
		{
			"a plain chat", "POST", "/v1/chat/completions?x=1", chatBody, nil, map[string]any{
				"operation": "chat", "dialect": "openai", "method": "POST", "path": "/v1/chat/completions", "model": "m", "requested_model": "m",
				"model_family": "fam", "stream": false, "n": 1, "max_tokens": nil, "input_tokens_estimate": 2, "body_bytes": len(chatBody), "message_count": 1,
				"image_count": 0, "tool_names": []string(nil), "modalities": []string{"text"}, "session_id": nil, "user": nil, "prompts": 1,
			},
		}, {
			"everything", "POST", "/v1/chat/completions", rich, []string{"X-Session-Id: s1"}, map[string]any{
				"operation": "chat", "model": "m", "requested_model": "m-alias", "stream": true, "n": 3, "max_tokens": 7,
				"input_tokens_estimate": (12+len(tools)+1)/3 + 576, "body_bytes": len(rich), "message_count": 2, "image_count": 1, "tool_names": []string{"b", "a"},
				"modalities": []string{"text", "image"}, "session_id": "s1", "user": "u1",
			},
		}, {
			"a completion", "POST", "/v1/completions", `{"model":"m","prompt":["123456","123"],"max_tokens":5,"n":4}`, nil, map[string]any{
				"operation": "completion", "path": "/v1/completions", "n": 4, "max_tokens": 5, "input_tokens_estimate": 3, "message_count": 0, "prompts": 2,
				"modalities": []string{"text"},
			},
		}, {
			"token ids", "POST", "/v1/completions", `{"model":"m","prompt":[1,2,3]}`, nil, map[string]any{"input_tokens_estimate": 3},
		}, {
			"the models", "GET", "/v1/models", "", nil, map[string]any{
				"operation": "models", "method": "GET", "path": "/v1/models", "model": "", "requested_model": "", "model_family": "", "n": 1, "stream": false,
				"body_bytes": 0, "input_tokens_estimate": 0, "max_tokens": nil,
			},
		}, {
			"a model", "GET", "/v1/models/m", "", nil, map[string]any{"operation": "models", "path": "/v1/models/{id}", "model": "m"},
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			worker := gatewaytest.NewWorker(t, gatewaytest.Chat("a"))
			r := newRig(t, []string{worker.URL()}, withState(func(st *State) {
				list := []Model{{Name: "m", Aliases: []string{"m-alias"}, Upstream: "m", Family: "fam", BytesPerToken: 3}}
				var err error
				if st.Models, err = NewModels(list); err != nil {
					t.Error(err)
				}
			}))
			var seen map[string]any
			r.decider.set(func(_ context.Context, in *policy.Input) *policy.Decision {
				q := &in.Request
				seen = map[string]any{
					"operation": q.Operation, "dialect": q.Dialect, "method": q.Method, "path": q.Path, "model": q.Model, "requested_model": q.RequestedModel,
					"model_family": q.ModelFamily, "stream": q.Stream, "n": q.N, "max_tokens": optional(q.MaxTokens), "input_tokens_estimate": q.InputTokensEstimate,
					"body_bytes": q.BodyBytes, "message_count": q.MessageCount, "image_count": q.ImageCount, "tool_names": slices.Clone(q.ToolNames),
					"modalities": slices.Clone(q.Modalities), "session_id": optional(q.SessionID), "user": optional(q.User), "prompts": q.Prompts,
				}
				return allow(in)
			})
			conn := r.dial()
			conn.Send(c.method, c.target, c.body, append(c.header, "Authorization: Bearer "+goodKey)...)
			if resp, text := conn.Answer(); resp.StatusCode != 200 {
				t.Fatalf("got %d %s", resp.StatusCode, text)
			}
			r.idle()
			for name, want := range c.want {
				if got := seen[name]; fmt.Sprint(got) != fmt.Sprint(want) {
					t.Errorf("request.%s is %v, want %v", name, got, want)
				}
			}
		})
	}
}

// optional is what a pointer points to, or nil.
func optional[T any](p *T) any {
	if p == nil {
		return nil
	}
	return *p
}

// TestWhoPoliciesSee maps a caller and its tenant to the variables of the policy
// format, and takes the time once.
func TestWhoPoliciesSee(t *testing.T) {
	worker := gatewaytest.NewWorker(t, gatewaytest.Chat("a"))
	tenant := &tenancy.Tenant{ID: "acme", Team: "search", Tier: "gold", Labels: map[string]string{"env": "prod"}, Models: []string{"m"}}
	caller := &tenancy.Principal{
		Kind: "jwt", ID: "jwt:https://idp.example:u1", Subject: "u1", Issuer: "https://idp.example", Groups: []string{"g"}, Scopes: []string{"s"},
		Claims: map[string]any{"dept": "x"}, Tenant: tenant,
	}
	r := newRig(t, []string{worker.URL()}, withState(func(st *State) {
		st.Identifier = identifierFunc(func([]byte, time.Time) (*tenancy.Principal, error) { return caller, nil })
	}))
	before := time.Now()
	var seen string
	var now time.Time
	r.decider.set(func(_ context.Context, in *policy.Input) *policy.Decision {
		text, err := json.Marshal([]any{in.Principal, in.Tenant})
		if err != nil {
			t.Error(err)
		}
		seen, now = string(text), in.Now
		return allow(in)
	})
	if resp, text := r.chat(chatBody).Answer(); resp.StatusCode != 200 {
		t.Fatalf("got %d %s", resp.StatusCode, text)
	}
	r.idle()
	const want = `[{"Kind":"jwt","ID":"jwt:https://idp.example:u1","Subject":"u1","Issuer":"https://idp.example","Groups":["g"],"Scopes":["s"],` +
		`"KeyID":null,"SPIFFEID":null,"Claims":{"dept":"x"}},{"ID":"acme","Team":"search","Tier":"gold","Labels":{"env":"prod"}}]`
	if seen != want {
		t.Errorf("policies see\n%s, want\n%s", seen, want)
	}
	if now.Before(before) || now.After(time.Now()) {
		t.Errorf("now is %v", now)
	}
}

// TestSourceOfARequest reaches policies as a plain address: that of the peer, or of
// the hop before a trusted proxy, IPv4-mapped ones unmapped.
func TestSourceOfARequest(t *testing.T) {
	worker := gatewaytest.NewWorker(t, gatewaytest.Chat("a"))
	for _, c := range []struct{ trusted, forwarded, want string }{
		{"", "192.0.2.1", "127.0.0.1"},
		{"127.0.0.0/8", "", "127.0.0.1"},
		{"127.0.0.0/8", "198.51.100.9, ::ffff:192.0.2.1", "192.0.2.1"},
		{"127.0.0.0/8", "2001:db8::1", "2001:db8::1"},
	} {
		r := newRig(t, []string{worker.URL()}, withConfig(func(cfg *Config) {
			if c.trusted != "" {
				cfg.TrustedProxies = []netip.Prefix{netip.MustParsePrefix(c.trusted)}
			}
		}))
		var seen string
		r.decider.set(func(_ context.Context, in *policy.Input) *policy.Decision {
			seen = in.Request.SourceIP
			return allow(in)
		})
		var header []string
		if c.forwarded != "" {
			header = append(header, "X-Forwarded-For: "+c.forwarded)
		}
		if resp, text := r.chat(chatBody, header...).Answer(); resp.StatusCode != 200 {
			t.Fatalf("got %d %s", resp.StatusCode, text)
		}
		r.idle()
		if seen != c.want {
			t.Errorf("trusting %q, forwarded for %q: policies see %q, want %q", c.trusted, c.forwarded, seen, c.want)
		}
	}
}

// TestInputsBeyondTheMaxima are refused, never cut: what the client has sent with 400,
// what its credential says with 403. The answer names the variable and its maximum.
func TestInputsBeyondTheMaxima(t *testing.T) {
	tools := strings.Repeat(`{"type":"function","function":{"name":"f"}},`, 512)
	many := `{"model":"m","messages":[],"tools":[` + tools + `{"type":"function","function":{"name":"f"}}]}`
	long := `{"model":"m","messages":[],"tools":[{"type":"function","function":{"name":"` + strings.Repeat("Hidden", 30) + `"}}]}`
	for _, c := range []struct {
		name, body string
		header     []string
		caller     func(*tenancy.Principal)
		tenant     func(*tenancy.Tenant)
		status     int
		code, says string
	}{
		{name: "as many tools as may be", body: `{"model":"m","messages":[],"tools":[` + strings.TrimSuffix(tools, ",") + `]}`, status: 200},
		{name: "too many tools", body: many, status: 400, code: "invalid_request", says: "at most 512 tools are allowed"},
		{name: "a long name", body: long, status: 400, code: "invalid_request", says: "at most 128 characters are allowed"},
		{name: "a long header", body: chatBody, header: []string{"X-Team: " + strings.Repeat("Hidden", 200)}, status: 400, code: "invalid_request", says: "request.headers: "},
		{name: "many labels", body: chatBody, header: []string{"X-Sluice-Content-Labels: " + labelList(65)}, status: 400, code: "invalid_request", says: "content.declared_labels: "},
		{name: "many groups", body: chatBody, caller: func(p *tenancy.Principal) { p.Groups = make([]string, 129) }, status: 403, code: "policy_denied", says: "principal.groups: "},
		{name: "a long subject", body: chatBody, caller: func(p *tenancy.Principal) { p.Subject = strings.Repeat("Hidden", 60) }, status: 403, code: "policy_denied", says: "principal.subject: "},
		{name: "a long label of the tenant", body: chatBody, tenant: func(t *tenancy.Tenant) { t.Labels = map[string]string{"a": strings.Repeat("Hidden", 60)} }, status: 403, code: "policy_denied", says: "tenant.labels: "},
	} {
		t.Run(c.name, func(t *testing.T) {
			worker := gatewaytest.NewWorker(t, gatewaytest.Chat("a"))
			r := newRig(t, []string{worker.URL()}, withState(func(st *State) {
				st.PolicyHeaders, st.LabelPrincipals = []string{"x-team"}, []string{"key:test"}
				known := st.Identifier.(identifierFunc)
				st.Identifier = identifierFunc(func(cred []byte, now time.Time) (*tenancy.Principal, error) {
					p, err := known(cred, now)
					if err == nil && c.caller != nil {
						c.caller(p)
					}
					return p, err
				})
			}))
			if c.tenant != nil {
				c.tenant(r.tenant)
			}
			resp, body := r.chat(c.body, c.header...).Answer()
			r.row()
			if c.status == 200 {
				if resp.StatusCode != 200 {
					t.Errorf("got %d %s", resp.StatusCode, body)
				}
				return
			}
			wantError(t, resp, body, c.status, c.code)
			if !strings.Contains(body, c.says) || strings.Contains(body, "Hidden") || len(worker.Seen()) != 0 {
				t.Errorf("the answer is %s", body)
			}
		})
	}
}

func labelList(n int) string {
	labels := make([]string, n)
	for i := range labels {
		labels[i] = fmt.Sprintf("label-%d", i)
	}
	return strings.Join(labels, ",")
}
