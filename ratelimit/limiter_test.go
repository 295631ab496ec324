package ratelimit

import (
	"context"
	"math"
	"strings"
	"testing"
	"time"
)

// ctx is for calls that look at none.
var ctx = context.Background()

// start has a monotonic reading, as the times of a running gateway do, and so
// do all times made from it by Add.
var start = time.Now()

func after(d time.Duration) time.Time { return start.Add(d) }

func tokens(name string, limit, amount int64) Claim {
	return Claim{Counter: name, Unit: UnitTokens, Window: Window{Duration: time.Minute}, Limit: limit, Amount: amount}
}

func slots(name string, limit int64) Claim {
	return Claim{Counter: name, Unit: UnitConcurrency, Limit: limit, Amount: 1}
}

func calendar(name, unit string, limit, amount int64) Claim {
	return Claim{Counter: name, Unit: UnitCost, Window: Window{Calendar: unit}, Limit: limit, Amount: amount}
}

func mustReserve(t *testing.T, l *Limiter, now time.Time, claims ...Claim) Reservation {
	t.Helper()
	le, failures := l.Reserve(ctx, now, claims)
	if le == nil {
		t.Fatalf("Reserve failed: %+v", failures)
	}
	return le
}

func mustRefuse(t *testing.T, l *Limiter, now time.Time, claims ...Claim) []Failure {
	t.Helper()
	le, failures := l.Reserve(ctx, now, claims)
	if le != nil {
		t.Fatalf("Reserve succeeded")
	}
	return failures
}

func remaining(t *testing.T, l *Limiter, now time.Time, c Claim) int64 {
	t.Helper()
	return l.Peek(now, []Claim{c})[0].Remaining
}

func TestBucketReserveAndSettle(t *testing.T) {
	l := New(Config{})
	le := mustReserve(t, l, start, tokens("a", 1000, 400))
	if got, want := le.View(0), (View{Limit: 1000, Remaining: 600, Reset: 24 * time.Second}); got != want {
		t.Errorf("view after the reservation: %+v, want %+v", got, want)
	}
	le.Settle(start, []int64{150})
	if got := remaining(t, l, start, tokens("a", 1000, 0)); got != 850 {
		t.Errorf("remaining after settling 150: %d, want 850", got)
	}
	le.Settle(start, []int64{1000})
	le.Cancel(start)
	if got := remaining(t, l, start, tokens("a", 1000, 0)); got != 850 {
		t.Errorf("remaining after a second settlement: %d, want 850 still", got)
	}
}

func TestBucketCancelChargesNothing(t *testing.T) {
	l := New(Config{})
	le := mustReserve(t, l, start, tokens("a", 1000, 400))
	le.Cancel(start)
	le.Settle(start, []int64{400})
	if got := remaining(t, l, start, tokens("a", 1000, 0)); got != 1000 {
		t.Errorf("remaining after Cancel: %d, want 1000", got)
	}
}

func TestMissingOrNegativeAmountChargesEstimate(t *testing.T) {
	for name, amounts := range map[string][]int64{"nil": nil, "negative": {-5}} {
		l := New(Config{})
		mustReserve(t, l, start, tokens("a", 1000, 400)).Settle(start, amounts)
		if got := remaining(t, l, start, tokens("a", 1000, 0)); got != 600 {
			t.Errorf("%s: remaining %d, want 600", name, got)
		}
	}
}

func TestOverrunIsOwed(t *testing.T) {
	l := New(Config{})
	mustReserve(t, l, start, tokens("a", 60, 10)).Settle(start, []int64{100})
	got := mustRefuse(t, l, start, tokens("a", 60, 0))
	want := Failure{Available: -40, Wait: 40 * time.Second, View: View{Limit: 60, Reset: 100 * time.Second}}
	if len(got) != 1 || got[0] != want {
		t.Errorf("failures in debt: %+v, want %+v", got, want)
	}
	mustRefuse(t, l, after(40*time.Second-1), tokens("a", 60, 0))
	mustReserve(t, l, after(40*time.Second), tokens("a", 60, 0))
}

