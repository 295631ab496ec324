package main

import (
	"context"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// target is where requests go.
type target struct {
	addr string
	tls  *tls.Config // nil: plain
	key  string
}

// job is the shape of the requests of a run.
type job struct {
	stream   bool
	bytes    int // of a body, about
	patience time.Duration
}

// requests are made before a run, so that making them is no part of it. Each
// body differs from the others, as those of users do.
func (t *target) requests(j job, n int, seed uint64) [][]byte {
	rng := rand.New(rand.NewPCG(seed, 7))
	words := []string{"river", "stone", "cloud", "window", "paper", "signal", "garden", "copper", "engine", "letter", "market", "silver"}
	out := make([][]byte, n)
	for i := range out {
		body := []byte(`{"model":"` + modelName + `",`)
		if j.stream {
			body = append(body, `"stream":true,`...)
		}
		body = append(body, `"max_tokens":16,"messages":[{"role":"system","content":"You are a helpful assistant. Answer briefly, and only from what you were given."},{"role":"user","content":"`...)
		body = fmt.Appendf(body, "%d", rng.Uint64())
		for len(body) < j.bytes-4 {
			body = append(body, ' ')
			body = append(body, words[rng.IntN(len(words))]...)
		}
		body = append(body, `"}]}`...)
		accept := "application/json"
		if j.stream {
			accept = "text/event-stream"
		}
		out[i] = fmt.Appendf(nil, "POST /v1/chat/completions HTTP/1.1\r\nHost: bench.test\r\nAuthorization: Bearer %s\r\nContent-Type: application/json\r\nAccept: %s\r\nContent-Length: %d\r\n\r\n%s",
			t.key, accept, len(body), body)
	}
	return out
}

// outcome is what is known of one request, in time since the run's start.
type outcome struct {
	intended, start, first, last time.Duration
	failed                       bool
}

// pool keeps connections, the one used last on top, and grows as it must.
type pool struct {
	t        *target
	mu       sync.Mutex
	idle     []*client
	made     int
	failures map[string]int
}

func (p *pool) take() (*client, error) {
	p.mu.Lock()
	if n := len(p.idle); n > 0 {
		c := p.idle[n-1]
		p.idle = p.idle[:n-1]
		p.mu.Unlock()
		return c, nil
	}
	p.made++
	p.mu.Unlock()
	return dial(p.t.addr, p.t.tls)
}

func (p *pool) put(c *client) {
	p.mu.Lock()
	p.idle = append(p.idle, c)
	p.mu.Unlock()
}

// note counts a failure by its kind.
func (p *pool) note(kind string) {
	p.mu.Lock()
	p.failures[kind]++
	p.mu.Unlock()
}

func (p *pool) close() {
	for _, c := range p.idle {
		_ = c.nc.Close()
	}
}

// warm opens connections and sends a request on each, all at once and before
// the run: handshakes are no part of it, nor are first dials to the worker.
func (p *pool) warm(ctx context.Context, n int, request []byte, patience time.Duration) error {
	var group sync.WaitGroup
	errs := make(chan error, n)
	for range n {
		group.Go(func() {
			c, err := p.take()
			if err == nil {
				_, err = c.do(request, patience, nil)
			}
			if err != nil {
				errs <- err
				return
			}
			p.put(c)
		})
	}
	group.Wait()
	close(errs)
	return errors.Join(<-errs, ctx.Err())
}

// kindOf is an error without what differs each time, such as ports.
func kindOf(err error) string {
	if op, ok := errors.AsType[*net.OpError](err); ok {
		return op.Op + ": " + op.Err.Error()
	}
	return err.Error()
}

// do runs one request and fills in what came of it.
func (p *pool) do(request []byte, j job, began time.Time, o *outcome) {
	o.failed = true
	c, err := p.take()
	if err != nil {
		p.note("dial: " + kindOf(err))
		return
	}
	o.start = time.Since(began)
	a, err := c.do(request, j.patience, nil)
	switch {
	case err != nil:
		p.note(kindOf(err))
	case a.status != 200:
		p.note(fmt.Sprintf("status %d", a.status))
	case a.stream != j.stream:
		p.note("an answer of the other kind")
	default:
		o.failed = false
	}
	if err != nil || a.closed {
		_ = c.nc.Close()
	} else {
		p.put(c)
	}
	o.last = a.last.Sub(began)
	if !a.first.IsZero() {
		o.first = a.first.Sub(began)
	}
}

// metronome wakes at exact instants. The kernel's timer is waited for in the
// runtime's own poller: time.Sleep is a millisecond coarse when nothing else runs.
type metronome struct {
	f *os.File
	b [8]byte
}

func newMetronome() (*metronome, error) {
	fd, err := unix.TimerfdCreate(unix.CLOCK_MONOTONIC, unix.TFD_NONBLOCK|unix.TFD_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("cannot make a timer: %w", err)
	}
	return &metronome{f: os.NewFile(uintptr(fd), "timerfd")}, nil
}

// wait returns after d.
func (m *metronome) wait(d time.Duration) error {
	conn, err := m.f.SyscallConn()
	if err != nil {
		return err
	}
	spec := unix.ItimerSpec{Value: unix.NsecToTimespec(int64(d))}
	if cerr := conn.Control(func(fd uintptr) { err = unix.TimerfdSettime(int(fd), 0, &spec, nil) }); cerr != nil || err != nil {
		return errors.Join(cerr, err)
	}
	if _, err := m.f.Read(m.b[:]); err != nil {
		return fmt.Errorf("cannot wait for the timer: %w", err)
	}
	if binary.NativeEndian.Uint64(m.b[:]) == 0 {
		return errors.New("the timer has not expired")
	}
	return nil
}

// schedule returns the instants at which requests start, whatever becomes of
// those before: every 1/rate, or with exponential gaps.
func schedule(rate float64, span time.Duration, poisson bool, seed uint64) []time.Duration {
	rng := rand.New(rand.NewPCG(seed, 11))
	var at []time.Duration
	for t := 0.0; ; {
		d := time.Duration(t * float64(time.Second))
		if d >= span {
			return at
		}
		at = append(at, d)
		gap := 1 / rate
		if poisson {
			gap = rng.ExpFloat64() / rate
		}
		t += gap
	}
}

// maxOpen bounds what is in flight. A start beyond it is dropped, and told.
const maxOpen = 4000

// openLoop starts requests by a schedule that knows nothing of the answers.
func openLoop(ctx context.Context, t *target, j job, at []time.Duration, warm int, seed uint64) (*sample, error) {
	requests := t.requests(j, min(len(at), 20000), seed)
	p := &pool{t: t, failures: make(map[string]int)}
	defer p.close()
	if err := p.warm(ctx, warm, requests[0], j.patience); err != nil {
		return nil, fmt.Errorf("cannot warm up: %w", err)
	}
	beat, err := newMetronome()
	if err != nil {
		return nil, err
	}
	defer beat.f.Close()
	outcomes := make([]outcome, len(at))
	var group sync.WaitGroup
	var open atomic.Int64
	dropped := 0
	began := time.Now()
	for i, due := range at {
		if wait := due - time.Since(began); wait > 0 {
			if err := beat.wait(wait); err != nil {
				return nil, err
			}
		}
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		o := &outcomes[i]
		o.intended = due
		if open.Load() >= maxOpen {
			dropped++
			o.failed = true
			continue
		}
		open.Add(1)
		group.Go(func() {
			defer open.Add(-1)
			p.do(requests[i%len(requests)], j, began, o)
		})
	}
	group.Wait()
	return summarise(outcomes, at[len(at)-1], dropped, p), nil
}

// closedLoop keeps n requests in flight for a time.
func closedLoop(ctx context.Context, t *target, j job, n int, span time.Duration, seed uint64) (*sample, error) {
	requests := t.requests(j, min(64, 4*n), seed)
	p := &pool{t: t, failures: make(map[string]int)}
	defer p.close()
	if err := p.warm(ctx, n, requests[0], j.patience); err != nil {
		return nil, fmt.Errorf("cannot warm up: %w", err)
	}
	var mu sync.Mutex
	var outcomes []outcome
	var group sync.WaitGroup
	began := time.Now()
	for w := range n {
		group.Go(func() {
			var own []outcome
			for i := w; time.Since(began) < span && ctx.Err() == nil; i += n {
				o := outcome{intended: time.Since(began)}
				p.do(requests[i%len(requests)], j, began, &o)
				own = append(own, o)
			}
			mu.Lock()
			outcomes = append(outcomes, own...)
			mu.Unlock()
		})
	}
	group.Wait()
	return summarise(outcomes, time.Since(began), 0, p), ctx.Err()
}

// sample is what one run has shown. Times are in microseconds.
type sample struct {
	Requests    int            `json:"requests"`
	Failed      int            `json:"failed"`
	Dropped     int            `json:"dropped"`
	Failures    map[string]int `json:"failures,omitempty"`
	Rate        float64        `json:"rate"` // of whole answers, a second
	Connections int            `json:"connections"`
	// From the intended instant to the last byte, and of streams to the first
	// event with text.
	Last  quantiles `json:"last_us"`
	First quantiles `json:"first_us"`
	// Late is from the intended instant to the request's first byte: what the
	// generator itself adds.
	Late quantiles `json:"late_us"`
}

type quantiles struct {
	P50  float64 `json:"p50"`
	P90  float64 `json:"p90"`
	P99  float64 `json:"p99"`
	P999 float64 `json:"p999"`
	Max  float64 `json:"max"`
}

func summarise(outcomes []outcome, span time.Duration, dropped int, p *pool) *sample {
	s := &sample{Requests: len(outcomes), Dropped: dropped, Failures: p.failures, Connections: p.made}
	var last, first, late []float64
	end := span
	for i := range outcomes {
		o := &outcomes[i]
		if o.failed {
			s.Failed++
			continue
		}
		end = max(end, o.last)
		last = append(last, micros(o.last-o.intended))
		late = append(late, micros(o.start-o.intended))
		if o.first > 0 {
			first = append(first, micros(o.first-o.intended))
		}
	}
	s.Rate = float64(len(last)) / end.Seconds()
	s.Last, s.First, s.Late = quantilesOf(last), quantilesOf(first), quantilesOf(late)
	return s
}

func micros(d time.Duration) float64 { return float64(d) / float64(time.Microsecond) }

// quantilesOf sorts its values. Every value is kept, so none is an estimate.
func quantilesOf(v []float64) quantiles {
	if len(v) == 0 {
		return quantiles{}
	}
	slices.Sort(v)
	at := func(q float64) float64 { return v[min(len(v)-1, int(q*float64(len(v))))] }
	return quantiles{at(0.5), at(0.9), at(0.99), at(0.999), v[len(v)-1]}
}

// hold opens n streams, waits until each has brought text, calls held, and keeps
// them open until ctx ends.
func hold(ctx context.Context, t *target, j job, n int, held func()) error {
	requests := t.requests(j, 64, 3)
	var group sync.WaitGroup
	defer group.Wait()
	var texts atomic.Int64
	ready := make(chan struct{})
	text := func() {
		if texts.Add(1) == int64(n) {
			close(ready)
		}
	}
	errs := make(chan error, n)
	slots := make(chan struct{}, 32) // so many handshakes at a time
	for i := range n {
		slots <- struct{}{}
		group.Go(func() {
			c, err := dial(t.addr, t.tls)
			<-slots
			if err != nil {
				errs <- err
				return
			}
			stop := context.AfterFunc(ctx, func() { _ = c.nc.Close() })
			defer stop()
			defer c.nc.Close()
			if _, err := c.do(requests[i%len(requests)], j.patience, text); err != nil && ctx.Err() == nil {
				errs <- err
			}
		})
	}
	select {
	case <-ready:
		held()
		<-ctx.Done()
		return nil
	case err := <-errs:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}
