package gateway

import (
	"context"
	"fmt"
	"log/slog"
	"runtime"
	"runtime/debug"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sluicegate/sluice/gateway/wire"
	"github.com/sluicegate/sluice/policy"
	"github.com/sluicegate/sluice/ratelimit"
)

// Rehearsals, which judge the bindings that only audit, must cost a request
// nothing: few run at a time, and what doesn't fit is left out and counted.
const (
	fewestRehearsers  = 2
	maxRehearsals     = 256
	maxRehearsalBytes = 64 << 20 // of bodies that wait to be read
)

// rehearsals is the queue of rehearsals and those who work it off.
type rehearsals struct {
	g      *Gateway
	ctx    context.Context // ends when rehearsals are given up
	cancel context.CancelFunc
	work   sync.WaitGroup
	few    int          // run at a time: a quarter of the processors
	bytes  atomic.Int64 // of the bodies in the queue
	open   atomic.Int64 // begun, and not over

	// mu protects stopped, after which the queue is closed.
	mu      sync.RWMutex
	stopped bool
	queue   chan *rehearsal
}

func (q *rehearsals) start(g *Gateway) {
	q.g, q.queue = g, make(chan *rehearsal, maxRehearsals)
	q.ctx, q.cancel = context.WithCancel(context.Background())
	q.few = max(fewestRehearsers, runtime.GOMAXPROCS(0)/4)
	for range q.few {
		q.work.Go(func() {
			for r := range q.queue {
				r.step(q.ctx)
			}
		})
	}
}

// finish takes no more rehearsals and waits for those that are queued. When ctx ends
// it ends what runs and gives up what waits. Nothing is left when it returns.
func (q *rehearsals) finish(ctx context.Context) {
	q.mu.Lock()
	if !q.stopped {
		q.stopped = true
		close(q.queue)
	}
	q.mu.Unlock()
	idle := make(chan struct{})
	go func() {
		defer close(idle)
		q.work.Wait()
	}()
	select {
	case <-idle:
	case <-ctx.Done():
		q.cancel()
		<-idle
	}
	q.cancel()
}

// put queues r, or reports that there is no room for it.
func (q *rehearsals) put(r *rehearsal) bool {
	q.mu.RLock()
	defer q.mu.RUnlock()
	if q.stopped {
		return false
	}
	select {
	case q.queue <- r:
		return true
	default:
		return false
	}
}

// rehearsal is what the bindings that only audit make of one request. It begins
// when the verdict stands, waits for the first byte of the answer, so that it
// can't delay it, is judged by one of the rehearsers, and is over when the request
// has ended as well, whichever comes first.
type rehearsal struct {
	g          *Gateway
	what       *policy.Rehearsal
	lazy       rehearsedInput
	id         string // the request's, in the log
	decisionID string
	tenant     string
	logged     bool // the decision's record was kept

	// mu protects what follows.
	mu      sync.Mutex
	begun   bool // queued or left out
	judged  bool // and its limits reserved
	over    bool
	usage   *policy.Usage // of the whole request; nil while it runs
	settled bool          // usage is what it is charged; false: nothing was used
	then    func()        // called once both are over; nil for nothing

	leases []reservedLimit // of the rehearsers, then of whoever settles
}

// beginRehearsal sets aside what the decision's bindings that only audit need.
func (ex *exchange) beginRehearsal() {
	what := ex.decision.Rehearsal()
	if what == nil {
		return
	}
	r := &rehearsal{
		g: ex.g, what: what, id: ex.id, decisionID: ex.decisionID, tenant: ex.principal.Tenant.ID, logged: ex.logged,
		lazy: rehearsedInput{g: ex.g, st: ex.st, route: ex.route, model: ex.model},
	}
	if ex.req != nil {
		r.lazy.held = ex.holdBody()
	}
	if ex.tokensTried && !ex.tokens.Late {
		r.lazy.counted, r.lazy.tokens = true, Tokens{Count: ex.tokens.Count, Exact: ex.tokens.Exact}
	}
	ex.rehearsal = r
	ex.g.rehearsals.open.Add(1)
	if ex.conn != nil {
		ex.conn.afterWrite(r.begin)
	}
}

