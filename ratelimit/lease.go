package ratelimit

import (
	"sync/atomic"
	"time"
)

// Lease is what one request holds of its limits until it ends. Exactly the
// first call of Settle or Cancel has an effect. It is safe for concurrent use.
type Lease struct {
	limiter *Limiter
	done    atomic.Bool
	holds   []hold
	few     [4]hold // backs holds for most requests, sparing an allocation
}

// hold is what a lease has of one counter. Its view is fixed at the
// reservation; the rest is protected by the counter's shard.
type hold struct {
	counter *counter
	amount  int64
	limit   int64
	view    View
	left    int64 // once it is settled

	// Links of bucket.oldest, and what may still be given back.
	linked     bool
	refund     int64
	prev, next *hold
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

// Settle replaces the estimates by what was used: amounts is parallel to the
// claims; a missing or negative amount charges the estimate. Slots are freed
// whatever their amount says. A bucket may go below zero.
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
		h := &le.holds[i]
		charge := h.amount
		if i < len(amounts) && amounts[i] >= 0 {
			charge = amounts[i]
		}
		le.limiter.finish(now, h, charge)
	}
	le.limiter.open.Add(-1)
}

// Cancel gives everything back; nothing is charged.
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

// View is claim i's counter right after the reservation, this request's own
// amounts taken.
func (le *Lease) View(i int) View { return le.holds[i].view }

// Available is what claim i's counter had to give right after Settle or Cancel,
// below zero while it owes; it must not be called before. Of a calendar window it
// is the period that the reservation was made in.
func (le *Lease) Available(i int) int64 { return le.holds[i].left }

// Charge takes an amount that was used without a reservation, whether or not it
// fits: the counter may owe afterwards. It reports false, and takes nothing, if the
// counter does not exist and no more may be held. A slot that was never taken is
// not charged. It panics on a claim that no checked policy makes, like Reserve.
func (l *Limiter) Charge(now time.Time, c Claim) bool {
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

// finish replaces one hold by its charge.
func (l *Limiter) finish(now time.Time, h *hold, charge int64) {
	c := h.counter
	s := c.shard
	s.mu.Lock()
	defer s.mu.Unlock()
	axis := l.clock.at(now)
	if c.kind == kindBucket {
		c.refresh(axis, c.bucket.limit)
	} else {
		c.refresh(axis, h.limit)
	}
	if c.kind == kindCalendar && charge > h.amount {
		over := charge - h.amount
		charge = h.amount
		l.carryOver(now, axis, c, h, over)
	}
	c.settle(h, charge)
	h.left = c.available(h.limit)
}

// carryOver counts what a request used beyond its estimate in the present
// period of its calendar window, which may be later than the one it reserved
// in. The shard's lock is held.
func (l *Limiter) carryOver(now time.Time, axis int64, c *counter, h *hold, over int64) {
	key := c.key
	key.period = max(key.period, periodOf(key.window.Calendar, now).start.Unix())
	present := c
	if key != c.key {
		// A settlement is never refused for want of room: its counter replaces
		// the one it came from.
		present = c.shard.getLocked(key, h.limit, now, axis, len(c.shard.list)+1)
	}
	present.used = addSat(present.used, over)
	present.touched = max(present.touched, axis)
}
