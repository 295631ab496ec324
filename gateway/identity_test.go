package gateway

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sluicegate/sluice/gateway/gatewaytest"
	"github.com/sluicegate/sluice/tenancy"
)

func TestCredential(t *testing.T) {
	for _, c := range []struct {
		pairs        []string
		cred, reason string
	}{
		{[]string{}, "", "missing"},
		{[]string{"Authorization", "Bearer abc"}, "abc", ""},
		{[]string{"Authorization", "bEARER   abc "}, "abc", ""},
		{[]string{"Authorization", "Basic abc"}, "", "not_bearer"},
		{[]string{"Authorization", "abc"}, "", "not_bearer"},
		{[]string{"Authorization", "Bearer "}, "", "empty"},
		{[]string{"X-Api-Key", ""}, "", "empty"},
		{[]string{"X-Api-Key", "abc"}, "abc", ""},
		{[]string{"api-key", "abc"}, "abc", ""},
		{[]string{"Authorization", "Bearer abc", "X-Api-Key", "abc"}, "abc", ""},
		{[]string{"Authorization", "Bearer abc", "X-Api-Key", "abd"}, "", "conflicting"},
		{[]string{"X-Api-Key", "abc", "api-key", "x"}, "", "conflicting"},
		{[]string{"X-Api-Key", "abc", "X-Api-Key", "abc"}, "", "repeated_header"},
		{[]string{"X-Api-Key", "a c"}, "", "malformed"},
		{[]string{"X-Api-Key", "a\x01c"}, "", "malformed"},
	} {
		cred, reason := credential(header(c.pairs...))
		if string(cred) != c.cred || reason != c.reason {
			t.Errorf("%q: got %q, %q; want %q, %q", c.pairs, cred, reason, c.cred, c.reason)
		}
	}
}

// countingIdentifier counts how often it is asked.
type countingIdentifier struct {
	mu    sync.Mutex
	asked int
	known func(c *tenancy.Credentials) (*tenancy.Principal, error)
}

func (i *countingIdentifier) Identify(_ context.Context, c *tenancy.Credentials, _ time.Time) (*tenancy.Principal, error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.asked++
	return i.known(c)
}

func (i *countingIdentifier) count() int {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.asked
}

// TestOneIdentificationARequest: whoever checks a signature, or waits for keys,
// does so once, however the body is framed and whether it waits to be asked for.
func TestOneIdentificationARequest(t *testing.T) {
	for _, header := range [][]string{nil, {"Expect: 100-continue"}} {
		worker := gatewaytest.NewWorker(t, gatewaytest.Chat("a"))
		tenant := &tenancy.Tenant{ID: "acme"}
		by := &countingIdentifier{known: func(*tenancy.Credentials) (*tenancy.Principal, error) {
			return &tenancy.Principal{Kind: tenancy.KindJWT, ID: "jwt:i:s", Tenant: tenant}, nil
		}}
		r := newRig(t, []string{worker.URL()}, withState(func(st *State) { st.Identifier = by }))
		c := r.dial()
		for _, credential := range []string{"one", "other"} {
			c.Send("POST", "/v1/chat/completions", chatBody, append([]string{"Authorization: Bearer " + credential}, header...)...)
			resp, body := c.Answer()
			if header != nil && resp.StatusCode == 100 {
				resp, body = c.Answer()
			}
			if resp.StatusCode != 200 {
				t.Fatalf("%v: got %d %s", header, resp.StatusCode, body)
			}
		}
		r.idle()
		if n := by.count(); n != 2 {
			t.Errorf("%v: two requests were identified %d times", header, n)
		}
	}
}

// TestWhyCallersAreRefused: the client learns nothing of the reason; the metric
// and the log have it, by a word of the fixed list, and neither has the credential.
func TestWhyCallersAreRefused(t *testing.T) {
	const marked = "MARKED-credential"
	for _, c := range []struct {
		name   string
		err    error
		header []string
		reason string
		log    string
	}{
		{"a revoked key", &tenancy.AuthError{Reason: tenancy.AuthRevoked, KeyID: "k1"}, nil, "revoked", "revoked key k1"},
		{"a signature", &tenancy.AuthError{Reason: tenancy.AuthSignature, Cause: errors.New("of no key")}, nil, "signature", "signature: of no key"},
		{"wrapped", errors.Join(errors.New("first"), &tenancy.AuthError{Reason: tenancy.AuthExpired}), nil, "expired", "first"},
		{"a word of its own", &tenancy.AuthError{Reason: "moonphase"}, nil, "other", "moonphase"},
		{"an error without a word", errors.New("broken"), nil, "other", "broken"},
		{"two values", nil, []string{"X-Api-Key: " + marked + "2"}, "conflicting", "conflicting"},
		{"no bearer", nil, []string{"Authorization: Basic abc"}, "repeated_header", "repeated_header"},
	} {
		t.Run(c.name, func(t *testing.T) {
			var log syncBuffer
			r := newRig(t, nil, withParts(func(p *Parts) { p.Log = slog.New(slog.NewJSONHandler(&log, nil)) }),
				withState(func(st *State) {
					st.Identifier = &countingIdentifier{known: func(*tenancy.Credentials) (*tenancy.Principal, error) { return nil, c.err }}
				}))
			conn := r.dial()
			conn.Send("POST", "/v1/chat/completions", chatBody, append([]string{"Authorization: Bearer " + marked}, c.header...)...)
			resp, body := conn.Answer()
			wantError(t, resp, body, 401, "invalid_api_key")
			r.idle()
			if want := string(unauthorized(nil).body(dialectOpenAI, "")); body != want {
				t.Errorf("the answer is %s, want that of all others: %s", body, want)
			}
			r.meter.mu.Lock()
			reasons := slices.Clone(r.meter.auth)
			r.meter.mu.Unlock()
			if !slices.Equal(reasons, []string{c.reason}) {
				t.Errorf("the metric got %v, want %s once", reasons, c.reason)
			}
			if text := log.String(); !strings.Contains(text, `"cause":"`+c.log) || !strings.Contains(text, `"auth":"`+c.reason+`"`) || strings.Contains(text, marked) {
				t.Errorf("the log has %s", text)
			}
		})
	}
}

