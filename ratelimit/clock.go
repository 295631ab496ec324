package ratelimit

import (
	"sync"
	"sync/atomic"
	"time"
)

// moment is one time on both of the limiter's clocks.
type moment struct {
	axis int64 // what durations go by: nanoseconds, of no date
	wall int64 // what calendar windows go by: Unix nanoseconds
}

// time is the moment as calendar windows see it.
func (m moment) time() time.Time { return time.Unix(0, m.wall).UTC() }

// clock turns the callers' times into moments.
//
// Times with a monotonic reading, which time.Now gives, are measured by it:
// steps of the wall clock do not show in durations, in either direction, and
// calendar windows follow them at leisure (calendarClock).
//
// Times without one go through a wallClock, which can only guess, and are taken
// at their word by calendar windows.
type clock struct {
	base     atomic.Pointer[time.Time] // the first time seen, zero of the axis
	calendar calendarClock
	guess    wallClock
	// reading is the wall clock's part of a time: UnixNano, but in tests of a wall
	// clock that is set.
	reading func(time.Time) int64
}

// at returns the moment of now. Results may come back out of order by as much as
// the callers' times do; each counter keeps itself from running backwards.
func (c *clock) at(now time.Time) moment {
	base := c.base.Load()
	if base == nil {
		base = c.begin(now)
	}
	d := int64(now.Sub(*base))
	if hasMonotonic(now) && hasMonotonic(*base) {
		return moment{d, c.calendar.at(d, c.reading(now))}
	}
	return moment{c.guess.at(d), now.UnixNano()}
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

// calendarClock tells the date. It starts as the wall clock and goes on by
// monotonic time. Where the two differ it is led towards the wall clock so slowly
// that no period becomes much shorter or longer: a wall clock that is set forward
// over a boundary starts no new period while it is wrong, and one that is set back
// brings no spent one back. It never runs backwards.
type calendarClock struct {
	lead atomic.Pointer[lead]
	// steps counts how often the wall clock was set, step is how far at last.
	steps atomic.Uint64
	step  atomic.Int64
}

const (
	// leadRate is how slowly: by five minutes in an hour.
	leadRate = 12
	// leadSlack is how far the wall clock may be from where it is expected before
	// the lead is worked out anew. Small against any window, large against what
	// two readings of one machine differ by.
	leadSlack = int64(50 * time.Millisecond)
	// leadStep is what counts as a step of the wall clock.
	leadStep = int64(5 * time.Minute)
)

// lead is how the calendar goes from a point of the axis on: it shows at there,
// and has still to make up for the gap.
type lead struct{ axis, at, gap int64 }

// time is what the calendar shows, and what gap is left, at a point of the axis.
func (s *lead) time(axis int64) (at, gap int64) {
	passed := axis - s.axis
	most := max(passed, 0) / leadRate
	made := max(-most, min(s.gap, most))
	return s.at + passed + made, s.gap - made
}

// at returns the date at a point of the axis, when the wall clock shows wall.
func (c *calendarClock) at(axis, wall int64) int64 {
	s := c.lead.Load()
	if s == nil {
		c.lead.CompareAndSwap(nil, &lead{axis: axis, at: wall})
		s = c.lead.Load()
	}
	at, gap := s.time(axis)
	// Readings older than the lead are of before what has changed it.
	if off := wall - at - gap; (off > leadSlack || off < -leadSlack) && axis >= s.axis {
		c.follow(s, axis, at, wall-at, off)
	}
	return at
}

func (c *calendarClock) follow(old *lead, axis, at, gap, off int64) {
	if !c.lead.CompareAndSwap(old, &lead{axis: axis, at: at, gap: gap}) {
		return // another caller has seen the same
	}
	if off > leadStep || off < -leadStep {
		c.steps.Add(1)
		c.step.Store(off)
	}
}

// period is one day or month of a calendar window.
type period struct{ start, end time.Time }

// PeriodStart is the beginning of the calendar period that holds a time, in UTC.
func PeriodStart(calendar string, at time.Time) time.Time { return periodOf(calendar, at).start }

// periodOf returns the period of a calendar window that holds now, in UTC.
func periodOf(calendar string, now time.Time) period {
	y, m, d := now.UTC().Date()
	if calendar == CalendarMonth {
		return period{time.Date(y, m, 1, 0, 0, 0, 0, time.UTC), time.Date(y, m+1, 1, 0, 0, 0, 0, time.UTC)}
	}
	return period{time.Date(y, m, d, 0, 0, 0, 0, time.UTC), time.Date(y, m, d+1, 0, 0, 0, 0, time.UTC)}
}

// left is the time from a moment to the end of the period.
func (p period) left(m moment) time.Duration { return time.Duration(p.end.UnixNano() - m.wall) }
