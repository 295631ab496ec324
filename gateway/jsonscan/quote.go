package jsonscan

import "unicode/utf8"

// AppendQuoted appends s as a JSON string. Bytes that are not UTF-8 become
// U+FFFD.
func AppendQuoted[T string | []byte](dst []byte, s T) []byte {
	const hex = "0123456789abcdef"
	dst = append(dst, '"')
	for i := 0; i < len(s); {
		switch ch := s[i]; {
		case ch == '"', ch == '\\':
			dst = append(dst, '\\', ch)
		case ch == '\n':
			dst = append(dst, '\\', 'n')
		case ch == '\r':
			dst = append(dst, '\\', 'r')
		case ch == '\t':
			dst = append(dst, '\\', 't')
		case ch < 0x20, ch == 0x7f:
			dst = append(dst, '\\', 'u', '0', '0', hex[ch>>4], hex[ch&15])
		case ch < utf8.RuneSelf:
			dst = append(dst, ch)
		default:
			r, n := utf8.DecodeRuneInString(string(s[i:min(len(s), i+utf8.UTFMax)]))
			dst = utf8.AppendRune(dst, r)
			i += n
			continue
		}
		i++
	}
	return append(dst, '"')
}

// AppendQuotedOrNull is appendQuoted, or null for an empty string.
func AppendQuotedOrNull(dst []byte, s string) []byte {
	if s == "" {
		return append(dst, "null"...)
	}
	return AppendQuoted(dst, s)
}

// AppendUnescaped appends the string that the bytes between two quotes stand
// for. They have been checked; a lone surrogate gives U+FFFD.
func AppendUnescaped(dst, s []byte) []byte {
	for i := 0; i < len(s); {
		if s[i] != '\\' {
			dst = append(dst, s[i])
			i++
			continue
		}
		switch ch := s[i+1]; ch {
		case 'u':
			r, n := unicodeEscape(s[i:])
			dst = utf8.AppendRune(dst, r)
			i += n
			continue
		case 'b':
			dst = append(dst, '\b')
		case 'f':
			dst = append(dst, '\f')
		case 'n':
			dst = append(dst, '\n')
		case 'r':
			dst = append(dst, '\r')
		case 't':
			dst = append(dst, '\t')
		default:
			dst = append(dst, ch)
		}
		i += 2
	}
	return dst
}
