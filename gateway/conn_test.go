package gateway

import (
	"net"
	"os"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/sluicegate/sluice/gateway/gatewaytest"
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
	r := newRig(t, nil, withConfig(func(c *Config) { c.HeaderRead = 100 * time.Millisecond }))
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
