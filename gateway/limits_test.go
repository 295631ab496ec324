package gateway

import (
	"bytes"
	"context"
	"encoding/json"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sluicegate/sluice/gateway/gatewaytest"
	"github.com/sluicegate/sluice/policy"
	"github.com/sluicegate/sluice/ratelimit"
)

// available is what a limit's counter has left.
func (r *rig) available(l policy.Limit) int64 {
	c := r.g.claim(&l, "acme")
	return r.limiter.Peek(time.Now(), []ratelimit.Claim{c})[0].Remaining
}

// TestReservationIsAllOrNothing: a request that one enforced limit refuses takes
// nothing of the others, and gives back what its warning limits had taken.
func TestReservationIsAllOrNothing(t *testing.T) {
	worker := gatewaytest.NewWorker(t, gatewaytest.Chat("a"))
	r := newRig(t, []string{worker.URL()})
	var limits []policy.Limit
	set := compile(t, bound("p", "Deny", `
  limits:
    - { name: wide, unit: requests, window: day, limit: 10, key: [] }
    - { name: slots, unit: concurrency, limit: 4, key: [] }
    - { name: narrow, unit: requests, window: day, limit: 1, key: [] }
`)+bound("w", "Warn", "  limits:\n    - { name: warned, unit: requests, window: day, limit: 10, key: [] }\n"))
	r.decider.set(func(ctx context.Context, in *policy.Input) *policy.Decision {
		d := set.Decide(ctx, in)
		limits = slices.Clone(d.Limits)
		return d
	})
	left := func() (out []int64) {
		for _, l := range limits {
			out = append(out, r.available(l))
		}
		return out
	}
	if resp, body := r.chat(chatBody).Answer(); resp.StatusCode != 200 {
		t.Fatalf("got %d %s", resp.StatusCode, body)
	}
	r.idle()
	before := left()
	for range 3 {
		resp, body := r.chat(chatBody).Answer()
		wantError(t, resp, body, 429, "insufficient_quota")
		r.idle()
		if after := left(); !slices.Equal(before, after) {
			t.Fatalf("the counters had %v left and have %v after a refusal", before, after)
		}
	}
	if !slices.Equal(before, []int64{9, 4, 0, 9}) {
		t.Errorf("the counters have %v left after one request", before)
	}
}

// TestNothingIsChargedWithoutAnEngine: whatever a charge says, a request that no worker
// has got costs nothing.
func TestNothingIsChargedWithoutAnEngine(t *testing.T) {
	var limits []policy.Limit
	set := compile(t, bound("p", "Deny", "  limits:\n    - { name: l, unit: tokens, window: day, limit: 100, key: [], estimate: 50, charge: \"90\" }\n"))
	log := &notedDecisions{}
	r := newRig(t, nil, withParts(func(p *Parts) { p.Decisions = log }))
	r.decider.set(func(ctx context.Context, in *policy.Input) *policy.Decision {
		d := set.Decide(ctx, in)
		limits = slices.Clone(d.Limits)
		return d
	})
	for range 3 {
		resp, body := r.chat(chatBody).Answer()
		wantError(t, resp, body, 503, "unavailable")
		r.idle()
		if n := r.available(limits[0]); n != 100 || !slices.Equal(log.last.charged, []int64{0}) || !slices.Equal(log.last.available, []int64{100}) {
			t.Fatalf("%d are left, and the log was told %+v", n, log.last)
		}
	}
}

// brokenStore is a Limiter that can't reach some counters.
type brokenStore struct {
	*ratelimit.Limiter
	broken  func(counter string) bool
	charges bool // it can be charged even so
}

// Reserve implements Limiter.
func (b *brokenStore) Reserve(ctx context.Context, now time.Time, claims []ratelimit.Claim) (ratelimit.Reservation, []ratelimit.Failure) {
	var failures []ratelimit.Failure
	for i := range claims {
		if b.broken(claims[i].Counter) {
			failures = append(failures, ratelimit.Failure{Index: i, Wait: time.Second, Store: ratelimit.StoreDown})
		}
	}
	if len(failures) > 0 {
		return nil, failures
	}
	return b.Limiter.Reserve(ctx, now, claims)
}

// Charge implements Limiter.
func (b *brokenStore) Charge(ctx context.Context, now time.Time, c ratelimit.Claim) bool {
	return b.charges && b.Limiter.Charge(ctx, now, c)
}

