package remote

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

// TestRedirects: prompt text goes to no other place than the configured one.
func TestRedirects(t *testing.T) {
	var followed atomic.Bool
	other := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { followed.Store(true) }))
	defer other.Close()
	for _, status := range []int{301, 302, 303, 307, 308} {
		srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, other.URL, status)
		}))
		for _, client := range []*http.Client{nil, srv.Client()} {
			d, err := New(testConfig(Presidio, srv.URL), client)
			if err != nil {
				t.Fatal(err)
			}
			want := fmt.Sprintf("detector d: it answers with a redirect (%d), which is not followed", status)
			if _, err := d.Detect(t.Context(), secret); err == nil || err.Error() != want {
				t.Errorf("%d: %v", status, err)
			}
			d.client.CloseIdleConnections()
		}
		srv.Close()
	}
	if followed.Load() {
		t.Error("a redirect was followed")
	}
}

// TestTimeouts: a service that takes the connection and says nothing, one that
// stops within its answer, and one that lets nobody in.
func TestTimeouts(t *testing.T) {
	release := make(chan struct{})
	hang := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/half" {
			_, _ = io.WriteString(w, `[{"entity_`)
			w.(http.Flusher).Flush()
		}
		select {
		case <-release:
		case <-r.Context().Done():
		}
	}))
	defer hang.Close()
	defer close(release)
	for _, path := range []string{"/whole", "/half"} {
		c := testConfig(Presidio, hang.URL+path)
		c.Timeout = 20 * time.Millisecond
		_, err := mustNew(t, c).Detect(t.Context(), secret)
		if !errors.Is(err, context.DeadlineExceeded) || err.Error() != "detector d: it has not answered in time: context deadline exceeded" {
			t.Errorf("%s: %v", path, err)
		}
	}
	c := testConfig(Presidio, hang.URL)
	c.Parallel, c.Timeout = 1, 50*time.Millisecond
	d := mustNew(t, c)
	d.slots <- struct{}{} // another request is under way
	if _, err := d.Detect(t.Context(), secret); !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "as 1 are under way") {
		t.Error(err)
	}
	if d.Requests() != 0 {
		t.Error("a request was sent without a place")
	}
}

// TestClientLeaves: the caller's context ends the wait, and that is no failure
// of the detector.
func TestClientLeaves(t *testing.T) {
	reached, release := make(chan struct{}), make(chan struct{})
	srv := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		close(reached)
		select {
		case <-release:
		case <-r.Context().Done():
		}
	}))
	defer srv.Close()
	defer close(release)
	var logged strings.Builder
	c := testConfig(Presidio, srv.URL)
	c.Log = slog.New(slog.NewTextHandler(&logged, nil))
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		<-reached
		cancel()
	}()
	if _, err := mustNew(t, c).Detect(ctx, "text"); !errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		t.Error(err)
	}
	if logged.Len() != 0 {
		t.Error(logged.String())
	}
}

// TestBrokenConnections: what the service sends instead of HTTP is not quoted.
func TestBrokenConnections(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			_, _ = io.WriteString(conn, secret+"\r\n\r\n")
			conn.Close()
		}
	}()
	d := mustNew(t, testConfig(Presidio, "http://"+l.Addr().String()))
	_, err = d.Detect(t.Context(), "text")
	if err == nil || strings.Contains(err.Error(), "MARK") || errors.Is(err, context.DeadlineExceeded) {
		t.Error(err)
	}
	l.Close()
	<-done
	if _, err := d.Detect(t.Context(), "text"); err == nil || !strings.Contains(err.Error(), "it can't be reached: dial tcp") {
		t.Error(err)
	}
}

// TestKeptConnections: a server that has closed a connection which we have kept
// is asked again on another one.
func TestKeptConnections(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	var headers []http.Header
	go func() {
		defer close(done)
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			in := bufio.NewReader(conn)
			req, err := http.ReadRequest(in)
			if err != nil {
				t.Error(err)
				return
			}
			_, _ = io.Copy(io.Discard, req.Body)
			headers = append(headers, req.Header)
			_, _ = io.WriteString(conn, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n[]")
			_, _ = in.ReadByte() // the next request has come, or the client has gone
			conn.Close()
		}
	}()
	d := mustNew(t, testConfig(Presidio, "http://"+l.Addr().String()))
	for range 3 {
		if _, err := d.Detect(t.Context(), "text"); err != nil {
			t.Error(err)
		}
	}
	d.client.CloseIdleConnections()
	l.Close()
	<-done
	if len(headers) != 3 || headers[0].Values("Idempotency-Key") != nil {
		t.Errorf("%d answers, headers %v", len(headers), headers)
	}
}

// TestTLS: a certificate must be good, and a client that knows the authority
// may be given.
func TestTLS(t *testing.T) {
	srv := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "[]") }))
	srv.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)
	srv.StartTLS()
	defer srv.Close()
	if _, err := mustNew(t, testConfig(Presidio, srv.URL)).Detect(t.Context(), secret); err == nil || !strings.Contains(err.Error(), "it can't be trusted") {
		t.Error(err)
	}
	d, err := New(testConfig(Presidio, srv.URL), srv.Client())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := d.Detect(t.Context(), "text"); err != nil {
		t.Error(err)
	}
}

// TestPlainHTTPStaysHere: a name that leads elsewhere is not called in the
// clear.
func TestPlainHTTPStaysHere(t *testing.T) {
	if conn, err := ownTransport("http", 1).DialContext(t.Context(), "tcp", "192.0.2.1:80"); err == nil || !strings.Contains(err.Error(), "the host leads to another machine, which http is not for") {
		t.Error(conn, err)
	}
}
