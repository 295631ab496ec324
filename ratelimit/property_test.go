package ratelimit

import (
	"math/big"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// taken is one reservation of a property test. What counts of it is its amount
// while it is open, then the charge; overruns are apart, as the promise says.
type taken struct {
	lease  Reservation
	at     time.Time
	amount int64
	counts int64
	open   bool
}

// withinPromise checks limit × (1 + t/window) over every interval that starts
// at a reservation and ends now, in exact arithmetic.
func withinPromise(t *rapid.T, all []*taken, limit int64, window time.Duration, now time.Time) {
	sum := new(big.Int)
	for _, x := range slices.Backward(all) {
		sum.Add(sum, big.NewInt(x.counts))
		span := now.Sub(x.at)
		// sum × window <= limit × (window + span)
		left := new(big.Int).Mul(sum, big.NewInt(int64(window)))
		right := new(big.Int).Mul(big.NewInt(limit), big.NewInt(int64(window+span)))
		if left.Cmp(right) > 0 {
			t.Fatalf("%s admitted in %v with limit %d a %v", sum, span, limit, window)
		}
	}
}

// drawOpen picks a reservation that is open, nil if there is none.
func drawOpen(t *rapid.T, all []*taken) *taken {
	var open []*taken
	for _, x := range all {
		if x.open {
			open = append(open, x)
		}
	}
	if len(open) == 0 {
		return nil
	}
	return rapid.SampledFrom(open).Draw(t, "lease")
}

// drawUse tells of a use that may be beyond the reservation.
func drawUse(t *rapid.T, all []*taken, now time.Time) {
	if x := drawOpen(t, all); x != nil {
		x.lease.Use(now, []int64{rapid.Int64Range(-1, 4*x.amount+5).Draw(t, "used")})
	}
}

func drawSettle(t *rapid.T, all []*taken, now time.Time, overrun bool) {
	x := drawOpen(t, all)
	if x == nil {
		return
	}
	x.open = false
	if rapid.Bool().Draw(t, "cancel") {
		x.lease.Cancel(now)
		x.counts = 0
		return
	}
	most := x.amount
	if overrun {
		most *= 3
	}
	charge := rapid.Int64Range(0, most).Draw(t, "charge")
	x.lease.Settle(now, []int64{charge})
	x.counts = min(charge, x.amount)
}

// A bucket never lets through more than its limit and the refill of the time,
// over any stretch of time, however late estimates are settled and whatever the
// order of the callers' clocks.
func TestPropertyBucketPromise(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		l := New(Config{})
		limit := rapid.Int64Range(1, 50).Draw(t, "limit")
		window := time.Duration(rapid.Int64Range(1, 1000).Draw(t, "window"))
		claim := Claim{Counter: "a", Unit: UnitTokens, Window: Window{Duration: window}, Limit: limit}
		var all []*taken
		// The counter exists from the start, so that it has seen every time.
		first, _ := l.Reserve(ctx, start, []Claim{claim})
		first.Settle(start, nil)
		clock, latest := start, start
		for range rapid.IntRange(1, 80).Draw(t, "steps") {
			clock = clock.Add(time.Duration(rapid.Int64Range(0, int64(window)).Draw(t, "pass")))
			now := clock
			if rapid.IntRange(0, 4).Draw(t, "late caller") == 0 {
				now = now.Add(-time.Duration(rapid.Int64Range(0, 5*int64(window)).Draw(t, "late by")))
			}
			l.Peek(now, []Claim{claim})
			if now.After(latest) {
				latest = now
			}
			if rapid.Bool().Draw(t, "settle") {
				drawSettle(t, all, now, true)
				continue
			}
			if rapid.IntRange(0, 2).Draw(t, "use") == 0 {
				drawUse(t, all, now)
				continue
			}
			claim.Amount = rapid.Int64Range(0, limit).Draw(t, "amount")
			le, failures := l.Reserve(ctx, now, []Claim{claim})
			if le == nil {
				checkWait(t, l, latest, claim, failures[0])
				continue
			}
			all = append(all, &taken{lease: le, at: latest, amount: claim.Amount, counts: claim.Amount, open: true})
			withinPromise(t, all, limit, window, latest)
		}
	})
}

// checkWait holds Failure.Wait to its word: nothing fits a nanosecond earlier.
func checkWait(t *rapid.T, l *Limiter, now time.Time, claim Claim, f Failure) {
	if f.Wait <= 0 || f.Wait == Never {
		t.Fatalf("wait %v for %d of %d", f.Wait, claim.Amount, claim.Limit)
	}
	// Peek moves the counter's time on, which a later call can't undo, so the
	// question is put to a copy.
	c := l.shardOf(claim.Counter).counters[keyOf(&claim, l.clock.at(now))]
	b := c.bucket
	b.oldest, b.newest = nil, nil
	axis := b.last
	b.refresh(axis+int64(f.Wait)-1, claim.Limit)
	if b.level >= claim.Amount {
		t.Fatalf("%d fits before the wait of %v is over", claim.Amount, f.Wait)
	}
	b.refresh(axis+int64(f.Wait), claim.Limit)
	if b.level < claim.Amount {
		t.Fatalf("%d does not fit after the wait of %v: level %d", claim.Amount, f.Wait, b.level)
	}
}

