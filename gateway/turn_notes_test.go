package gateway

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluicegate/sluice/gateway/bodyscan"
	"github.com/sluicegate/sluice/gateway/gatewaytest"
	"github.com/sluicegate/sluice/gateway/qos"
	"github.com/sluicegate/sluice/gateway/qos/placing"
	"github.com/sluicegate/sluice/policy"
	"github.com/sluicegate/sluice/scoring"
	"github.com/sluicegate/sluice/tenancy"
)

// queueOfOne is a gateway without a network that has a queue, and one worker.
func queueOfOne(t *testing.T, alter ...func(*qos.Config)) (*Gateway, *scoring.Fleet) {
	t.Helper()
	fleet := scoring.NewFleet(scoring.DefaultConfig())
	id, err := fleet.Add(time.Now(), scoring.WorkerSpec{Name: "w", Pool: "a", Models: []string{"m"}})
	if err != nil {
		t.Fatal(err)
	}
	fleet.SetReady(time.Now(), id, true, "")
	return bareGateway(fleet, &State{Pools: map[string]Pool{"a": {}}, Queue: queueConfig(alter...)}), fleet
}

// TestNotesThatAreLost: a request that went past a queue that was too busy to hear of it
// may come again like any other.
func TestNotesThatAreLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g, _ := queueOfOne(t)
		defer g.turns.stop()
		synctest.Wait()
		g.turns.mu.Lock()
		for range maxNotes {
			g.turns.notes <- note{turn: new(turn), pool: "none"}
		}
		ex := g.asks("standard", "acme", scoring.Request{Model: "m", Pools: []string{"a"}, Estimate: 100})
		defer ex.left()
		if _, rej := ex.takeTurn(time.Time{}); rej != nil {
			t.Fatal(rej, rej.cause)
		}
		g.turns.mu.Unlock()
		ex.endAttempt()
		if _, rej := ex.takeTurn(time.Time{}); rej != nil {
			t.Fatal(rej, rej.cause)
		}
		ex.res.Done(time.Now(), scoring.Completed)
	})
}

// TestQueueAfterAPanic: the queue that follows one with a bug tells who waits in vain
// so, although nothing but its clock wakes it.
func TestQueueAfterAPanic(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g, fleet := queueOfOne(t, func(c *qos.Config) { c.Classes[1].MaxWait = 10 * time.Second })
		defer g.turns.stop()
		synctest.Wait()
		func() {
			g.turns.mu.Lock()
			defer g.turns.mu.Unlock()
			defer g.turns.survive()
			panic("BUG: of this test")
		}()
		synctest.Wait()
		plug, err := fleet.Pick(time.Now(), &scoring.Request{Model: "m", Pools: []string{"a"}, Estimate: longPrompt})
		if err != nil {
			t.Fatal(err)
		}
		ex := g.asks("standard", "acme", scoring.Request{Model: "m", Pools: []string{"a"}, Estimate: longPrompt})
		defer ex.left()
		began := time.Now()
		_, rej := ex.takeTurn(time.Time{})
		if rej == nil || ex.turn.reason != "waited" {
			t.Fatal("not refused: ", rej, ex.turn.reason)
		}
		if waited := time.Since(began); waited > 11*time.Second {
			t.Errorf("it has waited for %v, and its class waits for 10 s", waited)
		}
		plug.Done(time.Now(), scoring.NotSent)
	})
}

// TestClaimsAreBounded: what a client says of the length of its answers can't be more than
// the model is able to. Otherwise one absurd number would be room that less urgent classes
// must leave free for minutes, or so much that the sum has another sign.
func TestClaimsAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g, _ := queueOfOne(t)
		defer g.turns.stop()
		most := int64(bodyscan.MaxInteger)
		for _, c := range []struct {
			context    int
			maxTokens  int64
			n          int64
			prompts    int
			from, upTo int64
		}{
			{4096, 100, 2, 3, 600, 600},
			{4096, most, 1, 1, 3096, 3096},
			{4096, most, 2, 1, 6192, 6192},
			{500, most, 1, 1, 0, 0},
			{0, most, 1, 1, 1 << 17, 1 << 21},
			{0, most, most, 2048, 1 << 17, 1 << 21},
			{4096, most, most, 2048, 1 << 17, 1 << 21},
		} {
			ex := g.asks("interactive", "acme", scoring.Request{Model: "m", Pools: []string{"a"}, Estimate: 1000})
			ex.model.ContextLength, ex.decision.N, ex.req.PromptCount = c.context, c.n, c.prompts
			ex.req.MaxTokens, ex.decision.MaxTokens = &c.maxTokens, &c.maxTokens
			ex.describe(g.turns.conf.Load())
			e := &ex.turn.entry
			if out := ex.turn.output; out < c.from || out > c.upTo || e.Work != 1000+placing.OutputCost*out || e.Room != 1000+out {
				t.Errorf("%+v: %d tokens of answer, work %d, room %d", c, out, e.Work, e.Room)
			}
			ex.left()
		}
	})
}

