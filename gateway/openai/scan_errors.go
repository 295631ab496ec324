package openai

import (
	"bytes"
	"fmt"
	"net/http"

	"github.com/sluicegate/sluice/gateway/jsonscan"
	"github.com/sluicegate/sluice/gateway/wire"
)

func syntaxError(f jsonscan.Fault, at int) *wire.Error {
	fix := "Send one JSON object in UTF-8."
	if f == jsonscan.FaultDepth {
		fix = fmt.Sprintf("At most %d levels are allowed.", jsonscan.RequestDepth)
	}
	return &wire.Error{
		Status: http.StatusBadRequest, Code: "invalid_json",
		Message: fmt.Sprintf("The request body is not valid JSON: %v (at byte %d). %s", f, at, fix),
	}
}

func errNotObject(kind string) *wire.Error {
	return &wire.Error{
		Status: http.StatusBadRequest, Code: "invalid_json",
		Message: fmt.Sprintf("The request body must be a JSON object, not %s.", kind),
	}
}

func invalid(param, format string, args ...any) *wire.Error {
	return &wire.Error{
		Status: http.StatusBadRequest, Code: "invalid_request", Param: param,
		Message: fmt.Sprintf(format, args...),
	}
}

func errDuplicate(path string) *wire.Error {
	return &wire.Error{
		Status: http.StatusBadRequest, Code: "duplicate_key", Param: path,
		Message: fmt.Sprintf("`%s` is given more than once in one object. Send it once.", path),
	}
}

func errDuplicateInside(path string, w watched) *wire.Error {
	return &wire.Error{
		Status: http.StatusBadRequest, Code: "duplicate_key", Param: path,
		Message: fmt.Sprintf("An object inside `%s` has the key %v more than once. Send it once.", path, w),
	}
}

func errNoModel(empty bool) *wire.Error {
	if empty {
		return invalid("model", "`model` is empty. Name the model to use.")
	}
	return invalid("model", "`model` is missing. Name the model to use, as a string.")
}

func errNoMessages() *wire.Error {
	return invalid("messages", "`messages` is missing. Send the conversation as an array of messages.")
}

func errNoInput() *wire.Error {
	return invalid("input", "`input` is missing. Send a text, or an array of items.")
}

func errNeverStreams() *wire.Error {
	return invalid("stream", "`stream` must be false or absent: this endpoint never streams.")
}

// errStore refuses what only a store of responses could know of.
func errStore(path string) *wire.Error {
	return &wire.Error{
		Status: http.StatusBadRequest, Code: "response_store_unavailable", Param: path,
		Message: fmt.Sprintf("`%s` needs something that was stored before, and it is not stored here. Send its content instead.", path),
	}
}

func errServerURL(path string) *wire.Error {
	return invalid(path, "`%s` would make the model's server call an address of the client's choice. Use a tool that its operator has set up.", path)
}

func errOperator(key string) *wire.Error {
	return invalid(key, "`%s` belongs to the engine's operator. Remove it.", key)
}

func errSurrogate(path string) *wire.Error {
	return invalid(path, "`%s` has an escape for half a surrogate pair, which is no character. Send both halves or neither.", path)
}

func errTooLong(path string, most int, unit string) *wire.Error {
	return invalid(path, "`%s` is too long: at most %d %s are allowed.", path, most, unit)
}

// errInteger refuses a number that is no integer in range. The text decides
// only which of the reasons is named.
func errInteger(path string, text []byte) *wire.Error {
	why := "a number out of range"
	switch {
	case text[0] == '-':
		why = "a negative number"
	case bytes.ContainsAny(text, ".eE"):
		why = "a number with a fraction or out of range"
	}
	return invalid(path, "`%s` must be an integer from 0 to %d, not %s.", path, maxInteger, why)
}

// wrongType refuses the value at the cursor.
func (s *scanner) wrongType(want string) {
	if s.err != nil || s.Bad != jsonscan.FaultNone || s.I >= len(s.B) {
		return
	}
	path := s.at.String()
	kind := jsonscan.KindOf(s.B[s.I:])
	hint := ""
	if kind == "a string" && (want == "an integer" || want == "true or false") {
		hint = " Send it without quotes."
	}
	s.refuse(invalid(path, "`%s` must be %s, not %s.%s", path, want, kind, hint))
}

// orNull passes over the value at the cursor and refuses it unless it is null.
func (s *scanner) orNull(want string) {
	if s.Peek() != 'n' {
		s.wrongType(want)
	}
	s.Skip()
}
