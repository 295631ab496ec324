package ratelimit

import (
	"sync"
	"sync/atomic"
	"time"
)

// clock turns the callers' times into nanoseconds on one axis.
//
// Times with a monotonic reading, which time.Now gives, are measured by it:
// steps of the wall clock do not show, in either direction.
//
// Times without one go through a wallClock, which can only guess.
type clock struct {
	base atomic.Pointer[time.Time] // the first time seen, zero of the axis
	wall wallClock
}

// at returns now on the axis. Results may come back out of order by as much as
// the callers' times do; each counter keeps itself from running backwards.
func (c *clock) at(now time.Time) int64 {
	base := c.base.Load()
	if base == nil {
		base = c.begin(now)
	}
	d := int64(now.Sub(*base))
	if hasMonotonic(now) && hasMonotonic(*base) {
		return d
	}
	return c.wall.at(d)
}

// begin sets the base once. It is apart from at because its argument escapes.
func (c *clock) begin(now time.Time) *time.Time {
	c.base.CompareAndSwap(nil, &now)
	return c.base.Load()
}

// hasMonotonic reports whether t carries a monotonic reading. Round(0) strips
// it, which is the documented way, and the only way to see the difference is to
// compare the structs.
func hasMonotonic(t time.Time) bool { return t != t.Round(0) }

const (
	// stepCalls and stepProgress are what makes a step of the clock out of a
	// run of old times: so many calls in a row, over so much of their own time.
	stepCalls    = 16
	stepProgress = int64(10 * time.Second)
)

// wallClock follows times that may step. An older time than the latest is first
// taken for a late caller and earns nothing. When all calls of a while are
// older and advance among themselves, the clock was set back: the axis goes on
// from where it was, so that the step locks nothing. A step forward can't be
// told from a quiet while; it fills buckets once, as the while would.
type wallClock struct {
	mu      sync.Mutex
	started bool
	high    int64 // latest raw time of the present timeline
	axis    int64 // the axis at high
	low     int64 // latest raw time of a run of older calls
	lowFrom int64 // where that run began
	lowRun  int   // how many calls it has; 0 for none
}

func (w *wallClock) at(raw int64) int64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.started {
		w.started, w.high, w.axis = true, raw, raw
	}
	if raw >= w.high {
		w.axis += raw - w.high
		w.high, w.lowRun = raw, 0
		return w.axis
	}
	if w.lowRun == 0 || raw < w.low {
		w.low, w.lowFrom, w.lowRun = raw, raw, 0
	}
	w.low = raw
	w.lowRun++
	if w.lowRun >= stepCalls && w.low-w.lowFrom >= stepProgress {
		w.axis += w.low - w.lowFrom
		w.high, w.lowRun = w.low, 0
	}
	return w.axis
}

// period is one day or month of a calendar window.
type period struct{ start, end time.Time }

// periodOf returns the period of a calendar window that holds now, in UTC.
func periodOf(calendar string, now time.Time) period {
	y, m, d := now.UTC().Date()
	if calendar == CalendarMonth {
		return period{time.Date(y, m, 1, 0, 0, 0, 0, time.UTC), time.Date(y, m+1, 1, 0, 0, 0, 0, time.UTC)}
	}
	return period{time.Date(y, m, d, 0, 0, 0, 0, time.UTC), time.Date(y, m, d+1, 0, 0, 0, 0, time.UTC)}
}

// left is the time from now to the end of the period. Both are compared as wall
// times: the boundary is one.
func (p period) left(now time.Time) time.Duration { return p.end.Sub(now.Round(0)) }
