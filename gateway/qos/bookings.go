package qos

import "time"

// Limits of bookings.
const (
	// maxBookings is of all tenants. One may have the part of what others leave that it
	// may have of the queue.
	maxBookings = 1 << 16
	// leastGrace is for how long at least after its time a client that was told to
	// come again is expected.
	leastGrace = 5 * time.Second
	// showing is the part of what is known of whether clients come again that one of
	// them makes.
	showing = 1.0 / 32
)

// booking is the room that a request will find which was refused: the tenant's
// other arrivals are told to come after it.
type booking struct {
	key  bookingKey
	work float64
	due  time.Time
	end  time.Time
	at   int // its place in Queue.bookings
	// waited says that its client had waited in vain, or given way: whether it comes says
	// nothing of those that were refused at once.
	waited bool
}

type bookingKey struct {
	flow *flow
	key  uint64
}

func (a *booking) before(b *booking) bool { return a.end.Before(b.end) }
func (a *booking) moved(to int)           { a.at = to }

// spread spreads keys over 0..1.
func spread(key uint64) float64 {
	return float64(key*0x9e3779b97f4a7c15>>40) / (1 << 24)
}

// bookingOf returns the booking of an arrival, if it has one.
func (q *Queue) bookingOf(e *Entry) *booking {
	if e.Key == 0 || len(q.booked) == 0 {
		return nil
	}
	for _, id := range e.Pools {
		f := q.pools[id].bands[e.Class].flows[e.Tenant]
		if f == nil || f.bookings == 0 {
			continue
		}
		if b := q.booked[bookingKey{f, e.Key}]; b != nil {
			return b
		}
	}
	return nil
}

// book keeps room for an entry that was refused, where its tenant may have one more.
func (q *Queue) book(now time.Time, f *flow, e *Entry, retry time.Duration, waited bool) {
	own := q.bookers[e.Tenant]
	left := maxBookings - len(q.bookings) + own
	if e.Key == 0 || q.booked[bookingKey{f, e.Key}] != nil || left < 1 || own > 0 && float64(own+1) > q.cfg.MaxTenantShare*float64(left) {
		return
	}
	q.bookers[e.Tenant]++
	k := &booking{key: bookingKey{f, e.Key}, work: float64(e.Work), due: now.Add(retry), waited: waited}
	k.end = k.due.Add(max(leastGrace, retry/5))
	f.bookings++
	f.queued()
	f.books(k.work)
	q.booked[k.key] = k
	q.bookings.push(k)
}

func (f *flow) books(work float64) { f.booked += work }

// unbook ends a booking; came says whether its client came.
func (q *Queue) unbook(k *booking, came bool) {
	f := k.key.flow
	if !k.waited {
		f.shows -= showing * f.shows
		if came {
			f.shows += showing
		}
	}
	f.books(-k.work)
	if f.bookings--; f.bookings == 0 {
		f.books(-f.booked)
		f.queued()
	}
	if q.bookers[f.tenant]--; q.bookers[f.tenant] == 0 {
		delete(q.bookers, f.tenant)
	}
	delete(q.booked, k.key)
	q.bookings.remove(k.at)
}

// expire ends the bookings of those that did not come.
func (q *Queue) expire(now time.Time) {
	for len(q.bookings) > 0 && q.bookings[0].end.Before(now) {
		q.unbook(q.bookings[0], false)
	}
}
