package gateway

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/sluicegate/sluice/gateway/gatewaytest"
	"github.com/sluicegate/sluice/policy"
)

// TestPromptStaysInItsPools: no worker is shown a prompt, be it to count its tokens
// or to compare them, before the decision, outside the pools that it leaves, or if
// it is a denial; a policy that wants the count meanwhile gets what is known here.
func TestPromptStaysInItsPools(t *testing.T) {
	here := Tokens{IDs: []uint32{7, 8}, Count: 2, Exact: true, Local: true}
	elsewhere := Tokens{Count: 9, AskWorker: true}
	for _, c := range []struct {
		name            string
		local           Tokens
		deny            bool
		told            int64 // to policies
		exact           bool
		remote, sampled [][]string
	}{
		{name: "known here", local: here, told: 2, exact: true, sampled: [][]string{{"p", "q"}}},
		{name: "known here, denied", local: here, deny: true, told: 2, exact: true},
		{name: "known to workers", local: elsewhere, told: 2, remote: [][]string{{"p", "q"}}},
		{name: "known to workers, denied", local: elsewhere, deny: true, told: 2},
		{name: "known to nobody", local: Tokens{Count: 9}, told: 2},
	} {
		t.Run(c.name, func(t *testing.T) {
			worker := gatewaytest.NewWorker(t, gatewaytest.Chat("a"))
			tok := &askedTokenizer{local: c.local}
			r := newRig(t, []string{worker.URL()}, withParts(func(p *Parts) { p.Tokenizer = tok }))
			r.decider.set(func(ctx context.Context, in *policy.Input) *policy.Decision {
				if n, exact, err := in.Lazy.InputTokens(ctx); n != c.told || exact != c.exact || err != nil {
					t.Errorf("policies are told %d, %v, %v; want %d, %v", n, exact, err, c.told, c.exact)
				}
				tok.decides()
				if c.deny {
					return &policy.Decision{Status: 403, Reason: policy.Forbidden, Message: "no"}
				}
				d := allow(in)
				d.Pools = []string{"p", "q"}
				return d
			})
			want := 200
			if c.deny {
				want = 403
			}
			if resp, body := r.chat(chatBody).Answer(); resp.StatusCode != want {
				t.Fatalf("got %d %s", resp.StatusCode, body)
			}
			r.row()
			same := func(a, b [][]string) bool { return slices.EqualFunc(a, b, slices.Equal[[]string]) }
			if tok.early != 0 || !same(tok.remote, c.remote) || !same(tok.samples, c.sampled) {
				t.Errorf("asked in %v, sampled in %v, %d too early; want %v, %v, none", tok.remote, tok.samples, tok.early, c.remote, c.sampled)
			}
		})
	}
}

// toRestricted keeps every request of the pool q's policy there.
var toRestricted = bound("pin", "Deny", `
  effects:
    - { name: only-q, route: { allowPools: [q] } }
`)

// TestAttemptsStayInTheirPools: not the first attempt, not a retry after a failure of
// every kind, and not for want of a ready worker does a request leave the pools that
// the policies left, however idle another pool is.
func TestAttemptsStayInTheirPools(t *testing.T) {
	var requests atomic.Int32
	flaky := func(x *gatewaytest.Exchange) { // every other request finds a worker that ends the connection
		if requests.Add(1)%2 == 1 {
			gatewaytest.CloseBeforeHead(gatewaytest.RST)(x)
			return
		}
		gatewaytest.Chat("a")(x)
	}
	for _, c := range []struct {
		name   string
		inside []gatewaytest.Behaviour // one worker each
		ready  bool
		status int
		code   string
		tries  int
	}{
		{"served", []gatewaytest.Behaviour{gatewaytest.Chat("a")}, true, 200, "", 1},
		{"retried", []gatewaytest.Behaviour{flaky, flaky}, true, 200, "", 2},
		{"all fail", []gatewaytest.Behaviour{gatewaytest.CloseBeforeHead(gatewaytest.RST), gatewaytest.CloseBeforeHead(gatewaytest.RST)}, true, 502, "upstream_error", 2},
		{"all saturated", []gatewaytest.Behaviour{gatewaytest.Fail(503), gatewaytest.Fail(503)}, true, 503, "overloaded", 2},
		{"none ready", []gatewaytest.Behaviour{gatewaytest.Chat("a")}, false, 503, "unavailable", 0},
		{"no worker", nil, false, 503, "unavailable", 0},
	} {
		for form, body := range map[string]string{"unary": chatBody, "stream": streamBody} {
			t.Run(c.name+", "+form, func(t *testing.T) {
				outside := gatewaytest.NewWorker(t, gatewaytest.Chat("a"))
				r := newRig(t, []string{outside.URL()}, withPolicies(t, toRestricted),
					withParts(func(p *Parts) { p.Router = p.Router.(inOrder).Fleet }))
				for i, b := range c.inside {
					r.addWorker("q", fmt.Sprintf("q%d", i), gatewaytest.NewWorker(t, b).URL(), c.ready)
				}
				resp, text := r.chat(body).Answer()
				if resp.StatusCode != c.status || c.code != "" && !strings.Contains(text, `"code":"`+c.code+`"`) {
					t.Errorf("got %d %s, want %d %s", resp.StatusCode, text, c.status, c.code)
				}
				row := r.row()
				if row.Attempts != c.tries || row.Pool != "" && row.Pool != "q" {
					t.Errorf("%d attempts, the last in %q; want %d in q", row.Attempts, row.Pool, c.tries)
				}
				if n := len(outside.Seen()); n != 0 {
					t.Errorf("the worker outside got %d requests", n)
				}
			})
		}
	}
}

