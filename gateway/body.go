package gateway

import (
	"errors"
	"io"
	"slices"
	"sync"
	"syscall"

	"github.com/valyala/fasthttp"

	"github.com/sluicegate/sluice/tenancy"
)

// Memory for bodies is taken as their bytes come, whatever length was
// announced: a buffer begins with firstBody bytes and doubles. Those that grew
// beyond keptBody are not kept for other requests.
const (
	firstBody = 16 << 10
	keptBody  = 1 << 20
)

var bodyPool = sync.Pool{New: func() any { b := make([]byte, 0, firstBody); return &b }}

// readBody reads the request's body to its end. The connection sets the time
// that may take.
func (ex *exchange) readBody(ctx *fasthttp.RequestCtx) *rejection {
	stream := ctx.RequestBodyStream()
	if stream == nil {
		return nil
	}
	if ex.announced == chunkedBody {
		// Fields behind a body count as headers for the library. No proxy has looked
		// through them, so they count as nothing here.
		var head fasthttp.RequestHeader
		ctx.Request.Header.CopyTo(&head)
		defer head.CopyTo(&ctx.Request.Header)
	}
	ex.received = bodyPool.Get().(*[]byte)
	limit := ex.g.cfg.BodyBytes
	buf := (*ex.received)[:0]
	var err error
	for err == nil && len(buf) <= limit {
		if len(buf) == cap(buf) {
			buf = slices.Grow(buf, min(len(buf), limit+1-len(buf)))
		}
		var n int
		n, err = stream.Read(buf[len(buf):cap(buf)])
		buf = buf[:len(buf)+n]
	}
	*ex.received = buf
	ex.bodyBytes = len(buf)
	switch {
	case len(buf) > limit:
		return ex.g.tooLarge()
	case err == io.EOF && (ex.announced == chunkedBody || ex.announced == len(buf)):
		ex.body, ex.bodyRead = buf, true
		return nil
	case clientGone(err) && !ex.wasCut.Load():
		ex.clientLeft()
		return nil
	}
	rej := readFault(ctx, err)
	rej.outcome = tenancy.OutcomeRejected
	ex.g.parts.Meter.FramingRejected(rej.code)
	return rej
}

// releaseBody gives the memory of the body, and of what the scan has found in it,
// back, unless its rehearsal still needs them; the request must not refer to it any
// more.
func (ex *exchange) releaseBody() {
	switch {
	case ex.held != nil:
		ex.held.drop()
	default:
		giveBody(ex.received)
		if ex.req != nil {
			releaseRequest(ex.req)
		}
	}
	ex.received, ex.body, ex.promptBody, ex.req, ex.held = nil, nil, nil, nil, nil
}

// giveBody gives a body's buffer to other requests; nil is none.
func giveBody(b *[]byte) {
	if b != nil && cap(*b) <= keptBody {
		bodyPool.Put(b)
	}
}

// clientGone reports whether a request could not be read because its client
// left.
func clientGone(err error) bool {
	return errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, syscall.ECONNRESET)
}
