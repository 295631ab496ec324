package openai

import (
	"bytes"
	"net/http"
	"strings"
	"unicode/utf8"
)

const (
	// maxWorkerText is how many bytes of a worker's own words reach a client.
	maxWorkerText = 1 << 10
	// maxParam is the longest path taken over from a worker.
	maxParam = 256
)

// Cause is what a worker's error means for the gateway.
type Cause uint8

const (
	// CauseFault is a fault of the worker or of the link to it.
	CauseFault Cause = iota + 1
	// CauseRequest is a request that the worker judged invalid.
	CauseRequest
	// CauseContext is an input longer than the model's context.
	CauseContext
	// CauseStaleModel is a worker that does not serve a model it should.
	CauseStaleModel
	// CauseNoEndpoint is a worker without the endpoint.
	CauseNoEndpoint
	// CauseCredential is a worker that refused the gateway's own key.
	CauseCredential
	// CauseSaturated is a worker that has no room now: another may have.
	CauseSaturated
)

// String names the cause.
func (c Cause) String() string {
	switch c {
	case CauseFault:
		return "fault"
	case CauseRequest:
		return "request"
	case CauseContext:
		return "context"
	case CauseStaleModel:
		return "stale_model"
	case CauseNoEndpoint:
		return "no_endpoint"
	case CauseCredential:
		return "credential"
	case CauseSaturated:
		return "saturated"
	}
	return "unknown"
}

// WorkerError is a worker's error answer, rebuilt for the client.
type WorkerError struct {
	// Status is the HTTP status for the client.
	Status int
	// Cause is what the error means.
	Cause Cause
	// Body is the content for the client. Only with CauseRequest and
	// CauseContext it can hold words of the worker, which quote the client's
	// own input: it must not be logged.
	Body ErrorBody
}

// MapWorkerError rebuilds the error answer of a worker: any status but a
// success. The body may be of any kind, cut off, or missing.
func MapWorkerError(status int, body []byte) WorkerError {
	switch status {
	case http.StatusBadRequest:
		return requestError(parseWorkerError(body), true)
	case http.StatusRequestTimeout, http.StatusConflict, http.StatusUnprocessableEntity:
		// The words of these are not kept, but a context that is too long has
		// its code whatever the status.
		return requestError(parseWorkerError(body), false)
	case http.StatusRequestEntityTooLarge:
		return WorkerError{
			Status: http.StatusRequestEntityTooLarge, Cause: CauseRequest,
			Body: ErrorBody{Message: "The request is too large for the model's server.", Type: typeInvalid, Code: "request_too_large"},
		}
	case http.StatusNotFound:
		return notFound(parseWorkerError(body))
	case http.StatusUnauthorized, http.StatusForbidden:
		return upstreamError(CauseCredential)
	case http.StatusTooManyRequests, http.StatusServiceUnavailable:
		return WorkerError{
			Status: http.StatusServiceUnavailable, Cause: CauseSaturated,
			Body: ErrorBody{Message: "The model is overloaded. Retry after a while.", Type: typeServer, Code: "overloaded"},
		}
	}
	return upstreamError(CauseFault)
}

// MapStreamError rebuilds an error that a worker sent inside a stream, given
// the data of its event. Its Status is what an answer would have had; the
// stream's own status is long sent.
func MapStreamError(data []byte) WorkerError {
	w := parseWorkerError(data)
	if w.status == http.StatusBadRequest || w.aboutContext() {
		return requestError(w, w.status == http.StatusBadRequest)
	}
	return upstreamError(CauseFault)
}

func upstreamError(cause Cause) WorkerError {
	return WorkerError{
		Status: http.StatusBadGateway, Cause: cause,
		Body: ErrorBody{Message: "The model's server failed. Retry the request.", Type: typeServer, Code: "upstream_error"},
	}
}

