package discovery

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/sluicegate/sluice/scoring"
)

// server is a worker's HTTP side on a real listener.
type server struct {
	addr string
	http *http.Server
	done chan struct{}
}

func startServer(t *testing.T, addr string, e *engine) *server {
	t.Helper()
	ln, err := net.Listen("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	s := &server{addr: ln.Addr().String(), done: make(chan struct{})}
	s.http = &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		resp, err := e.RoundTrip(r)
		if err != nil {
			panic(http.ErrAbortHandler)
		}
		w.WriteHeader(resp.StatusCode)
		_, _ = io.Copy(w, resp.Body)
	})}
	go func() {
		defer close(s.done)
		_ = s.http.Serve(ln)
	}()
	t.Cleanup(s.kill)
	return s
}

func (s *server) kill() {
	s.http.Close()
	<-s.done
}

// A worker on a real socket dies and comes back; picks follow.
func TestCheckerOverNetwork(t *testing.T) {
	engines := []*engine{newEngine(), newEngine()}
	servers := []*server{startServer(t, "127.0.0.1:0", engines[0]), startServer(t, "127.0.0.1:0", engines[1])}
	var workers []Worker
	for i, s := range servers {
		w := worker([]string{"w1", "w2"}[i])
		w.URL = "http://" + s.addr + "/"
		workers = append(workers, w)
	}
	f := scoring.NewFleet(scoring.DefaultConfig())
	cfg := DefaultConfig()
	cfg.Interval, cfg.MetricsInterval = 20*time.Millisecond, 20*time.Millisecond
	c, err := New(workers, f, slog.New(slog.DiscardHandler), cfg)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- c.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	pick := func() (string, error) {
		now := time.Now()
		r, err := f.Pick(now, &scoring.Request{Model: "tiny", Pools: []string{"p"}, Estimate: 10})
		if err != nil {
			return "", err
		}
		defer r.Done(now, scoring.NotSent)
		return r.Worker().Name, nil
	}
	wait := func(what string, ok func() bool) {
		t.Helper()
		deadline := time.Now().Add(time.Minute)
		for !ok() {
			if time.Now().After(deadline) {
				t.Fatalf("never happened: %s; %+v", what, c.Snapshot())
			}
			<-time.After(time.Millisecond)
		}
	}
	ready := func(i int) bool { return c.Snapshot()[i].Ready }
	wait("both are ready", func() bool { return ready(0) && ready(1) })

	servers[0].kill()
	c.ReportFailure(c.Snapshot()[0].ID, scoring.FaultTransport, "", errors.New("connection reset"))
	wait("the dead one is noticed", func() bool { return !ready(0) })
	if s := c.Snapshot()[0]; !strings.Contains(s.Reason, "refused") {
		t.Errorf("reason is %q", s.Reason)
	}
	for range 20 {
		if name, err := pick(); err != nil || name != "w2" {
			t.Fatalf("picked %q, %v", name, err)
		}
	}
	servers[1].kill()
	wait("both are noticed", func() bool { return !ready(1) })
	if _, err := pick(); !errors.Is(err, scoring.ErrNotReady) {
		t.Errorf("pick without a worker: %v", err)
	}
	startServer(t, servers[0].addr, engines[0])
	wait("it is back", func() bool { return ready(0) })
	if name, err := pick(); err != nil || name != "w1" {
		t.Errorf("picked %q, %v", name, err)
	}
}
