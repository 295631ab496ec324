package gateway

import (
	"io"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sluicegate/sluice/gateway/gatewaytest"
	"github.com/sluicegate/sluice/tenancy"
)

// TestSlowClientIsNoSilence: the time for which a client doesn't read is not
// its worker's silence, so the stream goes on and the worker is not blamed.
func TestSlowClientIsNoSilence(t *testing.T) {
	t.Parallel()
	event := gatewaytest.ContentEvent(strings.Repeat("a", 1<<20), "")
	const events = 8
	worker := gatewaytest.NewWorker(t, func(x *gatewaytest.Exchange) {
		x.StreamHead()
		for range events {
			x.Chunk(event)
		}
		x.Chunk(gatewaytest.DoneEvent)
		x.End()
	})
	r := newRig(t, []string{worker.URL()}, withConfig(func(c *Config) { c.StreamIdle = 4 * time.Second }),
		withListener(func(ln net.Listener) net.Listener { return narrow{ln} }))
	c := r.chat(streamBody)
	resp := c.Head()
	time.Sleep(8 * time.Second) // by then everything between the two is full
	text, err := io.ReadAll(resp.Body)
	if err != nil || len(text) != events*len(event)+len(gatewaytest.DoneEvent) {
		t.Errorf("got %d bytes, %v", len(text), err)
	}
	if row := r.row(); row.Outcome != tenancy.OutcomeCompleted {
		t.Errorf("row %+v", row)
	}
	r.health.mu.Lock()
	defer r.health.mu.Unlock()
	if r.health.failures != 0 || r.health.successes != 1 {
		t.Errorf("the worker has %d failures and %d successes, want 0 and 1", r.health.failures, r.health.successes)
	}
}

// endless streams events of 16 KiB until its client leaves, and counts their bytes.
func endless(sent *atomic.Int64) gatewaytest.Behaviour {
	event := gatewaytest.ContentEvent(strings.Repeat("a", 16<<10), "")
	return func(x *gatewaytest.Exchange) {
		x.StreamHead()
		for x.Pause(0) {
			x.Chunk(event)
			sent.Add(int64(len(event)))
		}
	}
}

// narrow gives the connections of a listener little room for what is not read yet.
type narrow struct{ net.Listener }

func (l narrow) Accept() (net.Conn, error) {
	nc, err := l.Listener.Accept()
	if err == nil {
		err = nc.(*net.TCPConn).SetWriteBuffer(16 << 10)
	}
	return nc, err
}

// TestClientThatDoesNotRead has left, when the time for a write is over: its worker is
// free, and not to blame.
func TestClientThatDoesNotRead(t *testing.T) {
	for _, secure := range []bool{false, true} {
		var sent atomic.Int64
		worker := gatewaytest.NewWorker(t, endless(&sent))
		opts := []rigOption{withConfig(func(c *Config) { c.ClientWrite = 500 * time.Millisecond })}
		if secure {
			opts = append(opts, withTLS())
		}
		r := newRig(t, []string{worker.URL()}, opts...)
		c := r.chat(streamBody)
		c.Head()
		seen := worker.Next(t)
		select {
		case <-seen.Left:
		case <-time.After(patience):
			t.Fatal("the worker still has the request")
		}
		if row := r.row(); row.Outcome != tenancy.OutcomeClientAborted || row.Status != 499 || row.Phase != tenancy.PhaseStream || !row.Flags.Has(tenancy.FlagAborted) {
			t.Errorf("row %+v", row)
		}
		r.health.mu.Lock()
		if r.health.failures != 0 {
			t.Errorf("the worker has %d failures", r.health.failures)
		}
		r.health.mu.Unlock()
	}
}

// TestSlowDownload: a large answer that is read slowly comes whole, though it takes
// longer than one write may be blocked.
func TestSlowDownload(t *testing.T) {
	t.Parallel()
	answer := gatewaytest.ChatBody(strings.Repeat("a", 24<<20), gatewaytest.Usage(1, 1))
	worker := gatewaytest.NewWorker(t, gatewaytest.JSON(200, answer))
	r := newRig(t, []string{worker.URL()}, withConfig(func(c *Config) { c.ClientWrite = 4 * time.Second }))
	c := r.chat(chatBody)
	body := c.Head().Body
	got := 0
	for part := make([]byte, 512<<10); ; time.Sleep(100 * time.Millisecond) {
		n, err := io.ReadFull(body, part)
		got += n
		if err != nil {
			break
		}
	}
	if got != len(answer) {
		t.Errorf("got %d bytes of %d", got, len(answer))
	}
}

// TestStreamOutlivesEveryLimit: there is no limit on how long a stream may run.
func TestStreamOutlivesEveryLimit(t *testing.T) {
	t.Parallel()
	const events = 40
	const limit = 3 * time.Second // far longer than a pause, shorter than all of them
	worker := gatewaytest.NewWorker(t, func(x *gatewaytest.Exchange) {
		x.StreamHead()
		for range events {
			x.Chunk(gatewaytest.ContentEvent("a", ""))
			if !x.Pause(100 * time.Millisecond) {
				return
			}
		}
		x.Chunk(gatewaytest.DoneEvent)
		x.End()
	})
	for _, secure := range []bool{false, true} {
		opts := []rigOption{withConfig(func(c *Config) {
			c.HeaderRead, c.BodyRead, c.BodyIdle, c.IdleConnection, c.ClientWrite = limit, limit, limit, limit, limit
			c.Connect, c.FirstByteStream, c.FirstByteUnary, c.StreamIdle, c.KeepAliveComment = limit, limit, limit, limit, limit
		})}
		if secure {
			opts = append(opts, withTLS())
		}
		r := newRig(t, []string{worker.URL()}, opts...)
		_, text, err := read(t, r.chat(streamBody))
		if n := strings.Count(text, "data: "); err != nil || n != events+1 {
			t.Errorf("TLS %v: got %d events, %v", secure, n, err)
		}
		if row := r.row(); row.Outcome != tenancy.OutcomeCompleted || row.Duration < limit {
			t.Errorf("row %+v", row)
		}
	}
}
