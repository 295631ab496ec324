package gateway

import (
	"cmp"
	"context"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/valyala/fasthttp"

	"github.com/sluicegate/sluice/gateway/gatewaytest"
	"github.com/sluicegate/sluice/gateway/qos"
	"github.com/sluicegate/sluice/policy"
	"github.com/sluicegate/sluice/scoring"
	"github.com/sluicegate/sluice/tenancy"
)

// queueConfig has three classes that wait for as long as a test may take.
func queueConfig(alter ...func(*qos.Config)) qos.Config {
	c := qos.DefaultConfig("interactive", "standard", "batch")
	for i := range c.Classes {
		c.Classes[i].MaxWait = time.Hour
	}
	for _, f := range alter {
		f(&c)
	}
	return c
}

// longPrompt is a prompt that a worker takes hours for, by the prior: what waits for it
// does not get its turn by time alone. So many ids of it are known.
const longPrompt, knownIDs = 50_000_000, 1000

// queueRig is a rig with a queue. Every prompt is long, so that one request closes a
// worker until its first token.
func queueRig(t testing.TB, workers []string, c qos.Config, opts ...rigOption) *rig {
	t.Helper()
	r := newRig(t, workers, append([]rigOption{
		withState(func(st *State) { st.Queue = c }),
		withParts(func(p *Parts) { p.Router = p.Router.(inOrder).Fleet }),
	}, opts...)...)
	r.tokens.find = func(_ context.Context, dst []uint32) Tokens {
		return Tokens{IDs: append(dst, make([]uint32, knownIDs)...), Count: longPrompt, Exact: true}
	}
	return r
}

// queued waits until so many requests wait.
func (r *rig) queued(n int) {
	r.t.Helper()
	eventually(r.t, "requests to wait in the queue", func() bool { return r.waiting() == n })
}

func (r *rig) waiting() int {
	r.g.turns.mu.Lock()
	defer r.g.turns.mu.Unlock()
	return r.g.turns.queue.Waiting()
}

// TestTurnComes: a request waits while its worker is busy, has no row at the ledger's
// and no load at the worker meanwhile, and goes there with the first token of the one
// before it.
func TestTurnComes(t *testing.T) {
	for name, body := range map[string]string{"stream": streamBody, "unary": chatBody} {
		t.Run(name, func(t *testing.T) {
			release := make(chan struct{})
			worker := gatewaytest.NewWorker(t, func(x *gatewaytest.Exchange) {
				<-release
				gatewaytest.Chat("a")(x)
			})
			r := queueRig(t, []string{worker.URL()}, queueConfig())
			first := r.chat(body)
			worker.Next(t)
			second := r.chat(body)
			r.queued(1)
			if n := r.ledger.begun(); n != 1 {
				t.Errorf("%d requests were announced to the ledger while one waits", n)
			}
			if w := r.fleet.Snapshot(time.Now())[0]; w.InFlight != 1 {
				t.Errorf("the worker has %d requests", w.InFlight)
			}
			close(release)
			for _, c := range []*gatewaytest.Client{first, second} {
				if resp, text := c.Answer(); resp.StatusCode != 200 {
					t.Errorf("got %d %s", resp.StatusCode, text)
				}
			}
			r.idle()
			r.meter.mu.Lock()
			all := slices.Clone(r.meter.summaries)
			r.meter.mu.Unlock()
			waits := slices.IndexFunc(all, func(s *Summary) bool { return s.QueueWait > 0 })
			if waits < 0 || len(all) != 2 {
				t.Fatal("no request has waited")
			}
			s := all[waits]
			if !s.Queued || s.QueueRefused != "" || s.Row.Queue != s.QueueWait || s.TTFTTarget <= 0 {
				t.Errorf("the summary says %+v", s)
			}
			if s.Overhead > s.Row.Duration-s.QueueWait {
				t.Errorf("the overhead of %v holds the wait of %v", s.Overhead, s.QueueWait)
			}
			if n := r.g.turns.late.Load(); n != 0 {
				t.Errorf("%d late wake-ups", n)
			}
		})
	}
}

