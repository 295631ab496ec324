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
func (fr *framer) pass(p []byte) int {
	kept := 0
	for i := 0; i < len(p); {
		if n := fr.skip(p[i:]); n > 0 {
			if kept != i {
				copy(p[kept:], p[i:i+n])
			}
			kept += n
			i += n
			continue
		}
		c, keep := fr.step(p[i])
		if fr.fault != nil {
			break
		}
		if keep {
			p[kept] = c
			kept++
			fr.passed = fr.at != atStart
		}
		i++
	}
	return kept
}

// skip returns how many bytes at the beginning of p need no look of their own.
func (fr *framer) skip(p []byte) int {
	switch fr.at {
	case atBody, atChunk:
		n := int(min(int64(len(p)), fr.left))
		if fr.left -= int64(n); fr.left == 0 {
			if fr.at == atChunk {
				fr.at = atChunkEnd
			} else {
				fr.end()
			}
		}
		return n
	case atValue:
		if fr.frames() {
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
func (fr *framer) step(c byte) (out byte, keep bool) {
	switch {
	case fr.at <= atStartLF:
		return c, fr.stepStart(c)
	case fr.at <= atLineLF:
		return fr.stepLine(c), true
	case fr.at <= atEndLF:
		fr.stepHeader(c)
	default:
		fr.stepChunk(c)
	}
	return c, true
}

// stepStart drops one blank line before a request: old clients send one behind a
// body, and it is no sign of another request.
func (fr *framer) stepStart(c byte) (keep bool) {
	switch {
	case fr.at == atStart && c == '\r' && !fr.blank:
		fr.at, fr.blank = atStartLF, true
		return false
	case fr.at == atStartLF && c == '\n':
		fr.at = atStart
		return false
	case fr.at == atStart && isToken(c):
		fr.at, fr.line = atMethod, 1
		fr.target.n, fr.version.n, fr.trailer, fr.extra = 0, 0, false, 0
		fr.framing = framing{}
		return true
	}
	fr.refuse("the request does not begin with a request line")
	return false
}

// stepLine takes a byte of the request line.
func (fr *framer) stepLine(c byte) byte {
	if fr.line++; fr.line > maxRequestLine+1 && c != '\n' {
		fr.fault = uriTooLong()
		return c
	}
	switch fr.at {
	case atMethod:
		switch {
		case c == ' ':
			fr.at = atTarget
		case !isToken(c):
			fr.refuse("the request's method is not a word")
		}
	case atTarget:
		switch {
		case c == ' ' && fr.target.n > 0:
			fr.at = atVersion
		case c <= ' ' || c == 0x7f:
			fr.refuse("the request line must be a method, a target and a version with single spaces between them")
		default:
			fr.target.add(c)
		}
	case atVersion:
		if c == '\r' {
			fr.at = atLineLF
			fr.judgeVersion()
			break
		}
		if c <= ' ' || c == 0x7f {
			fr.refuse("the request line must be a method, a target and a version with single spaces between them, and end in CR LF")
			break
		}
		fr.version.add(c)
		if fr.version.n == len("HTTP/1.x") && c > '1' && c <= '9' && bytes.HasPrefix(fr.version.kept[:], []byte("HTTP/1.")) {
			return '1' // a later minor version is answered as 1.1
		}
	default:
		fr.at = atHeader
		fr.mustBeLF(c)
	}
	return c
}

// judgeVersion looks at the version of a complete request line.
func (fr *framer) judgeVersion() {
	var buf [9]byte
	v, ok := bytes.CutPrefix(fr.version.whole(buf[:0]), []byte("HTTP/"))
	switch {
	case ok && len(v) == 3 && v[0] == '1' && v[1] == '.' && isDigit(v[2]):
		fr.framing.old = v[2] == '0'
	case ok && (len(v) == 1 || len(v) == 3 && v[1] == '.' && isDigit(v[2])) && isDigit(v[0]) && v[0] != '1':
		fr.fault = badVersion()
	default:
		fr.refuse("the request line does not end in a version of HTTP")
	}
}

// stepHeader takes a byte of the header lines, or of the lines behind a chunked body.
func (fr *framer) stepHeader(c byte) {
	switch fr.at {
	case atHeader:
		switch {
		case c == '\r':
			fr.at = atEndLF
		case c == ' ' || c == '\t':
			fr.refuse("a header is folded over more than one line")
		case !isToken(c):
			fr.refuse("a header has no name, or its line doesn't end in CR LF")
		default:
			fr.at, fr.name.n, fr.value.n = atName, 0, 0
			fr.name.add(c)
		}
	case atName:
		switch {
		case c == ':':
			fr.at = atValue
		case isToken(c):
			fr.name.add(c)
		case c == ' ' || c == '\t':
			fr.refuse("a header's name has a space in it")
		default:
			fr.refuse("a header's name has a character in it that names don't have")
		}
	case atValue:
		switch {
		case c == '\r':
			fr.at = atValueLF
		case !isValueByte(c):
			fr.refuse("a header has a control character in it, or its line doesn't end in CR LF")
		default:
			fr.value.add(c)
		}
	case atValueLF:
		fr.at = atHeader
		if fr.mustBeLF(c) && fr.frames() {
			fr.note()
		}
	case atEndLF:
		if !fr.mustBeLF(c) {
			return
		}
		if fr.trailer {
			fr.end()
			return
		}
		fr.beginBody()
	}
}

// frames reports whether the header under way says where the body ends.
func (fr *framer) frames() bool {
	return !fr.trailer && (fr.name.n == len("Content-Length") || fr.name.n == len("Transfer-Encoding")) &&
		(fr.named("Content-Length") || fr.named("Transfer-Encoding"))
}

func (fr *framer) named(name string) bool {
	return fr.name.n == len(name) && bytes.EqualFold(fr.name.kept[:len(name)], []byte(name))
}

// note keeps what a header says of the body.
func (fr *framer) note() {
	var buf [64]byte
	v := bytes.Trim(fr.value.whole(buf[:0]), " \t")
	f := &fr.framing
	if fr.named("Content-Length") {
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
func (fr *framer) beginBody() {
	switch f := &fr.framing; {
	case f.lengths > 0 && f.codings > 0:
		fr.refuse("the request has both a Content-Length and a Transfer-Encoding")
	case f.lengths > 1:
		fr.refuse("the request has more than one Content-Length")
	case f.badLength:
		fr.refuse("the Content-Length is not a number")
	case f.codings > 0 && f.old:
		fr.refuse("HTTP/1.0 has no Transfer-Encoding")
	case f.codings > 0 && !f.chunked && f.known:
		fr.fault = badFraming(fasthttp.StatusNotImplemented, "unsupported_transfer_coding", "the only transfer coding is chunked")
		fr.fault.noRetry = true
	case f.codings > 0 && !f.chunked:
		fr.refuse("the only transfer coding is chunked")
	case f.codings > 0:
		fr.at, fr.line, fr.left = atChunkSize, 0, 0
	case f.length > 0:
		fr.at, fr.left = atBody, f.length
	default:
		fr.end()
	}
}

// stepChunk takes a byte of a chunk's frame.
func (fr *framer) stepChunk(c byte) {
	switch fr.at {
	case atChunkSize:
		fr.line++
		switch digit := hexDigit(c); {
		case digit >= 0 && fr.line <= maxChunkHex:
			fr.left = fr.left<<4 | int64(digit)
		case digit >= 0:
			fr.refuse("a chunk's size is too large")
		case fr.line == 1:
			fr.refuse("a chunk has no size")
		case c == ' ' || c == '\t':
			fr.at = atChunkPad
		case c == ';':
			fr.at = atExtension
		default:
			fr.endChunkLine(c)
		}
	case atChunkPad:
		if fr.line++; fr.line > maxChunkLine && c != '\r' {
			fr.refuse("a chunk's line is longer than 4 KiB")
		} else if c != ' ' && c != '\t' {
			fr.endChunkLine(c)
		}
	case atExtension:
		fr.line++
		fr.extra++
		switch {
		case c == '\r':
			fr.at = atChunkLF
		case fr.line > maxChunkLine:
			fr.refuse("a chunk's line is longer than 4 KiB")
		case fr.extra > maxExtensions:
			fr.refuse("the chunk extensions are longer than 16 KiB")
		case !isValueByte(c):
			fr.endChunkLine(c)
		}
	case atChunkLF:
		if !fr.mustBeLF(c) {
			return
		}
		if fr.at = atChunk; fr.left == 0 {
			fr.at, fr.trailer = atHeader, true
		}
	case atChunkEnd:
		if fr.at = atChunkEndLF; c != '\r' {
			fr.refuse("a chunk is longer than its size")
		}
	default:
		fr.at, fr.line, fr.left = atChunkSize, 0, 0
		fr.mustBeLF(c)
	}
}

func (fr *framer) endChunkLine(c byte) {
	if fr.at = atChunkLF; c != '\r' {
		fr.refuse("a chunk's size is not a number, or its line doesn't end in CR LF")
	}
}

// end notes that a request is complete.
func (fr *framer) end() { fr.at, fr.passed, fr.blank = atStart, false, false }

func (fr *framer) mustBeLF(c byte) bool {
	if c != '\n' {
		fr.refuse("a line has a bare CR in it")
	}
	return c == '\n'
}

func (fr *framer) refuse(message string) { fr.fault = invalidFraming(message) }

// dialect is whose error body the request at fault expects, by what is known of its
// target.
func (fr *framer) dialect() dialect {
	_, d := findRoute(fr.target.kept[:min(fr.target.n, len(fr.target.kept))])
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
