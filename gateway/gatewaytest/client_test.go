package gatewaytest

import (
	"bufio"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"syscall"
	"testing"
)

// accepted is what a server sees of one connection: its bytes and how it ends.
type accepted struct {
	data string
	err  error
}

// acceptOne reads one connection to its end.
func acceptOne(t *testing.T, config *tls.Config) (addr string, result <-chan accepted) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	if config != nil {
		listener = tls.NewListener(listener, config)
	}
	t.Cleanup(func() { listener.Close() })
	ch := make(chan accepted, 1)
	go func() {
		conn, err := listener.Accept()
		if err != nil {
			ch <- accepted{err: err}
			return
		}
		defer conn.Close()
		data, err := io.ReadAll(conn)
		ch <- accepted{string(data), err}
	}()
	return listener.Addr().String(), ch
}

func TestClientLeaves(t *testing.T) {
	cert := NewCertificate(t)
	f := func(name string, how Close, server, client *tls.Config, want error) {
		t.Run(name, func(t *testing.T) {
			t.Helper()
			addr, result := acceptOne(t, server)
			var c *Client
			if client != nil {
				c = DialTLS(t, addr, client)
			} else {
				c = Dial(t, addr)
			}
			if err := c.Write("half a requ"); err != nil {
				t.Fatal(err)
			}
			c.Leave(how)
			got := <-result
			// A reset may overtake the bytes before it.
			if !errors.Is(got.err, want) || how == FIN && got.data != "half a requ" {
				t.Errorf("the server sees %q and %v, want %v", got.data, got.err, want)
			}
		})
	}
	f("FIN", FIN, nil, nil, nil)
	f("RST", RST, nil, nil, syscall.ECONNRESET)
	f("TLS FIN", FIN, cert.Server, cert.Client, nil)
	f("TLS RST", RST, cert.Server, cert.Client, syscall.ECONNRESET)
}

func TestClientHalfClose(t *testing.T) {
	w := NewWorker(t, Stall())
	c := ask(t, w, chatRequest)
	seen := w.Next(t)
	if err := c.HalfClose(); err != nil {
		t.Fatal(err)
	}
	closed(t, "the half that is closed", seen.Left)
}

func TestRequestText(t *testing.T) {
	f := func(text, want string) {
		t.Helper()
		if text != want {
			t.Errorf("the request is %q, want %q", text, want)
		}
		if _, err := http.ReadRequest(bufio.NewReader(strings.NewReader(text))); err != nil {
			t.Errorf("%q is no request: %v", text, err)
		}
	}
	f(RequestText("GET", "/healthz", ""), "GET /healthz HTTP/1.1\r\nHost: gateway.test\r\n\r\n")
	f(RequestText("POST", "/x", "{}", "A: b", "C: d"),
		"POST /x HTTP/1.1\r\nHost: gateway.test\r\nContent-Type: application/json\r\nContent-Length: 2\r\nA: b\r\nC: d\r\n\r\n{}")
}

func TestEventReader(t *testing.T) {
	f := func(stream string, wantErr error, want ...Event) {
		t.Helper()
		got, err := NewEventReader(strings.NewReader(stream)).All()
		same := slices.EqualFunc(got, want, func(a, b Event) bool {
			return a.Name == b.Name && a.Data == b.Data && a.HasData == b.HasData && a.Raw == b.Raw && slices.Equal(a.Comments, b.Comments)
		})
		if !same || !errors.Is(err, wantErr) {
			t.Errorf("%q reads as %+v, %v, want %+v, %v", stream, got, err, want, wantErr)
		}
	}
	f("", nil)
	f("data: a\n\nevent: e\r\ndata:b\r\ndata: c\r\n\r\n", nil,
		Event{Data: "a", HasData: true, Raw: "data: a\n\n"},
		Event{Name: "e", Data: "b\nc", HasData: true, Raw: "event: e\r\ndata:b\r\ndata: c\r\n\r\n"})
	f(": keep-alive\n\ndata\n\n", nil, Event{Comments: []string{"keep-alive"}, Raw: ": keep-alive\n\n"}, Event{HasData: true, Raw: "data\n\n"})
	f("data: a\n\ndata: b\n", io.ErrUnexpectedEOF, Event{Data: "a", HasData: true, Raw: "data: a\n\n"})
	f("data: a", io.ErrUnexpectedEOF)
}

func TestCertificateFiles(t *testing.T) {
	cert := NewCertificate(t)
	if _, err := tls.LoadX509KeyPair(cert.CertFile, cert.KeyFile); err != nil {
		t.Error(err)
	}
}
