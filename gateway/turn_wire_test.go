package gateway

import (
	"context"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/sluicegate/sluice/gateway/gatewaytest"
	"github.com/sluicegate/sluice/gateway/qos"
	"github.com/sluicegate/sluice/policy"
	"github.com/sluicegate/sluice/scoring"
	"github.com/sluicegate/sluice/tenancy"
)

// taker is a pool that takes one entry whenever it is asked, if it takes any.
type taker struct {
	pool  qos.PoolID
	takes int
}

func (p *taker) Begin() {}

func (p *taker) Wait(time.Time, qos.PoolID, time.Duration) (time.Duration, time.Time) {
	if p.takes > 0 {
		return 0, time.Time{}
	}
	return time.Hour, time.Time{}
}

func (p *taker) Place(_ time.Time, e *qos.Entry, _ qos.Terms) (qos.Placement, bool) {
	if p.takes == 0 {
		return qos.Placement{Pool: p.pool}, false
	}
	p.takes--
	return qos.Placement{Pool: p.pool, Work: e.Work}, true
}

// knowRate has the queue know how fast its pool takes work, a token a second, by what
// it did just now: what it did long ago says nothing.
func (r *rig) knowRate() {
	r.t.Helper()
	r.g.turns.mu.Lock()
	defer r.g.turns.mu.Unlock()
	q := r.g.turns.queue
	class, _ := q.Class("standard")
	pool, _ := q.Pool("p")
	var entries [6]qos.Entry
	at, p := time.Now().Add(-time.Duration(len(entries)+1)*time.Second), &taker{pool: pool}
	for i := range entries {
		entries[i] = qos.Entry{
			Class: class, Tenant: "past", Pools: []qos.PoolID{pool}, Work: 1, Room: 1,
			Arrived: at, Deadline: at.Add(time.Hour), Until: at.Add(time.Hour),
		}
		q.Admit(at, &entries[i], p, nil)
	}
	for range entries {
		at, p.takes = at.Add(time.Second), 1
		q.Dirty(pool)
		if out := q.Pump(at, p, nil); len(out) != 1 || out[0].State != qos.Granted {
			r.t.Fatalf("the past's requests got %+v", out)
		}
	}
	if n := q.Waiting(); n != 0 {
		r.t.Fatalf("%d requests of the past wait", n)
	}
}

// refusedOnWire is what the queue refuses a request for, as its client gets it.
type refusedOnWire struct {
	dialect        *matrixDialect
	stream, beaten bool // beaten: it has had a comment before
}

func refusedOnWires() (all []refusedOnWire) {
	for _, d := range matrixDialects() {
		if !d.bills {
			continue
		}
		all = append(all, refusedOnWire{dialect: d})
		if d.stream {
			all = append(all, refusedOnWire{d, true, false}, refusedOnWire{d, true, true})
		}
	}
	return all
}

func (c refusedOnWire) name() string {
	name := c.dialect.name
	if c.stream {
		name += "-stream"
	}
	if c.beaten {
		name += "-beaten"
	}
	return name
}

func (c refusedOnWire) send(r *rig, key string) *gatewaytest.Client {
	client := r.dial()
	client.Send("POST", c.dialect.path, c.dialect.request("hello", c.stream), "Authorization: Bearer "+key)
	return client
}

// check checks what the client gets, from the body's rest on if it has begun.
func (c refusedOnWire) check(t *testing.T, resp *http.Response, text string) {
	t.Helper()
	anthropic := strings.HasPrefix(c.dialect.path, "/v1/messages")
	if c.beaten {
		code := `"overloaded"`
		if anthropic {
			code = "event: error"
		}
		if text = strings.ReplaceAll(text, ": keep-alive\n\n", ""); !strings.Contains(text, code) || !strings.HasSuffix(text, "\n\n") {
			t.Errorf("the stream goes on with %q, want the error event of its dialect", text)
		}
		if strings.Contains(text, c.dialect.end(c.dialect.usage)) {
			t.Errorf("the stream ends as if it were whole: %q", text)
		}
		return
	}
	code := `"code":"overloaded"`
	if anthropic {
		code = `"type":"rate_limit_error"`
	}
	if resp.StatusCode != 429 || !strings.Contains(text, code) {
		t.Errorf("got %d %s, want 429 with %s", resp.StatusCode, text, code)
	}
	if resp.Header.Get("Retry-After") == "" {
		t.Error("no Retry-After")
	}
	for name := range resp.Header {
		if strings.Contains(strings.ToLower(name), "ratelimit") {
			t.Errorf("the header %s is of a limit, and none has refused", name)
		}
	}
}

