package simworker

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"
)

// pyString returns s as Python writes a string literal.
func pyString(s string) string {
	quote := byte('\'')
	if strings.Contains(s, "'") && !strings.Contains(s, `"`) {
		quote = '"'
	}
	b := []byte{quote}
	for _, r := range s {
		switch {
		case r == rune(quote) || r == '\\':
			b = append(b, '\\', byte(r))
		case r == '\n':
			b = append(b, `\n`...)
		case r == '\r':
			b = append(b, `\r`...)
		case r == '\t':
			b = append(b, `\t`...)
		case r < ' ' || r == 0x7f:
			b = fmt.Appendf(b, `\x%02x`, r)
		default:
			b = utf8.AppendRune(b, r)
		}
	}
	return string(append(b, quote))
}

// pyInput returns a JSON value as the engine shows it in a validation error:
// containers only by kind and size.
func pyInput(raw json.RawMessage) string {
	var v any
	if json.Unmarshal(raw, &v) != nil {
		return "None"
	}
	switch v := v.(type) {
	case nil:
		return "None"
	case bool:
		if v {
			return "True"
		}
		return "False"
	case string:
		return pyString(v)
	case []any:
		return fmt.Sprintf("'<list of %d items>'", len(v))
	case map[string]any:
		return fmt.Sprintf("'<dict of %d items>'", len(v))
	}
	return strings.TrimSpace(string(raw))
}

// jsonFault returns where and why Python's json module would refuse body: the
// position in characters and its message. ok is false if it would not.
func jsonFault(body []byte) (pos int, msg string, ok bool) {
	s := &pyScanner{src: []rune(string(body))}
	s.space()
	s.value()
	if s.msg == "" {
		s.space()
		if s.at < len(s.src) {
			s.fail(s.at, "Extra data")
		}
	}
	return s.pos, s.msg, s.msg != ""
}

// pyScanner walks JSON text in the order in which Python's decoder does, so
// that it stops at the same place. It builds nothing.
type pyScanner struct {
	src   []rune
	at    int
	depth int
	pos   int
	msg   string
}

// maxDepth bounds recursion; deeper texts are refused, as Python's own stack
// refuses them.
const maxDepth = 900

func (s *pyScanner) fail(pos int, msg string) {
	if s.msg == "" {
		s.pos, s.msg = pos, msg
	}
}

func (s *pyScanner) peek() rune {
	if s.at < len(s.src) {
		return s.src[s.at]
	}
	return -1
}

func (s *pyScanner) space() {
	for s.at < len(s.src) && strings.ContainsRune(" \t\n\r", s.src[s.at]) {
		s.at++
	}
}

func (s *pyScanner) value() {
	if s.depth++; s.depth > maxDepth {
		s.fail(s.at, "Expecting value")
	}
	defer func() { s.depth-- }()
	if s.msg != "" {
		return
	}
	switch c := s.peek(); {
	case c == '"':
		s.str()
	case c == '{':
		s.object()
	case c == '[':
		s.array()
	case c == '-' || c >= '0' && c <= '9':
		s.number()
	default:
		if slices.ContainsFunc([]string{"null", "true", "false", "NaN", "Infinity"}, s.word) {
			return
		}
		s.fail(s.at, "Expecting value")
	}
}

func (s *pyScanner) word(w string) bool {
	if len(s.src)-s.at < len(w) || string(s.src[s.at:s.at+len(w)]) != w {
		return false
	}
	s.at += len(w)
	return true
}

func (s *pyScanner) digits() bool {
	from := s.at
	for c := s.peek(); c >= '0' && c <= '9'; c = s.peek() {
		s.at++
	}
	return s.at > from
}

// number takes the longest number there is; what follows is for the caller.
func (s *pyScanner) number() {
	start := s.at
	if s.peek() == '-' {
		s.at++
	}
	switch {
	case s.peek() == '0':
		s.at++
	case s.digits():
	case s.word("Infinity"):
		return
	default:
		s.fail(start, "Expecting value")
		return
	}
	end := s.at
	if s.peek() == '.' {
		s.at++
		if !s.digits() {
			s.at = end
			return
		}
	}
	end = s.at
	if c := s.peek(); c == 'e' || c == 'E' {
		s.at++
		if c := s.peek(); c == '+' || c == '-' {
			s.at++
		}
		if !s.digits() {
			s.at = end
		}
	}
}

func (s *pyScanner) str() {
	start := s.at
	s.at++
	for s.at < len(s.src) {
		c := s.src[s.at]
		switch {
		case c == '"':
			s.at++
			return
		case c < ' ':
			s.fail(s.at, "Invalid control character at")
			return
		case c == '\\':
			s.escape(start)
			if s.msg != "" {
				return
			}
		default:
			s.at++
		}
	}
	s.fail(start, "Unterminated string starting at")
}

func (s *pyScanner) escape(start int) {
	s.at++
	switch c := s.peek(); {
	case c == -1:
		s.fail(start, "Unterminated string starting at")
	case strings.ContainsRune(`"\/bfnrt`, c):
		s.at++
	case c == 'u':
		for i := 1; i <= 4; i++ {
			if s.at+i >= len(s.src) || !strings.ContainsRune("0123456789abcdefABCDEF", s.src[s.at+i]) {
				s.fail(s.at, `Invalid \uXXXX escape`)
				return
			}
		}
		s.at += 5
	default:
		s.fail(s.at-1, `Invalid \escape`)
	}
}

func (s *pyScanner) object() {
	const wantName = "Expecting property name enclosed in double quotes"
	s.at++
	s.space()
	if s.peek() == '}' {
		s.at++
		return
	}
	for s.msg == "" {
		if s.peek() != '"' {
			s.fail(s.at, wantName)
			return
		}
		s.str()
		s.space()
		if s.msg == "" && s.peek() != ':' {
			s.fail(s.at, "Expecting ':' delimiter")
		}
		s.at++
		s.space()
		s.value()
		s.space()
		switch s.peek() {
		case '}':
			s.at++
			return
		case ',':
			s.at++
			s.space()
		default:
			s.fail(s.at, "Expecting ',' delimiter")
		}
	}
}

func (s *pyScanner) array() {
	s.at++
	s.space()
	if s.peek() == ']' {
		s.at++
		return
	}
	for s.msg == "" {
		s.value()
		s.space()
		switch s.peek() {
		case ']':
			s.at++
			return
		case ',':
			s.at++
			s.space()
		default:
			s.fail(s.at, "Expecting ',' delimiter")
		}
	}
}
