package gateway

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/url"
	"slices"
	"strconv"
	"sync"
	"syscall"
	"time"

	"github.com/valyala/fasthttp"
	"golang.org/x/sys/unix"
)

// maxIdleUpstream is how long a worker connection may lie unused and still be
// used again. uvicorn, vLLM's server, drops idle connections after 5 s, and a
// request that crosses that close is lost.
const maxIdleUpstream = 4 * time.Second

// maxIdlePerWorker bounds the connections kept for one worker.
const maxIdlePerWorker = 256

// upstreams keeps connections to workers. It is safe for concurrent use.
//
// The gateway drives worker connections itself rather than through a client
// type, because a request must be abandonable at every moment by closing
// exactly its own connection, which is vLLM's signal to abort the generation,
// and because a failed attempt must say whether the worker can have seen it.
type upstreams struct {
	dialTimeout time.Duration
	tls         *tls.Config
	// control is called for each socket before it connects; nil for nothing.
	control func(network, address string, c syscall.RawConn) error

	// mu protects the fields below.
	mu     sync.Mutex
	idle   map[string][]*upstream // by address, oldest first
	sweep  *time.Timer            // set while there is something to sweep
	closed bool
}

func newUpstreams(dialTimeout time.Duration, tlsConfig *tls.Config) *upstreams {
	return &upstreams{dialTimeout: dialTimeout, tls: tlsConfig, idle: make(map[string][]*upstream)}
}

// upstream is one connection to a worker, used by one request at a time.
type upstream struct {
	net.Conn
	socket    socket
	br        *bufio.Reader // lent while something is in it
	header    fasthttp.ResponseHeader
	key       string
	reused    bool
	early     bool // the answer came before the request was written whole
	idleSince time.Time
}

func newUpstream(nc net.Conn, key string) *upstream {
	c := &upstream{Conn: nc, key: key}
	c.socket.open(nc)
	return c
}

// Close ends the connection below TLS. The end of TLS would be a write, which
// waits for seconds where the worker has stopped reading, and those who close
// hold others up.
func (c *upstream) Close() error { return c.below().Close() }

// abandon ends a connection whose answer is not wanted any more. It never
// blocks. The worker learns of it at once, even one that reads nothing, and what
// it has not read yet is dropped.
func (c *upstream) abandon() {
	if tcp, ok := c.below().(*net.TCPConn); ok {
		_ = tcp.SetLinger(0)
	}
	_ = c.Close()
}

// below is the connection under TLS, or the connection itself.
func (c *upstream) below() net.Conn {
	if tc, ok := c.Conn.(*tls.Conn); ok {
		return tc.NetConn()
	}
	return c.Conn
}

// get returns a kept connection to the worker at base, or dials a new one if
// there is none or fresh is set.
func (u *upstreams) get(ctx context.Context, base *url.URL, fresh bool) (*upstream, error) {
	key := base.Scheme + "://" + base.Host
	for !fresh {
		c := u.takeIdle(key, time.Now())
		if c == nil {
			break
		}
		if quiet(c.Conn) {
			return c, nil
		}
		_ = c.Close()
	}
	dialer := net.Dialer{Timeout: u.dialTimeout, KeepAlive: 30 * time.Second, Control: u.control}
	nc, err := dialer.DialContext(ctx, "tcp", hostPort(base))
	if err != nil {
		return nil, fmt.Errorf("cannot connect to the worker: %w", err)
	}
	if base.Scheme == "https" {
		nc, err = u.handshake(ctx, nc, base.Hostname())
		if err != nil {
			return nil, err
		}
	}
	return newUpstream(nc, key), nil
}

func hostPort(base *url.URL) string {
	port := base.Port()
	switch {
	case port != "":
	case base.Scheme == "https":
		port = "443"
	default:
		port = "80"
	}
	return net.JoinHostPort(base.Hostname(), port)
}

func (u *upstreams) handshake(ctx context.Context, nc net.Conn, host string) (net.Conn, error) {
	cfg := u.tls.Clone()
	if cfg == nil {
		cfg = &tls.Config{MinVersion: tls.VersionTLS12}
	}
	cfg.ServerName = host
	tc := tls.Client(nc, cfg)
	ctx, cancel := context.WithTimeout(ctx, u.dialTimeout)
	defer cancel()
	if err := tc.HandshakeContext(ctx); err != nil {
		_ = nc.Close()
		return nil, fmt.Errorf("cannot connect to the worker over TLS: %w", err)
	}
	return tc, nil
}

