package ratelimit

import "time"

// Reservation is what one request holds of its limits until it ends, whatever
// kind of limiter gave it. Exactly the first call of Settle or Cancel has an
// effect. It is safe for concurrent use.
//
// Package limitertest holds every implementation to this.
type Reservation interface {
	// View is claim i's counter right after the reservation, this request's own
	// amounts taken.
	View(i int) View
	// ViewNow is claim i's counter as it is at now, which a limiter that shares
	// its counters may know only as it last saw it. Of a calendar window it is
	// the period that holds now.
	ViewNow(now time.Time, i int) View
	// Use tells what the request has used so far; used is parallel to the claims.
	// What is beyond the amount of a claim is taken at once, whether or not it
	// fits. It is monotone: less than was told before, a missing or a negative
	// value changes nothing, nor does any call after Settle or Cancel. Slots have
	// no use.
	Use(now time.Time, used []int64)
	// Settle replaces the amounts, and what Use has taken, by what was used in
	// the end: amounts is parallel to the claims. A missing or negative amount
	// charges the estimate, or what Use has taken if that is more. Slots are freed
	// whatever their amount says. A counter may owe afterwards.
	Settle(now time.Time, amounts []int64)
	// Cancel gives everything back; nothing is charged.
	Cancel(now time.Time)
	// Available is what claim i's counter had to give right after Settle or
	// Cancel, below zero while it owes; it must not be called before. Of a
	// calendar window it is the period that the reservation was made in.
	Available(i int) int64
}

// Booking is what was charged in one period of a calendar window.
type Booking struct {
	// Period is its beginning, in UTC.
	Period time.Time
	Amount int64
}

// Booker is a Reservation that knows the periods it was charged in.
type Booker interface {
	// Bookings are the charges of claim i by period, once it is settled: none where
	// nothing was charged, or the window is no calendar's.
	Bookings(i int) []Booking
}

// StoreState says why a counter can't be had, as opposed to being used up. The
// zero value means that it can.
type StoreState string

// What may be wrong with where the counters are.
const (
	// StoreOverflow: the counter does not exist, and no more may be held.
	StoreOverflow StoreState = "overflow"
	// StoreDown: the store of the counters does not answer.
	StoreDown StoreState = "down"
	// StoreSlow: it has not answered in time.
	StoreSlow StoreState = "slow"
)

// What Claim.OnStoreError may ask for, in the words of the policy format.
const (
	OnStoreErrorDeny  = "Deny"
	OnStoreErrorAllow = "Allow"
	OnStoreErrorLocal = "Local"
)
