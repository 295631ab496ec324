package simworker

import (
	"context"
	"sync"

	"github.com/sluicegate/sluice/scoring/simworker/engine"
)

// arrival is one token on its way from the engine to a handler.
type arrival struct {
	choice int
	token  uint32
	eos    bool
	finish engine.Reason
	cached int // prompt tokens found in the cache
}

// call is one HTTP request's share of the engine: all its choices. The core
// fills it, one handler empties it.
type call struct {
	ids []engine.ID // by choice; written before the call is shared

	mu      sync.Mutex // protects pending and dead
	pending []arrival
	dead    bool
	more    chan struct{} // capacity 1: something is pending or dead was set
}

func newCall() *call { return &call{more: make(chan struct{}, 1)} }

func (c *call) push(a arrival) {
	c.mu.Lock()
	c.pending = append(c.pending, a)
	c.mu.Unlock()
	c.wake()
}

func (c *call) kill() {
	c.mu.Lock()
	c.dead = true
	c.mu.Unlock()
	c.wake()
}

func (c *call) wake() {
	select {
	case c.more <- struct{}{}:
	default:
	}
}

// take waits for tokens and returns all there are, reusing buf. It returns
// the context's error if the client left, errEngineDead if the engine did.
func (c *call) take(ctx context.Context, buf []arrival) ([]arrival, error) {
	for {
		c.mu.Lock()
		if len(c.pending) > 0 {
			got := c.pending
			c.pending = buf[:0]
			c.mu.Unlock()
			return got, nil
		}
		dead := c.dead
		c.mu.Unlock()
		if dead {
			return nil, errEngineDead
		}
		select {
		case <-c.more:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}
