package gateway

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"net"
	"sync"
	"syscall"
	"time"

	"github.com/valyala/fasthttp"
	"golang.org/x/sys/unix"
)

// Memory for what a worker sends is taken when it has come, not while it is waited
// for: of a stream that waits nothing is held. TLS has to be given memory to wait
// with; it gets less.
const (
	readSize       = 16 << 10 // read at once
	readSizeTLS    = 4 << 10
	upstreamHeader = 16 << 10 // the longest header of a worker's answer
)

var (
	readPool    = sync.Pool{New: func() any { b := make([]byte, readSize); return &b }}
	readPoolTLS = sync.Pool{New: func() any { b := make([]byte, readSizeTLS); return &b }}
	// headPool has readers for headers of answers.
	headPool = sync.Pool{New: func() any { return bufio.NewReaderSize(nil, upstreamHeader) }}
)

// socket reads from a connection in the clear with memory that is taken once there is
// something to read. Its zero value belongs to a connection that can't do that.
type socket struct {
	raw  syscall.RawConn
	recv func(fd uintptr) bool // receive, kept so that no call allocates
	peek func(fd uintptr) bool

	memory *[]byte // of readPool, with what receive has got
	n      int
	err    error
}

func (s *socket) open(nc net.Conn) {
	tcp, ok := nc.(*net.TCPConn)
	if !ok {
		return
	}
	raw, err := tcp.SyscallConn()
	if err != nil {
		return
	}
	s.raw, s.recv, s.peek = raw, s.receive, s.look
}

// receive is called when there may be something to read, and reports whether it is
// done.
func (s *socket) receive(fd uintptr) bool {
	s.memory = readPool.Get().(*[]byte)
	s.n, s.err = ignoringEINTR(func() (int, error) { return unix.Read(int(fd), *s.memory) })
	if errors.Is(s.err, unix.EAGAIN) {
		readPool.Put(s.memory)
		s.memory = nil
		return false
	}
	return true
}

// look is receive for those who only want to know.
func (s *socket) look(fd uintptr) bool {
	var b [1]byte
	s.n, s.err = ignoringEINTR(func() (int, error) {
		n, _, err := unix.Recvfrom(int(fd), b[:], unix.MSG_PEEK|unix.MSG_DONTWAIT)
		return n, err
	})
	return !errors.Is(s.err, unix.EAGAIN)
}

func ignoringEINTR(f func() (int, error)) (int, error) {
	for {
		if n, err := f(); !errors.Is(err, unix.EINTR) {
			return n, err
		}
	}
}

// wait calls f, which is recv or peek, until it is done or the read deadline passes.
func (s *socket) wait(f func(fd uintptr) bool) error {
	if err := s.raw.Read(f); err != nil {
		return err
	}
	switch {
	case s.err != nil:
		return &net.OpError{Op: "read", Net: "tcp", Err: s.err}
	case s.n == 0:
		return io.EOF
	}
	return nil
}

// hear blocks until a byte of the answer has come or the deadline passes, and
// consumes nothing.
func (c *upstream) hear(until time.Time) error {
	if c.buffered() > 0 {
		return nil
	}
	if err := c.SetReadDeadline(until); err != nil {
		return err
	}
	if c.socket.raw != nil {
		return c.socket.wait(c.socket.peek)
	}
	_, err := c.reader().Peek(1)
	return err
}

// reader lends the connection a reader, which it has until settle.
func (c *upstream) reader() *bufio.Reader {
	if c.br == nil {
		c.br = headPool.Get().(*bufio.Reader)
		c.br.Reset(c.Conn)
	}
	return c.br
}

// settle gives the reader back if nothing is left in it.
func (c *upstream) settle() {
	if c.br != nil && c.br.Buffered() == 0 {
		c.br.Reset(nil)
		headPool.Put(c.br)
		c.br = nil
	}
}

// buffered is how many bytes were read from the connection and not used yet.
func (c *upstream) buffered() int {
	if c.br == nil {
		return 0
	}
	return c.br.Buffered()
}

// readSome reads what was read already, or else from the connection.
func (c *upstream) readSome(p []byte) (int, error) {
	if c.buffered() == 0 {
		return c.Conn.Read(p)
	}
	n, err := c.br.Read(p)
	c.settle()
	return n, err
}

// readHeader reads the final response header, passing over interim ones.
func (c *upstream) readHeader(deadline time.Time) error {
	if err := c.SetReadDeadline(deadline); err != nil {
		return err
	}
	defer c.settle()
	for range 8 {
		c.header.Reset()
		if err := c.lookAtHead(); err != nil {
			return err
		}
		if err := c.header.Read(c.reader()); err != nil {
			return err
		}
		status := c.header.StatusCode()
		if status >= 200 {
			return nil
		}
		if status == fasthttp.StatusSwitchingProtocols {
			break
		}
	}
	return errors.New("the worker sent only interim responses")
}

// errNoHead is the error of an answer that is no HTTP. The parser would wait for the
// rest of its header.
var errNoHead = errors.New("what the worker sent is no HTTP response header, or has lines that end in LF alone")

