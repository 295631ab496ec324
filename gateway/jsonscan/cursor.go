package jsonscan

import (
	"encoding/binary"
	"math/bits"
	"unicode/utf8"
)

const (
	// RequestDepth is how deep a request body may nest.
	RequestDepth = 128
	// AnswerDepth is how deep the answer of a worker may nest.
	AnswerDepth = 512
)

// Fault is what is wrong with a JSON text.
type Fault uint8

// The faults; their texts are below.
const (
	FaultNone Fault = iota
	FaultEmpty
	FaultBOM
	FaultEnd
	FaultTrailing
	FaultSyntax
	FaultComma
	FaultKey
	FaultColon
	FaultControl
	FaultEscape
	FaultUTF8
	FaultNumber
	FaultLiteral
	FaultNaN
	FaultDepth
)

// Cursor walks over a JSON text by the grammar of RFC 8259, strictly and
// without copying. Its first fault sticks: from then on it does not move, and
// Member and Element report the end, so that loops over them end.
//
// Every method leaves the cursor behind what it read. Methods that read a value
// expect it at the cursor, white space before it passed over, which is where
// Member and Element leave it.
type Cursor struct {
	B        []byte // the text
	I        int    // where the cursor stands
	MaxDepth int    // how deep the text may nest
	Bad      Fault  // what is wrong with it
	BadAt    int

	depth int
	first bool // the last step was Enter
}

// Token is a string in the text.
type Token struct {
	Start, End int  // what is between the quotes
	Size       int  // bytes of the string it stands for
	Escaped    bool // it has escapes
	Lone       bool // it has a surrogate that is not part of a pair
}

// Fail notes what is wrong at the cursor, unless something was wrong before.
func (c *Cursor) Fail(f Fault) {
	if c.Bad == FaultNone {
		c.Bad, c.BadAt = f, c.I
	}
}

// Unexpected fails with the fault f, or with the end of the text if that is it.
func (c *Cursor) Unexpected(f Fault) {
	if c.I >= len(c.B) {
		f = FaultEnd
	}
	c.Fail(f)
}

// Space passes over white space.
func (c *Cursor) Space() {
	for c.I < len(c.B) {
		switch c.B[c.I] {
		case ' ', '\n', '\r', '\t':
			c.I++
		default:
			return
		}
	}
}

// Peek returns the byte at the cursor, or 0 at the end or after a fault.
func (c *Cursor) Peek() byte {
	if c.Bad != FaultNone || c.I >= len(c.B) {
		return 0
	}
	return c.B[c.I]
}

// Document passes over what may come before the text's only value.
func (c *Cursor) Document() {
	if len(c.B) >= 3 && string(c.B[:3]) == "\xef\xbb\xbf" {
		c.Fail(FaultBOM)
		return
	}
	c.Space()
	if c.I == len(c.B) {
		c.Fail(FaultEmpty)
	}
}

// Finish checks that nothing comes after the text's only value.
func (c *Cursor) Finish() {
	if c.Bad != FaultNone {
		return
	}
	c.Space()
	if c.I < len(c.B) {
		c.Fail(FaultTrailing)
	}
}

// Enter passes over the bracket that opens an object or array.
func (c *Cursor) Enter() {
	if c.Bad != FaultNone {
		return
	}
	if c.depth >= c.MaxDepth {
		c.Fail(FaultDepth)
		return
	}
	c.depth++
	c.I++
	c.first = true
}

// Member moves to the value of an object's next member and returns its key; it
// reports false, behind the closing bracket, when there is none.
func (c *Cursor) Member() (key Token, ok bool) {
	if !c.next('}') {
		return Token{}, false
	}
	if c.Peek() != '"' {
		c.Unexpected(FaultKey)
		return Token{}, false
	}
	key = c.Str()
	if c.Bad != FaultNone {
		return Token{}, false
	}
	c.Space()
	if c.Peek() != ':' {
		c.Unexpected(FaultColon)
		return Token{}, false
	}
	c.I++
	c.Space()
	return key, true
}

// Element moves to an array's next element; it reports false, behind the
// closing bracket, when there is none.
func (c *Cursor) Element() bool { return c.next(']') }

