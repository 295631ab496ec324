package ratelimit

import (
	"testing"
	"time"
)

// What others have used counts, in its period alone, beside what is used here.
func TestRestore(t *testing.T) {
	now := date(2026, 3, 10, 12)
	month, day := calendar("a", CalendarMonth, 100, 0), calendar("a", CalendarDay, 100, 0)
	other := month
	other.Unit = UnitTokens
	l := New(Config{})
	before := []Used{
		{month.ID(), date(2026, 3, 1, 0), 30}, {month.ID(), date(2026, 3, 1, 0), 25}, {month.ID(), date(2026, 2, 1, 0), 7},
		{day.ID(), date(2026, 3, 10, 0), 120}, {day.ID(), date(2026, 3, 9, 0), 1}, {other.ID(), date(2026, 3, 1, 0), 0},
	}
	l.Restore(before)
	if st := l.Stats(); st.Restored != 4 {
		t.Errorf("%d amounts are known, want 4", st.Restored)
	}
	if got := remaining(t, l, now, month); got != 45 {
		t.Errorf("the month is shown with %d left, want 45", got)
	}
	month.Amount = 46
	mustRefuse(t, l, now, month)
	month.Amount = 45
	r := mustReserve(t, l, now, month)
	if v := r.View(0); v.Remaining != 0 {
		t.Errorf("view %+v of a month that is all taken", v)
	}
	r.Settle(now, []int64{10})
	if got := r.Available(0); got != 35 || remaining(t, l, now, month) != 35 {
		t.Errorf("the month has %d left, want 35", got)
	}
	if f := mustRefuse(t, l, now, day); f[0].Available != -20 {
		t.Errorf("the day has %d left, want -20: what was owed is owed", f[0].Available)
	}
	if got := remaining(t, l, now, other); got != 100 {
		t.Errorf("another unit has %d left, want all", got)
	}
	if got := remaining(t, l, date(2026, 4, 1, 0), month); got != 100 {
		t.Errorf("April has %d left, want all", got)
	}
	// More becomes known, and what is used here goes on to count, once.
	for range 2 {
		l.Restore(append(before, Used{month.ID(), date(2026, 3, 1, 0), 5}))
		if got := r.ViewNow(now, 0).Remaining; got != 30 || remaining(t, l, now, month) != 30 {
			t.Errorf("the month has %d left, want 30", got)
		}
	}
	l.Restore(nil)
	if got := remaining(t, l, now, month); got != 90 {
		t.Errorf("the month has %d left of what is used here, want 90", got)
	}
}

func TestCounterIDs(t *testing.T) {
	a := calendar("a", CalendarMonth, 100, 0)
	seen := map[CounterID]Claim{a.ID(): a}
	same := a
	same.Limit, same.Amount, same.Rule, same.Tenant, same.OnStoreError = 7, 8, "r", "t", OnStoreErrorLocal
	if same.ID() != a.ID() {
		t.Error("the identity depends on more than counter, unit and window")
	}
	for _, change := range []func(*Claim){
		func(c *Claim) { c.Counter = "b" }, func(c *Claim) { c.Unit = UnitTokens }, func(c *Claim) { c.Window.Calendar = CalendarDay },
		func(c *Claim) { c.Counter = "" }, func(c *Claim) { c.Counter = string(make([]byte, 2000)) },
		func(c *Claim) { c.Unit, c.Counter = "cos", "t"+c.Counter },
	} {
		c := a
		change(&c)
		if old, ok := seen[c.ID()]; ok {
			t.Errorf("%+v and %+v have one identity", c, old)
		}
		seen[c.ID()] = c
	}
}

// Bookings say in which periods a charge counts: they are what a later start
// restores.
func TestBookings(t *testing.T) {
	before, next, later := date(2026, 1, 31, 23), date(2026, 2, 1, 1), date(2026, 2, 2, 1)
	jan, feb1, feb2 := date(2026, 1, 31, 0), date(2026, 2, 1, 0), date(2026, 2, 2, 0)
	claim := calendar("d", CalendarDay, 1000, 60)
	f := func(name string, want map[time.Time]int64, run func(r Reservation)) {
		t.Helper()
		l := New(Config{})
		r := mustReserve(t, l, before, claim, tokens("b", 100, 10), slots("s", 2))
		run(r)
		booked, fresh := r.(Booker), New(Config{})
		var used []Used
		for _, b := range booked.Bookings(0) {
			if b.Amount != want[b.Period] {
				t.Errorf("%s: %d in %v, want %d", name, b.Amount, b.Period, want[b.Period])
			}
			used = append(used, Used{claim.ID(), b.Period, b.Amount})
			delete(want, b.Period)
		}
		if len(want) > 0 || len(booked.Bookings(1))+len(booked.Bookings(2)) > 0 {
			t.Errorf("%s: %v are not booked, and %v %v are", name, want, booked.Bookings(1), booked.Bookings(2))
		}
		fresh.Restore(used)
		for _, at := range []time.Time{before, next, later} {
			if got, want := remaining(t, fresh, at, claim), remaining(t, l, at, claim); got != want {
				t.Errorf("%s: restored, %v has %d left, want %d", name, at, got, want)
			}
		}
	}
	f("settled below", map[time.Time]int64{jan: 20}, func(r Reservation) { r.Settle(before, []int64{20}) })
	f("settled above", map[time.Time]int64{jan: 60, feb1: 15}, func(r Reservation) { r.Settle(next, []int64{75}) })
	f("cancelled", nil, func(r Reservation) { r.Cancel(next) })
	f("used above in two periods", map[time.Time]int64{jan: 100, feb1: 30, feb2: 20}, func(r Reservation) {
		r.Use(before, []int64{100})
		r.Use(next, []int64{130})
		r.Settle(later, []int64{150})
	})
	f("used above and settled below", map[time.Time]int64{jan: 40}, func(r Reservation) {
		r.Use(before, []int64{100})
		r.Use(before, []int64{130})
		r.Settle(later, []int64{40})
	})
}
