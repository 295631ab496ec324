package gateway

import (
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// listener hands out connections that the watcher watches and whose writes
// have a deadline of their own each, so that a client that stops reading is
// noticed without a limit on how long a stream may run.
type listener struct {
	net.Listener
	watch        *watcher
	writeTimeout time.Duration
	readIdle     time.Duration
	open         *connSet
	gate         *gate
	log          *slog.Logger
}

// minAcceptPause and maxAcceptPause bound the pause after an Accept that failed for
// want of something.
const (
	minAcceptPause = 5 * time.Millisecond
	maxAcceptPause = time.Second
)

// Accept waits for the next connection. Where the system has run out of
// descriptors or memory it waits for better times, which come as soon as
// connections end; the server would take the error for the end of the listener.
func (l *listener) Accept() (net.Conn, error) {
	pause := minAcceptPause
	for {
		nc, err := l.Listener.Accept()
		if err == nil {
			if c, err := l.watched(nc); c != nil || err != nil {
				return c, err
			}
			pause = minAcceptPause
			continue // it was refused
		}
		if !passing(err) {
			return nil, err
		}
		l.log.Warn("cannot accept connections at the moment", "error", err, "pause", pause)
		time.Sleep(pause)
		pause = min(2*pause, maxAcceptPause)
	}
}

// passing reports whether a failed Accept may succeed when tried again.
func passing(err error) bool {
	for _, e := range [...]syscall.Errno{syscall.EMFILE, syscall.ENFILE, syscall.ENOBUFS, syscall.ENOMEM, syscall.ECONNABORTED} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}

// watched returns nil for a connection that was refused.
func (l *listener) watched(nc net.Conn) (net.Conn, error) {
	tcp, ok := nc.(*net.TCPConn)
	if !ok {
		_ = nc.Close()
		return nil, fmt.Errorf("cannot serve a %T: the public listener must be TCP", nc)
	}
	release := l.gate.enter(tcp)
	if release == nil {
		return nil, nil
	}
	c := &conn{tcp: tcp, watch: l.watch, writeTimeout: l.writeTimeout, readIdle: l.readIdle, open: l.open, release: release, since: time.Now()}
	l.open.add(c)
	l.watch.add(c)
	return c, nil
}

// tcpConn is what a conn needs of a *net.TCPConn.
type tcpConn interface {
	net.Conn
	syscall.Conn
	CloseWrite() error
}

// conn is one accepted connection.
//
// It knows when its peer has left and tells the request that is attached at
// that moment. All methods may be called from any goroutine.
type conn struct {
	tcp          tcpConn
	watch        *watcher
	watchID      int32
	writeTimeout time.Duration
	readIdle     time.Duration
	open         *connSet

	// release gives back the connection's place among those that may be open.
	release func()

	closeOnce sync.Once
	closeErr  error

	since time.Time
	state atomic.Int32

	// stream is the response that the handler has left to be sent. Only the
	// connection's goroutine uses it.
	stream *relay

	// readBy is the deadline that the server has set for reading. Only its
	// goroutine uses it.
	readBy time.Time

	// midway says that a request is on its way, so that a read waits for the next
	// byte of it and not for another request.
	midway atomic.Bool

	// closing makes the next read report the end, so that the server closes
	// the connection after the response under way, whose header may have said
	// nothing of it.
	closing atomic.Bool

	// muted makes every write fail: the peer has left, and whoever ends only
	// its own side must not wait for an answer, or be told half of one.
	muted atomic.Bool

	// writeBy is when the last write must have ended, in Unix nanoseconds; 0 is never.
	writeBy atomic.Int64

	// received says that at least a byte of a request has come.
	received atomic.Bool

	// linger makes Close wait a moment for a peer that is still sending, so
	// that the reset which unread bytes cause doesn't destroy the answer.
	linger atomic.Bool

	// onWrite is called once, after the next write or at the end.
	onWrite atomic.Pointer[func()]

	// onAnswered is called once, when the answer under way has been written.
	onAnswered atomic.Pointer[func()]

	// mu protects gone and onGone.
	mu     sync.Mutex
	gone   bool
	onGone func()
}

// attach makes fn the one to call, once, when the peer leaves. It reports
// false, and keeps nothing, if the peer has left already. fn must not block.
func (c *conn) attach(fn func()) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.gone {
		return false
	}
	c.onGone = fn
	return true
}

