package gateway

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/valyala/fasthttp"

	"github.com/sluicegate/sluice/gateway/gatewaytest"
	"github.com/sluicegate/sluice/policy"
)

// talk writes a text in pieces of n bytes, ends its side of the connection and
// returns all that comes back but the headers that change from time to time.
func talk(t testing.TB, r *rig, text string, n int) string {
	t.Helper()
	var c *gatewaytest.Client
	if r.tls != nil {
		c = gatewaytest.DialTLS(t, r.addr, r.tls.Client)
	} else {
		c = gatewaytest.Dial(t, r.addr)
	}
	for len(text) > 0 {
		k := min(n, len(text))
		if c.Write(text[:k]) != nil {
			break // the gateway has answered and ended the connection
		}
		text = text[k:]
	}
	return steady(c.Closed())
}

// chunkLines are the lines around the data of chunks. How many chunks a stream has
// depends on how its events came.
var chunkLines = regexp.MustCompile(`\r\n[0-9a-f]{1,8}\r\n`)

// steady is what comes from the gateway without what is never the same.
func steady(text string) string {
	var kept []string
	text = chunkLines.ReplaceAllString(text, "")
	for line := range strings.SplitSeq(text, "\r\n") {
		if !strings.HasPrefix(line, "Date: ") && !strings.HasPrefix(line, "X-Request-Id: ") && !strings.HasPrefix(line, "X-Sluice-Decision-Id: ") {
			kept = append(kept, line)
		}
	}
	return strings.Join(kept, "\n")
}

const lastRequest = "GET /healthz HTTP/1.1\r\nHost: gateway.test\r\nConnection: close\r\n\r\n"

// TestRequestsInPieces: what is answered does not depend on how the requests of a
// connection are cut: small heads, heads that need more memory, bodies with a length
// and in chunks, Expect, blank lines, one behind the other.
func TestRequestsInPieces(t *testing.T) {
	worker := gatewaytest.NewWorker(t, gatewaytest.Chat("a"))
	post := "POST /v1/chat/completions HTTP/1.1\r\nHost: gateway.test\r\nAuthorization: Bearer " + goodKey + "\r\nContent-Type: application/json\r\n"
	length := fmt.Sprintf("Content-Length: %d\r\n\r\n", len(chatBody))
	large := strings.Repeat("X-Padding: "+strings.Repeat("p", 1000)+"\r\n", 20)
	for name, text := range map[string]string{
		"lengths":       post + length + chatBody + post + length + chatBody,
		"chunks":        post + "Transfer-Encoding: chunked\r\n\r\n" + chunked(chatBody) + post + length + chatBody,
		"trailer":       post + "Transfer-Encoding: chunked\r\n\r\n" + strings.Replace(chunked(chatBody), "0\r\n\r\n", "0;x\r\nA: b\r\n\r\n", 1) + post + length + chatBody,
		"large heads":   post + large + length + chatBody + post + large + large + length + chatBody,
		"small, large":  post + length + chatBody + post + large + "Transfer-Encoding: chunked\r\n\r\n" + chunked(chatBody),
		"large, small":  post + large + length + chatBody + post + length + chatBody,
		"expect":        post + "Expect: 100-continue\r\n" + length + chatBody + post + "Expect: 100-continue\r\n" + large + length + chatBody,
		"blank lines":   "\r\n" + post + length + chatBody + "\r\n" + post + length + chatBody + "\r\n",
		"streams":       post + fmt.Sprintf("Content-Length: %d\r\n\r\n", len(streamBody)) + streamBody + post + length + chatBody,
		"no body":       "GET /healthz HTTP/1.1\r\nHost: a\r\n\r\nHEAD /healthz HTTP/1.1\r\nHost: a\r\n\r\nOPTIONS /healthz HTTP/1.1\r\nHost: a\r\n\r\n",
		"older version": "GET /healthz HTTP/1.0\r\nConnection: keep-alive\r\n\r\n" + post + length + chatBody,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for _, opts := range [][]rigOption{nil, {withTLS()}} {
				r := newRig(t, []string{worker.URL()}, opts...)
				text := text + lastRequest
				want := talk(t, r, text, len(text))
				if n := strings.Count(want, "HTTP/1.1 2"); n < 3 || strings.Contains(want, "HTTP/1.1 4") {
					t.Fatalf("got %s", want)
				}
				for _, n := range []int{1, 7, 100, 1<<12 - 1, 1<<12 + 1} {
					if n > len(text) || n == 1 && len(text) > 10_000 {
						continue
					}
					if got := talk(t, r, text, n); got != want {
						t.Fatalf("in pieces of %d: got\n%s\nwant\n%s", n, got, want)
					}
				}
				r.idle()
			}
		})
	}
}