// brokenLedger takes nothing.
type brokenLedger struct{ Ledger }

func (brokenLedger) Begin(context.Context, *tenancy.Intent) error { return errors.New("down") }

// TestRefusedByTheGateway: a request that the gateway itself can't send is told apart from
// those that workers failed.
func TestRefusedByTheGateway(t *testing.T) {
	body := 1 << 10
	for _, c := range []struct {
		name   string
		memory int64
		busy   bool // it has to wait
		reason string
	}{
		{"no memory to wait", 2 * 1000, true, refusedMemory},
		{"no memory to be sent", 2 * 1000, false, refusedMemory},
		{"no ledger", 1 << 20, false, refusedLedger},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				g, fleet := queueOfOne(t)
				defer g.turns.stop()
				g.memory, g.parts.Ledger = newMemoryBudget(c.memory), brokenLedger{}
				if c.busy {
					plug, err := fleet.Pick(time.Now(), &scoring.Request{Model: "m", Pools: []string{"a"}, Estimate: longPrompt})
					if err != nil {
						t.Fatal(err)
					}
					defer plug.Done(time.Now(), scoring.NotSent)
				}
				ex := g.asks("standard", "acme", scoring.Request{Model: "m", Pools: []string{"a"}, Tokens: make([]uint32, 1000), Estimate: longPrompt})
				defer ex.left()
				ex.body = make([]byte, body)
				ex.tries = tries{left: 1, saturated: true}
				_, rej := ex.dispatch(time.Time{})
				if rej == nil || rej.status != 503 || ex.turn.reason != c.reason || !slices.Contains(QueueReasons(), c.reason) {
					t.Errorf("it is refused with %+v for %q", rej, ex.turn.reason)
				}
				if ex.res != nil {
					ex.res.Done(time.Now(), scoring.NotSent)
				}
			})
		})
	}
}

// TestTargetsWithoutAQueue: where nothing waits it is told all the same whether requests met
// their class's target, and why those got no worker that got none.
func TestTargetsWithoutAQueue(t *testing.T) {
	worker := gatewaytest.NewWorker(t, gatewaytest.Chat("a"))
	r := newRig(t, []string{worker.URL()}, withState(func(st *State) {
		st.Targets = map[string]time.Duration{"standard": 3 * time.Second}
	}))
	for _, c := range []struct {
		class    string
		own      time.Duration // a policy's
		ready    bool
		target   time.Duration
		turn, no string
	}{
		{"standard", 0, true, 3 * time.Second, TurnPassed, ""},
		{"standard", time.Second, true, time.Second, TurnPassed, ""},
		{"unknown", 0, true, 0, TurnPassed, ""},
		{"standard", 0, false, 3 * time.Second, "", qos.ReasonNoWorker.String()},
	} {
		r.setReady("w1", c.ready)
		r.decider.set(func(_ context.Context, in *policy.Input) *policy.Decision {
			d := allow(in)
			d.Class, d.TTFTTarget = c.class, c.own
			return d
		})
		status := 200
		if !c.ready {
			status = 503
		}
		if resp, text := r.chat(streamBody).Answer(); resp.StatusCode != status {
			t.Fatalf("%+v: got %d %s", c, resp.StatusCode, text)
		}
		r.idle()
		s := r.meter.last()
		if !s.Queued || s.TTFTTarget != c.target || s.QueueTurn != c.turn || s.QueueRefused != c.no || s.QueueWait != 0 || c.ready != (s.FirstToken > 0) {
			t.Errorf("%+v: the summary says %+v", c, s)
		}
	}
}

// TestLongerThanAnyContext: a request that no worker has room for is told so before it
// waits, with a queue and without, and is not one that the queue has refused; one that some
// worker has room for goes there; where the length is not certain the engine decides.
func TestLongerThanAnyContext(t *testing.T) {
	const short, long = 100, 200
	for _, c := range []struct {
		name   string
		tokens int
		exact  bool
		more   string // in the body
		status int
	}{
		{"fits", short - 1, true, "", 200},
		{"fits one alone", long - 1, true, "", 200},
		{"fits none", long, true, "", 400},
		{"no answer is wanted", long, true, `,"max_tokens":0`, 200},
		{"is cut", long, true, `,"truncate_prompt_tokens":50`, 200},
		{"may be as long", long, false, "", 200},
	} {
		for _, queued := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s/queue=%v", c.name, queued), func(t *testing.T) {
				urls := []string{gatewaytest.NewWorker(t, gatewaytest.Chat("a")).URL(), gatewaytest.NewWorker(t, gatewaytest.Chat("a")).URL()}
				r := newRig(t, urls, withParts(func(p *Parts) { p.Router = p.Router.(inOrder).Fleet }), withState(func(st *State) {
					if queued {
						st.Queue = queueConfig()
					}
				}))
				for i, w := range r.fleet.Snapshot(time.Now()) {
					r.fleet.SetContext(w.Worker.ID, []int{short, long}[i])
				}
				r.tokens.find = func(_ context.Context, dst []uint32) Tokens {
					return Tokens{IDs: append(dst, make([]uint32, c.tokens)...), Count: c.tokens, Exact: c.exact}
				}
				resp, text := r.post("/v1/completions", `{"model":"m","prompt":"x"`+c.more+`}`).Answer()
				if resp.StatusCode != c.status {
					t.Fatalf("got %d %s", resp.StatusCode, text)
				}
				r.idle()
				s := r.meter.last()
				if c.status != 200 {
					wantError(t, resp, text, 400, "context_length_exceeded")
					if s.Queued || s.QueueTurn != "" || s.QueueRefused != "" || s.Row.Attempts != 0 || s.Row.ErrorCode != "context_length_exceeded" || !strings.Contains(text, "length is 200") {
						t.Errorf("the summary says %+v, the client is told %s", s, text)
					}
					return
				}
				if c.exact && c.more == "" && c.tokens >= short && s.Row.Worker != "w2" {
					t.Errorf("it went to %s", s.Row.Worker)
				}
			})
		}
	}
}

