package discovery

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"
)

// StaticSource is the kind of workers that the configuration itself lists.
const StaticSource = "static"

// Discoverer finds the workers of one pool.
type Discoverer interface {
	// Run sends the complete list of workers to up, at the start and whenever it
	// may have changed, until ctx ends; it returns then and only then. It never
	// blocks on up beyond the end of ctx, and never closes it: up belongs to the
	// caller, who reads it until Run has returned. Equal lists may be sent again.
	Run(ctx context.Context, up chan<- Update)
}

// Update is what a Discoverer has found out.
type Update struct {
	// Workers is the complete list. It belongs to the receiver. An empty one
	// removes all workers, so a Discoverer sends it only if somebody has decided
	// just that; an answer that merely lacks workers is an error.
	Workers []Worker
	// Err, if not nil, says why there is no list; the last one stays in force.
	Err error
}

// send hands u over, unless ctx ends first.
func send(ctx context.Context, up chan<- Update, u Update) {
	select {
	case up <- u:
	case <-ctx.Done():
	}
}

// Source is a dynamic list of the workers of one pool.
type Source struct {
	// Pool is what its workers belong to, whatever their own Pool says.
	Pool string
	// Kind names the way they are found, for logs and Status.
	Kind string
	// MaxWorkers bounds the list. What is beyond it is left out, those in use
	// last; the source then counts as failing.
	MaxWorkers int
	Discoverer Discoverer
}

// source is a Source that is followed.
type source struct {
	Source
	// again has room for one: names or addresses have become free.
	again chan struct{}

	// Owned by follow: the last list, what is wrong with it, and why there is no
	// newer one.
	last      []Worker
	part, gap error

	mu     sync.Mutex // protects status
	status SourceStatus
}

// kind is the source's kind; nil is the configuration itself.
func (s *source) kind() string {
	if s == nil {
		return StaticSource
	}
	return s.Kind
}

// Follow adds a dynamic list of workers. Call it before Run.
func (c *Checker) Follow(s Source) error {
	switch {
	case s.Pool == "" || s.Kind == "" || s.Discoverer == nil:
		return errors.New("cannot follow a list of workers: it needs a pool, a kind and a discoverer")
	case s.MaxWorkers < 1:
		return fmt.Errorf("cannot follow the workers of pool %q: at most %d workers, want at least 1", s.Pool, s.MaxWorkers)
	}
	c.sources = append(c.sources, &source{
		Source: s, again: make(chan struct{}, 1), status: SourceStatus{Pool: s.Pool, Kind: s.Kind},
	})
	return nil
}

// Sources returns the state of every dynamic list, in the order of Follow.
func (c *Checker) Sources() []SourceStatus {
	out := make([]SourceStatus, 0, len(c.sources))
	for _, s := range c.sources {
		s.mu.Lock()
		st := s.status
		s.mu.Unlock()
		c.mu.RLock()
		for _, m := range c.members {
			if m.source == s {
				st.Workers++
			}
		}
		for _, m := range c.draining {
			if m.source == s {
				st.Draining++
			}
		}
		c.mu.RUnlock()
		out = append(out, st)
	}
	return out
}

// follow applies what the source sends until ctx ends.
func (c *Checker) follow(ctx context.Context, s *source) {
	up := make(chan Update)
	var wg sync.WaitGroup
	wg.Go(func() { s.Discoverer.Run(ctx, up) })
	defer wg.Wait()
	for {
		select {
		case <-ctx.Done():
			return
		case u := <-up:
			c.update(ctx, s, u)
		case <-s.again:
			if s.part != nil {
				c.note(s, c.apply(ctx, s))
			}
		}
	}
}

// update takes over an answer of the source.
func (c *Checker) update(ctx context.Context, s *source, u Update) {
	s.gap = u.Err
	changed := false
	if u.Err == nil {
		s.last = u.Workers
		changed = c.apply(ctx, s)
	}
	s.mu.Lock()
	if u.Err == nil {
		s.status.Updates++
		s.status.LastUpdate = c.cfg.Now()
	}
	if u.Err != nil || s.part != nil {
		s.status.Failures++
	}
	s.mu.Unlock()
	c.note(s, changed)
}

// note shows how the source is, and logs when that changes.
func (c *Checker) note(s *source, changed bool) {
	text := ""
	if err := errors.Join(s.gap, s.part); err != nil {
		text = clipTo(err.Error(), maxSourceError)
	}
	s.mu.Lock()
	before := s.status.Error
	s.status.Error = text
	if changed {
		s.status.LastChange = c.cfg.Now()
	}
	s.mu.Unlock()
	switch {
	case text == before:
	case text == "":
		c.log.Info("the list of workers is good again", "pool", s.Pool, "source", s.Kind)
	case s.gap != nil:
		c.log.Warn("no list of workers, keeping the last one", "pool", s.Pool, "source", s.Kind, "error", text)
	default:
		c.log.Warn("the list of workers can be used in part only", "pool", s.Pool, "source", s.Kind, "error", text)
	}
}

// maxSourceError bounds what is shown of a source's error, which may list
// several things.
const maxSourceError = 1000

