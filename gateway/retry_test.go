package gateway

import (
	"testing"
	"time"

	"github.com/sluicegate/sluice/gateway/gatewaytest"
)

func TestRetryBudget(t *testing.T) {
	b := newRetryBudget(0.2)
	now := time.Unix(1000, 0)
	taken := func(at time.Time, pool string) (n int) {
		for b.take(at, pool) {
			if n++; n > 10_000 {
				t.Fatal("there is no end to it")
			}
		}
		return n
	}
	// A pool with few requests has the floor.
	b.request(now, "p")
	if n := taken(now, "p"); n != 30 {
		t.Errorf("%d retries at the floor, want 30", n)
	}
	// Another pool's are its own.
	for i := range 1000 {
		b.request(now.Add(time.Duration(i)*9*time.Millisecond), "q")
	}
	if n := taken(now.Add(9*time.Second), "q"); n != 200 {
		t.Errorf("%d retries of 1000 requests, want 200", n)
	}
	// They come back as the window moves on.
	if n := taken(now.Add(9*time.Second), "p"); n != 0 {
		t.Errorf("%d retries within the window", n)
	}
	if n := taken(now.Add(10*time.Second), "p"); n != 30 {
		t.Errorf("%d retries after the window, want 30", n)
	}
	if n := taken(now.Add(time.Hour), "q"); n != 30 {
		t.Errorf("%d retries after an hour, want 30", n)
	}
}

// TestRetriesEnd: when a pool's budget is used up, a failure stands.
func TestRetriesEnd(t *testing.T) {
	bad := gatewaytest.NewWorker(t, gatewaytest.CloseBeforeHead(gatewaytest.FIN))
	good := gatewaytest.NewWorker(t, gatewaytest.Chat("a"))
	r := newRig(t, []string{bad.URL(), good.URL()})
	for r.g.retries.take(time.Now().Add(retryWindow/2), "p") {
	}
	resp, body := r.chat(chatBody).Answer()
	wantError(t, resp, body, 502, "upstream_error")
	if row := r.row(); row.Attempts != 1 || len(good.Seen()) != 0 || !r.meter.last().RetryDenied {
		t.Errorf("%d attempts", row.Attempts)
	}
}
