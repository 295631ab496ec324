package gateway

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/sluicegate/sluice/gateway/gatewaytest"
	"github.com/sluicegate/sluice/policy"
	"github.com/sluicegate/sluice/tenancy"
)

// limited allows a request and holds one concurrency slot and one bucket for
// it, so that a lease that isn't given back shows.
func limited(_ context.Context, in *policy.Input) *policy.Decision {
	d := allow(in)
	d.Limits = []policy.Limit{
		{Rule: "p/slots", Mode: policy.Enforced, Unit: policy.Concurrency, Limit: 4, Counter: "slots", Estimate: 1},
		{Rule: "p/rate", Mode: policy.Enforced, Unit: policy.Requests, Window: policy.Window{Duration: time.Minute}, Limit: 10, Counter: "rate", Estimate: 1},
	}
	return d
}

// atOnce is what a thing may take that waits for no time-out of the gateway, which are
// longer: it takes milliseconds, but on a busy machine.
const atOnce = 10 * time.Second

// TestClientLeaves kills the client in every phase, in every way, with and
// without TLS. The worker must be free at once, nothing may be left of
// the request, and the ledger must have its one row.
func TestClientLeaves(t *testing.T) {
	phases := []struct {
		name   string
		body   string
		worker gatewaytest.Behaviour
		block  bool // hold the request before the pick
		events int  // read that many events before leaving
		phase  tenancy.Phase
		input  bool // the prompt is charged
	}{
		{name: "before the pick", body: streamBody, worker: gatewaytest.Stall(), block: true, phase: tenancy.PhaseQueue},
		{name: "prefill without headers", body: streamBody, worker: gatewaytest.Stall(), phase: tenancy.PhasePrefill, input: true},
		{name: "prefill after headers", body: streamBody, worker: gatewaytest.HeadOnly(), phase: tenancy.PhasePrefill, input: true},
		{
			name: "mid-stream", body: streamBody, events: 2, phase: tenancy.PhaseStream, input: true,
			worker: gatewaytest.StallAfter(gatewaytest.RoleEvent, gatewaytest.ContentEvent("a", "")),
		},
		{name: "not streaming", body: chatBody, worker: gatewaytest.Stall(), phase: tenancy.PhaseResponse, input: true},
	}
	for _, p := range phases {
		for _, how := range []gatewaytest.Close{gatewaytest.FIN, gatewaytest.RST} {
			for _, secure := range []bool{false, true} {
				name := p.name + map[gatewaytest.Close]string{gatewaytest.FIN: ", FIN", gatewaytest.RST: ", RST"}[how]
				opts := []rigOption{}
				if secure {
					name += ", TLS"
					opts = append(opts, withTLS())
				}
				t.Run(name, func(t *testing.T) {
					t.Parallel()
					worker := gatewaytest.NewWorker(t, p.worker)
					r := newRig(t, []string{worker.URL()}, opts...)
					r.decider.set(limited)
					entered := make(chan struct{})
					if p.block {
						r.tokens.set(func(ctx context.Context, dst []uint32, _ []byte) ([]uint32, error) {
							close(entered)
							<-ctx.Done()
							return dst, ctx.Err()
						})
					}
					c := r.chat(p.body)
					var seen *gatewaytest.Seen
					if p.block {
						<-entered
					} else {
						seen = worker.Next(t)
					}
					if p.events > 0 {
						events := gatewaytest.NewEventReader(c.Head().Body)
						for range p.events {
							if _, err := events.Next(); err != nil {
								t.Fatal(err)
							}
						}
					}
					left := time.Now()
					c.Leave(how)
					if seen != nil {
						select {
						case <-seen.Left:
						case <-time.After(atOnce):
							t.Fatalf("the worker still has the request %v after its client left", atOnce)
						}
					}
					row := r.row()
					if took := time.Since(left); took > atOnce {
						t.Errorf("the request was settled %v after its client left, want within %v", took, atOnce)
					}
					if row.Outcome != tenancy.OutcomeClientAborted || row.Status != 499 || row.Phase != p.phase {
						t.Errorf("row says outcome %s, status %d, phase %s; want client_aborted, 499, %s", row.Outcome, row.Status, row.Phase, p.phase)
					}
					if !row.Flags.Has(tenancy.FlagAborted) || (row.InputTokens > 0) != p.input {
						t.Errorf("row has flags %s and %d input tokens, want aborted and input charged: %v", row.Flags, row.InputTokens, p.input)
					}
					if unknown := p.body == chatBody; row.Flags.Has(tenancy.FlagOutputUnknown) != unknown {
						t.Errorf("row has flags %s, want output_unknown: %v", row.Flags, unknown)
					}
					if p.block && len(worker.Seen()) > 0 {
						t.Error("a worker was called for a request whose client left before the pick")
					}
				})
			}
		}
	}
}