// TestFullWorkersAreWaitedFor: a worker that says that it has no room is left alone
// for a moment and asked again, more often than a failure would be tried elsewhere,
// whether there is no other, or one that has none either, or one that goes meanwhile.
func TestFullWorkersAreWaitedFor(t *testing.T) {
	for _, other := range []string{"none", "closed", "leaves"} {
		t.Run(other, func(t *testing.T) {
			t.Parallel()
			var refused atomic.Int64
			urls := []string{gatewaytest.NewWorker(t, func(x *gatewaytest.Exchange) {
				if refused.Add(1) <= 3 {
					gatewaytest.Fail(429)(x)
					return
				}
				gatewaytest.Chat("a")(x)
			}).URL()}
			if other != "none" {
				urls = append(urls, gatewaytest.NewWorker(t, gatewaytest.Fail(500)).URL())
			}
			r := queueRig(t, urls, queueConfig(), withConfig(func(c *Config) { c.Retries = 0 }))
			var plug *scoring.Reservation
			if other != "none" {
				plug = r.plug(2)
			}
			c := r.chat(streamBody)
			if other == "leaves" {
				r.queued(1)
				r.setReady("w2", false)
			}
			resp, text := c.Answer()
			if resp.StatusCode != 200 || !strings.HasSuffix(text, gatewaytest.DoneEvent) {
				t.Fatalf("got %d %s", resp.StatusCode, text)
			}
			if plug != nil {
				plug.Done(time.Now(), scoring.NotSent)
			}
			if row := r.row(); row.Attempts != 4 || row.Outcome != tenancy.OutcomeCompleted || row.InputTokens != 10 {
				t.Errorf("row %+v", row)
			}
			if r.health.failures != 0 {
				t.Errorf("the worker is blamed: %v", r.health.blamed)
			}
			if waited := r.meter.last().QueueWait; waited < 1750*time.Millisecond {
				t.Errorf("the worker was left alone for %v", waited)
			}
		})
	}
}

// TestFullWorkersForEver: where the retries of the pool are used up, or the time is
// over, the client is told that the model has no room.
func TestFullWorkersForEver(t *testing.T) {
	worker := gatewaytest.NewWorker(t, gatewaytest.Fail(503))
	for name, c := range map[string]qos.Config{
		"time": queueConfig(func(c *qos.Config) {
			for i := range c.Classes {
				c.Classes[i].Target, c.Classes[i].MaxWait = 50*time.Millisecond, 50*time.Millisecond
			}
		}),
		"retries": queueConfig(),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := queueRig(t, []string{worker.URL()}, c)
			if name == "retries" {
				for r.g.retries.take(time.Now(), "p") {
				}
			}
			resp, text := r.chat(chatBody).Answer()
			wantError(t, resp, text, 503, "overloaded")
			if resp.Header.Get("Retry-After") == "" {
				t.Error("no Retry-After")
			}
			r.row()
		})
	}
}

// TestRefusalsOfTheQueue: what the client is told, by reason and dialect.
func TestRefusalsOfTheQueue(t *testing.T) {
	page, err := os.ReadFile("../docs/operations.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		reason            qos.Reason
		after             time.Duration
		openai, anthropic int
		kind, header      string
		should            string
	}{
		{qos.ReasonForecast, 12*time.Second + time.Millisecond, 429, 429, "rate_limit_error", "13", ""},
		{qos.ReasonForecast, 5 * time.Minute, 429, 429, "rate_limit_error", "300", "false"},
		{qos.ReasonPreempted, 0, 429, 429, "rate_limit_error", "1", ""},
		{qos.ReasonFull, 0, 503, 529, "overloaded_error", "5", ""},
		{qos.ReasonTenantFull, 7 * time.Second, 503, 529, "overloaded_error", "7", ""},
		{qos.ReasonWaited, 5 * time.Minute, 503, 529, "overloaded_error", "300", "false"},
	} {
		for _, d := range []dialect{dialectOpenAI, dialectAnthropic} {
			ex := &exchange{turn: turn{counts: true}}
			rej := ex.turnRefused(&qos.Outcome{State: qos.Refused, Reason: c.reason, RetryAfter: c.after})
			said, _, _ := strings.Cut(rej.message, ";")
			if !strings.Contains(string(page), "| "+said+" | `"+c.reason.String()+"` |\n") {
				t.Errorf("%s: docs/operations.md does not say what %q means", c.reason, said)
			}
			var ctx fasthttp.RequestCtx
			rej.write(&ctx, d, "id")
			h, body := &ctx.Response.Header, string(ctx.Response.Body())
			status, kind := c.openai, `"code":"overloaded"`
			if d == dialectAnthropic {
				status, kind = c.anthropic, `"type":"`+c.kind+`"`
			}
			if ctx.Response.StatusCode() != status || !strings.Contains(body, kind) {
				t.Errorf("%s: got %d %s, want %d with %s", c.reason, ctx.Response.StatusCode(), body, status, kind)
			}
			if got := string(h.Peek("Retry-After")); got != c.header {
				t.Errorf("%s: Retry-After is %q, want %q", c.reason, got, c.header)
			}
			if got := string(h.Peek("x-should-retry")); got != c.should {
				t.Errorf("%s: x-should-retry is %q, want %q", c.reason, got, c.should)
			}
			if len(h.Peek("x-ratelimit-limit-requests")) > 0 || rej.outcome != tenancy.OutcomeRejected || ex.turn.reason != c.reason.String() {
				t.Errorf("%s: %+v", c.reason, rej)
			}
		}
	}
}

