package gateway

import (
	"context"
	"strings"
	"sync/atomic"
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

// TestLateRequestsAreRefused: what comes on a kept connection when the listeners are
// closed is told to go elsewhere, however much of it was there before, while what
// runs goes on.
func TestLateRequestsAreRefused(t *testing.T) {
	open := make(chan struct{})
	worker := gatewaytest.NewWorker(t, gatewaytest.Gate(open,
		[]string{gatewaytest.RoleEvent, gatewaytest.ContentEvent("a", "")},
		[]string{gatewaytest.ContentEvent("b", "stop"), gatewaytest.UsageEvent(gatewaytest.Usage(1, 2)), gatewaytest.DoneEvent}))
	r := newRig(t, []string{worker.URL()})
	runs := r.chat(streamBody)
	events := gatewaytest.NewEventReader(runs.Head().Body)
	if _, err := events.Next(); err != nil {
		t.Fatal(err)
	}
	half := map[string]*gatewaytest.Client{}
	rest := map[string]string{}
	for name, text := range map[string]string{
		"chat":   gatewaytest.RequestText("POST", "/v1/chat/completions", chatBody, "Authorization: Bearer "+goodKey),
		"expect": gatewaytest.RequestText("POST", "/v1/chat/completions", chatBody, "Authorization: Bearer "+goodKey, "Expect: 100-continue"),
		"models": gatewaytest.RequestText("GET", "/v1/models", "", "Authorization: Bearer "+goodKey),
		"alive":  gatewaytest.RequestText("GET", "/healthz", ""),
		"ready":  gatewaytest.RequestText("GET", "/readyz", ""),
	} {
		c := r.dial()
		c.Send("GET", "/healthz", "")
		c.Answer()
		if err := c.Write(text[:12]); err != nil {
			t.Fatal(err)
		}
		half[name], rest[name] = c, text[12:]
	}
	eventually(t, "the beginnings of the requests", func() bool { return r.g.midway() == len(half)+1 })
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	done := make(chan error, 1)
	go func() { done <- r.g.Shutdown(ctx) }()
	eventually(t, "the shutdown", r.g.closing.Load)
	for name, c := range half {
		if err := c.Write(rest[name]); err != nil {
			t.Fatal(err)
		}
		resp, body := c.Answer()
		switch name {
		case "alive":
			if resp.StatusCode != 200 {
				t.Errorf("%s: got %d %s", name, resp.StatusCode, body)
			}
		case "ready":
			if resp.StatusCode != 503 || !strings.Contains(body, "draining") {
				t.Errorf("%s: got %d %s", name, resp.StatusCode, body)
			}
		default:
			wantError(t, resp, body, 503, "unavailable")
			if resp.Header.Get("Retry-After") == "" {
				t.Errorf("%s: a 503 without Retry-After", name)
			}
		}
		if !resp.Close {
			t.Errorf("%s: the connection is kept", name)
		}
	}
	close(open)
	if all, err := events.All(); err != nil || len(all) != 3 && len(all) != 2 {
		t.Errorf("the running stream: %v %v", all, err)
	}
	if err := <-done; err != nil {
		t.Errorf("shutdown: %v", err)
	}
	if n := len(worker.Seen()); n != 1 {
		t.Errorf("the worker saw %d requests, want 1", n)
	}
}

// midway counts the connections on which a request is on its way or runs.
func (g *Gateway) midway() int {
	g.conns.mu.Lock()
	defer g.conns.mu.Unlock()
	n := 0
	for c := range g.conns.set {
		if c.midway.Load() {
			n++
		}
	}
	return n
}

// TestShutdownDoesNotWaitForSlowReaders: at the deadline a client gets a little longer
// to take what is there for it, however much that is, and no more.
func TestShutdownDoesNotWaitForSlowReaders(t *testing.T) {
	for name, how := range map[string]struct {
		body string
		opts []rigOption
	}{
		"an answer":          {chatBody, nil},
		"an answer over TLS": {chatBody, []rigOption{withTLS()}},
		"a stream":           {streamBody, nil},
		"a stream over TLS":  {streamBody, []rigOption{withTLS()}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var sent atomic.Int64
			stream, answer := endless(&sent), gatewaytest.ChatBody(strings.Repeat("a", 24<<20), gatewaytest.Usage(1, 1))
			worker := gatewaytest.NewWorker(t, func(x *gatewaytest.Exchange) {
				if x.WantsStream() {
					stream(x)
					return
				}
				x.Respond(200, "application/json", answer)
			})
			r := newRig(t, []string{worker.URL()}, append(how.opts, withConfig(func(c *Config) { c.ClientWrite = time.Minute }))...)
			c := r.dial()
			c.KeepLittle()
			c.Send("POST", "/v1/chat/completions", how.body, "Authorization: Bearer "+goodKey)
			c.Head() // the rest is not read
			eventually(t, "everything on the way to be full", func() bool {
				before := sent.Load()
				time.Sleep(200 * time.Millisecond)
				return sent.Load() == before && (before > 0 || how.body == chatBody)
			})
			r.shutdownAtOnce()
			if n := r.g.Connections(); n != 0 {
				t.Errorf("%d connections are left", n)
			}
			r.row()
		})
	}
}