// TestHeadsOfEverySize up to the limit are served, and those over it are not.
func TestHeadsOfEverySize(t *testing.T) {
	const limit = 16 << 10
	r := newRig(t, nil, withConfig(func(c *Config) { c.HeaderBytes = limit }))
	for _, size := range []int{100, smallIntake - 1, smallIntake, smallIntake + 1, 2*smallIntake - 1, 2 * smallIntake, 2*smallIntake + 1, limit - 1, limit, limit + 1, 2 * limit} {
		for _, n := range []int{1 << 20, 1000} {
			head := "GET /healthz HTTP/1.1\r\nHost: gateway.test\r\nX-Padding: "
			head += strings.Repeat("p", size-len(head)-len("\r\n\r\n")) + "\r\n\r\n"
			got := talk(t, r, head+lastRequest, n)
			want := "HTTP/1.1 200"
			if size > limit {
				want = "HTTP/1.1 431"
			}
			if !strings.HasPrefix(got, want) || size <= limit && strings.Count(got, want) != 2 {
				t.Errorf("a head of %d bytes in pieces of %d: got %s", size, n, got)
			}
		}
	}
	if got := talk(t, r, "GET /"+strings.Repeat("a", limit+1), 1<<20); !strings.HasPrefix(got, "HTTP/1.1 414") {
		t.Errorf("a request line over the limit: got %s", got)
	}
}

// TestConnectionStates: only a connection that waits for a request, or has brought
// none for a while, is ended by a shutdown, and none is both ended and served.
func TestConnectionStates(t *testing.T) {
	now := time.Now()
	fresh := func() *conn { return &conn{tcp: tcpClient(t), since: now} }
	c := fresh()
	c.endIdle(now)
	if !c.begin() {
		t.Error("a new connection is ended at once")
	}
	c.endIdle(now.Add(time.Hour))
	if c.closing.Load() || !c.begin() {
		t.Error("a connection is ended in its request")
	}
	c.wait()
	c.endIdle(now)
	if !c.closing.Load() || c.begin() {
		t.Error("a connection that waits is not ended")
	}
	c = fresh()
	c.endIdle(now.Add(freshFor))
	if !c.closing.Load() || c.begin() {
		t.Error("a connection that says nothing is not ended")
	}
	if _, err := c.Read(make([]byte, 1)); !errors.Is(err, io.EOF) && !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("a read of a connection that was ended: %v", err)
	}
}

// tcpClient is one end of a TCP connection.
func tcpClient(t testing.TB) *net.TCPConn {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	nc, err := net.Dial("tcp", ln.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { nc.Close() })
	return nc.(*net.TCPConn)
}

// TestServeAfterShutdown doesn't leave a listener open.
func TestServeAfterShutdown(t *testing.T) {
	r := newRig(t, nil)
	r.shutdownAtOnce()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	if err := r.g.Serve(ln, nil); err != nil {
		t.Error(err)
	}
	if _, err := ln.Accept(); !errors.Is(err, net.ErrClosed) {
		t.Errorf("the listener is open: %v", err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if err := r.g.Shutdown(ctx); err != nil {
		t.Error(err)
	}
}

// FuzzConnection: whatever comes on a connection, the gateway answers alike however it
// is cut, and never reads a request that is not there: there are no more decisions than
// request lines. Everything is denied, since a worker would bring other goroutines in,
// whose order is never the same.
func FuzzConnection(f *testing.F) {
	post := "POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer " + goodKey + "\r\nContent-Type: application/json\r\n"
	length := fmt.Sprintf("Content-Length: %d\r\n\r\n", len(chatBody))
	for _, text := range []string{
		post + length + chatBody + post + length + chatBody,
		post + "Transfer-Encoding: chunked\r\n\r\n" + chunked(chatBody) + post + length + chatBody,
		post + "Expect: 100-continue\r\n" + length + chatBody,
		post + "X: " + strings.Repeat("x", smallIntake) + "\r\n" + length + chatBody,
		"\r\nGET /healthz HTTP/1.1\r\nHost: a\r\n\r\nGET /healthz HTTP/1.0\r\n\r\n",
		post + "Content-Length: 5\r\n\r\n" + chatBody, "GET / HTTP/1.1\n\n", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
	} {
		f.Add([]byte(text), uint8(9))
	}
	r := newRig(f, nil, withParts(func(p *Parts) { p.Log = nil }), withConfig(func(c *Config) { c.HeaderBytes = 8 << 10 }))
	decisions := 0
	r.decider.set(func(context.Context, *policy.Input) *policy.Decision {
		decisions++
		return &policy.Decision{Status: fasthttp.StatusForbidden, Message: "no", Revision: "sha256:test"}
	})
	serve := func(from io.Reader) string {
		memory := &memoryConn{Reader: from}
		c := &conn{tcp: memory, watch: r.g.watch, open: &r.g.conns, release: func() {}}
		(&session{g: r.g, c: c, nc: framed(c)}).run()
		return steady(memory.wrote.String())
	}
	f.Fuzz(func(t *testing.T, text []byte, n uint8) {
		decisions = 0
		whole := serve(bytes.NewReader(text))
		if lines := bytes.Count(text, []byte(" HTTP/")); decisions > lines {
			t.Fatalf("%d decisions on %d requests", decisions, lines)
		}
		if cut := serve(&piecesReader{bytes.NewReader(text), int(n) + 1}); cut != whole {
			t.Fatalf("at once:\n%s\nin pieces of %d:\n%s", whole, int(n)+1, cut)
		}
	})
}

// piecesReader reads at most n bytes at once.
type piecesReader struct {
	io.Reader
	n int
}

func (r *piecesReader) Read(p []byte) (int, error) { return r.Reader.Read(p[:min(len(p), r.n)]) }
