package main

import (
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/sluicegate/sluice/policy"
)

const (
	excerptWidth = 120     // characters of a line that are shown
	excerptBytes = 1 << 20 // of a file that is quoted: the largest policy file
)

// excerpts quotes the lines of policy files that faults and warnings name. Only policies are quoted: they
// hold no secrets, while a line of a configuration or a tenants file may hold one that was put in the wrong
// place, and the output of `check` ends up in the logs of CI systems.
type excerpts struct {
	files map[string][]string // by path; nil for one that cannot be read
}

// write quotes the line of a fault below its text, with a caret under its column:
//
//	6 |     - { name: v, expression: "request.modle == 'tiny'" }
//	  |                               ^
//
// A fault without a place, or in a file that cannot be read, gets no quote.
func (x *excerpts) write(w io.Writer, at policy.Error) {
	text, caret, ok := x.quote(at.File, at.Line, at.Col)
	if !ok {
		return
	}
	number := strconv.Itoa(at.Line)
	fmt.Fprintf(w, "  %s | %s\n  %s | %s^\n", number, text, strings.Repeat(" ", len(number)), caret)
}

// quote returns a line as it may be printed and the white space that puts a caret under a column.
func (x *excerpts) quote(file string, line, col int) (text, caret string, ok bool) {
	if line < 1 || col < 1 {
		return "", "", false
	}
	lines := x.lines(file)
	if line > len(lines) {
		return "", "", false
	}
	runes := []rune(lines[line-1])
	at := min(col-1, len(runes))
	from := 0
	if len(runes) > excerptWidth {
		from = max(0, min(at-excerptWidth/2, len(runes)-excerptWidth))
	}
	to := min(len(runes), from+excerptWidth)
	if from > 0 {
		text, caret = "…", " "
	}
	text += shown(runes[from:to])
	if to < len(runes) {
		text += "…"
	}
	return text, caret + blank(runes[from:at]), true
}

// shown makes text fit for a terminal: no control characters, which could move its cursor or hide a line.
func shown(runes []rune) string {
	return strings.Map(func(r rune) rune {
		if r == '\t' || !unicode.IsControl(r) && !unicode.Is(unicode.Bidi_Control, r) {
			return r
		}
		return '?'
	}, string(runes))
}

// blank is white space as wide as text: tabs stay tabs, characters that East Asian terminals draw in two
// cells become two spaces, marks that are drawn over the character before become nothing.
func blank(runes []rune) string {
	var b strings.Builder
	for _, r := range runes {
		switch {
		case r == '\t':
			b.WriteByte('\t')
		case unicode.In(r, unicode.Mn, unicode.Me):
		case wide(r):
			b.WriteString("  ")
		default:
			b.WriteByte(' ')
		}
	}
	return b.String()
}

func wide(r rune) bool {
	return unicode.In(r, unicode.Han, unicode.Hiragana, unicode.Katakana, unicode.Hangul) ||
		r >= 0x1F300 && r <= 0x1FAFF || r >= 0xFF01 && r <= 0xFF60
}

func (x *excerpts) lines(file string) []string {
	if lines, read := x.files[file]; read {
		return lines
	}
	if x.files == nil {
		x.files = map[string][]string{}
	}
	var lines []string
	if data, err := readBounded(file, excerptBytes); err == nil && utf8.Valid(data) {
		for line := range strings.Lines(string(data)) {
			lines = append(lines, strings.TrimRight(line, "\r\n"))
		}
	}
	x.files[file] = lines
	return lines
}

// writeFaults writes an error with a quote below each fault of a policy. The names of files in the error
// start from the working directory.
func writeFaults(w io.Writer, err error) {
	var x excerpts
	for _, part := range joined(err) {
		le, ok := errors.AsType[*policy.LoadError](part)
		if !ok {
			fmt.Fprintln(w, part)
			continue
		}
		for _, e := range le.Errors {
			fmt.Fprintln(w, e.Error())
			x.write(w, e)
		}
	}
}

// joined lists the errors of errors.Join, or the one that is none of those.
func joined(err error) []error {
	list, ok := err.(interface{ Unwrap() []error })
	if !ok {
		return []error{err}
	}
	var out []error
	for _, e := range list.Unwrap() {
		out = append(out, joined(e)...)
	}
	return out
}
