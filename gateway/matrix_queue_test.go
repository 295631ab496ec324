package gateway

import (
	"context"
	"io"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sluicegate/sluice/gateway/gatewaytest"
	"github.com/sluicegate/sluice/gateway/qos"
	"github.com/sluicegate/sluice/gateway/qos/placing"
	"github.com/sluicegate/sluice/policy"
	"github.com/sluicegate/sluice/scoring"
	"github.com/sluicegate/sluice/tenancy"
)

// The phases of a request in the queue, and what can happen to it there.
var (
	queuePhases = []string{
		"queued",        // it waits, and the client has had nothing
		"queued-beaten", // it waits, and the client has had comments
		"again",         // it waits once more, after a worker that could not be reached
		"again-full",    // and after one that had no room
	}
	queueFaults = []string{
		"room", "client-fin", "client-rst", "shutdown", "revoke", "revoked-turn", "expire", "reload", "no-worker", "panic",
	}
)

// queueCell is one request to which one thing happens while it waits.
type queueCell struct {
	matrixCell
}

// TestQueueFaultMatrix plays every fault in every phase of a request that waits, on
// every route that waits, as a stream and not, and checks that nothing of it is left:
// neither in the queue nor at a worker, in the limits or in the books.
func TestQueueFaultMatrix(t *testing.T) {
	set := compile(t, bound("p", "Deny", matrixPolicies))
	var cells []queueCell
	for _, d := range matrixDialects() {
		for _, stream := range []bool{true, false} {
			for _, phase := range queuePhases {
				for _, fault := range queueFaults {
					if !d.bills || stream && !d.stream || phase == "queued-beaten" && !stream {
						continue // it doesn't wait, has no stream, or gets no comments
					}
					cells = append(cells, queueCell{matrixCell{phase: phase, fault: fault, dialect: d, stream: stream}})
				}
			}
		}
	}
	queue := make(chan queueCell)
	var players sync.WaitGroup
	for range 16 {
		players.Go(func() {
			for c := range queue {
				t.Run(c.name(), func(t *testing.T) { c.run(t, set) })
			}
		})
	}
	played := 0
	for _, c := range cells {
		if !testing.Short() || c.inThird() {
			queue <- c
			played++
		}
	}
	close(queue)
	players.Wait()
	t.Logf("%d of %d cells played", played, len(cells))
}

// standing knows callers until all are taken back.
type standing struct {
	Identifier
	revoked atomic.Bool
}

func (s *standing) Changed() uint64 {
	if s.revoked.Load() {
		return 1
	}
	return 0
}

func (s *standing) Stands(*tenancy.Principal) bool { return !s.revoked.Load() }

// failingRouter panics at the next offer to a pool once it is told to.
type failingRouter struct {
	Router
	fail atomic.Bool
}

func (f *failingRouter) Offer(now time.Time, p *scoring.Prepared, terms scoring.Terms) (*scoring.Reservation, scoring.Refusal, error) {
	if terms.Pool != placing.NoPool && f.fail.CompareAndSwap(true, false) {
		panic("BUG: of this test")
	}
	return f.Router.Offer(now, p, terms)
}

