package gateway

import (
	"errors"
	"fmt"
	"io"
	"sync"
	"syscall"
	"time"

	"github.com/valyala/fasthttp"

	"github.com/sluicegate/sluice/gateway/coding"
	"github.com/sluicegate/sluice/gateway/wire"
	"github.com/sluicegate/sluice/tenancy"
)

// Memory for bodies is taken as their bytes come, whatever length was
// announced: a buffer begins with firstBody bytes and doubles. Those that grew
// beyond keptBody are not kept for other requests.
const (
	firstBody = 16 << 10
	smallBody = 2 << 10
	keptBody  = 1 << 20
)

var (
	bodyPool = sync.Pool{New: func() any { b := make([]byte, 0, firstBody); return &b }}
	// smallBodyPool is for bodies that are no larger than they were announced to be.
	smallBodyPool = sync.Pool{New: func() any { b := make([]byte, 0, smallBody); return &b }}
)

// readBody reads the request's body to its end. The connection sets the time
// that may take.
func (ex *exchange) readBody(ctx *fasthttp.RequestCtx) *rejection {
	stream := ctx.RequestBodyStream()
	if stream == nil {
		return nil
	}
	in := receivedBody{from: stream, announced: ex.announced, limit: ex.g.cfg.BodyBytes}
	var from io.Reader = &in
	if ex.coding != coding.Identity {
		// The body is decoded as it comes, so its coded form is never kept.
		limits := coding.DefaultLimits(int64(in.limit))
		limits.Take = func(n int64) error { return ex.takeMemory(int(n)) }
		decoder := coding.NewReader(ex.coding, &in, limits)
		defer decoder.Close()
		from = decoder
	}
	err := ex.fillBody(from)
	ex.bodyRead = in.ended
	if errors.Is(err, io.EOF) {
		ex.body, ex.arrived = *ex.received, time.Now()
		return nil
	}
	if errors.Is(err, errMemory) || errors.Is(err, errTenantMemory) {
		return noMemory(err)
	}
	if rej := ex.codingFault(err); rej != nil {
		return rej
	}
	if clientGone(err) && !ex.wasCut.Load() {
		ex.clientLeft()
		return nil
	}
	rej := readFault(ctx, err)
	rej.outcome = tenancy.OutcomeRejected
	ex.g.parts.Meter.FramingRejected(rej.code)
	return rej
}

// fillBody reads from to its end, io.EOF. Whoever sends the bytes bounds them.
func (ex *exchange) fillBody(from io.Reader) (err error) {
	pool := &bodyPool
	if ex.announced > 0 && ex.announced <= smallBody && ex.coding == coding.Identity {
		pool = &smallBodyPool
	}
	ex.received = pool.Get().(*[]byte)
	limit := ex.g.cfg.BodyBytes
	buf := (*ex.received)[:0]
	err = ex.takeMemory(cap(buf))
	for err == nil {
		if len(buf) == cap(buf) {
			more := min(len(buf), limit+1-len(buf))
			if err = ex.takeMemory(more); err != nil {
				break
			}
			buf = append(make([]byte, 0, len(buf)+more), buf...)
		}
		var n int
		n, err = from.Read(buf[len(buf):cap(buf)])
		buf = buf[:len(buf)+n]
	}
	*ex.received = buf
	ex.bodyBytes = len(buf)
	return err
}

// errBodyTooLarge says that more of a body has come than may.
var errBodyTooLarge = errors.New("the body is over its limit")

// receivedBody is a body as it comes. It is bounded, and ends with io.EOF only if as
// much of it has come as was announced.
type receivedBody struct {
	from                io.Reader
	announced, limit, n int
	ended               bool
}

func (b *receivedBody) Read(p []byte) (int, error) {
	// One byte more than allowed tells a body that is too large from one that fits.
	n, err := b.from.Read(p[:min(len(p), b.limit+1-b.n)])
	if b.n += n; b.n > b.limit {
		return 0, errBodyTooLarge
	}
	if err == io.EOF {
		if b.announced != chunkedBody && b.announced != b.n {
			return n, io.ErrUnexpectedEOF
		}
		b.ended = true
	}
	return n, err
}

// codingFault turns the error of a body that is too large, or wrongly coded, into its
// answer; nil means that the fault is another one.
func (ex *exchange) codingFault(err error) *rejection {
	rej := ex.g.tooLarge()
	rej.closeConn = false // unless there is more of the body
	switch {
	case errors.Is(err, errBodyTooLarge):
	case errors.Is(err, coding.ErrTooLarge):
		rej.message = fmt.Sprintf("the body is over the limit of %d bytes when decoded", ex.g.cfg.BodyBytes)
	case errors.Is(err, coding.ErrRatio):
		rej.message = "the body expands to more than 100 times its size when decoded"
	case errors.Is(err, coding.ErrWindow):
		rej.message = "decoding the body takes a window of more than 8 MiB; compress it at a lower level, or without long-distance matching"
	case errors.Is(err, coding.ErrParts):
		rej.message = "the compressed body has more than 1000 parts"
	case errors.Is(err, coding.ErrCorrupt):
		rej = invalid("invalid_request", "", "the body is not what its Content-Encoding says: it is corrupt, cut short, or goes on behind its end")
		rej.outcome = tenancy.OutcomeRejected
	default:
		return nil
	}
	return rej
}

// releaseBody gives the memory of the body, and of what the scan has found in it,
// back, unless its rehearsal still needs them; the request must not refer to it any
// more.
func (ex *exchange) releaseBody() {
	ex.giveMemory()
	switch {
	case ex.held != nil:
		if ex.body != nil {
			ex.held.dropBody()
		}
		ex.held.drop()
	default:
		giveBody(ex.received)
		if ex.req != nil {
			releaseRequest(ex.req)
		}
	}
	ex.translation.release()
	ex.received, ex.body, ex.promptBody, ex.req, ex.held, ex.translation, ex.translating = nil, nil, nil, nil, nil, nil, false
}

// releasePrompt drops what only another attempt would need, which is not made once an
// answer has begun: a stream holds no prompt for as long as it runs. A rehearsal that has
// the body gives it back when it has read it.
func (ex *exchange) releasePrompt() {
	ex.dropTurn()
	ex.sent = nil
	ex.routed = len(ex.tokens.IDs)
	ex.tokens.IDs, ex.pick.Tokens = nil, nil
	switch {
	case ex.body == nil:
		return
	case ex.held != nil:
		ex.held.dropBody()
	default:
		forgetViews(ex.req)
		giveBody(ex.received)
	}
	ex.received, ex.body, ex.promptBody = nil, nil, nil
	ex.translation.releasePrompt()
	ex.giveMemory()
}

// forgetViews clears the fields that are views into the body; nil has none.
func forgetViews(q *wire.Request) {
	if q != nil {
		q.Model, q.User, q.CacheSalt, q.PreviousResponse, q.ChatForm = nil, nil, nil, nil, nil
		clear(q.ToolNames)
	}
}

// giveBody gives a body's buffer to other requests; nil is none.
func giveBody(b *[]byte) {
	switch {
	case b == nil || cap(*b) > keptBody:
	case cap(*b) < firstBody:
		smallBodyPool.Put(b)
	default:
		bodyPool.Put(b)
	}
}

// clientGone reports whether a request could not be read because its client
// left.
func clientGone(err error) bool {
	return errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, syscall.ECONNRESET)
}
