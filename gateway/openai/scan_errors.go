package openai

import (
	"bytes"
	"fmt"
	"net/http"
)

// String says what is wrong with a text, without quoting it.
func (f fault) String() string {
	return [...]string{
		faultNone:     "nothing is wrong",
		faultEmpty:    "it is empty",
		faultBOM:      "it begins with a byte order mark",
		faultEnd:      "it ends too early",
		faultTrailing: "more follows after the value",
		faultSyntax:   "a value is expected",
		faultComma:    "a comma or a closing bracket is expected",
		faultKey:      "a key in double quotes is expected",
		faultColon:    "a colon is expected after a key",
		faultControl:  "a string holds a control character that is not escaped",
		faultEscape:   "a string holds an escape that does not exist",
		faultUTF8:     "a string is not valid UTF-8",
		faultNumber:   "a number is not well formed",
		faultLiteral:  "a word other than true, false and null stands outside a string",
		faultNaN:      "NaN and Infinity are no JSON numbers",
		faultDepth:    "it nests too deep",
	}[f]
}

func syntaxError(f fault, at int) *Error {
	fix := "Send one JSON object in UTF-8."
	if f == faultDepth {
		fix = fmt.Sprintf("At most %d levels are allowed.", requestDepth)
	}
	return &Error{
		Status: http.StatusBadRequest, Code: "invalid_json",
		Message: fmt.Sprintf("The request body is not valid JSON: %v (at byte %d). %s", f, at, fix),
	}
}

func errNotObject(kind string) *Error {
	return &Error{
		Status: http.StatusBadRequest, Code: "invalid_json",
		Message: fmt.Sprintf("The request body must be a JSON object, not %s.", kind),
	}
}

func invalid(param, format string, args ...any) *Error {
	return &Error{
		Status: http.StatusBadRequest, Code: "invalid_request", Param: param,
		Message: fmt.Sprintf(format, args...),
	}
}

func errDuplicate(path string) *Error {
	return &Error{
		Status: http.StatusBadRequest, Code: "duplicate_key", Param: path,
		Message: fmt.Sprintf("`%s` is given more than once in one object. Send it once.", path),
	}
}

func errDuplicateInside(path string, w watched) *Error {
	return &Error{
		Status: http.StatusBadRequest, Code: "duplicate_key", Param: path,
		Message: fmt.Sprintf("An object inside `%s` has the key %v more than once. Send it once.", path, w),
	}
}

func errNoModel(empty bool) *Error {
	if empty {
		return invalid("model", "`model` is empty. Name the model to use.")
	}
	return invalid("model", "`model` is missing. Name the model to use, as a string.")
}

func errNoMessages() *Error {
	return invalid("messages", "`messages` is missing. Send the conversation as an array of messages.")
}

func errOperator(key string) *Error {
	return invalid(key, "`%s` belongs to the engine's operator. Remove it.", key)
}

func errSurrogate(path string) *Error {
	return invalid(path, "`%s` has an escape for half a surrogate pair, which is no character. Send both halves or neither.", path)
}

func errTooLong(path string, most int, unit string) *Error {
	return invalid(path, "`%s` is too long: at most %d %s are allowed.", path, most, unit)
}

// errInteger refuses a number that is no integer in range. The text decides
// only which of the reasons is named.
func errInteger(path string, text []byte) *Error {
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
	if s.err != nil || s.bad != faultNone || s.i >= len(s.b) {
		return
	}
	path := s.at.String()
	kind := kindOf(s.b[s.i:])
	hint := ""
	if kind == "a string" && (want == "an integer" || want == "true or false") {
		hint = " Send it without quotes."
	}
	s.refuse(invalid(path, "`%s` must be %s, not %s.%s", path, want, kind, hint))
}

// orNull passes over the value at the cursor and refuses it unless it is null.
func (s *scanner) orNull(want string) {
	if s.peek() != 'n' {
		s.wrongType(want)
	}
	s.skip()
}

// kindOf names the kind of the value at the start of b.
func kindOf(b []byte) string {
	if len(b) == 0 {
		return "nothing"
	}
	switch b[0] {
	case '{':
		return "an object"
	case '[':
		return "an array"
	case '"':
		return "a string"
	case 't', 'f':
		return "a boolean"
	case 'n':
		return "null"
	}
	return "a number"
}
