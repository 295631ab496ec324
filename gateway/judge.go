package gateway

import (
	"cmp"
	"errors"
	"fmt"
	"time"

	"github.com/valyala/fasthttp"

	"github.com/sluicegate/sluice/gateway/wire"
	"github.com/sluicegate/sluice/scoring"
	"github.com/sluicegate/sluice/tenancy"
)

// failureKind is a way in which an attempt can fail.
type failureKind uint8

const (
	// failCut is the end of the request itself: its client has left, or it was cut.
	failCut failureKind = iota
	// failLocal is an attempt that this process had no room to make.
	failLocal
	failConnect // no connection, or none over TLS
	failSend    // the request could not be written whole, and no answer came
	failHead    // the connection ended before a header, or what came is no HTTP
	failHeadSize
	failNoByte // nothing came in time
	failForm   // an answer in another form than was asked for
	failCoding // an answer in a coding that nobody asked for
	failEmpty  // the connection ended after the header, before a byte of the body
	failShort  // the body ended early, or its framing is broken
	failStuck  // silence within an answer of which nothing was passed on yet
	failSilent // silence within a stream that is being passed on
	failSize   // an answer or an event over the limits
	failContent
	failNoMark // a stream that ended without its terminal mark
	// The rest is the worker's own word.
	failServer
	failStale
	failCredential
	failSaturated
	failRequest
	failEndpoint
	failureKinds
)

// failure is an attempt that failed.
type failure struct {
	kind  failureKind
	cause error             // for the log; it never quotes the worker
	told  *wire.WorkerError // the worker's own word, rebuilt for the client
	// refused is what the client is told of a request that no worker was found for.
	refused *rejection
}

// judgement is what a failure means: to the client, for the request, and for the
// worker.
type judgement struct {
	status        int
	code, message string
	again         bool // another worker may be tried, as long as no byte of a body has come
	fault         scoring.Fault
	outcome       tenancy.Outcome
	retryAfter    time.Duration
}

const (
	codeUpstream = "upstream_error"
	codeTimeout  = "upstream_timeout"
)

// judgements is the one table by which failed attempts are judged. What a request
// can bring about by itself at a worker that is well is a fault of the kind Answer at
// most, and what is only a matter of its size or its route is none. Where the worker
// has spoken, its words stand in for the code, status and message.
var judgements = [failureKinds]judgement{
	failCut: {status: fasthttp.StatusServiceUnavailable, code: "unavailable", message: "the gateway is shutting down",
		outcome: tenancy.OutcomeRejected, retryAfter: 5 * time.Second},
	failLocal: {status: fasthttp.StatusServiceUnavailable, code: "unavailable", message: "the gateway has no room for another request to a worker",
		outcome: tenancy.OutcomeRejected, retryAfter: 5 * time.Second},
	failConnect:  {message: "the worker could not be reached", again: true, fault: scoring.FaultTransport},
	failSend:     {message: "the worker did not take the request", again: true, fault: scoring.FaultAnswer},
	failHead:     {message: "the worker failed before it answered", again: true, fault: scoring.FaultTransport},
	failHeadSize: {message: "the worker's answer can't be understood", fault: scoring.FaultAnswer},
	failNoByte: {status: fasthttp.StatusGatewayTimeout, code: codeTimeout, message: "the worker sent nothing in time",
		fault: scoring.FaultTimeout},
	failForm:   {message: "the worker answered in another form than was asked for", fault: scoring.FaultAnswer},
	failCoding: {message: "the worker answered in a coding that was not asked for", fault: scoring.FaultAnswer},
	failEmpty:  {message: "the worker failed before it answered", again: true, fault: scoring.FaultTransport},
	failShort:  {message: "the worker failed during its answer", fault: scoring.FaultTransport},
	failStuck:  {message: "the worker fell silent", fault: scoring.FaultTimeout},
	failSilent: {status: fasthttp.StatusGatewayTimeout, code: codeTimeout, message: "the worker fell silent",
		fault: scoring.FaultTimeout},
	failSize:       {message: "the worker's answer is over the size limit"},
	failContent:    {message: "the worker's answer can't be understood", fault: scoring.FaultAnswer},
	failNoMark:     {message: "the worker failed during its answer", fault: scoring.FaultAnswer},
	failServer:     {fault: scoring.FaultAnswer},
	failStale:      {fault: scoring.FaultStale},
	failCredential: {fault: scoring.FaultCredential},
	failSaturated:  {again: true, retryAfter: 5 * time.Second},
	failRequest:    {outcome: tenancy.OutcomeRejected},
	failEndpoint:   {outcome: tenancy.OutcomeRejected},
}

