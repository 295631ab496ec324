package policy

import (
	"context"
	"time"
)

// Wall-clock limits. Cost is the real bound; the clock is loose, because a
// tight one turns a throttled CPU into refusals.
const (
	exprTimeLimit    = 100 * time.Millisecond
	requestTimeLimit = 250 * time.Millisecond
)

// timeLimits are the limits of one set. Tests of other limits widen them.
type timeLimits struct{ expr, request time.Duration }

// clock measures the programs with loops of one request; others end by
// themselves. It stands still during lazy work, and while no such program runs
// there is no timer. The programs are given it as their context.
//
// It is used by one goroutine. done is closed by the timer's callback, or at once
// where no time is left, and is replaced no sooner than that has been seen.
type clock struct {
	limits timeLimits
	spent  time.Duration // by programs that have ended
	timer  *time.Timer
	done   chan struct{}
	depth  int           // programs with loops inside one another
	armed  time.Time     // since when the timer has been running
	left   time.Duration // what the timer had left then
}

// enter arms the timer for a program with loops. A program inside another
// shares its time.
func (c *clock) enter() context.Context {
	if c.depth++; c.depth == 1 {
		c.arm(min(c.limits.expr, c.limits.request-c.spent))
	}
	return (*clockContext)(c)
}

func (c *clock) leave() {
	if c.depth--; c.depth == 0 {
		c.spent += time.Since(c.armed)
		c.disarm()
	}
}

func (c *clock) arm(left time.Duration) {
	if c.done == nil {
		c.done = make(chan struct{})
	}
	c.armed, c.left = time.Now(), max(left, 0)
	if c.timer == nil {
		c.timer = time.AfterFunc(exprTimeLimit, func() { close(c.done) })
		c.timer.Stop()
	}
	if c.left == 0 {
		// Not by the timer: a program may have ended before its callback gets a processor.
		close(c.done)
		return
	}
	c.timer.Reset(c.left)
}

// disarm stops the timer. One that has fired has closed done, or is about to.
func (c *clock) disarm() {
	if !c.timer.Stop() {
		<-c.done
		c.done = nil
	}
}

// pause runs lazy work with the clock standing still and returns how long it
// took.
func (c *clock) pause(work func()) time.Duration {
	began := time.Now()
	running := c.depth > 0
	fired := running && !c.timer.Stop()
	if running {
		c.spent += began.Sub(c.armed)
		c.left -= began.Sub(c.armed)
	}
	work()
	if running {
		c.armed = time.Now()
	}
	if running && !fired {
		c.arm(c.left)
	}
	return time.Since(began)
}

// clockContext is the clock as a context. It has no values, and a context
// derived from it needs no goroutine: the derived one is cancelled when its
// program ends.
type clockContext clock

func (c *clockContext) Deadline() (time.Time, bool) { return time.Time{}, false }

func (c *clockContext) Done() <-chan struct{} { return c.done }

func (c *clockContext) Err() error {
	select {
	case <-c.done:
		return context.DeadlineExceeded
	default:
		return nil
	}
}

func (c *clockContext) Value(any) any { return nil }

// AfterFunc spares context.WithCancel a goroutine for each program.
func (c *clockContext) AfterFunc(func()) (stop func() bool) { return stopNothing }

func stopNothing() bool { return true }