// TestPipelinedBytesDoNotHideALeave sends a second request behind the first and
// leaves: unread bytes in the socket must not keep the worker busy.
func TestPipelinedBytesDoNotHideALeave(t *testing.T) {
	worker := gatewaytest.NewWorker(t, gatewaytest.Stall())
	r := newRig(t, []string{worker.URL()})
	c := r.chat(chatBody)
	seen := worker.Next(t)
	if err := c.Write(gatewaytest.RequestText("GET", "/healthz", "")); err != nil {
		t.Fatal(err)
	}
	c.Leave(gatewaytest.FIN)
	select {
	case <-seen.Left:
	case <-time.After(atOnce):
		t.Fatalf("the worker still has the request %v after its client left", atOnce)
	}
	r.row()
}

// TestPipelinedRequestsAreNoLeave answers two requests sent at once, in order.
func TestPipelinedRequestsAreNoLeave(t *testing.T) {
	worker := gatewaytest.NewWorker(t, gatewaytest.Chat("a"))
	r := newRig(t, []string{worker.URL()})
	c := r.dial()
	text := gatewaytest.RequestText("POST", "/v1/chat/completions", chatBody, "Authorization: Bearer "+goodKey)
	if err := c.Write(text + text); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if resp, body := c.Answer(); resp.StatusCode != 200 {
			t.Fatalf("got %d %s", resp.StatusCode, body)
		}
	}
}

// TestPipelinedAnswersAreNotHeldBack sees the whole first answer while the
// request behind it is still served.
func TestPipelinedAnswersAreNotHeldBack(t *testing.T) {
	for name, first := range map[string]string{"not streaming": chatBody, "stream": streamBody} {
		t.Run(name, func(t *testing.T) {
			worker := gatewaytest.NewWorker(t, gatewaytest.Chat("a"), gatewaytest.Stall())
			r := newRig(t, []string{worker.URL()})
			c := r.dial()
			auth := "Authorization: Bearer " + goodKey
			if err := c.Write(gatewaytest.RequestText("POST", "/v1/chat/completions", first, auth) +
				gatewaytest.RequestText("POST", "/v1/chat/completions", chatBody, auth)); err != nil {
				t.Fatal(err)
			}
			if resp, body := c.Answer(); resp.StatusCode != 200 {
				t.Fatalf("got %d %s", resp.StatusCode, body)
			}
			worker.Next(t)
			worker.Next(t)
			c.Leave(gatewaytest.FIN)
			r.idle()
		})
	}
}

// TestHalfClosedClientsGetNothing: a client that ends its side has left, so it
// isn't told of a success or a shutdown that never was.
func TestHalfClosedClientsGetNothing(t *testing.T) {
	for name, body := range map[string]string{"not streaming": chatBody, "stream": streamBody} {
		t.Run(name, func(t *testing.T) {
			worker := gatewaytest.NewWorker(t, gatewaytest.Stall())
			r := newRig(t, []string{worker.URL()})
			c := r.chat(body)
			worker.Next(t)
			if err := c.HalfClose(); err != nil {
				t.Fatal(err)
			}
			if rest := c.Closed(); rest != "" {
				t.Errorf("got %q", rest)
			}
			r.row()
		})
	}
}

// TestBlockedWriteEndsWithItsClient: a client that doesn't read and ends its
// side frees everything at once, not when the write gives up.
func TestBlockedWriteEndsWithItsClient(t *testing.T) {
	event := gatewaytest.ContentEvent(strings.Repeat("a", 1<<20), "")
	blocked := make(chan struct{})
	worker := gatewaytest.NewWorker(t, func(x *gatewaytest.Exchange) {
		x.StreamHead()
		sent, over := make(chan struct{}), make(chan struct{})
		defer close(over)
		go func() {
			for {
				x.Chunk(event)
				select {
				case sent <- struct{}{}:
				case <-over:
					return
				}
			}
		}()
		for x.Pause(0) {
			select {
			case <-sent:
			case <-x.Left:
				return
			case <-time.After(300 * time.Millisecond): // nothing is taken any more
				close(blocked)
				x.WaitLeft()
				return
			}
		}
	})
	r := newRig(t, []string{worker.URL()})
	r.decider.set(limited)
	c := r.chat(streamBody)
	c.Head()
	<-blocked
	left := time.Now()
	if err := c.HalfClose(); err != nil {
		t.Fatal(err)
	}
	if row := r.row(); row.Outcome != tenancy.OutcomeClientAborted {
		t.Errorf("row %+v", row)
	}
	if took := time.Since(left); took > atOnce {
		t.Errorf("the request was settled %v after its client left, want within %v", took, atOnce)
	}
}
