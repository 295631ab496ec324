package ratelimit

import (
	"sync"
	"time"

	"golang.org/x/time/rate"
)

// shards is how many parts the counters are spread over. It is the width of the
// bit set that lockAll walks.
const shards = 64

// shard is one part of the counters.
type shard struct {
	mu sync.Mutex // protects everything below, and the counters in it
	// counters finds them; list is the same set, for sweeping from cursor on.
	counters map[counterKey]*counter
	list     []*counter
	cursor   int
	shares   map[shareKey]*share
	// pace spaces out the sweeps of a whole shard that has no room left.
	pace *rate.Limiter

	forgotten, overflows uint64
}

// shareKey names a rule, or a tenant within one.
type shareKey struct{ rule, tenant string }

// share is how many counters of a shard are one rule's or tenant's.
type share struct {
	key   shareKey
	count int
}

// A tenant's counters of one rule take at most as much room as they leave free,
// a rule's at most ruleShare times that. Whoever takes without end so leaves a
// part for others, which shrinks with the number of those who do, and is never
// taken from anybody.
const (
	tenantShare = 1
	ruleShare   = 3
)

// fullSweepsPerSecond bounds what a flood of new counters can cost: beyond it
// they are refused without looking for idle ones again.
const fullSweepsPerSecond = 4

func newShard() *shard {
	return &shard{
		counters: make(map[counterKey]*counter),
		shares:   make(map[shareKey]*share),
		pace:     rate.NewLimiter(fullSweepsPerSecond, 1),
	}
}

// admitLocked returns the counter of a claim, new and full if there is none; nil
// if there is no room for a new one, not even after the idle ones are forgotten.
func (l *Limiter) admitLocked(s *shard, m moment, cl *Claim) *counter {
	key := keyOf(cl, m)
	if c, ok := s.counters[key]; ok {
		return c
	}
	if !s.fits(cl, l.room) {
		if s.pace.AllowN(time.Unix(0, m.axis), 1) {
			s.sweepLocked(m, len(s.list))
		}
		if !s.fits(cl, l.room) {
			s.overflows++
			return nil
		}
	}
	c := l.makeLocked(s, key, cl.Limit, m)
	if cl.Rule != "" {
		c.shares = [2]*share{s.share(shareKey{rule: cl.Rule}), s.share(shareKey{cl.Rule, cl.Tenant})}
		for _, sh := range c.shares {
			sh.count++
		}
	}
	return c
}

// makeLocked adds a counter, whatever the room.
func (l *Limiter) makeLocked(s *shard, key counterKey, limit int64, m moment) *counter {
	c := newCounter(key, limit, m.axis)
	c.shard = s
	s.counters[key] = c
	s.list = append(s.list, c)
	return c
}

// fits reports whether a new counter of the claim has room.
func (s *shard) fits(cl *Claim, room int) bool {
	free := room - len(s.list)
	if free <= 0 {
		return false
	}
	if cl.Rule == "" {
		return true
	}
	return s.count(shareKey{rule: cl.Rule}) < ruleShare*free && s.count(shareKey{cl.Rule, cl.Tenant}) < tenantShare*free
}

func (s *shard) count(key shareKey) int {
	if sh := s.shares[key]; sh != nil {
		return sh.count
	}
	return 0
}

func (s *shard) share(key shareKey) *share {
	sh := s.shares[key]
	if sh == nil {
		sh = &share{key: key}
		s.shares[key] = sh
	}
	return sh
}

// sweepLocked looks at the next n counters in turn and forgets the idle ones.
// Every Reserve pays for a few, so that memory follows use without a goroutine.
func (s *shard) sweepLocked(m moment, n int) {
	for range min(n, len(s.list)) {
		if s.cursor >= len(s.list) {
			s.cursor = 0
		}
		c := s.list[s.cursor]
		if c.pinned || !c.idle(m) {
			s.cursor++
			continue
		}
		last := len(s.list) - 1
		s.list[s.cursor] = s.list[last]
		s.list[last] = nil
		s.list = s.list[:last]
		delete(s.counters, c.key)
		for _, sh := range c.shares {
			if sh == nil {
				continue
			}
			if sh.count--; sh.count == 0 {
				delete(s.shares, sh.key)
			}
		}
		s.forgotten++
	}
}
