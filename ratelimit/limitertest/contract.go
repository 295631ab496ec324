package limitertest

import (
	"context"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/sluicegate/sluice/ratelimit"
)

func testAllOrNone(_ *testing.T, s *subject) {
	s.must(s.slot("s", 1))
	f := s.refused(s.bucket("a", 100, 60), s.slot("s", 1), s.month("m", 50, 60), s.month("n", 50, 50))
	if len(f) != 2 || f[0].Index != 1 || f[1].Index != 2 {
		s.t.Fatalf("failures %+v, want those of claims 1 and 2", f)
	}
	if f[0].Wait != time.Second || f[0].Available != 0 {
		s.t.Errorf("a slot: %+v, want a wait of one second and nothing available", f[0])
	}
	if f[1].Wait != ratelimit.Never || f[1].Available != 50 {
		s.t.Errorf("an amount above its limit: %+v, want Never and 50 available", f[1])
	}
	s.must(s.bucket("a", 100, 100), s.month("m", 50, 50), s.month("n", 50, 50))
}

func testSettle(_ *testing.T, s *subject) {
	r := s.must(s.bucket("a", 1000, 400), s.month("m", 1000, 400))
	for i := range 2 {
		if v := r.View(i); v.Limit != 1000 || v.Remaining != 600 {
			s.t.Errorf("claim %d after the reservation: %+v, want 600 of 1000", i, v)
		}
	}
	r.Settle(s.Now(), []int64{150, 250})
	s.left(850, s.bucket("a", 1000, 0))
	s.left(750, s.month("m", 1000, 0))
	if a, m := r.Available(0), r.Available(1); a < 850 || a > 850+s.lag(s.bucket("a", 1000, 0)) || m != 750 {
		s.t.Errorf("%d and %d are said to be available, want 850 and 750", a, m)
	}
}

func testMissingAmounts(_ *testing.T, s *subject) {
	s.must(s.month("m", 1000, 100), s.month("n", 1000, 100)).Settle(s.Now(), []int64{30})
	s.must(s.month("m", 1000, 100)).Settle(s.Now(), []int64{-1})
	s.must(s.month("m", 1000, 100)).Settle(s.Now(), nil)
	s.left(770, s.month("m", 1000, 0))
	s.left(900, s.month("n", 1000, 0))
}

func testCancel(_ *testing.T, s *subject) {
	r := s.must(s.bucket("a", 1000, 400), s.month("m", 1000, 400), s.slot("s", 1))
	r.Cancel(s.Now())
	s.left(1000, s.bucket("a", 1000, 0))
	s.left(1000, s.month("m", 1000, 0))
	s.must(s.slot("s", 1))
}

func testFirstEnd(_ *testing.T, s *subject) {
	settled, cancelled := s.must(s.month("m", 1000, 400), s.slot("s", 2)), s.must(s.month("m", 1000, 400), s.slot("s", 2))
	settled.Settle(s.Now(), []int64{100, 1})
	settled.Settle(s.Now(), []int64{900, 1})
	settled.Cancel(s.Now())
	cancelled.Cancel(s.Now())
	cancelled.Settle(s.Now(), []int64{500, 1})
	cancelled.Use(s.Now(), []int64{700})
	s.left(900, s.month("m", 1000, 0))
	s.must(s.slot("s", 2), s.slot("s", 2))
	s.refused(s.slot("s", 2))
}

func testOverrun(_ *testing.T, s *subject) {
	r := s.must(s.bucket("a", 100, 10), s.month("m", 100, 10))
	r.Settle(s.Now(), []int64{250, 130})
	if a, m := r.Available(0), r.Available(1); a < -150 || a > -150+s.lag(s.bucket("a", 100, 0)) || m != -30 {
		s.t.Errorf("%d and %d are said to be available, want -150 and -30", a, m)
	}
	f := s.refused(s.bucket("a", 100, 0))
	if f[0].Available < -150 || f[0].Available > -150+s.lag(s.bucket("a", 100, 0)) || f[0].Wait <= 0 || f[0].Wait > 36*time.Hour {
		s.t.Errorf("a bucket that owes 150 of 100 a day: %+v", f[0])
	}
	if f := s.refused(s.month("m", 100, 0)); f[0].Available != -30 || f[0].View.Remaining != 0 || f[0].Wait <= 0 || f[0].Wait == ratelimit.Never {
		s.t.Errorf("a month that owes 30: %+v", f[0])
	}
}

