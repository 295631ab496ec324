package gateway

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/url"
	"sync"
	"time"

	"github.com/valyala/fasthttp"

	"github.com/sluicegate/sluice/scoring"
	"github.com/sluicegate/sluice/tenancy"
)

// tries is how far a request has come in trying workers.
type tries struct {
	left      int // how many may still be picked
	last      *rejection
	saturated bool // all of them had no room
	denied    bool // the pool's budget was used up
}

// dispatch waits for the request's turn and sends it to the worker whose turn it is,
// and to others where that fails. late says that until has come first, if that is set:
// the request waits on, and dispatch is called again. A rejection is what the client
// is told.
func (ex *exchange) dispatch(until time.Time) (late bool, rej *rejection) {
	for {
		if late, rej = ex.takeTurn(until); late || rej != nil {
			return late, rej
		}
		if rej := ex.prepareAttempt(); rej != nil {
			return false, rej
		}
		w := ex.res.Worker()
		if ex.tries.last == nil {
			ex.g.retries.request(time.Now(), w.Pool)
		}
		ex.tries.left--
		ex.turnTaken()
		ex.attempts = append(ex.attempts, Attempt{Pool: w.Pool, Worker: w.Name})
		ex.speakTo(w.Pool)
		f := ex.send(false)
		if f == nil {
			ex.underway = true
			return false, nil
		}
		if rej := ex.attemptFailed(f); rej != nil {
			return false, rej
		}
	}
}

// attemptFailed ends an attempt that failed. It returns nil if another worker may be
// tried, and else what the client is told.
func (ex *exchange) attemptFailed(f *failure) *rejection {
	if f.refused != nil {
		return f.refused
	}
	ex.underway = false
	again, rej, fault := judge(f)
	w := ex.res.Worker()
	ex.attempts[len(ex.attempts)-1].Reason = rej.code
	ex.dropUpstream()
	if ex.over() {
		return shuttingDown()
	}
	ex.blame(w.ID, fault, f.cause)
	if !again || ex.answerBegan {
		return rej
	}
	ex.tries.saturated = ex.tries.saturated && f.kind == failSaturated
	ex.tries.last = rej
	if f.kind == failSaturated && ex.turn.asked {
		ex.isFull(w.ID)
	} else {
		ex.pick.Exclude = append(ex.pick.Exclude, w.ID)
	}
	if ex.tries.left == 0 {
		return ex.noWorker(nil)
	}
	if !ex.g.retries.take(time.Now(), w.Pool) {
		ex.tries.denied = true
		return rej
	}
	ex.endAttempt()
	return nil
}

// endAttempt ends the reservation of an attempt that failed, so that no worker is
// loaded by a request that waits for another.
func (ex *exchange) endAttempt() {
	now := time.Now()
	ex.endWork(now)
	ex.res.Done(now, scoring.WorkerFailed)
}

// isFull notes that a worker had no room. That is no failure: the fleet leaves it alone
// for a moment, for all requests, and this one waits on for whichever is the best then.
func (ex *exchange) isFull(id scoring.WorkerID) {
	ex.g.parts.Router.Saturated(time.Now(), id)
	ex.tries.left++
}

// blame tells the health keeper of a worker's own failure.
func (ex *exchange) blame(id scoring.WorkerID, fault scoring.Fault, cause error) {
	if ex.g.parts.Health != nil && fault != 0 {
		ex.g.parts.Health.ReportFailure(id, fault, ex.principal.Tenant.ID+"/"+ex.principal.ID, cause)
	}
}

// noWorker says why nothing could be picked.
func (ex *exchange) noWorker(err error) *rejection {
	if last := ex.tries.last; last != nil {
		if ex.tries.saturated {
			return last
		}
		return upstreamFailed("upstream_error", "the workers that could serve this failed", fasthttp.StatusBadGateway, last.cause)
	}
	rej := unavailable("no worker of the permitted pools is ready; try again", noWorkerRetry)
	rej.cause = err
	return rej
}

var scratchPool = sync.Pool{New: func() any { return new([]byte) }}

