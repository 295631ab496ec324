package discovery

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/sluicegate/sluice/scoring"
)

const (
	// minCheckGap keeps failing requests from turning into a storm of checks.
	minCheckGap = 200 * time.Millisecond
	// recheck is the pause after a failed check: bad news is confirmed soon.
	recheck = 500 * time.Millisecond
	// maxModels bounds the list of models that is kept for display.
	maxModels = 100
)

// member is one worker under watch. Its run goroutine does all the calls;
// requests report from their own.
type member struct {
	c      *Checker
	w      Worker
	source *source // nil: from the configuration itself
	id     scoring.WorkerID
	host   string
	api    *client

	// stop ends run, done is closed when it has returned. Set before run starts.
	stop context.CancelFunc
	done chan struct{}

	kick    chan struct{} // has room for one: check soon
	trouble atomic.Bool   // a request that goes well changes something
	ready   atomic.Bool   // as last told to the fleet
	offers  atomic.Uint32 // a PathSet with pathsKnown, or 0
	asked   atomic.Bool   // offers is all that this process of the worker says about it

	mu       sync.Mutex // protects health, status and what follows
	health   health
	status   Status
	draining bool
	trial    bool // as last told to the fleet

	// Owned by run.
	lastCheck time.Time
	blind     bool      // the last check could not be made
	learnedAt time.Time // zero: look again at the next passed check
	announced []EventSource
	adapters  []string // as last told to the fleet
	context   int      // likewise
	described string   // the version that offers is of
	pathTries int      // how often the description has not come
	capacity  [2]int
	seen      Metrics // of the present process
}

// newMember returns a validated worker that the fleet knows as id.
func newMember(c *Checker, w Worker, src *source, id scoring.WorkerID) *member {
	u, err := url.Parse(w.URL)
	if err != nil {
		panic("BUG: url of a validated worker: " + err.Error())
	}
	m := &member{c: c, w: w, source: src, id: id, host: u.Hostname(), kick: make(chan struct{}, 1), done: make(chan struct{})}
	m.health.cfg, m.health.spread = &c.cfg, jitter
	var rt http.RoundTripper
	if c.cfg.Transport != nil {
		rt = c.cfg.Transport(w)
	}
	m.api = newClient(w.address(), w.APIKey, rt, c.cfg.Timeout)
	m.status = Status{
		ID: id, Name: w.Name, Pool: w.Pool, URL: w.URL, Source: src.kind(), Reason: "not checked yet", Since: c.cfg.Now(),
	}
	return m
}

func (m *member) info() scoring.WorkerInfo {
	return scoring.WorkerInfo{ID: m.id, Name: m.w.Name, Pool: m.w.Pool, Address: m.w.URL}
}

// run watches the worker until ctx ends.
func (m *member) run(ctx context.Context) {
	defer m.api.close()
	defer m.announce(nil)
	now := m.c.cfg.Now()
	checkAt, scrapeAt := now, now
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		next := checkAt
		if scrapeAt.Before(next) {
			next = scrapeAt
		}
		if at := m.readmitAt(); !at.IsZero() && at.Before(next) {
			next = at
		}
		timer.Reset(max(0, next.Sub(m.c.cfg.Now())))
		select {
		case <-ctx.Done():
			return
		case <-m.kick:
			if at := m.lastCheck.Add(minCheckGap); at.Before(checkAt) {
				checkAt = at
			}
		case <-timer.C:
		}
		m.readmit(m.c.cfg.Now())
		if !m.c.cfg.Now().Before(checkAt) {
			pause := m.c.cfg.Interval
			if !m.check(ctx) {
				pause = min(pause, recheck)
			}
			checkAt = m.c.cfg.Now().Add(jitter(pause))
		}
		if !m.c.cfg.Now().Before(scrapeAt) {
			m.scrape(ctx)
			scrapeAt = m.c.cfg.Now().Add(jitter(m.c.cfg.MetricsInterval))
		}
	}
}

func (m *member) wake() {
	select {
	case m.kick <- struct{}{}:
	default:
	}
}

