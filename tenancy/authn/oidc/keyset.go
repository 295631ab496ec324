package oidc

import (
	"context"
	"log/slog"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sluicegate/sluice/tenancy"
)

// Fetch gets a key set. maxAge is how long it is good for by its sender's word,
// zero if that says nothing. One goroutine calls it, never two at a time.
type Fetch func(ctx context.Context) (jwks []byte, maxAge time.Duration, err error)

// Timing paces the fetches of a key set.
type Timing struct {
	// Timeout bounds one fetch, Wait how long a request waits for it.
	Timeout, Wait time.Duration
	// Cooldown is the least time between two fetches that unknown keys ask for. A
	// key id that a fetch did not bring asks again after it, then after twice as
	// long, up to RetryMax.
	Cooldown time.Duration
	// Refresh is the time between fetches that nobody asks for, MinRefresh the
	// least if the provider wants it sooner.
	Refresh, MinRefresh time.Duration
	// RetryMin is the pause after a first failure; it doubles up to RetryMax.
	RetryMin, RetryMax time.Duration
}

// DefaultTiming returns what suits providers at large.
func DefaultTiming() Timing {
	return Timing{
		Timeout: 5 * time.Second, Wait: 2 * time.Second, Cooldown: 10 * time.Second,
		Refresh: 15 * time.Minute, MinRefresh: time.Minute, RetryMin: time.Second, RetryMax: 5 * time.Minute,
	}
}

// maxMissed bounds the unknown key ids that are remembered.
const maxMissed = 1024

// KeySet holds the keys of one issuer. It is safe for concurrent use, outlives
// reloads, and is refreshed by Run alone.
type KeySet struct {
	fetch  Fetch // nil: the keys never change
	timing Timing
	log    *slog.Logger
	store  func(jwks []byte) // nil: nothing is kept

	ring    atomic.Pointer[ring]
	version atomic.Uint64 // counts the changes of ring
	asked   chan struct{} // has room for one

	mu        sync.Mutex
	busy      bool          // a fetch is under way or asked for
	done      chan struct{} // closed when it has ended
	notBefore time.Time     // of the next fetch that a request may ask for
	missed    map[string]miss
	fetched   time.Time // of the last success
	failures  int       // in a row
	good, bad uint64
}

// miss is a key id that a fetch did not bring.
type miss struct {
	until time.Time // it asks for no other before
	pause time.Duration
	fetch uint64 // the number of the fetch
}

// NewKeySet returns a set that is empty until Run has fetched it.
func NewKeySet(fetch Fetch, timing Timing, log *slog.Logger) *KeySet {
	return &KeySet{fetch: fetch, timing: timing, log: log, asked: make(chan struct{}, 1), missed: make(map[string]miss)}
}

// FixedKeys returns a set that never changes.
func FixedKeys(jwks []byte) (*KeySet, error) {
	r, err := parseKeys(jwks)
	if err != nil {
		return nil, err
	}
	s := &KeySet{}
	s.ring.Store(r)
	return s, nil
}

// Keep gives a set, before Run, the keys of an earlier one, which count until
// others are fetched; nil if there are none. Run calls store, from its goroutine,
// with all that come and are others. An error says that jwks can't be used, and
// store is called all the same.
func (s *KeySet) Keep(jwks []byte, store func(jwks []byte)) error {
	s.store = store
	if jwks == nil {
		return nil
	}
	r, err := parseKeys(jwks)
	if err == nil {
		s.ring.Store(r)
	}
	return err
}

// KeySetStats is the state of a key set.
type KeySetStats struct {
	// Keys is how many keys there are.
	Keys int
	// Fetched is when they were last fetched; zero if they never were.
	Fetched time.Time
	// Good and Bad count fetches; Failing says that the last one failed.
	Good, Bad uint64
	Failing   bool
	// Fixed says that nothing is ever fetched.
	Fixed bool
}

// Stats returns the state of the set.
func (s *KeySet) Stats() KeySetStats {
	out := KeySetStats{Fixed: s.fetch == nil}
	if r := s.ring.Load(); r != nil {
		out.Keys = len(r.keys)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	out.Fetched, out.Good, out.Bad, out.Failing = s.fetched, s.good, s.bad, s.failures > 0
	return out
}

// Version changes whenever the keys do.
func (s *KeySet) Version() uint64 { return s.version.Load() }

// find returns the keys that a token may be signed by. It waits for one fetch if
// it knows none and one may be made.
func (s *KeySet) find(ctx context.Context, kid *string, alg string) ([]*key, error) {
	if found := s.ring.Load().find(kid, alg); len(found) > 0 {
		return found, nil
	}
	// A fetch can't help where there is a key of that id for something else, or
	// several for a token without one.
	if s.fetch == nil || s.ring.Load() != nil && (kid == nil || s.ring.Load().has(*kid)) {
		return nil, errKeyUnknown
	}
	done, number := s.ask(name(kid))
	if done == nil {
		return nil, s.unknown()
	}
	patience := time.NewTimer(s.timing.Wait)
	defer patience.Stop()
	select {
	case <-done:
	case <-patience.C:
		return nil, errKeysLate
	case <-ctx.Done():
		return nil, &tenancy.AuthError{Reason: tenancy.AuthCancelled, Cause: ctx.Err()}
	}
	if found := s.ring.Load().find(kid, alg); len(found) > 0 {
		return found, nil
	}
	s.noteMiss(name(kid), number)
	return nil, s.unknown()
}

// renewed returns the keys for a token that those of a version did not verify, if
// there are others by now or after a fetch, with their version; nil if not. It asks
// for a fetch under the same bounds as an unknown key id does.
func (s *KeySet) renewed(ctx context.Context, h header, version uint64) ([]*key, uint64) {
	if s.fetch == nil {
		return nil, version
	}
	if s.Version() == version {
		const mark = "signature of " // no key id of its own
		done, number := s.ask(mark + name(h.kid))
		if done == nil {
			return nil, version
		}
		patience := time.NewTimer(s.timing.Wait)
		defer patience.Stop()
		select {
		case <-done:
		case <-patience.C:
		case <-ctx.Done():
		}
		if s.Version() == version {
			s.noteMiss(mark+name(h.kid), number)
			return nil, version
		}
	}
	// First the version: what a later one withdraws must not be remembered as its own.
	version = s.Version()
	return s.ring.Load().find(h.kid, h.alg), version
}

func name(kid *string) string {
	if kid == nil {
		return ""
	}
	return *kid
}

// unknown is the error for a key that no fetch brings now.
func (s *KeySet) unknown() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.failures > 0 || s.good == 0 {
		return errKeysDown
	}
	return errKeyUnknown
}