// send writes the request to the picked worker over a kept connection, or over a new
// one if fresh is set or there is none. A kept connection that turns out to have been
// closed is replaced once, on the same worker.
func (ex *exchange) send(fresh bool) *failure {
	w := ex.res.Worker()
	base, err := url.Parse(w.Address)
	if err != nil {
		return &failure{kind: failConnect, cause: fmt.Errorf("cannot use the worker's address: %w", err)}
	}
	r := upstreamRequest{
		method: ex.upstreamMethod, path: ex.upstream, host: base.Host, authorization: ex.st.Pools[w.Pool].APIKey,
		requestID:   ex.id + "-" + itoa(int64(len(ex.attempts))),
		traceparent: ex.traceparent, tracestate: ex.tracestate, api: ex.workersAPI(),
		stream: ex.req.Stream, body: ex.outgoing(), writeTimeout: ex.g.cfg.ClientWrite, within: ex.firstByteIn(),
	}
	scratch := scratchPool.Get().(*[]byte)
	defer scratchPool.Put(scratch)
	for {
		c, err := ex.g.ups.get(ex.ctx, base, fresh)
		if err != nil {
			return noConnection(err)
		}
		if !ex.holdUpstream(c) {
			return interrupted()
		}
		ex.markDispatched()
		if *scratch, err = c.send(*scratch, &r); err == nil {
			return nil
		}
		stale := c.reused && !isTimeout(err) && !ex.over()
		if !stale {
			return &failure{kind: failSend, cause: err}
		}
		ex.dropUpstream()
		fresh = true
	}
}

// firstByteIn is how long a worker may take to begin its answer.
func (ex *exchange) firstByteIn() time.Duration {
	if ex.req.Stream {
		return ex.g.cfg.FirstByteStream
	}
	return ex.g.cfg.FirstByteUnary
}

// markDispatched notes the moment before the request is written.
func (ex *exchange) markDispatched() {
	now := time.Now()
	if ex.dispatched.IsZero() {
		ex.overhead = now.Sub(ex.start) - ex.turn.waited
	}
	ex.dispatched = now
	ex.beginWork(now)
	ex.phase = tenancy.PhasePrefill
	if !ex.req.Stream {
		ex.phase = tenancy.PhaseResponse
	}
}

// awaitHead reads the header of the worker's answer and judges it. late says that
// nothing has come until then, if that is set, and that there is still time. A kept
// connection that turns out to have been closed is replaced once, on the same worker.
func (ex *exchange) awaitHead(until time.Time) (late bool, f *failure) {
	for {
		deadline := ex.dispatched.Add(ex.firstByteIn())
		listen := deadline
		if !until.IsZero() {
			listen = earliest(until, deadline)
		}
		err := ex.up.hear(listen)
		if err == nil {
			return false, ex.readHead(deadline)
		}
		switch {
		case ex.over():
			return false, interrupted()
		case isTimeout(err) && listen.Before(deadline):
			return true, nil
		case !ex.up.reused || isTimeout(err):
			return false, noHead(err)
		}
		ex.dropUpstream()
		if f := ex.send(true); f != nil {
			return false, f
		}
	}
}

func earliest(a, b time.Time) time.Time {
	if a.Before(b) {
		return a
	}
	return b
}

// readHead reads a header that has begun to come, and says what is wrong with the
// answer as far as it tells.
func (ex *exchange) readHead(deadline time.Time) *failure {
	if err := ex.up.readHeader(deadline); err != nil {
		if ex.over() {
			return interrupted()
		}
		return noHead(err)
	}
	h := &ex.up.header
	status := h.StatusCode()
	ex.attempts[len(ex.attempts)-1].Status = status
	coded := isCoded(h)
	switch {
	case status != fasthttp.StatusOK:
		return ex.workerError(status, coded)
	case ex.up.early:
		return &failure{kind: failSend, cause: errors.New("the worker answered before it had the request")}
	case coded:
		return &failure{kind: failCoding, cause: errors.New("the worker's answer has a Content-Encoding")}
	case isEventStream(h.ContentType()) != ex.req.Stream:
		return &failure{kind: failForm, cause: errors.New("the worker's content type does not match the request's stream field")}
	}
	return nil
}

