package gateway

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/valyala/fasthttp"

	"github.com/sluicegate/sluice/gateway/coding"
	"github.com/sluicegate/sluice/gateway/wire"
	"github.com/sluicegate/sluice/policy"
	"github.com/sluicegate/sluice/ratelimit"
	"github.com/sluicegate/sluice/scoring"
	"github.com/sluicegate/sluice/tenancy"
)

// statusClientGone is the status of a client that left, in log, metrics and
// ledger only.
const statusClientGone = 499

// exchange is one request from its first check to its settlement. One
// goroutine owns it; only what is atomic, and what mu protects, is touched by others.
type exchange struct {
	g  *Gateway
	st *State

	ctx    context.Context
	cancel context.CancelFunc
	conn   *conn
	gone   atomic.Bool // the client left
	wasCut atomic.Bool // shutdown passed its deadline, or revoked
	mute   atomic.Bool // a client that left gets nothing more
	// known is the principal, for those that may cut the request, and revoked that
	// they did.
	known   atomic.Pointer[tenancy.Principal]
	revoked atomic.Bool
	// asOf is what State.credentialsChanged returned before the caller was identified.
	asOf uint64

	// mu protects up, so that a client's leaving closes the connection that the
	// request uses at that moment, and never one that serves another already.
	mu sync.Mutex
	up *upstream

	start           time.Time
	arrived         time.Time // when its body was there
	id, requestID   string    // ours, unique; the one the client sees
	route           *route
	dialect         dialect
	codec           codec  // what the worker is spoken to in
	upstream        string // the path at the worker
	method          string
	phase           tenancy.Phase
	relayed         bool
	finished        bool
	discarded       bool
	coding          coding.Coding
	announced       int     // length of the body, or chunkedBody
	received        *[]byte // the body as it came; from bodyPool
	bodyRead        bool    // to its end
	memory          int64   // taken from the budget of all
	answerMemory    int64   // the part of it that an answer takes which is held whole
	bodyBytes       int
	credentials     tenancy.Credentials // while they are judged
	principal       *tenancy.Principal
	req             *wire.Request
	model           *Model
	requested       string // the model as the client wrote it
	input           policy.Input
	decision        *policy.Decision
	pools           []string // those of the decision that offer the operation
	limits          []policy.Limit
	unreserve       func() // takes the reserved tokens off the gauge; nil if there are none
	decisionID      string
	stands          bool       // nothing turns the verdict any more
	logged          bool       // the decision's record is kept
	rehearsal       *rehearsal // of the bindings that only audit; nil if none can match
	reserved        []reservedLimit
	owed            []int // limits that are charged later, since they could not be reserved
	refused         []int
	refusedViews    []refusedView
	body            []byte          // as it came, in the memory of received
	held            *heldBody       // what body is in, if it is shared
	goesOnFrom      *storedResponse // what the request goes on from, or is about
	upstreamMethod  string          // empty is POST
	promptBody      []byte          // the form of body in which its tokens are found
	mutation        wire.Mutation   // what the decision changes in the body
	sent            []byte          // what goes to workers that have the route
	native          []string        // the pools of workers that have it, if there is a translation
	untold          bool            // no permitted pool has the route yet, but one may say so
	translation     *translation
	translating     bool // the present attempt is of the translation
	tokens          Tokens
	tokensTried     bool
	routed          int // how many ids there were, once they are gone
	salt            string
	traceparent     string
	tracestate      string
	api             apiHeaders
	pick            scoring.Request
	res             *scoring.Reservation
	turn            turn
	tries           tries
	underway        bool // the present attempt's worker has the request
	attempts        []Attempt
	upBody          *upstreamBody
	overhead        time.Duration
	dispatched      time.Time // when the last attempt was written
	firstToken      time.Time
	work            work          // the present attempt's share of its worker's time
	gpuTime         time.Duration // of the attempts that have ended
	began           bool          // the ledger knows that a worker may have it
	relay           *relay
	unary           []byte
	unaryUsage      wire.Usage
	malformed       int
	answerBegan     bool // a byte of a worker's body has come
	streamErrorCode string
}

