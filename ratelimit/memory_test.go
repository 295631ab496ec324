package ratelimit

import (
	"fmt"
	"testing"
	"time"
)

func TestIdleFullCountersAreForgotten(t *testing.T) {
	l := New(Config{})
	const n = 20_000
	for i := range n {
		now := after(time.Duration(i) * time.Millisecond)
		le := mustReserve(t, l, now, tokens(fmt.Sprint("key", i), 600, 5), slots(fmt.Sprint("slot", i), 1))
		le.Settle(now, nil)
	}
	st := l.Stats()
	if st.Counters != 2*n {
		t.Errorf("%d counters for %d keys, want two each", st.Counters, n)
	}
	// Other callers' traffic drives the old counters out.
	for i := range 3 * n {
		now := after(2*time.Minute + time.Duration(i)*time.Millisecond)
		mustReserve(t, l, now, tokens(fmt.Sprint("busy", i%1000), 1<<40, 1)).Settle(now, nil)
	}
	if st = l.Stats(); st.Counters > 1500 {
		t.Errorf("%d counters are left, want little more than the 1000 in use", st.Counters)
	}
}

func TestForgettingNeverGrants(t *testing.T) {
	sweep := func(l *Limiter, now time.Time) {
		for _, s := range l.shards {
			s.sweepLocked(l.clock.at(now), 2*len(s.list))
		}
	}
	minute := func(limit, amount int64) Claim { return tokens("a", limit, amount) }

	l := New(Config{})
	debt := mustReserve(t, l, start, minute(100, 10))
	debt.Settle(start, []int64{400})
	sweep(l, after(2*time.Minute))
	if f := mustRefuse(t, l, after(2*time.Minute), minute(100, 0)); f[0].Available != -100 {
		t.Errorf("debt after a sweep: %d, want -100", f[0].Available)
	}

	l = New(Config{})
	held := mustReserve(t, l, start, minute(100, 10))
	sweep(l, after(time.Hour))
	held.Settle(after(time.Hour), []int64{210})
	if f := mustRefuse(t, l, after(time.Hour), minute(100, 0)); f[0].Available != -100 {
		t.Errorf("overrun of a long request: %d, want -100: 200 beyond its estimate", f[0].Available)
	}

	// A smaller limit makes the bucket full at once; the larger one returns.
	l = New(Config{})
	mustReserve(t, l, start, minute(1000, 900)).Settle(start, nil)
	remaining(t, l, start, minute(100, 0))
	sweep(l, start)
	if got := remaining(t, l, start, minute(1000, 0)); got != 100 {
		t.Errorf("switching limits and a sweep left %d, want 100", got)
	}

	l = New(Config{})
	slot := mustReserve(t, l, start, slots("s", 1))
	sweep(l, after(100*time.Hour))
	mustRefuse(t, l, after(100*time.Hour), slots("s", 1))
	slot.Cancel(after(100 * time.Hour))
	sweep(l, after(101*time.Hour))
	if st := l.Stats(); st.Counters != 0 {
		t.Errorf("%d counters held for nothing", st.Counters)
	}
}

func TestCalendarCountersAreForgottenAfterTheirPeriod(t *testing.T) {
	l := New(Config{})
	now := date(2026, 3, 10, 12)
	mustReserve(t, l, now, calendar("d", CalendarDay, 100, 10)).Settle(now, nil)
	sweep := func(now time.Time) int {
		for _, s := range l.shards {
			s.sweepLocked(l.clock.at(now), 2*len(s.list))
		}
		return l.Stats().Counters
	}
	if got := sweep(now.Add(11 * time.Hour)); got != 1 {
		t.Errorf("%d counters during the day, want 1", got)
	}
	if got := sweep(now.Add(13 * time.Hour)); got != 1 {
		t.Errorf("%d counters just after the day, want 1", got)
	}
	if got := sweep(now.Add(25 * time.Hour)); got != 0 {
		t.Errorf("%d counters a day later, want 0", got)
	}
}

func TestCountersAreBounded(t *testing.T) {
	l := New(Config{MaxCounters: 2 * shards})
	overflowed := 0
	for i := range 1000 {
		le, failures := l.Reserve(ctx, start, []Claim{tokens(fmt.Sprint("k", i), 10, 1)})
		if le != nil {
			le.Settle(start, nil)
			continue
		}
		if f := failures[0]; f.Store != StoreOverflow || f.Wait != time.Second || f.View.Limit != 10 {
			t.Fatalf("failure %+v, want an overflow", f)
		}
		overflowed++
	}
	st := l.Stats()
	if st.Counters > 2*shards || overflowed == 0 || st.Overflows != uint64(overflowed) {
		t.Fatalf("%d counters, %d overflows seen, stats %+v", st.Counters, overflowed, st)
	}
	// Once they have been idle for a window there is room again.
	for i := range 10 {
		now := after(time.Duration(i+2) * time.Minute)
		mustReserve(t, l, now, tokens(fmt.Sprint("new", i), 10, 1)).Settle(now, nil)
	}
}
