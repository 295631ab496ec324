package gateway

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/sluicegate/sluice/gateway/gatewaytest"
	"github.com/sluicegate/sluice/policy"
	"github.com/sluicegate/sluice/tenancy"
)

// pricedAt is a Pricer with one price for a request.
type pricedAt int64

// Price implements Pricer.
func (p pricedAt) Price(row *tenancy.Row) { row.Costs.Output, row.Currency = int64(p), "EUR" }

// TestARequestKeepsItsGeneration: a swap while a stream runs changes nothing of it, to
// its charges, its price, its rehearsal and its row; the next request is the new
// generation's throughout.
func TestARequestKeepsItsGeneration(t *testing.T) {
	generation := func(charge int64) string {
		return bound("limits", "Deny", fmt.Sprintf(`
  limits:
    - { name: l, unit: tokens, window: day, limit: 1000, key: [], estimate: 10, charge: "%d + usage.cost" }
`, charge)) + bound("shadow", "Audit", fmt.Sprintf(`
  validations:
    - { name: v%d, expression: "!('pii' in content.labels)" }
`, charge))
	}
	open := make(chan struct{})
	worker := gatewaytest.NewWorker(t,
		gatewaytest.Gate(open, []string{gatewaytest.RoleEvent}, []string{gatewaytest.ContentEvent("a", "stop"), gatewaytest.UsageEvent(gatewaytest.Usage(10, 1)), gatewaytest.DoneEvent}),
		gatewaytest.Chat("a"))
	first, second := compile(t, generation(100)), compile(t, generation(200))
	old := &scanner{finds: policy.Content{ScanStatus: "complete", Labels: []string{"pii"}}, wait: make(chan struct{})}
	fresh := &scanner{finds: policy.Content{ScanStatus: "complete", Labels: []string{"pii"}}}
	log := &notedDecisions{}
	r := newRig(t, []string{worker.URL()}, withParts(func(p *Parts) { p.Decisions = log }), withState(func(st *State) {
		st.Policies, st.Pricer, st.Classifier = first, pricedAt(7), old
	}))
	c := r.chat(streamBody)
	events := gatewaytest.NewEventReader(c.Head().Body)
	if _, err := events.Next(); err != nil {
		t.Fatal(err)
	}
	st := *r.g.State()
	st.Policies, st.Pricer, st.Classifier, st.Generation = second, pricedAt(9), fresh, 2
	st.Models, _ = NewModels(nil) // not even the model is there any more
	st.Pools, st.CacheKey = nil, nil
	r.g.Swap(&st)
	close(open)
	close(old.wait)
	if _, err := events.All(); err != nil {
		t.Fatal(err)
	}
	row := r.row()
	if row.PolicyRevision != first.Revision() || row.Costs.Output != 7 || row.Model != "m" {
		t.Errorf("row %+v", row)
	}
	if got := log.last.charged; len(got) != 1 || got[0] != 107 {
		t.Errorf("charged %v, want 107", got)
	}
	if told := r.meter.rehearsals(); len(told) != 1 || len(told[0].WouldDeny) != 1 || told[0].WouldDeny[0].Rule != "shadow/v100" || len(fresh.seen()) != 0 {
		t.Errorf("rehearsed %+v", told)
	}
	st.Models, st.Pools = mustModels(t), map[string]Pool{"p": {}}
	next := st
	r.g.Swap(&next)
	if resp, text := r.chat(chatBody).Answer(); resp.StatusCode != 200 {
		t.Fatalf("got %d %s", resp.StatusCode, text)
	}
	r.idle()
	rows := r.ledger.all()
	if row := rows[len(rows)-1]; row.PolicyRevision != second.Revision() || row.Costs.Output != 9 || log.last.charged[0] != 209 || len(fresh.seen()) != 1 {
		t.Errorf("row %+v, charged %v", row, log.last.charged)
	}
}

func mustModels(t *testing.T) *Models {
	t.Helper()
	m, err := NewModels([]Model{{Name: "m", Upstream: "m", BytesPerToken: 3, ContextLength: 4096, DefaultMaxTokens: 100}})
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// TestCountersOutliveGenerations: a set that is loaded anew while requests run counts
// on where the last one was; neither refills a limit nor loses what is reserved.
func TestCountersOutliveGenerations(t *testing.T) {
	text := bound("limits", "Deny", "  limits:\n    - { name: l, unit: requests, window: day, limit: 20, key: [tenant.id] }\n")
	worker := gatewaytest.NewWorker(t, gatewaytest.Chat("a"))
	r := newRig(t, []string{worker.URL()}, withPolicies(t, text))
	sets := []*policy.Set{compile(t, text), compile(t, text)} // equal, and not the same
	var served, refused, swaps atomic.Int32
	client := func() {
		for range 10 {
			st := *r.g.State()
			st.Policies, st.Generation = sets[swaps.Add(1)%2], st.Generation+1
			r.g.Swap(&st)
			resp, body := r.chat(streamBody).Answer()
			switch {
			case resp.StatusCode == 200 && strings.Contains(body, "[DONE]"):
				served.Add(1)
			case resp.StatusCode == 429:
				refused.Add(1)
			default:
				t.Errorf("got %d %s", resp.StatusCode, body)
			}
		}
	}
	var clients sync.WaitGroup
	for range 4 {
		clients.Go(client)
	}
	clients.Wait()
	r.idle()
	if served.Load() != 20 || refused.Load() != 20 {
		t.Errorf("%d were served and %d refused, want 20 and 20", served.Load(), refused.Load())
	}
}

// TestTokenBudget: policies have a prompt's tokens counted within the budget or get the
// estimate, and the request is then tokenised for its routing without one.
func TestTokenBudget(t *testing.T) {
	worker := gatewaytest.NewWorker(t, gatewaytest.Chat("a"))
	picks := &notedPicks{}
	budget := DefaultConfig().TokenBudget
	r := newRig(t, []string{worker.URL()}, withParts(func(p *Parts) { picks.Router, p.Router = p.Router, picks }))
	calls := 0
	r.tokens.find = func(ctx context.Context, dst []uint32) Tokens {
		calls++
		if _, bounded := ctx.Deadline(); bounded {
			return Tokens{Count: 77, Late: true}
		}
		return Tokens{IDs: append(dst, 1, 2, 3, 4), Count: 4, Exact: true, Local: true}
	}
	r.decider.set(func(ctx context.Context, in *policy.Input) *policy.Decision {
		if n, exact, err := in.Lazy.InputTokens(ctx); n != 2 || exact || err != nil {
			t.Errorf("policies are told %d, %v, %v; want the estimate of 2", n, exact, err)
		}
		return allow(in)
	})
	if resp, text := r.chat(chatBody).Answer(); resp.StatusCode != 200 {
		t.Fatalf("got %d %s", resp.StatusCode, text)
	}
	r.row()
	if calls != 2 || len(picks.all[0].Tokens) != 4 {
		t.Errorf("tokenised %d times, the pick has %d ids", calls, len(picks.all[0].Tokens))
	}
	if budget.Milliseconds() != 50 {
		t.Errorf("the budget is %v", budget)
	}
}
