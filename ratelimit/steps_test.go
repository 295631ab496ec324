package ratelimit

import (
	"testing"
	"time"

	"pgregory.net/rapid"
)

// set makes the limiter see a wall clock that is off by what the returned
// function is given, and begins it at that time.
func set(l *Limiter, begin time.Time) func(off time.Duration) {
	off := time.Duration(0)
	l.clock.reading = func(now time.Time) int64 { return begin.Add(now.Sub(start) + off).UnixNano() }
	return func(to time.Duration) { off = to }
}

// A wall clock that is set forward over a boundary starts no new budget, and one
// that is set back locks nobody out.
func TestWallStepsNeitherGrantNorLockBudgets(t *testing.T) {
	day := func(amount int64) Claim { return calendar("d", CalendarDay, 100, amount) }
	l := New(Config{})
	step := set(l, date(2026, 3, 10, 12))
	mustReserve(t, l, start, day(100)).Settle(start, nil)
	step(24 * time.Hour)
	for minute := range 60 {
		if f := mustRefuse(t, l, after(time.Duration(minute)*time.Minute), day(1)); f[0].Wait > 12*time.Hour || f[0].Wait < 10*time.Hour {
			t.Fatalf("minute %d after the clock was set forward by a day: %+v", minute, f[0])
		}
	}
	step(0)
	mustRefuse(t, l, after(11*time.Hour), day(1))
	mustReserve(t, l, after(12*time.Hour+time.Minute), day(100)).Settle(after(12*time.Hour+time.Minute), nil)
	step(-13 * time.Hour)
	mustRefuse(t, l, after(13*time.Hour), day(1))
	// The clock stays wrong: the calendar follows it by five minutes an hour.
	mustReserve(t, l, after(39*time.Hour), day(100))
	if st := l.Stats(); st.ClockSteps != 3 || st.ClockStep.Round(time.Second) != -13*time.Hour {
		t.Errorf("%d steps, the last by %v, want 3 and -13h", st.ClockSteps, st.ClockStep)
	}
}

// A clock that was wrong when the limiter was made, and what time servers do by
// the second, are followed.
func TestCalendarFollowsTheWallClock(t *testing.T) {
	l := New(Config{})
	begin := date(2026, 3, 10, 12)
	step := set(l, begin)
	at := func(d time.Duration) time.Duration {
		return time.Duration(l.clock.at(after(d)).wall - begin.UnixNano())
	}
	at(0)
	step(2 * time.Second)
	at(time.Second)
	if got := at(time.Minute); got != time.Minute+2*time.Second {
		t.Errorf("a minute after a step of two seconds: %v", got)
	}
	step(time.Hour)
	at(time.Hour)
	if got := at(7 * time.Hour); got <= 7*time.Hour+30*time.Minute || got > 7*time.Hour+30*time.Minute+3*time.Second {
		t.Errorf("six hours after a step of an hour: %v, want half of it", got)
	}
	if got := at(14 * time.Hour); got != 15*time.Hour {
		t.Errorf("thirteen hours after it: %v, want all of it", got)
	}
	if st := l.Stats(); st.ClockSteps != 1 {
		t.Errorf("%d steps are counted, want that of an hour", st.ClockSteps)
	}
}

// Whatever the wall clock does, the calendar neither runs backwards nor fast, so
// that every day has 22 hours or more and its budget comes once; and a caller that
// is late changes nothing.
func TestPropertyCalendarIsSteady(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var c calendarClock
		axis, wall := int64(0), date(2026, 3, 10, 12).UnixNano()
		last := c.at(axis, wall)
		for range rapid.IntRange(1, 60).Draw(t, "readings") {
			pass := rapid.Int64Range(0, int64(5*time.Hour)).Draw(t, "pass")
			axis, wall = axis+pass, wall+pass
			if rapid.IntRange(0, 2).Draw(t, "step") == 0 {
				wall += rapid.Int64Range(-int64(40*24*time.Hour), int64(40*24*time.Hour)).Draw(t, "by")
			}
			got := c.at(axis, wall)
			if went := got - last; went < pass-pass/leadRate-1 || went > pass+pass/leadRate+1 {
				t.Fatalf("the calendar went %v in %v", time.Duration(went), time.Duration(pass))
			}
			if late := rapid.Int64Range(0, int64(time.Minute)).Draw(t, "late"); late > 0 {
				c.at(axis-late, wall-late)
				if again := c.at(axis, wall); again != got {
					t.Fatalf("a late caller moved the calendar by %v", time.Duration(again-got))
				}
			}
			last = got
		}
		// Left alone it arrives.
		off := wall - last
		long := max(off, -off) * (leadRate + 1)
		if got := c.at(axis+long, wall+long); got-wall-long > leadSlack || wall+long-got > leadSlack {
			t.Fatalf("%v off at last", time.Duration(got-wall-long))
		}
	})
}

// One budget a period and no more, however the clock is set, and whoever waits as
// long as is said gets it.
func TestPropertyBudgetsThroughClockSteps(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		l := New(Config{})
		step := set(l, date(2026, 3, 10, 12))
		const limit = 100
		claim := calendar("d", CalendarDay, limit, 10)
		l.Peek(start, []Claim{claim}) // what the clock says then is what it begins with
		passed, off, admitted := time.Duration(0), time.Duration(0), int64(0)
		for range rapid.IntRange(1, 200).Draw(t, "requests") {
			passed += time.Duration(rapid.Int64Range(0, int64(2*time.Hour)).Draw(t, "pass"))
			if rapid.IntRange(0, 4).Draw(t, "step") == 0 {
				off += time.Duration(rapid.Int64Range(-int64(72*time.Hour), int64(72*time.Hour)).Draw(t, "by"))
				step(off)
			}
			r, f := l.Reserve(ctx, after(passed), []Claim{claim})
			if r == nil {
				if f[0].Wait > 24*time.Hour {
					t.Fatalf("locked out for %v", f[0].Wait)
				}
				continue
			}
			r.Settle(after(passed), nil)
			admitted += claim.Amount
			// The calendar gains at most a twelfth, and begins at noon.
			days := int64((passed+passed/leadRate+12*time.Hour)/(24*time.Hour)) + 1
			if admitted > days*limit {
				t.Fatalf("%d admitted in %v, which touches at most %d days of %d", admitted, passed, days, limit)
			}
		}
	})
}
