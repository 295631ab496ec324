package redis

import (
	"context"
	"fmt"
	"hash/maphash"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/sluicegate/sluice/ratelimit"
)

// Limiter shares counters with the limiters of other processes. It is safe for
// concurrent use. Run must run for it to serve anything; until the store has
// answered, every claim fails with ratelimit.StoreDown.
type Limiter struct {
	cfg    Config
	seed   maphash.Seed
	room   int // counters a shard may hold
	shards [shards]shard
	mono   func() int64 // nanoseconds of the process
	dial   func(context.Context, *Config) (conn, error)

	// session is what the store knows this process as; nil while it does not.
	// sessions numbers them.
	session  atomic.Pointer[session]
	sessions atomic.Uint64
	heardAt  atomic.Int64 // when the last answered report was sent
	near     atomic.Int64 // replicas, as last heard
	link     link
	health   health
	kicked   chan struct{}
	reports  reports
	recorded atomic.Pointer[recorded]
	flusher  flusher

	open                                  atomic.Int64
	reserved, refused, settled, cancelled atomic.Uint64
	byLease, byStore, byMemory, losses    atomic.Uint64
	trips                                 histogram
}

// New returns a Limiter that has not looked for the store yet.
func New(cfg Config) (*Limiter, error) {
	if err := cfg.Validate(); err != nil {
		return nil, fmt.Errorf("cannot share limits: %w", err)
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	base := time.Now()
	l := &Limiter{
		cfg: cfg, seed: maphash.MakeSeed(), room: max(1, cfg.MaxCounters/shards), kicked: make(chan struct{}, 1),
		mono: func() int64 { return int64(time.Since(base)) }, dial: dial,
	}
	for i := range l.shards {
		l.shards[i].counters = make(map[identity]*counter)
	}
	l.near.Store(1)
	l.health.told = -1
	return l, nil
}

func (l *Limiter) shardFor(c *counter) *shard { return &l.shards[l.shardOf(c.id.name)] }

// kick has what is to be told told soon.
func (l *Limiter) kick() {
	select {
	case l.kicked <- struct{}{}:
	default:
	}
}

// Reserve takes all claims, or none and says which did not fit; see
// ratelimit.Limiter.Reserve, whose contract it has. It waits for the store for
// Config.Timeout at most, and not at all when the claims fit the leases. now is not
// looked at.
func (l *Limiter) Reserve(ctx context.Context, _ time.Time, claims []ratelimit.Claim) (ratelimit.Reservation, []ratelimit.Failure) {
	for i := range claims {
		if err := check(&claims[i]); err != nil {
			panic("BUG: " + err.Error())
		}
	}
	p := plans.Get().(*plan)
	defer p.release()
	p.limiter, p.claims = l, claims
	r, failures := p.try(ctx)
	for tries := 1; p.limbo && tries < mostTries && l.awaitReport(p.ctx); tries++ {
		p.again, p.last = true, tries+1 == mostTries
		r, failures = p.try(ctx)
	}
	p.unpin()
	if len(failures) > 0 {
		l.refused.Add(1)
		return nil, failures
	}
	l.open.Add(1)
	l.reserved.Add(1)
	return r, nil
}

// mostTries bounds how often a request asks the store: once, and again only after a
// refusal that reports under way may have caused.
const mostTries = 3

// awaitReport waits until what is untold is told, and reports whether that came to
// be in time.
func (l *Limiter) awaitReport(ctx context.Context) bool {
	done := l.reports.next()
	l.kick()
	select {
	case <-done:
		return true
	case <-ctx.Done():
		return false
	}
}

// Charge takes the claim's amount whether or not it fits, for a request that was let
// in without a reservation. It is owed at once and told to the store when that
// answers. It reports false if no more counters may be held. Like Reserve it panics
// on a claim that no checked policy makes.
func (l *Limiter) Charge(_ context.Context, _ time.Time, c ratelimit.Claim) bool {
	if err := check(&c); err != nil {
		panic("BUG: " + err.Error())
	}
	if c.Unit == ratelimit.UnitConcurrency {
		return true
	}
	s := &l.shards[l.shardOf(c.Counter)]
	s.mu.Lock()
	defer s.mu.Unlock()
	now := l.mono()
	k := l.getLocked(&c, now)
	if k == nil {
		return false
	}
	k.usedAt = now
	k.owe(min(c.Amount, most))
	s.queue(k)
	return true
}