// requestError tells of a request that the worker refused; in its words where they
// are of a 400, and otherwise in the gateway's own.
func requestError(w workerError, words bool) WorkerError {
	e := WorkerError{
		Status: http.StatusBadRequest, Cause: CauseRequest,
		Body: ErrorBody{
			Message: "The model's server refused the request as invalid.",
			Type:    typeInvalid, Param: w.clientParam(), Code: "invalid_request",
		},
	}
	if w.aboutContext() {
		e.Cause = CauseContext
		e.Body.Message = "The input is longer than the model's context. Shorten it, or ask for less output."
		e.Body.Param, e.Body.Code = "", "context_length_exceeded"
	}
	if words && w.message != "" {
		e.Body.Message = cutText(w.message, maxWorkerText)
	}
	return e
}

// notFound tells the two 404 of a worker apart. A model it does not know comes
// in an error object; the gateway had checked the model, so the worker's set is
// stale. A route it does not have has no such object.
func notFound(w workerError) WorkerError {
	if w.isError {
		return upstreamError(CauseStaleModel)
	}
	return WorkerError{
		Status: http.StatusNotFound, Cause: CauseNoEndpoint,
		Body: ErrorBody{
			Message: "The model does not offer this endpoint. Use another endpoint or model.",
			Type:    typeInvalid, Code: "endpoint_not_supported",
		},
	}
}

// workerError is what a worker's error says.
type workerError struct {
	isError bool // it has an error object, or is one
	message string
	param   string
	status  int64 // code, where that is a number
}

// aboutContext tells whether the input was longer than the model's context.
func (w workerError) aboutContext() bool {
	return w.param == "input_tokens" || strings.Contains(w.message, "maximum context length")
}

// clientParam is the param as a path of the client's body, or empty. The
// worker's is a path in its own data model, an offset, or anything else.
func (w workerError) clientParam() string {
	const inPath = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-.[]"
	param := strings.TrimPrefix(w.param, "body.")
	switch {
	case param == "body", len(param) > maxParam:
		return ""
	case strings.Trim(param, inPath) != "", strings.Trim(param, "0123456789") == "":
		return ""
	}
	return param
}

// parseWorkerError reads what there is of an error object, nested as vLLM sends
// it now, or flat as it did. A body cut off or not JSON gives what was read.
func parseWorkerError(body []byte) workerError {
	c := cursor{b: bytes.TrimSpace(body), maxDepth: answerDepth}
	var w, flat workerError
	if c.peek() != '{' {
		return w
	}
	c.enter()
	for key, ok := c.member(); ok; key, ok = c.member() {
		switch {
		case c.is(key, "error") && c.peek() == '{':
			w = c.errorObject()
		case c.is(key, "error") && c.peek() == '"':
			w = workerError{isError: true, message: c.words()}
		case c.is(key, "object"):
			flat.isError = c.textIs("error")
		default:
			c.errorMember(&flat, key)
		}
	}
	if !w.isError && flat.isError {
		return flat
	}
	return w
}

func (c *cursor) errorObject() workerError {
	w := workerError{isError: true}
	c.enter()
	for key, ok := c.member(); ok; key, ok = c.member() {
		c.errorMember(&w, key)
	}
	return w
}

func (c *cursor) errorMember(w *workerError, key token) {
	switch {
	case c.is(key, "message"):
		w.message = c.words()
	case c.is(key, "param"):
		w.param = c.words()
	case c.is(key, "code"):
		w.status, _ = c.tokens()
	default:
		c.skip()
	}
}

// words reads a string; anything else is none.
func (c *cursor) words() string {
	if c.peek() != '"' {
		c.skip()
		return ""
	}
	t := c.str()
	if c.bad != faultNone {
		return ""
	}
	return string(appendUnescaped(nil, c.b[t.start:t.end]))
}

// cutText cuts s to at most n bytes, between characters.
func cutText(s string, n int) string {
	if len(s) <= n {
		return s
	}
	for n > 0 && !utf8.RuneStart(s[n]) {
		n--
	}
	return s[:n]
}
