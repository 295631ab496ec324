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
// valid until the next call. stop is told now and then how many bytes were done
// since the last time; once it reports true the rest of the text is left out. A
// character may become eighteen, so that a text may take much longer than others
// of its size.
func (f *folder) text(t []byte, stop func(n int) bool) []byte {
	const step = 4 << 10
	var normal bool
	if f.buf, normal = appendVisible(f.buf[:0], t); normal {
		return f.buf
	}
	f.out = f.out[:0]
	for rest := f.buf; len(rest) > 0; {
		part := cutRunes(rest, step)
		rest = rest[len(part):]
		before := len(f.out)
		// Append composes what it gets with the end of what is there.
		f.out = norm.NFKC.Append(f.out, part...)
		if stop(len(f.out) - before) {
			break
		}
	}
	return f.out
}

// appendVisible copies text, drops invisible characters and maps digits, spaces
// and dashes that NFKC leaves alone. Bytes that aren't UTF-8 become U+FFFD. It
// reports whether the result is known to be in NFKC.
func appendVisible(dst, t []byte) (out []byte, normal bool) {
	normal = true
	start := 0 // of what is to be copied as it is
	for i := 0; i < len(t); {
		if t[i] < utf8.RuneSelf {
			i++
			continue
		}
		if i+2 < len(t) && plainThree(t[i], t[i+1], t[i+2]) {
			i += 3
			continue
		}
		if n := plainLength(t[i:]); n > 0 {
			i += n
			continue
		}
		r, n := utf8.DecodeRune(t[i:])
		to := visible(r)
		if combines(r) && behindDigit(dst, t[start:i]) {
			to = -1 // a mark on a digit hides it; on a letter NFKC composes it
		}
		normal = normal && (to < utf8.RuneSelf || plain(to) || r == ellipsis)
		if to == r && r != utf8.RuneError && r != ellipsis {
			i += n
			continue
		}
		dst = append(dst, t[start:i]...)
		if r == ellipsis {
			dst = append(dst, "..."...)
		} else if to >= 0 {
			dst = utf8.AppendRune(dst, to)
		}
		i += n
		start = i
	}
	return append(dst, t[start:]...), normal
}

// combines reports whether a rune is a mark that goes on what stands before it.
func combines(r rune) bool {
	return r >= 0x0300 && r <= 0x036f || r >= 0x1ab0 && r <= 0x1aff || r >= 0x1dc0 && r <= 0x1dff || r >= 0x20d0 && r <= 0x20ff || r >= 0xfe20 && r <= 0xfe2f
}

// behindDigit reports whether the text so far ends in a digit.
func behindDigit(dst, pending []byte) bool {
	if len(pending) == 0 {
		pending = dst
	}
	return len(pending) > 0 && isDigit(pending[len(pending)-1])
}

// plainLength is the length of the plain rune at the start of t, which isn't
// ASCII; 0 if it is another or no rune. Nearly all non-ASCII text is such runes of
// two or three bytes, and this is several times faster than decoding any rune.
func plainLength(t []byte) int {
	switch c := t[0]; {
	case c >= 0xe0 && c < 0xf0:
		if len(t) > 2 && plainThree(c, t[1], t[2]) {
			return 3
		}
	case c >= 0xc2 && c < 0xe0:
		if len(t) > 1 && t[1]&0xc0 == 0x80 && plain(rune(c&0x1f)<<6|rune(t[1]&0x3f)) {
			return 2
		}
	case c >= 0xf0:
		if r, n := utf8.DecodeRune(t); n == 4 && plain(r) {
			return n
		}
	}
	return 0
}

// plainThree reports whether three bytes are a plain rune. The first two are the
// index of its word in plainBits, the third is its bit. A rune that needs but two
// bytes is no UTF-8 in three, and no half of a surrogate pair is plain.
func plainThree(a, b, c byte) bool {
	return a&0xf0 == 0xe0 && b&0xc0 == 0x80 && c&0xc0 == 0x80 &&
		plainBits[int(a&0x0f)<<6|int(b&0x3f)]>>(c&0x3f)&1 != 0 && (a != 0xe0 || b >= 0xa0)
}

// plainRanges are runes that are in NFKC beside any others of them, which
// detectors take as they are: most letters of most scripts. The test holds the
// list against package norm.
var plainRanges = [...][2]rune{
	{0xa1, 0xa7}, {0xab, 0xac}, {0xb0, 0xb1}, {0xb6, 0xb7}, {0xbf, 0x131}, {0x134, 0x13e}, {0x141, 0x148}, {0x14a, 0x17e}, {0x218, 0x21b},
	{0x391, 0x3a1}, {0x3a3, 0x3ce}, {0x400, 0x482}, {0x48a, 0x52f}, {0x5d0, 0x5ea}, {0x620, 0x64a}, {0x904, 0x939}, {0x1e00, 0x1e99}, {0x1e9e, 0x1eff},
	{0x2018, 0x2019}, {0x201c, 0x201d}, {0x2020, 0x2022}, {0x20a9, 0x20bf}, {0x2190, 0x2199}, {0x2500, 0x26ff}, {0x2701, 0x27bf},
	{0x3001, 0x3029}, {0x3041, 0x3096}, {0x30a1, 0x30fc}, {0x3400, 0x4dbf}, {0x4e00, 0x9fff}, {0xac00, 0xd7a3}, {0xfffd, 0xfffd},
	{0x1f300, 0x1faff},
}

// plainEnd is beyond the last of them.
const plainEnd = 0x1fb00

// plainBits are plainRanges as a set.
var plainBits = func() (bits [plainEnd / 64]uint64) {
	for _, r := range plainRanges {
		for c := r[0]; c <= r[1]; c++ {
			bits[c/64] |= 1 << (c % 64)
		}
	}
	return bits
}()

func plain(r rune) bool { return r < plainEnd && plainBits[r/64]>>(r%64)&1 != 0 }

// ellipsis is common in text and three full stops in NFKC.
const ellipsis = '…'

// visible maps a rune beyond ASCII; below 0 it is dropped.
func visible(r rune) rune {
	switch {
	case r <= 0x9f: // the second set of control characters
		return softBreak
	case r < 0x034f:
		switch r {
		case 0xa0: // no-break space
			return ' '
		case 0xad: // soft hyphen
			return -1
		}
		return r
	case r < 0x2000:
		return visibleLow(r)
	case r <= 0x206f:
		return visiblePunctuation(r)
	case r == 0x2212, r == 0xfe63: // minus signs
		return '-'
	case r == 0x3000:
		return ' '
	case r >= 0xff01 && r <= 0xff5e: // the full-width form of ASCII, as NFKC has it
		return r - 0xff01 + '!'
	case r == 0x2800: // Braille without a dot
		return ' '
	case r == 0x3164, r == 0xffa0: // Hangul fillers
		return -1
	case r == 0xfeff, r >= 0xfe00 && r <= 0xfe0f, r >= 0xe0000 && r <= 0xe0fff:
		return -1 // byte order mark, variation selectors, tags
	case r >= 0xfff0 && r <= 0xfffc, r >= 0x1bca0 && r <= 0x1bca3, r >= 0x1d173 && r <= 0x1d17a:
		return -1 // annotations, objects, shorthand and musical format controls
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
	case r == 0x115f, r == 0x1160, r == 0x17b4, r == 0x17b5, r >= 0x180b && r <= 0x180f:
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