// run plays the cell before a gateway of its own, whose second worker is taken by what
// is no request of a client.
func (c queueCell) run(t *testing.T, set *policy.Set) {
	var r *rig
	router := &failingRouter{}
	busy := gatewaytest.NewWorker(t, c.dialect.good())
	urls := []string{busy.URL()}
	if c.phase == "again" {
		urls = append(urls, "http://127.0.0.1:1")
	}
	if c.phase == "again-full" {
		urls = append(urls, gatewaytest.NewWorker(t, func(x *gatewaytest.Exchange) {
			r.setReady("w2", false) // or it would be asked again by and by
			gatewaytest.Fail(503)(x)
		}).URL())
	}
	r = queueRig(t, urls, c.queue(), c.dialect.endpoints(),
		withState(func(st *State) { st.Identifier = &standing{Identifier: st.Identifier} }),
		withParts(func(p *Parts) { router.Router, p.Router = p.Router, router }),
		withConfig(func(cfg *Config) {
			if c.phase == "queued-beaten" {
				cfg.KeepAliveComment = 10 * time.Millisecond
			}
		}))
	var limits []policy.Limit
	var mu sync.Mutex
	r.decider.set(func(ctx context.Context, in *policy.Input) *policy.Decision {
		d := set.Decide(ctx, in)
		mu.Lock()
		limits = slices.Clone(d.Limits)
		mu.Unlock()
		return d
	})
	plug := r.plug(1)
	client := r.dial()
	client.Send("POST", c.dialect.path, c.request(), "Authorization: Bearer "+goodKey)
	if c.fault != "expire" { // else it may be over before anybody looks
		r.queued(1)
	}
	before := ""
	var resp io.Reader
	status := 0
	if c.phase == "queued-beaten" {
		head := client.Head()
		buf := make([]byte, len(": keep-alive\n\n"))
		if _, err := io.ReadFull(head.Body, buf); err != nil || string(buf) != ": keep-alive\n\n" {
			t.Fatalf("got %q, %v, want a comment", buf, err)
		}
		status, resp, before = head.StatusCode, head.Body, string(buf)
	}
	if c.fault != "expire" {
		c.checkWaiting(t, r)
	}
	c.act(r, router, plug, client)
	if !strings.HasPrefix(c.fault, "client-") {
		var text string
		var err error
		if resp == nil {
			status, text, err = read(t, client)
		} else {
			var rest []byte
			rest, err = io.ReadAll(resp)
			text = before + string(rest)
		}
		c.checkAnswer(t, c.expected(), status, strings.ReplaceAll(text, ": keep-alive\n\n", ""), err)
	}
	eventually(t, "the request's row", func() bool { return len(r.ledger.all()) > 0 })
	plug.Done(time.Now(), scoring.NotSent)
	row := r.row()
	c.checkQueueRow(t, r, row)
	mu.Lock()
	defer mu.Unlock()
	c.checkBooks(t, r, row, limits)
}

// queue is the configuration of the cell.
func (c queueCell) queue() qos.Config {
	return queueConfig(func(q *qos.Config) {
		for i := range q.Classes {
			q.Classes[i].KeepAlive = c.phase == "queued-beaten"
			if c.fault == "expire" {
				q.Classes[i].Target, q.Classes[i].MaxWait = 100*time.Millisecond, 500*time.Millisecond
				switch { // something comes before, however busy the machine
				case c.phase == "queued-beaten": // a comment
					q.Classes[i].MaxWait = 8 * time.Second
				case c.again(): // a worker fails
					q.Classes[i].MaxWait = 4 * time.Second
				}
			}
		}
		qos.SetBounds(q.Classes)
	})
}

// plug takes the worker of that number, from 1.
func (r *rig) plug(worker int) *scoring.Reservation {
	r.t.Helper()
	only := r.fleet.Snapshot(time.Now())[worker-1].Worker.ID
	res, err := r.fleet.Pick(time.Now(), &scoring.Request{Model: "m", Pools: []string{"p"}, Estimate: longPrompt, Only: only})
	if err != nil {
		r.t.Fatal(err)
	}
	return res
}

func (c queueCell) again() bool { return c.phase == "again" || c.phase == "again-full" }

// checkWaiting: what waits has an announcement only if a worker was tried before, and
// is at no worker.
func (c queueCell) checkWaiting(t *testing.T, r *rig) {
	want := 0
	if c.again() {
		want = 1
	}
	if n := r.ledger.begun(); n != want {
		t.Errorf("%d announcements at the ledger, want %d", n, want)
	}
	load := 0
	for _, w := range r.fleet.Snapshot(time.Now()) {
		load += w.InFlight
	}
	if load != 1 { // the plug
		t.Errorf("the workers have %d requests", load)
	}
}

// act is what happens.
func (c queueCell) act(r *rig, router *failingRouter, plug *scoring.Reservation, client *gatewaytest.Client) {
	switch c.fault {
	case "room":
		plug.Done(time.Now(), scoring.NotSent)
	case "client-fin":
		client.Leave(gatewaytest.FIN)
	case "client-rst":
		client.Leave(gatewaytest.RST)
	case "shutdown":
		r.shutdownAtOnce()
	case "revoke":
		eventually(r.t, "the request to be cut", func() bool { return r.g.Cut(func(*tenancy.Principal) bool { return true }) == 1 })
	case "revoked-turn": // nothing cuts what waits; its turn comes
		r.g.State().Identifier.(*standing).revoked.Store(true)
		plug.Done(time.Now(), scoring.NotSent)
	case "reload":
		st := *r.g.State()
		st.Queue = qos.DefaultConfig("other", "classes")
		r.g.Swap(&st)
		plug.Done(time.Now(), scoring.NotSent)
	case "no-worker":
		r.setReady("w1", false)
		plug.Done(time.Now(), scoring.NotSent)
		r.setReady("w1", true)
	case "panic":
		router.fail.Store(true)
		plug.Done(time.Now(), scoring.NotSent)
	}
}