// endRehearsal tells the rehearsal how the request has ended, and has then called
// when both are over, at once if there is none. A second call does nothing.
func (ex *exchange) endRehearsal(c *charge, u policy.Usage, then func()) {
	r := ex.rehearsal
	if r == nil {
		if then != nil {
			then()
		}
		return
	}
	r.mu.Lock()
	if r.usage != nil {
		r.mu.Unlock()
		return
	}
	r.usage, r.settled, r.then = &u, c.settle, then
	judged, over := r.judged, r.over
	r.mu.Unlock()
	switch {
	case over: // left out, or given up
		r.notify()
	case !judged: // whoever judges it settles it
	case len(r.leases) == 0:
		r.end()
	case !r.g.rehearsals.put(r):
		r.settleAtEstimate()
	}
	if ex.conn == nil {
		r.begin() // there is no answer to wait for
	}
}

// begin queues the rehearsal; only the first call does anything.
func (r *rehearsal) begin() {
	r.mu.Lock()
	begun := r.begun
	r.begun = true
	r.mu.Unlock()
	if begun {
		return
	}
	q, size := &r.g.rehearsals, r.lazy.size()
	if q.bytes.Add(size) > maxRehearsalBytes || !q.put(r) {
		q.bytes.Add(-size)
		r.leaveOut()
	}
}

// leaveOut ends a rehearsal that was not judged.
func (r *rehearsal) leaveOut() {
	r.g.parts.Meter.RehearsalSkipped()
	r.lazy.drop()
	if r.logged {
		r.g.parts.Decisions.Rehearsed(r.decisionID, time.Now(), policy.RehearsalOutcome{LeftOut: true})
	}
	r.end()
}

// end marks the rehearsal as over.
func (r *rehearsal) end() {
	r.mu.Lock()
	over := r.over
	r.over = true
	r.mu.Unlock()
	if !over {
		r.notify()
		r.g.rehearsals.open.Add(-1)
	}
}

// notify calls what waits for the end of both.
func (r *rehearsal) notify() {
	r.mu.Lock()
	then := r.then
	r.then = nil
	r.mu.Unlock()
	if then != nil {
		then()
	}
}

// step does what can be done by now: it judges, and settles once the request has
// ended.
func (r *rehearsal) step(ctx context.Context) {
	defer func() {
		if p := recover(); p != nil {
			r.g.log.Error("panic in a rehearsal", "id", r.id, "kind", fmt.Sprintf("%T", p), "stack", string(debug.Stack()))
			r.settleAtEstimate()
		}
	}()
	if !r.judged { // only the rehearsers change it, and one of them at a time has r
		r.g.rehearsals.bytes.Add(-r.lazy.size())
		if ctx.Err() != nil {
			r.leaveOut()
			return
		}
		r.judge(ctx)
	}
	r.mu.Lock()
	r.judged = true
	ended := r.usage != nil
	r.mu.Unlock()
	if ended {
		r.settle()
	}
}

// judge evaluates the bindings and reserves each of their limits by itself.
func (r *rehearsal) judge(ctx context.Context) {
	defer r.lazy.drop()
	r.what.Run(ctx, &r.lazy)
	limits, now := r.what.Limits(), time.Now()
	var failed []policy.LimitFailure
	for i := range limits {
		lease, failures := r.g.parts.Limiter.Reserve(ctx, now, []ratelimit.Claim{r.g.claim(&limits[i], r.tenant)})
		if len(failures) > 0 {
			f := &failures[0]
			if f.Store != "" && limits[i].OnStoreError == ratelimit.OnStoreErrorAllow {
				continue // it would have let the request in
			}
			failed = append(failed, policy.LimitFailure{Index: i, Wait: f.Wait, StoreFailed: f.Store != ""})
			continue
		}
		r.leases = append(r.leases, reservedLimit{lease: lease, indices: []int{i}})
	}
	if len(failed) > 0 {
		r.what.RefuseLimits(failed)
	}
	out := r.what.Outcome()
	r.tell(out)
	if r.logged {
		r.g.parts.Decisions.Rehearsed(r.decisionID, now, out)
	}
}

// tell measures an outcome and logs its errors, which are the policy's author's.
func (r *rehearsal) tell(out policy.RehearsalOutcome) {
	r.g.parts.Meter.Rehearsed(r.tenant, out)
	for i := range out.Errors {
		logPolicyError(r.g.log, r.id, &out.Errors[i])
	}
}

// settle replaces the reservations by what the request has used.
func (r *rehearsal) settle() {
	defer r.end()
	now := time.Now()
	if !r.settled {
		for _, l := range r.leases {
			l.lease.Cancel(now)
		}
		return
	}
	if len(r.leases) == 0 {
		return
	}
	all := r.what.Charges(*r.usage)
	for _, l := range r.leases {
		l.lease.Settle(now, []int64{all[l.indices[0]]})
	}
	if failed := r.failedCharges(); len(failed) > 0 {
		r.tell(policy.RehearsalOutcome{Errors: failed})
	}
}

