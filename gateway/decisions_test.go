package gateway

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sluicegate/sluice/gateway/gatewaytest"
	"github.com/sluicegate/sluice/policy"
	"github.com/sluicegate/sluice/tenancy"
)

// notedDecisions is a decision log that keeps what it is told.
type notedDecisions struct {
	full atomic.Bool // and must not lose a record
	drop bool        // every record is left out by the sampling

	mu    sync.Mutex
	lines []string // what was noted, in order
	ids   map[string]bool
	last  settled
}

// settled is what the log was told of a settlement.
type settled struct {
	usage              policy.Usage
	charged, available []int64
	limits             int
}

// Ready implements Decisions.
func (n *notedDecisions) Ready() bool { return !n.full.Load() }

// Decided implements Decisions.
func (n *notedDecisions) Decided(id, requestID string, at time.Time, in *policy.Input, d *policy.Decision) bool {
	verdict := "allow"
	if !d.Allow {
		verdict = "deny " + string(d.Reason)
	}
	n.note(id, "%s %s for %s of %d limits", verdict, in.Request.Operation, requestID, len(d.Limits))
	return !n.drop
}

// Rehearsed implements Decisions.
func (n *notedDecisions) Rehearsed(id string, at time.Time, o policy.RehearsalOutcome) {
	if o.LeftOut {
		n.note(id, "left out")
		return
	}
	n.note(id, "would deny %d", len(o.WouldDeny))
}

// Settled implements Decisions.
func (n *notedDecisions) Settled(id string, at time.Time, outcome, pool string, _ time.Duration, u policy.Usage, d *policy.Decision, charged, available []int64) {
	n.note(id, "%s in %q", outcome, pool)
	n.mu.Lock()
	defer n.mu.Unlock()
	n.last = settled{u, charged, available, len(d.Limits)}
}

func (n *notedDecisions) note(id, format string, args ...any) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.lines = append(n.lines, fmt.Sprintf(format, args...))
	if n.ids == nil {
		n.ids = make(map[string]bool)
	}
	n.ids[id] = true
}