func (c *Cursor) next(closing byte) bool {
	first := c.first
	c.first = false
	if c.Bad != FaultNone {
		return false
	}
	c.Space()
	switch ch := c.Peek(); {
	case ch == closing:
		c.I++
		c.depth--
		return false
	case first:
		if c.I >= len(c.B) {
			c.Fail(FaultEnd)
		}
	case ch == ',':
		c.I++
		c.Space()
	default:
		c.Unexpected(FaultComma)
	}
	return c.Bad == FaultNone
}

// Skip passes over a value of any kind.
func (c *Cursor) Skip() {
	switch ch := c.Peek(); ch {
	case '{':
		c.Enter()
		for _, ok := c.Member(); ok; _, ok = c.Member() {
			c.Skip()
		}
	case '[':
		c.Enter()
		for c.Element() {
			c.Skip()
		}
	case '"':
		c.Str()
	default:
		c.scalar(ch)
	}
}

// scalar passes over a literal or number.
func (c *Cursor) scalar(ch byte) {
	switch ch {
	case 't':
		c.literal("true")
	case 'f':
		c.literal("false")
	case 'n':
		c.literal("null")
	case '-', '0', '1', '2', '3', '4', '5', '6', '7', '8', '9':
		c.Number()
	case 'N', 'I':
		c.Unexpected(FaultNaN)
	default:
		c.Unexpected(FaultSyntax)
	}
}

func (c *Cursor) literal(word string) {
	if c.Bad != FaultNone {
		return
	}
	end := c.I + len(word)
	if end > len(c.B) || string(c.B[c.I:end]) != word {
		if rest := c.B[c.I:]; len(rest) < len(word) && string(rest) == word[:len(rest)] {
			c.I = len(c.B)
			c.Fail(FaultEnd)
			return
		}
		c.Fail(FaultLiteral)
		return
	}
	c.I = end
}

// Number passes over a number and returns its text.
func (c *Cursor) Number() []byte {
	if c.Bad != FaultNone {
		return nil
	}
	start := c.I
	if c.Peek() == '-' {
		c.I++
	}
	switch ch := c.Peek(); {
	case ch == '0':
		c.I++
	case ch >= '1' && ch <= '9':
		c.digits()
	case ch == 'I':
		c.Fail(FaultNaN)
	default:
		c.Unexpected(FaultNumber)
	}
	if c.Peek() == '.' {
		c.I++
		c.digits()
	}
	if ch := c.Peek(); ch == 'e' || ch == 'E' {
		c.I++
		if ch := c.Peek(); ch == '+' || ch == '-' {
			c.I++
		}
		c.digits()
	}
	return c.B[start:c.I]
}

// digits passes over at least one digit.
func (c *Cursor) digits() {
	start := c.I
	for c.I < len(c.B) && c.B[c.I]-'0' <= 9 {
		c.I++
	}
	if c.I == start {
		c.Unexpected(FaultNumber)
	}
}

// Str passes over a string. After a fault the token is that of an empty string.
func (c *Cursor) Str() Token {
	if c.Peek() != '"' {
		c.Unexpected(FaultSyntax)
		return Token{}
	}
	t := Token{Start: c.I + 1}
	high, shrink := false, 0
	for i := c.I + 1; ; {
		i = plainASCII(c.B, i)
		if i >= len(c.B) {
			c.I = i
			c.Fail(FaultEnd)
			return Token{}
		}
		switch ch := c.B[i]; {
		case ch == '"':
			c.I = i + 1
			t.End = i
			t.Size = t.End - t.Start - shrink
			if high && !c.validUTF8(t) {
				return Token{}
			}
			return t
		case ch == '\\':
			t.Escaped = true
			n, size, lone := escape(c.B[i:])
			if n == 0 {
				c.I = i
				c.Fail(FaultEscape)
				return Token{}
			}
			t.Lone = t.Lone || lone
			shrink += n - size
			i += n
		case ch < 0x20:
			c.I = i
			c.Fail(FaultControl)
			return Token{}
		default:
			high = true
			for i++; i < len(c.B) && c.B[i] >= 0x80; i++ {
			}
		}
	}
}

func (c *Cursor) validUTF8(t Token) bool {
	s := c.B[t.Start:t.End]
	if utf8.Valid(s) {
		return true
	}
	for i := 0; i < len(s); {
		r, n := utf8.DecodeRune(s[i:])
		if r == utf8.RuneError && n == 1 {
			c.I = t.Start + i
			break
		}
		i += n
	}
	c.Fail(FaultUTF8)
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