// judge says what a failure means: whether another worker may be tried, what the
// client is told if none is, and what it says about the worker, 0 for nothing.
func judge(f *failure) (again bool, rej *rejection, fault scoring.Fault) {
	j := &judgements[f.kind]
	rej = &rejection{
		status: cmp.Or(j.status, fasthttp.StatusBadGateway), kind: wire.TypeServer, code: cmp.Or(j.code, codeUpstream),
		message: j.message, retryAfter: j.retryAfter, outcome: cmp.Or(j.outcome, tenancy.OutcomeUpstreamError), cause: f.cause,
	}
	if we := f.told; we != nil {
		rej.status, rej.kind, rej.code, rej.param, rej.message = we.Status, we.Body.Type, we.Body.Code, we.Body.Param, we.Body.Message
	}
	return j.again, rej, j.fault
}

// toldBy is the failure that a worker's own word is.
func toldBy(we *wire.WorkerError, cause error) *failure {
	kind := failServer
	switch we.Cause {
	case wire.CauseRequest, wire.CauseContext:
		kind = failRequest
	case wire.CauseStaleModel:
		kind = failStale
	case wire.CauseNoEndpoint:
		kind = failEndpoint
	case wire.CauseCredential:
		kind = failCredential
	case wire.CauseSaturated:
		kind = failSaturated
	}
	return &failure{kind: kind, told: we, cause: cause}
}

// errInterrupted is why a request goes no further that its client has left, or that
// was cut.
var errInterrupted = errors.New("the request was interrupted")

func interrupted() *failure { return &failure{kind: failCut, cause: errInterrupted} }

// noTurn is a request that no worker was found for.
func (ex *exchange) noTurn(rej *rejection) *failure {
	if ex.goesOnFrom != nil {
		rej = ex.keeperGone(rej)
	}
	return &failure{refused: rej, cause: rej.cause}
}

// noConnection is an attempt without a connection. Where this process lacks what one
// takes, that is no failure of the worker, and trying others would fail alike.
func noConnection(err error) *failure {
	if scoring.OutOfResources(err) {
		return &failure{kind: failLocal, cause: err}
	}
	return &failure{kind: failConnect, cause: err}
}

// noHead is an attempt without a response header that can be read. The errors of the
// header's parser can quote bytes of the worker's answer.
func noHead(err error) *failure {
	if isTimeout(err) {
		return &failure{kind: failNoByte, cause: errHeadLate}
	}
	if _, ok := errors.AsType[*fasthttp.ErrSmallBuffer](err); ok {
		return &failure{kind: failHeadSize, cause: errors.New("the worker's response header is larger than 16 KiB")}
	}
	if errors.Is(err, errNoHead) {
		return &failure{kind: failHead, cause: err}
	}
	return &failure{kind: failHead, cause: fmt.Errorf("the connection to the worker ended before its response header (%T)", err)}
}

var errHeadLate = errors.New("the worker's response header was not there in time")

// isTimeout reports whether err says so of itself; the HTTP library's own
// timeout is no net.Error.
func isTimeout(err error) bool {
	var t interface{ Timeout() bool }
	return errors.As(err, &t) && t.Timeout()
}