// TestDecisionsAreNoted: every request that policies have judged has one decision and,
// if it was let in, one settlement, whatever became of it, with one id that the answer
// and the ledger have too; a rehearsal is noted before the settlement.
func TestDecisionsAreNoted(t *testing.T) {
	deny := bound("deny", "Deny", "  validations:\n    - { name: v, expression: \"false\" }\n")
	limit := bound("limit", "Deny", "  limits:\n    - { name: l, unit: tokens, window: 1h, limit: 50, key: [], estimate: 50 }\n")
	shadow := bound("shadow", "Audit", "  validations:\n    - { name: v, expression: \"false\" }\n")
	for _, c := range []struct {
		name, policies string
		worker         gatewaytest.Behaviour
		body           string // empty: the models are listed
		requests       int
		status         int
		want           []string
	}{
		{"answered", limit, gatewaytest.Chat("a"), chatBody, 1, 200, []string{"allow chat for mine of 1 limits", `completed in "p"`}},
		{"streamed", limit, gatewaytest.Chat("a"), streamBody, 1, 200, []string{"allow chat for mine of 1 limits", `completed in "p"`}},
		{"rehearsed", shadow, gatewaytest.Chat("a"), chatBody, 1, 200, []string{"allow chat for mine of 0 limits", "would deny 1", `completed in "p"`}},
		{"rehearsed stream", shadow, gatewaytest.Chat("a"), streamBody, 1, 200, []string{"allow chat for mine of 0 limits", "would deny 1", `completed in "p"`}},
		{"denied", deny, gatewaytest.Chat("a"), chatBody, 1, 403, []string{"deny Forbidden chat for mine of 0 limits"}},
		{"denied and rehearsed", deny + shadow, gatewaytest.Chat("a"), streamBody, 1, 403, []string{"deny Forbidden chat for mine of 0 limits", "would deny 1"}},
		{"over a limit", limit, gatewaytest.Chat("a"), chatBody, 2, 429, []string{
			"allow chat for mine of 1 limits", `completed in "p"`, "deny RateLimited chat for mine of 0 limits",
		}},
		{"refused by the worker", limit, gatewaytest.Fail(400), chatBody, 1, 400, []string{"allow chat for mine of 1 limits", `upstream_error in "p"`}},
		{"failed", limit, gatewaytest.Fail(500), chatBody, 1, 502, []string{"allow chat for mine of 1 limits", `upstream_error in "p"`}},
		{"failed within a stream", limit, gatewaytest.ErrorInStream(500, "a"), streamBody, 1, 200, []string{"allow chat for mine of 1 limits", `upstream_error in "p"`}},
		{"no worker", limit, nil, chatBody, 1, 503, []string{"allow chat for mine of 1 limits", `not_sent in ""`}},
		{"without a worker", shadow, nil, "", 1, 200, []string{"allow models for mine of 0 limits", "would deny 1", `completed in ""`}},
		{"not judged", deny, nil, `{"model":"nope","messages":[]}`, 1, 404, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			var workers []string
			if c.worker != nil {
				workers = []string{gatewaytest.NewWorker(t, c.worker).URL()}
			}
			log := &notedDecisions{}
			r := newRig(t, workers, withPolicies(t, c.policies), withParts(func(p *Parts) { p.Decisions = log }))
			ids := make(map[string]bool)
			for i := range c.requests {
				conn := r.dial()
				method, target := "POST", "/v1/chat/completions"
				if c.body == "" {
					method, target = "GET", "/v1/models"
				}
				conn.Send(method, target, c.body, "Authorization: Bearer "+goodKey, "X-Request-Id: mine")
				resp, text := conn.Answer()
				if i == c.requests-1 && resp.StatusCode != c.status {
					t.Fatalf("got %d %s, want %d", resp.StatusCode, text, c.status)
				}
				eventually(t, "the request to end", func() bool { return r.meter.count() == i+1 })
				r.idle()
				id := resp.Header.Get("X-Sluice-Decision-Id")
				if row := r.ledger.all()[i]; row.DecisionID != id || (id != "") != (c.want != nil) {
					t.Errorf("the answer has the decision id %q, the row %q", id, row.DecisionID)
				}
				for _, in := range r.ledger.intents {
					if i == 0 && in.DecisionID != id {
						t.Errorf("the intent has the decision id %q, the answer %q", in.DecisionID, id)
					}
				}
				if id != "" {
					ids[id] = true
				}
			}
			if !slices.Equal(log.lines, c.want) {
				t.Errorf("noted %q, want %q", log.lines, c.want)
			}
			if len(ids) != len(log.ids) {
				t.Errorf("answers have the ids %v, the log %v", ids, log.ids)
			}
			for id := range ids {
				if !log.ids[id] {
					t.Errorf("the log lacks %s", id)
				}
			}
		})
	}
}

// TestLeavingIsSettled: a client that leaves has a settlement too, before and after a
// worker had its request.
func TestLeavingIsSettled(t *testing.T) {
	worker := gatewaytest.NewWorker(t, gatewaytest.StallAfter(gatewaytest.RoleEvent, gatewaytest.ContentEvent("a", "")))
	log := &notedDecisions{}
	r := newRig(t, []string{worker.URL()}, withParts(func(p *Parts) { p.Decisions = log }))
	c := r.chat(streamBody)
	if _, err := gatewaytest.NewEventReader(c.Head().Body).Next(); err != nil {
		t.Fatal(err)
	}
	c.Leave(gatewaytest.RST)
	r.row()
	if n := len(log.lines); n != 2 || log.lines[1] != `client_aborted in "p"` {
		t.Errorf("noted %q", log.lines)
	}
	if log.last.usage.Complete || log.last.usage.OutputTokens != 1 {
		t.Errorf("the usage is %+v, want the gateway's own count of one token", log.last.usage)
	}
}

// TestLeavingBeforeTheReservation: a decision that was made is noted even if its
// client is gone before anything came of it.
func TestLeavingBeforeTheReservation(t *testing.T) {
	log := &notedDecisions{}
	r := newRig(t, nil, withParts(func(p *Parts) { p.Decisions = log }))
	entered := make(chan struct{})
	r.decider.set(func(ctx context.Context, in *policy.Input) *policy.Decision {
		close(entered)
		<-ctx.Done()
		return allow(in)
	})
	c := r.chat(chatBody)
	<-entered
	c.Leave(gatewaytest.RST)
	r.row()
	if len(log.lines) != 2 || !strings.HasPrefix(log.lines[0], "allow chat") || log.lines[1] != `client_aborted in ""` {
		t.Errorf("noted %q", log.lines)
	}
}

