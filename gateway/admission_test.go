package gateway

import (
	"errors"
	"net"
	"net/netip"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/sluicegate/sluice/gateway/gatewaytest"
)

func TestAdmission(t *testing.T) {
	a := NewAdmission(6, 2, []netip.Prefix{netip.MustParsePrefix("10.9.0.0/16")})
	var open []func()
	f := func(addr, want string) {
		t.Helper()
		release, reason := a.Enter(netip.MustParseAddr(addr))
		if reason != want || (release != nil) != (want == "") {
			t.Errorf("%s: got %q, want %q", addr, reason, want)
		}
		if release != nil {
			open = append(open, release)
		}
	}
	f("192.0.2.1", "")
	f("::ffff:192.0.2.1", "") // the same
	f("192.0.2.1", "address")
	f("2001:db8:1:2::1", "")
	f("2001:db8:1:2:ffff::9", "") // the same network of 64 bits
	f("2001:db8:1:2::7", "address")
	f("10.9.1.1", "")
	f("10.9.1.1", "") // a proxy; with it all are taken
	f("10.9.1.1", "total")
	f("192.0.2.9", "total")
	f("192.0.2.1", "address")
	if got := a.Refused(); got["total"] != 2 || got["address"] != 3 || len(got) != 2 {
		t.Errorf("counted %v", got)
	}
	open[0]()
	open[2]()
	f("192.0.2.1", "")
	f("2001:db8:1:2::1", "")
	for i, release := range open {
		if i != 0 && i != 2 {
			release()
		}
	}
	if a.open != 0 || len(a.by) != 0 {
		t.Errorf("%d and %v are left", a.open, a.by)
	}
	free := NewAdmission(0, 0, nil)
	for range 100 {
		if _, reason := free.Enter(netip.Addr{}); reason != "" {
			t.Fatalf("refused for %s without a bound", reason)
		}
	}
}

// refused reports whether a connection from one of this machine's many loopback
// addresses is reset without a byte.
func refused(t *testing.T, local, addr string) bool {
	t.Helper()
	d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(local)}, Timeout: patience}
	c, err := d.DialContext(t.Context(), "tcp", addr)
	if err == nil {
		defer c.Close()
		_ = c.SetDeadline(time.Now().Add(patience))
		_, err = c.Read(make([]byte, 1))
	}
	return errors.Is(err, syscall.ECONNRESET)
}

// TestConnectionsOfOneAddress: whoever opens as many connections as they may, half of
// a TLS handshake on each, keeps nobody else out, and costs no TLS beyond them.
func TestConnectionsOfOneAddress(t *testing.T) {
	const most = 20
	r := newRig(t, nil, withTLS(), withConfig(func(c *Config) {
		c.Connections, c.ConnectionsPerAddress, c.HeaderRead = 100, most, time.Minute
	}))
	var held []*gatewaytest.Client
	for range most {
		c := gatewaytest.Dial(t, r.addr)
		if err := c.Write("\x16\x03\x01\x02\x00\x01"); err != nil { // the beginning of a record
			t.Fatal(err)
		}
		held = append(held, c)
	}
	eventually(t, "the connections to be open", func() bool { return r.g.Connections() == most })
	var wg sync.WaitGroup
	for range 200 {
		wg.Go(func() {
			if !refused(t, "127.0.0.1", r.addr) {
				t.Error("a connection beyond the limit was not reset")
			}
		})
	}
	wg.Wait()
	if got := r.g.Refused(); got["address"] != 200 || got["total"] != 0 {
		t.Errorf("counted %v", got)
	}
	other := gatewaytest.DialFrom(t, "127.0.0.2", r.addr, r.tls.Client)
	other.Send("GET", "/healthz", "")
	if resp, body := other.Answer(); resp.StatusCode != 200 {
		t.Errorf("another address got %d %s", resp.StatusCode, body)
	}
	for _, c := range held {
		c.Leave(gatewaytest.RST)
	}
	eventually(t, "the connections' end", func() bool { return r.g.Connections() <= 1 })
	c := r.dial()
	c.Send("GET", "/healthz", "")
	if resp, body := c.Answer(); resp.StatusCode != 200 {
		t.Errorf("the address has its connections back, but got %d %s", resp.StatusCode, body)
	}
}

// TestConnectionsInAll are bounded, too, and an end makes room.
func TestConnectionsInAll(t *testing.T) {
	r := newRig(t, nil, withConfig(func(c *Config) { c.Connections, c.HeaderRead = 3, time.Minute }))
	first := gatewaytest.DialFrom(t, "127.0.0.1", r.addr, nil)
	gatewaytest.DialFrom(t, "127.0.0.2", r.addr, nil)
	gatewaytest.DialFrom(t, "127.0.0.3", r.addr, nil)
	eventually(t, "the connections to be open", func() bool { return r.g.Connections() == 3 })
	if !refused(t, "127.0.0.4", r.addr) {
		t.Error("a connection beyond the limit was not reset")
	}
	if got := r.g.Refused(); got["total"] != 1 {
		t.Errorf("counted %v", got)
	}
	first.Leave(gatewaytest.FIN)
	eventually(t, "an end to make room", func() bool { return r.g.Connections() == 2 })
	c := r.dial()
	c.Send("GET", "/healthz", "")
	if resp, body := c.Answer(); resp.StatusCode != 200 {
		t.Errorf("got %d %s", resp.StatusCode, body)
	}
}
