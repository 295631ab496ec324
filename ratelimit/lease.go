package ratelimit

import (
	"context"
	"sync/atomic"
	"time"
)

// Lease is the Reservation of a Limiter.
type Lease struct {
	limiter *Limiter
	done    atomic.Bool
	holds   []hold
	few     [4]hold // backs holds for most requests, sparing an allocation
}

var _ Reservation = (*Lease)(nil)

// hold is what a lease has of one counter. What was reserved, the limit and the
// view are fixed at the reservation; the rest is protected by the counter's
// shard.
type hold struct {
	counter  *counter
	reserved int64
	limit    int64
	view     View

	ended  bool
	amount int64 // taken of counter: what was reserved and, of a bucket, what Use has added
	left   int64 // once it is settled

	// What was taken beyond the amount of a calendar window: in the period of the
	// last time that there was more, and in those before that, which are over.
	late       *counter
	lateAmount int64
	earlier    []Booking

	// Links of bucket.oldest, and what may still be given back.
	linked     bool
	refund     int64
	prev, next *hold
}

// taken is all that was taken so far.
func (h *hold) taken() int64 { return addSat(h.amount, h.beyond()) }

// beyond is what was taken beyond the amount of a calendar window.
func (h *hold) beyond() int64 {
	sum := h.lateAmount
	for _, b := range h.earlier {
		sum = addSat(sum, b.Amount)
	}
	return sum
}

func newLease(l *Limiter, n int) *Lease {
	le := &Lease{limiter: l}
	if n <= len(le.few) {
		le.holds = le.few[:n]
	} else {
		le.holds = make([]hold, n)
	}
	return le
}

// Use implements Reservation. A bucket goes below zero where it must, and what
// was taken so can be given back like the rest. In a calendar window it counts in
// the period that holds now.
func (le *Lease) Use(now time.Time, used []int64) {
	if le.done.Load() {
		return
	}
	for i := range le.holds[:min(len(le.holds), len(used))] {
		if h := &le.holds[i]; used[i] > h.reserved && h.counter.kind != kindSlots {
			le.limiter.use(now, h, used[i])
		}
	}
}

// Settle implements Reservation.
//
// A reservation in a calendar window is settled in the period it was made in.
// If that is over by now, what was used beyond the estimate counts in the
// present one: a new period forgives no overrun, and gains nothing from a
// refund of the old.
func (le *Lease) Settle(now time.Time, amounts []int64) {
	if !le.done.CompareAndSwap(false, true) {
		return
	}
	le.limiter.settled.Add(1)
	for i := range le.holds {
		charge := int64(-1)
		if i < len(amounts) {
			charge = amounts[i]
		}
		le.limiter.finish(now, &le.holds[i], charge)
	}
	le.limiter.open.Add(-1)
}

// Cancel implements Reservation.
func (le *Lease) Cancel(now time.Time) {
	if !le.done.CompareAndSwap(false, true) {
		return
	}
	le.limiter.cancelled.Add(1)
	for i := range le.holds {
		le.limiter.finish(now, &le.holds[i], 0)
	}
	le.limiter.open.Add(-1)
}

// View implements Reservation.
func (le *Lease) View(i int) View { return le.holds[i].view }

// ViewNow implements Reservation.
func (le *Lease) ViewNow(now time.Time, i int) View {
	h := &le.holds[i]
	s := h.counter.shard
	s.mu.Lock()
	defer s.mu.Unlock()
	m := le.limiter.clock.at(now)
	c := h.counter
	if c.kind == kindCalendar {
		key := c.present(m)
		if c = s.counters[key]; c == nil {
			c = newCounter(key, h.limit, m.axis)
		}
		c.lookElsewhere(&le.limiter.elsewhere)
		return c.view(m, h.limit)
	}
	c.refresh(m.axis, c.limitOr(h.limit))
	return c.view(m, h.limit)
}

// Available implements Reservation.
func (le *Lease) Available(i int) int64 { return le.holds[i].left }

