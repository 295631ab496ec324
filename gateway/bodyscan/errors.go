package bodyscan

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

// Invalid is a refusal of a field.
func Invalid(param, format string, args ...any) *wire.Error {
	return &wire.Error{
		Status: http.StatusBadRequest, Code: "invalid_request", Param: param,
		Message: fmt.Sprintf(format, args...),
	}
}

// Duplicate is the refusal of a key that stands twice in its object.
func Duplicate(path string) *wire.Error {
	return &wire.Error{
		Status: http.StatusBadRequest, Code: "duplicate_key", Param: path,
		Message: fmt.Sprintf("`%s` is given more than once in one object. Send it once.", path),
	}
}

func errDuplicateInside(path string, w Watched) *wire.Error {
	return &wire.Error{
		Status: http.StatusBadRequest, Code: "duplicate_key", Param: path,
		Message: fmt.Sprintf("An object inside `%s` has the key %v more than once. Send it once.", path, w),
	}
}

func errNoModel(empty bool) *wire.Error {
	if empty {
		return Invalid("model", "`model` is empty. Name the model to use.")
	}
	return Invalid("model", "`model` is missing. Name the model to use, as a string.")
}

func errOperator(key string) *wire.Error {
	return Invalid(key, "`%s` belongs to the engine's operator. Remove it.", key)
}

func errSurrogate(path string) *wire.Error {
	return Invalid(path, "`%s` has an escape for half a surrogate pair, which is no character. Send both halves or neither.", path)
}

func errTooLong(path string, most int, unit string) *wire.Error {
	return Invalid(path, "`%s` is too long: at most %d %s are allowed.", path, most, unit)
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
	return Invalid(path, "`%s` must be an integer from 0 to %d, not %s.", path, MaxInteger, why)
}

// WrongType refuses the value at the cursor.
func (s *Scanner) WrongType(want string) {
	if s.Err != nil || s.Bad != jsonscan.FaultNone || s.I >= len(s.B) {
		return
	}
	path := s.At.String()
	kind := jsonscan.KindOf(s.B[s.I:])
	hint := ""
	if kind == "a string" && (want == "an integer" || want == "true or false") {
		hint = " Send it without quotes."
	}
	s.Refuse(Invalid(path, "`%s` must be %s, not %s.%s", path, want, kind, hint))
}
