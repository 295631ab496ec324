package ratelimit

import (
	"context"
	"hash/maphash"
	"math/bits"
	"sync/atomic"
	"time"
)

// Config sizes a Limiter. The zero value means DefaultConfig.
type Config struct {
	// MaxCounters bounds the counters held at once. Beyond it a claim on a new
	// counter fails (StoreOverflow) until idle ones can be forgotten. The
	// bound holds for each of 64 parts, so that it may bite a little earlier.
	//
	// Of the room, a tenant's counters of one rule take at most as much as they
	// leave free, and a rule's counters at most three times that: one that makes
	// counters without end refuses its own claims, and others go on to have room.
	MaxCounters int
}

// DefaultConfig allows a million counters, some 400 MB when all are in use.
func DefaultConfig() Config { return Config{MaxCounters: 1 << 20} }

// Stats are totals since the limiter was made, and what it holds now.
type Stats struct {
	// Counters and OpenLeases are held now.
	Counters, OpenLeases int
	// Reserved, Refused, Settled and Cancelled count calls that had an effect.
	Reserved, Refused, Settled, Cancelled uint64
	// Forgotten counts idle counters dropped; Overflows claims refused because
	// no more counters may be held, by anybody or by their rule or tenant.
	Forgotten, Overflows uint64
	// ClockSteps counts how often the wall clock was set by more than five minutes,
	// ClockStep is how far at last.
	ClockSteps uint64
	ClockStep  time.Duration
	// Restored amounts are known of what others have used.
	Restored int
}

// Limiter holds counters in memory. It is safe for concurrent use.
type Limiter struct {
	clock     clock
	elsewhere atomic.Pointer[elsewhere]
	seed      maphash.Seed
	room      int // counters a shard may hold
	shards    [shards]*shard

	open                                  atomic.Int64
	reserved, refused, settled, cancelled atomic.Uint64
}

// New returns an empty Limiter.
func New(cfg Config) *Limiter {
	if cfg.MaxCounters <= 0 {
		cfg = DefaultConfig()
	}
	l := &Limiter{seed: maphash.MakeSeed(), room: max(1, cfg.MaxCounters/shards)}
	l.clock.reading = time.Time.UnixNano
	l.elsewhere.Store(&elsewhere{})
	for i := range l.shards {
		l.shards[i] = newShard()
	}
	return l
}

// Reserve takes all claims, or none and says which did not fit. The claims are
// copied. An empty list succeeds. It panics on a claim that no checked policy
// makes (a negative limit or amount, an unusable window). It never waits, so
// that the context is not looked at. The reservation is a *Lease.
func (l *Limiter) Reserve(_ context.Context, now time.Time, claims []Claim) (Reservation, []Failure) {
	for i := range claims {
		if err := claims[i].check(); err != nil {
			panic("BUG: " + err.Error())
		}
	}
	le := newLease(l, len(claims))
	locked := l.lockFor(claims)
	defer l.unlock(locked)
	// The moment is read under the locks: it is then no older than what an
	// earlier holder of them has seen of the same caller's clock.
	m := l.clock.at(now)
	failures := l.planLocked(m, claims, le)
	if len(failures) > 0 {
		l.refused.Add(1)
		return nil, failures
	}
	for i := range le.holds {
		h := &le.holds[i]
		h.counter.take(h)
	}
	for i := range le.holds {
		h := &le.holds[i]
		h.view = h.counter.view(m, h.limit)
	}
	l.open.Add(1)
	l.reserved.Add(1)
	return le, nil
}

// planLocked finds every claim's counter, notes it in the lease, and reports
// the claims that do not fit, counting earlier claims on the same counter.
func (l *Limiter) planLocked(m moment, claims []Claim, le *Lease) []Failure {
	var failures []Failure
	for i := range claims {
		cl, h := &claims[i], &le.holds[i]
		s := l.shardOf(cl.Counter)
		s.sweepLocked(m, sweepPerClaim)
		c := l.admitLocked(s, m, cl)
		if c == nil {
			failures = append(failures, Failure{Index: i, Wait: time.Second, View: View{Limit: cl.Limit}, Store: StoreOverflow})
			continue
		}
		c.pinned = true
		c.lookElsewhere(&l.elsewhere)
		h.counter, h.reserved, h.amount, h.limit = c, cl.Amount, cl.Amount, cl.Limit
		c.refresh(m.axis, cl.Limit)
		want := addSat(c.planned, cl.Amount)
		if wait := c.wait(m, want, cl.Limit); wait > 0 {
			failures = append(failures, Failure{
				Index:     i,
				Available: subSat(c.available(cl.Limit), c.planned),
				Wait:      wait,
				View:      c.view(m, cl.Limit),
			})
		}
		c.planned = want
	}
	for i := range le.holds {
		if c := le.holds[i].counter; c != nil {
			c.pinned, c.planned = false, 0
		}
	}
	return failures
}

// sweepPerClaim is how many counters a claim looks at for idle ones. With two,
// a shard is walked at least twice as fast as it can grow.
const sweepPerClaim = 2

// Peek shows the counters of the claims as they are, taking nothing. Amounts
// are ignored. A counter that does not exist is shown whole.
func (l *Limiter) Peek(now time.Time, claims []Claim) []View {
	views := make([]View, len(claims))
	m := l.clock.at(now)
	for i := range claims {
		cl := &claims[i]
		if err := cl.check(); err != nil {
			panic("BUG: " + err.Error())
		}
		s := l.shardOf(cl.Counter)
		key := keyOf(cl, m)
		s.mu.Lock()
		c := s.counters[key]
		if c == nil {
			c = newCounter(key, cl.Limit, m.axis)
		}
		c.lookElsewhere(&l.elsewhere)
		c.refresh(m.axis, cl.Limit)
		views[i] = c.view(m, cl.Limit)
		s.mu.Unlock()
	}
	return views
}

// Stats sums over all shards; it takes each shard's lock for a moment.
func (l *Limiter) Stats() Stats {
	st := Stats{
		OpenLeases: int(l.open.Load()),
		Reserved:   l.reserved.Load(),
		Refused:    l.refused.Load(),
		Settled:    l.settled.Load(),
		Cancelled:  l.cancelled.Load(),

		ClockSteps: l.clock.calendar.steps.Load(),
		ClockStep:  time.Duration(l.clock.calendar.step.Load()),
		Restored:   len(l.elsewhere.Load().amounts),
	}
	for _, s := range l.shards {
		s.mu.Lock()
		st.Counters += len(s.list)
		st.Forgotten += s.forgotten
		st.Overflows += s.overflows
		s.mu.Unlock()
	}
	return st
}

func (l *Limiter) shardOf(name string) *shard {
	return l.shards[maphash.String(l.seed, name)%shards]
}

// lockFor locks the shards of all claims in ascending order, each once, which
// is what keeps two requests from waiting for each other.
func (l *Limiter) lockFor(claims []Claim) uint64 {
	var set uint64
	for i := range claims {
		set |= 1 << (maphash.String(l.seed, claims[i].Counter) % shards)
	}
	for rest := set; rest != 0; rest &= rest - 1 {
		l.shards[bits.TrailingZeros64(rest)].mu.Lock()
	}
	return set
}

func (l *Limiter) unlock(set uint64) {
	for rest := set; rest != 0; rest &= rest - 1 {
		l.shards[bits.TrailingZeros64(rest)].mu.Unlock()
	}
}