func testUse(_ *testing.T, s *subject) {
	r := s.must(s.bucket("a", 1000, 100), s.month("m", 1000, 100), s.slot("s", 1))
	r.Use(s.Now(), []int64{100, 60, 5})
	s.left(900, s.bucket("a", 1000, 0))
	s.left(900, s.month("m", 1000, 0))
	r.Use(s.Now(), []int64{300, 170})
	s.left(700, s.bucket("a", 1000, 0))
	s.left(830, s.month("m", 1000, 0))
	s.refused(s.slot("s", 1))
	r.Use(s.Now(), []int64{1500, 1001})
	s.refused(s.bucket("a", 1000, 0))
	s.refused(s.month("m", 1000, 0))
	r.Settle(s.Now(), []int64{1500, 1001, 1})
	if f := s.refused(s.month("m", 1000, 0)); f[0].Available != -1 {
		s.t.Errorf("%d are said to be available, want -1", f[0].Available)
	}
	s.must(s.slot("s", 1))
}

func testUseIsMonotone(_ *testing.T, s *subject) {
	r := s.must(s.month("m", 1000, 100), s.month("n", 1000, 100))
	r.Use(s.Now(), []int64{400, -1})
	for _, used := range [][]int64{nil, {}, {-1}, {0, 0}, {399, 100}, {400, 99}} {
		r.Use(s.Now(), used)
	}
	s.left(600, s.month("m", 1000, 0))
	s.left(900, s.month("n", 1000, 0))
	r.Use(s.Now(), []int64{0, 101})
	s.left(600, s.month("m", 1000, 0))
	s.left(899, s.month("n", 1000, 0))
	r.Settle(s.Now(), []int64{-1, -1}) // what was taken, since that is more than the estimate
	s.left(600, s.month("m", 1000, 0))
	s.left(899, s.month("n", 1000, 0))
}

func testUseAndEnd(_ *testing.T, s *subject) {
	for _, c := range []struct {
		charge int64 // below zero: cancelled
		left   int64
	}{
		{900, 100}, {500, 500}, {200, 800}, {100, 900}, {40, 960}, {0, 1000}, {-1, 1000},
	} {
		b, m := s.bucket("a", 1000, 100), s.month("m", 1000, 100)
		r := s.must(b, m)
		r.Use(s.Now(), []int64{500, 500})
		if c.charge < 0 {
			r.Cancel(s.Now())
		} else {
			r.Settle(s.Now(), []int64{c.charge, c.charge})
		}
		r.Use(s.Now(), []int64{999, 999})
		s.left(c.left, b)
		s.left(c.left, m)
		s.prefix = "" // other counters for the next
	}
}

func testSlots(_ *testing.T, s *subject) {
	a, b := s.must(s.slot("s", 2)), s.must(s.slot("s", 2))
	s.refused(s.slot("s", 2))
	a.Settle(s.Now(), []int64{7})
	a.Cancel(s.Now())
	c := s.must(s.slot("s", 2))
	s.refused(s.slot("s", 2))
	b.Cancel(s.Now())
	c.Settle(s.Now(), nil)
	if v := s.must(s.slot("s", 2)).View(0); v.Limit != 2 || v.Remaining != 1 || v.Reset != 0 {
		s.t.Errorf("view of slots %+v, want 1 of 2 and no reset", v)
	}
	if f := s.refused(s.slot("none", 0)); f[0].Wait != ratelimit.Never {
		s.t.Errorf("no slots at all: %+v, want Never", f[0])
	}
}

