package main

import (
	"context"
	"errors"
	"net"
	"strings"
	"sync"
	"testing"
	"time"
)

func TestSchedule(t *testing.T) {
	at := schedule(1000, time.Second, false, 1)
	if len(at) != 1000 {
		t.Fatalf("%d starts in a second at 1,000 a second", len(at))
	}
	for i, d := range at {
		if want := time.Duration(i) * time.Millisecond; (d - want).Abs() > time.Microsecond {
			t.Fatalf("start %d is at %v, want %v", i, d, want)
		}
	}
	poisson := schedule(1000, 10*time.Second, true, 1)
	// Five standard deviations.
	if n := len(poisson); n < 9500 || n > 10500 {
		t.Errorf("%d starts in ten seconds at 1,000 a second", n)
	}
	again := schedule(1000, 10*time.Second, true, 1)
	for i := range poisson {
		if poisson[i] != again[i] || i > 0 && poisson[i] < poisson[i-1] {
			t.Fatalf("start %d is out of order, or differs for the same seed", i)
		}
	}
}

// listen serves one engine in clear and over TLS.
func listen(t *testing.T, e *engine) (plain, secure *target) {
	t.Helper()
	env := &env{dir: t.TempDir()}
	if err := env.makeCertificate(); err != nil {
		t.Fatal(err)
	}
	serverTLS, err := env.serverTLS()
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var group sync.WaitGroup
	t.Cleanup(func() { cancel(); group.Wait() })
	serve := func(secure bool) *target {
		ln, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		tg := &target{addr: ln.Addr().String(), key: "none"}
		cfg := serverTLS
		if secure {
			tg.tls = env.tls()
		} else {
			cfg = nil
		}
		group.Go(func() {
			if err := e.serve(ctx, ln, cfg); err != nil {
				t.Error(err)
			}
		})
		return tg
	}
	return serve(false), serve(true)
}

func TestEngineAndClient(t *testing.T) {
	plain, secure := listen(t, newEngine(16, 0))
	for name, tg := range map[string]*target{"plain": plain, "TLS": secure} {
		for _, stream := range []bool{false, true} {
			j := job{stream: stream, bytes: kilobyte, patience: 10 * time.Second}
			requests := tg.requests(j, 3, 1)
			if _, body, _ := strings.Cut(string(requests[0]), "\r\n\r\n"); len(body) < kilobyte-16 || len(body) > kilobyte+16 {
				t.Errorf("a body has %d bytes, want about %d", len(body), kilobyte)
			}
			c, err := dial(tg.addr, tg.tls)
			if err != nil {
				t.Fatal(err)
			}
			for _, r := range requests { // one connection
				a, err := c.do(r, j.patience, nil)
				if err != nil || a.status != 200 || a.stream != stream || a.done != stream || a.bytes == 0 || a.last.IsZero() || a.first.IsZero() == stream {
					t.Errorf("%s, stream %v: %+v, %v", name, stream, a, err)
				}
			}
			_ = c.nc.Close()
		}
	}
}

func TestFailuresAreCounted(t *testing.T) {
	tests := map[string]struct {
		answer string
		kind   string
	}{
		"another status": {"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 2\r\n\r\n{}", "status 503"},
		"no end":         {"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n6\r\ndata:\n\r\n0\r\n\r\n", errNoEnd.Error()},
		"not a stream":   {"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}", "an answer of the other kind"},
	}
	for name, test := range tests {
		e := newEngine(1, 0)
		e.unary = []byte(test.answer)
		plain, _ := listen(t, e)
		j := job{bytes: kilobyte, patience: 10 * time.Second}
		requests := plain.requests(j, 1, 1) // not a stream, so that the engine gives the answer above
		p := &pool{t: plain, failures: make(map[string]int)}
		var o outcome
		j.stream = true
		p.do(requests[0], j, time.Now(), &o)
		if !o.failed || p.failures[test.kind] != 1 {
			t.Errorf("%s: failed is %v, failures are %v", name, o.failed, p.failures)
		}
		p.close()
	}
}

// An engine that answers nobody before all have asked: a generator that waited
// for an answer before it starts the next would never end.
func TestStartsDoNotWaitForAnswers(t *testing.T) {
	const n = 20
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var asked, group sync.WaitGroup
	asked.Add(n)
	group.Go(func() {
		for warm := true; ; {
			nc, err := ln.Accept()
			if errors.Is(err, net.ErrClosed) {
				return
			}
			if err != nil {
				t.Error(err)
				return
			}
			first := warm
			warm = false
			group.Go(func() {
				defer nc.Close()
				buf := make([]byte, 4096)
				for skip := first; ; skip = false {
					if _, err := nc.Read(buf); err != nil {
						return
					}
					if !skip {
						asked.Done()
						asked.Wait()
					}
					if _, err := nc.Write(response("application/json", "{}")); err != nil {
						return
					}
				}
			})
		}
	})
	defer group.Wait()
	defer ln.Close()
	tg := &target{addr: ln.Addr().String()}
	s, err := openLoop(context.Background(), tg, job{bytes: 300, patience: 20 * time.Second}, schedule(2000, n*500*time.Microsecond, false, 1), 1, 1)
	if err != nil {
		t.Fatal(err)
	}
	if s.Requests != n || s.Failed != 0 || s.Dropped != 0 || s.Connections < n {
		t.Errorf("%+v", s)
	}
	// The first waits for the last to ask, which its schedule fixes.
	if s.Last.Max < 9000 {
		t.Errorf("the longest took %.0f us although the last request started 9,500 us after the first", s.Last.Max)
	}
}

func TestQuantiles(t *testing.T) {
	var v []float64
	for i := range 1000 {
		v = append(v, float64(999-i))
	}
	if got, want := quantilesOf(v), (quantiles{500, 900, 990, 999, 999}); got != want {
		t.Errorf("%v, want %v", got, want)
	}
	if got := middleOf([]float64{3, 1, 2}).String(); got != "2 (1-3)" {
		t.Error(got)
	}
}
