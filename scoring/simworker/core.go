package simworker

import (
	"context"
	"sync"
	"time"

	"github.com/sluicegate/sluice/scoring/simworker/engine"
)

// place is where an engine request's tokens go.
type place struct {
	call   *call
	choice int
}

// core drives the engine in real time. It owns the engine; run is its one
// goroutine.
type core struct {
	scale   float64
	publish func(time.Time, []engine.Event)
	wake    chan struct{} // capacity 1: work was added or a fault changed

	mu         sync.Mutex // protects what follows
	eng        *engine.Engine
	places     map[engine.ID]place
	meters     *meters
	slow       float64
	stalled    bool
	stallUntil time.Time // zero with stalled: until the next setFault
	stopped    bool
}

func newCore(eng *engine.Engine, scale float64, m *meters, publish func(time.Time, []engine.Event)) *core {
	return &core{
		scale: scale, publish: publish, wake: make(chan struct{}, 1),
		eng: eng, places: make(map[engine.ID]place), meters: m, slow: 1,
	}
}

func (c *core) poke() {
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

// submit queues all requests of one call, or none. n is the choices a prompt
// that the client asked for.
func (c *core) submit(reqs []engine.Request, n int) (*call, error) {
	now := time.Now()
	cl := newCall()
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.stopped {
		return nil, errEngineDead
	}
	for k, r := range reqs {
		id, err := c.eng.Add(now, r)
		if err != nil {
			for _, id := range cl.ids {
				c.finishLocked(now, id, engine.Error)
			}
			return nil, err
		}
		cl.ids = append(cl.ids, id)
		c.places[id] = place{cl, k}
		c.meters.paramN.observe(float64(n))
	}
	c.poke()
	return cl, nil
}

// finish ends one choice early.
func (c *core) finish(id engine.ID, why engine.Reason) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.finishLocked(time.Now(), id, why)
}

func (c *core) finishLocked(now time.Time, id engine.ID, why engine.Reason) {
	delete(c.places, id)
	if s := c.eng.Finish(now, id, why); s != nil {
		c.meters.finished(s)
	}
}

// abandon ends whatever is left of a call whose client left.
func (c *core) abandon(cl *call) {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := time.Now()
	for _, id := range cl.ids {
		c.finishLocked(now, id, engine.Abort)
	}
}

func (c *core) reset() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.eng.Reset()
}

func (c *core) stats() engine.Stats {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.eng.Stats()
}

func (c *core) setFault(f Fault) {
	c.mu.Lock()
	c.slow = 1
	if f.SlowFactor > 0 {
		c.slow = f.SlowFactor
	}
	c.stalled, c.stallUntil = f.Stall != 0, time.Time{}
	if f.Stall > 0 {
		c.stallUntil = time.Now().Add(f.Stall)
	}
	c.mu.Unlock()
	c.poke()
}

// stallLeft says whether steps are held up, and how long; 0 means until woken.
func (c *core) stallLeftLocked(now time.Time) (time.Duration, bool) {
	if !c.stalled || c.stallUntil.IsZero() {
		return 0, c.stalled
	}
	left := c.stallUntil.Sub(now)
	c.stalled = left > 0
	return left, c.stalled
}

// maxLag is how far the engine's clock may fall behind real time before it
// gives the difference up. It makes up for timers that fire late, so that a
// thousand short steps take as long as they should.
const maxLag = 5 * time.Millisecond

// run steps the engine until ctx ends. Then it fails every open call.
func (c *core) run(ctx context.Context) {
	defer c.stop()
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	var last time.Time // when the last step ended; zero after a pause
	for ctx.Err() == nil {
		now := time.Now()
		start := now
		if !last.IsZero() && now.Sub(last) < maxLag {
			start = last
		}
		c.mu.Lock()
		left, stalled := c.stallLeftLocked(now)
		var step engine.Step
		ok := false
		if !stalled {
			step, ok = c.eng.Begin(start)
		}
		factor := c.scale * c.slow
		c.mu.Unlock()
		if !ok {
			last = time.Time{}
			c.pause(ctx, timer, left)
			continue
		}
		end := start.Add(time.Duration(float64(step.Duration) * factor))
		sleepUntil(ctx, timer, end)
		if c.holdResult(ctx, timer) {
			end = time.Now()
		}
		c.complete(end, step)
		last = end
	}
}

// holdResult waits while a stall holds the result of a step; it says whether
// there was one.
func (c *core) holdResult(ctx context.Context, timer *time.Timer) (held bool) {
	for ctx.Err() == nil {
		c.mu.Lock()
		left, stalled := c.stallLeftLocked(time.Now())
		c.mu.Unlock()
		if !stalled {
			return held
		}
		held = true
		c.pause(ctx, timer, left)
	}
	return held
}

// complete ends the step under way and hands out what it brought.
func (c *core) complete(now time.Time, step engine.Step) {
	c.mu.Lock()
	res := c.eng.End(now)
	c.meters.step(step)
	for _, out := range res.Outputs {
		c.meters.token(out)
		p, ok := c.places[out.ID]
		if !ok {
			continue
		}
		a := arrival{choice: p.choice, token: out.Token, eos: out.EOS, finish: out.Finish, cached: out.Cached}
		if out.Finish != 0 {
			delete(c.places, out.ID)
		}
		p.call.push(a)
	}
	c.mu.Unlock()
	if len(res.Events) > 0 {
		c.publish(time.Now(), res.Events)
	}
}

// pause waits for a poke, for d if it is not 0, or for the end.
func (c *core) pause(ctx context.Context, timer *time.Timer, d time.Duration) {
	if d <= 0 {
		d = time.Hour
	}
	timer.Reset(d)
	select {
	case <-c.wake:
	case <-timer.C:
	case <-ctx.Done():
	}
}

func sleepUntil(ctx context.Context, timer *time.Timer, t time.Time) {
	d := time.Until(t)
	if d <= 0 {
		return
	}
	timer.Reset(d)
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}

func (c *core) stop() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.stopped = true
	now := time.Now()
	for id, p := range c.places {
		c.finishLocked(now, id, engine.Error)
		p.call.kill()
	}
}