// reservedLimit ties a reservation to the limits of the decision that it holds.
type reservedLimit struct {
	lease   ratelimit.Reservation
	indices []int // into exchange.limits, parallel to the claims
	local   bool  // of this process alone, since their store could not be reached
}

// clientLeft is called by the watcher: it wakes the owner and frees the
// worker. It does not block.
func (ex *exchange) clientLeft() {
	ex.gone.Store(true)
	if ex.mute.Load() {
		ex.conn.mute() // before the owner wakes, who would answer
	}
	ex.cut()
}

// muteWhenGone makes sure that nothing is written to a client that has left or
// leaves from now on: a write that blocks would keep the request.
func (ex *exchange) muteWhenGone() {
	ex.mute.Store(true)
	if ex.gone.Load() && ex.conn != nil {
		ex.conn.mute()
	}
}

// cut ends whatever the exchange waits for.
func (ex *exchange) cut() {
	if !ex.gone.Load() {
		ex.wasCut.Store(true)
	}
	ex.cancel()
	ex.mu.Lock()
	defer ex.mu.Unlock()
	if ex.up != nil {
		ex.up.abandon()
	}
}

// over reports whether the request must not go on, for either reason.
func (ex *exchange) over() bool { return ex.gone.Load() || ex.wasCut.Load() }

// holdUpstream makes c the connection to close if the client leaves. It
// reports false, having closed c, if that has happened already.
func (ex *exchange) holdUpstream(c *upstream) bool {
	ex.mu.Lock()
	defer ex.mu.Unlock()
	if ex.over() {
		c.abandon()
		return false
	}
	ex.up = c
	return true
}

// dropUpstream gives the worker connection back: kept if its response was read
// to a clean end, else closed, which is the engine's signal to abort.
func (ex *exchange) dropUpstream() {
	ex.mu.Lock()
	c := ex.up
	ex.up = nil
	keep := c != nil && !ex.over() && ex.upBody != nil && ex.upBody.reusable()
	ex.mu.Unlock()
	body := ex.upBody
	ex.upBody = nil
	switch {
	case c == nil:
	case keep:
		body.letGo()
		ex.g.ups.put(c)
	default:
		c.abandon()
	}
}

// reject finishes the request with a refusal, unless it is finished, and answers
// with it.
func (ex *exchange) reject(ctx *fasthttp.RequestCtx, rej *rejection) {
	if !ex.finished {
		ex.finish(ending{
			outcome: rej.outcome, status: ex.dialect.status(rej), code: rej.code, cause: rej.cause,
			charge: ex.partialCharge(),
		})
	}
	ex.setDecisionHeader(&ctx.Response.Header)
	ex.setSluiceHeaders(ctx)
	if ex.announced != 0 && !ex.bodyRead {
		rej.closeConn = true
	}
	if rej.closeConn && ex.conn != nil {
		ex.conn.linger.Store(true)
	}
	rej.write(ctx, ex.dialect, ex.requestID)
}

// leave finishes a request whose client has gone; what is written afterwards
// reaches nobody.
func (ex *exchange) leave() {
	ex.finish(ending{outcome: tenancy.OutcomeClientAborted, status: statusClientGone, charge: ex.partialCharge()})
}

// answer finishes a request that no worker was needed for.
func (ex *exchange) answer(ctx *fasthttp.RequestCtx, body []byte) {
	ex.finish(ending{outcome: tenancy.OutcomeCompleted, status: fasthttp.StatusOK, charge: charge{settle: true}})
	ex.setLimitHeaders(ctx)
	ex.setDecisionHeader(&ctx.Response.Header)
	ex.setSluiceHeaders(ctx)
	ctx.Response.Header.SetContentType("application/json")
	ctx.Response.SetBody(body)
}

// enterRoute counts the request among those of its route.
func (ex *exchange) enterRoute(r *route) {
	ex.route = r
	ex.g.byRoute[r].Add(1)
}

// discard undoes begin and enterRoute; a second call does nothing.
func (ex *exchange) discard() {
	if ex.discarded {
		return
	}
	ex.discarded = true
	if ex.conn != nil {
		ex.conn.detach()
	}
	ex.cancel()
	ex.g.live.remove(ex)
	ex.g.inFlight.Add(-1)
	if n := ex.g.byRoute[ex.route]; n != nil {
		n.Add(-1)
	}
}
