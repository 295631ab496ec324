package gateway

import (
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/sluicegate/sluice/gateway/gatewaytest"
	"github.com/sluicegate/sluice/tenancy"
	"slices"
)

// scarce is a listener that runs out of descriptors a number of times.
type scarce struct {
	net.Listener
	left atomic.Int32
}

func (l *scarce) Accept() (net.Conn, error) {
	if l.left.Add(-1) >= 0 {
		return nil, &net.OpError{Op: "accept", Net: "tcp", Err: os.NewSyscallError("accept4", syscall.EMFILE)}
	}
	return l.Listener.Accept()
}

// TestOutOfDescriptors: a moment without descriptors must not end the
// listener.
func TestOutOfDescriptors(t *testing.T) {
	r := newRig(t, nil, withListener(func(ln net.Listener) net.Listener {
		s := &scarce{Listener: ln}
		s.left.Store(3)
		return s
	}))
	c := r.dial()
	c.Send("GET", "/healthz", "")
	if resp, body := c.Answer(); resp.StatusCode != 200 {
		t.Errorf("got %d %s", resp.StatusCode, body)
	}
}

// TestSilentConnections: whoever says nothing is told nothing, however the
// silence ends.
func TestSilentConnections(t *testing.T) {
	r := newRig(t, nil, withConfig(func(c *Config) { c.HeaderRead = 100 * time.Millisecond }))
	if rest := r.dial().Closed(); rest != "" {
		t.Errorf("got %q", rest)
	}
	r.dial().Leave(gatewaytest.RST)
	eventually(t, "the connections' end", func() bool { return r.g.Connections() == 0 })
	if len(r.meter.framing) > 0 {
		t.Errorf("counted as bad framing: %v", r.meter.framing)
	}
}

// TestSlowHeader is refused once a byte has come.
func TestSlowHeader(t *testing.T) {
	t.Parallel()
	// Long enough for the first byte to come in time: after it nobody would be told.
	r := newRig(t, nil, withConfig(func(c *Config) { c.HeaderRead = 3 * time.Second }))
	c := r.dial()
	if err := c.Write("GET /hea"); err != nil {
		t.Fatal(err)
	}
	resp, body := c.Answer()
	wantError(t, resp, body, 408, "request_timeout")
	if rest := c.Closed(); rest != "" {
		t.Errorf("got %q after the answer", rest)
	}
}

// bodyHead is the head of a chat request with a body of 100 bytes.
const bodyHead = "POST /v1/chat/completions HTTP/1.1\r\nHost: gateway.test\r\nAuthorization: Bearer " + goodKey +
	"\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n"

// TestSlowBody is refused when no byte has come for a while, long before the
// time for the whole body is over; a connection between requests may wait
// longer.
func TestSlowBody(t *testing.T) {
	const idle = 2 * time.Second // far longer than a pause, shorter than all of them
	for _, secure := range []bool{false, true} {
		t.Run(fmt.Sprintf("TLS %v", secure), func(t *testing.T) {
			t.Parallel()
			opts := []rigOption{withConfig(func(c *Config) { c.BodyIdle = idle })}
			if secure {
				opts = append(opts, withTLS())
			}
			r := newRig(t, nil, opts...)
			c := r.dial()
			c.Send("GET", "/healthz", "")
			c.Answer()
			time.Sleep(idle + idle/4) // between requests this is no silence
			if err := c.Write(bodyHead + "{"); err != nil {
				t.Fatal(err)
			}
			for range 6 {
				time.Sleep(idle / 4) // every byte starts the time anew
				if err := c.Write(" "); err != nil {
					t.Fatal(err)
				}
			}
			resp, body := c.Answer()
			wantError(t, resp, body, 408, "request_timeout")
			if rest := c.Closed(); rest != "" {
				t.Errorf("got %q after the answer", rest)
			}
		})
	}
}

