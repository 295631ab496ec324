package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"
	"strings"
	"sync"
	"time"
)

// Causes of a reload, as logs and debug pages name them.
const (
	causeFiles  = "files"  // something has changed
	causeSignal = "SIGHUP" // an operator's signal
	causeAdmin  = "admin"  // POST /admin/reload
	causePrices = "prices" // a price begins or ends to hold
)

const (
	// loadTries is how often a load is begun anew because files changed meanwhile.
	loadTries = 5
	// priceRetry is when a reload for the sake of prices is tried again after it failed.
	priceRetry = time.Minute
	// maxLoggedErrors bounds the lines that one failed reload writes to the log; the admin listener has all.
	maxLoggedErrors = 20
)

// reloader replaces the generation in force by a complete new one, or leaves it as it is. One goroutine,
// that of Run, does all of it, whatever the cause: a changed file, SIGHUP, a call of the admin listener, or
// a price that begins to hold. Its methods are safe for concurrent use.
type reloader struct {
	file    string // the configuration's; empty: it stays as it is and the files that it names are read anew
	base    *lasting
	install func(old, fresh *generation) // makes fresh the one of every request that begins from now on
	hangups <-chan struct{}
	hungUp  func() // is called at each of hangups, before the reload; nil for nothing
	log     *slog.Logger
	now     func() time.Time

	asked chan *reloadCall
	ended chan struct{} // closed when Run returns

	mu      sync.Mutex // protects what follows
	current *generation
	watch   sources     // a change of them is worth a reload
	print   fingerprint // of them when they were last loaded, whatever came of it
	last    attempt     // zero until there was one
	good    uint64      // reloads that succeeded
	failed  uint64      // reloads that did not
}

// reloadCall is a caller that waits for a reload.
type reloadCall struct {
	cause  string
	result chan attempt // has room for one
}

// attempt is what came of a reload.
type attempt struct {
	at       time.Time
	took     time.Duration
	cause    string
	revision string // of the policies in force afterwards
	number   uint64 // of the generation in force afterwards
	err      error
}

// newReloader returns a reloader whose generation in force is first; print is how its sources were before it
// was loaded. Run must be called for anything to be reloaded.
func newReloader(file string, first *generation, print fingerprint, base *lasting, install func(old, fresh *generation), hangups <-chan struct{}, log *slog.Logger) *reloader {
	return &reloader{
		file: file, base: base, install: install, hangups: hangups, log: log, now: time.Now,
		asked: make(chan *reloadCall), ended: make(chan struct{}),
		current: first, watch: sourcesOf(file, first.cfg), print: print,
	}
}

// generation returns the one in force.
func (r *reloader) generation() *generation {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.current
}

// failing reports whether what the files say now is not what is in force, because the last reload failed.
func (r *reloader) failing() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.last.err != nil
}

// counts returns how many reloads succeeded and failed.
func (r *reloader) counts() (good, failed uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.good, r.failed
}

// errNotRunning is the answer to a call that comes when Run has ended.
var errNotRunning = errors.New("the gateway is shutting down")

// Reload reads everything anew and returns what came of it. The error is that of ctx, or that nothing is
// reloaded any more; that of the reload is in the attempt. Calls that come while a reload is under way share
// the one after it.
func (r *reloader) Reload(ctx context.Context, cause string) (attempt, error) {
	call := &reloadCall{cause: cause, result: make(chan attempt, 1)}
	select {
	case r.asked <- call:
	case <-ctx.Done():
		return attempt{}, ctx.Err()
	case <-r.ended:
		return attempt{}, errNotRunning
	}
	select {
	case a := <-call.result:
		return a, nil
	case <-ctx.Done():
		return attempt{}, ctx.Err()
	case <-r.ended:
		return attempt{}, errNotRunning
	}
}

