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

	// What Use has taken beyond the amount of a calendar window: of the period
	// that it was last called in, and of those before that, which are over.
	late       *counter
	lateAmount int64
	past       int64

	// Links of bucket.oldest, and what may still be given back.
	linked     bool
	refund     int64
	prev, next *hold
}

// taken is all that was taken so far.
func (h *hold) taken() int64 { return addSat(h.amount, addSat(h.lateAmount, h.past)) }

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
	axis := le.limiter.clock.at(now)
	c := h.counter
	if c.kind == kindCalendar {
		key := c.present(now)
		if c = s.counters[key]; c == nil {
			c = newCounter(key, h.limit, axis)
		}
		return c.view(now, h.limit)
	}
	c.refresh(axis, c.limitOr(h.limit))
	return c.view(now, h.limit)
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
	axis := l.clock.at(now)
	counter := s.getLocked(keyOf(&c, now), c.Limit, now, axis, l.room)
	if counter == nil {
		return false
	}
	counter.refresh(axis, c.Limit)
	if counter.kind == kindBucket {
		counter.bucket.level = subSat(counter.bucket.level, c.Amount)
		return true
	}
	counter.used = addSat(counter.used, c.Amount)
	return true
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
	axis := l.clock.at(now)
	c.refresh(axis, c.limitOr(h.limit))
	if c.kind == kindBucket {
		c.bucket.extend(h, more)
		return
	}
	present := l.presentLocked(now, axis, h)
	if h.late != present {
		h.leaveLate()
		h.late = present
		present.holds++
	}
	present.used = addSat(present.used, more)
	h.lateAmount = addSat(h.lateAmount, more)
}

// leaveLate ends what the hold has of a period that is over: it stays taken.
func (h *hold) leaveLate() {
	if h.late == nil {
		return
	}
	h.late.holds--
	h.past, h.lateAmount, h.late = addSat(h.past, h.lateAmount), 0, nil
}

// finish replaces one hold by its charge, or by what was taken for it if the
// charge is below zero.
func (l *Limiter) finish(now time.Time, h *hold, charge int64) {
	c := h.counter
	c.shard.mu.Lock()
	defer c.shard.mu.Unlock()
	axis := l.clock.at(now)
	h.ended = true
	if charge < 0 {
		charge = h.taken()
	}
	c.refresh(axis, c.limitOr(h.limit))
	if c.kind == kindCalendar {
		l.settleLate(now, axis, h, max(0, charge-h.amount))
		charge = min(charge, h.amount)
	}
	c.settle(h, charge)
	h.left = c.available(h.limit)
}

// settleLate replaces what Use has taken of a calendar window by what was used
// beyond the estimate. More than that counts in the present period, which may be
// later than the one that the request reserved in. The shard's lock is held.
func (l *Limiter) settleLate(now time.Time, axis int64, h *hold, beyond int64) {
	switch more := subSat(beyond, addSat(h.past, h.lateAmount)); {
	case more > 0:
		present := l.presentLocked(now, axis, h)
		present.used = addSat(present.used, more)
	case more < 0 && h.late != nil:
		h.late.used -= min(h.lateAmount, -more)
	}
	h.leaveLate()
}

// presentLocked is the counter of the present period of a calendar window. The
// shard's lock is held.
func (l *Limiter) presentLocked(now time.Time, axis int64, h *hold) *counter {
	c := h.counter
	key := c.present(now)
	if key != c.key {
		// What is used is never refused for want of room: the counter replaces the
		// one that it was reserved in.
		c = c.shard.getLocked(key, h.limit, now, axis, len(c.shard.list)+1)
	}
	c.touched = max(c.touched, axis)
	return c
}