// expected is what must become of the cell.
func (c queueCell) expected() expected {
	e := expected{outcome: tenancy.OutcomeRejected, status: 503}
	switch c.fault {
	case "client-fin", "client-rst":
		return leaves(chargeNone)
	case "shutdown":
		e.code = "unavailable"
	case "revoke", "revoked-turn":
		e.status, e.code = 401, "invalid_api_key"
	case "expire":
		e.code = "overloaded"
		if strings.HasPrefix(c.dialect.path, "/v1/messages") {
			e.status = 529
		}
	case "panic":
		e.status, e.code = 500, "internal_error"
	default:
		return completes(chargeAll, true)
	}
	if c.phase == "queued-beaten" {
		e.status, e.event = 200, true
		if c.fault == "shutdown" {
			e.outcome = tenancy.OutcomeUpstreamError // as of any stream that was cut
		}
	}
	return e
}

func (c queueCell) checkQueueRow(t *testing.T, r *rig, row *tenancy.Row) {
	want := c.expected()
	want.checkRow(t, row)
	attempts := 0
	if c.again() {
		attempts++
	}
	served := want.outcome == tenancy.OutcomeCompleted
	if served {
		attempts++
	}
	if row.Attempts != attempts {
		t.Errorf("%d attempts, want %d", row.Attempts, attempts)
	}
	if !served && (row.Phase != tenancy.PhaseQueue || row.InputTokens+row.OutputTokens != 0) {
		t.Errorf("the row says phase %s and %d tokens", row.Phase, row.InputTokens+row.OutputTokens)
	}
	if row.Queue <= 0 {
		t.Error("the row knows of no wait")
	}
	s := r.meter.last()
	if c.fault == "expire" && !c.again() && s.QueueRefused != "waited" || c.again() && s.QueueRefused != "" || served && s.QueueRefused != "" {
		t.Errorf("the summary says that it was refused for %q", s.QueueRefused)
	}
	c.checkOnce(t, r, s)
}

// checkOnce: a request ends in one way, whoever counts: the queue, and the summary that
// metrics are made of.
func (c queueCell) checkOnce(t *testing.T, r *rig, s *Summary) {
	if (s.QueueTurn == "") == (s.QueueRefused == "") || s.QueueTurn != "" && !slices.Contains(QueueTurns(), s.QueueTurn) || s.QueueRefused != "" && !slices.Contains(QueueReasons(), s.QueueRefused) {
		t.Errorf("the summary says that its turn was %q, and that it was refused for %q", s.QueueTurn, s.QueueRefused)
	}
	var q QueueState
	if !r.g.QueueState(&q) {
		t.Fatal("there is no queue")
	}
	ended := int64(0)
	for i := range q.Classes {
		class := &q.Classes[i]
		ways := class.Passed + class.Granted + class.Left
		for reason, n := range class.Refused {
			ways += n
			if n > 0 && qos.Reason(reason).String() != s.QueueRefused && !c.again() {
				t.Errorf("the queue has refused it for %v, the summary says %q", qos.Reason(reason), s.QueueRefused)
			}
		}
		if class.Left > 0 && s.QueueTurn != TurnLeft {
			t.Errorf("the queue says that it has left, the summary %q and %q", s.QueueTurn, s.QueueRefused)
		}
		if class.Arrived+class.Passed != ways {
			t.Errorf("of class %s %d came and %d went by, and %d ended: %+v", class.Name, class.Arrived, class.Passed, ways, class)
		}
		ended += ways
	}
	want := int64(1)
	if c.fault == "panic" {
		want = 0 // the queue that had it is gone
	}
	if ended != want {
		t.Errorf("the queue counts %d ends", ended)
	}
}