// apply makes the source's workers equal to its last list, as far as that can be
// used, and reports whether anything changed. What others have to give up first
// is tried again when they do.
func (c *Checker) apply(ctx context.Context, s *source) (changed bool) {
	c.applyMu.Lock()
	defer c.applyMu.Unlock()
	list, err := c.usable(s, s.last)
	wanted := make(map[string]*Worker, len(list))
	for i := range list {
		wanted[list[i].Name] = &list[i]
	}
	var gone []*member
	have := make(map[string]bool)
	for _, m := range c.of(s) {
		if w := wanted[m.w.Name]; w != nil && w.equal(&m.w) {
			have[m.w.Name] = true
			continue
		}
		gone = append(gone, m)
	}
	c.retire(ctx, gone)
	var errs []error
	added := 0
	for i := range list {
		if have[list[i].Name] {
			continue
		}
		if err := c.add(ctx, list[i], s); err != nil {
			errs = append(errs, err)
			continue
		}
		added++
	}
	if added+len(gone) > 0 {
		c.log.Info("workers changed", "pool", s.Pool, "source", s.Kind, "added", added, "removed", len(gone), "workers", len(have)+added)
	}
	s.part = errors.Join(err, errors.Join(errs...))
	if len(gone) > 0 {
		for _, o := range c.sources {
			if o != s {
				o.tryAgain()
			}
		}
	}
	return added+len(gone) > 0
}

// tryAgain has the source's list applied again, if not all of it could be used.
func (s *source) tryAgain() {
	select {
	case s.again <- struct{}{}:
	default:
	}
}

// of returns the workers of a source that are in force.
func (c *Checker) of(s *source) []*member {
	c.mu.RLock()
	defer c.mu.RUnlock()
	var out []*member
	for _, m := range c.members {
		if m.source == s {
			out = append(out, m)
		}
	}
	return out
}

// usable returns the workers of a list that can be used, those in use first
// where there are too many. err names the others.
func (c *Checker) usable(s *source, list []Worker) (ok []Worker, err error) {
	names, addresses := make(map[string]string), make(map[string]string) // by name and address: whose it is
	used := make(map[string]bool)
	c.mu.RLock()
	for _, m := range c.members {
		if m.source == s {
			used[m.w.Name] = true
			continue
		}
		owner := fmt.Sprintf("worker %q of pool %q", m.w.Name, m.w.Pool)
		names[m.w.Name], addresses[m.w.address()] = owner, owner
	}
	c.mu.RUnlock()
	var errs []error
	for _, w := range list {
		w.Pool = s.Pool
		err := w.Validate()
		if owner := names[w.Name]; err == nil && owner != "" {
			err = fmt.Errorf("cannot use worker %q: the name is taken by %s", w.Name, owner)
		}
		if owner := addresses[w.address()]; err == nil && owner != "" {
			err = fmt.Errorf("cannot use worker %q: its address is that of %s, and its load would be counted twice", w.Name, owner)
		}
		if err != nil {
			errs = append(errs, err)
			continue
		}
		names[w.Name], addresses[w.address()] = "another entry", "another entry"
		ok = append(ok, w)
	}
	if n := len(ok); n > s.MaxWorkers {
		errs = append(errs, fmt.Errorf("%d workers are more than the limit of %d: %d are left out", n, s.MaxWorkers, n-s.MaxWorkers))
		ok = firstOnes(ok, used, s.MaxWorkers)
	}
	return ok, errors.Join(errs...)
}

// firstOnes cuts a list to n workers: those in use go before others, the rest
// keeps its order.
func firstOnes(list []Worker, used map[string]bool, n int) []Worker {
	kept := make([]Worker, 0, n)
	for _, wanted := range [...]bool{true, false} {
		for _, w := range list {
			if used[w.Name] == wanted && len(kept) < n {
				kept = append(kept, w)
			}
		}
	}
	return kept
}

// drainPoll is how often a removed worker is asked whether it still has
// requests.
const drainPoll = 200 * time.Millisecond

// retire takes workers out of the list: no new picks at once, then the end of
// their checks and subscriptions, which it waits for. What they still have in
// flight goes on under their old ids.
func (c *Checker) retire(ctx context.Context, gone []*member) {
	if len(gone) == 0 {
		return
	}
	now := c.cfg.Now()
	c.mu.Lock()
	for _, m := range gone {
		c.removeLocked(m)
		c.draining = append(c.draining, m)
	}
	c.mu.Unlock()
	const reason = "removed from the list of workers"
	for _, m := range gone {
		c.fleet.Retire(m.id, reason)
		m.retire(now, reason)
		m.stop()
	}
	for _, m := range gone {
		<-m.done
		c.wg.Go(func() { c.drain(ctx, m) })
	}
	c.relieve(gone[0].w.Pool)
}

// drain waits for a removed worker's requests and then forgets it.
func (c *Checker) drain(ctx context.Context, m *member) {
	timeout := time.NewTimer(c.cfg.DrainTimeout)
	defer timeout.Stop()
	tick := time.NewTicker(drainPoll)
	defer tick.Stop()
	for c.fleet.InFlight(m.id) > 0 {
		select {
		case <-ctx.Done():
			return
		case <-timeout.C:
			c.log.Warn("a removed worker still has requests; they go on uncounted", "worker", m.w.Name, "requests", c.fleet.InFlight(m.id))
			c.forget(m)
			return
		case <-tick.C:
		}
	}
	c.forget(m)
}

// forget ends all that is known of a removed worker.
func (c *Checker) forget(m *member) {
	c.fleet.Remove(m.id)
	c.mu.Lock()
	c.removeLocked(m)
	c.mu.Unlock()
	c.named(m.w.Name, -1)
}
