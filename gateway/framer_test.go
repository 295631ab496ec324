package gateway

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"syscall"
	"testing"
	"testing/iotest"
	"time"

	"github.com/valyala/fasthttp"

	"github.com/sluicegate/sluice/policy"
)

// frameAll gives a framer the bytes of a connection in pieces of n and returns what it
// has let pass, the ends of the requests in it, and the fault.
func frameAll(text []byte, n int) (passed []byte, ends []int, fault string) {
	var g framer
	for len(text) > 0 && g.fault == nil {
		// One byte at a time below, so that the end of each request shows.
		piece := bytes.Clone(text[:min(n, len(text))])
		text = text[len(piece):]
		before := g.passed
		kept := g.pass(piece)
		passed = append(passed, piece[:kept]...)
		if n == 1 && g.at == atStart && g.fault == nil && (before || g.framing.length > 0) && kept == 1 {
			ends = append(ends, len(passed))
		}
	}
	if g.fault != nil {
		fault = g.fault.message
	}
	return passed, ends, fault
}

// FuzzFramer: what a framer lets pass does not depend on where reads were split, and
// net/http sees the requests in it end at the same bytes.
func FuzzFramer(f *testing.F) {
	for _, c := range readRawRequests(f) {
		if len(c.text) < 4096 {
			f.Add([]byte(c.text+"GET / HTTP/1.1\r\nHost: a\r\n\r\n"), uint8(7))
		}
	}
	f.Fuzz(func(t *testing.T, text []byte, n uint8) {
		passed, ends, fault := frameAll(text, 1)
		for _, size := range []int{int(n) + 1, len(text) + 1} {
			again, _, faultAgain := frameAll(text, size)
			if !bytes.Equal(again, passed) || faultAgain != fault {
				t.Fatalf("in pieces of %d: %q, %q; byte by byte: %q, %q", size, again, faultAgain, passed, fault)
			}
		}
		rest := bytes.NewReader(passed)
		in := bufio.NewReader(rest)
		for i, end := range ends {
			req, err := http.ReadRequest(in)
			if err != nil {
				return // it refuses more than the framer does, which is not alone
			}
			if req.Method == "CONNECT" || req.Method == "PRI" {
				return
			}
			if _, err := io.Copy(io.Discard, req.Body); err != nil {
				return
			}
			if at := len(passed) - rest.Len() - in.Buffered(); at != end {
				t.Fatalf("request %d ends at %d for the framer and at %d for net/http", i, end, at)
			}
		}
	})
}

// memoryConn is a connection that has one text to read and keeps what is written.
type memoryConn struct {
	io.Reader
	wrote  bytes.Buffer
	closed bool
}

func (c *memoryConn) CloseWrite() error                     { return nil }
func (c *memoryConn) SyscallConn() (syscall.RawConn, error) { return nil, errors.ErrUnsupported }
func (c *memoryConn) Write(p []byte) (int, error) {
	if c.closed {
		return 0, net.ErrClosed
	}
	return c.wrote.Write(p)
}

func (c *memoryConn) Close() error {
	c.closed = true
	return nil
}

func (c *memoryConn) LocalAddr() net.Addr                { return &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 1} }
func (c *memoryConn) RemoteAddr() net.Addr               { return &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 2} }
func (c *memoryConn) SetDeadline(time.Time) error        { return nil }
func (c *memoryConn) SetReadDeadline(time.Time) error    { return nil }
func (c *memoryConn) SetWriteDeadline(t time.Time) error { return nil }

// seenRequest is one request as a reader of the bytes understands it.
type seenRequest struct {
	method string
	body   int // its length
}

// asNetHTTP reads the requests of a text as net/http does, until it refuses one. The
// target of a request means nothing to what frames it, so one that net/http can't
// parse is read as another.
func asNetHTTP(text []byte) (seen []seenRequest) {
	for {
		text = bytes.TrimPrefix(text, []byte("\r\n"))
		rest := bytes.NewReader(text)
		in := bufio.NewReader(rest)
		req, err := http.ReadRequest(in)
		if err != nil {
			line, after, ok := bytes.Cut(text, []byte("\r\n"))
			words := bytes.Split(line, []byte(" "))
			if !ok || len(words) != 3 || bytes.Equal(words[1], []byte("/")) {
				return seen
			}
			text = append(fmt.Appendf(nil, "%s / %s\r\n", words[0], words[2]), after...)
			continue
		}
		n, err := io.Copy(io.Discard, req.Body)
		if err != nil {
			return seen
		}
		seen = append(seen, seenRequest{method: req.Method, body: int(n)})
		text = text[len(text)-rest.Len()-in.Buffered():]
	}
}

