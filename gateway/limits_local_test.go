package gateway

import (
	"bytes"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sluicegate/sluice/gateway/gatewaytest"
	"github.com/sluicegate/sluice/policy"
	"github.com/sluicegate/sluice/ratelimit"
)

// TestLocalLimits: a limit that says Local goes on in this process, with its part
// of the size, together with the other limits or not at all, and its store is
// charged once it can be.
func TestLocalLimits(t *testing.T) {
	worker := gatewaytest.NewWorker(t, gatewaytest.Chat("a", "b", "c"))
	store := &brokenStore{broken: func(counter string) bool { return strings.Contains(counter, "store") }, charges: true}
	local := ratelimit.New(ratelimit.Config{})
	log, out := &notedDecisions{}, &bytes.Buffer{}
	r := newRig(t, []string{worker.URL()}, withParts(func(p *Parts) {
		store.Limiter = p.Limiter.(*ratelimit.Limiter)
		p.Limiter, p.LocalLimiter, p.LocalFraction = store, local, 0.25
		p.Decisions, p.Log = log, slog.New(slog.NewTextHandler(out, nil))
	}))
	limits := r.limitsOf(t, bound("other", "Deny", "  limits:\n    - { name: l, unit: requests, window: day, limit: 10, key: [] }\n")+
		bound("store", "Deny", `
  limits:
    - { name: l, unit: tokens, window: day, limit: 100, key: [], estimate: 50, onStoreError: Local, warnAt: [1] }
    - { name: s, unit: concurrency, limit: 4, key: [], onStoreError: Local }
`))
	ask := func(status int, left, mine, stores int64) {
		t.Helper()
		resp, body := r.chat(chatBody).Answer()
		if resp.StatusCode != status {
			t.Fatalf("got %d %s, want %d", resp.StatusCode, body, status)
		}
		r.idle()
		l := limits()
		if n := r.available(l[0]); n != left {
			t.Errorf("the other limit has %d left, want %d", n, left)
		}
		c := r.g.claim(&l[1], "acme")
		c.Limit = 25
		if n := local.Peek(time.Now(), []ratelimit.Claim{c})[0].Remaining; n != mine {
			t.Errorf("this process has %d left, want %d", n, mine)
		}
		if n := r.available(l[1]); n != stores {
			t.Errorf("the store has %d left, want %d", n, stores)
		}
	}
	ask(200, 9, 12, 87) // a quarter of 100, of which 13 are charged
	if !slices.Equal(log.last.charged, []int64{1, 13, 0}) || !slices.Equal(log.last.available, []int64{9, 12, 1}) {
		t.Errorf("the decision log was told of %v charged and %v available", log.last.charged, log.last.available)
	}
	ask(429, 9, 12, 87) // all of the part is wanted, and the other limit is given back
	if got := r.meter.failures(); !slices.Equal(got, []string{"down Local", "down Local", "down Local", "down Local"}) {
		t.Errorf("told of the failures %v", got)
	}
	if n := strings.Count(out.String(), "counters of limits can't be had"); n != 1 {
		t.Errorf("the log says it %d times:\n%s", n, out)
	}
	if strings.Contains(out.String(), "up to a threshold") {
		t.Errorf("a part of a limit counts for the whole:\n%s", out)
	}
	store.broken = func(string) bool { return false }
	ask(200, 8, 12, 74)
	if local.Stats().OpenLeases != 0 {
		t.Error("reservations are left open")
	}
}

func TestLocalLimit(t *testing.T) {
	for _, c := range []struct {
		limit    int64
		fraction float64
		want     int64
	}{{100, 0.25, 25}, {100, 0, 100}, {100, 1, 100}, {3, 0.25, 1}, {7, 0.5, 3}, {1 << 53, 0.5, 1 << 52}} {
		if got := localLimit(c.limit, c.fraction); got != c.want {
			t.Errorf("%g of %d is %d, want %d", c.fraction, c.limit, got, c.want)
		}
	}
}

func (m *memoryMeter) failures() []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Clone(m.storeFailures)
}

// TestThresholds: a warning from a threshold on, in the answer and the decision; a
// line in the log and a count when it is reached, once for each counter.
func TestThresholds(t *testing.T) {
	worker := gatewaytest.NewWorker(t, gatewaytest.Chat("a"))
	out := &bytes.Buffer{}
	r := newRig(t, []string{worker.URL()}, withParts(func(p *Parts) { p.Log = slog.New(slog.NewTextHandler(out, nil)) }))
	limits := r.limitsOf(t, bound("budget", "Deny", "  limits:\n    - { name: day, unit: requests, window: day, limit: 10, key: [request.requested_model], warnAt: [50, 80] }\n"))
	for i := 1; i <= 11; i++ {
		resp, body := r.chat(chatBody).Answer()
		want := ""
		switch {
		case i > 10:
			wantError(t, resp, body, 429, "insufficient_quota")
		case i >= 8:
			want = `299 sluice "budget/day: 80 % used"`
		case i >= 5:
			want = `299 sluice "budget/day: 50 % used"`
		}
		if got := resp.Header.Get("Warning"); got != want {
			t.Errorf("request %d has the warning %q, want %q", i, got, want)
		}
		r.idle()
	}
	if resp, _ := r.chat(strings.Replace(chatBody, `"m"`, `"m-alias"`, 1)).Answer(); resp.Header.Get("Warning") != "" {
		t.Error("another counter warns at its first request")
	}
	r.idle()
	if got := r.meter.reached(); !slices.Equal(got, []string{"budget/day 50", "budget/day 80"}) {
		t.Errorf("told of the thresholds %v", got)
	}
	if n := strings.Count(out.String(), "a limit is used up to a threshold"); n != 2 || strings.Contains(out.String(), limits()[0].Counter) {
		t.Errorf("%d lines in the log, want 2 and no key:\n%s", n, out)
	}
}

func (m *memoryMeter) reached() []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Clone(m.thresholds)
}

// TestCrossingsAreToldOnce: estimates that come and go around a threshold cross it
// once, until the period is over, and what is known is bounded.
func TestCrossingsAreToldOnce(t *testing.T) {
	var c crossings
	now := time.Date(2026, 3, 10, 12, 0, 0, 0, time.UTC)
	first := func(counter string, percent int64, at time.Duration) bool {
		return c.first(crossing{counter, percent}, now.Add(at), now.Add(at+time.Hour))
	}
	for i, want := range []bool{first("a", 50, 0), !first("a", 50, time.Minute), first("a", 80, time.Minute), first("b", 50, 0), first("a", 50, 2*time.Hour)} {
		if !want {
			t.Errorf("call %d is judged wrongly", i)
		}
	}
	for i := range 3 * maxCrossings {
		first(strings.Repeat("x", i%97)+string(rune(i)), 1, time.Duration(i)*time.Second)
	}
	if len(c.known) > maxCrossings {
		t.Errorf("%d crossings are known", len(c.known))
	}
	if v := crossingLasts(&policy.Limit{Window: policy.Window{Duration: time.Minute}}, ratelimit.View{Reset: time.Hour}); v != time.Minute {
		t.Errorf("a bucket's crossing lasts %v", v)
	}
}
