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
	// pace spaces out the sweeps of a whole shard that has no room left.
	pace *rate.Limiter

	forgotten, overflows uint64
}

// fullSweepsPerSecond bounds what a flood of new counters can cost: beyond it
// they are refused without looking for idle ones again.
const fullSweepsPerSecond = 4

func newShard() *shard {
	return &shard{
		counters: make(map[counterKey]*counter),
		pace:     rate.NewLimiter(fullSweepsPerSecond, 1),
	}
}

// getLocked returns the counter of a key, new and full if there is none; nil if
// the shard holds room counters already, none of them idle.
func (s *shard) getLocked(key counterKey, limit int64, now time.Time, axis int64, room int) *counter {
	if c, ok := s.counters[key]; ok {
		return c
	}
	if len(s.list) >= room {
		if s.pace.AllowN(now, 1) {
			s.sweepLocked(now, axis, len(s.list))
		}
		if len(s.list) >= room {
			s.overflows++
			return nil
		}
	}
	c := newCounter(key, limit, axis)
	c.shard = s
	s.counters[key] = c
	s.list = append(s.list, c)
	return c
}

// sweepLocked looks at the next n counters in turn and forgets the idle ones.
// Every Reserve pays for a few, so that memory follows use without a goroutine.
func (s *shard) sweepLocked(now time.Time, axis int64, n int) {
	for range min(n, len(s.list)) {
		if s.cursor >= len(s.list) {
			s.cursor = 0
		}
		c := s.list[s.cursor]
		if c.pinned || !c.idle(now, axis) {
			s.cursor++
			continue
		}
		last := len(s.list) - 1
		s.list[s.cursor] = s.list[last]
		s.list[last] = nil
		s.list = s.list[:last]
		delete(s.counters, c.key)
		s.forgotten++
	}
}
