package policy

import (
	"fmt"
	"strings"
)

// Error is one fault of a document.
type Error struct {
	// File is relative to the root that was loaded. Line and Col count from 1
	// and are zero where a fault belongs to no place in a file.
	File      string
	Line, Col int
	// Path of the field inside its document, such as
	// AdmissionPolicy/name.spec.validations[2].expression.
	Path string
	Text string
}

// Error gives the form file:line:col: path: text.
func (e Error) Error() string {
	var b strings.Builder
	if e.File != "" {
		b.WriteString(e.File)
		if e.Line > 0 {
			fmt.Fprintf(&b, ":%d:%d", e.Line, e.Col)
		}
		b.WriteString(": ")
	}
	if e.Path != "" {
		b.WriteString(e.Path)
		b.WriteString(": ")
	}
	b.WriteString(e.Text)
	return b.String()
}

// LoadError lists every fault that was found, in the order of files and lines.
type LoadError struct {
	Errors []Error
}

// Error gives one line for each fault.
func (e *LoadError) Error() string {
	lines := make([]string, len(e.Errors))
	for i, f := range e.Errors {
		lines[i] = f.Error()
	}
	return strings.Join(lines, "\n")
}

// ErrorKind says what kind of evaluation error occurred, for counters.
type ErrorKind string

// The kinds of evaluation errors.
const (
	ErrorValue     ErrorKind = "value"     // missing key, division by zero, overflow, unusable result
	ErrorCost      ErrorKind = "cost"      // cost limit of the expression or the request
	ErrorClock     ErrorKind = "clock"     // time limit of the expression or the request
	ErrorLazy      ErrorKind = "lazy"      // a lazy variable could not be computed
	ErrorAbsent    ErrorKind = "absent"    // a variable that the input does not hold
	ErrorSize      ErrorKind = "size"      // a variable beyond its maximum
	ErrorCancelled ErrorKind = "cancelled" // the caller's context ended
	ErrorInternal  ErrorKind = "internal"  // a fault of the evaluator, recovered
)
