package classify

import (
	"encoding/binary"
	"unicode/utf8"

	"golang.org/x/text/unicode/norm"
)

// folder brings text into the form that detectors expect. Its buffers are reused.
type folder struct{ buf, out []byte }

// text returns t without invisible characters, in NFKC, with digits, spaces and
// dashes of all scripts in their ASCII form: a card number in full-width or
// Arabic digits, or with soft hyphens inside, is one all the same. The result is
// valid until the next call.
func (f *folder) text(t []byte) []byte {
	f.buf = appendVisible(f.buf[:0], t)
	if norm.NFKC.IsNormal(f.buf) {
		return f.buf
	}
	f.out = norm.NFKC.Append(f.out[:0], f.buf...)
	return f.out
}

// appendVisible copies text, drops invisible characters and maps digits, spaces
// and dashes that NFKC leaves alone. Bytes that aren't UTF-8 become U+FFFD.
func appendVisible(dst, t []byte) []byte {
	for i := 0; i < len(t); {
		start := i
		for i < len(t) && t[i] < utf8.RuneSelf {
			i++
		}
		dst = append(dst, t[start:i]...)
		for i < len(t) && t[i] >= utf8.RuneSelf {
			r, n := utf8.DecodeRune(t[i:])
			switch to := visible(r); {
			case to == r && r != utf8.RuneError:
				dst = append(dst, t[i:i+n]...)
			case to >= 0:
				dst = utf8.AppendRune(dst, to)
			}
			i += n
		}
	}
	return dst
}

// visible maps a rune beyond ASCII; below 0 it is dropped.
func visible(r rune) rune {
	switch {
	case r < 0x034f:
		if r == 0xad { // soft hyphen
			return -1
		}
		return r
	case r < 0x2000:
		return visibleLow(r)
	case r <= 0x206f:
		return visiblePunctuation(r)
	case r == 0x2212, r == 0xfe63, r == 0xff0d: // minus signs
		return '-'
	case r >= 0x3400 && r < 0xd800: // ideographs, Hangul and what is between
		return r
	case r == 0xfeff, r >= 0xfe00 && r <= 0xfe0f, r >= 0xe0000 && r <= 0xe0fff:
		return -1 // byte order mark, variation selectors, tags
	}
	return r
}

// visibleLow maps the scripts between Greek and the punctuation block.
func visibleLow(r rune) rune {
	switch {
	case r < 0x0660:
		if r == 0x034f || r == 0x061c { // grapheme joiner, Arabic letter mark
			return -1
		}
		return r
	case r <= 0x0669:
		return '0' + r - 0x0660
	case r >= 0x06f0 && r <= 0x06f9:
		return '0' + r - 0x06f0
	case r >= 0x0966 && r < 0x0e00:
		// The Indic scripts stand 0x80 apart, with their digits at 0x66.
		if d := r&0x7f - 0x66; d >= 0 && d <= 9 && r < 0x0d70 {
			return '0' + d
		}
	case r >= 0x0e50 && r <= 0x0e59: // Thai
		return '0' + r - 0x0e50
	case r == 0x115f, r == 0x1160, r == 0x17b4, r == 0x17b5, r >= 0x180b && r <= 0x180e:
		return -1 // fillers, Mongolian separators
	}
	return r
}

// visiblePunctuation maps U+2000 to U+206F.
func visiblePunctuation(r rune) rune {
	switch {
	case r <= 0x200a:
		return ' '
	case r <= 0x200f, r >= 0x202a && r <= 0x202e, r >= 0x2060:
		return -1 // zero-width and directional characters
	case r <= 0x2015:
		return '-'
	case r == 0x2028, r == 0x2029:
		return '\n'
	}
	return r
}

// isASCII reports whether all bytes are below 0x80.
func isASCII(t []byte) bool {
	const high = 0x8080808080808080
	for len(t) >= 32 {
		w := binary.LittleEndian.Uint64(t) | binary.LittleEndian.Uint64(t[8:]) |
			binary.LittleEndian.Uint64(t[16:]) | binary.LittleEndian.Uint64(t[24:])
		if w&high != 0 {
			return false
		}
		t = t[32:]
	}
	for _, c := range t {
		if c >= utf8.RuneSelf {
			return false
		}
	}
	return true
}
