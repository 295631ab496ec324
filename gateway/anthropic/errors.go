package anthropic

import (
	"net/http"

	"github.com/sluicegate/sluice/gateway/jsonscan"
	"github.com/sluicegate/sluice/gateway/wire"
)

// StatusOverloaded is the status that this API has in place of 503 for a model
// that has no room.
const StatusOverloaded = 529

// Codec is the dialect as the gateway uses it. It has no state.
type Codec struct{}

// AppendError appends the body of an error answer to dst. The type follows from
// the status; the code stands among the details, since clients know types only.
func (Codec) AppendError(dst []byte, e wire.ErrorBody, status int, requestID string) []byte {
	dst = append(dst, `{"type":"error","error":{"type":`...)
	dst = jsonscan.AppendQuoted(dst, errorType(status))
	dst = append(dst, `,"message":`...)
	dst = jsonscan.AppendQuoted(dst, e.Message)
	dst = append(dst, `,"details":{"error_code":`...)
	dst = jsonscan.AppendQuoted(dst, e.Code)
	dst = append(dst, `}},"request_id":`...)
	dst = jsonscan.AppendQuoted(dst, requestID)
	return append(dst, '}')
}

// AppendErrorEvent appends the event that reports an error once a stream has
// begun. Nothing may follow it. The events of this API are not numbered.
func (c Codec) AppendErrorEvent(dst []byte, e wire.ErrorBody, status int, requestID string, _ int64) []byte {
	dst = append(dst, "event: error\ndata: "...)
	dst = c.AppendError(dst, e, status, requestID) // It has no line ends: they are escaped.
	return append(dst, "\n\n"...)
}

// errorType is the API's type of the errors with a status.
func errorType(status int) string {
	switch status {
	case http.StatusUnauthorized:
		return "authentication_error"
	case http.StatusForbidden:
		return "permission_error"
	case http.StatusNotFound:
		return "not_found_error"
	case http.StatusRequestTimeout, http.StatusGatewayTimeout:
		return "timeout_error"
	case http.StatusRequestEntityTooLarge:
		return "request_too_large"
	case http.StatusTooManyRequests:
		return "rate_limit_error"
	case StatusOverloaded:
		return "overloaded_error"
	}
	if status >= http.StatusInternalServerError {
		return "api_error"
	}
	return "invalid_request_error"
}