// TestWarningsChangeNothingElse: a Warn binding whose effects would route, cap, demote
// and isolate, and whose validation fails, changes the Warning header and no byte of
// what the worker gets.
func TestWarningsChangeNothingElse(t *testing.T) {
	const spec = `
  validations:
    - { name: v, expression: "false", message: mind this }
  effects:
    - { name: e, route: { allowPools: [q] }, mutate: { max_tokens: 5, n: 1 }, qos: { class: batch, preemptible: true }, cacheIsolation: principal }
`
	body := `{"model":"m","messages":[{"role":"user","content":"hello"}],"max_tokens":50,"n":2}`
	send := func(opts ...rigOption) (http.Header, string, *Summary) {
		worker := gatewaytest.NewWorker(t, gatewaytest.Chat("a"))
		r := newRig(t, []string{worker.URL()}, opts...)
		resp, text := r.chat(body).Answer()
		if resp.StatusCode != 200 {
			t.Fatalf("got %d %s", resp.StatusCode, text)
		}
		row := r.row()
		if row.Pool != "p" || len(row.Labels) != 0 || row.PolicyRule != "" {
			t.Errorf("row %+v", row)
		}
		return resp.Header, string(worker.Next(t).Body), r.meter.last()
	}
	plainHeader, plainBody, plain := send(withPolicies(t, bound("w", "Deny", "  validations:\n    - { name: v, expression: \"true\" }\n")))
	header, warnedBody, warned := send(withPolicies(t, bound("w", "Warn", spec)))
	if got := header.Values("Warning"); !slices.Equal(got, []string{`299 sluice "w/v: mind this"`}) {
		t.Errorf("warnings %q", got)
	}
	if warnedBody != plainBody {
		t.Errorf("the worker got\n%s\nwithout the binding\n%s", warnedBody, plainBody)
	}
	if warned.Row.Class != plain.Row.Class || warned.Row.Flags != plain.Row.Flags || warned.Row.Status != plain.Row.Status {
		t.Errorf("row %+v, without the binding %+v", warned.Row, plain.Row)
	}
	header.Del("Warning")
	for _, h := range []http.Header{header, plainHeader} {
		for _, name := range []string{"Date", "X-Request-Id", "X-Sluice-Decision-Id"} {
			h.Del(name)
		}
	}
	if len(header) != len(plainHeader) {
		t.Errorf("headers %v, without the binding %v", header, plainHeader)
	}
}

// TestSaltIsTheFormats holds the salt that a worker gets to values computed outside of
// this program, with openssl dgst -sha256 -hmac over the parts and their lengths.
func TestSaltIsTheFormats(t *testing.T) {
	for _, c := range []struct{ scope, client, want string }{
		{"tenant", "", "Wp6FjKMTEm_dT1NB6m2bb9DDlVF5z9tdkfdwn3j8RyY"},
		{"tenant", "mine", "BxPJ2auL2lEp579t_4o03ovIeirZPCVXnxsIb01VqK0"},
		{"principal", "", "QIleptxeDM-pbpGRT_Y2fyoFdcmvePnxMeQVvgHOhk8"},
		{"principal", "mine", "aM137c2nqMFJfOz8DR_0FQrYGiS6ETvQoec5XX2vey4"},
		{"none", "mine", "opXscCeMiPzMXgVjP4X-rJjRriMLQz0m1ftAUXRL0lU"},
	} {
		worker := gatewaytest.NewWorker(t, gatewaytest.Chat("a"))
		r := newRig(t, []string{worker.URL()})
		r.decider.set(func(_ context.Context, in *policy.Input) *policy.Decision {
			d := allow(in)
			d.CacheIsolation = c.scope
			return d
		})
		body := chatBody
		if c.client != "" {
			body = strings.Replace(body, `{"model"`, `{"cache_salt":"`+c.client+`","model"`, 1)
		}
		if resp, text := r.chat(body).Answer(); resp.StatusCode != 200 {
			t.Fatalf("got %d %s", resp.StatusCode, text)
		}
		if sent := string(worker.Next(t).Body); !strings.Contains(sent, `"cache_salt":"`+c.want+`"`) {
			t.Errorf("%s, %q: the worker got %s, want the salt %s", c.scope, c.client, sent, c.want)
		}
	}
}
