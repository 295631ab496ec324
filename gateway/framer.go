package gateway

import (
	"bytes"

	"github.com/valyala/fasthttp"
)

// framer follows the bytes of one connection before the server has them, and lets
// none pass that two readers could understand differently. It keeps no bytes but a
// few of the line under way, so it costs a connection nothing to speak of.
//
// The server's own parser is lenient where the contract is not: it takes a bare LF
// for the end of the request line, skips any number of blank lines, reads chunk
// extensions without end, and forgets what the request line said. What framer lets
// pass is a sequence of requests whose ends both of them see at the same place. Once
// there is a fault nothing more is passed on, so nothing behind it can be a request.
//
// The zero value is ready for use, once headerBytes is set. Only the connection's
// reader uses it.
type framer struct {
	at    framerState
	fault *rejection // what to answer; nil as long as all is well

	passed  bool  // a byte of the present request has been let pass
	blank   bool  // the one blank line that may stand before a request has come
	trailer bool  // the lines are those behind a chunked body
	left    int64 // of the body or the chunk
	line    int   // bytes of the request line, or of the chunk's line
	extra   int   // bytes of chunk extensions in this request

	target  shortText[[64]byte]
	version shortText[[9]byte]
	name    shortText[[18]byte]
	value   shortText[[64]byte] // of a header that frames
	framing framing
}

// framing is what a request's headers have said of its body.
type framing struct {
	lengths, codings int
	length           int64
	badLength        bool
	chunked, known   bool // as the only coding; all are known codings
	old              bool // HTTP/1.0
}

// Bounds of the chunk lines of a body (contract 2.1).
const (
	maxChunkLine  = 4 << 10
	maxExtensions = 16 << 10
	maxChunkHex   = 15 // digits; as many as the server reads
)

type framerState uint8

// The states are named for what comes next.
const (
	atStart framerState = iota
	atStartLF
	atMethod
	atTarget
	atVersion
	atLineLF
	atHeader
	atName
	atValue
	atValueLF
	atEndLF
	atBody
	atChunkSize
	atChunkPad
	atExtension
	atChunkLF
	atChunk
	atChunkEnd
	atChunkEndLF
)

// shortText keeps the first bytes of a text and counts all of them.
type shortText[A [9]byte | [18]byte | [64]byte] struct {
	kept A
	n    int
}

func (s *shortText[A]) add(c byte) {
	if s.n < len(s.kept) {
		s.kept[s.n] = c
	}
	s.n++
}

// whole returns the text, or nil if it was too long to be kept.
func (s *shortText[A]) whole(buf []byte) []byte {
	if s.n > len(s.kept) {
		return nil
	}
	for i := range s.n {
		buf = append(buf, s.kept[i])
	}
	return buf
}

// pass looks at what has come and returns how many bytes at the beginning of p the
// server may have; it may move bytes within p to drop a blank line.
func (g *framer) pass(p []byte) int {
	kept := 0
	for i := 0; i < len(p); {
		if n := g.skip(p[i:]); n > 0 {
			if kept != i {
				copy(p[kept:], p[i:i+n])
			}
			kept += n
			i += n
			continue
		}
		c, keep := g.step(p[i])
		if g.fault != nil {
			break
		}
		if keep {
			p[kept] = c
			kept++
			g.passed = g.at != atStart
		}
		i++
	}
	return kept
}

// skip returns how many bytes at the beginning of p need no look of their own.
func (g *framer) skip(p []byte) int {
	switch g.at {
	case atBody, atChunk:
		n := int(min(int64(len(p)), g.left))
		if g.left -= int64(n); g.left == 0 {
			if g.at == atChunk {
				g.at = atChunkEnd
			} else {
				g.end()
			}
		}
		return n
	case atValue:
		if g.frames() {
			return 0
		}
		n := 0
		for n < len(p) && isValueByte(p[n]) {
			n++
		}
		return n
	}
	return 0
}

// step takes one byte. It returns the byte to pass on, if keep is true.
func (g *framer) step(c byte) (out byte, keep bool) {
	switch {
	case g.at <= atStartLF:
		return c, g.stepStart(c)
	case g.at <= atLineLF:
		return g.stepLine(c), true
	case g.at <= atEndLF:
		g.stepHeader(c)
	default:
		g.stepChunk(c)
	}
	return c, true
}

// stepStart drops one blank line before a request: old clients send one behind a
// body, and it is no sign of another request.
func (g *framer) stepStart(c byte) (keep bool) {
	switch {
	case g.at == atStart && c == '\r' && !g.blank:
		g.at, g.blank = atStartLF, true
		return false
	case g.at == atStartLF && c == '\n':
		g.at = atStart
		return false
	case g.at == atStart && isToken(c):
		g.at, g.line = atMethod, 1
		g.target.n, g.version.n, g.trailer, g.extra = 0, 0, false, 0
		g.framing = framing{}
		return true
	}
	g.refuse("the request does not begin with a request line")
	return false
}

