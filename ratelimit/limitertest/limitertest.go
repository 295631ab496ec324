// Package limitertest is the contract that every limiter keeps, wherever its
// counters are: the one in memory, and those whose counters other processes
// share.
//
// The tests hold for a limiter that keeps time by itself: windows of buckets are
// long beside what a test takes, and where time must pass the subject lets it.
// Each test uses counters of its own, so that one store can serve all of them.
package limitertest

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sluicegate/sluice/ratelimit"
)

// Limiter is what is under test.
type Limiter interface {
	Reserve(ctx context.Context, now time.Time, claims []ratelimit.Claim) (ratelimit.Reservation, []ratelimit.Failure)
	Charge(ctx context.Context, now time.Time, claim ratelimit.Claim) bool
}

// Subject is a limiter with the time that it is given.
type Subject struct {
	Limiter Limiter
	// Now is the time of a call.
	Now func() time.Time
	// Advance lets d pass, by Now and by whatever clock the limiter goes by.
	Advance func(d time.Duration)
	// Lag is how much of a bucket's window may pass, or be seen late, without an
	// Advance: 0 for a limiter that goes by Now alone.
	Lag time.Duration
}

// Run holds the limiters that open makes to the contract. open is called once for
// each test, and releases what it has made by t.Cleanup.
func Run(t *testing.T, open func(t testing.TB) Subject) {
	for _, test := range []struct {
		name string
		run  func(t *testing.T, s *subject)
	}{
		{"AllOrNone", testAllOrNone},
		{"SettleReplacesTheEstimate", testSettle},
		{"MissingAmountsChargeTheEstimate", testMissingAmounts},
		{"CancelGivesEverythingBack", testCancel},
		{"OnlyTheFirstEndCounts", testFirstEnd},
		{"AnOverrunIsOwed", testOverrun},
		{"UseTakesWhatIsBeyond", testUse},
		{"UseIsMonotone", testUseIsMonotone},
		{"UseAndTheEnd", testUseAndEnd},
		{"SlotsComeBackOnce", testSlots},
		{"SeveralClaimsOnOneCounter", testSameCounter},
		{"NeverFits", testNever},
		{"Refill", testRefill},
		{"LateRefund", testLateRefund},
		{"LimitsChange", testLimitsChange},
		{"UnitsAndWindowsAreApart", testUnitsAndWindows},
		{"NothingToReserve", testNothing},
		{"Charge", testCharge},
		{"ViewNow", testViewNow},
		{"AnyInterleaving", testInterleaving},
		{"InParallel", testParallel},
	} {
		t.Run(test.name, func(t *testing.T) {
			test.run(t, &subject{Subject: open(t), t: t})
		})
	}
}

// tester is what both tests and properties are.
type tester interface {
	Helper()
	Fatalf(format string, args ...any)
	Errorf(format string, args ...any)
}

// subject is a Subject with counters of its own.
type subject struct {
	Subject
	t      tester
	prefix string
}

var prefixes atomic.Int64

// counter is the name of a counter of this test alone.
func (s *subject) counter(name string) string {
	if s.prefix == "" {
		s.prefix = fmt.Sprintf("limitertest-%d-%d-", time.Now().UnixNano(), prefixes.Add(1))
	}
	return s.prefix + name
}

// bucket is a claim on a bucket that takes a day to refill.
func (s *subject) bucket(name string, limit, amount int64) ratelimit.Claim {
	return ratelimit.Claim{
		Counter: s.counter(name), Unit: ratelimit.UnitTokens, Window: ratelimit.Window{Duration: 24 * time.Hour}, Limit: limit, Amount: amount,
	}
}

func (s *subject) month(name string, limit, amount int64) ratelimit.Claim {
	return ratelimit.Claim{
		Counter: s.counter(name), Unit: ratelimit.UnitCost, Window: ratelimit.Window{Calendar: ratelimit.CalendarMonth}, Limit: limit, Amount: amount,
	}
}

func (s *subject) slot(name string, limit int64) ratelimit.Claim {
	return ratelimit.Claim{Counter: s.counter(name), Unit: ratelimit.UnitConcurrency, Limit: limit, Amount: 1}
}

func (s *subject) reserve(claims ...ratelimit.Claim) (ratelimit.Reservation, []ratelimit.Failure) {
	return s.Limiter.Reserve(context.Background(), s.Now(), claims)
}

func (s *subject) must(claims ...ratelimit.Claim) ratelimit.Reservation {
	s.t.Helper()
	r, failures := s.reserve(claims...)
	if r == nil || len(failures) > 0 {
		s.t.Fatalf("refused: %+v", failures)
	}
	return r
}

func (s *subject) refused(claims ...ratelimit.Claim) []ratelimit.Failure {
	s.t.Helper()
	r, failures := s.reserve(claims...)
	if r != nil || len(failures) == 0 {
		s.t.Fatalf("reserved what does not fit")
	}
	for _, f := range failures {
		if f.Store != "" {
			s.t.Fatalf("a counter that is used up counts as one that can't be had: %+v", f)
		}
	}
	return failures
}

// left wants a counter to have that much: so much can be reserved, and not one
// more. It takes nothing.
func (s *subject) left(want int64, c ratelimit.Claim) {
	s.t.Helper()
	c.Amount = want
	if c.Unit != ratelimit.UnitConcurrency && want >= 0 {
		r, failures := s.reserve(c)
		if r == nil {
			s.t.Fatalf("%d do not fit: %+v", want, failures)
		}
		r.Cancel(s.Now())
	}
	c.Amount = max(0, want+1+s.lag(c))
	if c.Amount > c.Limit {
		return // nothing would let that in
	}
	r, failures := s.reserve(c)
	if r != nil {
		r.Cancel(s.Now())
		s.t.Fatalf("%d fit, %d should be left", c.Amount, want)
	}
	if got := failures[0].Available; got < want || got > want+s.lag(c) {
		s.t.Errorf("%d are said to be available, want %d", got, want)
	}
}

// lag is what a bucket may have more by what passes during a test.
func (s *subject) lag(c ratelimit.Claim) int64 {
	if s.Lag == 0 || c.Window.Duration == 0 {
		return 0
	}
	return int64(float64(c.Limit)*float64(s.Lag)/float64(c.Window.Duration)) + 1
}