// FuzzRequest gives raw bytes to the whole edge: it never makes two requests of what
// net/http reads as one, reads as much of a body, and ends the connection with one
// answer where it does not agree.
func FuzzRequest(f *testing.F) {
	// A fuzz target must not log.
	r := newRig(f, nil, withParts(func(p *Parts) { p.Log = slog.New(slog.DiscardHandler) }))
	r.decider.set(func(_ context.Context, in *policy.Input) *policy.Decision {
		return &policy.Decision{Status: fasthttp.StatusForbidden, Message: "no", Revision: "sha256:test"}
	})
	for _, c := range readRawRequests(f) {
		if len(c.text) < 4096 {
			f.Add([]byte(c.text+"GET /v1/models HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer "+goodKey+"\r\n\r\n"), false)
		}
	}
	f.Fuzz(func(t *testing.T, text []byte, slow bool) {
		r.meter.mu.Lock()
		r.meter.summaries = nil
		r.meter.mu.Unlock()
		r.ledger.mu.Lock()
		r.ledger.rows = nil
		r.ledger.mu.Unlock()
		var from io.Reader = bytes.NewReader(text)
		if slow {
			from = iotest.OneByteReader(from)
		}
		memory := &memoryConn{Reader: from}
		c := &conn{tcp: memory, watch: r.g.watch, open: &r.g.conns, release: func() {}}
		(&session{g: r.g, c: c, nc: framed(c)}).run()
		judgeAnswers(t, asNetHTTP(text), memory.wrote.String(), r.meter)
	})
}

// judgeAnswers holds the answers to what net/http has seen.
func judgeAnswers(t *testing.T, seen []seenRequest, answers string, meter *memoryMeter) {
	in := bufio.NewReader(strings.NewReader(answers))
	read := 0 // requests that were observed so far
	for i := 0; ; i++ {
		if _, err := in.Peek(1); err != nil {
			return
		}
		method := "GET"
		if i < len(seen) {
			method = seen[i].method
		}
		resp, err := http.ReadResponse(in, &http.Request{Method: method})
		for err == nil && resp.StatusCode == http.StatusContinue {
			resp, err = http.ReadResponse(in, &http.Request{Method: method})
		}
		if err != nil {
			t.Fatalf("answer %d of %q: %v", i, answers, err)
		}
		if _, err := io.Copy(io.Discard, resp.Body); err != nil {
			t.Fatalf("answer %d of %q: %v", i, answers, err)
		}
		if i >= len(seen) && (resp.StatusCode < 400 || !resp.Close) {
			t.Fatalf("%d answers to %d requests: %q", i+1, len(seen), answers)
		}
		if resp.Close {
			if rest, _ := io.ReadAll(in); len(rest) > 0 {
				t.Fatalf("%q follows the last answer", rest)
			}
			return
		}
		if read < len(meter.summaries) && meter.summaries[read].BodyBytes != 0 && meter.summaries[read].BodyBytes != seen[i].body {
			t.Fatalf("request %d has a body of %d bytes, want %d", i, meter.summaries[read].BodyBytes, seen[i].body)
		}
		read++
	}
}

// TestExtensionsCostLittle: chunk extensions are refused after as many bytes as the
// contract allows, whatever else would follow.
func TestExtensionsCostLittle(t *testing.T) {
	head := []byte("POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n")
	for name, line := range map[string]string{"one line": "1;" + strings.Repeat("a", 1<<20), "many lines": strings.Repeat("1;"+strings.Repeat("a", 99)+"\r\nx\r\n", 10000)} {
		var g framer
		g.pass(bytes.Clone(head))
		n := g.pass([]byte(line))
		if g.fault == nil || n > maxExtensions+maxExtensions/99*8 {
			t.Errorf("%s: %d bytes were let pass, fault %v", name, n, g.fault)
		}
		if g.pass([]byte("more")) != 0 {
			t.Errorf("%s: bytes were let pass behind the fault", name)
		}
	}
}

func BenchmarkFramer(b *testing.B) {
	text := []byte(strings.Replace(bodyHead, ": 100", ": 1024", 1) + strings.Repeat("x", 1024))
	p := make([]byte, len(text))
	b.SetBytes(int64(len(text)))
	b.ReportAllocs()
	var g framer
	for b.Loop() {
		copy(p, text)
		if g.pass(p) != len(p) || g.fault != nil {
			b.Fatal("not let pass")
		}
	}
}
