package gateway

import (
	"net"
	"os"
	"sync/atomic"
	"syscall"
	"testing"
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
