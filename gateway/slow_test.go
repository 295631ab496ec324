package gateway

import (
	"io"
	"strings"
	"testing"
	"time"

	"github.com/sluicegate/sluice/gateway/gatewaytest"
	"github.com/sluicegate/sluice/tenancy"
)

// TestSlowClientIsNoSilence: the time for which a client doesn't read is not
// its worker's silence, so the stream goes on and the worker is not blamed.
func TestSlowClientIsNoSilence(t *testing.T) {
	t.Parallel()
	event := gatewaytest.ContentEvent(strings.Repeat("a", 1<<20), "")
	const events = 32
	worker := gatewaytest.NewWorker(t, func(x *gatewaytest.Exchange) {
		x.StreamHead()
		for range events {
			x.Chunk(event)
		}
		x.Chunk(gatewaytest.DoneEvent)
		x.End()
	})
	r := newRig(t, []string{worker.URL()}, withConfig(func(c *Config) { c.StreamIdle = 2 * time.Second }))
	c := r.chat(streamBody)
	resp := c.Head()
	time.Sleep(4 * time.Second) // by then everything between the two is full
	text, err := io.ReadAll(resp.Body)
	if err != nil || len(text) != events*len(event)+len(gatewaytest.DoneEvent) {
		t.Errorf("got %d bytes, %v", len(text), err)
	}
	if row := r.row(); row.Outcome != tenancy.OutcomeCompleted {
		t.Errorf("row %+v", row)
	}
	r.health.mu.Lock()
	defer r.health.mu.Unlock()
	if r.health.failures != 0 || r.health.successes != 1 {
		t.Errorf("the worker has %d failures and %d successes, want 0 and 1", r.health.failures, r.health.successes)
	}
}
