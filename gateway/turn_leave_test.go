package gateway

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/sluicegate/sluice/gateway/gatewaytest"
	"github.com/sluicegate/sluice/scoring"
	"github.com/sluicegate/sluice/tenancy"
)

// TestLeavingTheQueue: a request that waits goes as soon as its client does, in whatever
// way, with and without TLS, and leaves nothing at a worker, in the limits or the books.
func TestLeavingTheQueue(t *testing.T) {
	ways := map[string]func(t *testing.T, c *gatewaytest.Client){
		"closes": func(_ *testing.T, c *gatewaytest.Client) { c.Leave(gatewaytest.FIN) }, // over TLS with its close_notify
		"resets": func(_ *testing.T, c *gatewaytest.Client) { c.Leave(gatewaytest.RST) },
		"ends its side": func(t *testing.T, c *gatewaytest.Client) { // over TLS without a word
			if err := c.HalfClose(); err != nil {
				t.Fatal(err)
			}
		},
	}
	for how, leave := range ways {
		for kind, body := range map[string]string{"stream": streamBody, "unary": chatBody} {
			for secure, opts := range map[string][]rigOption{"plain": nil, "TLS": {withTLS()}} {
				t.Run(how+"/"+kind+"/"+secure, func(t *testing.T) {
					t.Parallel()
					worker := gatewaytest.NewWorker(t, gatewaytest.Chat("a"))
					r := queueRig(t, []string{worker.URL()}, queueConfig(), opts...)
					r.decider.set(limited)
					plug := r.plug(1)
					c := r.chat(body)
					r.queued(1)
					leave(t, c)
					eventually(t, "the request to leave the queue", func() bool { return r.waiting() == 0 })
					eventually(t, "its row", func() bool { return len(r.ledger.all()) == 1 })
					plug.Done(time.Now(), scoring.NotSent)
					row := r.row()
					if row.Outcome != tenancy.OutcomeClientAborted || row.Phase != tenancy.PhaseQueue || row.Attempts != 0 || row.InputTokens+row.OutputTokens != 0 {
						t.Errorf("row %+v", row)
					}
					if n := r.ledger.begun(); n != 0 || len(worker.Seen()) != 0 {
						t.Errorf("%d announcements, %d requests at the worker", n, len(worker.Seen()))
					}
					var s QueueState
					if !r.g.QueueState(&s) || s.Bytes != 0 || len(s.Tenants) != 0 || len(s.Flows) != 0 {
						t.Errorf("the queue is left with %+v", s)
					}
				})
			}
		}
	}
}

// TestShutdownWithManyWaiting: each of many requests that wait has its answer when the
// gateway shuts down: its turn, as long as there is time, or else the word to go elsewhere.
func TestShutdownWithManyWaiting(t *testing.T) {
	const clients = 40
	for _, inTime := range []bool{true, false} {
		t.Run(map[bool]string{true: "in time", false: "cut"}[inTime], func(t *testing.T) {
			t.Parallel()
			worker := gatewaytest.NewWorker(t, gatewaytest.Chat("a"))
			r := queueRig(t, []string{worker.URL()}, queueConfig())
			plug := r.plug(1)
			var all []*gatewaytest.Client
			for i := range clients {
				all = append(all, r.chat([]string{streamBody, chatBody}[i%2]))
			}
			r.queued(clients)
			if inTime {
				down := make(chan error, 1)
				go func() {
					ctx, cancel := context.WithTimeout(context.Background(), patience)
					defer cancel()
					down <- r.g.Shutdown(ctx)
				}()
				eventually(t, "the gateway to refuse what comes", r.g.closing.Load)
				plug.Done(time.Now(), scoring.NotSent)
				defer func() {
					if err := <-down; err != nil {
						t.Errorf("shutdown: %v", err)
					}
				}()
			} else {
				r.shutdownAtOnce()
			}
			for i, c := range all {
				resp, text := c.Answer()
				switch {
				case !inTime:
					wantError(t, resp, text, 503, "unavailable")
					if resp.Header.Get("Retry-After") == "" {
						t.Error("no Retry-After")
					}
				case resp.StatusCode != 200 || i%2 == 0 && !strings.HasSuffix(text, gatewaytest.DoneEvent):
					t.Errorf("got %d %s", resp.StatusCode, text)
				}
			}
			if !inTime {
				plug.Done(time.Now(), scoring.NotSent)
			}
			r.idle()
			want := tenancy.OutcomeCompleted
			if !inTime {
				want = tenancy.OutcomeRejected
			}
			rows := r.ledger.all()
			if len(rows) != clients {
				t.Fatalf("%d rows of %d requests", len(rows), clients)
			}
			for _, row := range rows {
				if row.Outcome != want {
					t.Errorf("row %+v", row)
				}
			}
		})
	}
}

// TestQueueGoesByNoWallClock: every time that the queue compares has a reading of the
// monotonic clock, which setting the wall clock does not move; [time.Time] goes by that
// then.
func TestQueueGoesByNoWallClock(t *testing.T) {
	worker := gatewaytest.NewWorker(t, gatewaytest.Chat("a"))
	r := queueRig(t, []string{worker.URL()}, queueConfig())
	plug := r.plug(1)
	c := r.chat(chatBody)
	r.queued(1)
	turns := r.g.turns
	turns.mu.Lock()
	due, ok := turns.queue.Next()
	for tn := range turns.members {
		e := &tn.entry
		for name, at := range map[string]time.Time{
			"Arrived": e.Arrived, "Deadline": e.Deadline, "Until": e.Until, "since": tn.since, "Next": due,
		} {
			if name == "Next" && at.Before(time.Unix(0, 0)) {
				continue // the pool has not been looked at yet: it is due at once
			}
			if !ok || !strings.Contains(at.String(), " m=") {
				t.Errorf("%s is of the wall clock alone: %v", name, at)
			}
		}
	}
	turns.mu.Unlock()
	plug.Done(time.Now(), scoring.NotSent)
	if resp, text := c.Answer(); resp.StatusCode != 200 {
		t.Errorf("got %d %s", resp.StatusCode, text)
	}
	r.idle()
}
