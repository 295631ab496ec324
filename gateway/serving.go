package gateway

import (
	"bufio"
	"bytes"
	"crypto/tls"
	"errors"
	"log/slog"
	"net"
	"sync"
	"time"

	"github.com/valyala/fasthttp"
)

// server runs one goroutine for each connection, with the HTTP library's parser
// and its writer of responses.
//
// The library's own server keeps a reader for the largest head, a writer and a
// request's context for each connection's whole life. Of a connection that waits
// for a request, or that a stream has been sent on for minutes, this one keeps
// nothing but what the connection itself needs. It also shows the bytes of a head
// to those who look for what two readers could understand differently.
type server struct {
	g *Gateway

	// mu protects the fields below.
	mu        sync.Mutex
	listeners map[net.Listener]struct{}
	running   int // sessions and accepting loops
	stopped   bool
	over      bool          // ended is closed
	ended     chan struct{} // closed once stopped and nothing runs
}

func newServer(g *Gateway) *server {
	return &server{g: g, listeners: make(map[net.Listener]struct{}), ended: make(chan struct{})}
}

// serve accepts connections on ln until Shutdown, which closes it.
func (s *server) serve(ln net.Listener, tlsConfig *tls.Config) error {
	if !s.enter(ln) {
		return ln.Close()
	}
	defer s.leave(ln)
	for {
		nc, err := ln.Accept()
		if errors.Is(err, net.ErrClosed) {
			return nil
		}
		if err != nil {
			return err
		}
		if !s.enter(nil) {
			_ = nc.Close()
			return nil
		}
		ses := &session{g: s.g, c: nc.(*conn)}
		if tlsConfig != nil {
			nc = tls.Server(nc, tlsConfig)
		}
		ses.nc = framed(nc)
		go func() {
			defer s.leave(nil)
			ses.run()
		}()
	}
}

// enter counts something that runs, and keeps ln, if it is one, for Shutdown. It
// reports false, and does nothing, after Shutdown.
func (s *server) enter(ln net.Listener) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stopped {
		return false
	}
	s.running++
	if ln != nil {
		s.listeners[ln] = struct{}{}
	}
	return true
}

func (s *server) leave(ln net.Listener) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.listeners, ln)
	s.running--
	s.endIfIdle()
}

// endIfIdle tells Shutdown once everything has ended. The caller holds mu.
func (s *server) endIfIdle() {
	if s.stopped && s.running == 0 && !s.over {
		s.over = true
		close(s.ended)
	}
}

// sweepEvery is how often Shutdown looks for connections that wait.
const sweepEvery = 100 * time.Millisecond

// Shutdown closes the listeners, ends connections as they come to wait for a
// request, and returns when all have ended.
func (s *server) Shutdown() error {
	s.mu.Lock()
	s.stopped = true
	var err error
	for ln := range s.listeners {
		err = errors.Join(err, ln.Close())
	}
	clear(s.listeners)
	s.endIfIdle()
	s.mu.Unlock()
	tick := time.NewTicker(sweepEvery)
	defer tick.Stop()
	for {
		s.g.conns.endIdle(time.Now())
		select {
		case <-s.ended:
			return err
		case <-tick.C:
		}
	}
}

// session is what the goroutine of one connection knows.
type session struct {
	g  *Gateway
	c  *conn
	nc net.Conn // c, or TLS over it, with a framer
	in intake
}

// run serves requests until the connection ends.
//
// It sends streams itself and not from within what has served their requests: while a
// stream waits for its worker the goroutine's stack can then shrink to half.
func (s *session) run() {
	defer func() {
		if bug := recover(); bug != nil {
			logPanic(s.g.log, bug, slog.String("where", "connection"))
		}
		s.in.drop()
		_ = s.nc.Close()
		_ = s.c.Close() // where TLS could not be ended
	}()
	again := s.handshake()
	for first := true; again; first = false {
		var stream *relay
		if again, stream = s.request(first); stream != nil {
			again = stream.sendTo(s.nc) && again
		}
	}
}

// handshake begins TLS, if it is spoken here. The first request's head has what is
// left of its time.
func (s *session) handshake() bool {
	if err := s.c.SetReadDeadline(time.Now().Add(s.g.cfg.HeaderRead)); err != nil {
		return false
	}
	tc := tlsOf(s.nc)
	if tc == nil {
		return true
	}
	if err := tc.Handshake(); err != nil {
		s.g.handshakeFailed(s.c, err)
		_ = s.c.Close() // whoever is there doesn't understand an answer
		return false
	}
	return true
}

// request serves the next request and reports whether another may follow. The
// response may be a stream that is yet to be sent.
func (s *session) request(first bool) (again bool, stream *relay) {
	if !s.await(first) {
		return false, nil
	}
	ctx := acquireCtx(s.nc)
	again = s.answer(ctx)
	if stream, s.c.stream = s.c.stream, nil; stream != nil {
		stream.chunked = ctx.Request.Header.IsHTTP11()
		again = again && stream.chunked
		stream.head = streamHead(&ctx.Response.Header, stream.chunked)
	}
	// A stream may run for hours, so the context is given back before.
	releaseCtx(ctx)
	s.in.shrink()
	return again, stream
}

