package ratelimit

import (
	"fmt"
	"testing"
	"time"
)

func ruleClaim(rule, tenant, key string) Claim {
	c := calendar(rule+"/"+tenant+"/"+key, CalendarMonth, 100, 1)
	c.Rule, c.Tenant = rule, tenant
	return c
}

// flood makes counters until they are refused, or n of them.
func flood(t *testing.T, l *Limiter, rule, tenant string, n int) (made int) {
	t.Helper()
	for i := range n {
		r, f := l.Reserve(ctx, start, []Claim{ruleClaim(rule, tenant, fmt.Sprint(i))})
		if r == nil {
			if f[0].Store != StoreOverflow {
				t.Fatalf("failure %+v, want an overflow", f[0])
			}
			continue
		}
		r.Settle(start, nil)
		made++
	}
	return made
}

// Whoever makes counters without end refuses his own requests, and no others.
func TestCountersAreSharedFairly(t *testing.T) {
	const room = 64 * shards
	l := New(Config{MaxCounters: room})
	if greedy := flood(t, l, "sessions", "mallory", 10*room); greedy > room/2 || greedy < room/3 {
		t.Errorf("one tenant has %d counters of %d, want about half", greedy, room)
	}
	// Others of the same rule, and other rules, still get theirs: a few of each
	// always, and many until the room is as good as full.
	for i := range 100 {
		tenant := fmt.Sprint("tenant", i)
		if got := flood(t, l, "sessions", tenant, 1) + flood(t, l, "budget", tenant, 1); got != 2 {
			t.Errorf("tenant %d got %d counters of 2", i, got)
		}
	}
	if more := flood(t, l, "users", "mallory", 10*room); more == 0 || more > room/4 {
		t.Errorf("another rule of the greedy tenant has %d counters of %d", more, room)
	}
	if got := flood(t, l, "budget", "late", 1); got != 1 {
		t.Error("a newcomer got none")
	}
	if c := ruleClaim("sessions", "mallory", "0"); remaining(t, l, start, c) != 99 {
		t.Error("a counter that there was has changed")
	}
	st := l.Stats()
	if st.Overflows == 0 || st.Counters >= room {
		t.Errorf("stats %+v", st)
	}
	// What is forgotten is given back, to the last.
	later := after(70 * 24 * time.Hour)
	for _, s := range l.shards {
		for range 2 {
			s.sweepLocked(l.clock.at(later), len(s.list))
		}
		if len(s.list) != 0 || len(s.shares) != 0 {
			t.Fatalf("%d counters and %d shares are left of a shard", len(s.list), len(s.shares))
		}
	}
}

// A rule alone may have three quarters of the room, whoever asks.
func TestARuleLeavesRoomForOthers(t *testing.T) {
	const room = 64 * shards
	l := New(Config{MaxCounters: room})
	made := 0
	for i := range 2 * room {
		made += flood(t, l, "sessions", fmt.Sprint(i), 1)
	}
	if made > room*3/4 || made < room*2/3 {
		t.Errorf("a rule has %d counters of %d, want about three quarters", made, room)
	}
	if got := flood(t, l, "budget", "a", 10); got != 10 {
		t.Errorf("another rule got %d counters of 10", got)
	}
}
