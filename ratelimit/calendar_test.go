package ratelimit

import (
	"testing"
	"time"
)

func date(y int, m time.Month, d, h int) time.Time { return time.Date(y, m, d, h, 0, 0, 0, time.UTC) }

func TestCalendarResetsAtBoundary(t *testing.T) {
	l := New(Config{})
	evening := date(2026, 1, 31, 20)
	le := mustReserve(t, l, evening, calendar("m", CalendarMonth, 100, 100), calendar("d", CalendarDay, 100, 100))
	le.Settle(evening, nil)
	f := mustRefuse(t, l, evening, calendar("m", CalendarMonth, 100, 1), calendar("d", CalendarDay, 100, 101))
	if f[0].Wait != 4*time.Hour || f[0].View.Reset != 4*time.Hour {
		t.Errorf("spent month: %+v, want four hours to February", f[0])
	}
	if f[1].Wait != Never {
		t.Errorf("amount above the whole limit: %+v, want Never", f[1])
	}
	mustRefuse(t, l, date(2026, 2, 1, 0).Add(-1), calendar("m", CalendarMonth, 100, 1))
	mustReserve(t, l, date(2026, 2, 1, 0), calendar("m", CalendarMonth, 100, 100), calendar("d", CalendarDay, 100, 100))
}

func TestCalendarIsUTC(t *testing.T) {
	l := New(Config{})
	tokyo := time.FixedZone("+9", 9*3600)
	mustReserve(t, l, time.Date(2026, 3, 1, 1, 0, 0, 0, tokyo), calendar("m", CalendarMonth, 10, 10))
	f := mustRefuse(t, l, date(2026, 2, 28, 17), calendar("m", CalendarMonth, 10, 1))
	if f[0].Wait != 7*time.Hour {
		t.Errorf("wait %v, want 7h: it is still February in UTC", f[0].Wait)
	}
}

func TestCalendarSettlementAcrossBoundary(t *testing.T) {
	l := New(Config{})
	before, next := date(2026, 1, 31, 23), date(2026, 2, 1, 1)
	under := mustReserve(t, l, before, calendar("d", CalendarDay, 100, 60))
	over := mustReserve(t, l, before, calendar("d", CalendarDay, 100, 40))
	mustReserve(t, l, next, calendar("d", CalendarDay, 100, 50))
	under.Settle(next, []int64{10})
	if got := remaining(t, l, next, calendar("d", CalendarDay, 100, 0)); got != 50 {
		t.Errorf("a refund of yesterday gave today %d, want 50", got)
	}
	over.Settle(next, []int64{45})
	if got := remaining(t, l, next, calendar("d", CalendarDay, 100, 0)); got != 45 {
		t.Errorf("an overrun found today leaves %d, want 45", got)
	}
	if got := remaining(t, l, before, calendar("d", CalendarDay, 100, 0)); got != 50 {
		t.Errorf("yesterday has %d left, want 50", got)
	}
}

func TestCalendarSurvivesClockJump(t *testing.T) {
	l := New(Config{})
	now := date(2026, 3, 31, 23)
	mustReserve(t, l, now, calendar("m", CalendarMonth, 100, 100)).Settle(now, nil)
	for _, jump := range []time.Time{date(2026, 4, 1, 2), date(2026, 2, 28, 12)} {
		mustReserve(t, l, jump, calendar("m", CalendarMonth, 100, 30))
		for _, s := range l.shards {
			s.sweepLocked(l.clock.at(jump), len(s.list))
		}
		if got := remaining(t, l, now, calendar("m", CalendarMonth, 100, 0)); got != 0 {
			t.Errorf("after a jump to %v and back %d are free, want 0", jump, got)
		}
	}
	april := date(2026, 4, 1, 0)
	if got := remaining(t, l, april, calendar("m", CalendarMonth, 100, 0)); got != 70 {
		t.Errorf("true April starts with %d, want 70: 30 were used under the wrong clock", got)
	}
}

// With a monotonic reading, as here, a jump of the wall clock of any size does
// not make a counter look idle.
func TestCalendarIsKeptByMonotonicTime(t *testing.T) {
	now := date(2026, 3, 10, 12)
	claim := calendar("m", CalendarMonth, 100, 100)
	c := newCounter(keyOf(&claim, moment{0, now.UnixNano()}), 100, 0)
	c.used = 100
	for _, wall := range []time.Time{now, date(2026, 4, 1, 0), date(2099, 1, 1, 0), date(1970, 1, 1, 0)} {
		if c.idle(moment{calendarLinger - 1, wall.UnixNano()}) {
			t.Errorf("forgotten at %v", wall)
		}
	}
	if !c.idle(moment{calendarLinger, date(2026, 4, 1, 0).UnixNano()}) {
		t.Error("kept after its month and a day")
	}
	if c.idle(moment{21 * calendarLinger, date(2026, 3, 31, 23).UnixNano()}) {
		t.Error("forgotten within its month")
	}
}

func TestPeriodOf(t *testing.T) {
	f := func(calendar string, now, from, to time.Time) {
		t.Helper()
		if p := periodOf(calendar, now); !p.start.Equal(from) || !p.end.Equal(to) {
			t.Errorf("period of %v by %s: %v to %v", now, calendar, p.start, p.end)
		}
	}
	f(CalendarDay, date(2024, 2, 28, 23), date(2024, 2, 28, 0), date(2024, 2, 29, 0))
	f(CalendarDay, date(2024, 2, 29, 0), date(2024, 2, 29, 0), date(2024, 3, 1, 0))
	f(CalendarMonth, date(2024, 2, 29, 23), date(2024, 2, 1, 0), date(2024, 3, 1, 0))
	f(CalendarMonth, date(2025, 12, 31, 23), date(2025, 12, 1, 0), date(2026, 1, 1, 0))
}