// TestOnStoreError: a limit whose counter can't be reached refuses, unless it says
// Allow: then it is charged when the request is settled, if it can be by then, and the
// other limits are reserved as ever.
func TestOnStoreError(t *testing.T) {
	for _, c := range []struct {
		name, onStoreError, actions string
		charges                     bool
		status                      int
		charged, available          []int64 // by limit: other, then store
		left                        int64
		warning, would, unsent      bool
	}{
		{name: "deny", onStoreError: "Deny", actions: "Deny", status: 503, left: 100},
		{name: "local", onStoreError: "Local", actions: "Deny", status: 503, left: 100},
		{name: "allow", onStoreError: "Allow", actions: "Deny", charges: true, status: 200, charged: []int64{1, 13}, left: 87},
		{name: "allow, and it stays broken", onStoreError: "Allow", actions: "Deny", status: 200, charged: []int64{1, 0}, left: 100},
		{name: "warn", onStoreError: "Deny", actions: "Warn", status: 200, charged: []int64{1, 0}, left: 100, warning: true},
		{name: "warn and allow", onStoreError: "Allow", actions: "Warn", charges: true, status: 200, charged: []int64{1, 13}, left: 87},
		{name: "allow, and no worker gets it", onStoreError: "Allow", actions: "Deny", charges: true, unsent: true, status: 503, charged: []int64{0, 0}, left: 100},
		{name: "audit", onStoreError: "Deny", actions: "Audit", status: 200, charged: []int64{1}, would: true},
		{name: "audit and allow", onStoreError: "Allow", actions: "Audit", status: 200, charged: []int64{1}},
	} {
		t.Run(c.name, func(t *testing.T) {
			worker := gatewaytest.NewWorker(t, gatewaytest.Chat("a", "b", "c"))
			charge := ""
			if c.unsent {
				charge = `, charge: "7"`
			}
			set := compile(t, bound("other", "Deny", "  limits:\n    - { name: l, unit: requests, window: day, limit: 10, key: [] }\n")+
				bound("store", c.actions, "  limits:\n    - { name: l, unit: tokens, window: day, limit: 100, key: [], estimate: 50, onStoreError: "+c.onStoreError+charge+" }\n"))
			store := &brokenStore{broken: func(counter string) bool { return strings.Contains(counter, "store") }, charges: c.charges}
			log, out := &notedDecisions{}, &bytes.Buffer{}
			workers := []string{worker.URL()}
			if c.unsent {
				workers = nil
			}
			r := newRig(t, workers, withParts(func(p *Parts) {
				store.Limiter = p.Limiter.(*ratelimit.Limiter)
				p.Limiter, p.Decisions, p.Log = store, log, slog.New(slog.NewTextHandler(out, nil))
			}))
			var limits []policy.Limit
			r.decider.set(func(ctx context.Context, in *policy.Input) *policy.Decision {
				d := set.Decide(ctx, in)
				limits = slices.Clone(d.Limits)
				return d
			})
			resp, body := r.chat(chatBody).Answer()
			if resp.StatusCode != c.status || (resp.Header.Get("Warning") != "") != c.warning {
				t.Fatalf("got %d %v %s, want %d", resp.StatusCode, resp.Header, body, c.status)
			}
			r.idle()
			if c.status == 503 && !strings.Contains(body, `"code":"unavailable"`) {
				t.Errorf("got %s", body)
			}
			if !slices.Equal(log.last.charged, c.charged) {
				t.Errorf("charged %v, want %v", log.last.charged, c.charged)
			}
			if c.actions == "Audit" {
				if told := r.meter.rehearsals(); len(told) != 1 || (len(told[0].WouldDeny) == 1) != c.would {
					t.Errorf("told %+v", told)
				}
			} else if n := r.available(limits[1]); n != c.left {
				t.Errorf("%d are left of the limit, want %d", n, c.left)
			}
			if want := map[bool]int64{true: 9, false: 10}[c.status == 200]; r.available(limits[0]) != want {
				t.Errorf("%d are left of the other limit, want %d", r.available(limits[0]), want)
			}
			if lost := c.onStoreError == "Allow" && !c.charges && c.actions != "Audit"; lost != strings.Contains(out.String(), "cannot charge a limit") {
				t.Errorf("the log says\n%s", out)
			}
		})
	}
}

