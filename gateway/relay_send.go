package gateway

import (
	"errors"
	"io"
	"log/slog"
	"net"
	"strconv"
	"sync"

	"github.com/sluicegate/sluice/tenancy"
)

// chunkRoom is kept free before the events in out, for the line that begins their
// chunk, so that they are written from where they are.
const chunkRoom = 16 + len("\r\n")

// Memory for events on their way is taken when there are some and given back when
// they have been written: a stream that waits for its worker holds none. What one
// large event has made larger than keptOut is not kept.
const (
	firstOut = 4 << 10
	keptOut  = 64 << 10
)

var outs = sync.Pool{New: func() any { b := make([]byte, chunkRoom, firstOut); return &b }}

// ready is what the next events for the client are appended to.
func (r *relay) ready() []byte {
	if r.out == nil {
		r.outMemory = outs.Get().(*[]byte)
		r.out = (*r.outMemory)[:chunkRoom]
	}
	return r.out
}

// pending reports whether there are events for the client.
func (r *relay) pending() bool { return len(r.out) > chunkRoom }

// written gives the memory of what was written back.
func (r *relay) written() {
	if r.outMemory == nil {
		return
	}
	if cap(r.out) <= keptOut {
		*r.outMemory = r.out[:chunkRoom]
		outs.Put(r.outMemory)
	}
	r.out, r.outMemory = nil, nil
}

// sendTo writes the response to the client until the stream's end. It reports whether
// it was written whole, so that the connection is fit for another.
func (r *relay) sendTo(nc net.Conn) (whole bool) {
	defer r.close()
	for {
		p, err := r.next()
		if r.head != nil {
			p, r.head = append(r.head, p...), nil
		}
		if len(p) > 0 {
			if _, werr := nc.Write(p); werr != nil {
				return false
			}
		}
		r.written()
		if err != nil {
			return errors.Is(err, io.EOF)
		}
	}
}

// next waits for events and returns them as they are to be written. err is the
// stream's end, and what comes with it is the last: io.EOF if the client is to see
// an end at all.
func (r *relay) next() (p []byte, err error) {
	r.advance()
	if r.hasToken {
		r.hasToken = false
		r.markFirstToken()
	}
	if !r.chunked {
		if r.pending() {
			p = r.out[chunkRoom:]
		}
		return p, r.end
	}
	if r.pending() {
		p = r.chunk()
	}
	if errors.Is(r.end, io.EOF) {
		p = append(p, "0\r\n\r\n"...)
	}
	return p, r.end
}

// chunk frames what is pending as one chunk.
func (r *relay) chunk() []byte {
	var line [chunkRoom]byte
	size := append(strconv.AppendInt(line[:0], int64(len(r.out)-chunkRoom), 16), "\r\n"...)
	r.out = append(r.out, "\r\n"...)
	from := chunkRoom - len(size)
	copy(r.out[from:], size)
	return r.out[from:]
}

// advance goes on until there are events for the client, or the end. A bug ends the
// stream like a failure of its worker.
func (r *relay) advance() {
	defer func() {
		if bug := recover(); bug != nil {
			r.panicked(bug)
		}
	}()
	for !r.pending() && r.end == nil {
		if f := r.fill(); f != nil {
			r.failed(f)
		}
	}
}

func (r *relay) panicked(bug any) {
	logPanic(r.ex.g.log, bug, slog.String("request_id", r.ex.requestID))
	if r.end == nil {
		rej := internal(errors.New("panic while relaying a stream"))
		rej.message, rej.outcome = "the gateway failed on this request", tenancy.OutcomeUpstreamError
		r.abort(rej)
	}
}

// close is the end of the response, however that came about; a stream that isn't
// finished by then had a client that no longer reads.
func (r *relay) close() {
	if !r.ex.finished {
		r.ex.gone.Store(true)
		r.failed(interrupted())
	}
	r.written()
}
