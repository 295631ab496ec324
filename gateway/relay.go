package gateway

import (
	"errors"
	"io"
	"time"

	"github.com/valyala/fasthttp"

	"github.com/sluicegate/sluice/gateway/anthropic/translate"
	"github.com/sluicegate/sluice/gateway/sse"
	"github.com/sluicegate/sluice/gateway/wire"
	"github.com/sluicegate/sluice/tenancy"
)

// afterDone is how long a worker may take to end its response once it has sent
// the terminal mark; what comes after that can't matter to anybody.
const afterDone = time.Second

// glance is how long a worker is listened to whose time is over already: a
// deadline that has passed would end a read although bytes are there.
const glance = 10 * time.Millisecond

func latest(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// relay passes a worker's event stream on to a client. The connection's goroutine
// calls sendTo once the handler has returned. Only whole events are passed on,
// unchanged, each read's worth written at once. The end happens exactly once.
type relay struct {
	ex     *exchange
	body   *upstreamBody
	scan   sse.Scanner
	stream wire.Observer
	// translator makes the client's events of the worker's; nil passes them on.
	translator *translate.Translator

	out       []byte // events ready for the client, behind chunkRoom; nil if there are none
	outMemory *[]byte
	head      []byte    // of the response, until it is written
	chunked   bool      // the response is sent in chunks
	hideUsage bool      // the client didn't ask for the usage chunk
	done      bool      // the terminal mark has come
	doneBy    time.Time // and when its worker must have ended
	bound     bool      // the answer's id was remembered
	mark      []byte    // the terminal mark, held back until the row is durable
	hasToken  bool      // out holds the first token
	tokenSeen bool
	nextBeat  time.Time     // when the next keep-alive comment is due
	beaten    bool          // one has been sent
	heard     bool          // an event has come
	fresh     bool          // and one since the worker was last listened to
	quiet     time.Duration // for how long it was listened to since, in vain
	lastLook  time.Time     // when one that is late for its first event must have sent it
	end       error         // how the stream ends, once out is written
	use       runningUse
}

// beginStream makes the relay, has the request sent and waits for the first whole
// event, so that a worker that fails before it can still be replaced by another
// without a word.
func (ex *exchange) beginStream() *failure {
	r := &relay{ex: ex, hideUsage: !ex.req.StreamOptions.IncludeUsage}
	ex.relay = r
	r.use.begin(ex)
	r.awaitBeat()
	for !r.pending() && r.end == nil {
		f := r.fill()
		switch {
		case f == nil:
		case r.pending() || f.told != nil && ex.answerBegan:
			r.failed(f) // an event came before the failure, or was it: that commits
		default:
			ex.relay = nil
			if f.kind == failSilent {
				f.kind = failStuck
			}
			return f
		}
	}
	return nil
}

// dispatch has the request sent to a worker whose turn it is, or waits until a
// keep-alive comment is due and goes out. A request that waits gets comments if its
// class wants them, or if it has had some: then nothing else can be said any more.
func (r *relay) dispatch(now time.Time) *failure {
	var until time.Time
	if !r.nextBeat.IsZero() && (r.beaten || r.ex.beatsQueued()) {
		until = latest(r.nextBeat, now)
	}
	late, rej := r.ex.dispatch(until)
	switch {
	case rej != nil:
		return r.ex.noTurn(rej)
	case late:
		r.beat()
		return nil
	case until.IsZero():
		r.awaitBeat()
	}
	r.restart()
	return nil
}

// restart makes the relay ready for the answer to an attempt.
func (r *relay) restart() {
	r.body, r.quiet, r.lastLook = nil, 0, time.Time{}
	r.scan = *sse.NewScanner(r.ex.g.cfg.EventBytes)
	r.stream, r.translator = r.ex.codec.NewObserver(r.ex.operation()), r.ex.newTranslator()
}

// markFirstToken stamps the first token as it is handed over to be flushed.
func (r *relay) markFirstToken() {
	ex := r.ex
	ex.firstToken = time.Now()
	ex.phase = tenancy.PhaseStream
	ex.res.FirstToken(ex.firstToken)
}

// fill waits for the worker and turns what it sent into events to pass on. It
// may return with nothing to pass on.
func (r *relay) fill() *failure {
	switch {
	case !r.ex.underway:
		return r.dispatch(time.Now())
	case r.ex.over():
		return interrupted()
	case r.body == nil:
		return r.begin(time.Now())
	}
	now := time.Now()
	deadline, beating := r.patience(now)
	data, err := r.body.next(deadline)
	defer r.body.free()
	if r.fresh = false; len(data) > 0 {
		if !r.ex.answerBegan {
			r.ex.answerBegan = true
			r.ex.releasePrompt()
		}
		r.scan.Lend(data)
		defer r.scan.Keep()
		if f := r.relayEvents(); f != nil || r.end != nil {
			return f
		}
	}
	if r.quiet += time.Since(now); r.fresh {
		r.quiet = 0
	}
	if beating && isTimeout(err) && !r.ex.over() {
		r.beat()
		return nil
	}
	switch {
	case err == nil:
		return nil
	case errors.Is(err, io.EOF):
		return r.workerEnded()
	case r.done:
		r.complete()
		return nil
	}
	return r.broken(err)
}

// begin waits for the header of the worker's answer, or until a keep-alive comment is
// due and goes out.
func (r *relay) begin(now time.Time) *failure {
	until := r.ex.dispatched.Add(r.ex.g.cfg.FirstByteStream)
	if !r.nextBeat.IsZero() && r.nextBeat.Before(until) {
		until = latest(r.nextBeat, now.Add(glance))
	}
	late, f := r.ex.awaitHead(until)
	switch {
	case f != nil:
		return f
	case late:
		r.beat()
		return nil
	}
	r.body = newUpstreamBody(r.ex.up)
	r.ex.upBody = r.body
	return nil
}

// awaitBeat sets when the next keep-alive comment is due.
func (r *relay) awaitBeat() {
	if beat := r.ex.g.cfg.KeepAliveComment; beat > 0 {
		r.nextBeat = time.Now().Add(beat)
	}
}

// beat sends a keep-alive comment.
func (r *relay) beat() {
	r.beaten = true
	r.awaitBeat()
	r.out = sse.AppendComment(r.ready(), "keep-alive")
}

// broken is the end of a stream that could not be read on.
func (r *relay) broken(err error) *failure {
	f := r.ex.bodyFailed(err)
	if f.kind == failStuck {
		f.kind = failSilent
	}
	return f
}

// patience is how long to wait for the worker. beating says that a keep-alive comment
// is due then.
//
// Only events end a silence: comments and blank events can come from something before
// an engine that hangs. The time counts for which the worker was listened to: that for
// which a client has held the gateway up is no silence of its worker.
func (r *relay) patience(now time.Time) (until time.Time, beating bool) {
	cfg := &r.ex.g.cfg
	switch {
	case r.done:
		if r.doneBy.IsZero() { // one that sends on without end has no more time for that
			r.doneBy = now.Add(afterDone)
		}
		return r.doneBy, false
	case r.heard:
		return now.Add(cfg.StreamIdle - r.quiet), false
	}
	until = r.ex.dispatched.Add(cfg.FirstByteStream)
	if soon := now.Add(glance); until.Before(soon) { // what has come by now is heard, even if nobody listened in time
		if r.lastLook.IsZero() {
			r.lastLook = now.Add(afterDone)
		}
		until = earliest(soon, r.lastLook)
	}
	if r.ex.answerBegan {
		until = earliest(until, now.Add(cfg.StreamIdle))
	}
	if !r.nextBeat.IsZero() && r.nextBeat.Before(until) {
		return latest(r.nextBeat, now.Add(glance)), true
	}
	return until, false
}

// relayEvents moves the whole events that have come to out.
func (r *relay) relayEvents() *failure {
	for ev, ok := r.scan.Next(); ok; ev, ok = r.scan.Next() {
		if f := r.relayEvent(ev); f != nil {
			return f
		}
	}
	r.tellUse()
	if err := r.scan.Err(); err != nil {
		return &failure{kind: failSize, cause: err}
	}
	return nil
}

func (r *relay) relayEvent(ev sse.Event) *failure {
	if r.done {
		return nil // the answer is whole, whatever else is sent
	}
	if len(ev.Data) == 0 {
		r.out = append(r.ready(), ev.Raw...)
		r.awaitBeat()
		return nil
	}
	r.heard, r.fresh = true, true
	flags := r.stream.Observe(ev.Name, ev.Data)
	r.bind()
	switch {
	case flags&wire.StreamError != 0:
		we, _ := r.stream.StreamError()
		we.Body = r.ex.clientsTerms(we.Body)
		return toldBy(&we, errors.New("the worker reported an error inside its stream"))
	case flags&wire.Malformed != 0:
		if r.ex.malformed++; r.translator != nil {
			return &failure{kind: failContent, cause: errMalformed}
		}
	case flags&wire.Done != 0:
		return r.endMark(ev.Raw)
	case flags&wire.UsageChunk != 0 && r.hideUsage:
		return nil
	}
	if flags&wire.FirstToken != 0 && !r.tokenSeen {
		r.tokenSeen, r.hasToken = true, true
	}
	return r.pass(ev.Raw, ev.Data)
}

// workerEnded handles the end of the worker's response: whole if the terminal
// mark has come, a failure otherwise.
func (r *relay) workerEnded() *failure {
	if ev, ok := r.scan.End(); ok {
		if f := r.relayEvent(ev); f != nil {
			return f
		}
	}
	switch {
	case r.done:
	case r.ex.answerBegan:
		return &failure{kind: failNoMark, cause: errNoTerminal}
	default:
		return &failure{kind: failEmpty, cause: errNoTerminal}
	}
	// Not at the first token: a worker that breaks every stream would be praised
	// for each before it is blamed.
	if h := r.ex.g.parts.Health; h != nil {
		h.ReportSuccess(r.ex.res.Worker().ID)
	}
	r.complete()
	return nil
}

var errNoTerminal = errors.New("the worker's stream ended without its terminal mark")

// complete settles a stream that came whole. The client sees the terminal mark,
// which is the end to most, and that of the response only after its row is durable.
func (r *relay) complete() {
	if r.hasToken {
		r.hasToken = false
		r.markFirstToken()
	}
	r.end = io.EOF
	r.ex.finish(ending{
		outcome: tenancy.OutcomeCompleted, status: fasthttp.StatusOK, charge: r.ex.finalCharge(r.stream.Usage()),
	})
	r.out = append(r.ready(), r.mark...)
}

// failed goes on with another worker if nothing but comments has been passed on, and
// else ends the stream.
func (r *relay) failed(f *failure) {
	ex := r.ex
	switch {
	case r.done:
		r.complete()
	case ex.gone.Load():
		r.end = io.ErrClosedPipe
		ex.leave()
	case ex.wasCut.Load():
		r.abort(ex.cutEvent(f.cause))
	default:
		r.tryOn(f)
	}
}

func (r *relay) tryOn(f *failure) {
	ex := r.ex
	rej := ex.attemptFailed(f)
	switch {
	case rej == nil:
		r.body = nil // another is waited for
	case ex.over():
		r.failed(f)
	default:
		r.abort(rej)
	}
}

// abort ends the stream with an error event and without a terminal mark, which
// clients would take for success, and closes the connection after it.
func (r *relay) abort(rej *rejection) {
	ex := r.ex
	r.out = ex.route.codec.AppendErrorEvent(r.ready(), rej.content(), ex.dialect.status(rej), ex.requestID, r.nextSequence())
	r.end = io.EOF
	ex.streamErrorCode = rej.code
	if ex.conn != nil {
		ex.conn.closeAfterResponse()
	}
	ex.finish(ending{
		outcome: rej.outcome, status: fasthttp.StatusOK, code: rej.code, cause: rej.cause,
		charge: ex.partialCharge(),
	})
}

// nextSequence is the number of the next event, where events are numbered.
func (r *relay) nextSequence() int64 {
	if r.stream == nil {
		return 0
	}
	return r.stream.NextSequence()
}