// TestDenialsInTheOtherDialect holds the policy format's table of refusals to the
// Messages API's types.
func TestDenialsInTheOtherDialect(t *testing.T) {
	for _, c := range []struct {
		reason policy.Reason
		status int
		kind   string
		code   string
	}{
		{policy.Forbidden, 403, "permission_error", "policy_denied"},
		{policy.PolicyError, 403, "permission_error", "policy_denied"},
		{policy.NoPermittedPool, 403, "permission_error", "policy_denied"},
		{policy.NoQuota, 403, "permission_error", "policy_denied"},
		{policy.Invalid, 400, "invalid_request_error", "policy_invalid"},
		{policy.ExceedsLimit, 400, "invalid_request_error", "request_exceeds_limit"},
		{policy.RateLimited, 429, "rate_limit_error", "rate_limit_exceeded"},
		{policy.BudgetExhausted, 429, "rate_limit_error", "insufficient_quota"},
		{policy.LimitStoreUnavailable, 503, "api_error", "unavailable"},
	} {
		ex := &exchange{decision: &policy.Decision{Status: c.status, Reason: c.reason, Rule: "a/b", Message: "because"}}
		rej := ex.denied()
		var got struct {
			Type  string
			Error struct {
				Type, Message string
				Details       struct {
					Code string `json:"error_code"`
				}
			}
			RequestID string `json:"request_id"`
		}
		if err := json.Unmarshal(rej.body(dialectAnthropic, "r1"), &got); err != nil {
			t.Fatal(err)
		}
		if rej.status != c.status || got.Type != "error" || got.Error.Type != c.kind || got.Error.Details.Code != c.code || got.Error.Message != "because" || got.RequestID != "r1" {
			t.Errorf("%s: %d %+v, want %d %s %s", c.reason, rej.status, got, c.status, c.kind, c.code)
		}
	}
}

// TestStreamsAreDeniedInPlainJSON: nothing has been sent yet, so a refusal of a
// streaming request is one of any other.
func TestStreamsAreDeniedInPlainJSON(t *testing.T) {
	worker := gatewaytest.NewWorker(t, gatewaytest.Chat("a"))
	for name, text := range map[string]string{
		"policy_denied":         bound("p", "Deny", "  validations:\n    - { name: v, expression: \"false\", message: no }\n"),
		"request_exceeds_limit": bound("p", "Deny", "  limits:\n    - { name: l, unit: requests, window: 1m, limit: 1, key: [], estimate: 2 }\n"),
	} {
		r := newRig(t, []string{worker.URL()}, withPolicies(t, text))
		resp, body := r.chat(streamBody).Answer()
		want := map[string]int{"policy_denied": 403, "request_exceeds_limit": 400}[name]
		wantError(t, resp, body, want, name)
		if got := resp.Header.Get("Content-Type"); got != "application/json" || !json.Valid([]byte(body)) || resp.ContentLength < 0 {
			t.Errorf("%s: a body of type %q and length %d: %s", name, got, resp.ContentLength, body)
		}
		r.idle()
	}
}

// TestReadinessDetails: words about what is amiss stand beside either state, and
// change neither it nor its status.
func TestReadinessDetails(t *testing.T) {
	var reasons, details []string
	r := newRig(t, nil, withParts(func(p *Parts) {
		p.Ready = func() []string { return reasons }
		p.Details = func() []string { return details }
	}))
	for _, c := range []struct {
		reasons, details []string
		status           int
		body             string
	}{
		{nil, nil, 200, `{"status":"ready"}`},
		{nil, []string{"policy_reload_failed"}, 200, `{"status":"ready","details":["policy_reload_failed"]}`},
		{[]string{"no_worker"}, []string{"policy_reload_failed"}, 503, `{"status":"not_ready","reasons":["no_worker"],"details":["policy_reload_failed"]}`},
		{[]string{"no_worker"}, nil, 503, `{"status":"not_ready","reasons":["no_worker"]}`},
	} {
		reasons, details = c.reasons, c.details
		conn := r.dial()
		conn.Send("GET", "/readyz", "")
		if resp, body := conn.Answer(); resp.StatusCode != c.status || body != c.body || (resp.Header.Get("Retry-After") != "") != (c.status == 503) {
			t.Errorf("got %d %v %s, want %d %s", resp.StatusCode, resp.Header, body, c.status, c.body)
		}
	}
	r.idle()
}