// TestStrandedRequest: one that no worker can take is answered as one that finds none.
func TestStrandedRequest(t *testing.T) {
	ex := &exchange{turn: turn{counts: true}}
	rej := ex.turnRefused(&qos.Outcome{State: qos.Refused, Reason: qos.ReasonNoWorker})
	found := ex.noWorker(nil)
	if rej.status != found.status || rej.code != found.code || rej.message != found.message || rej.retryAfter != found.retryAfter {
		t.Errorf("refused with %+v, who comes is with %+v", rej, found)
	}
	reasons := slices.Sorted(slices.Values(QueueReasons()))
	if !slices.Contains(reasons, ex.turn.reason) || len(slices.Compact(slices.Clone(reasons))) != len(reasons) {
		t.Errorf("counted as %q, of %q", ex.turn.reason, reasons)
	}
}

// TestQueueIsFull: an arrival that finds the queue full is refused at once, and leaves
// what waits alone.
func TestQueueIsFull(t *testing.T) {
	worker := gatewaytest.NewWorker(t, gatewaytest.Chat("a"))
	r := queueRig(t, []string{worker.URL()}, queueConfig(func(c *qos.Config) { c.Classes[1].MaxQueue = 1 }))
	plug := r.plug(1)
	waits := r.chat(chatBody)
	r.queued(1)
	resp, text := r.chat(streamBody).Answer()
	wantError(t, resp, text, 503, "overloaded")
	if after := resp.Header.Get("Retry-After"); after != "5" {
		t.Errorf("Retry-After is %q", after)
	}
	var s QueueState
	if !r.g.QueueState(&s) || s.Waiting != 1 || len(s.Refused) != 1 || s.Refused[0].RetryAfter != 5*time.Second || s.Bytes < int64(len(chatBody)+4*knownIDs) || s.Refused[0].Reason != qos.ReasonFull || s.Refused[0].Tenant != "acme" || len(s.Flows) != 1 || len(s.Tenants) != 1 || s.Tenants["acme"] != 1 {
		t.Errorf("the queue says %+v", s)
	}
	plug.Done(time.Now(), scoring.NotSent)
	if resp, text := waits.Answer(); resp.StatusCode != 200 {
		t.Errorf("got %d %s", resp.StatusCode, text)
	}
	r.idle()
}

// TestClassesTakeTurns: the order at the worker is that of the classes.
func TestClassesTakeTurns(t *testing.T) {
	worker := gatewaytest.NewWorker(t, gatewaytest.Stall())
	r := queueRig(t, []string{worker.URL()}, queueConfig(func(c *qos.Config) {
		for i := range c.Classes {
			c.Classes[i].Share = 0
		}
	}))
	r.decider.set(func(_ context.Context, in *policy.Input) *policy.Decision {
		d := allow(in)
		d.Class = *in.Request.User
		return d
	})
	plug := r.plug(1)
	classes := []string{"batch", "standard", "interactive"}
	var clients []*gatewaytest.Client
	for i, class := range classes {
		clients = append(clients, r.chat(`{"model":"m","user":"`+class+`","messages":[{"role":"user","content":"hello"}]}`))
		r.queued(i + 1)
	}
	plug.Done(time.Now(), scoring.NotSent)
	for i, class := range slices.Backward(classes) { // one that leaves teaches nobody how fast the worker is
		if body := string(worker.Next(t).Body); !strings.Contains(body, class) {
			t.Errorf("the worker got %s, want %s", body, class)
		}
		clients[i].Leave(gatewaytest.FIN)
	}
	r.idle()
}

