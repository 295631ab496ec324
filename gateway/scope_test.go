package gateway

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/sluicegate/sluice/gateway/gatewaytest"
	"github.com/sluicegate/sluice/tenancy"
)

// scoped identifies everybody as the holder of one key.
type scoped struct{ p *tenancy.Principal }

// Identify implements Identifier.
func (s scoped) Identify(context.Context, *tenancy.Credentials, time.Time) (*tenancy.Principal, error) {
	return s.p, nil
}

// A key that is for some operations or models is for no others, on every route,
// and never for more than its tenant may.
func TestScope(t *testing.T) {
	for _, c := range []struct {
		name         string
		scope        *tenancy.Scope
		method, path string
		body         string
		status       int
		code         string
	}{
		{"none", nil, "POST", "/v1/chat/completions", chatBody, 200, ""},
		{"empty", &tenancy.Scope{}, "POST", "/v1/chat/completions", chatBody, 200, ""},
		{"this operation", &tenancy.Scope{Operations: []string{"models", "chat"}}, "POST", "/v1/chat/completions", chatBody, 200, ""},
		{"another operation", &tenancy.Scope{Operations: []string{"completion", "models"}}, "POST", "/v1/chat/completions", chatBody, 403, "policy_denied"},
		{"another operation, a body that is none", &tenancy.Scope{Operations: []string{"models"}}, "POST", "/v1/chat/completions", "{", 403, "policy_denied"},
		{"no listing", &tenancy.Scope{Operations: []string{"chat"}}, "GET", "/v1/models", "", 403, "policy_denied"},
		{"no look at a model", &tenancy.Scope{Operations: []string{"chat"}}, "GET", "/v1/models/m", "", 403, "policy_denied"},
		{"health needs no key", &tenancy.Scope{Operations: []string{"chat"}}, "GET", "/healthz", "", 200, ""},
		{"this model", &tenancy.Scope{Models: []string{"m"}}, "POST", "/v1/chat/completions", chatBody, 200, ""},
		{"this model by its alias", &tenancy.Scope{Models: []string{"m"}}, "POST", "/v1/chat/completions", strings.Replace(chatBody, `"m"`, `"m-alias"`, 1), 200, ""},
		{"the alias alone", &tenancy.Scope{Models: []string{"m-alias"}}, "POST", "/v1/chat/completions", strings.Replace(chatBody, `"m"`, `"m-alias"`, 1), 404, "model_not_found"},
		{"another model", &tenancy.Scope{Models: []string{"n*"}}, "POST", "/v1/chat/completions", chatBody, 404, "model_not_found"},
		{"another model, looked at", &tenancy.Scope{Models: []string{"n*"}}, "GET", "/v1/models/m", "", 404, "model_not_found"},
		{"more than the tenant may", &tenancy.Scope{Models: []string{"*"}}, "GET", "/v1/models/secret", "", 404, "model_not_found"},
		{"both", &tenancy.Scope{Models: []string{"m"}, Operations: []string{"models"}}, "GET", "/v1/models/m", "", 200, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			worker := gatewaytest.NewWorker(t, gatewaytest.Chat("a"))
			p := &tenancy.Principal{Kind: tenancy.KindAPIKey, ID: "key:test", KeyID: "test", Scope: c.scope}
			r := newRig(t, []string{worker.URL()}, withState(func(st *State) { st.Identifier = scoped{p} }))
			p.Tenant = r.tenant
			client := r.dial()
			client.Send(c.method, c.path, c.body, "Authorization: Bearer x")
			resp, answer := client.Answer()
			if resp.StatusCode != c.status || c.code != "" && !strings.Contains(answer, `"`+c.code+`"`) {
				t.Errorf("got %d %s, want %d %s", resp.StatusCode, answer, c.status, c.code)
			}
			if c.status != 200 && len(r.ledger.intents) > 0 {
				t.Error("a worker could have been asked")
			}
		})
	}
}

func TestScopedListing(t *testing.T) {
	p := &tenancy.Principal{Kind: tenancy.KindAPIKey, ID: "key:test", Scope: &tenancy.Scope{Models: []string{"n*"}}}
	r := newRig(t, nil, withState(func(st *State) { st.Identifier = scoped{p} }))
	p.Tenant = r.tenant
	client := r.dial()
	client.Send("GET", "/v1/models", "", "Authorization: Bearer x")
	resp, answer := client.Answer()
	if resp.StatusCode != 200 || strings.Contains(answer, `"id":"m"`) {
		t.Errorf("got %d %s", resp.StatusCode, answer)
	}
}

// Where it can't be found out who calls, that is no fault of the caller's.
func TestKeysAreDown(t *testing.T) {
	r := newRig(t, nil, withState(func(st *State) { st.Identifier = down{} }))
	client := r.dial()
	client.Send("GET", "/v1/models", "", "Authorization: Bearer x")
	resp, answer := client.Answer()
	wantError(t, resp, answer, 503, "unavailable")
	if resp.Header.Get("Retry-After") != "5" || len(r.meter.auth) != 1 || r.meter.auth[0] != tenancy.AuthKeysDown {
		t.Errorf("Retry-After %q, counted %v", resp.Header.Get("Retry-After"), r.meter.auth)
	}
}

// down knows nobody for the moment.
type down struct{}

// Identify implements Identifier.
func (down) Identify(context.Context, *tenancy.Credentials, time.Time) (*tenancy.Principal, error) {
	return nil, &tenancy.AuthError{Reason: tenancy.AuthKeysDown}
}

// What a key can be made for is what routes are called.
func TestOperationsAreThoseOfTheRoutes(t *testing.T) {
	known := make(map[string]bool)
	for _, name := range tenancy.Operations() {
		known[name] = true
	}
	for _, r := range allRoutes {
		if r.operation != "" && !known[r.operation] {
			t.Errorf("%s is the operation %q, which no key can be for", r.template, r.operation)
		}
	}
}