// detach ends what attach began; fn may still be running when it returns.
func (c *conn) detach() {
	c.midway.Store(false)
	c.mu.Lock()
	c.onGone = nil
	c.mu.Unlock()
}

// peerGone is called by the watcher.
func (c *conn) peerGone() {
	c.mu.Lock()
	fn := c.onGone
	c.gone, c.onGone = true, nil
	c.mu.Unlock()
	if fn != nil {
		fn()
	}
}

// stopReading makes a read that waits, and every later one, report the end. An
// answer under way is not disturbed.
func (c *conn) stopReading() {
	c.closing.Store(true)
	_ = c.tcp.SetReadDeadline(time.Unix(1, 0))
}

// closeAfterResponse ends the connection once the response under way has been
// written.
func (c *conn) closeAfterResponse() { c.closing.Store(true) }

// Read implements net.Conn. Within a request it waits readIdle for the next
// byte, in the limits of the server's deadline.
func (c *conn) Read(p []byte) (int, error) {
	c.answered() // the server reads on when it has written
	if c.midway.Load() {
		// The last read's deadline may lie before the server's.
		by := time.Now().Add(c.readIdle)
		if c.readBy.Before(by) && !c.readBy.IsZero() {
			by = c.readBy
		}
		if err := c.tcp.SetReadDeadline(by); err != nil {
			return 0, err
		}
	}
	if c.closing.Load() { // looked at last: stopReading sets it before its deadline
		return 0, io.EOF
	}
	return c.tcp.Read(p)
}

// begin notes that a request begins, with its first byte. It reports false if the
// connection was ended before.
func (c *conn) begin() bool {
	for {
		switch was := c.state.Load(); was {
		case connEnded:
			return false
		case connBusy:
			c.midway.Store(true)
			return true
		default:
			if c.state.CompareAndSwap(was, connBusy) {
				c.midway.Store(true)
				c.received.Store(true)
				return true
			}
		}
	}
}

// wait notes that the connection waits for another request.
func (c *conn) wait() { c.state.CompareAndSwap(connBusy, connWaits) }

// endIdle ends the connection if it waits for a request, or has not brought one
// for a while. It disturbs no other.
func (c *conn) endIdle(now time.Time) {
	switch was := c.state.Load(); {
	case was == connFresh && now.Sub(c.since) < freshFor:
	case was == connFresh || was == connWaits:
		if c.state.CompareAndSwap(was, connEnded) {
			c.stopReading()
		}
	}
}

// freshFor is how long a new connection is taken for one whose first request is on
// its way.
const freshFor = 5 * time.Second

// States of a connection.
const (
	connFresh int32 = iota // nothing has come
	connBusy               // a request is on its way, or served
	connWaits              // for another request
	connEnded              // by Shutdown, while it waited
)

// afterWrite has fn called once the next write has returned, or the connection is
// closed. fn must not block. Another one that still waits is called at once.
func (c *conn) afterWrite(fn func()) {
	if old := c.onWrite.Swap(&fn); old != nil {
		(*old)()
	}
}

// wrote calls what waits for a write.
func (c *conn) wrote() {
	if c.onWrite.Load() == nil {
		return
	}
	if fn := c.onWrite.Swap(nil); fn != nil {
		(*fn)()
	}
}

// afterAnswer has fn called once the answer under way has been written, or the
// connection is closed. fn must not block.
func (c *conn) afterAnswer(fn func()) {
	c.answered()
	c.onAnswered.Store(&fn)
}