// stepLine takes a byte of the request line.
func (g *framer) stepLine(c byte) byte {
	if g.line++; g.line > maxRequestLine+1 && c != '\n' {
		g.fault = uriTooLong()
		return c
	}
	switch g.at {
	case atMethod:
		switch {
		case c == ' ':
			g.at = atTarget
		case !isToken(c):
			g.refuse("the request's method is not a word")
		}
	case atTarget:
		switch {
		case c == ' ' && g.target.n > 0:
			g.at = atVersion
		case c <= ' ' || c == 0x7f:
			g.refuse("the request line must be a method, a target and a version with single spaces between them")
		default:
			g.target.add(c)
		}
	case atVersion:
		if c == '\r' {
			g.at = atLineLF
			g.judgeVersion()
			break
		}
		if c <= ' ' || c == 0x7f {
			g.refuse("the request line must be a method, a target and a version with single spaces between them, and end in CR LF")
			break
		}
		g.version.add(c)
		if g.version.n == len("HTTP/1.x") && c > '1' && c <= '9' && bytes.HasPrefix(g.version.kept[:], []byte("HTTP/1.")) {
			return '1' // a later minor version is answered as 1.1
		}
	default:
		g.at = atHeader
		g.mustBeLF(c)
	}
	return c
}

// judgeVersion looks at the version of a complete request line.
func (g *framer) judgeVersion() {
	var buf [9]byte
	v, ok := bytes.CutPrefix(g.version.whole(buf[:0]), []byte("HTTP/"))
	switch {
	case ok && len(v) == 3 && v[0] == '1' && v[1] == '.' && isDigit(v[2]):
		g.framing.old = v[2] == '0'
	case ok && (len(v) == 1 || len(v) == 3 && v[1] == '.' && isDigit(v[2])) && isDigit(v[0]) && v[0] != '1':
		g.fault = badVersion()
	default:
		g.refuse("the request line does not end in a version of HTTP")
	}
}

// stepHeader takes a byte of the header lines, or of the lines behind a chunked body.
func (g *framer) stepHeader(c byte) {
	switch g.at {
	case atHeader:
		switch {
		case c == '\r':
			g.at = atEndLF
		case c == ' ' || c == '\t':
			g.refuse("a header is folded over more than one line")
		case !isToken(c):
			g.refuse("a header has no name, or its line doesn't end in CR LF")
		default:
			g.at, g.name.n, g.value.n = atName, 0, 0
			g.name.add(c)
		}
	case atName:
		switch {
		case c == ':':
			g.at = atValue
		case isToken(c):
			g.name.add(c)
		case c == ' ' || c == '\t':
			g.refuse("a header's name has a space in it")
		default:
			g.refuse("a header's name has a character in it that names don't have")
		}
	case atValue:
		switch {
		case c == '\r':
			g.at = atValueLF
		case !isValueByte(c):
			g.refuse("a header has a control character in it, or its line doesn't end in CR LF")
		default:
			g.value.add(c)
		}
	case atValueLF:
		g.at = atHeader
		if g.mustBeLF(c) && g.frames() {
			g.note()
		}
	case atEndLF:
		if !g.mustBeLF(c) {
			return
		}
		if g.trailer {
			g.end()
			return
		}
		g.beginBody()
	}
}

// frames reports whether the header under way says where the body ends.
func (g *framer) frames() bool {
	return !g.trailer && (g.name.n == len("Content-Length") || g.name.n == len("Transfer-Encoding")) &&
		(g.named("Content-Length") || g.named("Transfer-Encoding"))
}

func (g *framer) named(name string) bool {
	return g.name.n == len(name) && bytes.EqualFold(g.name.kept[:len(name)], []byte(name))
}

// note keeps what a header says of the body.
func (g *framer) note() {
	var buf [64]byte
	v := bytes.Trim(g.value.whole(buf[:0]), " \t")
	f := &g.framing
	if g.named("Content-Length") {
		f.lengths++
		n, err := fasthttp.ParseUint(v)
		f.length, f.badLength = int64(n), f.badLength || err != nil
		return
	}
	f.codings++
	f.chunked = f.codings == 1 && bytes.EqualFold(v, []byte("chunked"))
	f.known = f.codings == 1 && knownCodings(v)
}

