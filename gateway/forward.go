package gateway

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"strconv"
	"sync"
	"time"

	"github.com/valyala/fasthttp"

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

// forward picks a worker and sends it the request, until a worker's answer has
// begun or there is no use in trying on. Every attempt stays inside the pools
// that the policies left.
func (ex *exchange) forward(ctx *fasthttp.RequestCtx) *rejection {
	ex.makeRequest(ctx)
	if err := ex.beginLedger(); err != nil {
		if ex.over() {
			return shuttingDown()
		}
		return unavailableBecause(err)
	}
	var last *rejection
	saturated := true
	for range ex.g.cfg.Retries + 1 {
		if ex.over() {
			return shuttingDown()
		}
		res, err := ex.g.parts.Router.Pick(time.Now(), &ex.pick)
		if err != nil {
			return ex.noWorker(err, last, saturated)
		}
		ex.setReservation(res)
		again, rej := ex.attempt()
		if rej == nil {
			return nil
		}
		if ex.over() {
			return shuttingDown()
		}
		if !again {
			return rej
		}
		ex.pick.Exclude = append(ex.pick.Exclude, res.Worker().ID)
		saturated = saturated && rej.code == "overloaded"
		last = rej
	}
	return ex.noWorker(nil, last, saturated)
}

func unavailableBecause(err error) *rejection {
	rej := unavailable("the gateway can't account for requests at the moment", 5*time.Second)
	rej.cause = err
	return rej
}

// setReservation makes res the one to finish, ending the one of a failed
// attempt.
func (ex *exchange) setReservation(res *scoring.Reservation) {
	if ex.res != nil {
		now := time.Now()
		ex.endWork(now)
		ex.res.Done(now, scoring.WorkerFailed)
	}
	ex.res = res
}

