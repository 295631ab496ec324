package gateway

import (
	"github.com/valyala/fasthttp"

	"github.com/sluicegate/sluice/gateway/anthropic"
	"github.com/sluicegate/sluice/gateway/openai"
	"github.com/sluicegate/sluice/gateway/wire"
)

// codec is one wire format: bodies in, events and errors out. Values have no
// state; an Observer is one answer's.
type codec interface {
	errorWriter
	// Scan reads a body strictly and in one pass. Its error is a *wire.Error.
	Scan(req *wire.Request, op wire.Operation, body []byte) error
	// AppendRewrite appends the body with what m changes to dst. The body is that
	// of req's last Scan.
	AppendRewrite(dst, body []byte, req *wire.Request, m wire.Mutation) []byte
	NewObserver(op wire.Operation) wire.Observer
	// ReadUsage returns the usage of an answer that is not a stream. An error says
	// that the answer is none.
	ReadUsage(op wire.Operation, body []byte) (wire.Usage, error)
	// MapWorkerError rebuilds the error answer of a worker.
	MapWorkerError(status int, body []byte) wire.WorkerError
}

// errorWriter is how a dialect tells of errors, also where no route of it was
// found.
type errorWriter interface {
	AppendError(dst []byte, e wire.ErrorBody, status int, requestID string) []byte
	// AppendErrorEvent appends the event that ends a stream; seq is the number it
	// has where events are numbered.
	AppendErrorEvent(dst []byte, e wire.ErrorBody, status int, requestID string, seq int64) []byte
}

// dialect is whose error bodies and header names a client expects. It follows
// from the path called and from nothing else.
type dialect uint8

const (
	dialectOpenAI dialect = iota
	dialectAnthropic
)

func (d dialect) String() string {
	if d == dialectAnthropic {
		return "anthropic"
	}
	return "openai"
}

func (d dialect) errors() errorWriter {
	if d == dialectAnthropic {
		return anthropic.Codec{}
	}
	return openai.Codec{}
}

// status is the status that the dialect has for an error.
func (d dialect) status(rej *rejection) int {
	if d == dialectAnthropic && rej.code == codeOverloaded && rej.status == fasthttp.StatusServiceUnavailable {
		return anthropic.StatusOverloaded
	}
	return rej.status
}

// setDialect notes whose client it is, and gives the response its request id under
// the name that such clients read.
func (ex *exchange) setDialect(h *fasthttp.ResponseHeader, d dialect) {
	ex.dialect = d
	ex.setRequestID(h)
}

func (ex *exchange) setRequestID(h *fasthttp.ResponseHeader) {
	h.Set("x-request-id", ex.requestID)
	if ex.dialect == dialectAnthropic {
		h.Set("request-id", ex.requestID)
	}
}