// knownCodings reports whether a list of transfer codings is one that another server
// might take: registered codings, of which chunked can only be the last.
func knownCodings(list []byte) bool {
	for {
		coding, rest, more := bytes.Cut(list, []byte(","))
		switch string(bytes.ToLower(bytes.Trim(coding, " \t"))) {
		case "gzip", "x-gzip", "deflate", "compress", "x-compress":
		case "chunked":
			return !more
		default:
			return false
		}
		if !more {
			return true
		}
		list = rest
	}
}

// beginBody judges the headers, now that there are no more of them.
func (g *framer) beginBody() {
	switch f := &g.framing; {
	case f.lengths > 0 && f.codings > 0:
		g.refuse("the request has both a Content-Length and a Transfer-Encoding")
	case f.lengths > 1:
		g.refuse("the request has more than one Content-Length")
	case f.badLength:
		g.refuse("the Content-Length is not a number")
	case f.codings > 0 && f.old:
		g.refuse("HTTP/1.0 has no Transfer-Encoding")
	case f.codings > 0 && !f.chunked && f.known:
		g.fault = badFraming(fasthttp.StatusNotImplemented, "unsupported_transfer_coding", "the only transfer coding is chunked")
		g.fault.noRetry = true
	case f.codings > 0 && !f.chunked:
		g.refuse("the only transfer coding is chunked")
	case f.codings > 0:
		g.at, g.line, g.left = atChunkSize, 0, 0
	case f.length > 0:
		g.at, g.left = atBody, f.length
	default:
		g.end()
	}
}

// stepChunk takes a byte of a chunk's frame.
func (g *framer) stepChunk(c byte) {
	switch g.at {
	case atChunkSize:
		g.line++
		switch digit := hexDigit(c); {
		case digit >= 0 && g.line <= maxChunkHex:
			g.left = g.left<<4 | int64(digit)
		case digit >= 0:
			g.refuse("a chunk's size is too large")
		case g.line == 1:
			g.refuse("a chunk has no size")
		case c == ' ' || c == '\t':
			g.at = atChunkPad
		case c == ';':
			g.at = atExtension
		default:
			g.endChunkLine(c)
		}
	case atChunkPad:
		if g.line++; g.line > maxChunkLine && c != '\r' {
			g.refuse("a chunk's line is longer than 4 KiB")
		} else if c != ' ' && c != '\t' {
			g.endChunkLine(c)
		}
	case atExtension:
		g.line++
		g.extra++
		switch {
		case c == '\r':
			g.at = atChunkLF
		case g.line > maxChunkLine:
			g.refuse("a chunk's line is longer than 4 KiB")
		case g.extra > maxExtensions:
			g.refuse("the chunk extensions are longer than 16 KiB")
		case !isValueByte(c):
			g.endChunkLine(c)
		}
	case atChunkLF:
		if !g.mustBeLF(c) {
			return
		}
		if g.at = atChunk; g.left == 0 {
			g.at, g.trailer = atHeader, true
		}
	case atChunkEnd:
		if g.at = atChunkEndLF; c != '\r' {
			g.refuse("a chunk is longer than its size")
		}
	default:
		g.at, g.line, g.left = atChunkSize, 0, 0
		g.mustBeLF(c)
	}
}

func (g *framer) endChunkLine(c byte) {
	if g.at = atChunkLF; c != '\r' {
		g.refuse("a chunk's size is not a number, or its line doesn't end in CR LF")
	}
}

// end notes that a request is complete.
func (g *framer) end() { g.at, g.passed, g.blank = atStart, false, false }

func (g *framer) mustBeLF(c byte) bool {
	if c != '\n' {
		g.refuse("a line has a bare CR in it")
	}
	return c == '\n'
}

func (g *framer) refuse(message string) { g.fault = invalidFraming(message) }

// dialect is whose error body the request at fault expects, by what is known of its
// target.
func (g *framer) dialect() dialect {
	_, d := findRoute(g.target.kept[:min(g.target.n, len(g.target.kept))])
	return d
}

func isDigit(c byte) bool { return c >= '0' && c <= '9' }

func hexDigit(c byte) int {
	switch {
	case isDigit(c):
		return int(c - '0')
	case c|0x20 >= 'a' && c|0x20 <= 'f':
		return int(c|0x20-'a') + 10
	}
	return -1
}

// isToken reports whether c may stand in a method or a header's name.
func isToken(c byte) bool { return tokenBytes[c] }

var tokenBytes = func() (set [256]bool) {
	for c := range len(set) {
		set[c] = isAlnum(byte(c))
	}
	for _, c := range "!#$%&'*+-.^_`|~" {
		set[c] = true
	}
	return set
}()

// isValueByte reports whether c may stand in a header's value.
func isValueByte(c byte) bool { return c >= ' ' && c != 0x7f || c == '\t' }
