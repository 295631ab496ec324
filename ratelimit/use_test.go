package ratelimit

import (
	"testing"
	"time"

	"pgregory.net/rapid"
)

// A use beyond the reservation is owed from that moment, and settled like it: two
// reservations of which the second was made when it became known leave the same.
func TestPropertyUseIsAReservationOfItsOwn(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		limit := rapid.Int64Range(1, 1000).Draw(t, "limit")
		window := time.Duration(rapid.Int64Range(1, int64(time.Hour)).Draw(t, "window"))
		claim := Claim{Counter: "a", Unit: UnitTokens, Window: Window{Duration: window}, Limit: limit}
		real, model := New(Config{}), New(Config{})
		claim.Amount = rapid.Int64Range(0, limit).Draw(t, "amount")
		r, _ := real.Reserve(ctx, start, []Claim{claim})
		m, _ := model.Reserve(ctx, start, []Claim{claim})
		now := start.Add(time.Duration(rapid.Int64Range(0, int64(window)).Draw(t, "until more is known")))
		more := rapid.Int64Range(1, 2*limit).Draw(t, "more")
		r.Use(now, []int64{claim.Amount + more})
		extra := claim
		extra.Amount = more
		if !model.Charge(ctx, now, extra) { // what does not fit can't be reserved
			t.Fatal("not charged")
		}
		same := func(what string) {
			t.Helper()
			if a, b := real.Peek(now, []Claim{claim})[0], model.Peek(now, []Claim{claim})[0]; a != b {
				t.Fatalf("%s: %+v, want %+v", what, a, b)
			}
		}
		same("once it is known")
		now = now.Add(time.Duration(rapid.Int64Range(0, int64(window)).Draw(t, "until the end")))
		same("before the end")
		beyond := rapid.Int64Range(0, limit).Draw(t, "still more")
		r.Settle(now, []int64{claim.Amount + more + beyond})
		m.Settle(now, []int64{claim.Amount + beyond})
		same("at the end")
	})
}

// Calls race with the end of a request: use counts or comes too late, and nothing
// is left of it.
func TestUseRacesWithTheEnd(t *testing.T) {
	l := New(Config{})
	noon := date(2026, 3, 10, 12)
	for i := range 500 {
		r := mustReserve(t, l, noon, calendar("d", CalendarDay, 1<<40, 10), tokens("b", 1<<40, 10))
		done := make(chan struct{})
		go func() {
			defer close(done)
			for used := int64(11); used < 40; used++ {
				r.Use(noon, []int64{used, used})
				r.ViewNow(noon, 0)
			}
		}()
		if i%2 == 0 {
			r.Settle(noon, []int64{7, 7})
		} else {
			r.Cancel(noon)
		}
		<-done
	}
	if got := remaining(t, l, noon, calendar("d", CalendarDay, 1<<40, 0)); got != 1<<40-250*7 {
		t.Errorf("the day has lost %d, want %d", 1<<40-got, 250*7)
	}
	if got := remaining(t, l, noon, tokens("b", 1<<40, 0)); got != 1<<40-250*7 {
		t.Errorf("the bucket has lost %d, want %d", 1<<40-got, 250*7)
	}
}