// checkBooks: nothing is charged, and the request was at no worker.
func (c refusedOnWire) checkBooks(t *testing.T, r *rig, reason qos.Reason) {
	t.Helper()
	var s QueueState
	if !r.g.QueueState(&s) || len(s.Refused) != 1 || s.Refused[0].Reason != reason {
		t.Errorf("the queue has refused %+v, want one for %s", s.Refused, reason)
	}
	var rows []*tenancy.Row
	eventually(t, "the row of the request that was refused", func() bool {
		rows = nil
		for _, row := range r.ledger.all() {
			if row.Outcome == tenancy.OutcomeRejected {
				rows = append(rows, row)
			}
		}
		return len(rows) == 1
	})
	if row := rows[0]; row.Attempts != 0 || row.InputTokens+row.OutputTokens != 0 || row.Phase != tenancy.PhaseQueue {
		t.Errorf("row %+v", row)
	}
}

// TestForecastReachesClient: a request that could not have its first token in time is
// told so at once, on every route that waits.
func TestForecastReachesClient(t *testing.T) {
	for _, c := range refusedOnWires() {
		if c.beaten {
			continue // it doesn't wait, so it has no comments
		}
		t.Run(c.name(), func(t *testing.T) {
			t.Parallel()
			worker := gatewaytest.NewWorker(t, c.dialect.good())
			r := queueRig(t, []string{worker.URL()}, queueConfig(), c.dialect.endpoints())
			r.knowRate()
			plug := r.plug(1)
			waits := c.send(r, goodKey)
			r.queued(1)
			resp, text := c.send(r, goodKey).Answer()
			c.check(t, resp, text)
			c.checkBooks(t, r, qos.ReasonForecast)
			if n := r.waiting(); n != 1 {
				t.Errorf("%d requests wait, want the other one", n)
			}
			plug.Done(time.Now(), scoring.NotSent)
			if resp, text := waits.Answer(); resp.StatusCode != 200 {
				t.Errorf("got %d %s", resp.StatusCode, text)
			}
			r.idle()
		})
	}
}

// TestPreemptionReachesClient: what waits and may be preempted is told so when a more
// urgent request takes its place in a full queue, also if its stream has begun.
func TestPreemptionReachesClient(t *testing.T) {
	const otherKey = "slk_test_AnotherKeyOfTheseTests"
	for _, c := range refusedOnWires() {
		t.Run(c.name(), func(t *testing.T) {
			t.Parallel()
			worker := gatewaytest.NewWorker(t, c.dialect.good())
			r := queueRig(t, []string{worker.URL()}, queueConfig(func(q *qos.Config) {
				q.MaxEntries = 1
				for i := range q.Classes {
					q.Classes[i].Preemptible, q.Classes[i].KeepAlive = i > 0, c.beaten
				}
			}), c.dialect.endpoints(), withState(func(st *State) {
				known := st.Identifier.(identifierFunc)
				st.Identifier = identifierFunc(func(cred []byte, now time.Time) (*tenancy.Principal, error) {
					if string(cred) == otherKey {
						tenant := &tenancy.Tenant{ID: "globex", Models: []string{"m*"}}
						return &tenancy.Principal{Kind: "api_key", ID: "key:other", KeyID: "other", Tenant: tenant}, nil
					}
					return known(cred, now)
				})
			}), withConfig(func(cfg *Config) {
				if c.beaten {
					cfg.KeepAliveComment = 10 * time.Millisecond
				}
			}))
			r.decider.set(func(_ context.Context, in *policy.Input) *policy.Decision {
				d := allow(in)
				if d.Class = "batch"; in.Tenant.ID == "globex" {
					d.Class = "interactive"
				}
				return d
			})
			plug := r.plug(1)
			gives := c.send(r, goodKey)
			r.queued(1)
			var begun *http.Response
			if c.beaten {
				begun = gives.Head()
				if _, err := io.ReadFull(begun.Body, make([]byte, len(": keep-alive\n\n"))); err != nil || begun.StatusCode != 200 {
					t.Fatalf("the stream has not begun: %d, %v", begun.StatusCode, err)
				}
			}
			takes := c.send(r, otherKey)
			if begun != nil {
				text, err := io.ReadAll(begun.Body)
				if err != nil {
					t.Errorf("the stream ends with %v", err)
				}
				c.check(t, begun, string(text))
			} else {
				resp, text := gives.Answer()
				c.check(t, resp, text)
			}
			c.checkBooks(t, r, qos.ReasonPreempted)
			r.queued(1)
			plug.Done(time.Now(), scoring.NotSent)
			if resp, text := takes.Answer(); resp.StatusCode != 200 {
				t.Errorf("the one that took its place got %d %s", resp.StatusCode, text)
			}
			r.idle()
		})
	}
}
