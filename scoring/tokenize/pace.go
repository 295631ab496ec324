package tokenize

import (
	"context"
	"sync"
	"time"
)

// pace is how long a kind of work takes for each byte, learned from what it took.
// The work itself can't be interrupted, so what a deadline leaves too little time
// for is not begun. It is safe for concurrent use.
type pace struct {
	mu    sync.Mutex // protects what follows
	bytes float64
	taken float64 // nanoseconds for them
}

// paceMemory is how many bytes are remembered: of twice as many half are forgotten,
// since a machine's load changes.
const paceMemory = 8 << 20

// newPace assumes a number of bytes a second until as many bytes as weight have
// been seen.
func newPace(perSecond, weight float64) *pace {
	return &pace{bytes: weight, taken: weight / perSecond * float64(time.Second)}
}

// took learns from a piece of work.
func (p *pace) took(n int, d time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.bytes += float64(n)
	p.taken += float64(d)
	if p.bytes > 2*paceMemory {
		p.bytes, p.taken = p.bytes/2, p.taken/2
	}
}

// need is how long n bytes are going to take.
func (p *pace) need(n int) time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	return time.Duration(float64(n) * p.taken / p.bytes)
}

// within returns context.DeadlineExceeded if n bytes can't be worked off before
// ctx's deadline, should it have one.
func (p *pace) within(ctx context.Context, n int) error {
	by, ok := ctx.Deadline()
	if ok && time.Until(by) < p.need(n) {
		return context.DeadlineExceeded
	}
	return nil
}
