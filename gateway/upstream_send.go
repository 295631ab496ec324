package gateway

import (
	"fmt"
	"net"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// sendPart is how much of a body is written at once.
	sendPart = 256 << 10
	// sendGlance is how long a write may be stuck before it is looked whether the
	// worker has answered meanwhile.
	sendGlance = 100 * time.Millisecond
)

// send writes the request. It returns nil with early set if the worker answered
// before it had all of it: nothing more is written then. An error means that no
// worker has seen a whole request, so that another may be tried without running it
// twice.
func (c *upstream) send(scratch []byte, r *upstreamRequest) (buf []byte, err error) {
	buf = appendUpstreamHeader(scratch[:0], r)
	c.early = false
	start := time.Now()
	first := min(len(r.body), 8<<10) // goes with the header
	buf = append(buf, r.body[:first]...)
	if err := c.write(buf, r, start); err != nil {
		return buf, err
	}
	for rest := r.body[first:]; len(rest) > 0 && !c.early; {
		if c.answering() {
			c.early = true
			break
		}
		n := min(len(rest), sendPart)
		if err := c.write(rest[:n], r, start); err != nil {
			return buf, err
		}
		rest = rest[n:]
	}
	return buf, nil
}

// write writes a part of the request, or sets early.
func (c *upstream) write(p []byte, r *upstreamRequest, start time.Time) error {
	_, plain := c.Conn.(*net.TCPConn)
	until := earliest(time.Now().Add(r.writeTimeout), start.Add(r.within))
	for {
		deadline := until
		if plain { // a write over TLS can't be taken up again
			deadline = earliest(until, time.Now().Add(sendGlance))
		}
		if err := c.SetWriteDeadline(deadline); err != nil {
			return fmt.Errorf("cannot write to the worker: %w", err)
		}
		n, err := c.Write(p)
		if p = p[n:]; err == nil {
			return nil
		}
		switch {
		case !isTimeout(err) || !plain:
			return c.unlessAnswered(err)
		case c.answering():
			c.early = true
			return nil
		case n > 0:
			until = earliest(time.Now().Add(r.writeTimeout), start.Add(r.within))
		case !time.Now().Before(until):
			return fmt.Errorf("cannot write to the worker: %w", err)
		}
	}
}

// unlessAnswered makes nothing of a failed write if the worker has answered: it may
// end the connection then without reading on.
func (c *upstream) unlessAnswered(err error) error {
	if !c.reused && c.hear(time.Now().Add(sendGlance)) == nil {
		c.early = true
		return nil
	}
	return fmt.Errorf("cannot write to the worker: %w", err)
}

// answering reports whether bytes have come on a connection in the clear. Over TLS
// they need not be an answer.
func (c *upstream) answering() bool {
	tcp, ok := c.Conn.(*net.TCPConn)
	return ok && peeked(tcp) == nil
}

// peeked is nil if bytes can be read from a connection, unix.EAGAIN if none have come,
// and else what ends it.
func peeked(sc syscall.Conn) error {
	raw, err := sc.SyscallConn()
	if err != nil {
		return err
	}
	var n int
	var got error
	if err := raw.Control(func(fd uintptr) {
		var b [1]byte
		n, _, got = unix.Recvfrom(int(fd), b[:], unix.MSG_PEEK|unix.MSG_DONTWAIT)
	}); err != nil {
		return err
	}
	if got == nil && n == 0 {
		return net.ErrClosed
	}
	return got
}