// Charge takes an amount that was used without a reservation, whether or not it
// fits: the counter may owe afterwards. It reports false, and takes nothing, if the
// counter does not exist and no more may be held. A slot that was never taken is
// not charged. It panics on a claim that no checked policy makes, like Reserve,
// and like it never waits.
func (l *Limiter) Charge(_ context.Context, now time.Time, c Claim) bool {
	if err := c.check(); err != nil {
		panic("BUG: " + err.Error())
	}
	if c.Unit == UnitConcurrency {
		return true
	}
	s := l.shardOf(c.Counter)
	s.mu.Lock()
	defer s.mu.Unlock()
	m := l.clock.at(now)
	counter := l.admitLocked(s, m, &c)
	if counter == nil {
		return false
	}
	counter.refresh(m.axis, c.Limit)
	if counter.kind == kindBucket {
		counter.bucket.level = subSat(counter.bucket.level, c.Amount)
		return true
	}
	counter.used = addSat(counter.used, c.Amount)
	return true
}

// Bookings implements Booker.
func (le *Lease) Bookings(i int) []Booking {
	h := &le.holds[i]
	c := h.counter
	if c.kind != kindCalendar {
		return nil
	}
	c.shard.mu.Lock()
	defer c.shard.mu.Unlock()
	var out []Booking
	for _, b := range h.earlier {
		out = book(out, b)
	}
	if h.late != nil {
		out = book(out, h.late.booking(h.lateAmount))
	}
	return book(out, c.booking(h.amount))
}

// book adds a booking to those of its period.
func book(to []Booking, b Booking) []Booking {
	if b.Amount == 0 {
		return to
	}
	for i := range to {
		if to[i].Period.Equal(b.Period) {
			to[i].Amount = addSat(to[i].Amount, b.Amount)
			return to
		}
	}
	return append(to, b)
}

// use takes what a request has used beyond what was taken for it.
func (l *Limiter) use(now time.Time, h *hold, used int64) {
	c := h.counter
	c.shard.mu.Lock()
	defer c.shard.mu.Unlock()
	more := subSat(used, h.taken())
	if h.ended || more <= 0 {
		return
	}
	m := l.clock.at(now)
	c.refresh(m.axis, c.limitOr(h.limit))
	if c.kind == kindBucket {
		c.bucket.extend(h, more)
		return
	}
	l.takeLate(m, h, more)
}

// takeLate counts more of a calendar window in the period that holds the moment.
// The shard's lock is held.
func (l *Limiter) takeLate(m moment, h *hold, more int64) {
	present := l.presentLocked(m, h)
	if h.late != present {
		if h.late != nil {
			h.earlier = append(h.earlier, h.late.booking(h.lateAmount)) // over, and final
			h.late.holds--
		}
		h.late, h.lateAmount = present, 0
		present.holds++
	}
	present.used = addSat(present.used, more)
	h.lateAmount = addSat(h.lateAmount, more)
}

// finish replaces one hold by its charge, or by what was taken for it if the
// charge is below zero.
func (l *Limiter) finish(now time.Time, h *hold, charge int64) {
	c := h.counter
	c.shard.mu.Lock()
	defer c.shard.mu.Unlock()
	m := l.clock.at(now)
	h.ended = true
	if charge < 0 {
		charge = h.taken()
	}
	c.refresh(m.axis, c.limitOr(h.limit))
	if c.kind == kindCalendar {
		l.settleLate(m, h, max(0, subSat(charge, h.amount)))
		charge = min(charge, h.amount)
	}
	c.settle(h, charge)
	h.amount = charge
	h.left = c.available(h.limit)
}

// settleLate replaces what was taken of a calendar window beyond the estimate by
// what was used. More than that counts in the present period, which may be later
// than the one that the request reserved in. The shard's lock is held.
func (l *Limiter) settleLate(m moment, h *hold, beyond int64) {
	switch more := subSat(beyond, h.beyond()); {
	case more > 0:
		l.takeLate(m, h, more)
	case more < 0 && h.late != nil:
		back := min(h.lateAmount, -more)
		h.late.used -= back
		h.lateAmount -= back
	}
	if h.late != nil {
		h.late.holds--
	}
}

// presentLocked is the counter of the present period of a calendar window. What
// was used is never refused for want of room: the counter replaces the one that
// it was reserved in. The shard's lock is held.
func (l *Limiter) presentLocked(m moment, h *hold) *counter {
	s, key := h.counter.shard, h.counter.present(m)
	c := s.counters[key]
	if c == nil {
		c = l.makeLocked(s, key, h.limit, m)
		if c.shares = h.counter.shares; c.shares[0] != nil {
			for _, sh := range c.shares {
				sh.count++
			}
		}
	}
	c.touched = max(c.touched, m.axis)
	return c
}