// A bucket without waiting holds exactly what arithmetic says: everything that
// was charged is missing, nothing else is, whatever the interleaving.
func TestPropertySettledBucketIsExact(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		l := New(Config{})
		const limit = 1000
		claim := Claim{Counter: "a", Unit: UnitTokens, Window: Window{Duration: time.Hour}, Limit: limit}
		var all []*taken
		var charged int64
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			if rapid.Bool().Draw(t, "settle") {
				drawSettle(t, all, start, false)
				continue
			}
			if rapid.Bool().Draw(t, "use") {
				drawUse(t, all, start)
				continue
			}
			claim.Amount = rapid.Int64Range(0, 200).Draw(t, "amount")
			if le, _ := l.Reserve(ctx, start, []Claim{claim}); le != nil {
				all = append(all, &taken{lease: le, at: start, amount: claim.Amount, counts: claim.Amount, open: true})
			}
		}
		for _, x := range all {
			if x.open {
				x.lease.Settle(start, []int64{x.amount}) // whatever its use was
			}
			charged += x.counts
		}
		if got := l.Peek(start, []Claim{claim})[0].Remaining; got != limit-charged {
			t.Fatalf("remaining %d, want %d - %d", got, limit, charged)
		}
	})
}

// One request at a time leaves the bucket as if its true charge had been
// reserved from the start, whatever the times: no drift, no rounding.
func TestPropertyEstimateLeavesNoTrace(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		real, ideal := New(Config{}), New(Config{})
		limit := rapid.Int64Range(1, 1_000_000).Draw(t, "limit")
		window := time.Duration(rapid.Int64Range(1, int64(24*time.Hour)).Draw(t, "window"))
		claim := Claim{Counter: "a", Unit: UnitTokens, Window: Window{Duration: window}, Limit: limit}
		now := start
		for range rapid.IntRange(1, 30).Draw(t, "requests") {
			now = now.Add(time.Duration(rapid.Int64Range(0, int64(window)).Draw(t, "pause")))
			free := real.Peek(now, []Claim{claim})[0].Remaining
			estimate := rapid.Int64Range(0, free).Draw(t, "estimate")
			charge := rapid.Int64Range(0, estimate).Draw(t, "charge")
			claim.Amount = estimate
			le, failures := real.Reserve(ctx, now, []Claim{claim})
			if le == nil {
				t.Fatalf("%d of %d free refused: %+v", estimate, free, failures)
			}
			claim.Amount = charge
			if le, _ := ideal.Reserve(ctx, now, []Claim{claim}); le == nil {
				t.Fatalf("the ideal bucket refused %d", charge)
			} else {
				le.Settle(now, nil)
			}
			for range rapid.IntRange(0, 3).Draw(t, "uses") {
				now = now.Add(time.Duration(rapid.Int64Range(0, int64(window)).Draw(t, "runs for")))
				le.Use(now, []int64{rapid.Int64Range(0, min(3*estimate+9, limit)).Draw(t, "used")})
			}
			now = now.Add(time.Duration(rapid.Int64Range(0, int64(window)/2).Draw(t, "and for")))
			le.Settle(now, []int64{charge})
			a, b := real.Peek(now, []Claim{claim})[0], ideal.Peek(now, []Claim{claim})[0]
			if a != b {
				t.Fatalf("after estimate %d, charge %d: %+v, want %+v", estimate, charge, a, b)
			}
		}
	})
}

// However requests interleave, slots come back, once each, and calendar counts
// are the sum of the charges.
func TestPropertySlotsAndCountsBalance(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		l := New(Config{})
		day := Window{Calendar: CalendarDay}
		noon := time.Date(2026, 3, 10, 12, 0, 0, 0, time.UTC)
		var open []Reservation
		var amounts []int64
		inFlight, spent := int64(0), int64(0)
		reserved := int64(0)
		for range rapid.IntRange(1, 80).Draw(t, "steps") {
			switch {
			case rapid.Bool().Draw(t, "reserve"):
				amount := rapid.Int64Range(0, 300).Draw(t, "amount")
				le, _ := l.Reserve(ctx, noon, []Claim{
					{Counter: "s", Unit: UnitConcurrency, Limit: 5, Amount: 1},
					{Counter: "c", Unit: UnitCost, Window: day, Limit: 1000, Amount: amount},
				})
				if fits := inFlight < 5 && spent+reserved+amount <= 1000; fits != (le != nil) {
					t.Fatalf("admitted %v with %d in flight, %d spent, %d reserved, %d wanted", le != nil, inFlight, spent, reserved, amount)
				}
				if le != nil {
					open, amounts = append(open, le), append(amounts, amount)
					inFlight++
					reserved += amount
				}
			case len(open) > 0:
				i := rapid.IntRange(0, len(open)-1).Draw(t, "which")
				charge := rapid.Int64Range(0, 400).Draw(t, "charge")
				if rapid.Bool().Draw(t, "cancel") {
					charge = 0
					open[i].Cancel(noon)
				} else {
					open[i].Settle(noon, []int64{1, charge})
				}
				open[i].Settle(noon, []int64{9, 9})
				spent += charge
				reserved -= amounts[i]
				inFlight--
				open, amounts = append(open[:i], open[i+1:]...), append(amounts[:i], amounts[i+1:]...)
			}
		}
		for _, le := range open {
			le.Cancel(noon)
		}
		views := l.Peek(noon, []Claim{
			{Counter: "s", Unit: UnitConcurrency, Limit: 5},
			{Counter: "c", Unit: UnitCost, Window: day, Limit: 1000},
		})
		if views[0].Remaining != 5 || views[1].Remaining != max(0, 1000-spent) {
			t.Fatalf("at the end %+v after %d spent", views, spent)
		}
		if st := l.Stats(); st.OpenLeases != 0 {
			t.Fatalf("%d leases open", st.OpenLeases)
		}
	})
}