// lookAtHead waits until a header has come whole, or so much of it that it can't be one,
// and consumes nothing. A header that is too long, or ends early, is left to the parser.
func (c *upstream) lookAtHead() error {
	br, seen := c.reader(), 0
	for {
		_, err := br.Peek(seen + 1)
		p, _ := br.Peek(br.Buffered())
		if start := p[:min(len(p), len(httpPrefix))]; !bytes.HasPrefix(httpPrefix, start) {
			return errNoHead
		}
		for {
			i := bytes.IndexByte(p[seen:], '\n')
			if i < 0 {
				seen = len(p)
				break
			}
			i += seen
			if p[i-1] != '\r' { // the prefix has come before
				return errNoHead
			}
			if bytes.HasSuffix(p[:i+1], headEnd) {
				return nil
			}
			seen = i + 1
		}
		if errors.Is(err, bufio.ErrBufferFull) || errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

var httpPrefix, headEnd = []byte("HTTP/"), []byte("\r\n\r\n")

// upstreamBody reads a response body by the framing its header announced and
// knows whether it ended as announced.
type upstreamBody struct {
	c       *upstream
	chunks  *chunkDecoder // nil without chunks
	left    int64         // bytes still announced; -1 for chunked, -2 for until close
	clean   bool          // the body ended as announced
	toClose bool          // the connection can't be used again

	memory *[]byte // that next has taken, and the pool it is of
	of     *sync.Pool
	gone   bool          // the connection is another request's by now
	lent   *bufio.Reader // that it had then: what next has returned is in it
}

func newUpstreamBody(c *upstream) *upstreamBody {
	b := &upstreamBody{c: c, left: int64(c.header.ContentLength()), toClose: c.header.ConnectionClose() || c.early}
	switch {
	case b.left == -1:
		b.chunks = &chunkDecoder{}
	case b.left < 0:
		b.left, b.toClose = -2, true
	case b.left == 0:
		b.clean = true
	}
	return b
}

// wait blocks until a byte of the body can be read or the deadline passes,
// and consumes nothing.
func (b *upstreamBody) wait(deadline time.Time) error {
	if b.clean {
		return nil
	}
	if err := b.c.hear(deadline); !errors.Is(err, io.EOF) {
		return err
	}
	return nil // the read that follows says what the end means
}

// next waits for more of the body until the deadline. data, which may be empty, is
// valid until free, which must be called before next is again. The error is like
// Read's, and may come with data.
func (b *upstreamBody) next(deadline time.Time) (data []byte, err error) {
	if b.clean {
		return nil, io.EOF
	}
	c := b.c
	if c.buffered() > 0 {
		raw, _ := c.br.Peek(c.br.Buffered())
		_, _ = c.br.Discard(len(raw))
		return b.accept(raw, nil)
	}
	if err := c.SetReadDeadline(deadline); err != nil {
		return nil, err
	}
	if s := &c.socket; s.raw != nil {
		err := s.wait(s.recv)
		b.memory, b.of, s.memory = s.memory, &readPool, nil
		if b.memory == nil {
			return nil, err // nothing has come
		}
		return b.accept((*b.memory)[:max(s.n, 0)], err)
	}
	b.memory, b.of = readPoolTLS.Get().(*[]byte), &readPoolTLS
	n, err := c.Conn.Read(*b.memory)
	return b.accept((*b.memory)[:n], err)
}

// free ends the use of what next has returned.
func (b *upstreamBody) free() {
	if b.memory != nil {
		b.of.Put(b.memory)
		b.memory = nil
	}
	switch {
	case !b.gone:
		b.c.settle()
	case b.lent != nil:
		b.lent.Reset(nil)
		headPool.Put(b.lent)
		b.lent = nil
	}
}

// letGo ends the use of the connection, whose body has been read whole: another
// request may have it at once. What next has returned stays until free.
func (b *upstreamBody) letGo() {
	b.gone, b.lent, b.c.br = true, b.c.br, nil
}

// Read implements io.Reader. io.EOF means the body ended as it was announced;
// a body cut short is io.ErrUnexpectedEOF.
func (b *upstreamBody) Read(p []byte) (int, error) {
	for {
		if b.clean {
			return 0, io.EOF
		}
		some := p
		if b.left > 0 {
			some = p[:min(int64(len(p)), b.left)]
		}
		n, err := b.c.readSome(some)
		data, err := b.accept(some[:n], err)
		if len(data) > 0 || err != nil || len(p) == 0 {
			return copy(p, data), err
		}
	}
}

// accept takes the framing off bytes that were read, with the error of their read. It
// changes them.
func (b *upstreamBody) accept(raw []byte, err error) (data []byte, end error) {
	switch {
	case b.chunks != nil:
		data, used, cerr := b.chunks.decode(raw)
		if cerr != nil {
			return data, cerr
		}
		if b.chunks.done() {
			return data, b.ended(used < len(raw))
		}
		return data, cutShort(err)
	case b.left > 0:
		data = raw[:min(int64(len(raw)), b.left)]
		if b.left -= int64(len(data)); b.left == 0 {
			return data, b.ended(len(data) < len(raw))
		}
		return data, cutShort(err)
	case errors.Is(err, io.EOF):
		b.clean = true
	}
	return raw, err
}

// ended notes the body's end, as it was announced. more says that bytes follow it that
// nobody has asked for.
func (b *upstreamBody) ended(more bool) error {
	b.clean = true
	b.toClose = b.toClose || more
	return io.EOF
}

// cutShort is the error of a read within a body.
func cutShort(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}

// reusable reports whether the connection may serve another request.
func (b *upstreamBody) reusable() bool {
	return b.clean && !b.toClose && b.c.buffered() == 0
}
