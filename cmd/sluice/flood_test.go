package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"
)

// TestHandshakeFlood opens a great many connections to a gateway with TLS that begin a handshake and say no
// more, first from one address, then from many. A client is served on new connections all the while; one
// address gets no more than its share; what is held costs a descriptor and little memory each, and all of it
// is free when they have gone. SLUICE_TEST_CONNECTIONS says how many; `make flood` takes 10,000.
func TestHandshakeFlood(t *testing.T) {
	n := int(testNumber(t, "SLUICE_TEST_CONNECTIONS", 1000))
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil || limit.Max < uint64(n+1000) {
		t.Fatalf("%d connections take more file descriptors than this process may have (%d, %v): raise its hard limit", n, limit.Max, err)
	}
	share := n / 4
	f := startFlood(t, fmt.Sprintf("limits: { connections: %d, connectionsPerAddress: %d, headerRead: 5m }\nlog: {", n+200, share))
	for _, wave := range []struct {
		name string
		from func(i int) string
		held int
	}{
		{"one address", func(int) string { return "127.1.0.1" }, share},
		{"many addresses", func(i int) string { return fmt.Sprintf("127.2.%d.%d", i>>8, i&0xff) }, n},
	} {
		before, refused := f.look(), f.child.metric(t, "sluice_http_connections_refused_total")
		served, stop := f.serveMeanwhile()
		halves := f.open(n, wave.from)
		soon(t, wave.name+": the connections", childPatience, func() bool {
			return f.child.metric(t, "sluice_http_connections") >= float64(wave.held) &&
				f.child.metric(t, "sluice_http_connections_refused_total")-refused >= float64(n-wave.held)
		})
		during := f.look()
		for had := served(); served() < had+20 && !t.Failed(); { // while all of them are there
			time.Sleep(time.Millisecond)
		}
		stop()
		each := (during.memory - before.memory) / float64(wave.held)
		t.Logf("%s: %d handshakes begun, %.0f connections held, %.0f descriptors (%.0f before), %.1f MB (%.1f before, %.1f KB each), %d requests served, the slowest in %v",
			wave.name, n, during.connections, during.files, before.files, during.memory/1e6, before.memory/1e6, each/1e3, served(), f.slowest)
		if during.connections > float64(wave.held+50) || during.files > before.files+float64(wave.held)+100 {
			t.Errorf("%s: %+v, want at most %d connections more than %+v", wave.name, during, wave.held, before)
		}
		if grown := during.memory - before.memory; grown > float64(wave.held*64<<10+64<<20) {
			t.Errorf("%s: they take %.0f bytes", wave.name, grown)
		}
		for _, c := range halves {
			if c != nil {
				_ = c.Close()
			}
		}
		soon(t, wave.name+": their end", childPatience, func() bool {
			now := f.look()
			return now.connections <= before.connections+20 && now.files <= before.files+50
		})
	}
	f.child.stop(t)
}

// flood is a gateway with TLS in a process of its own, and a client.
type flood struct {
	*testing.T
	child   *child
	key     string
	trust   *tls.Config
	slowest time.Duration // of the client's requests; to be read when none is under way
}

// floodState is what the gateway holds.
type floodState struct{ connections, files, memory float64 }

func startFlood(t *testing.T, limits string) *flood {
	t.Helper()
	d := startWorkers(t)
	pair := validPair(t)
	put(t, filepath.Join(d.dir, "tls.crt"), pair.cert)
	put(t, filepath.Join(d.dir, "tls.key"), pair.key)
	file := filepath.Join(d.dir, "sluice.yaml")
	replaceIn(t, file, `public: { address: "127.0.0.1:0" }`, `public: { address: "127.0.0.1:0", tls: { certFile: tls.crt, keyFile: tls.key } }`,
		"level: warn", "level: info", "log: {", limits)
	f := &flood{T: t, key: d.keys["acme"], trust: &tls.Config{RootCAs: x509.NewCertPool(), ServerName: "localhost"}}
	f.trust.RootCAs.AddCert(pair.leaf)
	f.child = startChild(t, file)
	f.child.client, f.child.scheme = f.client(), "https"
	f.child.waitReady(t)
	return f
}

// client calls from an address of its own, each time on a new connection.
func (f *flood) client() *http.Client {
	d := &net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP("127.9.9.9")}, Timeout: childPatience}
	return &http.Client{Timeout: childPatience, Transport: &http.Transport{TLSClientConfig: f.trust, DialContext: d.DialContext, DisableKeepAlives: true}}
}

func (f *flood) look() floodState {
	f.Helper()
	return floodState{
		f.child.metric(f, "sluice_http_connections"), f.child.metric(f, "process_open_fds"), f.child.metric(f, "process_resident_memory_bytes"),
	}
}

// serveMeanwhile has the client ask for something until stop is called, which waits for its end. served says
// how many answers it has got.
func (f *flood) serveMeanwhile() (served func() int, stop func()) {
	public, _, _ := f.child.addresses()
	ctx, cancel := context.WithCancel(f.Context())
	var mu sync.Mutex // protects count
	count := 0
	var work sync.WaitGroup
	work.Go(func() {
		client := f.client()
		f.slowest = 0
		for ctx.Err() == nil {
			req, err := http.NewRequest(http.MethodGet, "https://"+public+"/v1/models", nil)
			if err != nil {
				f.Error(err)
				return
			}
			req.Header.Set("Authorization", "Bearer "+f.key)
			begun := time.Now()
			resp, err := client.Do(req)
			if err != nil {
				f.Errorf("a client that does nothing wrong: %v", err)
				return
			}
			_, _ = io.Copy(io.Discard, resp.Body)
			resp.Body.Close()
			if resp.StatusCode != http.StatusOK {
				f.Errorf("a client that does nothing wrong got %d", resp.StatusCode)
			}
			f.slowest = max(f.slowest, time.Since(begun))
			mu.Lock()
			count++
			mu.Unlock()
		}
	})
	served = func() int {
		mu.Lock()
		defer mu.Unlock()
		return count
	}
	return served, func() { cancel(); work.Wait() }
}

// open begins n handshakes and leaves them there. Those of one address that are too many are reset.
func (f *flood) open(n int, from func(i int) string) []net.Conn {
	f.Helper()
	public, _, _ := f.child.addresses()
	all := make([]net.Conn, n)
	var work sync.WaitGroup
	const abreast = 32
	for first := range abreast {
		work.Go(func() {
			for i := first; i < n; i += abreast {
				d := &net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from(i))}, Timeout: childPatience}
				c, err := d.DialContext(f.Context(), "tcp", public)
				if errors.Is(err, syscall.ECONNRESET) {
					continue // it was refused before it knew that it was there
				}
				if err != nil {
					f.Errorf("connection %d: %v", i, err)
					return
				}
				_, _ = c.Write([]byte("\x16\x03\x01\x02\x00\x01")) // the beginning of a record
				all[i] = c
			}
		})
	}
	work.Wait()
	if f.Failed() {
		for _, c := range all {
			if c != nil {
				_ = c.Close()
			}
		}
		f.FailNow()
	}
	return all
}