func testSameCounter(_ *testing.T, s *subject) {
	f := s.refused(s.month("m", 100, 60), s.month("m", 100, 30), s.month("m", 100, 20))
	if len(f) != 1 || f[0].Index != 2 || f[0].Available != 10 {
		s.t.Fatalf("failures %+v, want claim 2 and 10 available", f)
	}
	r := s.must(s.month("m", 100, 60), s.month("m", 100, 40))
	if r.View(0).Remaining != 0 || r.View(1).Remaining != 0 {
		s.t.Errorf("views %+v %+v, want nothing remaining in either", r.View(0), r.View(1))
	}
	r.Settle(s.Now(), []int64{10, 5})
	s.left(85, s.month("m", 100, 0))
	two := s.must(s.slot("s", 2), s.slot("s", 2))
	s.refused(s.slot("s", 2))
	two.Cancel(s.Now())
	s.must(s.slot("s", 1))
}

func testNever(_ *testing.T, s *subject) {
	for _, c := range []ratelimit.Claim{s.bucket("a", 10, 11), s.month("m", 10, 11), s.bucket("b", 0, 0), s.month("n", 0, 0)} {
		if f := s.refused(c); f[0].Wait != ratelimit.Never {
			s.t.Errorf("%d of %d a %s: %+v, want Never", c.Amount, c.Limit, c.Window, f[0])
		}
	}
}

// shortWindow is a window that tests let pass.
const shortWindow = 2 * time.Second

func (s *subject) short(name string, limit, amount int64) ratelimit.Claim {
	c := s.bucket(name, limit, amount)
	c.Window.Duration = shortWindow
	return c
}

func testRefill(_ *testing.T, s *subject) {
	const limit = 1000
	s.must(s.short("a", limit, limit)).Settle(s.Now(), []int64{limit + limit/2})
	f := s.refused(s.short("a", limit, 0))
	if most := shortWindow / 2; f[0].Wait > most || f[0].Wait < most-s.Lag {
		s.t.Errorf("half a window's debt is to be waited off in %v, want %v", f[0].Wait, most)
	}
	s.Advance(shortWindow/2 + shortWindow/10)
	s.must(s.short("a", limit, limit/10)).Settle(s.Now(), nil)
	s.refused(s.short("a", limit, 1+s.lag(s.short("a", limit, 0))))
	s.Advance(2 * shortWindow)
	s.must(s.short("a", limit, limit)).Settle(s.Now(), nil)
	s.refused(s.short("a", limit, 1+s.lag(s.short("a", limit, 0))))
}

// testLateRefund: what a refund returns that time has refilled already would pass
// twice.
func testLateRefund(_ *testing.T, s *subject) {
	const limit = 1000
	late, used := s.must(s.short("a", limit, limit)), s.must(s.short("b", limit, limit))
	used.Use(s.Now(), []int64{limit + limit/2})
	s.Advance(2 * shortWindow)
	s.must(s.short("a", limit, limit), s.short("b", limit, limit))
	late.Settle(s.Now(), []int64{0})
	used.Settle(s.Now(), []int64{0})
	s.refused(s.short("a", limit, 1+s.lag(s.short("a", limit, 0))))
	s.refused(s.short("b", limit, 1+s.lag(s.short("b", limit, 0))))
}

func testLimitsChange(_ *testing.T, s *subject) {
	s.must(s.bucket("a", 100, 70), s.month("m", 100, 70)).Settle(s.Now(), nil)
	s.left(30, s.bucket("a", 1000, 0)) // raised, and not refilled at once
	s.left(930, s.month("m", 1000, 0))
	s.left(20, s.bucket("a", 20, 0))
	if f := s.refused(s.month("m", 50, 0)); f[0].Available != -20 {
		s.t.Errorf("70 of 50: %+v, want -20 available", f[0])
	}
}

