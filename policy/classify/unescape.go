package classify

import (
	"bytes"
	"unicode/utf16"
	"unicode/utf8"
)

// appendUnescaped appends the text of a JSON string without its quotes, and
// stops once dst is longer than limit. Escapes that JSON does not know give the
// escaped byte, lone surrogates U+FFFD, and control characters, which no text has
// a use for, a soft break.
func appendUnescaped(dst, raw []byte, limit int) []byte {
	for len(raw) > 0 && len(dst) <= limit {
		i := bytes.IndexByte(raw, '\\')
		if i < 0 || i == len(raw)-1 {
			return append(dst, raw...)
		}
		dst = append(dst, raw[:i]...)
		c := raw[i+1]
		raw = raw[i+2:]
		if c == 'u' {
			dst, raw = appendRune(dst, raw)
			continue
		}
		if to := escapes[c]; to != 0 {
			c = to
		}
		dst = append(dst, c)
	}
	return dst
}

var escapes = [256]byte{'b': softBreak, 'f': softBreak, 'n': '\n', 'r': '\r', 't': '\t'}

// appendRune reads what follows \u, both halves of a surrogate pair.
func appendRune(dst, raw []byte) (out, rest []byte) {
	r, ok := hex4(raw)
	if !ok {
		return utf8.AppendRune(dst, utf8.RuneError), raw
	}
	raw = raw[4:]
	if utf16.IsSurrogate(r) {
		pair := utf8.RuneError
		if len(raw) >= 6 && raw[0] == '\\' && raw[1] == 'u' {
			if low, ok := hex4(raw[2:]); ok {
				pair = utf16.DecodeRune(r, low)
			}
		}
		if pair != utf8.RuneError {
			raw = raw[6:]
		}
		r = pair
	}
	if r < ' ' && r != '\n' && r != '\r' && r != '\t' || r == del {
		r = softBreak
	}
	return utf8.AppendRune(dst, r), raw
}

func hex4(b []byte) (r rune, ok bool) {
	if len(b) < 4 {
		return 0, false
	}
	for _, c := range b[:4] {
		switch {
		case '0' <= c && c <= '9':
			c -= '0'
		case 'a' <= c && c <= 'f':
			c -= 'a' - 10
		case 'A' <= c && c <= 'F':
			c -= 'A' - 10
		default:
			return 0, false
		}
		r = r<<4 | rune(c)
	}
	return r, true
}
