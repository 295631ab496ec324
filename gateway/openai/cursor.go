package openai

import (
	"encoding/binary"
	"math/bits"
	"unicode/utf8"
)

const (
	// requestDepth is how deep a request body may nest.
	requestDepth = 128
	// answerDepth is how deep the answer of a worker may nest.
	answerDepth = 512
)

// fault is what is wrong with a JSON text.
type fault uint8

const (
	faultNone fault = iota
	faultEmpty
	faultBOM
	faultEnd
	faultTrailing
	faultSyntax
	faultComma
	faultKey
	faultColon
	faultControl
	faultEscape
	faultUTF8
	faultNumber
	faultLiteral
	faultNaN
	faultDepth
)

// cursor walks over a JSON text by the grammar of RFC 8259, strictly and
// without copying. Its first fault sticks: from then on it does not move, and
// member and element report the end, so that loops over them end.
//
// Every method leaves the cursor behind what it read. Methods that read a value
// expect it at the cursor, white space before it passed over, which is where
// member and element leave it.
type cursor struct {
	b        []byte
	i        int
	depth    int
	maxDepth int
	first    bool // the last step was enter
	bad      fault
	badAt    int
}

// token is a string in the text.
type token struct {
	start, end int  // what is between the quotes
	size       int  // bytes of the string it stands for
	escaped    bool // it has escapes
	lone       bool // it has a surrogate that is not part of a pair
}

func (c *cursor) fail(f fault) {
	if c.bad == faultNone {
		c.bad, c.badAt = f, c.i
	}
}

// unexpected fails with the fault f, or with the end of the text if that is it.
func (c *cursor) unexpected(f fault) {
	if c.i >= len(c.b) {
		f = faultEnd
	}
	c.fail(f)
}

func (c *cursor) space() {
	for c.i < len(c.b) {
		switch c.b[c.i] {
		case ' ', '\n', '\r', '\t':
			c.i++
		default:
			return
		}
	}
}

// peek returns the byte at the cursor, or 0 at the end or after a fault.
func (c *cursor) peek() byte {
	if c.bad != faultNone || c.i >= len(c.b) {
		return 0
	}
	return c.b[c.i]
}

// document passes over what may come before the text's only value.
func (c *cursor) document() {
	if len(c.b) >= 3 && string(c.b[:3]) == "\xef\xbb\xbf" {
		c.fail(faultBOM)
		return
	}
	c.space()
	if c.i == len(c.b) {
		c.fail(faultEmpty)
	}
}

// finish checks that nothing comes after the text's only value.
func (c *cursor) finish() {
	if c.bad != faultNone {
		return
	}
	c.space()
	if c.i < len(c.b) {
		c.fail(faultTrailing)
	}
}

// enter passes over the bracket that opens an object or array.
func (c *cursor) enter() {
	if c.bad != faultNone {
		return
	}
	if c.depth >= c.maxDepth {
		c.fail(faultDepth)
		return
	}
	c.depth++
	c.i++
	c.first = true
}

// member moves to the value of an object's next member and returns its key; it
// reports false, behind the closing bracket, when there is none.
func (c *cursor) member() (key token, ok bool) {
	if !c.next('}') {
		return token{}, false
	}
	if c.peek() != '"' {
		c.unexpected(faultKey)
		return token{}, false
	}
	key = c.str()
	if c.bad != faultNone {
		return token{}, false
	}
	c.space()
	if c.peek() != ':' {
		c.unexpected(faultColon)
		return token{}, false
	}
	c.i++
	c.space()
	return key, true
}

// element moves to an array's next element; it reports false, behind the
// closing bracket, when there is none.
func (c *cursor) element() bool { return c.next(']') }

func (c *cursor) next(closing byte) bool {
	first := c.first
	c.first = false
	if c.bad != faultNone {
		return false
	}
	c.space()
	switch ch := c.peek(); {
	case ch == closing:
		c.i++
		c.depth--
		return false
	case first:
		if c.i >= len(c.b) {
			c.fail(faultEnd)
		}
	case ch == ',':
		c.i++
		c.space()
	default:
		c.unexpected(faultComma)
	}
	return c.bad == faultNone
}

// skip passes over a value of any kind.
func (c *cursor) skip() {
	switch ch := c.peek(); ch {
	case '{':
		c.enter()
		for _, ok := c.member(); ok; _, ok = c.member() {
			c.skip()
		}
	case '[':
		c.enter()
		for c.element() {
			c.skip()
		}
	case '"':
		c.str()
	default:
		c.scalar(ch)
	}
}

// scalar passes over a literal or number.
func (c *cursor) scalar(ch byte) {
	switch ch {
	case 't':
		c.literal("true")
	case 'f':
		c.literal("false")
	case 'n':
		c.literal("null")
	case '-', '0', '1', '2', '3', '4', '5', '6', '7', '8', '9':
		c.number()
	case 'N', 'I':
		c.unexpected(faultNaN)
	default:
		c.unexpected(faultSyntax)
	}
}

func (c *cursor) literal(word string) {
	if c.bad != faultNone {
		return
	}
	end := c.i + len(word)
	if end > len(c.b) || string(c.b[c.i:end]) != word {
		if rest := c.b[c.i:]; len(rest) < len(word) && string(rest) == word[:len(rest)] {
			c.i = len(c.b)
			c.fail(faultEnd)
			return
		}
		c.fail(faultLiteral)
		return
	}
	c.i = end
}

