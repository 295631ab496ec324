package gateway

import (
	"bytes"
	"cmp"
	"strconv"
	"sync"
	"time"

	"github.com/valyala/fasthttp"

	"github.com/sluicegate/sluice/gateway/openai"
	"github.com/sluicegate/sluice/gateway/wire"
	"github.com/sluicegate/sluice/scoring"
	"github.com/sluicegate/sluice/tenancy"
)

// maxErrorBody bounds what is read of a worker's error answer.
const maxErrorBody = 64 << 10

var requestPool = sync.Pool{New: func() any { return new(wire.Request) }}

func acquireRequest() *wire.Request { return requestPool.Get().(*wire.Request) }

func releaseRequest(r *wire.Request) {
	r.Reset()
	requestPool.Put(r)
}

func itoa(n int64) string { return strconv.FormatInt(n, 10) }

// rewriteRoom is how much a body may grow by what is added to it before its buffer
// has to.
const rewriteRoom = 192

// forward waits for the request's turn at a worker and sends it the request, until a
// worker's answer has begun or there is no use in trying on. Every attempt stays
// inside the pools that the policies left.
func (ex *exchange) forward(ctx *fasthttp.RequestCtx) *rejection {
	ex.makeRoute(ctx)
	ex.tries = tries{left: ex.g.cfg.Retries + 1, saturated: true}
	for {
		f := ex.beginAnswer()
		if f == nil {
			return nil
		}
		if rej := ex.attemptFailed(f); rej != nil {
			return rej
		}
	}
}

// prepareAttempt does what an attempt needs and no request that waits: the ledger is
// told before the first, and the body is made that is sent.
func (ex *exchange) prepareAttempt() *rejection {
	if ex.route.codec == nil {
		return nil // there is no body, and it costs nothing
	}
	if ex.began {
		ex.compose()
		return nil
	}
	if err := ex.takeMemory(len(ex.body) + rewriteRoom); err != nil {
		return ex.unsent(refusedMemory, noMemory(err))
	}
	if err := ex.beginLedger(); err != nil {
		if ex.over() {
			return shuttingDown()
		}
		return ex.unsent(refusedLedger, unavailableBecause(err))
	}
	ex.compose()
	return nil
}

// compose makes the body for the worker whose turn it is, unless it is there. The
// priority of its class is for engines that schedule by it.
func (ex *exchange) compose() {
	pool := ex.st.Pools[ex.res.Worker().Pool]
	var priority *int64
	if class := &ex.turn.class; class.HasPriority && pool.PriorityScheduling {
		priority = &class.WorkerPriority
	}
	if priority != ex.mutation.Priority { // that of its one class, or none
		ex.mutation.Priority, ex.mutation.RemovePriority = priority, ex.req.HasPriority && priority == nil
		ex.sent = ex.sent[:0]
		ex.translation.recompose()
	}
	if len(ex.sent) == 0 && (ex.translation == nil || len(ex.native) > 0) {
		if ex.sent == nil {
			ex.sent = make([]byte, 0, len(ex.body)+rewriteRoom)
		}
		ex.sent = ex.route.codec.AppendRewrite(ex.sent, ex.body, ex.req, ex.mutation)
	}
}

func unavailableBecause(err error) *rejection {
	rej := unavailable("the gateway can't account for requests at the moment", 5*time.Second)
	rej.cause = err
	return rej
}

// prepareRoute runs what the route has to do before a worker is picked.
func (ex *exchange) prepareRoute(*fasthttp.RequestCtx) *rejection {
	if ex.route.prepare == nil {
		return nil
	}
	return ex.route.prepare(ex)
}

// makeRoute computes what a worker is chosen by, and what is changed in the body: the
// salt, the tokens, the decision's changes.
func (ex *exchange) makeRoute(ctx *fasthttp.RequestCtx) {
	d := ex.decision
	ex.pick = scoring.Request{Model: ex.model.Name, LoRA: ex.model.LoRA, Pools: ex.pools, Unary: !ex.req.Stream}
	if ex.route.billsTokens { // else no prompt goes through an engine, so there is no cache to look for or to keep apart
		ex.salt = cacheSalt(ex.st.CacheKey, d.CacheIsolation, ex.principal.Tenant.ID, ex.principal.ID, string(ex.req.CacheSalt))
		ex.tokeniseIn(ex.ctx, ex.pools)
		ex.pick.Estimate, ex.pick.Salt = cmp.Or(ex.tokens.Count, ex.estimate()), ex.salt
	}
	if len(ex.tokens.IDs) > 0 {
		ex.pick.Tokens, ex.pick.Length = ex.tokens.IDs, ex.leastLength()
	}
	if ex.goesOnFrom != nil {
		ex.pick.Only = ex.goesOnFrom.worker
	}
	ex.traceparent, ex.tracestate = traceContext(&ctx.Request.Header)
	ex.api = messagesHeaders(ex.route, &ctx.Request.Header)
	m := wire.Mutation{
		RemovePriority: ex.req.HasPriority,
		InjectUsage:    ex.req.Stream,
	}
	if ex.model.Upstream != ex.requested {
		m.Model = &ex.model.Upstream
	}
	if d.MaxTokensChanged {
		m.MaxTokens = d.MaxTokens
	}
	if d.NChanged {
		m.N = &d.N
	}
	switch {
	case ex.salt != "":
		m.CacheSalt = &ex.salt
	case ex.req.CacheSalt != nil:
		m.RemoveCacheSalt = true
	}
	ex.mutation = m
}

// leastLength is how many tokens a worker's context must have room for, as far as that is
// certain: 0 where the tokens are not known to be the engine's, or the engine may be asked
// to cut them (truncate_prompt_tokens, truncation).
func (ex *exchange) leastLength() int {
	if !ex.tokens.Exact || bytes.Contains(ex.body, []byte(`"truncat`)) {
		return 0
	}
	n := len(ex.tokens.IDs) // of several prompts, the longest
	if ex.route.generates && (ex.req.MaxTokens == nil || *ex.req.MaxTokens > 0) {
		n++
	}
	return n
}

// isEventStream reports whether a content type is text/event-stream.
func isEventStream(ct []byte) bool {
	media, _, _ := bytes.Cut(ct, []byte(";"))
	return bytes.EqualFold(bytes.TrimSpace(media), []byte("text/event-stream"))
}

// respond answers with what forward has obtained.
func (ex *exchange) respond(ctx *fasthttp.RequestCtx) {
	ex.setLimitHeaders(ctx)
	ex.setDecisionHeader(&ctx.Response.Header)
	ex.setSluiceHeaders(ctx)
	if ex.relay != nil {
		ctx.Response.Header.SetContentType("text/event-stream; charset=utf-8")
		ctx.Response.Header.Set("Cache-Control", "no-cache")
		ctx.Response.Header.Set("X-Accel-Buffering", "no")
		ex.relayed = true
		ex.conn.stream = ex.relay
		return
	}
	if ex.bindsResponses() {
		ex.bindResponse(openai.ResponseID(ex.unary))
	}
	ctx.Response.Header.SetContentType("application/json")
	ctx.Response.SetBodyRaw(ex.unary)
	ex.keepForAnswer()
	if ex.g.parts.Health != nil {
		ex.g.parts.Health.ReportSuccess(ex.res.Worker().ID)
	}
	ex.finish(ending{
		outcome: tenancy.OutcomeCompleted, status: fasthttp.StatusOK, charge: ex.finalCharge(ex.unaryUsage),
	})
}
