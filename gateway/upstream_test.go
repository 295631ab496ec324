package gateway

import (
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluicegate/sluice/gateway/gatewaytest"
)

// TestIdleConnectionsAreClosed: connections to a worker that nobody asks any
// more don't stay open, since the worker has closed its side long before.
func TestIdleConnectionsAreClosed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		u := newUpstreams(time.Second, nil)
		var theirs []net.Conn
		put := func() {
			ours, other := net.Pipe()
			theirs = append(theirs, other)
			u.put(newUpstream(ours, "http://a"))
		}
		left := func() (workers int, sweeping bool) {
			u.mu.Lock()
			defer u.mu.Unlock()
			return len(u.idle), u.sweep != nil
		}
		put()
		time.Sleep(3 * time.Second)
		put()
		time.Sleep(2 * maxIdleUpstream)
		synctest.Wait()
		for i, c := range theirs {
			_ = c.SetReadDeadline(time.Now())
			if _, err := c.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
				t.Errorf("connection %d: got %v, want the end", i, err)
			}
		}
		if n, sweeping := left(); n != 0 || sweeping {
			t.Errorf("%d workers are left, sweeping %v", n, sweeping)
		}
		put()
		u.Close()
		put() // comes back from a request that ended late
		if n, sweeping := left(); n != 0 || sweeping {
			t.Errorf("after Close %d workers are left, sweeping %v", n, sweeping)
		}
	})
}

// TestUnaskedBytesAreNoAnswer: what a worker sends after an answer belongs to
// nobody, least of all to the next caller. Its connection isn't used again, as
// one that the worker has closed isn't.
func TestUnaskedBytesAreNoAnswer(t *testing.T) {
	for name, after := range map[string]func(net.Conn){
		"bytes": func(c net.Conn) { _, _ = c.Write([]byte("HTTP/1.1 200 OK\r\n")) },
		"end":   func(c net.Conn) { _ = c.Close() },
	} {
		for _, secure := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, TLS %v", name, secure), func(t *testing.T) {
				ln, err := net.Listen("tcp", "127.0.0.1:0")
				if err != nil {
					t.Fatal(err)
				}
				base, clients := &url.URL{Scheme: "http", Host: ln.Addr().String()}, (*tls.Config)(nil)
				if secure {
					cert := gatewaytest.NewCertificate(t)
					ln, clients, base.Scheme = tls.NewListener(ln, cert.Server), cert.Client, "https"
				}
				defer ln.Close()
				theirs := make(chan net.Conn, 2)
				go func() {
					for c, err := ln.Accept(); err == nil; c, err = ln.Accept() {
						_, _ = c.Write([]byte("!")) // an answer
						theirs <- c
					}
				}()
				u := newUpstreams(time.Second, clients)
				defer u.Close()
				get := func() *upstream {
					t.Helper()
					c, err := u.get(t.Context(), base, false)
					if err != nil {
						t.Fatal(err)
					}
					return c
				}
				c := get()
				if _, err := c.readSome(make([]byte, 1)); err != nil {
					t.Fatal(err)
				}
				u.put(c)
				if again := get(); again != c {
					t.Fatal("a quiet connection is not used again")
				}
				u.put(c)
				worker := <-theirs
				defer worker.Close()
				after(worker)
				eventually(t, "the bytes", func() bool { return !quiet(c.Conn) })
				other := get()
				defer other.Close()
				if other == c || other.reused {
					t.Error("it is used again")
				}
			})
		}
	}
}

// TestAbandonDoesNotBlock: the end of TLS is a write, which a worker that has
// stopped reading would hold up for seconds, and with it whoever closes.
func TestAbandonDoesNotBlock(t *testing.T) {
	cert := gatewaytest.NewCertificate(t)
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	accepted := make(chan *tls.Conn, 1)
	go func() {
		nc, err := ln.Accept()
		if err != nil {
			close(accepted)
			return
		}
		tc := tls.Server(nc, cert.Server)
		_ = tc.Handshake()
		accepted <- tc
	}()
	u := newUpstreams(patience, cert.Client)
	defer u.Close()
	base, err := url.Parse("https://localhost:" + ln.Addr().String()[len("127.0.0.1:"):])
	if err != nil {
		t.Fatal(err)
	}
	c, err := u.get(t.Context(), base, true)
	if err != nil {
		t.Fatal(err)
	}
	theirs := <-accepted
	if theirs == nil {
		t.Fatal("nothing was accepted")
	}
	defer theirs.Close()
	// Below TLS until nothing more fits, so that the next write blocks.
	_ = c.below().SetWriteDeadline(time.Now().Add(200 * time.Millisecond))
	for junk := make([]byte, 1<<20); err == nil; {
		_, err = c.below().Write(junk)
	}
	_ = c.below().SetWriteDeadline(time.Time{})
	began := time.Now()
	c.abandon()
	if took := time.Since(began); took > 4*time.Second { // crypto/tls would write for 5 s
		t.Errorf("it took %v", took)
	}
	_ = theirs.NetConn().SetReadDeadline(time.Now().Add(patience))
	if _, err := io.Copy(io.Discard, theirs.NetConn()); !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("the worker sees %v, want a reset", err)
	}
}
