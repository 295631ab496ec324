package gatewaytest

import (
	"bufio"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"
)

// Client is a client on one raw connection: it writes what it is told and
// leaves when it is told, in the way it is told.
type Client struct {
	t    testing.TB
	tcp  *net.TCPConn
	conn net.Conn // tcp, or TLS over it
	in   *bufio.Reader
}

// Dial connects a client to an address, and closes it when the test ends.
func Dial(t testing.TB, addr string) *Client {
	t.Helper()
	return DialFrom(t, "", addr, nil)
}

// DialTLS is Dial with TLS.
func DialTLS(t testing.TB, addr string, config *tls.Config) *Client {
	t.Helper()
	return DialFrom(t, "", addr, config)
}

// DialFrom is Dial from an address of this machine, such as one of its many loopback
// addresses, if local is not empty, and with TLS if config is not nil.
func DialFrom(t testing.TB, local, addr string, config *tls.Config) *Client {
	t.Helper()
	d := net.Dialer{Timeout: patience}
	if local != "" {
		d.LocalAddr = &net.TCPAddr{IP: net.ParseIP(local)}
	}
	conn, err := d.Dial("tcp", addr)
	if err != nil {
		t.Fatalf("cannot connect to %s: %v", addr, err)
	}
	c := &Client{t: t, tcp: conn.(*net.TCPConn), conn: conn, in: bufio.NewReader(conn)}
	t.Cleanup(func() { conn.Close() })
	c.deadline()
	if config == nil {
		return c
	}
	secure := tls.Client(c.tcp, config)
	if err := secure.Handshake(); err != nil {
		t.Fatalf("cannot shake hands with %s: %v", addr, err)
	}
	c.conn, c.in = secure, bufio.NewReader(secure)
	return c
}

// LocalAddr is the client's own address.
func (c *Client) LocalAddr() string { return c.tcp.LocalAddr().String() }

// Write sends bytes as they are. It returns an error only if the connection
// is gone.
func (c *Client) Write(p string) error {
	c.deadline()
	_, err := io.WriteString(c.conn, p)
	return err
}

// Send sends a request with a JSON body; extra header lines have the form
// "Name: value". It fails the test if the request cannot be written.
func (c *Client) Send(method, target, body string, header ...string) {
	c.t.Helper()
	if err := c.Write(RequestText(method, target, body, header...)); err != nil {
		c.t.Fatalf("cannot send a request: %v", err)
	}
}

// RequestText is the text of the request that Send sends.
func RequestText(method, target, body string, header ...string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s %s HTTP/1.1\r\nHost: gateway.test\r\n", method, target)
	if body != "" {
		fmt.Fprintf(&b, "Content-Type: application/json\r\nContent-Length: %d\r\n", len(body))
	}
	for _, line := range header {
		b.WriteString(line + "\r\n")
	}
	b.WriteString("\r\n" + body)
	return b.String()
}

// Head reads the head of the next answer; the body is read from it. It fails
// the test if none comes.
func (c *Client) Head() *http.Response {
	c.t.Helper()
	c.deadline()
	resp, err := http.ReadResponse(c.in, nil)
	if err != nil {
		c.t.Fatalf("cannot read the head of an answer: %v", err)
	}
	return resp
}

// Answer reads the next answer in full. It fails the test if it does not end
// properly.
func (c *Client) Answer() (*http.Response, string) {
	c.t.Helper()
	resp := c.Head()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		c.t.Fatalf("cannot read the body of an answer: %v", err)
	}
	return resp, string(body)
}

// Closed waits for the other side to end the connection, and returns the bytes
// that came before. It fails the test if the connection stays open.
func (c *Client) Closed() string {
	c.t.Helper()
	c.deadline()
	rest, err := io.ReadAll(c.in)
	if errors.Is(err, os.ErrDeadlineExceeded) {
		c.t.Fatalf("the connection is still open after %v", patience)
	}
	return string(rest)
}

// Leave ends the connection. With FIN a TLS client says so to its peer first;
// with RST nobody is told anything.
func (c *Client) Leave(how Close) {
	if how == RST {
		reset(c.tcp)
		return
	}
	c.conn.Close()
}

// KeepLittle makes the system keep little of what comes and is not read yet.
func (c *Client) KeepLittle() { _ = c.tcp.SetReadBuffer(128 << 10) }

// HalfClose ends only the client's sending side, below TLS.
func (c *Client) HalfClose() error { return c.tcp.CloseWrite() }

func (c *Client) deadline() { c.conn.SetDeadline(time.Now().Add(patience)) }
