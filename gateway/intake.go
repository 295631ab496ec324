package gateway

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"net"
	"sync"

	"github.com/valyala/fasthttp"
)

// intake holds the bytes that have come on a connection and belong to no request
// yet. It has memory only while there are such bytes, or a head is being looked at.
type intake struct {
	buf   []byte
	r, w  int     // what has come is buf[r:w]
	small *[]byte // what buf is, if it is of intakes
	one   [1]byte // for the first byte, which is waited for without memory
}

// smallIntake has room for the head of nearly every request.
const smallIntake = 4 << 10

var intakes = sync.Pool{New: func() any { b := make([]byte, smallIntake); return &b }}

func (in *intake) empty() bool { return in.r == in.w }

// bytes is what has come, valid until the next call but take and give back.
func (in *intake) bytes() []byte { return in.buf[in.r:in.w] }

// take counts the first n bytes as used.
func (in *intake) take(n int) { in.r += n }

// readFirst waits for a byte; nothing else must be there.
func (in *intake) readFirst(nc net.Conn) error {
	for {
		n, err := nc.Read(in.one[:])
		if n > 0 {
			in.reserve(smallIntake)
			in.buf[0], in.r, in.w = in.one[0], 0, 1
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// fill waits for more bytes, and takes no more memory than for limit of them.
func (in *intake) fill(nc net.Conn, limit int) error {
	if in.w == len(in.buf) {
		in.reserve(max(smallIntake, min(2*(in.w-in.r), limit)))
	}
	n, err := nc.Read(in.buf[in.w:])
	in.w += n
	if n > 0 {
		return nil
	}
	return err
}

// reserve makes room for n bytes in all, the first of which are those that have
// come.
func (in *intake) reserve(n int) {
	have, small := in.bytes(), in.small
	switch {
	case n > len(in.buf) && n <= smallIntake:
		in.small = intakes.Get().(*[]byte)
		in.buf = *in.small
	case n > len(in.buf):
		in.small, in.buf = nil, make([]byte, n)
	}
	in.r, in.w = 0, copy(in.buf, have)
	if small != nil && small != in.small {
		intakes.Put(small) // not before its bytes are copied: another connection may have it at once
	}
}

// unread puts bytes back that came after the end of a body; nothing else is there.
func (in *intake) unread(p []byte) {
	if len(p) == 0 {
		return
	}
	in.r, in.w = 0, 0
	in.reserve(max(len(p), smallIntake))
	in.w = copy(in.buf, p)
}

// shrink gives the memory back, if nothing is in it.
func (in *intake) shrink() {
	if in.empty() {
		in.drop()
	}
}

// drop forgets what has come.
func (in *intake) drop() {
	in.giveBack()
	in.buf, in.r, in.w = nil, 0, 0
}

func (in *intake) giveBack() {
	if in.small != nil {
		intakes.Put(in.small)
		in.small = nil
	}
}

// headScan looks for the end of a head in bytes that come in pieces.
type headScan struct {
	pos, line int  // where to go on, and where the line there begins
	began     bool // a line that is not blank has been seen
}

// find returns the length of the head at the beginning of b, its blank line and
// blank lines before it included; 0 if its end has not come yet. A line ends at
// LF, with CR before it or without: that it must be both is for the framer to say.
func (s *headScan) find(b []byte) int {
	for {
		i := bytes.IndexByte(b[s.pos:], '\n')
		if i < 0 {
			s.pos = len(b)
			return 0
		}
		line := bytes.TrimSuffix(b[s.line:s.pos+i], []byte("\r"))
		s.pos += i + 1
		s.line = s.pos
		switch {
		case len(line) > 0:
			s.began = true
		case s.began:
			return s.pos
		}
	}
}

// errHeadTooLarge is a head over the limit.
var errHeadTooLarge = errors.New("the head is over the limit")

// readHead reads the next request's head into h.
func (s *session) readHead(h *fasthttp.RequestHeader) error {
	limit := s.g.cfg.HeaderBytes
	for scan := (headScan{}); ; {
		n := scan.find(s.in.bytes())
		if n > limit {
			return errHeadTooLarge
		}
		if n > 0 {
			head := s.in.bytes()[:n]
			s.in.take(n)
			return parseHead(h, head)
		}
		if len(s.in.bytes()) >= limit {
			return errHeadTooLarge
		}
		if err := s.in.fill(s.nc, limit); err != nil {
			return err
		}
	}
}

// headReader lends the library's parser what it reads from.
type headReader struct {
	bytes bytes.Reader
	buf   *bufio.Reader
}

var headReaders = sync.Pool{New: func() any {
	r := new(headReader)
	r.buf = bufio.NewReaderSize(&r.bytes, smallIntake)
	return r
}}

// errHeadsDiffer is a head whose end the library sees elsewhere.
var errHeadsDiffer = errors.New("the head ends in more than one place")

// parseHead parses a whole head.
func parseHead(h *fasthttp.RequestHeader, head []byte) error {
	r := headReaders.Get().(*headReader)
	defer func() {
		r.bytes.Reset(nil)
		headReaders.Put(r)
	}()
	r.bytes.Reset(head)
	buf := r.buf
	if len(head) > buf.Size() {
		buf = bufio.NewReaderSize(&r.bytes, len(head))
	} else {
		buf.Reset(&r.bytes)
	}
	if err := h.Read(buf); err != nil {
		return err
	}
	if buf.Buffered()+r.bytes.Len() > 0 {
		return errHeadsDiffer
	}
	return nil
}

// requestBody reads one request's body from its connection.
type requestBody struct {
	s      *session
	left   int64         // bytes still announced, without chunks
	chunks *chunkDecoder // nil if the body has a length
	err    error         // why nothing more comes; io.EOF at the body's end
}

// ended reports whether the body was read to its end.
func (b *requestBody) ended() bool { return errors.Is(b.err, io.EOF) || b.chunks == nil && b.left == 0 }

// maxRead bounds what is read of chunks at once, since what comes behind their end
// has to be put back.
const maxRead = 16 << 10

// Read implements io.Reader. A body that is cut short ends in io.ErrUnexpectedEOF.
func (b *requestBody) Read(p []byte) (n int, err error) {
	for b.err == nil && n == 0 && len(p) > 0 {
		switch {
		case b.chunks != nil:
			n, b.err = b.readChunks(p[:min(len(p), maxRead)])
		case b.left > 0:
			n, b.err = b.readSome(p[:min(int64(len(p)), b.left)])
			b.left -= int64(n)
		}
		if b.chunks == nil && b.left == 0 {
			b.err = io.EOF
		}
	}
	return n, b.err
}

// readSome reads what has come already, or else from the connection.
func (b *requestBody) readSome(p []byte) (int, error) {
	if in := &b.s.in; !in.empty() {
		n := copy(p, in.bytes())
		in.take(n)
		return n, nil
	}
	n, err := b.s.nc.Read(p)
	if errors.Is(err, io.EOF) {
		err = io.ErrUnexpectedEOF
	}
	return n, err
}

func (b *requestBody) readChunks(p []byte) (int, error) {
	n, err := b.readSome(p)
	data, used, cerr := b.chunks.decode(p[:n])
	if b.chunks.done() {
		b.putBack(p[used:n])
		cerr, err = io.EOF, nil
	}
	if cerr != nil {
		err = cerr
	}
	return copy(p, data), err
}

// putBack returns bytes that belong to the next request.
func (b *requestBody) putBack(p []byte) {
	if in := &b.s.in; in.empty() {
		in.unread(p)
	} else {
		in.r -= len(p) // they came from there, and there are more
	}
}