func testUnitsAndWindows(_ *testing.T, s *subject) {
	s.must(s.bucket("a", 100, 100)).Settle(s.Now(), nil)
	other := s.bucket("a", 100, 100)
	other.Unit = ratelimit.UnitInputTokens
	s.must(other)
	other.Window.Duration = time.Hour
	s.must(other)
	other.Window = ratelimit.Window{Calendar: ratelimit.CalendarDay}
	s.must(other)
	other.Window.Calendar = ratelimit.CalendarMonth
	s.must(other)
	s.refused(other)
	s.left(0, s.bucket("a", 100, 0))
}

func testNothing(_ *testing.T, s *subject) {
	r := s.must()
	r.Use(s.Now(), []int64{1})
	r.Settle(s.Now(), []int64{1})
	r.Cancel(s.Now())
	s.must(s.month("m", 10, 0)).Settle(s.Now(), nil)
	s.left(10, s.month("m", 10, 0))
}

func testCharge(_ *testing.T, s *subject) {
	charge := func(c ratelimit.Claim) {
		s.t.Helper()
		if !s.Limiter.Charge(context.Background(), s.Now(), c) {
			s.t.Fatalf("not charged")
		}
	}
	charge(s.bucket("a", 100, 30))
	charge(s.month("m", 100, 130))
	charge(s.slot("s", 1))
	s.left(70, s.bucket("a", 100, 0))
	s.must(s.slot("s", 1))
	if f := s.refused(s.month("m", 100, 0)); f[0].Available != -30 {
		s.t.Errorf("130 of 100: %+v, want -30 available", f[0])
	}
}

func testViewNow(_ *testing.T, s *subject) {
	r := s.must(s.bucket("a", 1000, 100), s.month("m", 1000, 100), s.slot("s", 3))
	s.must(s.bucket("a", 1000, 300), s.month("m", 1000, 200), s.slot("s", 3)).Settle(s.Now(), nil)
	r.Use(s.Now(), []int64{150, 150})
	for i, want := range []int64{550, 650, 2} {
		v := r.ViewNow(s.Now(), i)
		if v.Remaining < want || v.Remaining > want+s.lag(s.bucket("a", 1000, 0)) || (v.Limit != 1000) != (i == 2) {
			s.t.Errorf("claim %d: %+v, want %d remaining", i, v, want)
		}
	}
	r.Settle(s.Now(), []int64{20, 20, 1})
	for i, want := range []int64{680, 780, 3} {
		if v := r.ViewNow(s.Now(), i); v.Remaining < want || v.Remaining > want+s.lag(s.bucket("a", 1000, 0)) {
			s.t.Errorf("claim %d once it is settled: %+v, want %d remaining", i, v, want)
		}
	}
}

func testParallel(_ *testing.T, s *subject) {
	const workers, rounds, limit = 8, 60, 1 << 40
	b, m, sl := s.bucket("a", limit, 50), s.month("m", limit, 50), s.slot("s", workers)
	var wg sync.WaitGroup
	var mu sync.Mutex
	spent := int64(0)
	for w := range workers {
		wg.Go(func() {
			rng := rand.New(rand.NewPCG(uint64(w), 11))
			for range rounds {
				r, failures := s.reserve(b, m, sl)
				if r == nil {
					s.t.Errorf("refused: %+v", failures)
					return
				}
				charge := rng.Int64N(100)
				if rng.IntN(2) == 0 {
					r.Use(s.Now(), []int64{rng.Int64N(150), rng.Int64N(150)})
				}
				if rng.IntN(4) == 0 {
					r.Cancel(s.Now())
					continue
				}
				r.Settle(s.Now(), []int64{charge, charge, 1})
				mu.Lock()
				spent += charge
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	for range workers {
		s.must(sl)
	}
	s.refused(sl)
	if v := s.must(s.month("m", limit, 0)).View(0); v.Remaining != limit-spent {
		s.t.Errorf("the month has %d left, want %d", v.Remaining, limit-spent)
	}
	lag := s.lag(b)
	if v := s.must(s.bucket("a", limit, 0)).View(0); v.Remaining < limit-spent || v.Remaining > limit-spent+lag && v.Remaining > limit {
		s.t.Errorf("the bucket has %d left, want %d", v.Remaining, limit-spent)
	}
}
