package kvevents

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"time"

	"github.com/go-zeromq/zmq4"
	"github.com/go-zeromq/zmq4/security/null"
)

const (
	// maxFrames is the most frames of a message that are looked at.
	maxFrames = 8
	// maxWire is the longest frame that is read past. A longer one means that
	// the peer doesn't speak ZMTP any more.
	maxWire = 1 << 30
	// maxCommand bounds commands, which have a few dozen bytes.
	maxCommand = 1 << 10
	// keepBuffer bounds the read buffer kept from one message to the next.
	keepBuffer = 1 << 20
)

// ZMTP frame flags.
const (
	flagMore    = 1
	flagLong    = 2
	flagCommand = 4
)

// errOversize is a message that was read past. The connection goes on.
var errOversize = errors.New("message over the size limit")

// link is one ZMTP connection. zmq4 does its handshake; messages are read here,
// because the library's sockets allocate a frame at whatever size the peer
// announces, queue in goroutines of their own that a full queue keeps alive
// after Close, never answer a ping, and wait for a handshake without limit.
//
// A link belongs to one goroutine, except for close.
type link struct {
	conn  net.Conn
	zmtp  zmtpWriter
	br    *bufio.Reader
	limit int // bytes of one message

	buf    []byte
	ends   []int
	frames [][]byte
}

// zmtpWriter sends over a connection whose handshake is done; *zmq4.Conn is one.
type zmtpWriter interface {
	SendMsg(zmq4.Msg) error
	SendCmd(name string, body []byte) error
}

// dialLink connects to a peer's endpoint. ctx ends the attempt, not the link.
func dialLink(ctx context.Context, endpoint string, typ zmq4.SocketType, timeout time.Duration) (*link, error) {
	network, addr, err := parseEndpoint(endpoint, false)
	if err != nil {
		return nil, err
	}
	d := net.Dialer{Timeout: timeout, KeepAliveConfig: keepAlive()}
	conn, err := d.DialContext(ctx, network, addr)
	if err != nil {
		return nil, err
	}
	return newLink(ctx, conn, typ, false, timeout)
}

// keepAlive finds a dead host within about half a minute: the publisher itself
// may be silent for hours.
func keepAlive() net.KeepAliveConfig {
	return net.KeepAliveConfig{Enable: true, Idle: 15 * time.Second, Interval: 5 * time.Second, Count: 3}
}

// newLink performs the handshake over conn and owns it from then on, also if
// it fails.
func newLink(ctx context.Context, conn net.Conn, typ zmq4.SocketType, server bool, timeout time.Duration) (*link, error) {
	stop := onDone(ctx, func() { conn.Close() })
	defer stop()
	err := conn.SetDeadline(time.Now().Add(timeout))
	if err == nil {
		var z *zmq4.Conn
		if z, err = openZMTP(conn, typ, server); err == nil {
			if err = conn.SetDeadline(time.Time{}); err == nil {
				return &link{conn: conn, zmtp: z, br: bufio.NewReaderSize(conn, 64<<10), limit: MaxPayload + 4<<10}, nil
			}
		}
	}
	conn.Close()
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	return nil, fmt.Errorf("cannot open a ZMTP connection: %w", err)
}

// onDone runs f when ctx ends. The returned function calls that off; if f has
// begun, it waits for its end, so that nothing is left running.
func onDone(ctx context.Context, f func()) (stop func()) {
	done := make(chan struct{})
	unregister := context.AfterFunc(ctx, func() {
		defer close(done)
		f()
	})
	return func() {
		if !unregister() {
			<-done
		}
	}
}

// openZMTP performs the handshake. The library takes a peer's metadata apart
// without checking every length, so a panic there is the peer's fault.
func openZMTP(conn net.Conn, typ zmq4.SocketType, server bool) (z *zmq4.Conn, err error) {
	defer func() {
		if recover() != nil {
			z, err = nil, errors.New("the peer's handshake is malformed")
		}
	}()
	return zmq4.Open(&handshakeConn{Conn: conn}, null.Security(), typ, nil, server, nil)
}

// close ends the link; a recv under way returns an error.
func (l *link) close() { l.conn.Close() }

// send sends one message.
func (l *link) send(timeout time.Duration, frames ...[]byte) error {
	if err := l.conn.SetWriteDeadline(time.Now().Add(timeout)); err != nil {
		return err
	}
	return l.zmtp.SendMsg(zmq4.NewMsgFrom(frames...))
}