// Run reloads when there is a cause to, until ctx ends.
func (r *reloader) Run(ctx context.Context) error {
	defer close(r.ended)
	look := newLook(r)
	defer look.close()
	prices := time.NewTimer(time.Hour)
	defer prices.Stop()
	var notBefore time.Time // of another try for the sake of prices
	for changed := true; ; {
		if changed {
			prices.Reset(r.untilPrices(notBefore))
		}
		changed = true
		select {
		case <-ctx.Done():
			return nil
		case call := <-r.asked:
			r.answer(ctx, call)
			look.follow()
		case <-r.hangups:
			if r.hungUp != nil {
				r.hungUp()
			}
			r.attempt(ctx, causeSignal)
			look.follow()
		case <-prices.C:
			if r.pricesChanged() && r.attempt(ctx, causePrices).err != nil {
				notBefore = r.now().Add(priceRetry)
			}
		case <-look.poll.C:
			look.act(ctx)
		case <-look.due.C:
			look.act(ctx)
		case path, ok := <-look.changed:
			changed = false // most are of files that do not matter, such as the ledger's
			look.event(path, ok)
		case _, ok := <-look.missed:
			look.lost(ok)
		}
	}
}

// answer makes one attempt for all callers that wait by now.
func (r *reloader) answer(ctx context.Context, call *reloadCall) {
	calls := []*reloadCall{call}
	for more := true; more; {
		select {
		case c := <-r.asked:
			calls = append(calls, c)
		default:
			more = false
		}
	}
	a := r.attempt(ctx, call.cause)
	for _, c := range calls {
		c.result <- a
	}
}

// untilPrices is how long to wait for the next change of prices. It is looked at again every minute, so that
// a clock that was set does no harm.
func (r *reloader) untilPrices(notBefore time.Time) time.Duration {
	g, now := r.generation(), r.now()
	wait := time.Minute
	if next := g.docs.prices.Next(g.loaded); !next.IsZero() {
		wait = min(wait, next.Sub(now))
	}
	return max(wait, notBefore.Sub(now), 0)
}

// pricesChanged reports whether other prices hold now than when the generation in force was loaded.
func (r *reloader) pricesChanged() bool {
	g := r.generation()
	next := g.docs.prices.Next(g.loaded)
	return !next.IsZero() && !r.now().Before(next)
}

// attempt reloads, and notes and logs what came of it.
func (r *reloader) attempt(ctx context.Context, cause string) attempt {
	old, start := r.generation(), r.now()
	fresh, read, err := r.load(ctx, old)
	if ctx.Err() != nil {
		return attempt{at: start, cause: cause, revision: old.docs.policies.Revision(), number: old.number, err: errNotRunning}
	}
	in := old
	if err == nil {
		r.install(old, fresh)
		in = fresh
	}
	a := attempt{at: start, took: r.now().Sub(start), cause: cause, revision: in.docs.policies.Revision(), number: in.number, err: err}
	r.mu.Lock()
	r.current, r.last = in, a
	r.watch, r.print = read.watch(err)
	if err == nil {
		r.good++
	} else {
		r.failed++
	}
	r.mu.Unlock()
	r.tell(a, old, in)
	return a
}

// tell writes an attempt to the log.
func (r *reloader) tell(a attempt, old, in *generation) {
	if a.err == nil {
		r.log.Info("reloaded", "cause", a.cause, "generation", a.number, "policy", a.revision,
			"changed", a.revision != old.docs.policies.Revision(), "took", a.took)
		if a.revision != old.docs.policies.Revision() {
			logWarnings(r.log, in)
		}
		return
	}
	all := strings.Split(a.err.Error(), "\n")
	r.log.Error("cannot reload; what was loaded last stays in force", "cause", a.cause, "generation", a.number, "policy", a.revision, "errors", len(all))
	for _, line := range all[:min(len(all), maxLoggedErrors)] {
		r.log.Error("reload error", "error", line)
	}
}