// check calls /health and acts on the answer. It reports whether it passed.
func (m *member) check(ctx context.Context) bool {
	_, err := m.api.get(ctx, "/health", maxSmallBody)
	if ctx.Err() != nil {
		return true // we are stopping; nothing was learned
	}
	now := m.c.cfg.Now()
	m.lastCheck = now
	if scoring.OutOfResources(err) {
		m.notChecked(err)
		return false
	}
	m.blind = false
	if err != nil {
		m.checkFailed(now, err)
		return false
	}
	m.mu.Lock()
	m.status.LastCheck, m.status.LastPass = now, now
	cameUp := m.health.pass()
	up := m.health.up
	m.mu.Unlock()
	if cameUp {
		m.c.log.Info("worker is up", "worker", m.w.Name)
		m.learnedAt = time.Time{}
	}
	// What can be wrong with the worker is found out before it is ready.
	if up && (m.learnedAt.IsZero() || now.Sub(m.learnedAt) >= m.c.cfg.LearnInterval) {
		m.learn(ctx)
	}
	m.publish()
	return true
}

// notChecked is the end of a check that could not be made. Nothing was learned about
// the worker, so that its verdict stays.
func (m *member) notChecked(err error) {
	if !m.blind {
		m.c.log.Warn("cannot check a worker, its verdict stays: this process is out of descriptors, ports or memory", "worker", m.w.Name, "err", err)
	}
	m.blind = true
}

func (m *member) checkFailed(now time.Time, err error) {
	gone := errors.Is(err, syscall.ECONNREFUSED)
	m.mu.Lock()
	m.status.LastCheck = now
	wentDown := m.health.fail(clip(err.Error()), gone)
	m.mu.Unlock()
	m.publish()
	if wentDown {
		m.c.log.Warn("worker is down", "worker", m.w.Name, "err", err)
		m.drop()
	}
}

// drop forgets the cache of a process that is gone: its subscriptions end
// first, so that nothing is applied afterwards.
func (m *member) drop() {
	ranks := []int{0}
	for _, s := range m.announced {
		if s.Rank != 0 {
			ranks = append(ranks, s.Rank)
		}
	}
	m.announce(nil)
	m.setAdapters(nil)
	m.setContext(0)
	m.setOffers(0)
	m.asked.Store(false)
	for _, r := range ranks {
		m.c.fleet.ClearView(m.id, r)
	}
	m.seen = Metrics{}
	m.learnedAt = time.Time{}
}

// restarted handles another process at the same address.
func (m *member) restarted(ctx context.Context) {
	m.c.log.Warn("worker was restarted, dropping its cache view", "worker", m.w.Name)
	m.drop()
	m.mu.Lock()
	m.status.Restarts++
	m.health.forget()
	m.mu.Unlock()
	m.learn(ctx)
	m.publish()
}

// announce tells where the events come from, if that has changed.
func (m *member) announce(sources []EventSource) {
	if slices.Equal(sources, m.announced) {
		return
	}
	m.announced = sources
	m.mu.Lock()
	m.status.Sources = slices.Clone(sources)
	m.mu.Unlock()
	m.c.cfg.OnSources(m.info(), slices.Clone(sources))
}

// scrape reads /metrics of a worker that is up.
func (m *member) scrape(ctx context.Context) {
	m.mu.Lock()
	up := m.health.up
	m.mu.Unlock()
	if !up {
		return
	}
	body, err := m.api.get(ctx, "/metrics", maxMetricsBody)
	now := m.c.cfg.Now()
	if err == nil {
		got := ParseMetrics(body)
		if got.Engines > 0 {
			m.observe(ctx, now, got)
			return
		}
		err = errors.New("/metrics has none of vLLM's series")
	}
	if ctx.Err() != nil {
		return
	}
	m.mu.Lock()
	m.status.EngineErr = clip(err.Error())
	m.mu.Unlock()
}

func (m *member) observe(ctx context.Context, now time.Time, got Metrics) {
	m.mu.Lock()
	m.status.Engine, m.status.EngineAt, m.status.EngineErr = got, now, ""
	m.mu.Unlock()
	if m.seen.replacedBy(&got) {
		m.restarted(ctx)
	}
	gap := m.seen.interToken(&got)
	m.seen = got
	if c := [2]int{got.BlockSize, got.Blocks}; c != m.capacity && c[0] > 0 && c[1] > 0 {
		m.capacity = c
		m.c.fleet.SetCapacity(m.id, got.BlockSize, got.Blocks)
	}
	m.c.fleet.ObserveLoad(now, m.id, scoring.Load{
		Running: got.Running, Waiting: got.Waiting, KVUsage: got.KVUsage, InterToken: gap, Ranks: got.Engines,
	})
}

