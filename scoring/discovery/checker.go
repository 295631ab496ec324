package discovery

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/sluicegate/sluice/scoring"
)

// Checker watches the workers of the configuration and of the dynamic lists it
// follows. All its methods are safe for concurrent use, but for Follow.
type Checker struct {
	cfg     Config
	fleet   Fleet
	log     *slog.Logger
	sources []*source
	// wg counts the goroutines of Run.
	wg sync.WaitGroup

	// applyMu makes taking over a list one step, so that two lists can't both
	// take a name or an address. It is taken before all others.
	applyMu sync.Mutex

	// mu protects what follows.
	mu       sync.RWMutex
	members  []*member // in the order they were added
	draining []*member // removed ones that still have requests
	byID     map[scoring.WorkerID]*member

	// namesMu protects names, which counts the workers of each name, draining
	// ones included, and is held while OnName is called.
	namesMu sync.Mutex
	names   map[string]int

	// ejectMu makes "is another one ready" and the ejection one step, so that
	// two ejections can't leave a pool empty. It is taken before a member's mu.
	ejectMu sync.Mutex
}

// New validates the workers and adds each to the fleet, not ready. Nothing is
// called before Run.
func New(workers []Worker, fleet Fleet, log *slog.Logger, cfg Config) (*Checker, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	if cfg.OnSources == nil {
		cfg.OnSources = func(scoring.WorkerInfo, []EventSource) {}
	}
	if cfg.OnName == nil {
		cfg.OnName = func(string, bool) {}
	}
	c := &Checker{cfg: cfg, fleet: fleet, log: log, byID: make(map[scoring.WorkerID]*member), names: make(map[string]int)}
	var errs []error
	names := make(map[string]bool)
	for _, w := range workers {
		err := w.Validate()
		if err == nil && names[w.Name] {
			err = fmt.Errorf("cannot use worker %q: the name is taken", w.Name)
		}
		names[w.Name] = true
		errs = append(errs, err)
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	for _, w := range workers {
		if _, err := c.know(w, nil); err != nil {
			return nil, err
		}
	}
	return c, nil
}

// Run checks all workers until ctx ends, then ends their subscriptions and
// returns nil. Call it once.
func (c *Checker) Run(ctx context.Context) error {
	for _, m := range c.of(nil) {
		c.start(ctx, m)
	}
	for _, s := range c.sources {
		c.wg.Go(func() { c.follow(ctx, s) })
	}
	c.wg.Wait()
	return nil
}

// start begins to watch a worker.
func (c *Checker) start(ctx context.Context, m *member) {
	ctx, m.stop = context.WithCancel(ctx)
	c.wg.Go(func() {
		defer close(m.done)
		m.run(ctx)
	})
}

// know makes a validated worker known, here and to the fleet.
func (c *Checker) know(w Worker, src *source) (*member, error) {
	c.named(w.Name, 1)
	id, err := c.fleet.Add(c.cfg.Now(), w.spec())
	if err != nil {
		c.named(w.Name, -1)
		return nil, err
	}
	m := newMember(c, w, src, id)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.members = append(c.members, m)
	c.byID[id] = m
	return m, nil
}

// add makes a validated worker known and begins to watch it.
func (c *Checker) add(ctx context.Context, w Worker, src *source) error {
	m, err := c.know(w, src)
	if err != nil {
		return err
	}
	c.start(ctx, m)
	return nil
}

// removeLocked takes a worker out of all lists. It requires that mu is held.
func (c *Checker) removeLocked(m *member) {
	is := func(o *member) bool { return o == m }
	c.members = slices.DeleteFunc(c.members, is)
	c.draining = slices.DeleteFunc(c.draining, is)
	delete(c.byID, m.id)
}

// named counts a worker of that name and says when the first comes and the last
// goes.
func (c *Checker) named(name string, n int) {
	c.namesMu.Lock()
	defer c.namesMu.Unlock()
	before := c.names[name]
	c.names[name] += n
	switch {
	case c.names[name] == 0:
		delete(c.names, name)
		c.cfg.OnName(name, false)
	case before == 0:
		c.cfg.OnName(name, true)
	}
}

// member returns the worker in force with that id, or nil.
func (c *Checker) member(id scoring.WorkerID) *member {
	c.mu.RLock()
	defer c.mu.RUnlock()
	return c.byID[id]
}

// pool returns the workers in force of a pool.
func (c *Checker) pool(name string) []*member {
	c.mu.RLock()
	defer c.mu.RUnlock()
	var out []*member
	for _, m := range c.members {
		if m.w.Pool == name {
			out = append(out, m)
		}
	}
	return out
}

// ID returns the fleet's id of the named worker.
func (c *Checker) ID(name string) (scoring.WorkerID, bool) {
	c.mu.RLock()
	defer c.mu.RUnlock()
	for _, m := range c.members {
		if m.w.Name == name {
			return m.id, true
		}
	}
	return 0, false
}

// Snapshot returns the state of every worker in the order they were added, and
// then of those that are draining.
func (c *Checker) Snapshot() []Status {
	c.mu.RLock()
	members := slices.Concat(c.members, c.draining)
	c.mu.RUnlock()
	all := make([]Status, 0, len(members))
	for _, m := range members {
		all = append(all, m.snapshot())
	}
	return all
}

// ReportFailure tells that a request of a principal to the worker failed in a way
// that is the worker's fault. The worker is checked at once, and set aside if it
// goes on failing; faults that a request can provoke count for that once a second
// principal has had one. An unknown id is ignored, and so is one that was removed.
func (c *Checker) ReportFailure(id scoring.WorkerID, f scoring.Fault, principal string, err error) {
	m := c.member(id)
	if m == nil || err == nil || f == 0 {
		return
	}
	now := c.cfg.Now()
	c.ejectMu.Lock()
	m.requestFailed(now, f, principal, clip(err.Error()), c.othersReady(m))
	c.ejectMu.Unlock()
	m.wake()
}

// CheckSoon has the worker checked without waiting for its turn, for callers
// with a reason to doubt it, such as an event connection that broke. An unknown
// id is ignored.
func (c *Checker) CheckSoon(id scoring.WorkerID) {
	if m := c.member(id); m != nil {
		m.wake()
	}
}

// ReportSuccess tells that a request to the worker went well. It is cheap
// unless the worker had failed before.
func (c *Checker) ReportSuccess(id scoring.WorkerID) {
	if m := c.member(id); m != nil && m.trouble.Load() {
		m.requestDone(c.cfg.Now())
	}
}

// othersReady reports whether the pool of m has another ready worker.
func (c *Checker) othersReady(m *member) bool {
	return slices.ContainsFunc(c.pool(m.w.Pool), func(o *member) bool { return o != m && o.ready.Load() })
}

// relieve ends the ejections of a pool that has no ready worker: one that may
// fail is better than none.
func (c *Checker) relieve(pool string) {
	c.ejectMu.Lock()
	defer c.ejectMu.Unlock()
	members := c.pool(pool)
	if slices.ContainsFunc(members, func(m *member) bool { return m.ready.Load() }) {
		return
	}
	now := c.cfg.Now()
	for _, m := range members {
		m.pardon(now)
	}
}

// jitter returns d give or take a tenth, so that checks of many workers spread.
func jitter(d time.Duration) time.Duration {
	tenth := d / 10
	return d - tenth + rand.N(2*tenth+1)
}