// logWarnings tells what is worth knowing of a generation's policies.
func logWarnings(log *slog.Logger, g *generation) {
	if unscanned(g.cfg, g.docs) {
		log.Info("policy warning", "path", "labels", "text", textUnscanned)
	}
	for _, w := range g.docs.policies.Warnings() {
		log.Info("policy warning", "kind", w.Kind, "file", w.File, "line", w.Line, "path", w.Path, "text", w.Text)
	}
}

// reading is what a load has read, and what it may have failed for: the files of what is in force, too, and
// those that are checked although a reload does not change what was made of them.
type reading struct {
	read, checked           sources
	readPrint, checkedPrint fingerprint
}

// watch returns what is worth watching after the load, and how it was. Files of which no whole state was
// read are worth another look whatever they come to rest at.
func (r *reading) watch(err error) (sources, fingerprint) {
	switch {
	case err == nil:
		return r.read, r.readPrint
	case errors.Is(err, errUnstable):
		return r.checked, fingerprint{}
	}
	return r.checked, r.checkedPrint
}

// errUnstable says that no set of files could be read that was there at one time.
var errUnstable = errors.New("the files changed while they were being read, again and again; they are looked at again when they have settled")

// load builds the generation that the files describe. All of it was there at one time: when something has
// changed meanwhile it is read again, and an error in files that are being written is none.
func (r *reloader) load(ctx context.Context, old *generation) (*generation, reading, error) {
	var read reading
	for range loadTries {
		var fresh *generation
		var stable bool
		var err error
		fresh, read, stable, err = r.loadOnce(old)
		if stable {
			return fresh, read, err
		}
		wait := time.NewTimer(settle / 5)
		select {
		case <-wait.C:
		case <-ctx.Done():
			wait.Stop()
			return nil, read, ctx.Err()
		}
	}
	return nil, read, errUnstable
}

// loadOnce reads everything once. stable is false if something changed meanwhile.
func (r *reloader) loadOnce(old *generation) (fresh *generation, read reading, stable bool, err error) {
	before := sources{files: []string{r.file}}.fingerprint()
	cfg, err := r.config(old)
	if err != nil {
		cfg = old.cfg // whose files are still worth watching
	}
	read.read = sourcesOf(r.file, cfg)
	read.checked = read.read.and(sourcesOf(r.file, old.cfg)).and(filesOf(cfg))
	read.readPrint, read.checkedPrint = read.read.fingerprint(), read.checked.fingerprint()
	if err == nil {
		err = read.checked.irregular()
	}
	if err == nil {
		fresh, err = r.build(cfg, old)
	}
	stable = read.checked.fingerprint() == read.checkedPrint && sources{files: []string{r.file}}.fingerprint() == before
	return fresh, read, stable, err
}

// config reads the configuration. That of the running gateway is returned if it has no file.
func (r *reloader) config(old *generation) (*Config, error) {
	if r.file == "" {
		return old.cfg, nil
	}
	if err := (sources{files: []string{r.file}}).irregular(); err != nil {
		return nil, err
	}
	parsed, err := readConfig(r.file)
	if err != nil {
		return nil, err
	}
	if err := refuseRestart(old.cfg, parsed); err != nil {
		return nil, err
	}
	return parsed.cfg, nil
}

// build is lasting.generation. A bug in it must not end a gateway that serves.
func (r *reloader) build(cfg *Config, old *generation) (fresh *generation, err error) {
	defer func() {
		if p := recover(); p != nil {
			r.log.Error("panic in a reload", "kind", fmt.Sprintf("%T", p), "stack", string(debug.Stack()))
			fresh, err = nil, errors.New("BUG: the load failed in a way that it should not; the log has the place")
		}
	}()
	return r.base.generation(cfg, old, r.now())
}

// watched is what a change of is worth a reload, and how it was when it was last loaded, whatever came of
// that.
func (r *reloader) watched() (sources, fingerprint) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.watch, r.print
}