// TestWhatPoliciesSayOfTheQueue: class, target and whether it gives way are those of the
// request's policies, and the longest wait is the class's however late its policies let
// a first token be.
func TestWhatPoliciesSayOfTheQueue(t *testing.T) {
	worker := gatewaytest.NewWorker(t, gatewaytest.Chat("a"))
	r := queueRig(t, []string{worker.URL()}, queueConfig())
	var target time.Duration
	r.decider.set(func(_ context.Context, in *policy.Input) *policy.Decision {
		d := allow(in)
		d.Class, d.TTFTTarget, d.Preemptible = "batch", target, target > 0
		return d
	})
	batch := r.g.state.Load().Queue.Classes[2]
	for _, target = range []time.Duration{0, 3 * time.Second, 2 * batch.MaxWait} {
		plug := r.plug(1)
		client := r.chat(chatBody)
		r.queued(1)
		r.g.turns.mu.Lock()
		for tn := range r.g.turns.members {
			e, want := &tn.entry, cmp.Or(target, batch.Target)
			if tn.class.Name != "batch" || e.Deadline.Sub(e.Arrived) != want || e.Until.Sub(e.Arrived) != batch.MaxWait || e.Preemptible != (target > 0) {
				t.Errorf("target %v: class %s, %+v", target, tn.class.Name, e)
			}
		}
		r.g.turns.mu.Unlock()
		plug.Done(time.Now(), scoring.NotSent)
		if resp, text := client.Answer(); resp.StatusCode != 200 {
			t.Errorf("got %d %s", resp.StatusCode, text)
		}
		r.idle()
		if s := r.meter.last(); s.TTFTTarget != cmp.Or(target, batch.Target) || s.Row.Class != "batch" {
			t.Errorf("target %v: counted as %v of class %s", target, s.TTFTTarget, s.Row.Class)
		}
	}
}

// TestWorkersAreToldThePriority: engines that schedule by priority are sent that of
// the class; others are sent none, whatever the client says.
func TestWorkersAreToldThePriority(t *testing.T) {
	for _, schedules := range []bool{true, false} {
		worker := gatewaytest.NewWorker(t, gatewaytest.Chat("a"))
		r := queueRig(t, []string{worker.URL()}, queueConfig(func(c *qos.Config) {
			c.Classes[1].HasPriority, c.Classes[1].WorkerPriority = true, 7
		}), withState(func(st *State) {
			st.Pools = map[string]Pool{"p": {APIKey: workerKey, PriorityScheduling: schedules}}
		}))
		if resp, text := r.chat(`{"model":"m","priority":99,"messages":[]}`).Answer(); resp.StatusCode != 200 {
			t.Fatalf("got %d %s", resp.StatusCode, text)
		}
		got := string(worker.Seen()[0].Body)
		if strings.Contains(got, "99") || strings.Contains(got, `"priority":7`) != schedules {
			t.Errorf("a worker that schedules by priority (%v) got %s", schedules, got)
		}
		r.idle()
	}
}

// TestNothingWaitsWithoutGPU: what does no work on a GPU goes straight.
func TestNothingWaitsWithoutGPU(t *testing.T) {
	worker := gatewaytest.NewWorker(t, matrixTokenize().good())
	r := queueRig(t, []string{worker.URL()}, queueConfig(), allEndpoints())
	plug := r.plug(1)
	if resp, text := r.post("/tokenize", `{"model":"m","prompt":"hello"}`).Answer(); resp.StatusCode != 200 {
		t.Errorf("got %d %s", resp.StatusCode, text)
	}
	plug.Done(time.Now(), scoring.NotSent)
	r.idle()
}

// TestDrainLetsQueuedRequestsGo: a gateway that shuts down in time serves what waits.
func TestDrainLetsQueuedRequestsGo(t *testing.T) {
	worker := gatewaytest.NewWorker(t, gatewaytest.Chat("a"))
	r := queueRig(t, []string{worker.URL()}, queueConfig())
	plug := r.plug(1)
	c := r.chat(streamBody)
	r.queued(1)
	down := make(chan error, 1)
	go func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		down <- r.g.Shutdown(ctx)
	}()
	eventually(t, "the gateway to refuse what comes", func() bool { return r.g.closing.Load() })
	plug.Done(time.Now(), scoring.NotSent)
	if resp, text := c.Answer(); resp.StatusCode != 200 || !strings.HasSuffix(text, gatewaytest.DoneEvent) {
		t.Errorf("got %d %s", resp.StatusCode, text)
	}
	if err := <-down; err != nil {
		t.Errorf("shutdown: %v", err)
	}
	r.row()
}