// number passes over a number and returns its text.
func (c *cursor) number() []byte {
	if c.bad != faultNone {
		return nil
	}
	start := c.i
	if c.peek() == '-' {
		c.i++
	}
	switch ch := c.peek(); {
	case ch == '0':
		c.i++
	case ch >= '1' && ch <= '9':
		c.digits()
	case ch == 'I':
		c.fail(faultNaN)
	default:
		c.unexpected(faultNumber)
	}
	if c.peek() == '.' {
		c.i++
		c.digits()
	}
	if ch := c.peek(); ch == 'e' || ch == 'E' {
		c.i++
		if ch := c.peek(); ch == '+' || ch == '-' {
			c.i++
		}
		c.digits()
	}
	return c.b[start:c.i]
}

// digits passes over at least one digit.
func (c *cursor) digits() {
	start := c.i
	for c.i < len(c.b) && c.b[c.i]-'0' <= 9 {
		c.i++
	}
	if c.i == start {
		c.unexpected(faultNumber)
	}
}

// str passes over a string. After a fault the token is that of an empty string.
func (c *cursor) str() token {
	if c.peek() != '"' {
		c.unexpected(faultSyntax)
		return token{}
	}
	t := token{start: c.i + 1}
	high, shrink := false, 0
	for i := c.i + 1; ; {
		i = plainASCII(c.b, i)
		if i >= len(c.b) {
			c.i = i
			c.fail(faultEnd)
			return token{}
		}
		switch ch := c.b[i]; {
		case ch == '"':
			c.i = i + 1
			t.end = i
			t.size = t.end - t.start - shrink
			if high && !c.validUTF8(t) {
				return token{}
			}
			return t
		case ch == '\\':
			t.escaped = true
			n, size, lone := escape(c.b[i:])
			if n == 0 {
				c.i = i
				c.fail(faultEscape)
				return token{}
			}
			t.lone = t.lone || lone
			shrink += n - size
			i += n
		case ch < 0x20:
			c.i = i
			c.fail(faultControl)
			return token{}
		default:
			high = true
			for i++; i < len(c.b) && c.b[i] >= 0x80; i++ {
			}
		}
	}
}

func (c *cursor) validUTF8(t token) bool {
	s := c.b[t.start:t.end]
	if utf8.Valid(s) {
		return true
	}
	for i := 0; i < len(s); {
		r, n := utf8.DecodeRune(s[i:])
		if r == utf8.RuneError && n == 1 {
			c.i = t.start + i
			break
		}
		i += n
	}
	c.fail(faultUTF8)
	return false
}

// plainASCII returns the offset of the first byte from i on that is a quote, a
// backslash, a control character or not ASCII. It looks at eight bytes at a
// time: a request's bytes are nearly all inside long strings.
func plainASCII(b []byte, i int) int {
	const (
		ones  = 0x0101010101010101
		highs = 0x8080808080808080
	)
	for ; i+8 <= len(b); i += 8 {
		w := binary.LittleEndian.Uint64(b[i:])
		// A borrow can only mark a byte above one that is marked rightly, so
		// the lowest mark is exact.
		quote := w ^ ones*'"'
		slash := w ^ ones*'\\'
		marks := ((quote - ones) &^ quote) | ((slash - ones) &^ slash) | ((w - ones*0x20) &^ w) | w
		if marks &= highs; marks != 0 {
			return i + bits.TrailingZeros64(marks)/8
		}
	}
	for ; i < len(b); i++ {
		if ch := b[i]; ch < 0x20 || ch == '"' || ch == '\\' || ch >= 0x80 {
			break
		}
	}
	return i
}

// escape measures the escape at the start of b, a surrogate pair being one:
// its bytes in the text (0 if it is not valid), those of the character it
// stands for, and whether it is a lone surrogate, which stands for U+FFFD.
func escape(b []byte) (n, size int, lone bool) {
	if len(b) < 2 {
		return 0, 0, false
	}
	switch b[1] {
	case '"', '\\', '/', 'b', 'f', 'n', 'r', 't':
		return 2, 1, false
	case 'u':
	default:
		return 0, 0, false
	}
	r, n := unicodeEscape(b)
	if n == 0 {
		return 0, 0, false
	}
	if r == utf8.RuneError && n == 6 && !isFFFD(b) {
		return n, 3, true
	}
	return n, utf8.RuneLen(r), false
}

// isFFFD tells whether the escape at the start of b spells U+FFFD itself.
func isFFFD(b []byte) bool {
	v, ok := hex4(b[2:])
	return ok && v == utf8.RuneError
}

// unicodeEscape decodes the \u escape, or the pair of them, at the start of b.
// It returns the length 0 if it is not valid.
func unicodeEscape(b []byte) (r rune, n int) {
	r, ok := hex4(b[2:])
	switch {
	case !ok:
		return 0, 0
	case r < 0xd800 || r > 0xdfff:
		return r, 6
	case r < 0xdc00 && len(b) >= 8 && b[6] == '\\' && b[7] == 'u':
		if low, ok := hex4(b[8:]); ok && low >= 0xdc00 && low <= 0xdfff {
			return (r-0xd800)<<10 | (low - 0xdc00) + 0x10000, 12
		}
	}
	return utf8.RuneError, 6
}

func hex4(b []byte) (rune, bool) {
	if len(b) < 4 {
		return 0, false
	}
	var r rune
	for _, ch := range b[:4] {
		switch {
		case ch >= '0' && ch <= '9':
			ch -= '0'
		case ch >= 'a' && ch <= 'f':
			ch -= 'a' - 10
		case ch >= 'A' && ch <= 'F':
			ch -= 'A' - 10
		default:
			return 0, false
		}
		r = r<<4 | rune(ch)
	}
	return r, true
}

// appendUnescaped appends the string that the bytes between two quotes stand
// for. They have been checked; a lone surrogate gives U+FFFD.
func appendUnescaped(dst, s []byte) []byte {
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