func TestRefillIsEvenAndStopsAtLimit(t *testing.T) {
	l := New(Config{})
	mustReserve(t, l, start, tokens("a", 7, 7)).Settle(start, nil)
	// 7 a minute: a token every 8.571428571 s, not a nanosecond early.
	third := time.Minute * 3 / 7
	if got := remaining(t, l, after(third), tokens("a", 7, 0)); got != 2 {
		t.Errorf("just before the third token: %d, want 2", got)
	}
	if got := remaining(t, l, after(third+1), tokens("a", 7, 0)); got != 3 {
		t.Errorf("at the third token: %d, want 3", got)
	}
	if got := remaining(t, l, after(time.Minute), tokens("a", 7, 0)); got != 7 {
		t.Errorf("after a window: %d, want 7 exactly", got)
	}
	if got := remaining(t, l, after(time.Hour), tokens("a", 7, 0)); got != 7 {
		t.Errorf("after an hour: %d, want 7", got)
	}
}

func TestAllOrNone(t *testing.T) {
	l := New(Config{})
	mustReserve(t, l, start, slots("s", 1))
	got := mustRefuse(t, l, start, tokens("a", 100, 60), slots("s", 1), tokens("b", 50, 60))
	if len(got) != 2 || got[0].Index != 1 || got[1].Index != 2 {
		t.Fatalf("failures %+v, want those of claims 1 and 2", got)
	}
	if got[0].Wait != time.Second || got[0].Available != 0 {
		t.Errorf("slot: %+v, want a wait of one second and nothing available", got[0])
	}
	if got[1].Wait != Never || got[1].Available != 50 {
		t.Errorf("amount above the limit: %+v, want Never and 50 available", got[1])
	}
	if got := remaining(t, l, start, tokens("a", 100, 0)); got != 100 {
		t.Errorf("claim that fitted was taken all the same: %d left of 100", got)
	}
}

func TestSeveralClaimsOnOneCounter(t *testing.T) {
	l := New(Config{})
	got := mustRefuse(t, l, start, tokens("a", 100, 60), tokens("a", 100, 30), tokens("a", 100, 20))
	if len(got) != 1 || got[0].Index != 2 || got[0].Available != 10 || got[0].Wait != Never {
		t.Fatalf("failures %+v, want claim 2, 10 available, never", got)
	}
	le := mustReserve(t, l, start, tokens("a", 100, 60), tokens("a", 100, 40))
	if le.View(0).Remaining != 0 || le.View(1).Remaining != 0 {
		t.Errorf("views %+v %+v, want nothing remaining in either", le.View(0), le.View(1))
	}
	got = mustRefuse(t, l, after(30*time.Second), tokens("a", 100, 40), tokens("a", 100, 40))
	if len(got) != 1 || got[0].Index != 1 || got[0].Wait != 18*time.Second {
		t.Errorf("failures %+v, want claim 1 after 18 s", got)
	}
	le.Settle(after(30*time.Second), []int64{10, 0})
	if got := remaining(t, l, after(30*time.Second), tokens("a", 100, 0)); got != 100 {
		t.Errorf("remaining %d, want 100: the 10 charged have been refilled", got)
	}
	two := mustReserve(t, l, start, slots("s", 2), slots("s", 2))
	mustRefuse(t, l, start, slots("s", 2))
	two.Cancel(start)
	mustReserve(t, l, start, slots("s", 1))
}

func TestWaitIsTrue(t *testing.T) {
	l := New(Config{})
	mustReserve(t, l, start, tokens("a", 1000, 1000)).Settle(start, []int64{1000})
	f := mustRefuse(t, l, start, tokens("a", 1000, 333))
	mustRefuse(t, l, after(f[0].Wait-1), tokens("a", 1000, 333))
	mustReserve(t, l, after(f[0].Wait), tokens("a", 1000, 333))
}

