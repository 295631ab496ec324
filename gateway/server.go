package gateway

import (
	"errors"
	"fmt"
	"time"

	"github.com/valyala/fasthttp"

	"github.com/sluicegate/sluice/tenancy"
)

// headerReceived is asked before a request's body is read. A request that will
// be refused for its header doesn't get to send one: for the server it has
// none, and reject ends its connection.
func (g *Gateway) headerReceived(h *fasthttp.RequestHeader) {
	wanted := true // where it can't be told, the handler finds out
	g.guarded("header", func() { wanted = g.wantsBody(h) })
	if !wanted {
		h.SetContentLength(0)
	}
}

// wantsBody reports whether a request's body has to be read to answer it.
func (g *Gateway) wantsBody(h *fasthttp.RequestHeader) bool {
	r, _ := findRoute(h.RequestURI())
	if r == nil || !r.post || !h.IsPost() || g.closing.Load() {
		return false
	}
	announced, rej := framingFault(h)
	if rej != nil || announced > g.cfg.BodyBytes {
		return false
	}
	_, rej = mediaFault(h)
	return rej == nil && !g.refuses(h)
}

// refuses reports whether it is known by now that a request's credentials are
// refused.
func (g *Gateway) refuses(h *fasthttp.RequestHeader) bool {
	var c tenancy.Credentials
	if reason := headerCredentials(h, &c); reason != "" {
		return true
	}
	st := g.state.Load()
	if c.Bearer == nil {
		return !st.ConnectionIdentity
	}
	by, ok := st.Identifier.(Refuser)
	return ok && by.Refuses(&c, time.Now())
}

// expect answers Expect: 100-continue: the checks that need no body run first.
func (g *Gateway) expect(ctx *fasthttp.RequestCtx) int {
	ex := g.early(ctx)
	if ex != nil {
		ex.finished = true // it is yet to be served, as another
		ex.remember(ctx)
		ex.discard()
		if ex.conn != nil {
			ex.conn.midway.Store(true)
		}
		return fasthttp.StatusContinue
	}
	return ctx.Response.StatusCode()
}

// early runs the checks that need no body. It answers and returns nil if one
// of them fails; if none does, the caller ends what it gets.
func (g *Gateway) early(ctx *fasthttp.RequestCtx) (passed *exchange) {
	ex := g.begin(ctx)
	defer func() {
		if p := recover(); p != nil {
			ex.failed(ctx, p, true)
			passed = nil
		}
	}()
	r, rej := ex.checkRoute(ctx)
	if rej == nil && r == nil {
		return nil
	}
	if rej == nil {
		rej = ex.inTime(r)
	}
	if rej == nil && !r.open {
		rej = ex.identify(ctx)
	}
	if rej == nil && r.post {
		rej = ex.checkMedia(ctx)
	}
	if rej != nil {
		rej.closeConn = true
		ex.reject(ctx, rej)
		return nil
	}
	return ex
}

// handleReadError answers a request whose header could not be read. The
// connection is closed after it in every case.
func (g *Gateway) handleReadError(ctx *fasthttp.RequestCtx, err error) {
	if !g.guarded("read error", func() { g.unreadable(ctx, err) }) {
		_ = ctx.Conn().Close()
	}
}

// unreadable is handleReadError. A request that has come in part is one that is
// refused: it stands in the log and in the metrics, on no route.
func (g *Gateway) unreadable(ctx *fasthttp.RequestCtx, err error) {
	if c := clientConn(ctx.Conn()); c != nil {
		if !c.received.Load() {
			_ = c.Close() // there was no request, so there is no answer
			return
		}
		c.linger.Store(true)
	}
	ctx.Request.Header.Reset() // it may have been read by half
	ctx.Response.Reset()
	ex := g.begin(ctx)
	defer ex.unlessRelayed(ctx)
	ex.method = methodName(nil) // the server has forgotten it
	if clientGone(err) && !g.stopping.Load() {
		ex.clientLeft()
		ex.leave()
		_ = ctx.Conn().Close()
		return
	}
	rej := readFault(ctx, err)
	if f := framerOf(ctx.Conn()); f != nil && errors.Is(err, errFraming) {
		ex.dialect = f.dialect()
	}
	if g.stopping.Load() {
		rej = shuttingDown()
	} else {
		g.parts.Meter.FramingRejected(rej.code)
	}
	ex.reject(ctx, rej)
}

// readFault names what was wrong with a request whose bytes could not be read: by
// the connection's framer, if that is who found it, else by the server's error.
func readFault(ctx *fasthttp.RequestCtx, err error) *rejection {
	if g := framerOf(ctx.Conn()); g != nil && errors.Is(err, errFraming) {
		return g.fault
	}
	return readRejection(err)
}

// readRejection names what was wrong with a request's framing. The library's
// errors can quote the client, so their text goes nowhere.
func readRejection(err error) *rejection {
	rej := invalid("invalid_request", "", "the request is not valid HTTP/1.1")
	rej.closeConn = true
	switch {
	case errors.Is(err, errHeadTooLarge):
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