// answered calls what waits for the end of an answer.
func (c *conn) answered() {
	if c.onAnswered.Load() == nil {
		return
	}
	if fn := c.onAnswered.Swap(nil); fn != nil {
		(*fn)()
	}
}

// writeStep is how much of a long write has a deadline of its own. A client that
// takes as much in time is slow, and one that does not is gone.
const writeStep = 64 << 10

// Write implements net.Conn with a fresh deadline for every call, and within it for
// every writeStep.
func (c *conn) Write(p []byte) (n int, err error) {
	defer c.wrote()
	for err == nil {
		if err := c.setWriteDeadline(); err != nil {
			return n, err
		}
		if c.muted.Load() {
			return n, net.ErrClosed
		}
		var m int
		m, err = c.tcp.Write(p[:min(len(p), writeStep)])
		n += m
		if p = p[m:]; len(p) == 0 {
			break
		}
	}
	return n, err
}

// setWriteDeadline gives the next write its time.
func (c *conn) setWriteDeadline() error {
	for {
		last, by := c.writeBy.Load(), time.Now().Add(c.writeTimeout)
		if last != 0 {
			by = earliest(by, time.Unix(0, last))
		}
		if err := c.tcp.SetWriteDeadline(by); err != nil || c.writeBy.Load() == last {
			return err
		}
	}
}

// endWrites makes a write that still blocks at a time, and every later one, fail.
func (c *conn) endWrites(by time.Time) {
	c.writeBy.Store(by.UnixNano())
	_ = c.tcp.SetWriteDeadline(by)
	if c.muted.Load() { // whose time has passed
		c.mute()
	}
}

// mute makes a write that blocks, and every later one, fail.
func (c *conn) mute() {
	c.muted.Store(true)
	_ = c.tcp.SetWriteDeadline(time.Unix(1, 0))
}

// Close implements net.Conn; only the first call does anything.
func (c *conn) Close() error {
	c.closeOnce.Do(func() {
		c.wrote()
		c.answered()
		c.watch.remove(c)
		c.open.remove(c)
		if c.linger.Load() {
			c.drain()
		}
		c.closeErr = c.tcp.Close()
		c.release()
	})
	return c.closeErr
}

// drain reads what a refused peer still sends, for a bounded time and amount.
func (c *conn) drain() {
	if c.tcp.CloseWrite() != nil || c.tcp.SetReadDeadline(time.Now().Add(lingerTime)) != nil {
		return
	}
	_, _ = io.Copy(io.Discard, io.LimitReader(c.tcp, lingerBytes))
}

// lingerTime and lingerBytes bound what drain does for one connection.
const (
	lingerTime  = 500 * time.Millisecond
	lingerBytes = 1 << 20
)

// LocalAddr implements net.Conn.
func (c *conn) LocalAddr() net.Addr { return c.tcp.LocalAddr() }

// RemoteAddr implements net.Conn.
func (c *conn) RemoteAddr() net.Addr { return c.tcp.RemoteAddr() }

// SetDeadline implements net.Conn; the write half is the connection's own.
func (c *conn) SetDeadline(t time.Time) error { return c.SetReadDeadline(t) }

// SetReadDeadline implements net.Conn.
func (c *conn) SetReadDeadline(t time.Time) error {
	c.readBy = t
	return c.tcp.SetReadDeadline(t)
}

// SetWriteDeadline implements net.Conn; Write sets the only deadline there is.
func (c *conn) SetWriteDeadline(time.Time) error { return nil }

// clientConn finds the watched connection under what fasthttp serves.
func clientConn(nc net.Conn) *conn {
	switch c := nc.(type) {
	case *conn:
		return c
	case *tls.Conn:
		if in, ok := c.NetConn().(*conn); ok {
			return in
		}
	case *framedConn:
		return clientConn(c.Conn)
	case *framedTLS:
		return clientConn(c.Conn)
	}
	return nil
}