// streamHead is the head of a response that is a stream: in chunks, or without an end
// but the connection's for clients of HTTP/1.0, which knows no chunks.
func streamHead(h *fasthttp.ResponseHeader, chunked bool) []byte {
	if chunked {
		h.SetContentLength(-1)
	} else {
		h.SetContentLength(-2)
	}
	return bytes.Clone(h.Header())
}

// answer reads a request and has it handled. It writes the response, unless that
// is a stream, and reports whether the connection may be kept after it.
func (s *session) answer(ctx *fasthttp.RequestCtx) (keep bool) {
	h := &ctx.Request.Header
	if err := s.readHead(h); err != nil {
		s.g.handleReadError(ctx, err)
		ctx.SetConnectionClose()
		return s.respond(ctx)
	}
	body, err := s.body(h)
	if err != nil {
		return false
	}
	if ctx.Request.MayContinue() {
		if s.g.expect(ctx) != fasthttp.StatusContinue {
			ctx.SetConnectionClose() // the body may be on its way
			return s.respond(ctx)
		}
		if _, err := s.nc.Write(continueLine); err != nil {
			return false
		}
	}
	if body != nil {
		ctx.Request.SetBodyStream(body, h.ContentLength())
	}
	s.g.Handle(ctx)
	if h.ConnectionClose() || body != nil && !body.ended() {
		ctx.SetConnectionClose()
	}
	if s.c.stream != nil {
		return s.finishHeader(ctx)
	}
	return s.respond(ctx)
}

var continueLine = []byte("HTTP/1.1 100 Continue\r\n\r\n")

// body prepares the reading of a request's body; nil if there is none, or none
// that is wanted.
func (s *session) body(h *fasthttp.RequestHeader) (*requestBody, error) {
	if err := s.c.SetReadDeadline(time.Now().Add(s.g.cfg.BodyRead)); err != nil {
		return nil, err
	}
	s.g.headerReceived(h)
	switch n := h.ContentLength(); {
	case n >= 0:
		return &requestBody{s: s, left: int64(n)}, nil
	case n == chunkedBody:
		return &requestBody{s: s, chunks: &chunkDecoder{}}, nil
	}
	return nil, nil
}

// await waits for the first byte of a request. It reports false if none comes, or
// none that will be answered.
func (s *session) await(first bool) bool {
	if s.c.closing.Load() && (!s.g.stopping.Load() || s.in.empty()) {
		return false
	}
	if s.in.empty() {
		if !first {
			s.c.wait()
			if s.c.SetReadDeadline(time.Now().Add(s.g.cfg.IdleConnection)) != nil {
				return false
			}
		}
		if s.in.readFirst(s.nc) != nil {
			return false
		}
	}
	if !s.c.begin() {
		return false // Shutdown has ended a connection that had nothing to say
	}
	return first || s.c.SetReadDeadline(time.Now().Add(s.g.cfg.HeaderRead)) == nil
}

// respond writes a response that is no stream, and reports whether the connection
// may serve another request.
func (s *session) respond(ctx *fasthttp.RequestCtx) (keep bool) {
	resp := &ctx.Response
	keep = s.finishHeader(ctx)
	resp.SkipBody = ctx.Request.Header.IsHead()
	w := writers.Get().(*bufio.Writer)
	w.Reset(s.nc)
	defer func() {
		w.Reset(nil)
		writers.Put(w)
	}()
	return resp.Write(w) == nil && w.Flush() == nil && keep
}

// finishHeader puts into a response what every one has, and reports whether the
// connection may be kept after it.
func (s *session) finishHeader(ctx *fasthttp.RequestCtx) (keep bool) {
	h := &ctx.Response.Header
	h.SetServer("sluice")
	if s.c.closing.Load() {
		h.SetConnectionClose()
	}
	if h.ConnectionClose() {
		return false
	}
	if !ctx.Request.Header.IsHTTP11() {
		h.Set("Connection", "keep-alive")
	}
	return true
}

// contexts, writers are reused by all connections.
var (
	contexts = sync.Pool{New: func() any { return new(fasthttp.RequestCtx) }}
	writers  = sync.Pool{New: func() any { return bufio.NewWriterSize(nil, 4<<10) }}
)

func acquireCtx(nc net.Conn) *fasthttp.RequestCtx {
	ctx := contexts.Get().(*fasthttp.RequestCtx)
	ctx.Init2(nc, discardLogger{}, true)
	return ctx
}

// releaseCtx gives a context back.
func releaseCtx(ctx *fasthttp.RequestCtx) {
	ctx.Request.Reset()
	ctx.Response.Reset()
	ctx.Init2(nil, discardLogger{}, true)
	contexts.Put(ctx)
}
