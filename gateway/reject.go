package gateway

import (
	"fmt"
	"strconv"
	"time"

	"github.com/valyala/fasthttp"

	"github.com/sluicegate/sluice/gateway/coding"
	"github.com/sluicegate/sluice/gateway/wire"
	"github.com/sluicegate/sluice/tenancy"
)

// codeOverloaded is the code of a model without room, which not every dialect has the same
// status for.
const codeOverloaded = "overloaded"

// rejection is the one error of the HTTP edge: what the client is told. The
// message names a field or a limit, never a worker, an address, a credential,
// another tenant or anything the client wrote. cause is for the log.
type rejection struct {
	status     int
	kind       string // OpenAI's error type
	code       string
	param      string
	message    string
	retryAfter time.Duration // sent if above zero
	noRetry    bool          // x-should-retry: false
	closeConn  bool
	coding     bool // say in Accept-Encoding what coding of a body is taken
	outcome    tenancy.Outcome
	cause      error
}

// Error implements error with the public text.
func (r *rejection) Error() string { return r.message }

// Unwrap gives the private cause.
func (r *rejection) Unwrap() error { return r.cause }

func invalid(code, param, message string) *rejection {
	return &rejection{
		status: fasthttp.StatusBadRequest, kind: "invalid_request_error",
		code: code, param: param, message: message, outcome: tenancy.OutcomeRejected,
	}
}

// tooLong refuses a request that needs so many tokens of context and can have so many.
// Client libraries know the error by the first words, which are OpenAI's and the engine's.
func tooLong(needs, longest int) *rejection {
	return invalid("context_length_exceeded", "", fmt.Sprintf(
		"this model's maximum context length is %d tokens, and the prompt and its answer need at least %d: shorten the prompt", longest, needs))
}

// unauthorized is the one answer to callers who are not known. The cause goes to
// the log alone.
func unauthorized(cause error) *rejection {
	return &rejection{
		status: fasthttp.StatusUnauthorized, kind: "invalid_request_error", code: "invalid_api_key",
		message: "no valid credential: send one API key or token as Authorization: Bearer, x-api-key or api-key",
		cause:   cause,
	}
}

func notFoundRoute() *rejection {
	return &rejection{
		status: fasthttp.StatusNotFound, kind: "invalid_request_error", code: "unknown_url",
		message: "no such route; see /v1/models, /v1/chat/completions, /v1/responses and /v1/messages",
	}
}

func modelNotFound() *rejection {
	return &rejection{
		status: fasthttp.StatusNotFound, kind: "invalid_request_error", code: "model_not_found", param: "model",
		message: "the model does not exist or this tenant may not use it; GET /v1/models lists what it may",
		outcome: tenancy.OutcomeRejected,
	}
}

func unavailable(message string, retry time.Duration) *rejection {
	return &rejection{
		status: fasthttp.StatusServiceUnavailable, kind: "server_error", code: "unavailable",
		message: message, retryAfter: retry, outcome: tenancy.OutcomeRejected,
	}
}

// shuttingDown is the end of a request that a shutdown cut short. A client that
// left gets it as well, and doesn't see it.
func shuttingDown() *rejection {
	return unavailable("the gateway is shutting down", 5*time.Second)
}

func upstreamFailed(code, message string, status int, cause error) *rejection {
	return &rejection{
		status: status, kind: "server_error", code: code, message: message,
		outcome: tenancy.OutcomeUpstreamError, cause: cause,
	}
}

func internal(cause error) *rejection {
	return &rejection{
		status: fasthttp.StatusInternalServerError, kind: "server_error", code: "internal_error",
		message: "the gateway failed on this request; its log has the request id", outcome: tenancy.OutcomeRejected, cause: cause,
	}
}

// write puts the rejection on the wire in the client's dialect.
func (r *rejection) write(ctx *fasthttp.RequestCtx, d dialect, requestID string) {
	resp := &ctx.Response
	resp.ResetBody()
	resp.SetStatusCode(d.status(r))
	resp.Header.SetContentType("application/json")
	if r.status == fasthttp.StatusUnauthorized {
		resp.Header.Set("WWW-Authenticate", "Bearer")
	}
	if r.coding {
		resp.Header.Set("Accept-Encoding", coding.Accepted)
	}
	if r.retryAfter > 0 {
		seconds := int64((r.retryAfter + time.Second - 1) / time.Second)
		resp.Header.Set("Retry-After", strconv.FormatInt(seconds, 10))
		if r.retryAfter > time.Minute {
			r.noRetry = true
		}
	}
	if r.noRetry {
		resp.Header.Set("x-should-retry", "false")
	}
	if r.closeConn {
		resp.SetConnectionClose()
	}
	resp.SetBody(r.body(d, requestID))
}

// body is the answer's body in the client's dialect.
func (r *rejection) body(d dialect, requestID string) []byte {
	return d.errors().AppendError(nil, r.content(), d.status(r), requestID)
}

// content is what every dialect can write.
func (r *rejection) content() wire.ErrorBody {
	return wire.ErrorBody{Message: r.message, Type: r.kind, Param: r.param, Code: r.code}
}
