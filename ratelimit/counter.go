package ratelimit

import "time"

type counterKind uint8

const (
	kindBucket counterKind = iota
	kindCalendar
	kindSlots
)

// counterKey is a counter's identity. A calendar window has one counter for
// each of its periods, so that a clock that jumps over a boundary and comes
// back finds its count again: the jump neither grants nor locks.
type counterKey struct {
	name   string
	unit   Unit
	window Window
	period int64 // Unix seconds of the period's start; 0 for other kinds
}

func keyOf(c *Claim, m moment) counterKey {
	k := counterKey{name: c.Counter, unit: c.Unit, window: c.Window}
	if c.Window.Calendar != "" {
		k.period = periodOf(c.Window.Calendar, m.time()).start.Unix()
	}
	return k
}

// counter is one counter of any kind. Its shard's mutex protects it.
type counter struct {
	key     counterKey
	shard   *shard
	shares  [2]*share // whose it is: the rule's, and the tenant's within it; nil for nobody's
	kind    counterKind
	holds   int   // open holds
	touched int64 // axis time of the last use

	// Scratch of the Reserve that holds the lock: pinned keeps a counter that
	// it has looked up from being swept, planned is what its earlier claims on
	// the same counter take.
	pinned  bool
	planned int64

	used   int64 // slots taken, or counted in this period
	others int64 // counted in this period elsewhere, as of asOf
	asOf   *elsewhere
	bucket bucket // kindBucket only
}

func newCounter(key counterKey, limit, now int64) *counter {
	c := &counter{key: key, touched: now}
	switch {
	case key.unit == UnitConcurrency:
		c.kind = kindSlots
	case key.window.Calendar != "":
		c.kind = kindCalendar
	default:
		c.kind = kindBucket
		c.bucket = newBucket(key.window.Duration, limit, now)
	}
	return c
}

// present is the key of the counter's calendar window at a moment: never an
// earlier period.
func (c *counter) present(m moment) counterKey {
	key := c.key
	key.period = max(key.period, periodOf(key.window.Calendar, m.time()).start.Unix())
	return key
}

// booking is an amount in the counter's calendar period.
func (c *counter) booking(amount int64) Booking {
	return Booking{Period: time.Unix(c.key.period, 0).UTC(), Amount: amount}
}

// limitOr is the limit that is in force: a bucket's own, or else the holder's.
func (c *counter) limitOr(limit int64) int64 {
	if c.kind == kindBucket {
		return c.bucket.limit
	}
	return limit
}

// refresh brings the counter to now and, for a bucket, puts the limit in force.
func (c *counter) refresh(now, limit int64) {
	c.touched = max(c.touched, now)
	if c.kind == kindBucket {
		c.bucket.refresh(now, limit)
	}
}

// available is what may be taken, below zero while the counter owes.
func (c *counter) available(limit int64) int64 {
	if c.kind == kindBucket {
		return c.bucket.level
	}
	return subSat(limit, addSat(c.used, c.others))
}

// wait is how long until want could be taken if nothing else happened.
func (c *counter) wait(m moment, want, limit int64) time.Duration {
	switch {
	case want > limit || limit == 0:
		return Never
	case c.available(limit) >= want:
		return 0
	case c.kind == kindBucket:
		return c.bucket.wait(want)
	case c.kind == kindCalendar:
		return periodOf(c.key.window.Calendar, m.time()).left(m)
	default:
		return time.Second
	}
}

func (c *counter) take(h *hold) {
	c.holds++
	if c.kind == kindBucket {
		c.bucket.take(h)
		return
	}
	c.used = addSat(c.used, h.amount)
}

// settle replaces the hold's amount by the charge.
func (c *counter) settle(h *hold, charge int64) {
	c.holds--
	switch c.kind {
	case kindBucket:
		c.bucket.settle(h, charge)
	case kindCalendar:
		c.used = max(0, addSat(c.used, charge-h.amount))
	case kindSlots:
		if c.used < h.amount {
			panic("BUG: more slots freed than taken")
		}
		c.used -= h.amount
	}
}

func (c *counter) view(m moment, limit int64) View {
	v := View{Limit: limit, Remaining: max(0, c.available(limit))}
	switch c.kind {
	case kindBucket:
		v.Reset = c.bucket.wait(c.bucket.limit)
	case kindCalendar:
		v.Reset = periodOf(c.key.window.Calendar, m.time()).left(m)
	}
	return v
}

// calendarLinger is how long a calendar counter is kept after its last use
// before its period counts as over, so that a clock gone wrong for less than a
// day does not lose a count.
const calendarLinger = int64(24 * time.Hour)

// slotLinger spares a caller's slots from being made anew for each request.
const slotLinger = int64(time.Minute)

// idle reports whether forgetting the counter can't be noticed, at least not to
// anyone's gain: nothing is held of it and
//   - all slots are free, and have been for a while;
//   - the calendar count is zero or its period is over;
//   - the bucket is full and was untouched for a whole window, so that it would
//     be full under any limit it may have next.
func (c *counter) idle(m moment) bool {
	if c.holds > 0 {
		return false
	}
	switch c.kind {
	case kindSlots:
		return c.used == 0 && m.axis-c.touched >= slotLinger
	case kindCalendar:
		over := periodOf(c.key.window.Calendar, m.time()).start.Unix() > c.key.period
		return c.used == 0 || over && m.axis-c.touched >= calendarLinger
	}
	if m.axis-c.touched < int64(c.key.window.Duration) {
		return false
	}
	c.bucket.refresh(m.axis, c.bucket.limit)
	return c.bucket.full()
}
