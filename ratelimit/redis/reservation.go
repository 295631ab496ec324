package redis

import (
	"sync/atomic"
	"time"

	"github.com/sluicegate/sluice/ratelimit"
)

// reservation implements ratelimit.Reservation.
type reservation struct {
	limiter *Limiter
	done    atomic.Bool
	holds   []hold
	few     [4]hold // backs holds for most requests, sparing an allocation
}

// hold is what a reservation has of one counter. What follows view is protected by
// the counter's shard.
type hold struct {
	counter *counter
	batch   *batch // nil for slots
	amount  int64
	limit   int64
	at      int64 // when it was taken
	view    ratelimit.View

	ended bool
	// What Use has taken beyond amount: in the present period of a calendar window,
	// and in those before it.
	extra, past int64
	extraPeriod int64
	extraAt     int64
	left        int64 // once it is settled
}

func newReservation(l *Limiter, n int) *reservation {
	r := &reservation{limiter: l}
	if n <= len(r.few) {
		r.holds = r.few[:n]
	} else {
		r.holds = make([]hold, n)
	}
	return r
}

// View implements ratelimit.Reservation.
func (r *reservation) View(i int) ratelimit.View { return r.holds[i].view }

// Available implements ratelimit.Reservation. It is as far as this replica knows.
func (r *reservation) Available(i int) int64 { return r.holds[i].left }

// ViewNow implements ratelimit.Reservation. What other replicas have used since the
// store was last heard of is not in it.
func (r *reservation) ViewNow(_ time.Time, i int) ratelimit.View {
	h, l := &r.holds[i], r.limiter
	s := l.shardFor(h.counter)
	s.mu.Lock()
	defer s.mu.Unlock()
	return h.counter.view(l.mono(), h.limit)
}

// Use implements ratelimit.Reservation.
func (r *reservation) Use(_ time.Time, used []int64) {
	if r.done.Load() {
		return
	}
	for i := range r.holds[:min(len(r.holds), len(used))] {
		if h := &r.holds[i]; used[i] > h.amount && h.counter.kind != kindSlots {
			r.limiter.use(h, min(used[i], most))
		}
	}
}

// Settle implements ratelimit.Reservation.
func (r *reservation) Settle(_ time.Time, amounts []int64) {
	if !r.done.CompareAndSwap(false, true) {
		return
	}
	l := r.limiter
	l.settled.Add(1)
	for i := range r.holds {
		amount := int64(-1)
		if i < len(amounts) {
			amount = min(amounts[i], most)
		}
		l.finish(&r.holds[i], amount)
	}
	l.open.Add(-1)
}

// Cancel implements ratelimit.Reservation.
func (r *reservation) Cancel(time.Time) {
	if !r.done.CompareAndSwap(false, true) {
		return
	}
	l := r.limiter
	l.cancelled.Add(1)
	for i := range r.holds {
		l.finish(&r.holds[i], 0)
	}
	l.open.Add(-1)
}

// use takes what a request has used beyond what was taken for it.
func (l *Limiter) use(h *hold, used int64) {
	c := h.counter
	s := l.shardFor(c)
	s.mu.Lock()
	defer s.mu.Unlock()
	more := used - h.amount - h.extra - h.past
	if h.ended || more <= 0 {
		return
	}
	if h.extraPeriod != c.period {
		h.past, h.extra, h.extraPeriod = h.past+h.extra, 0, c.period
	}
	if h.extra == 0 {
		h.extraAt = l.mono()
	}
	h.extra += more
	c.owe(more)
	s.queue(c)
}

// owe charges what no reservation covers.
func (c *counter) owe(n int64) {
	c.beyond = add(c.beyond, n)
	c.free = add(c.free, -n)
}

// finish replaces one hold by its charge, or by what was taken for it if the charge
// is below zero.
func (l *Limiter) finish(h *hold, charge int64) {
	c := h.counter
	s := l.shardFor(c)
	s.mu.Lock()
	defer s.mu.Unlock()
	now := l.mono()
	h.ended = true
	c.open--
	c.usedAt = now
	s.queue(c)
	if c.kind == kindSlots {
		c.release(h.amount)
		h.left = c.left(now)
		return
	}
	if charge < 0 {
		charge = h.amount + h.extra + h.past
	}
	switch beyond := charge - h.amount - h.extra - h.past; {
	case beyond >= 0:
		c.owe(beyond)
	case h.extra > 0 && h.extraPeriod == c.period:
		c.unowe(min(h.extra, -beyond), h.extraAt, now)
	}
	c.settle(h, min(charge, h.amount), now)
	h.left = c.left(now)
	if c.refusedUntil > now && len(c.settles) > 0 {
		l.kick() // others wait for what only the store can give back
	}
}

// release frees slots.
func (c *counter) release(n int64) {
	c.inUse -= n
	if own := min(n, c.force); own > 0 { // the store does not know of it yet
		c.force -= own
		n -= own
	}
	c.free += n
}

// unowe gives back what was charged at once at that time. Of a bucket, what may have
// been refilled since does not come back: the level would have been lower, and the
// refill lost.
func (c *counter) unowe(whole, at, now int64) {
	n := whole - c.refilled(now-at)
	if n <= 0 {
		return
	}
	untold := min(n, c.beyond)
	c.beyond -= untold
	c.free += n
	if n -= untold; n > 0 {
		c.settles = append(c.settles, settlement{back: n, given: n, whole: whole - untold, at: at})
	}
}

// settle ends the reservation proper; charge is at most its amount.
func (c *counter) settle(h *hold, charge, now int64) {
	b := h.batch
	if b.session != c.session || b.period != c.period {
		return // it was taken of a lease that is over; what it gives back is too
	}
	back := h.amount - charge
	if !b.told {
		c.taken -= h.amount
		c.spent += charge
		c.free += back
		return
	}
	// What the bucket may have refilled meanwhile is for the store to say.
	given := max(0, back-c.refilled(now-h.at))
	c.free += given
	for i := range c.settles {
		if s := &c.settles[i]; s.batch == b {
			s.amount, s.back, s.given, s.whole = s.amount+h.amount, s.back+back, s.given+given, s.whole+back
			s.at = min(s.at, h.at)
			return
		}
	}
	c.settles = append(c.settles, settlement{batch: b, amount: h.amount, back: back, given: given, whole: back, at: h.at})
}