// TestSampledOut: what the log leaves out it isn't told the end of, and the answer has
// its id all the same.
func TestSampledOut(t *testing.T) {
	worker := gatewaytest.NewWorker(t, gatewaytest.Chat("a"))
	log := &notedDecisions{drop: true}
	shadow := bound("shadow", "Audit", "  validations:\n    - { name: v, expression: \"false\" }\n")
	r := newRig(t, []string{worker.URL()}, withPolicies(t, shadow), withParts(func(p *Parts) { p.Decisions = log }))
	resp, _ := r.chat(chatBody).Answer()
	r.row()
	if len(log.lines) != 1 || resp.Header.Get("X-Sluice-Decision-Id") == "" {
		t.Errorf("noted %q, headers %v", log.lines, resp.Header)
	}
}

// TestFullDecisionLogRefuses: where no decision may go unrecorded and there is no room
// for one, requests are refused before they are judged.
func TestFullDecisionLogRefuses(t *testing.T) {
	worker := gatewaytest.NewWorker(t, gatewaytest.Chat("a"))
	log := &notedDecisions{}
	log.full.Store(true)
	r := newRig(t, []string{worker.URL()}, withParts(func(p *Parts) { p.Decisions = log }))
	judged := 0
	r.decider.set(func(_ context.Context, in *policy.Input) *policy.Decision {
		judged++
		return allow(in)
	})
	resp, body := r.chat(chatBody).Answer()
	wantError(t, resp, body, 503, "unavailable")
	if resp.Header.Get("Retry-After") != "5" || resp.Header.Get("X-Sluice-Decision-Id") != "" {
		t.Errorf("headers %v", resp.Header)
	}
	if row := r.row(); row.Outcome != tenancy.OutcomeRejected || judged != 0 || len(log.lines) != 0 || len(worker.Seen()) != 0 {
		t.Errorf("row %+v, judged %d times, noted %q", row, judged, log.lines)
	}
	log.full.Store(false)
	if resp, body := r.chat(chatBody).Answer(); resp.StatusCode != 200 {
		t.Errorf("with room again: %d %s", resp.StatusCode, body)
	}
	r.idle()
}

// TestSettlementNumbers: what the log is told of each limit is what its counter was
// charged and what it has left.
func TestSettlementNumbers(t *testing.T) {
	worker := gatewaytest.NewWorker(t, gatewaytest.Chat("a", "b", "c"))
	log := &notedDecisions{}
	policies := bound("limits", "Deny", `
  limits:
    - { name: day, unit: tokens, window: day, limit: 1000, key: [], estimate: 100 }
    - { name: slots, unit: concurrency, limit: 5, key: [] }
    - { name: twice, unit: tokens, window: day, limit: 20, key: [], estimate: 5, charge: "2 * usage.input_tokens + usage.output_tokens" }
`) + bound("warns", "Warn", "  limits:\n    - { name: none, unit: tokens, window: day, limit: 10, key: [], estimate: 10, charge: \"11\" }\n")
	r := newRig(t, []string{worker.URL()}, withPolicies(t, policies), withParts(func(p *Parts) { p.Decisions = log }))
	if resp, text := r.chat(chatBody).Answer(); resp.StatusCode != 200 {
		t.Fatalf("got %d %s", resp.StatusCode, text)
	}
	r.row()
	if l := log.last; l.limits != 4 || !slices.Equal(l.charged, []int64{13, 0, 23, 11}) || !slices.Equal(l.available, []int64{987, 5, -3, -1}) {
		t.Errorf("told of %d limits: charged %v, available %v", l.limits, l.charged, l.available)
	}
	if u := log.last.usage; u.InputTokens != 10 || u.OutputTokens != 3 || !u.Complete {
		t.Errorf("told the usage %+v", u)
	}
}
