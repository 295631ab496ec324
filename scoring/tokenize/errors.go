package tokenize

import "errors"

// Errors that callers branch on. They are wrapped with the reason; neither the
// reason nor the error ever holds text of a prompt.
var (
	// ErrNoNative tells that this build has no native tokenizer.
	ErrNoNative = errors.New("this build has no native tokenizer (built without cgo or with the tag notokenizers); use the workers' /tokenize")
	// ErrUnsupported tells that the ids cannot be computed exactly here: a
	// template in the request, a field whose meaning is the engine's alone. The
	// request itself may be fine; ask a worker, or fall back to an estimate.
	ErrUnsupported = errors.New("cannot be tokenised exactly here")
	// ErrInvalid tells that the body is not a request of its kind: no JSON, a
	// missing or mistyped field. The engine would refuse it too.
	ErrInvalid = errors.New("invalid request body")
	// ErrClosed is returned by a Tokenizer after Close.
	ErrClosed = errors.New("tokenizer is closed")
)

// RenderError is returned when the chat template itself rejects the
// conversation. The engine answers such a request with 400 and the same message.
type RenderError struct {
	// Message is the text the template gave, meant for the client.
	Message string
}

// Error implements error.
func (e *RenderError) Error() string { return "chat template rejects the conversation: " + e.Message }
