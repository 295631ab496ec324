package wire

// The types of errors that most are of.
const (
	TypeInvalid = "invalid_request_error"
	TypeServer  = "server_error"
)

// Error is a refusal of a request body.
type Error struct {
	// Status is the HTTP status.
	Status int
	// Code is invalid_json, invalid_request or duplicate_key.
	Code string
	// Param is the path of the field at fault, or empty.
	Param string
	// Message says what is wrong and how to put it right. It never holds
	// content of the body.
	Message string
}

// Error implements error.
func (e *Error) Error() string { return e.Message }

// Body returns the error as an answer's content.
func (e *Error) Body() ErrorBody {
	return ErrorBody{Message: e.Message, Type: TypeInvalid, Param: e.Param, Code: e.Code}
}

// ErrorBody is the content of an error answer. An empty Param or Code is
// written as null.
type ErrorBody struct {
	Message, Type, Param, Code string
}

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
