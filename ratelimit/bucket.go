package ratelimit

import (
	"math"
	"math/bits"
	"time"
)

// bucket is a token bucket in exact arithmetic. Its level is
// level + frac/window tokens, and refilling adds limit × elapsed/window to it
// without a remainder lost.
//
// A refund may arrive long after its reservation, when the bucket has already
// refilled what was taken. Giving it back in full would then let more than the
// limit through at once: the bucket would be full, and the refund on top. So
// the bucket also knows what its open holds may still give back, and keeps
//
//	level + what may still come back <= limit
//
// at all times: when a refill would break that, the oldest holds lose that much
// of their refund. For one hold this is the level the bucket would have had if
// the true charge had been known from the start.
type bucket struct {
	window uint64 // nanoseconds
	limit  int64  // in force since the last refresh
	level  int64  // whole tokens, negative while owing
	frac   uint64 // of a token, in 1/window; below window
	last   int64  // the axis time up to which the bucket is refilled

	// The open holds with something left to give back, oldest first. Their sum,
	// less lost/window of a token that the oldest has lost already, may return.
	oldest, newest *hold
	refunds        int64
	lost           uint64
}

func newBucket(window time.Duration, limit, now int64) bucket {
	return bucket{window: uint64(window), limit: limit, level: limit, last: now}
}

// refresh refills the bucket up to now, under the limit that was in force, and
// puts a new one in force. A lower limit cuts the level to its size; a higher
// one adds nothing at once; a debt stays.
func (b *bucket) refresh(now, limit int64) {
	if now > b.last {
		b.refill(uint64(now - b.last))
		b.last = now
	}
	if limit != b.limit {
		b.limit = limit
		b.clamp()
	}
	b.trimRefunds()
}

func (b *bucket) refill(elapsed uint64) {
	hi, lo := bits.Mul64(uint64(b.limit), elapsed)
	lo, carry := bits.Add64(lo, b.frac, 0)
	hi += carry
	if hi >= b.window {
		b.level, b.frac = b.limit, 0
		return
	}
	whole, frac := bits.Div64(hi, lo, b.window)
	if whole > math.MaxInt64 {
		whole = math.MaxInt64
	}
	b.level, b.frac = addSat(b.level, int64(whole)), frac
	b.clamp()
}

func (b *bucket) clamp() {
	if b.level >= b.limit {
		b.level, b.frac = b.limit, 0
	}
}

// trimRefunds restores level + refunds <= limit at the cost of the oldest holds.
func (b *bucket) trimRefunds() {
	if b.oldest == nil {
		return
	}
	over := addSat(b.level, b.refunds-b.limit)
	if over < 0 || over == 0 && b.frac <= b.lost {
		return
	}
	for h := b.oldest; h != nil; h = b.oldest {
		if over < h.refund {
			h.refund -= over
			b.refunds -= over
			b.lost = b.frac
			return
		}
		over -= h.refund
		b.drop(h)
	}
}

// take moves h.amount out of the bucket, whatever its level, and remembers that
// it may come back.
func (b *bucket) take(h *hold) {
	b.level = subSat(b.level, h.amount)
	if h.amount == 0 {
		return
	}
	// A sum beyond int64 can't be refunded by any sequence that kept the
	// invariant, so the newest hold simply starts with less.
	h.refund = min(h.amount, math.MaxInt64-b.refunds)
	b.refunds += h.refund
	b.link(h)
}

// extend takes more for a hold that is open, whatever the level, and remembers
// that it may come back. The bucket must be refreshed.
func (b *bucket) extend(h *hold, more int64) {
	b.level = subSat(b.level, more)
	h.amount = addSat(h.amount, more)
	back := min(more, math.MaxInt64-b.refunds)
	if !h.linked {
		// Nothing was left to give back: it is as good as a new reservation.
		h.refund = back
		b.refunds += back
		b.link(h)
		return
	}
	h.refund += back
	b.refunds += back
}

// link puts h at the end of the list of those that may give back.
func (b *bucket) link(h *hold) {
	h.prev, h.next = b.newest, nil
	if b.newest != nil {
		b.newest.next = h
	} else {
		b.oldest = h
	}
	b.newest = h
	h.linked = true
}

// settle replaces h.amount by the charge. The bucket must be refreshed.
func (b *bucket) settle(h *hold, charge int64) {
	if charge >= h.amount {
		b.level = subSat(b.level, charge-h.amount)
		b.drop(h)
		return
	}
	if !h.linked {
		return
	}
	back := h.amount - charge
	lost := uint64(0)
	if back >= h.refund {
		back = h.refund
		if h == b.oldest {
			lost = b.lost
		}
	}
	b.level = addSat(b.level, back)
	if b.frac < lost {
		b.level--
		b.frac += b.window
	}
	b.frac -= lost
	b.clamp()
	b.drop(h)
}

// drop takes h off the list of those that may give back.
func (b *bucket) drop(h *hold) {
	if !h.linked {
		return
	}
	if h == b.oldest {
		b.lost = 0
		b.oldest = h.next
	} else {
		h.prev.next = h.next
	}
	if h == b.newest {
		b.newest = h.prev
	} else {
		h.next.prev = h.prev
	}
	b.refunds -= h.refund
	h.refund, h.prev, h.next, h.linked = 0, nil, nil, false
}

// wait is how long until the level reaches want if nothing is taken.
func (b *bucket) wait(want int64) time.Duration {
	if b.level >= want {
		return 0
	}
	if want > b.limit || b.limit == 0 {
		return Never
	}
	// (want-level) × window - frac, over limit, rounded up.
	hi, lo := bits.Mul64(uint64(want)-uint64(b.level), b.window)
	lo, borrow := bits.Sub64(lo, b.frac, 0)
	hi -= borrow
	lo, carry := bits.Add64(lo, uint64(b.limit)-1, 0)
	hi += carry
	if hi >= uint64(b.limit) {
		return Never - 1
	}
	ns, _ := bits.Div64(hi, lo, uint64(b.limit))
	if ns >= math.MaxInt64 {
		return Never - 1
	}
	return time.Duration(ns)
}

func (b *bucket) full() bool { return b.level == b.limit }

// addSat and subSat are sums that stay at the ends of int64.
func addSat(a, b int64) int64 {
	s := a + b
	if b > 0 && s < a {
		return math.MaxInt64
	}
	if b < 0 && s > a {
		return math.MinInt64
	}
	return s
}

func subSat(a, b int64) int64 {
	d := a - b
	if b > 0 && d > a {
		return math.MinInt64
	}
	if b < 0 && d < a {
		return math.MaxInt64
	}
	return d
}
