package discovery

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/url"
	"sync"
	"time"

	"github.com/sluicegate/sluice/scoring"
)

// Checker watches a static list of workers. All its methods are safe for
// concurrent use.
type Checker struct {
	cfg     Config
	fleet   Fleet
	log     *slog.Logger
	members []*member
	byID    map[scoring.WorkerID]*member

	// ejectMu makes "is another one ready" and the ejection one step, so that
	// two ejections can't leave a pool empty.
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
	c := &Checker{cfg: cfg, fleet: fleet, log: log, byID: make(map[scoring.WorkerID]*member)}
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
		id, err := fleet.Add(cfg.Now(), w.spec())
		if err != nil {
			return nil, err
		}
		u, err := url.Parse(w.URL)
		if err != nil {
			panic("BUG: url of a validated worker: " + err.Error())
		}
		m := newMember(c, w, id, u)
		c.members = append(c.members, m)
		c.byID[id] = m
	}
	return c, nil
}

// Run checks all workers until ctx ends, then ends their subscriptions and
// returns nil. Call it once.
func (c *Checker) Run(ctx context.Context) error {
	var wg sync.WaitGroup
	for _, m := range c.members {
		wg.Go(func() { m.run(ctx) })
	}
	wg.Wait()
	return nil
}

// ID returns the fleet's id of the named worker.
func (c *Checker) ID(name string) (scoring.WorkerID, bool) {
	for _, m := range c.members {
		if m.w.Name == name {
			return m.id, true
		}
	}
	return 0, false
}

// Snapshot returns the state of every worker in configured order.
func (c *Checker) Snapshot() []Status {
	all := make([]Status, 0, len(c.members))
	for _, m := range c.members {
		all = append(all, m.snapshot())
	}
	return all
}

// ReportFailure tells that a request to the worker failed in a way that is the
// worker's fault: no connection, a connection lost, an answer of 500 or above.
// The worker is checked at once, and set aside if it goes on failing. An
// unknown id is ignored.
func (c *Checker) ReportFailure(id scoring.WorkerID, err error) {
	m := c.byID[id]
	if m == nil || err == nil {
		return
	}
	now := c.cfg.Now()
	m.trouble.Store(true)
	c.ejectMu.Lock()
	m.requestFailed(now, clip(err.Error()), c.othersReady(m))
	c.ejectMu.Unlock()
	m.wake()
}

// CheckSoon has the worker checked without waiting for its turn, for callers
// with a reason to doubt it, such as an event connection that broke. An unknown
// id is ignored.
func (c *Checker) CheckSoon(id scoring.WorkerID) {
	if m := c.byID[id]; m != nil {
		m.wake()
	}
}

// ReportSuccess tells that a request to the worker went well. It is cheap
// unless the worker had failed before.
func (c *Checker) ReportSuccess(id scoring.WorkerID) {
	if m := c.byID[id]; m != nil && m.trouble.Load() {
		m.requestDone(c.cfg.Now())
	}
}

// othersReady reports whether the pool of m has another ready worker.
func (c *Checker) othersReady(m *member) bool {
	for _, o := range c.members {
		if o != m && o.w.Pool == m.w.Pool && o.ready.Load() {
			return true
		}
	}
	return false
}

// jitter returns d give or take a tenth, so that checks of many workers spread.
func jitter(d time.Duration) time.Duration {
	tenth := d / 10
	return d - tenth + rand.N(2*tenth+1)
}