// syncBuffer is a buffer for several goroutines.
type syncBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *syncBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *syncBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

// waitingIdentifier waits, as for the keys of an issuer, for as long as it may.
type waitingIdentifier struct{ waits chan struct{} }

func (i waitingIdentifier) Identify(ctx context.Context, _ *tenancy.Credentials, _ time.Time) (*tenancy.Principal, error) {
	i.waits <- struct{}{}
	<-ctx.Done()
	return nil, &tenancy.AuthError{Reason: tenancy.AuthCancelled, Cause: ctx.Err()}
}

// TestWaitingToBeKnown ends when the client leaves, which is nobody's refusal, and
// when the gateway shuts down, which is none of the credential.
func TestWaitingToBeKnown(t *testing.T) {
	by := waitingIdentifier{make(chan struct{}, 1)}
	r := newRig(t, nil, withState(func(st *State) { st.Identifier = by }))
	c := r.chat(chatBody)
	<-by.waits
	c.Leave(gatewaytest.RST)
	r.idle()
	eventually(t, "the request's end", func() bool { return r.meter.count() == 1 })
	if row := r.meter.last().Row; row.Status != statusClientGone || row.Outcome != tenancy.OutcomeClientAborted {
		t.Errorf("a client that left: %+v", row)
	}
	c = r.chat(chatBody)
	<-by.waits
	r.shutdownAtOnce()
	resp, body := c.Answer()
	wantError(t, resp, body, 503, "unavailable")
}

// changingIdentifier knows everybody until somebody is taken back.
type changingIdentifier struct{ changes atomic.Uint64 }

func (i *changingIdentifier) Identify(context.Context, *tenancy.Credentials, time.Time) (*tenancy.Principal, error) {
	if i.changes.Load() > 0 {
		return nil, &tenancy.AuthError{Reason: tenancy.AuthRevoked}
	}
	return &tenancy.Principal{Kind: tenancy.KindJWT, ID: "jwt:i:s", Tenant: &tenancy.Tenant{ID: "acme"}}, nil
}

func (i *changingIdentifier) Changed() uint64 { return i.changes.Load() }

func (i *changingIdentifier) Stands(*tenancy.Principal) bool { return i.changes.Load() == 0 }

// TestRevokedWhileTheBodyComes: a request whose body is held back is not served for
// a credential that was revoked meanwhile, and no worker sees it.
func TestRevokedWhileTheBodyComes(t *testing.T) {
	for _, expect := range []string{"", "Expect: 100-continue\r\n"} {
		worker := gatewaytest.NewWorker(t, gatewaytest.Chat("a"))
		by := &changingIdentifier{}
		r := newRig(t, []string{worker.URL()}, withState(func(st *State) { st.Identifier = by }))
		c := r.dial()
		send := func(text string) {
			if err := c.Write(text); err != nil {
				t.Fatal(err)
			}
		}
		head := fmt.Sprintf("POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nAuthorization: Bearer x\r\nContent-Length: %d\r\n%s\r\n", len(chatBody), expect)
		if expect != "" {
			send(head)
			if resp, _ := c.Answer(); resp.StatusCode != 100 {
				t.Fatalf("got %d", resp.StatusCode)
			}
		} else {
			send(head + chatBody[:9])
			eventually(t, "the caller is known", func() bool {
				known := false
				r.g.live.each(func(ex *exchange) { known = known || ex.known.Load() != nil })
				return known
			})
		}
		by.changes.Add(1)
		if expect != "" {
			send(chatBody)
		} else {
			send(chatBody[9:])
		}
		resp, body := c.Answer()
		wantError(t, resp, body, 401, "invalid_api_key")
		r.idle()
		if n := len(worker.Seen()); n != 0 {
			t.Errorf("%q: the worker has seen %d requests", expect, n)
		}
	}
}