// noWorker says why nothing could be picked.
func (ex *exchange) noWorker(err error, last *rejection, saturated bool) *rejection {
	if last != nil {
		if saturated {
			return last
		}
		return upstreamFailed("upstream_error", "the workers that could serve this failed", fasthttp.StatusBadGateway, last.cause)
	}
	rej := unavailable("no worker of the permitted pools is ready; try again", 5*time.Second)
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

// makeRequest computes what every attempt shares: the salt, the tokens, the body.
func (ex *exchange) makeRequest(ctx *fasthttp.RequestCtx) {
	d := ex.decision
	ex.salt = cacheSalt(ex.st.CacheKey, d.CacheIsolation, ex.principal.Tenant.ID, ex.principal.ID, string(ex.req.CacheSalt))
	ex.tokeniseIn(ex.ctx, d.Pools)
	ex.pick = scoring.Request{
		Model: ex.model.Name, LoRA: ex.model.LoRA, Pools: d.Pools, Estimate: cmp.Or(ex.tokens.Count, ex.estimate()), Salt: ex.salt,
		Unary: !ex.req.Stream,
	}
	if len(ex.tokens.IDs) > 0 {
		ex.pick.Tokens = ex.tokens.IDs
	}
	ex.traceparent, ex.tracestate = traceContext(&ctx.Request.Header)
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
	ex.sent = ex.codec.AppendRewrite(make([]byte, 0, len(ex.body)+192), ex.body, ex.req, m)
}

var scratchPool = sync.Pool{New: func() any { return new([]byte) }}

// attempt sends the request to the picked worker and waits until its answer
// has begun. again says whether another worker may be tried.
func (ex *exchange) attempt() (again bool, rej *rejection) {
	w := ex.res.Worker()
	n := len(ex.attempts)
	ex.attempts = append(ex.attempts, Attempt{Pool: w.Pool, Worker: w.Name})
	defer func() {
		if rej != nil {
			ex.attempts[n].Reason = rej.code
			ex.dropUpstream()
			ex.reportFailure(w.ID, rej)
		}
	}()
	status, err := ex.exchangeHeaders(w)
	if err != nil {
		return ex.sendFailed(err)
	}
	ex.attempts[n].Status = status
	if status != fasthttp.StatusOK {
		return ex.workerError(status)
	}
	eventStream := isEventStream(ex.up.header.ContentType())
	if eventStream != ex.req.Stream {
		return false, upstreamFailed("upstream_error", "the worker answered in another form than was asked for", fasthttp.StatusBadGateway,
			errors.New("the worker's content type does not match the request's stream field"))
	}
	if eventStream {
		return ex.beginStream()
	}
	return ex.readUnary()
}

// errNotSent marks an attempt that the worker can't have seen.
type errNotSent struct{ error }

// Unwrap gives the cause.
func (e errNotSent) Unwrap() error { return e.error }

// exchangeHeaders gets a connection, sends the request and reads the header of
// the response. A kept connection that turns out to have been closed is
// replaced once, on the same worker.
func (ex *exchange) exchangeHeaders(w scoring.WorkerInfo) (status int, err error) {
	base, err := url.Parse(w.Address)
	if err != nil {
		return 0, errNotSent{fmt.Errorf("cannot use the worker's address: %w", err)}
	}
	r := upstreamRequest{
		path: ex.upstream, host: base.Host, authorization: ex.st.Pools[w.Pool].APIKey,
		requestID:   ex.id + "-" + itoa(int64(len(ex.attempts))),
		traceparent: ex.traceparent, tracestate: ex.tracestate,
		stream: ex.req.Stream, body: ex.sent, writeTimeout: ex.g.cfg.ClientWrite,
		firstByteIn: ex.g.cfg.FirstByteUnary,
	}
	if r.stream {
		r.firstByteIn = ex.g.cfg.FirstByteStream
	}
	scratch := scratchPool.Get().(*[]byte)
	defer scratchPool.Put(scratch)
	for fresh := false; ; fresh = true {
		c, err := ex.g.ups.get(ex.ctx, base, fresh)
		if err != nil {
			return 0, errNotSent{err}
		}
		if !ex.holdUpstream(c) {
			return 0, errNotSent{net.ErrClosed}
		}
		ex.markDispatched()
		var sent bool
		*scratch, sent, err = c.send(*scratch, &r)
		if err == nil {
			return c.header.StatusCode(), nil
		}
		stale := c.reused && !c.heard && !isTimeout(err) && !ex.over()
		ex.dropUpstream()
		if stale {
			continue
		}
		if !sent {
			return 0, errNotSent{err}
		}
		return 0, err
	}
}

// markDispatched notes the moment before the request is written.
func (ex *exchange) markDispatched() {
	now := time.Now()
	if ex.dispatched.IsZero() {
		ex.overhead = now.Sub(ex.start)
	}
	ex.dispatched = now
	ex.beginWork(now)
	ex.phase = tenancy.PhasePrefill
	if !ex.req.Stream {
		ex.phase = tenancy.PhaseResponse
	}
}

// isTimeout reports whether err says so of itself; the HTTP library's own
// timeout is no net.Error.
func isTimeout(err error) bool {
	var t interface{ Timeout() bool }
	return errors.As(err, &t) && t.Timeout()
}

// sendFailed judges an attempt that brought no response header.
func (ex *exchange) sendFailed(err error) (again bool, rej *rejection) {
	if _, ok := errors.AsType[errNotSent](err); ok {
		return true, upstreamFailed("upstream_error", "the worker could not be reached", fasthttp.StatusBadGateway, err)
	}
	if isTimeout(err) {
		return false, upstreamFailed("upstream_timeout", "the worker sent nothing in time", fasthttp.StatusGatewayTimeout, err)
	}
	if _, ok := errors.AsType[*fasthttp.ErrSmallBuffer](err); ok {
		return false, upstreamFailed("upstream_error", "the worker's answer can't be understood", fasthttp.StatusBadGateway,
			errors.New("the worker's response header is larger than 16 KiB"))
	}
	// The header parser's errors can quote bytes of the worker's answer.
	return true, upstreamFailed("upstream_error", "the worker failed before it answered", fasthttp.StatusBadGateway,
		fmt.Errorf("the connection to the worker ended before its response header (%T)", err))
}

// workerError rebuilds a worker's error answer.
func (ex *exchange) workerError(status int) (again bool, rej *rejection) {
	body := newUpstreamBody(ex.up)
	ex.upBody = body
	_ = ex.up.SetReadDeadline(time.Now().Add(ex.g.cfg.StreamIdle))
	text, err := io.ReadAll(io.LimitReader(body, maxErrorBody))
	if err != nil {
		text = nil // the status alone says enough
	}
	we := ex.codec.MapWorkerError(status, text)
	rej = &rejection{
		status: we.Status, kind: we.Body.Type, code: we.Body.Code, param: we.Body.Param, message: we.Body.Message,
		outcome: tenancy.OutcomeUpstreamError, cause: fmt.Errorf("the worker answered with status %d", status),
	}
	switch we.Cause {
	case wire.CauseRequest, wire.CauseContext:
		rej.outcome = tenancy.OutcomeRejected
	case wire.CauseSaturated:
		rej.retryAfter = 5 * time.Second
		return true, rej
	}
	return false, rej
}

// readUnary reads a whole answer that is not a stream.
func (ex *exchange) readUnary() (again bool, rej *rejection) {
	body := newUpstreamBody(ex.up)
	ex.upBody = body
	limit := int64(ex.g.cfg.ResponseBytes)
	var buf bytes.Buffer
	if body.left > limit {
		return false, ex.badBody(errors.New("the worker's answer is over the size limit"))
	}
	if body.left > 0 {
		buf.Grow(int(body.left) + bytes.MinRead)
	}
	if err := body.wait(ex.dispatched.Add(ex.g.cfg.FirstByteUnary)); err != nil {
		return ex.sendFailed(err)
	}
	_ = ex.up.SetReadDeadline(time.Now().Add(ex.g.cfg.StreamIdle))
	n, err := buf.ReadFrom(io.LimitReader(body, limit+1))
	switch {
	case err != nil && n == 0 && !isTimeout(err):
		return true, upstreamFailed("upstream_error", "the worker failed before it answered", fasthttp.StatusBadGateway, err)
	case err != nil:
		ex.answerBegan = n > 0
		return false, ex.badBody(err)
	case n > limit:
		ex.answerBegan = true
		return false, ex.badBody(errors.New("the worker's answer is over the size limit"))
	}
	ex.answerBegan = true
	usage, err := ex.codec.ReadUsage(ex.req.Operation, buf.Bytes())
	if err != nil {
		return false, ex.badBody(errors.New("the worker's answer is not valid JSON"))
	}
	ex.unary, ex.unaryUsage = buf.Bytes(), usage
	return false, nil
}

func (ex *exchange) badBody(err error) *rejection {
	return upstreamFailed("upstream_error", "the worker's answer was cut short or can't be understood", fasthttp.StatusBadGateway, err)
}

// reportFailure tells the health keeper of a worker's own failure; requests
// that the worker rightly refused, and clients that left, are none.
func (ex *exchange) reportFailure(id scoring.WorkerID, rej *rejection) {
	if ex.g.parts.Health == nil || ex.over() || rej.outcome != tenancy.OutcomeUpstreamError || rej.code == "overloaded" {
		return
	}
	ex.g.parts.Health.ReportFailure(id, rej)
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
		if !ctx.Request.Header.IsHTTP11() {
			ex.relay.writePlain(ctx)
			return
		}
		ctx.Response.SetBodyStream(ex.relay, -1)
		return
	}
	ctx.Response.Header.SetContentType("application/json")
	ctx.Response.SetBodyRaw(ex.unary)
	if ex.g.parts.Health != nil {
		ex.g.parts.Health.ReportSuccess(ex.res.Worker().ID)
	}
	ex.finish(ending{
		outcome: tenancy.OutcomeCompleted, status: fasthttp.StatusOK, charge: ex.finalCharge(ex.unaryUsage),
	})
}
