package main

import (
	"context"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/sluicegate/sluice/deploy/bench/internal/rig"
)

// record is what became of one coming of a request: its first, or a return after
// a refusal. Times are real, in seconds from the start or in milliseconds.
type record struct {
	Tenant  string  `json:"tenant"`
	Class   string  `json:"class"`
	Request int     `json:"request"`      // its place among all arrivals
	Return  int     `json:"return"`       // how often it had been refused before
	First   float64 `json:"first_came_s"` // when its first coming was due
	At      float64 `json:"at_s"`
	End     float64 `json:"end_s"`
	Work    float64 `json:"work_tokens"`
	LagMS   float64 `json:"lag_ms"`
	FirstMS float64 `json:"first_token_ms"` // of those that had one
	TotalMS float64 `json:"total_ms"`
	Status  int     `json:"status"`
	// Refused says that it was turned away for want of room, before its answer began or,
	// by an event of its stream, after.
	Refused     bool    `json:"refused,omitempty"`
	RetryAfterS float64 `json:"retry_after_s,omitempty"`
	Error       string  `json:"error,omitempty"`
}

func (r *record) served() bool { return r.Error == "" }

// maxReturns is how often a client comes back with the same request.
const maxReturns = 5

// load plays requests against a gateway.
type load struct {
	sender *rig.Sender
	keys   map[string]string
	start  time.Time
	length time.Duration // of time in which requests come
	loop   bool          // closed

	mu      sync.Mutex
	records []record // guarded by mu
}

// play sends the requests when they are due, whatever became of those before, and
// has refused ones come back when they were told. It returns when all have
// ended, at the latest when ctx does.
func (l *load) play(ctx context.Context, requests []arrival) []record {
	l.start = time.Now()
	var group sync.WaitGroup
	for i := range requests {
		if !sleep(ctx, time.Until(l.start.Add(requests[i].at))) {
			break
		}
		group.Go(func() { l.come(ctx, i, &requests[i]) })
	}
	group.Wait()
	return l.records
}

// come sends one request, and again as often as it is refused and its client obeys.
func (l *load) come(ctx context.Context, request int, a *arrival) {
	at := a.at
	for returned := 0; ; returned++ {
		r := l.send(ctx, request, returned, a, at)
		if !r.Refused || a.tenant.floods || r.RetryAfterS <= 0 || returned == maxReturns {
			return
		}
		at = time.Since(l.start) + time.Duration(r.RetryAfterS*float64(time.Second))
		if at >= l.length || !sleep(ctx, time.Until(l.start.Add(at))) {
			return
		}
	}
}

func (l *load) send(ctx context.Context, request, returned int, a *arrival, at time.Duration) record {
	o := l.sender.Send(ctx, a.body, l.keys[a.tenant.name], at, l.start.Add(at))
	if o.Err != nil && ctx.Err() != nil && l.loop {
		return record{} // cut by the end of the run, as one of each stream is
	}
	r := record{
		Tenant: a.tenant.name, Class: classes[a.tenant.class].name, Request: request, Return: returned, First: a.at.Seconds(),
		At: at.Seconds(), End: (at + o.Total).Seconds(), Work: a.work(), LagMS: milliseconds(o.Lag), TotalMS: milliseconds(o.Total), Status: o.Status,
		RetryAfterS: o.RetryAfter.Seconds(),
	}
	if o.Got {
		r.FirstMS = milliseconds(o.First)
	}
	if o.Err != nil {
		r.Error = o.Err.Error()
		r.Refused = o.Status == http.StatusTooManyRequests || o.Status == http.StatusServiceUnavailable || !o.Got && strings.Contains(r.Error, `"overloaded"`)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.records = append(l.records, r)
	return r
}

// closed keeps n requests under way for the load's length, and returns what
// became of them.
func (l *load) closed(ctx context.Context, words *rig.Words, n int, seed uint64) []record {
	ctx, cancel := context.WithTimeout(ctx, l.length)
	defer cancel()
	l.start, l.loop = time.Now(), true
	var group sync.WaitGroup
	for i := range n {
		group.Go(func() {
			rng := rand.New(rand.NewPCG(seed, uint64(i)))
			t := &tenant{name: yardstick(i)}
			for k := 0; ctx.Err() == nil; k++ {
				a := draw(words, rng)
				a.at, a.tenant = time.Since(l.start), t
				l.send(ctx, k*n+i, 0, &a, a.at)
			}
		})
	}
	group.Wait()
	return l.records
}

func milliseconds(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

// sleep waits, and is false if ctx ended before.
func sleep(ctx context.Context, d time.Duration) bool {
	if d <= 0 {
		return ctx.Err() == nil
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}
