//go:build !race

package gateway

import (
	"fmt"
	"net"
	"runtime"
	"testing"
	"time"

	"github.com/sluicegate/sluice/gateway/gatewaytest"
	"github.com/sluicegate/sluice/gateway/openai"
	"github.com/sluicegate/sluice/gateway/sse"
	"github.com/sluicegate/sluice/gateway/wire"
)

// tokenRelay is a relay in the middle of a chat, and the worker's end of its
// connection.
func tokenRelay(t testing.TB) (*relay, net.Conn) {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	ours, err := net.Dial("tcp", ln.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	theirs, err := ln.Accept()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ours.Close(); theirs.Close() })
	ex := &exchange{g: newRig(t, nil).g, underway: true, answerBegan: true}
	return &relay{
		ex: ex, body: &upstreamBody{c: newUpstream(ours, ""), chunks: &chunkDecoder{}, left: -1},
		scan: *sse.NewScanner(0), stream: openai.Codec{}.NewObserver(wire.Chat), tokenSeen: true, chunked: true,
	}, theirs
}

var tokenChunk = func() []byte {
	event := gatewaytest.ContentEvent(" token", "")
	return fmt.Appendf(nil, "%x\r\n%s\r\n", len(event), event)
}()

// passOn sends a token and passes it on to a client.
func passOn(t testing.TB, r *relay, theirs, client net.Conn) {
	if _, err := theirs.Write(tokenChunk); err != nil {
		t.Fatal(err)
	}
	for sent := false; !sent; {
		p, err := r.next()
		if err != nil {
			t.Fatal(err)
		}
		if sent = len(p) > 0; sent {
			if _, err := client.Write(p); err != nil {
				t.Fatal(err)
			}
		}
		r.written()
	}
}

// fewestAllocations is AllocsPerRun, which counts those of every goroutine, with the
// best of three tries.
func fewestAllocations(f func()) float64 {
	n := testing.AllocsPerRun(200, f)
	for range 2 {
		n = min(n, testing.AllocsPerRun(200, f))
	}
	return n
}

// nowhere is a client that takes everything.
type nowhere struct{ net.Conn }

func (nowhere) Write(p []byte) (int, error) { return len(p), nil }

// TestRelayAllocatesNothing: a token on its way from a worker to a client costs no
// memory that has to be collected.
func TestRelayAllocatesNothing(t *testing.T) {
	r, theirs := tokenRelay(t)
	if n := fewestAllocations(func() { passOn(t, r, theirs, nowhere{}) }); n > 0.5 {
		t.Errorf("%.1f allocations a token", n)
	}
	if r.out != nil || r.body.memory != nil || r.scan.Pending() != 0 {
		t.Error("memory is held between tokens")
	}
}

// BenchmarkRelayToken is the way of one token, from the worker's write on.
func BenchmarkRelayToken(b *testing.B) {
	r, theirs := tokenRelay(b)
	b.ReportAllocs()
	for b.Loop() {
		passOn(b, r, theirs, nowhere{})
	}
}

// TestHeadsAllocateLittle: what the connection loop itself takes for a request is none
// once its pools are warm.
func TestHeadsAllocateLittle(t *testing.T) {
	ours, theirs := net.Pipe()
	defer ours.Close()
	defer theirs.Close()
	s := &session{g: &Gateway{cfg: DefaultConfig()}, c: &conn{since: time.Now()}, nc: ours}
	text := []byte(gatewaytest.RequestText("POST", "/v1/chat/completions", "", "Authorization: Bearer x", "Content-Type: application/json", "Content-Length: 0"))
	request := make(chan struct{})
	defer close(request)
	go func() {
		for range request {
			_, _ = theirs.Write(text)
		}
	}()
	n := fewestAllocations(func() {
		request <- struct{}{}
		if err := s.in.readFirst(s.nc); err != nil {
			t.Fatal(err)
		}
		ctx := acquireCtx(s.nc)
		if err := s.readHead(&ctx.Request.Header); err != nil {
			t.Fatal(err)
		}
		releaseCtx(ctx)
		s.in.shrink()
	})
	if n > 1 {
		t.Errorf("%.1f allocations a head", n)
	}
	if s.in.buf != nil {
		t.Error("memory is held between requests")
	}
}

// TestIdleConnections: a connection that waits for its next request takes at most 12
// KiB, its client's end in this process included.
func TestIdleConnections(t *testing.T) {
	const connections = 500
	r := newRig(t, nil)
	text := []byte(gatewaytest.RequestText("GET", "/healthz", ""))
	clients := make([]net.Conn, connections)
	answer := make([]byte, 4<<10)
	open := func(i int) {
		c, err := net.Dial("tcp", r.addr)
		if err != nil {
			t.Fatal(err)
		}
		clients[i] = c
		if _, err := c.Write(text); err != nil {
			t.Fatal(err)
		}
		if _, err := c.Read(answer); err != nil {
			t.Fatal(err)
		}
	}
	defer func() {
		for _, c := range clients {
			if c != nil {
				c.Close()
			}
		}
	}()
	open(0)
	r.idle()
	before := memoryInUse()
	for i := 1; i < connections; i++ {
		open(i)
	}
	r.idle()
	if each := (memoryInUse() - before) / (connections - 1); each > 12<<10 {
		t.Errorf("an idle connection takes %d bytes", each)
	} else {
		t.Logf("an idle connection takes %d bytes", each)
	}
}

// memoryInUse is the heap that is in use and the stacks, after a collection.
func memoryInUse() int64 {
	runtime.GC()
	runtime.GC() // what pools keep through the first goes with the second
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc + m.StackInuse)
}