// isCoded reports whether an answer is compressed, which nobody has asked for.
func isCoded(h *fasthttp.ResponseHeader) bool {
	for _, coding := range h.PeekAll("Content-Encoding") {
		if len(coding) > 0 && !bytes.EqualFold(bytes.TrimSpace(coding), []byte("identity")) {
			return true
		}
	}
	return false
}

// workerError rebuilds a worker's error answer. Of one that is compressed the status
// alone is understood.
func (ex *exchange) workerError(status int, coded bool) *failure {
	body := newUpstreamBody(ex.up)
	ex.upBody = body
	_ = ex.up.SetReadDeadline(time.Now().Add(ex.g.cfg.StreamIdle))
	var text []byte
	if status != fasthttp.StatusNoContent && status != fasthttp.StatusNotModified { // which have no body to wait for
		var err error
		if text, err = io.ReadAll(io.LimitReader(body, maxErrorBody)); err != nil || coded {
			text = nil // the status alone says enough
		}
	}
	we := ex.codec.MapWorkerError(status, text)
	if ex.goesOnFrom != nil {
		we = goneFrom(we)
	}
	we.Body = ex.clientsTerms(we.Body)
	return toldBy(&we, fmt.Errorf("the worker answered with status %d", status))
}

// beginAnswer has the request sent and waits for the answer: of a stream until its
// first event, and else for all of it.
func (ex *exchange) beginAnswer() *failure {
	if ex.req.Stream {
		return ex.beginStream()
	}
	if _, rej := ex.dispatch(time.Time{}); rej != nil {
		return ex.noTurn(rej)
	}
	if _, f := ex.awaitHead(time.Time{}); f != nil {
		return f
	}
	return ex.readUnary()
}

// readUnary reads a whole answer that is not a stream.
func (ex *exchange) readUnary() *failure {
	body := newUpstreamBody(ex.up)
	ex.upBody = body
	limit := int64(ex.g.cfg.ResponseBytes)
	var buf bytes.Buffer
	if body.left > limit {
		return &failure{kind: failSize, cause: errAnswerSize}
	}
	ex.dropAnswer()
	answer := answerReader{from: &patientBody{body, ex.g.cfg.StreamIdle}, ex: ex}
	if body.left > 0 {
		if err := answer.take(int(body.left) + bytes.MinRead); err != nil {
			return &failure{kind: failLocal, cause: err}
		}
		buf.Grow(int(body.left) + bytes.MinRead)
	}
	if err := body.wait(ex.dispatched.Add(ex.g.cfg.FirstByteUnary)); err != nil {
		return ex.bodyFailed(err)
	}
	n, err := buf.ReadFrom(io.LimitReader(&answer, limit+1))
	ex.answerBegan = n > 0
	switch {
	case err != nil:
		return ex.bodyFailed(err)
	case n > limit:
		return &failure{kind: failSize, cause: errAnswerSize}
	}
	usage, err := ex.codec.ReadUsage(ex.operation(), buf.Bytes())
	if err != nil {
		return &failure{kind: failContent, cause: errors.New("the worker's answer is not valid JSON")}
	}
	return ex.keepAnswer(&answer, buf.Bytes(), usage)
}

var errAnswerSize = errors.New("the worker's answer is over the size limit")

// bodyFailed is the end of an answer whose body could not be read.
func (ex *exchange) bodyFailed(err error) *failure {
	f := &failure{kind: failShort, cause: err}
	switch late := isTimeout(err); {
	case ex.over():
		return interrupted()
	case errors.Is(err, errMemory) || errors.Is(err, errTenantMemory):
		f.kind = failLocal
	case !ex.answerBegan && late:
		f.kind = failNoByte
	case !ex.answerBegan:
		f.kind = failEmpty
	case late:
		f.kind = failStuck
	}
	return f
}

// patientBody reads a body whose parts may each take some time, however long the
// whole takes.
type patientBody struct {
	*upstreamBody
	idle time.Duration
}

// Read implements io.Reader.
func (b *patientBody) Read(p []byte) (int, error) {
	if err := b.c.SetReadDeadline(time.Now().Add(b.idle)); err != nil {
		return 0, err
	}
	return b.upstreamBody.Read(p)
}
