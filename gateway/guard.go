package gateway

import (
	"context"
	"fmt"
	"log/slog"
	"runtime/debug"

	"github.com/valyala/fasthttp"
)

// What the server calls beside Handle (before a body is read, at an Expect, at a
// request that can't be read) runs code that judges credentials, too. The server
// recovers from nothing, so a bug there would end the process and every stream in
// it.

// guarded runs f and reports whether it came to its end. A panic in it is logged.
func (g *Gateway) guarded(where string, f func()) (ok bool) {
	defer func() {
		if p := recover(); p != nil {
			ok = false
			logPanic(g.log, p, slog.String("where", where))
		}
	}()
	f()
	return true
}

// logPanic notes a bug. Its value may hold text of the request, which the stack
// does not.
func logPanic(log *slog.Logger, p any, attr slog.Attr) {
	log.LogAttrs(context.Background(), slog.LevelError, "panic in a request", attr,
		slog.String("kind", fmt.Sprintf("%T", p)), slog.String("stack", string(debug.Stack())))
}

// failed answers a request in which a bug has been found.
func (ex *exchange) failed(ctx *fasthttp.RequestCtx, bug any, closeConn bool) {
	logPanic(ex.g.log, bug, slog.String("request_id", ex.requestID))
	ctx.Response.Reset()
	ex.setRequestID(&ctx.Response.Header)
	ex.g.cfg.CORS.allow(ctx)
	if ex.g.draining.Load() {
		closeConn = true
	}
	rej := internal(nil)
	rej.closeConn = closeConn
	ex.reject(ctx, rej)
}
