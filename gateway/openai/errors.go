package openai

const (
	typeInvalid = "invalid_request_error"
	typeServer  = "server_error"
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
	return ErrorBody{Message: e.Message, Type: typeInvalid, Param: e.Param, Code: e.Code}
}

// ErrorBody is the content of an error answer. An empty Param or Code is
// written as null.
type ErrorBody struct {
	Message, Type, Param, Code string
}

// AppendError appends the body of an error answer to dst.
func AppendError(dst []byte, e ErrorBody) []byte {
	dst = append(dst, `{"error":{"message":`...)
	dst = appendQuoted(dst, e.Message)
	dst = append(dst, `,"type":`...)
	dst = appendQuoted(dst, e.Type)
	dst = append(dst, `,"param":`...)
	dst = appendQuotedOrNull(dst, e.Param)
	dst = append(dst, `,"code":`...)
	dst = appendQuotedOrNull(dst, e.Code)
	return append(dst, `}}`...)
}

// AppendErrorEvent appends the event that reports an error once a stream of
// chat or completions has begun. No [DONE] may follow it: with one, or with no
// event at all, clients take the answer for complete.
func AppendErrorEvent(dst []byte, e ErrorBody) []byte {
	dst = append(dst, "data: "...)
	dst = AppendError(dst, e) // It has no line ends: they are escaped.
	return append(dst, "\n\n"...)
}
