package gateway

import (
	"bytes"
	"crypto/tls"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sluicegate/sluice/gateway/gatewaytest"
)

// handshakes are the failures that were counted.
func (m *memoryMeter) handshakes() []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Clone(m.handshake)
}

// TestFailedHandshakes are counted by their reason, and not as requests or as bad
// framing.
func TestFailedHandshakes(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil, withTLS(), withConfig(func(c *Config) { c.HeaderRead = 5 * time.Second })) // one is waited for
	r.tls.Server.MinVersion, r.tls.Server.NextProtos = tls.VersionTLS12, []string{"http/1.1"}
	talk := func(change func(*tls.Config)) func() {
		return func() {
			cfg := r.tls.Client.Clone()
			change(cfg)
			if c, err := tls.Dial("tcp", r.addr, cfg); err == nil {
				// The client may have done before the server refuses.
				_ = c.SetDeadline(time.Now().Add(patience))
				if _, err := c.Read(make([]byte, 1)); err == nil {
					t.Error("TLS was spoken")
				}
				c.Close()
			}
		}
	}
	for _, c := range []struct {
		want string
		do   func()
	}{
		{"no_tls", func() {
			c := gatewaytest.Dial(t, r.addr)
			_ = c.Write(gatewaytest.RequestText("GET", "/healthz", ""))
			if got := c.Closed(); strings.Contains(got, "HTTP/1.1 2") {
				t.Errorf("clear text got %q", got)
			}
		}},
		{"version", talk(func(c *tls.Config) { c.MinVersion, c.MaxVersion = tls.VersionTLS10, tls.VersionTLS11 })},
		{"protocol", talk(func(c *tls.Config) { c.NextProtos = []string{"h2"} })},
		{"client_alert", talk(func(c *tls.Config) { c.RootCAs = nil })},
		{"timeout", func() {
			c := gatewaytest.Dial(t, r.addr)
			_ = c.Write("\x16\x03\x01\x02\x00\x01") // the beginning of a record
			c.Closed()
		}},
	} {
		before := len(r.meter.handshakes())
		c.do()
		eventually(t, "the handshake's failure to be counted: "+c.want, func() bool { return len(r.meter.handshakes()) == before+1 })
		if got := r.meter.handshakes()[before]; got != c.want {
			t.Errorf("counted as %s, want %s", got, c.want)
		}
	}
	eventually(t, "the connections' end", func() bool { return r.g.Connections() == 0 })
	if len(r.meter.framing) > 0 || r.meter.count() > 0 {
		t.Errorf("counted as bad framing %v, as requests %d", r.meter.framing, r.meter.count())
	}
	for _, reason := range r.meter.handshakes() {
		if !slices.Contains(HandshakeReasons(), reason) {
			t.Errorf("the reason %s is not among those that may be told", reason)
		}
	}
}

// TestUnreadableRequestsAreRequests: what is refused before its route is known stands
// in the log with its caller's address and in the metrics, on no route.
func TestUnreadableRequestsAreRequests(t *testing.T) {
	for text, want := range map[string]int{
		"GET / HTTP/1.1\r\nHost: a\r\nHost : b\r\n\r\n":                                                        400,
		"POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\nX-Long: " + strings.Repeat("a", 70<<10) + "\r\n\r\n": 431,
		"GET /healthz HTTP/1.1\r\nHost":                                                                        408,
	} {
		out := &lockedBuffer{}
		r := newRig(t, nil, withConfig(func(c *Config) {
			if want == 408 { // after the time that the first byte has to come in nobody would be told
				c.HeaderRead = 3 * time.Second
			}
		}),
			withParts(func(p *Parts) { p.Log = slog.New(slog.NewTextHandler(out, nil)) }))
		c := r.dial()
		_ = c.Write(text)
		resp, body := c.Answer()
		if resp.StatusCode != want || !strings.Contains(body, `"error"`) || resp.Header.Get("X-Request-Id") == "" || !resp.Close {
			t.Errorf("got %d %v %s, want %d", resp.StatusCode, resp.Header, body, want)
		}
		r.idle()
		if n := r.meter.count(); n != 1 {
			t.Fatalf("%d requests were counted, want 1", n)
		}
		if s := r.meter.last(); s.Route != "none" || s.Method != "other" || s.Row.Status != want {
			t.Errorf("counted as %s %s %d", s.Method, s.Route, s.Row.Status)
		}
		if len(r.ledger.all()) > 0 {
			t.Error("there is a row of nobody's request")
		}
		line := out.String()
		if !strings.Contains(line, "msg=request") || !strings.Contains(line, "peer="+c.LocalAddr()) || bytes.Contains([]byte(line), []byte("aaaa")) {
			t.Errorf("the log: %s", line)
		}
	}
}