func (u *upstreams) takeIdle(key string, now time.Time) *upstream {
	u.mu.Lock()
	defer u.mu.Unlock()
	list := u.idle[key]
	for len(list) > 0 {
		c := list[len(list)-1]
		list[len(list)-1] = nil
		list = list[:len(list)-1]
		u.idle[key] = list
		if now.Sub(c.idleSince) < maxIdleUpstream {
			c.reused = true
			return c
		}
		_ = c.Close()
	}
	return nil
}

// quiet reports whether nothing has come on a kept connection since its last
// response. Bytes that nobody has asked for would be read as the answer to the
// next request, which may be another tenant's; an end would cost it an attempt.
func quiet(nc net.Conn) bool {
	if tc, ok := nc.(*tls.Conn); ok {
		nc = tc.NetConn()
	}
	sc, ok := nc.(syscall.Conn)
	return !ok || errors.Is(peeked(sc), unix.EAGAIN)
}

// put keeps c for the next request; the caller has read its response to the
// end.
func (u *upstreams) put(c *upstream) {
	c.idleSince = time.Now()
	_ = c.SetReadDeadline(time.Time{})
	u.mu.Lock()
	defer u.mu.Unlock()
	list := u.idle[c.key]
	if u.closed || len(list) >= maxIdlePerWorker {
		_ = c.Close()
		return
	}
	u.idle[c.key] = append(list, c)
	if u.sweep == nil {
		u.sweep = time.AfterFunc(maxIdleUpstream, u.dropOld)
	}
}

// dropOld closes the connections that are past their time, which nobody may
// ask for again.
func (u *upstreams) dropOld() {
	u.mu.Lock()
	defer u.mu.Unlock()
	now := time.Now()
	for key, list := range u.idle {
		n := 0
		for n < len(list) && now.Sub(list[n].idleSince) >= maxIdleUpstream {
			_ = list[n].Close()
			n++
		}
		if n == len(list) {
			delete(u.idle, key)
		} else {
			u.idle[key] = slices.Delete(list, 0, n)
		}
	}
	u.sweep = nil
	if len(u.idle) > 0 {
		u.sweep = time.AfterFunc(maxIdleUpstream, u.dropOld)
	}
}

// Close closes every kept connection and keeps none from now on.
func (u *upstreams) Close() {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.closed = true
	if u.sweep != nil {
		u.sweep.Stop()
		u.sweep = nil
	}
	for _, list := range u.idle {
		for _, c := range list {
			_ = c.Close()
		}
	}
	u.idle = make(map[string][]*upstream)
}

// upstreamRequest is what goes to a worker. Every string in it is the
// gateway's own or was checked to hold no control character.
type upstreamRequest struct {
	method                  string // empty is POST
	path, host, requestID   string
	authorization           string
	traceparent, tracestate string
	api                     apiHeaders
	stream                  bool
	body                    []byte
	writeTimeout            time.Duration // for each part of it
	within                  time.Duration // for the whole
}

func appendUpstreamHeader(dst []byte, r *upstreamRequest) []byte {
	method := r.method
	if method == "" {
		method = fasthttp.MethodPost
	}
	dst = append(append(dst, method...), ' ')
	dst = append(dst, r.path...)
	dst = append(dst, " HTTP/1.1\r\nHost: "...)
	dst = append(dst, r.host...)
	if method == fasthttp.MethodPost {
		dst = append(dst, "\r\nContent-Type: application/json\r\nContent-Length: "...)
		dst = strconv.AppendInt(dst, int64(len(r.body)), 10)
	}
	if r.stream {
		dst = append(dst, "\r\nAccept: text/event-stream\r\nAccept-Encoding: identity\r\nX-Request-Id: "...)
	} else {
		dst = append(dst, "\r\nAccept: application/json\r\nAccept-Encoding: identity\r\nX-Request-Id: "...)
	}
	dst = append(dst, r.requestID...)
	for _, h := range [...]struct{ name, value string }{
		{"\r\nAuthorization: Bearer ", r.authorization},
		{"\r\ntraceparent: ", r.traceparent},
		{"\r\ntracestate: ", r.tracestate},
		{"\r\nanthropic-version: ", r.api.version},
		{"\r\nanthropic-beta: ", r.api.beta},
	} {
		if h.value != "" {
			dst = append(dst, h.name...)
			dst = append(dst, h.value...)
		}
	}
	return append(dst, "\r\n\r\n"...)
}
