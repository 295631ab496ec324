package simworker

import (
	"fmt"
	"net/http"
	"strconv"
	"strings"
)

// apiError is an error in the engine's own form. Kind is the engine's name for
// it (a Python class name or a phrase), Param may be empty for null. The
// engine's code is the status, as a number.
type apiError struct {
	Status  int
	Message string
	Kind    string
	Param   string
	early   bool // found before a route's own code ran
}

func (e *apiError) Error() string { return e.Message }

// body returns the JSON the engine would send.
func (e *apiError) body() []byte {
	b := append([]byte(nil), `{"error":{"message":`...)
	b = appendString(b, e.Message)
	b = append(b, `,"type":`...)
	b = appendString(b, e.Kind)
	b = append(b, `,"param":`...)
	b = appendStringOrNull(b, e.Param)
	b = append(b, `,"code":`...)
	b = strconv.AppendInt(b, int64(e.Status), 10)
	return append(b, "}}"...)
}

// messagesBody returns the JSON that the engine's messages routes send: without
// param, code and request id. What the web framework finds before the routes'
// own code runs has the form of the other routes.
func (e *apiError) messagesBody() []byte {
	if e.early {
		return e.body()
	}
	b := appendString([]byte(`{"type":"error","error":{"type":`), e.Kind)
	b = appendString(append(b, `,"message":`...), e.Message)
	return append(b, "}}"...)
}

// badRequest is what the engine says about a request it understood and will
// not do.
func badRequest(param, format string, args ...any) *apiError {
	return &apiError{Status: http.StatusBadRequest, Message: fmt.Sprintf(format, args...), Kind: "BadRequestError", Param: param}
}

// errUnknownModel lists what is served, as the engine does.
func errUnknownModel(model string, served []string) *apiError {
	return &apiError{
		Status: http.StatusNotFound, Kind: "NotFoundError", Param: "model",
		Message: fmt.Sprintf("The model `%s` does not exist. Valid aliases: %s.", model, strings.Join(served, ", ")),
	}
}

// errEngineDead is what open requests get when the engine goes away.
var errEngineDead = &apiError{
	Status: http.StatusInternalServerError, Kind: "InternalServerError",
	Message: "EngineCore encountered an issue. See stack trace (above) for the root cause.",
}

// errTooLong is a prompt that leaves no room. The engine stops counting one
// token past the limit, hence "at least".
func errTooLong(maxLen, requested int) *apiError {
	head := fmt.Sprintf("This model's maximum context length is %d tokens. However, ", maxLen)
	if requested == 0 {
		n := maxLen + 1
		return badRequest("input_tokens", "%syour prompt contains at least %d input tokens, which exceeds this limit even without any output tokens. "+
			"Please reduce the length of the input prompt. (parameter=input_tokens, value=%d)", head, n, n)
	}
	n := max(0, maxLen-requested) + 1
	return badRequest("input_tokens", "%syou requested %d output tokens and your prompt contains at least %d input tokens, for a total of at least %d tokens. "+
		"Please reduce the length of the input prompt or the number of requested output tokens. (parameter=input_tokens, value=%d)",
		head, requested, n, n+requested, n)
}

// validationError is one finding about a body's fields, in the form of the
// library the engine uses (pydantic).
type validationError struct {
	kind, loc, msg string
	input          string // already a Python literal
	ctx            string // already a Python literal; may be empty
}

// errValidation wraps findings, at least one.
func errValidation(found ...validationError) *apiError {
	plural := "s"
	if len(found) == 1 {
		plural = ""
	}
	var sb strings.Builder
	fmt.Fprintf(&sb, "%d validation error%s:", len(found), plural)
	for _, f := range found {
		fmt.Fprintf(&sb, "\n  {'type': '%s', 'loc': '%s', 'msg': %s, 'input': %s", f.kind, f.loc, pyString(f.msg), f.input)
		if f.ctx != "" {
			sb.WriteString(", 'ctx': " + f.ctx)
		}
		sb.WriteByte('}')
	}
	return &apiError{Status: http.StatusBadRequest, Message: sb.String(), Kind: "Bad Request", Param: found[0].loc, early: true}
}