// TestSilenceAfterContinue is a body that has stopped as well.
func TestSilenceAfterContinue(t *testing.T) {
	r := newRig(t, nil, withConfig(func(c *Config) { c.BodyIdle = 100 * time.Millisecond }))
	c := r.dial()
	if err := c.Write(strings.Replace(bodyHead, "Content-Type", "Expect: 100-continue\r\nContent-Type", 1)); err != nil {
		t.Fatal(err)
	}
	if resp := c.Head(); resp.StatusCode != 100 {
		t.Fatalf("got %d, want 100", resp.StatusCode)
	}
	resp, body := c.Answer()
	wantError(t, resp, body, 408, "request_timeout")
}

// TestClientLeavesWhileSending is a client that left, not bad framing.
func TestClientLeavesWhileSending(t *testing.T) {
	for name, text := range map[string]string{"header": bodyHead[:40], "body": bodyHead + "{"} {
		for _, how := range []gatewaytest.Close{gatewaytest.FIN, gatewaytest.RST} {
			r := newRig(t, nil)
			c := r.dial()
			if err := c.Write(text); err != nil {
				t.Fatal(err)
			}
			eventually(t, "the request's first bytes", func() bool { return r.g.receiving() == 1 })
			c.Leave(how)
			eventually(t, "the connection's end", func() bool { return r.g.Connections() == 0 })
			s := r.meter.last()
			if s == nil || s.Row.Status != 499 || s.Phase != tenancy.PhaseRead || s.Row.Tenant != map[string]string{"body": "acme"}[name] || len(r.meter.framing) > 0 {
				t.Errorf("%s, %d: summary %+v, framing %v", name, how, s, r.meter.framing)
			}
			r.idle()
		}
	}
}

// TestAfterWrite: what waits for a write is called once, when the next one has
// returned, when another takes its place, or at the end.
func TestAfterWrite(t *testing.T) {
	worker := gatewaytest.NewWorker(t, gatewaytest.Chat("a"))
	r := newRig(t, []string{worker.URL()})
	client := r.dial()
	client.Send("GET", "/healthz", "")
	client.Answer() // the connection is served from here on
	r.g.conns.mu.Lock()
	var c *conn
	for c = range r.g.conns.set {
	}
	r.g.conns.mu.Unlock()
	var calls []string
	note := func(what string) func() { return func() { calls = append(calls, what) } }
	c.afterWrite(note("replaced"))
	c.afterWrite(note("written"))
	if !slices.Equal(calls, []string{"replaced"}) {
		t.Fatalf("before a write: %v", calls)
	}
	for range 2 {
		if _, err := c.Write([]byte("x")); err != nil {
			t.Fatal(err)
		}
	}
	c.afterWrite(note("closed"))
	for range 2 {
		_ = c.Close()
	}
	if !slices.Equal(calls, []string{"replaced", "written", "closed"}) {
		t.Errorf("called %v", calls)
	}
	client.Leave(gatewaytest.RST)
}

// TestBodyWithPausesInItsTime: a pause that both times allow is allowed, in the
// last moments of the body's time as well.
func TestBodyWithPausesInItsTime(t *testing.T) {
	t.Parallel()
	worker := gatewaytest.NewWorker(t, gatewaytest.Chat("a"))
	r := newRig(t, []string{worker.URL()}, withConfig(func(c *Config) {
		c.BodyRead, c.BodyIdle = 12*time.Second, 7*time.Second
	}))
	c := r.dial()
	if err := c.Write(strings.Replace(bodyHead, "100", strconv.Itoa(len(chatBody)), 1)); err != nil {
		t.Fatal(err)
	}
	// The second pause begins when less than BodyIdle is left of BodyRead, and ends
	// after the deadline that the first one had.
	for _, part := range []struct {
		pause time.Duration
		text  string
	}{{5200 * time.Millisecond, chatBody[:1]}, {2400 * time.Millisecond, chatBody[1:]}} {
		time.Sleep(part.pause)
		if err := c.Write(part.text); err != nil {
			t.Fatal(err)
		}
	}
	if resp, body := c.Answer(); resp.StatusCode != 200 {
		t.Errorf("got %d %s", resp.StatusCode, body)
	}
}
