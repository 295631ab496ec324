package vllm

import (
	"bytes"
	"net/http"
	"strings"
	"unicode/utf8"

	"github.com/sluicegate/sluice/gateway/jsonscan"
	"github.com/sluicegate/sluice/gateway/wire"
)

const (
	// maxWorkerText is how many bytes of a worker's own words reach a client.
	maxWorkerText = 1 << 10
	// maxParam is the longest path taken over from a worker.
	maxParam = 256
)

// MapError rebuilds the error answer of a worker: any status but a
// success. The body may be of any kind, cut off, or missing.
func MapError(status int, body []byte) wire.WorkerError {
	switch status {
	case http.StatusBadRequest:
		return requestError(parseWorkerError(body), true)
	case http.StatusRequestTimeout, http.StatusConflict, http.StatusUnprocessableEntity:
		// The words of these are not kept, but a context that is too long has
		// its code whatever the status.
		return requestError(parseWorkerError(body), false)
	case http.StatusRequestEntityTooLarge:
		return wire.WorkerError{
			Status: http.StatusRequestEntityTooLarge, Cause: wire.CauseRequest,
			Body: wire.ErrorBody{Message: "The request is too large for the model's server.", Type: wire.TypeInvalid, Code: "request_too_large"},
		}
	case http.StatusNotFound:
		return notFound(parseWorkerError(body))
	case http.StatusUnauthorized, http.StatusForbidden:
		return upstreamError(wire.CauseCredential)
	case http.StatusTooManyRequests, http.StatusServiceUnavailable:
		return wire.WorkerError{
			Status: http.StatusServiceUnavailable, Cause: wire.CauseSaturated,
			Body: wire.ErrorBody{Message: "The model is overloaded. Retry after a while.", Type: wire.TypeServer, Code: "overloaded"},
		}
	}
	return upstreamError(wire.CauseFault)
}

// MapStreamError rebuilds an error that a worker sent inside a stream, given
// the data of its event. Its Status is what an answer would have had; the
// stream's own status is long sent.
func MapStreamError(data []byte) wire.WorkerError {
	w := parseWorkerError(data)
	if w.status == http.StatusBadRequest || w.aboutContext() {
		return requestError(w, w.status == http.StatusBadRequest)
	}
	return upstreamError(wire.CauseFault)
}

func upstreamError(cause wire.Cause) wire.WorkerError {
	return wire.WorkerError{
		Status: http.StatusBadGateway, Cause: cause,
		Body: wire.ErrorBody{Message: "The model's server failed. Retry the request.", Type: wire.TypeServer, Code: "upstream_error"},
	}
}

// requestError tells of a request that the worker refused; in its words where they
// are of a 400, and otherwise in the gateway's own.
func requestError(w workerError, words bool) wire.WorkerError {
	e := wire.WorkerError{
		Status: http.StatusBadRequest, Cause: wire.CauseRequest,
		Body: wire.ErrorBody{
			Message: "The model's server refused the request as invalid.",
			Type:    wire.TypeInvalid, Param: w.clientParam(), Code: "invalid_request",
		},
	}
	if w.aboutContext() {
		e.Cause = wire.CauseContext
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
func notFound(w workerError) wire.WorkerError {
	if w.isError {
		return upstreamError(wire.CauseStaleModel)
	}
	return wire.WorkerError{
		Status: http.StatusNotFound, Cause: wire.CauseNoEndpoint,
		Body: wire.ErrorBody{
			Message: "The model does not offer this endpoint. Use another endpoint or model.",
			Type:    wire.TypeInvalid, Code: "endpoint_not_supported",
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

// reader reads an error answer.
type reader struct{ jsonscan.Cursor }

// parseWorkerError reads what there is of an error object, nested as vLLM sends
// it now, or flat as it did. A body cut off or not JSON gives what was read.
func parseWorkerError(body []byte) workerError {
	c := reader{jsonscan.Cursor{B: bytes.TrimSpace(body), MaxDepth: jsonscan.AnswerDepth}}
	var w, flat workerError
	if c.Peek() != '{' {
		return w
	}
	c.Enter()
	for key, ok := c.Member(); ok; key, ok = c.Member() {
		switch {
		case c.Is(key, "error") && c.Peek() == '{':
			w = c.errorObject()
		case c.Is(key, "error") && c.Peek() == '"':
			w = workerError{isError: true, message: c.Words()}
		case c.Is(key, "object"):
			flat.isError = c.TextIs("error")
		default:
			c.errorMember(&flat, key)
		}
	}
	if !w.isError && flat.isError {
		return flat
	}
	return w
}

func (c *reader) errorObject() workerError {
	w := workerError{isError: true}
	c.Enter()
	for key, ok := c.Member(); ok; key, ok = c.Member() {
		c.errorMember(&w, key)
	}
	return w
}

func (c *reader) errorMember(w *workerError, key jsonscan.Token) {
	switch {
	case c.Is(key, "message"):
		w.message = c.Words()
	case c.Is(key, "param"):
		w.param = c.Words()
	case c.Is(key, "code"):
		w.status, _ = c.Count()
	default:
		c.Skip()
	}
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
