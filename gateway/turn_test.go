package gateway

import (
	"context"
	"testing"
	"time"

	"github.com/sluicegate/sluice/gateway/gatewaytest"
	"github.com/sluicegate/sluice/gateway/qos"
)

// queueConfig has three classes that wait for as long as a test may take.
func queueConfig(alter ...func(*qos.Config)) qos.Config {
	c := qos.DefaultConfig("interactive", "standard", "batch")
	for i := range c.Classes {
		c.Classes[i].MaxWait = time.Hour
	}
	for _, f := range alter {
		f(&c)
	}
	return c
}

// longPrompt is a prompt that a worker takes many seconds for, by the prior.
const longPrompt = 100_000

// queueRig is a rig with a queue. Every prompt is long, so that one request closes a
// worker until its first token.
func queueRig(t testing.TB, workers []string, c qos.Config, opts ...rigOption) *rig {
	t.Helper()
	r := newRig(t, workers, append([]rigOption{
		withState(func(st *State) { st.Queue = c }),
		withParts(func(p *Parts) { p.Router = p.Router.(inOrder).Fleet }),
	}, opts...)...)
	r.tokens.set(func(_ context.Context, dst []uint32, body []byte) ([]uint32, error) {
		for i := range longPrompt {
			dst = append(dst, uint32(i)^uint32(len(body)))
		}
		return dst, nil
	})
	return r
}

// queued waits until so many requests wait.
func (r *rig) queued(n int) {
	r.t.Helper()
	eventually(r.t, "requests to wait in the queue", func() bool { return r.waiting() == n })
}

func (r *rig) waiting() int {
	r.g.turns.mu.Lock()
	defer r.g.turns.mu.Unlock()
	return r.g.turns.queue.Waiting()
}

// TestTurnComes: a request waits while its worker is busy, has no row at the ledger's
// and no load at the worker meanwhile, and goes there with the first token of the one
// before it.
func TestTurnComes(t *testing.T) {
	for name, body := range map[string]string{"stream": streamBody, "unary": chatBody} {
		t.Run(name, func(t *testing.T) {
			release := make(chan struct{})
			worker := gatewaytest.NewWorker(t, func(x *gatewaytest.Exchange) {
				<-release
				gatewaytest.Chat("a")(x)
			})
			r := queueRig(t, []string{worker.URL()}, queueConfig())
			first := r.chat(body)
			seen := worker.Next(t)
			second := r.chat(body)
			r.queued(1)
			if n := r.ledger.begun(); n != 1 {
				t.Errorf("%d requests were announced to the ledger while one waits", n)
			}
			if w := r.fleet.Snapshot(time.Now())[0]; w.InFlight != 1 {
				t.Errorf("the worker has %d requests", w.InFlight)
			}
			close(release)
			_ = seen
			for _, c := range []*gatewaytest.Client{first, second} {
				if resp, text := c.Answer(); resp.StatusCode != 200 {
					t.Errorf("got %d %s", resp.StatusCode, text)
				}
			}
			r.idle()
			s := r.meter.last()
			if s.QueueWait <= 0 || !s.Queued || s.QueueRefused != "" || s.Row.Queue != s.QueueWait || s.TTFTTarget <= 0 {
				t.Errorf("the summary says %+v", s)
			}
			if s.Overhead > s.Row.Duration-s.QueueWait {
				t.Errorf("the overhead of %v holds the wait of %v", s.Overhead, s.QueueWait)
			}
			if n := r.g.turns.late.Load(); n != 0 {
				t.Errorf("%d late wake-ups", n)
			}
		})
	}
}