func TestConcurrencyFollowsLimit(t *testing.T) {
	l := New(Config{})
	a, b := mustReserve(t, l, start, slots("s", 2)), mustReserve(t, l, start, slots("s", 2))
	mustRefuse(t, l, start, slots("s", 2))
	c := mustReserve(t, l, start, slots("s", 3))
	if got := mustRefuse(t, l, start, slots("s", 1)); got[0].Available != -2 {
		t.Errorf("available under a lowered limit: %d, want -2", got[0].Available)
	}
	a.Settle(start, []int64{77})
	b.Cancel(start)
	c.Settle(start, nil)
	if got := remaining(t, l, start, slots("s", 3)); got != 3 {
		t.Errorf("free slots at the end: %d, want 3", got)
	}
	if f := mustRefuse(t, l, start, slots("s", 0)); f[0].Wait != Never {
		t.Errorf("no slots at all: %+v, want Never", f[0])
	}
}

func TestLimitChangesBetweenCalls(t *testing.T) {
	l := New(Config{})
	mustReserve(t, l, start, tokens("a", 100, 70)).Settle(start, nil)
	if got := remaining(t, l, start, tokens("a", 1000, 0)); got != 30 {
		t.Errorf("raising the limit refilled the bucket: %d, want 30", got)
	}
	if got := remaining(t, l, after(6*time.Second), tokens("a", 1000, 0)); got != 130 {
		t.Errorf("six seconds at 1000 a minute: %d, want 130", got)
	}
	if got := remaining(t, l, after(6*time.Second), tokens("a", 20, 0)); got != 20 {
		t.Errorf("lowered limit: %d, want 20", got)
	}
	mustReserve(t, l, after(6*time.Second), tokens("a", 20, 20)).Settle(after(6*time.Second), []int64{50})
	if f := mustRefuse(t, l, after(6*time.Second), tokens("a", 10, 0)); f[0].Available != -30 {
		t.Errorf("debt under a changed limit: %d, want -30", f[0].Available)
	}
}

func TestChangedUnitOrWindowIsANewCounter(t *testing.T) {
	l := New(Config{})
	mustReserve(t, l, start, tokens("a", 100, 100))
	other := tokens("a", 100, 100)
	other.Unit = UnitInputTokens
	mustReserve(t, l, start, other)
	other.Window.Duration = time.Hour
	mustReserve(t, l, start, other)
	mustRefuse(t, l, start, tokens("a", 100, 1))
}

func TestLateRefundCannotDoubleTheBucket(t *testing.T) {
	l := New(Config{})
	claim := tokens("a", 100, 100)
	var open []Reservation
	for i := range 4 {
		open = append(open, mustReserve(t, l, after(time.Duration(i)*time.Minute), claim))
	}
	now := after(4 * time.Minute)
	fifth := mustReserve(t, l, now, claim)
	for _, le := range open {
		le.Settle(now, []int64{0})
	}
	if got := remaining(t, l, now, claim); got != 0 {
		t.Errorf("refunds of reservations that time had refilled gave %d at once, want 0", got)
	}
	fifth.Settle(now, []int64{25})
	if got := remaining(t, l, now, claim); got != 75 {
		t.Errorf("refund of a fresh reservation: %d, want 75", got)
	}
}

// Fractions of a refund that the refill has overtaken are lost too: kept, they
// would add up to a whole token more than the promise.
func TestLateRefundLosesFractions(t *testing.T) {
	l := New(Config{})
	claim := Claim{Counter: "a", Unit: UnitTokens, Window: Window{Duration: 10}, Limit: 3, Amount: 1}
	old := []Reservation{mustReserve(t, l, start, claim), mustReserve(t, l, start, claim)}
	// At 3 ns the level is 1.9 and at most 1.1 may come back.
	mustReserve(t, l, after(3), claim)
	old[0].Cancel(after(3))
	mustReserve(t, l, after(3), claim)
	old[1].Cancel(after(3))
	mustReserve(t, l, after(3), claim)
	// 3 × (1 + 1/10) allows three since then, not four.
	if f := mustRefuse(t, l, after(4), claim); f[0].Wait != 3 {
		t.Errorf("wait %v, want 3ns: 0.3 of a token is there", f[0].Wait)
	}
}