// recv returns the frames of the next message, valid until the next call.
// errOversize means that this message was dropped; after any other error the
// link is of no use.
func (l *link) recv() ([][]byte, error) {
	if cap(l.buf) > keepBuffer {
		l.buf = nil
	}
	l.buf, l.ends = l.buf[:0], l.ends[:0]
	oversize := false
	for more := true; more; {
		flags, size, err := l.header()
		if err != nil {
			return nil, err
		}
		if flags&flagCommand != 0 {
			if err := l.command(size); err != nil {
				return nil, err
			}
			continue
		}
		more = flags&flagMore != 0
		if oversize = oversize || len(l.ends) == maxFrames || len(l.buf)+size > l.limit; oversize {
			_, err = l.br.Discard(size)
		} else {
			err = l.body(size)
		}
		if err != nil {
			return nil, err
		}
	}
	if oversize {
		return nil, errOversize
	}
	l.frames = l.frames[:0]
	start := 0
	for _, end := range l.ends {
		l.frames = append(l.frames, l.buf[start:end:end])
		start = end
	}
	return l.frames, nil
}

func (l *link) header() (flags byte, size int, err error) {
	return readHeader(l.br)
}

// readHeader reads the flags and the size of a frame.
func readHeader(r io.Reader) (flags byte, size int, err error) {
	var h [9]byte
	if _, err := io.ReadFull(r, h[:2]); err != nil {
		return 0, 0, err
	}
	if h[0]&flagLong == 0 {
		return h[0], int(h[1]), nil
	}
	if _, err := io.ReadFull(r, h[2:]); err != nil {
		return 0, 0, err
	}
	n := binary.BigEndian.Uint64(h[1:])
	if n > maxWire {
		return 0, 0, fmt.Errorf("cannot read a frame of %d bytes: the limit is %d", n, maxWire)
	}
	return h[0], int(n), nil
}

// body appends a frame of size bytes, growing the buffer as they arrive rather
// than as they are announced.
func (l *link) body(size int) error {
	for size > 0 {
		n := min(size, 64<<10)
		start := len(l.buf)
		l.buf = append(l.buf, make([]byte, n)...)
		if _, err := io.ReadFull(l.br, l.buf[start:]); err != nil {
			return err
		}
		size -= n
	}
	l.ends = append(l.ends, len(l.buf))
	return nil
}

// command answers a ping and reads past everything else.
func (l *link) command(size int) error {
	if size > maxCommand {
		return fmt.Errorf("cannot read a command of %d bytes: the limit is %d", size, maxCommand)
	}
	body := make([]byte, size)
	if _, err := io.ReadFull(l.br, body); err != nil {
		return err
	}
	// PING is its name, two bytes of time-to-live, and a context to return.
	const ping = "\x04PING"
	if len(body) < len(ping)+2 || string(body[:len(ping)]) != ping {
		return nil
	}
	return l.zmtp.SendCmd(zmq4.CmdPong, body[len(ping)+2:])
}

// handshakeConn is what zmq4 reads the handshake from: it refuses a frame
// larger than any handshake needs before the library allocates it.
type handshakeConn struct {
	net.Conn
	buf    []byte
	frames int
}

const (
	greetingBytes      = 64
	maxHandshakeFrames = 4
)

func (c *handshakeConn) Read(p []byte) (int, error) {
	if len(c.buf) == 0 {
		if err := c.fill(); err != nil {
			return 0, err
		}
	}
	n := copy(p, c.buf)
	c.buf = c.buf[n:]
	return n, nil
}

// fill reads the greeting first, and then one whole frame at a time.
func (c *handshakeConn) fill() error {
	c.frames++
	if c.frames == 1 {
		c.buf = make([]byte, greetingBytes)
		_, err := io.ReadFull(c.Conn, c.buf)
		return err
	}
	if c.frames > 1+maxHandshakeFrames {
		return errors.New("the peer sends too many frames in its handshake")
	}
	flags, size, err := readHeader(c.Conn)
	if err != nil {
		return err
	}
	if size > maxCommand {
		return fmt.Errorf("the peer's handshake has a frame of %d bytes: the limit is %d", size, maxCommand)
	}
	frame := make([]byte, 9+size)
	frame[0] = flags | flagLong
	binary.BigEndian.PutUint64(frame[1:], uint64(size))
	if _, err := io.ReadFull(c.Conn, frame[9:]); err != nil {
		return err
	}
	c.buf = frame
	return nil
}