// TestWaitsForTheLongContext: one that waits for the only worker that has room for it is
// told when that has gone for good, however many shorter ones there are, and others wait on.
func TestWaitsForTheLongContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g, fleet := queueOfOne(t)
		defer g.turns.stop()
		short := fleet.Snapshot(time.Now())[0].Worker.ID
		long, err := fleet.Add(time.Now(), scoring.WorkerSpec{Name: "long", Pool: "a", Models: []string{"m"}})
		if err != nil {
			t.Fatal(err)
		}
		fleet.SetReady(time.Now(), long, true, "")
		fleet.SetContext(short, 1500)
		fleet.SetContext(long, 1<<40)
		for _, id := range []scoring.WorkerID{short, long} {
			plug, err := fleet.Pick(time.Now(), &scoring.Request{Model: "m", Pools: []string{"a"}, Estimate: longPrompt, Only: id})
			if err != nil {
				t.Fatal(err)
			}
			defer plug.Done(time.Now(), scoring.NotSent)
		}
		lengths := []int{1600, 1200, 0} // of as many bits as 1500, but for the last
		var waits []*exchange
		for _, n := range lengths {
			ex := g.asks("standard", "acme", scoring.Request{Model: "m", Pools: []string{"a"}, Estimate: longPrompt, Length: n})
			defer ex.left()
			if rej := ex.askForTurn(); rej != nil || !ex.turn.waits {
				t.Fatalf("%d tokens: %+v, waits: %v", n, rej, ex.turn.waits)
			}
			waits = append(waits, ex)
		}
		fleet.Retire(long, "gone")
		time.Sleep(noWorkerRetry + 3*lonelyEvery)
		synctest.Wait()
		for i, ex := range waits {
			select {
			case <-ex.turn.ready:
				ex.turn.ready <- struct{}{}
				if i != 0 || ex.turn.outcome.Reason != qos.ReasonNoWorker {
					t.Errorf("%d tokens: refused for %v", lengths[i], ex.turn.outcome.Reason)
				}
			default:
				if i == 0 {
					t.Error("it waits on for nobody")
				}
			}
		}
	})
}

// countingRouter counts how often it is asked whether there is a worker.
type countingRouter struct {
	Router
	asked int
}

func (r *countingRouter) Serves(req *scoring.Request) error {
	r.asked++
	return r.Router.Serves(req)
}

// TestNoWorkerIsLookedForOnce: where there is no worker at all it is not looked for one for
// each of those that wait, however long they are: the queue's lock is held meanwhile.
func TestNoWorkerIsLookedForOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g, fleet := queueOfOne(t)
		defer g.turns.stop()
		id := fleet.Snapshot(time.Now())[0].Worker.ID
		plug, err := fleet.Pick(time.Now(), &scoring.Request{Model: "m", Pools: []string{"a"}, Estimate: longPrompt})
		if err != nil {
			t.Fatal(err)
		}
		defer plug.Done(time.Now(), scoring.NotSent)
		const waiting = 200
		for i := range waiting {
			ex := g.asks("standard", fmt.Sprint("tenant ", i), scoring.Request{Model: "m", Pools: []string{"a"}, Estimate: longPrompt, Length: 1024 + i})
			defer ex.left()
			if rej := ex.askForTurn(); rej != nil || !ex.turn.waits {
				t.Fatalf("%+v, waits: %v", rej, ex.turn.waits)
			}
		}
		counts := &countingRouter{Router: g.turns.router}
		g.turns.mu.Lock()
		g.turns.router = counts
		g.turns.mu.Unlock()
		fleet.SetReady(time.Now(), id, false, "restarts")
		time.Sleep(3 * lonelyEvery)
		synctest.Wait()
		g.turns.mu.Lock()
		defer g.turns.mu.Unlock()
		if counts.asked == 0 || counts.asked > 2*4 {
			t.Errorf("in 3 s it was asked %d times for %d that wait", counts.asked, waiting)
		}
	})
}
