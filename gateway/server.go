package gateway

import (
	"errors"
	"fmt"
	"time"

	"github.com/valyala/fasthttp"

	"github.com/sluicegate/sluice/tenancy"
)

// refuseBody is a body limit that no inference request fits, for those whose
// answer is known from their header alone.
const refuseBody = 1

// headerReceived is asked before a request's body is read. A request that will
// be refused for its route or its credential doesn't get to send one.
func (g *Gateway) headerReceived(h *fasthttp.RequestHeader) fasthttp.RequestConfig {
	cfg := fasthttp.RequestConfig{ReadTimeout: g.cfg.BodyRead, MaxRequestBodySize: g.cfg.BodyBytes}
	r, _ := findRoute(h.RequestURI())
	if r == nil || !r.post {
		cfg.MaxRequestBodySize = refuseBody
		return cfg
	}
	cred, reason := credential(h)
	if reason != "" {
		cfg.MaxRequestBodySize = refuseBody
		return cfg
	}
	if _, err := g.state.Load().Identifier.Identify(cred, time.Now()); err != nil {
		cfg.MaxRequestBodySize = refuseBody
	}
	return cfg
}

// expect answers Expect: 100-continue: the checks that need no body run first.
func (g *Gateway) expect(ctx *fasthttp.RequestCtx) int {
	if g.refusedEarly(ctx) {
		return ctx.Response.StatusCode()
	}
	if ctx.Request.Header.ContentLength() > g.cfg.BodyBytes {
		ex := g.begin(ctx)
		ex.reject(ctx, g.tooLarge())
		return fasthttp.StatusRequestEntityTooLarge
	}
	return fasthttp.StatusContinue
}

// refusedEarly runs the checks on route, method and credential, and answers if
// one fails. If none does, nothing is kept of the run.
func (g *Gateway) refusedEarly(ctx *fasthttp.RequestCtx) bool {
	ex := g.begin(ctx)
	r, rej := ex.checkRoute(ctx)
	if rej == nil && r == nil {
		return true
	}
	if rej == nil && !r.open {
		rej = ex.identify(ctx)
	}
	if rej != nil {
		rej.closeConn = true
		ex.reject(ctx, rej)
		return true
	}
	ex.discard()
	return false
}

// discard undoes begin for a request that is yet to be served.
func (ex *exchange) discard() {
	ex.finished = true
	if ex.conn != nil {
		ex.conn.detach()
	}
	ex.cancel()
	ex.g.live.remove(ex)
	ex.leaveRoute()
}

// handleReadError answers a request that could not be read. The connection is
// closed after it in every case.
func (g *Gateway) handleReadError(ctx *fasthttp.RequestCtx, err error) {
	if c := clientConn(ctx.Conn()); c != nil {
		if !c.received.Load() {
			_ = c.Close() // there was no request, so there is no answer
			return
		}
		c.linger.Store(true)
	}
	if errors.Is(err, fasthttp.ErrBodyTooLarge) {
		if !g.refusedEarly(ctx) {
			ex := g.begin(ctx)
			if r, rej := ex.checkRoute(ctx); rej == nil && r != nil {
				_ = ex.identify(ctx) // for the ledger's row; it has passed once already
			}
			ex.reject(ctx, g.tooLarge())
		}
		return
	}
	rej := readRejection(err)
	if g.stopping.Load() {
		rej = shuttingDown()
	} else {
		g.parts.Meter.FramingRejected(rej.code)
	}
	id := newID()
	ctx.Response.Reset()
	ctx.Response.Header.Set("x-request-id", id)
	rej.write(ctx, dialectOpenAI, id)
}

// readRejection names what was wrong with a request's framing. The library's
// errors can quote the client, so their text goes nowhere.
func readRejection(err error) *rejection {
	rej := invalid("invalid_request", "", "the request is not valid HTTP/1.1")
	rej.closeConn = true
	var small *fasthttp.ErrSmallBuffer
	switch {
	case errors.As(err, &small):
		rej.status, rej.code = fasthttp.StatusRequestHeaderFieldsTooLarge, "headers_too_large"
		rej.message = "the request's headers are too large"
	case isTimeout(err):
		rej.status, rej.code = fasthttp.StatusRequestTimeout, "request_timeout"
		rej.message = "the request did not arrive in time"
	}
	return rej
}

func (g *Gateway) tooLarge() *rejection {
	return &rejection{
		status: fasthttp.StatusRequestEntityTooLarge, kind: "invalid_request_error", code: "request_too_large",
		message:   fmt.Sprintf("the body is over the limit of %d bytes", g.cfg.BodyBytes),
		closeConn: true, outcome: tenancy.OutcomeRejected,
	}
}
