package redis

import (
	"sync/atomic"
	"time"
)

// Stats are totals since the limiter was made, and what it is like now.
type Stats struct {
	State State
	// Since is when the store was last up, zero while it is, Error what it died of.
	Since time.Time
	Error string
	// Replicas is how many share the counters, this one included, as last heard.
	Replicas int
	// Counters and OpenReservations are held now. Untold counts the counters that
	// have something to be reported, among others.
	Counters, OpenReservations, Untold int
	// Reserved, Refused, Settled and Cancelled count calls that had an effect.
	Reserved, Refused, Settled, Cancelled uint64
	// Decisions by what made them: leases alone, an answer of the store, or what
	// was known here of a refusal.
	ByLease, ByStore, ByMemory uint64
	// Losses counts sessions that the store did not know any more, Overflows claims
	// refused because no more counters may be known here.
	Losses, Overflows uint64
	// Trips are the times of the requests' round trips.
	Trips Histogram
}

// Stats sums over all counters; it takes each shard's lock for a moment.
func (l *Limiter) Stats() Stats {
	st := Stats{
		State: l.health.state(), Replicas: int(l.near.Load()), OpenReservations: int(l.open.Load()),
		Reserved: l.reserved.Load(), Refused: l.refused.Load(), Settled: l.settled.Load(), Cancelled: l.cancelled.Load(),
		ByLease: l.byLease.Load(), ByStore: l.byStore.Load(), ByMemory: l.byMemory.Load(), Losses: l.losses.Load(),
		Trips: l.trips.read(),
	}
	if l.session.Load() == nil { // it answers, but has to be told first what is in use
		st.State = StateDown
	}
	l.health.mu.Lock()
	st.Since, st.Error = l.health.since, l.health.err
	l.health.mu.Unlock()
	for i := range l.shards {
		s := &l.shards[i]
		s.mu.Lock()
		st.Counters += len(s.list)
		st.Untold += len(s.dirty)
		st.Overflows += s.overflows
		s.mu.Unlock()
	}
	return st
}

// TripBuckets is how many bounds Stats.Trips has.
const TripBuckets = len(tripBounds)

// tripBounds are the upper bounds of the histogram of round trips.
var tripBounds = [...]time.Duration{
	100 * time.Microsecond, 200 * time.Microsecond, 500 * time.Microsecond, time.Millisecond, 2 * time.Millisecond,
	5 * time.Millisecond, 10 * time.Millisecond, 20 * time.Millisecond, 50 * time.Millisecond,
}

// Histogram is one of durations: Counts are cumulative, as many as Bounds.
type Histogram struct {
	Bounds []time.Duration
	Counts []uint64
	Count  uint64
	Sum    time.Duration
}

// histogram counts durations.
type histogram struct {
	counts [len(tripBounds) + 1]atomic.Uint64
	sum    atomic.Int64
}

func (h *histogram) observe(d time.Duration) {
	i := 0
	for i < len(tripBounds) && d > tripBounds[i] {
		i++
	}
	h.counts[i].Add(1)
	h.sum.Add(int64(d))
}

func (h *histogram) read() Histogram {
	out := Histogram{Bounds: tripBounds[:], Sum: time.Duration(h.sum.Load())}
	for i := range h.counts {
		out.Count += h.counts[i].Load()
		if i < len(tripBounds) {
			out.Counts = append(out.Counts, out.Count)
		}
	}
	return out
}