// ask returns a channel that is closed when the fetch under way, or one that
// begins now, has ended, and its number; nil if there must be none now.
func (s *KeySet) ask(kid string) (done <-chan struct{}, number uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	number = s.good + s.bad + 1
	if s.busy {
		return s.done, number
	}
	now := time.Now()
	if now.Before(s.notBefore) || now.Before(s.missed[kid].until) {
		return nil, 0
	}
	s.begin()
	s.asked <- struct{}{} // there is room: begin was not called since Run took the last one
	return s.done, number
}

// begin marks a fetch as under way.
func (s *KeySet) begin() { s.busy, s.done = true, make(chan struct{}) }

// noteMiss notes that a fetch did not bring a key id.
func (s *KeySet) noteMiss(kid string, number uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	before, known := s.missed[kid]
	if known && before.fetch >= number || s.failures > 0 {
		return
	}
	if !known && len(s.missed) >= maxMissed {
		for other := range s.missed {
			delete(s.missed, other)
			break
		}
	}
	pause := min(max(2*before.pause, s.timing.Cooldown), s.timing.RetryMax)
	s.missed[kid] = miss{until: time.Now().Add(pause), pause: pause, fetch: number}
}

// Run fetches the keys, now and again, until ctx ends.
func (s *KeySet) Run(ctx context.Context) error {
	if s.fetch == nil {
		<-ctx.Done()
		return nil
	}
	next := time.NewTimer(0)
	defer next.Stop()
	for {
		asked := false
		select {
		case <-ctx.Done():
			return nil
		case <-next.C:
		case <-s.asked:
			asked = true
		}
		next.Reset(s.refresh(ctx, asked))
	}
}

// refresh fetches once and returns how long to wait until the next time.
func (s *KeySet) refresh(ctx context.Context, asked bool) time.Duration {
	s.mu.Lock()
	if !s.busy {
		s.begin()
	}
	s.mu.Unlock()
	fetchCtx, cancel := context.WithTimeout(ctx, s.timing.Timeout)
	text, maxAge, err := s.fetch(fetchCtx)
	cancel()
	var fresh *ring
	if err == nil {
		fresh, err = parseKeys(text)
	}
	if old := s.ring.Load(); s.store != nil && err == nil && (old == nil || old.digest != fresh.digest || s.Version() == 0) {
		s.store(text)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	defer func() { s.busy = false; close(s.done) }()
	select {
	case <-s.asked: // while this one was about to begin: it is what was asked for
		asked = true
	default:
	}
	now := time.Now()
	if err != nil {
		return s.failed(ctx, now, err)
	}
	if s.failures > 0 {
		s.log.Info("the issuer's keys can be fetched again", "failures", s.failures)
	}
	s.good++
	s.failures, s.fetched = 0, now
	if asked {
		s.notBefore = now.Add(s.timing.Cooldown)
	}
	if old := s.ring.Load(); old == nil || old.digest != fresh.digest || s.Version() == 0 {
		s.ring.Store(fresh)
		s.version.Add(1)
		s.log.Info("the issuer's keys have changed", "keys", len(fresh.keys), "ignored", fresh.ignored)
	}
	wait := s.timing.Refresh
	if maxAge > 0 {
		wait = min(wait, max(maxAge, s.timing.MinRefresh))
	}
	return jitter(wait)
}

// failed notes a failed fetch. Its caller holds mu.
func (s *KeySet) failed(ctx context.Context, now time.Time, err error) time.Duration {
	if ctx.Err() != nil {
		return 0 // it ended, and the loop does
	}
	s.bad++
	s.failures++
	pause := s.timing.RetryMax
	if n := s.failures - 1; n < 20 {
		pause = min(s.timing.RetryMin<<n, s.timing.RetryMax)
	}
	pause = jitter(pause)
	s.notBefore = now.Add(pause)
	level := slog.LevelDebug
	if s.failures == 1 {
		level = slog.LevelWarn
	}
	s.log.Log(ctx, level, "cannot fetch the issuer's keys; those that are known stay in force", "error", err, "failures", s.failures, "again", pause)
	return pause
}

// jitter keeps replicas from fetching in step: nine tenths to all of d.
func jitter(d time.Duration) time.Duration {
	return d - time.Duration(rand.Int64N(int64(d)/10+1))
}
