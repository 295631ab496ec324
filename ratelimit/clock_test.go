package ratelimit

import (
	"testing"
	"time"
)

func TestOldTimesEarnNothing(t *testing.T) {
	l := New(Config{})
	c := tokens("a", 600, 600)
	mustReserve(t, l, start, c).Settle(start, nil)
	for range 100 {
		// A caller thirty seconds late, then one on time.
		remaining(t, l, after(-30*time.Second), c)
		if got := remaining(t, l, after(time.Second), c); got != 10 {
			t.Fatalf("remaining %d, want the 10 of one second", got)
		}
	}
}

func TestMonotonicReadingWins(t *testing.T) {
	if !hasMonotonic(time.Now()) || hasMonotonic(time.Now().Round(0)) || hasMonotonic(date(2026, 1, 1, 0)) {
		t.Fatal("hasMonotonic misjudges a time")
	}
	c := clock{reading: time.Time.UnixNano}
	if got := c.at(start).axis; got != 0 {
		t.Errorf("first time at %d, want 0", got)
	}
	if got := c.at(after(time.Hour)).axis; got != int64(time.Hour) {
		t.Errorf("an hour later at %d", got)
	}
	if got := c.at(after(-time.Hour)).axis; got != -int64(time.Hour) {
		t.Errorf("an hour earlier at %d; the counters guard themselves", got)
	}
}

func TestWallStepBackNeitherGrantsNorLocks(t *testing.T) {
	l := New(Config{})
	wall := date(2026, 3, 10, 12)
	c := tokens("a", 60, 60)
	mustReserve(t, l, wall, c).Settle(wall, nil)
	back := wall.Add(-time.Hour)
	if got := remaining(t, l, back, c); got != 0 {
		t.Fatalf("stepping back granted %d", got)
	}
	for s := range 31 {
		mustRefuse(t, l, back.Add(time.Duration(s)*time.Second), tokens("a", 60, 60))
	}
	if got := remaining(t, l, back.Add(30*time.Second), c); got != 30 {
		t.Errorf("thirty seconds after the step: %d, want 30", got)
	}
	if got := remaining(t, l, back.Add(60*time.Second), c); got != 60 {
		t.Errorf("a minute after the step: %d, want 60", got)
	}
}

func TestLateWallTimesAreNoStep(t *testing.T) {
	l := New(Config{})
	wall := date(2026, 3, 10, 12)
	c := tokens("a", 60, 60)
	mustReserve(t, l, wall, c).Settle(wall, nil)
	for i := range 200 {
		now := wall.Add(time.Duration(i) * 100 * time.Millisecond)
		for range 20 {
			remaining(t, l, now.Add(-30*time.Second), c)
		}
		if got := remaining(t, l, now, c); got != int64(i)/10 {
			t.Fatalf("after %d tenths of a second %d are free", i, got)
		}
	}
}