func TestSettleAsIfKnownFromTheStart(t *testing.T) {
	// 90 a minute, 60 reserved, 10 charged, some seconds later.
	for _, s := range []time.Duration{0, 1, 7, 19, 20, 21, 39, 40, 60, 300} {
		now := after(s*time.Second + 333*time.Microsecond)
		l, ref := New(Config{}), New(Config{})
		le := mustReserve(t, l, start, tokens("a", 90, 60))
		mustReserve(t, ref, start, tokens("a", 90, 10))
		le.Settle(now, []int64{10})
		got, want := l.Peek(now, []Claim{tokens("a", 90, 0)}), ref.Peek(now, []Claim{tokens("a", 90, 0)})
		if got[0] != want[0] {
			t.Errorf("after %d s: %+v, want %+v as if 10 had been reserved", s, got[0], want[0])
		}
	}
}

func TestHugeNumbersSaturate(t *testing.T) {
	l := New(Config{})
	big := tokens("a", math.MaxInt64, math.MaxInt64)
	first := mustReserve(t, l, start, big)
	if f := mustRefuse(t, l, start, big); f[0].Wait != time.Minute {
		t.Errorf("wait for a bucket of %d: %v, want a minute", int64(math.MaxInt64), f[0].Wait)
	}
	second := mustReserve(t, l, after(time.Minute), big)
	first.Settle(after(time.Minute), []int64{math.MaxInt64})
	second.Settle(after(time.Minute), []int64{0})
	if got := remaining(t, l, after(time.Minute), big); got != math.MaxInt64 {
		t.Errorf("remaining %d, want all", got)
	}
	small := tokens("b", 1, 1)
	mustReserve(t, l, start, small).Settle(start, []int64{math.MaxInt64})
	if f := mustRefuse(t, l, start, small); f[0].Wait != Never-1 {
		t.Errorf("wait for an absurd debt: %v, want the longest time short of Never", f[0].Wait)
	}
	day := calendar("c", CalendarDay, math.MaxInt64, math.MaxInt64)
	mustReserve(t, l, start, day).Settle(start, nil)
	mustRefuse(t, l, start, calendar("c", CalendarDay, math.MaxInt64, 1))
}

func TestUnusableClaimsPanic(t *testing.T) {
	f := func(want string, c Claim) {
		t.Helper()
		defer func() {
			t.Helper()
			if got, _ := recover().(string); !strings.HasPrefix(got, "BUG: ") || !strings.Contains(got, want) {
				t.Errorf("panic %q, want BUG: … %s", got, want)
			}
		}()
		New(Config{}).Reserve(ctx, start, []Claim{c})
	}
	ok := tokens("a", 1, 1)
	with := func(change func(*Claim)) Claim { c := ok; change(&c); return c }
	f("no counter", with(func(c *Claim) { c.Counter = "" }))
	f("negative limit -1", with(func(c *Claim) { c.Limit = -1 }))
	f("negative amount -2", with(func(c *Claim) { c.Amount = -2 }))
	f("unusable window", with(func(c *Claim) { c.Window = Window{} }))
	f("unusable window", with(func(c *Claim) { c.Window.Duration = 1 << 62 }))
	f("unusable window", with(func(c *Claim) { c.Window.Calendar = CalendarDay }))
	f("unusable window", with(func(c *Claim) { c.Window = Window{Calendar: "week"} }))
	f("concurrency claim has the window", with(func(c *Claim) { c.Unit = UnitConcurrency }))
}

func TestEmptyReservation(t *testing.T) {
	l := New(Config{})
	le := mustReserve(t, l, start)
	le.Settle(start, nil)
	if st := l.Stats(); st.OpenLeases != 0 || st.Reserved != 1 || st.Settled != 1 {
		t.Errorf("stats %+v", st)
	}
}
