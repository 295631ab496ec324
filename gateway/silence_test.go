package gateway

import (
	"strings"
	"testing"
	"time"

	"github.com/sluicegate/sluice/gateway/gatewaytest"
	"github.com/sluicegate/sluice/tenancy"
)

// TestCommentsAreNoAnswer: a worker that sends nothing but comments or blank events, at
// whatever pace, is silent: before its first event by the time for that, later by the
// time between two. It is blamed as one that says nothing, and the client is told.
func TestCommentsAreNoAnswer(t *testing.T) {
	first := gatewaytest.RoleEvent + gatewaytest.ContentEvent("a", "")
	for _, c := range []struct {
		name, before, filler string
		gap                  time.Duration
	}{
		{"comments", "", ": x\n\n", 5 * time.Millisecond},
		{"blank events", "", "event: x\nid: 1\n\n", 5 * time.Millisecond},
		{"blank lines", "", "\n\n", 5 * time.Millisecond},
		{"comments without end", "", strings.Repeat(": x\n\n", 1000), 0},
		{"comments after events", first, ": x\n\n", 5 * time.Millisecond},
		{"blank events after events", first, "event: x\n\n", 5 * time.Millisecond},
		{"comments without end after events", first, strings.Repeat(": x\n\n", 1000), 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			worker := gatewaytest.NewWorker(t, func(x *gatewaytest.Exchange) {
				x.StreamHead()
				if c.before != "" {
					x.Chunk(c.before)
				}
				for x.Pause(c.gap) {
					x.Chunk(c.filler)
				}
			})
			r := newRig(t, []string{worker.URL()}, withConfig(func(cfg *Config) {
				cfg.FirstByteStream, cfg.StreamIdle = 200*time.Millisecond, 200*time.Millisecond
				if c.before != "" {
					cfg.FirstByteStream = patience
				}
			}))
			_, text, err := read(t, r.chat(streamBody))
			if err != nil || !strings.Contains(text, `"code":"upstream_timeout"`) || strings.Contains(text, "[DONE]") {
				t.Errorf("got %v and %q at the end", err, text[max(0, len(text)-300):])
			}
			if row := r.row(); row.Outcome != tenancy.OutcomeUpstreamError {
				t.Errorf("row %+v", row)
			}
			r.health.mu.Lock()
			defer r.health.mu.Unlock()
			if r.health.failures != 1 || r.health.successes != 0 {
				t.Errorf("the worker has %d failures and %d successes, want 1 and 0", r.health.failures, r.health.successes)
			}
		})
	}
}

// TestCommentsKeepAStreamAlive: what keeps connections alive before an engine that thinks
// is passed on, and does no harm.
func TestCommentsKeepAStreamAlive(t *testing.T) {
	const beat = ": still here\n\n"
	a, end := gatewaytest.ContentEvent("a", ""), gatewaytest.ContentEvent("b", "stop")
	worker := gatewaytest.NewWorker(t, func(x *gatewaytest.Exchange) {
		x.StreamHead()
		for _, event := range []string{a, end} {
			for range 3 {
				x.Chunk(beat)
				x.Pause(20 * time.Millisecond)
			}
			x.Chunk(event)
		}
		x.Chunk(gatewaytest.DoneEvent)
		x.End()
	})
	r := newRig(t, []string{worker.URL()})
	status, text, err := read(t, r.chat(streamBody))
	beats := strings.Repeat(beat, 3)
	if want := beats + a + beats + end + gatewaytest.DoneEvent; status != 200 || err != nil || text != want {
		t.Errorf("got %d %v %q", status, err, text)
	}
	if row := r.row(); row.Outcome != tenancy.OutcomeCompleted {
		t.Errorf("row %+v", row)
	}
}