// replacedBy reports whether later metrics come from another process: it
// started at another time, or has counted less.
func (a *Metrics) replacedBy(b *Metrics) bool {
	if a.Engines == 0 {
		return false
	}
	started := a.StartTime > 0 && b.StartTime > 0 && (b.StartTime-a.StartTime > 1 || a.StartTime-b.StartTime > 1)
	return started || b.PromptTokens < a.PromptTokens || b.PrefixQueries < a.PrefixQueries
}

// publish tells the fleet, if the verdict has changed. If the last ready worker
// of the pool is lost by it, those that were set aside are better than none.
func (m *member) publish() {
	m.mu.Lock()
	lost := m.publishLocked(m.c.cfg.Now())
	m.mu.Unlock()
	if lost {
		m.c.relieve(m.w.Pool)
	}
}

// publishLocked reports whether the worker is no longer ready since the last
// call.
func (m *member) publishLocked(now time.Time) (lost bool) {
	if m.draining {
		return false
	}
	ready, reason := m.health.ready()
	m.status.Healthy = m.health.up
	if !m.health.clean() {
		m.trouble.Store(true)
	}
	if m.trial != m.health.trial {
		m.trial = m.health.trial
		m.c.fleet.SetTrial(m.id, m.trial)
	}
	if ready == m.status.Ready && reason == m.status.Reason {
		return false
	}
	lost = m.status.Ready && !ready
	if ready != m.status.Ready {
		m.status.Since = now
		m.c.log.Info("worker readiness changed", "worker", m.w.Name, "ready", ready, "reason", reason)
	}
	m.status.Ready, m.status.Reason = ready, reason
	m.ready.Store(ready)
	m.c.fleet.SetReady(now, m.id, ready, reason)
	return lost
}

// requestFailed counts a failed request; spare says whether others can serve
// while this worker is set aside. The last one stays, but is left alone for a moment:
// what waits at the gateway would else run through it at the speed at which it fails.
func (m *member) requestFailed(now time.Time, f scoring.Fault, principal, reason string, spare bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.status.Failures++
	if m.health.requestFailed(now, f, principal, reason) {
		if spare {
			m.health.eject(now)
			m.status.Ejections++
			m.status.EjectedUntil = m.health.ejectedUntil
		} else {
			m.c.fleet.Saturated(now, m.id)
		}
	}
	m.publishLocked(now)
}

func (m *member) requestDone(now time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.health.requestDone(now)
	if m.health.clean() {
		m.trouble.Store(false)
	}
	m.publishLocked(now)
}

func (m *member) readmitAt() time.Time {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.status.EjectedUntil
}

func (m *member) readmit(now time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.health.readmit(now)
	m.afterEjectionLocked(now)
}

// pardon ends an ejection before its time.
func (m *member) pardon(now time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.health.pardon()
	m.afterEjectionLocked(now)
}

func (m *member) afterEjectionLocked(now time.Time) {
	if !m.health.ejected {
		m.status.EjectedUntil = time.Time{}
	}
	m.publishLocked(now)
}

// retire marks the worker as removed. Nothing that its checks or requests find
// out afterwards is told to the fleet.
func (m *member) retire(now time.Time, reason string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.draining = true
	m.ready.Store(false)
	m.status.Ready, m.status.Reason, m.status.Since = false, reason, now
	m.status.EjectedUntil, m.status.DrainingUntil = time.Time{}, now.Add(m.c.cfg.DrainTimeout)
}

func (m *member) snapshot() Status {
	m.mu.Lock()
	defer m.mu.Unlock()
	s := m.status
	s.State = m.health.state()
	if m.draining {
		s.State = StateDraining
	}
	s.Models, s.Adapters = slices.Clone(s.Models), slices.Clone(s.Adapters)
	s.Sources, s.Endpoints = slices.Clone(s.Sources), slices.Clone(s.Endpoints)
	return s
}

// quoted lists a few names for a message.
func quoted(names []string) string {
	const most = 5
	var b strings.Builder
	for i, n := range names {
		if i == most {
			fmt.Fprintf(&b, " and %d more", len(names)-most)
			break
		}
		if i > 0 {
			b.WriteString(", ")
		}
		fmt.Fprintf(&b, "%q", clip(n))
	}
	return b.String()
}