// failedCharges are the errors that came up after the outcome was told: those of
// limits that were reserved, which a limit whose own expressions fail never is.
func (r *rehearsal) failedCharges() (out []policy.RuleRef) {
	limits := r.what.Limits()
	for _, e := range r.what.Outcome().Errors {
		if slices.ContainsFunc(limits, func(l policy.Limit) bool { return l.Rule == e.Rule && l.Binding == e.Binding }) {
			out = append(out, e)
		}
	}
	return out
}

// settleAtEstimate charges what was reserved, where nobody has the time to work
// out more.
func (r *rehearsal) settleAtEstimate() {
	now := time.Now()
	r.mu.Lock()
	settled := r.settled
	r.mu.Unlock()
	for _, l := range r.leases {
		if settled {
			l.lease.Settle(now, nil)
		} else {
			l.lease.Cancel(now)
		}
	}
	r.end()
}

// rehearsedInput computes for a rehearsal what is too dear to compute for every
// request, from the body as it came. It implements policy.Lazy.
type rehearsedInput struct {
	g       *Gateway
	st      *State
	route   *route
	model   *Model
	held    *heldBody // nil for a request without a body
	counted bool      // tokens are what the request has found out already
	tokens  Tokens
}

func (l *rehearsedInput) size() int64 {
	if l.held == nil {
		return 0
	}
	return int64(len(l.held.body))
}

// drop gives the body up.
func (l *rehearsedInput) drop() {
	if l.held != nil {
		l.held.dropBody()
		l.held.drop()
		l.held = nil
	}
}

// InputTokens implements policy.Lazy.
func (l *rehearsedInput) InputTokens(ctx context.Context) (int64, bool, error) {
	if l.held == nil {
		return 0, true, nil
	}
	req := l.held.req
	if !l.counted && worthTokenising(l.model, req) {
		ctx, cancel := context.WithTimeout(ctx, l.g.cfg.TokenBudget)
		defer cancel()
		if body := promptBody(l.route.codec, req, l.held.body); body != nil {
			l.tokens = l.g.parts.Tokenizer.Local(ctx, nil, l.model, req, body)
		}
	}
	if l.tokens.Exact {
		return int64(l.tokens.Count), true, nil
	}
	return int64(l.model.Estimate(req, l.model.BytesPerToken)), false, nil
}

// Content implements policy.Lazy.
func (l *rehearsedInput) Content(ctx context.Context) (policy.Content, error) {
	if l.held == nil {
		return policy.Content{ScanStatus: "complete"}, nil
	}
	return l.st.classify(ctx, l.g.parts.Tokenizer, l.route, l.model, l.held.body), nil
}

// heldBody is a request's body and what the scan has found in it, for as long as the
// request or its rehearsal needs them. A stream needs its body no more long before it
// ends.
type heldBody struct {
	received *[]byte
	body     []byte
	req      *wire.Request
	bodyRefs atomic.Int32
	refs     atomic.Int32
}

// holdBody shares the request's body with its rehearsal.
func (ex *exchange) holdBody() *heldBody {
	h := &heldBody{received: ex.received, body: ex.body, req: ex.req}
	h.bodyRefs.Store(2)
	h.refs.Store(2)
	ex.held = h
	return h
}

// dropBody gives the body back with the last one who needs it.
func (h *heldBody) dropBody() {
	if h.bodyRefs.Add(-1) == 0 {
		forgetViews(h.req)
		giveBody(h.received)
	}
}

// drop gives what was found in the body back with the last one who needs it. Each has
// dropped the body before.
func (h *heldBody) drop() {
	if h.refs.Add(-1) == 0 {
		releaseRequest(h.req)
	}
}

// logPolicyError writes what a rule died of. The detail can hold values that
// policies see, never text of a prompt.
func logPolicyError(log *slog.Logger, id string, e *policy.RuleRef) {
	log.LogAttrs(context.Background(), slog.LevelWarn, "policy error", slog.String("id", id), slog.String("rule", e.Rule),
		slog.String("binding", e.Binding), slog.String("mode", string(e.Mode)), slog.String("kind", string(e.ErrorKind)), slog.String("detail", e.Detail))
}
