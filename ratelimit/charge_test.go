package ratelimit

import (
	"testing"
	"time"
)

// TestCharge: what was used without a reservation is taken whether or not it fits, and
// nothing is taken where no more counters may be held.
func TestCharge(t *testing.T) {
	now := time.Date(2026, 3, 10, 12, 0, 0, 0, time.UTC)
	minute := Window{Duration: time.Minute}
	for _, c := range []struct {
		name   string
		claim  Claim
		before int64 // taken and settled
		left   int64 // seen by the next reservation's failure, or as it is
	}{
		{"bucket", Claim{Counter: "a", Unit: UnitTokens, Window: minute, Limit: 100, Amount: 30}, 0, 70},
		{"bucket in use", Claim{Counter: "a", Unit: UnitTokens, Window: minute, Limit: 100, Amount: 30}, 60, 10},
		{"bucket that owes then", Claim{Counter: "a", Unit: UnitTokens, Window: minute, Limit: 100, Amount: 130}, 0, -30},
		{"day", Claim{Counter: "a", Unit: UnitCost, Window: Window{Calendar: CalendarDay}, Limit: 100, Amount: 30}, 50, 20},
		{"day that is overrun", Claim{Counter: "a", Unit: UnitCost, Window: Window{Calendar: CalendarDay}, Limit: 100, Amount: 130}, 50, -80},
		{"slots", Claim{Counter: "a", Unit: UnitConcurrency, Limit: 100, Amount: 1}, 0, 100},
	} {
		l := New(Config{})
		if c.before > 0 {
			take := c.claim
			take.Amount = c.before
			le, failures := l.Reserve(ctx, now, []Claim{take})
			if failures != nil {
				t.Fatal(failures)
			}
			le.Settle(now, []int64{c.before})
		}
		if !l.Charge(ctx, now, c.claim) {
			t.Fatalf("%s: not charged", c.name)
		}
		probe := c.claim
		probe.Amount = 100
		if c.left == 100 {
			if got := l.Peek(now, []Claim{probe})[0].Remaining; got != c.left {
				t.Errorf("%s: %d are left, want %d", c.name, got, c.left)
			}
			continue
		}
		if _, failures := l.Reserve(ctx, now, []Claim{probe}); len(failures) != 1 || failures[0].Available != c.left {
			t.Errorf("%s: %+v, want that %d are left", c.name, failures, c.left)
		}
	}

	full := New(Config{MaxCounters: 1})
	charged := 0
	for i := range 1000 {
		if full.Charge(ctx, now, Claim{Counter: string(rune('a' + i)), Unit: UnitTokens, Window: minute, Limit: 10, Amount: 1}) {
			charged++
		}
	}
	if charged == 0 || charged > shards || full.Stats().Counters != charged {
		t.Errorf("%d counters were charged and %d are held, at most %d may be", charged, full.Stats().Counters, shards)
	}
}

// TestAvailable is what a counter has to give once a lease is settled or cancelled,
// whatever others have taken meanwhile.
func TestAvailable(t *testing.T) {
	now := time.Date(2026, 3, 10, 12, 0, 0, 0, time.UTC)
	claims := []Claim{
		{Counter: "bucket", Unit: UnitTokens, Window: Window{Duration: time.Hour}, Limit: 100, Amount: 40},
		{Counter: "day", Unit: UnitTokens, Window: Window{Calendar: CalendarDay}, Limit: 100, Amount: 40},
		{Counter: "slots", Unit: UnitConcurrency, Limit: 3, Amount: 1},
	}
	l := New(Config{})
	first, _ := l.Reserve(ctx, now, claims)
	second, _ := l.Reserve(ctx, now, claims)
	first.Settle(now, []int64{70, 5, 0})
	for i, want := range []int64{-10, 55, 2} {
		if got := first.Available(i); got != want {
			t.Errorf("after the first: %s has %d, want %d", claims[i].Counter, got, want)
		}
	}
	second.Cancel(now)
	for i, want := range []int64{30, 95, 3} {
		if got := second.Available(i); got != want {
			t.Errorf("after the second: %s has %d, want %d", claims[i].Counter, got, want)
		}
	}
}
