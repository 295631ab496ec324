package gateway

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/sluicegate/sluice/gateway/gatewaytest"
)

// shutdownAtOnce shuts the gateway down with a deadline that has passed, and
// fails the test if that takes long.
func (r *rig) shutdownAtOnce() {
	r.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	done := make(chan error, 1)
	go func() { done <- r.g.Shutdown(ctx) }()
	select {
	case err := <-done:
		if err != nil {
			r.t.Fatal(err)
		}
	case <-time.After(patience):
		r.t.Fatal("the shutdown does not end although its deadline has passed")
	}
}

// receiving counts the connections on which something has come.
func (g *Gateway) receiving() int {
	g.conns.mu.Lock()
	defer g.conns.mu.Unlock()
	n := 0
	for c := range g.conns.set {
		if c.received.Load() {
			n++
		}
	}
	return n
}

// TestShutdownCutsWhatIsLeft ends a stream at the deadline with an error event.
func TestShutdownCutsWhatIsLeft(t *testing.T) {
	worker := gatewaytest.NewWorker(t, gatewaytest.StallAfter(gatewaytest.RoleEvent, gatewaytest.ContentEvent("a", "")))
	r := newRig(t, []string{worker.URL()})
	client := r.chat(streamBody)
	body := client.Head().Body
	events := gatewaytest.NewEventReader(body)
	for range 2 {
		if _, err := events.Next(); err != nil {
			t.Fatal(err)
		}
	}
	r.shutdownAtOnce()
	rest, err := events.All()
	if err != nil || len(rest) != 1 || !strings.Contains(rest[0].Data, `"code":"unavailable"`) {
		t.Fatalf("got %v %v", rest, err)
	}
	if row := r.row(); row.InputTokens == 0 || row.OutputTokens != 1 {
		t.Errorf("row %+v", row)
	}
	select {
	case <-worker.Seen()[0].Left:
	case <-time.After(patience):
		t.Error("the worker still has the request")
	}
}

// TestShutdownDoesNotWaitForSlowRequests: a request that is still on its way
// at the deadline is refused.
func TestShutdownDoesNotWaitForSlowRequests(t *testing.T) {
	for name, text := range map[string]string{
		"in its header": "POST /v1/chat/completions HTTP/1.1\r\nHost: gateway.test\r\nAuth",
		"in its body":   "POST /v1/chat/completions HTTP/1.1\r\nHost: gateway.test\r\nAuthorization: Bearer " + goodKey + "\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n{",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, nil, withConfig(func(c *Config) { c.HeaderRead = time.Minute }))
			c := r.dial()
			if err := c.Write(text); err != nil {
				t.Fatal(err)
			}
			eventually(t, "the request's first bytes", func() bool { return r.g.receiving() == 1 })
			r.shutdownAtOnce()
			resp, body := c.Answer()
			wantError(t, resp, body, 503, "unavailable")
			if resp.Header.Get("Retry-After") == "" {
				t.Error("a 503 without Retry-After")
			}
		})
	}
}

// TestLateRequestsAreCut: a request that comes to its handler after everything
// that ran has been cut is cut as well.
func TestLateRequestsAreCut(t *testing.T) {
	worker := gatewaytest.NewWorker(t, gatewaytest.Stall())
	r := newRig(t, []string{worker.URL()})
	r.g.stopping.Store(true)
	resp, body := r.chat(streamBody).Answer()
	wantError(t, resp, body, 503, "unavailable")
	r.row()
}

// TestShutdownClosesIdleConnections needs no deadline for connections that wait.
func TestShutdownClosesIdleConnections(t *testing.T) {
	r := newRig(t, nil)
	c := r.dial()
	c.Send("GET", "/healthz", "")
	c.Answer()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if err := r.g.Shutdown(ctx); err != nil || ctx.Err() != nil {
		t.Fatalf("shutdown: %v, %v", err, ctx.Err())
	}
	if rest := c.Closed(); rest != "" {
		t.Errorf("got %q", rest)
	}
	if n := r.g.Connections(); n != 0 {
		t.Errorf("%d connections are left", n)
	}
}
