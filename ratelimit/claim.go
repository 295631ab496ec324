package ratelimit

import (
	"fmt"
	"math"
	"time"
)

// Unit is what a claim counts.
type Unit string

// Units of claims. The limiter itself tells only UnitConcurrency from the
// others; the names keep counters of different units apart.
const (
	UnitRequests     Unit = "requests"
	UnitInputTokens  Unit = "input_tokens"
	UnitOutputTokens Unit = "output_tokens"
	UnitTokens       Unit = "tokens"
	UnitCost         Unit = "cost"
	UnitConcurrency  Unit = "concurrency"
)

// Calendar windows.
const (
	CalendarDay   = "day"
	CalendarMonth = "month"
)

// Window is the time over which a limit holds: a Duration for a bucket, or a
// Calendar unit (UTC). A concurrency claim has the zero Window.
type Window struct {
	Duration time.Duration
	Calendar string
}

// String is the window as policies write it.
func (w Window) String() string {
	if w.Calendar != "" {
		return w.Calendar
	}
	return w.Duration.String()
}

// Claim is one limit that applies to a request, and how much of it the
// request needs.
type Claim struct {
	// Counter is the counter's full identity. Claims with equal Counter, Unit
	// and Window share one counter; a changed unit or window starts a new one.
	Counter string
	Unit    Unit
	Window  Window
	// Limit is the size of the limit as of this request, 0 or more. It may
	// change from call to call; what has been used stays used.
	Limit int64
	// Amount is the estimate to reserve, 0 or more. For concurrency it is the
	// number of slots, usually 1.
	Amount int64
	// Rule and Tenant say whose counter it is: the limit of a policy, and who has
	// sent the request. They are no part of its identity, and keep one rule or
	// tenant from taking the room of all others. Without a rule it is nobody's.
	Rule, Tenant string
	// OnStoreError is Deny, Allow or Local: what the caller does where the counter
	// can't be had (Failure.Store). Empty means Deny. A limiter may order its work
	// by it; its answers are the same.
	OnStoreError string
	// LocalFraction is the part of Limit that a Local claim may have of this
	// process alone, above 0 and at most 1; 0 means all of it.
	LocalFraction float64
}

// Never is the Wait of a claim that no passing of time would make fit: its
// amount is above its limit.
const Never = time.Duration(math.MaxInt64)

// Failure is one claim that did not fit.
type Failure struct {
	// Index is the claim's position in the argument of Reserve.
	Index int
	// Available is what the counter had to give, below zero while it owes.
	Available int64
	// Wait is how long until the claim would fit if nothing else were sent: the
	// refill of a bucket, the boundary of a calendar window, one second for a
	// slot, or Never.
	Wait time.Duration
	// View is the counter as a client may see it.
	View View
	// Store says why the counter could not be had; empty when it could and has too
	// little. Wait is then one second, and Available and View.Remaining are 0.
	Store StoreState
}

// View is a counter as the rate limit headers show it.
type View struct {
	// Limit is the size of the limit.
	Limit int64
	// Remaining is what is left, never below zero.
	Remaining int64
	// Reset is how long until the limit is whole again if nothing more is sent;
	// 0 for concurrency.
	Reset time.Duration
}

// check finds claims that can only come from a bug of the caller: policies are
// checked at load, and negative limits and estimates are evaluation errors.
func (c *Claim) check() error {
	switch {
	case c.Counter == "":
		return fmt.Errorf("a claim has no counter")
	case c.Limit < 0:
		return fmt.Errorf("claim on a %s limit has the negative limit %d", c.Unit, c.Limit)
	case c.Amount < 0:
		return fmt.Errorf("claim on a %s limit has the negative amount %d", c.Unit, c.Amount)
	}
	w := c.Window
	if c.Unit == UnitConcurrency {
		if w != (Window{}) {
			return fmt.Errorf("a concurrency claim has the window %s", w)
		}
		return nil
	}
	switch {
	case w.Calendar == "" && w.Duration > 0 && w.Duration <= maxWindow:
		return nil
	case w.Duration == 0 && (w.Calendar == CalendarDay || w.Calendar == CalendarMonth):
		return nil
	}
	return fmt.Errorf("claim on a %s limit has the unusable window {%v %q}", c.Unit, w.Duration, w.Calendar)
}

// maxWindow bounds bucket windows so that the arithmetic of a refill fits
// 128 bits with room to spare; policies allow 24 hours.
const maxWindow = 366 * 24 * time.Hour
