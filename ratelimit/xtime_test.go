package ratelimit

import (
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"golang.org/x/time/rate"
)

// These tests pin what golang.org/x/time/rate does, as docs/0007-limits.md
// says: where its semantics are ours, and where they keep it from being the
// bucket. If an upgrade breaks one, read that note again.

// Reservations alone, in order of time, are what x/time admits.
func TestAgreesWithXTime(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for range 200 {
		limit := rng.Int64N(1000) + 1
		l := New(Config{})
		x := rate.NewLimiter(rate.Limit(float64(limit)/60), int(limit))
		now := start
		for range 200 {
			now = now.Add(time.Duration(rng.Int64N(int64(20 * time.Second))))
			amount := rng.Int64N(limit) + 1
			level := x.TokensAt(now)
			if math.Abs(level-float64(amount)) < 1e-6 {
				continue // too close for a float to call
			}
			le, _ := l.Reserve(ctx, now, []Claim{tokens("a", limit, amount)})
			if ok := x.AllowN(now, int(amount)); ok != (le != nil) {
				t.Fatalf("x/time says %v to %d of %g, the bucket %v", ok, amount, level, le != nil)
			}
			if le != nil {
				le.Settle(now, nil)
			}
			got := float64(remaining(t, l, now, tokens("a", limit, 0)))
			if want := x.TokensAt(now); got > want+1e-6 || got < want-1-1e-6 {
				t.Fatalf("level %g, x/time %g", got, want)
			}
		}
	}
}

func TestXTimeRounds(t *testing.T) {
	x := rate.NewLimiter(rate.Limit(7.0/60), 7)
	x.AllowN(start, 7)
	l := New(Config{})
	mustReserve(t, l, start, tokens("a", 7, 7)).Settle(start, nil)
	off := 0
	for i := range 6_000 {
		now := after(time.Duration(i) * 10 * time.Millisecond)
		x.AllowN(now, 0)
		remaining(t, l, now, tokens("a", 7, 0))
	}
	for i := range 7 {
		third := after(time.Duration(i+1)*time.Minute/7 + 1)
		if math.Floor(x.TokensAt(third)) != float64(i+1) {
			off++
		}
	}
	if got := x.TokensAt(after(time.Minute)); got == 7 && off == 0 {
		t.Error("x/time kept exactly 7 tokens through 6,000 small refills; it may have become exact")
	}
	if got := remaining(t, l, after(time.Minute), tokens("a", 7, 0)); got != 7 {
		t.Errorf("the bucket has %d after a window of small refills, want 7 exactly", got)
	}
}

func TestXTimeEarnsTwiceFromOldTimes(t *testing.T) {
	x := rate.NewLimiter(10, 1000)
	x.AllowN(start, 1000)
	x.AllowN(after(-30*time.Second), 0)
	x.AllowN(start, 0)
	if got := x.TokensAt(start); got < 299 {
		t.Errorf("%v tokens from an old time; x/time no longer mints them", got)
	}
}

func TestXTimeReservationCannotBeReturnedLate(t *testing.T) {
	x := rate.NewLimiter(1, 100)
	r := x.ReserveN(start, 100)
	r.CancelAt(after(time.Second))
	if got := x.TokensAt(after(time.Second)); got != 1 {
		t.Errorf("%v tokens after a late cancel, want the 1 of a second", got)
	}
	if x.ReserveN(start, 101).OK() {
		t.Error("a reservation above the burst succeeded")
	}
}

func TestXTimeNegativeAmountIsACredit(t *testing.T) {
	x := rate.NewLimiter(1, 100)
	x.ReserveN(start, 100)
	x.ReserveN(start, -40)
	if got := x.TokensAt(start); got != 40 {
		t.Errorf("%v tokens after a credit of 40", got)
	}
}
