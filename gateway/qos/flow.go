package qos

import (
	"math"
	"time"
)

// flow is a tenant in a band: what it has waiting there, and what it has had.
type flow struct {
	band   *band
	tenant string
	weight float64
	// tag is the work that it has had, over its weight; since the time at.
	tag float64
	at  time.Time
	// since orders flows that have had the same.
	since int64

	timely heap[timely]
	late   heap[ordered]
	// aside is the work of its entries that rest: they count as served meanwhile,
	// or the flow would keep all others from the workers it has no use for.
	aside   int64
	waiting int
	work    float64
	missed  float64 // of it, what misses its deadline
	ready   int     // its place in band.ready; -1: it is not there

	// booked is the work of those that were refused and told when to come again, bookings
	// how many they are, and shows what part of such come.
	booked   float64
	bookings int
	shows    float64
	// refusing says that arrivals are refused by forecast.
	refusing bool
	// strained is when the tenant last showed that more comes than can be served, and for
	// long: an entry waited in vain, or, since one had, an arrival was refused.
	strained time.Time
	line     int // its place in band.lines; -1: it is not there
	// rate is at which work of it is placed while it has some waiting.
	rate rate

	// What has nothing waiting is in a line, in the order in which it came there.
	idle         bool
	older, newer *flow
}

// key is by what flows are ordered: the least first.
func (f *flow) key() float64 { return f.tag + float64(f.aside)/f.weight }

func (f *flow) before(o *flow) bool {
	if a, b := f.key(), o.key(); a != b {
		return a < b
	}
	return f.since < o.since
}

func (f *flow) moved(to int) { f.ready = to }

// ahead is by how much it has had more than a flow that comes now: it fades while
// nothing waits.
func (f *flow) ahead(now time.Time, memory time.Duration) float64 {
	ahead := max(0, f.tag-f.band.floor)
	if f.waiting > 0 {
		return ahead
	}
	return ahead * faded(now.Sub(f.at), memory)
}

// forgotten is after how many lifetimes nothing is left of what fades.
const forgotten = 4

// faded is what is left of 1 after a time.
func faded(passed, lifetime time.Duration) float64 {
	n := max(0, passed.Seconds()/lifetime.Seconds())
	if n > forgotten {
		return 0
	}
	return math.Exp(-n)
}

// first returns the entry of the flow that is first. There must be one. What misses its
// deadline becomes late, but what was let in by what its target allows has a second one: who
// keeps lines short by refusing need not let anybody wait in vain.
func (f *flow) first(now time.Time) ref {
	for len(f.timely) > 0 {
		r := f.timely[0].ref
		l := r.link()
		if l.second || !r.entry.misses(now) {
			return r
		}
		if r.entry.state.promised {
			l.second = true
			f.timely.fix(0)
			continue
		}
		f.timely.remove(0)
		l.late = true
		f.late.push(ordered{r})
		f.missed += r.entry.part()
	}
	return f.late[0].ref
}

// misses says that e misses its deadline even if it is placed now.
func (e *Entry) misses(now time.Time) bool {
	return e.Deadline.Add(-e.Own).Before(now)
}

// overloaded says whether more of the tenant comes than can be served, and for long.
func (q *Queue) overloaded(now time.Time, f *flow) bool {
	return !f.strained.IsZero() && now.Sub(f.strained) < q.classes[f.band.class].MaxWait
}

// paced is how many requests have to be placed until a tenant's own pace is known.
const paced = 8

// pace is how much work of the flow is placed a second while some of it waits, where enough
// requests of so much were; 0: not known. It tells of others' arrivals that go first although
// nothing of theirs waits when somebody asks.
func (f *flow) pace(now time.Time, enough float64, work int64) float64 {
	if f.rate.work < paced*float64(work) {
		return 0
	}
	return f.rate.value(now, enough)
}

// queued says that the flow may have got something, or lost it, that forecasts count: what
// waits or was told to come again.
func (f *flow) queued() {
	b := f.band
	switch has := f.waiting > 0 || f.bookings > 0; {
	case has && f.line < 0:
		f.line = len(b.lines)
		b.lines = append(b.lines, f)
	case !has && f.line >= 0:
		last := len(b.lines) - 1
		b.lines[f.line] = b.lines[last]
		b.lines[f.line].line = f.line
		b.lines[last] = nil
		b.lines, f.line = shrunk(b.lines[:last]), -1
	}
}

// put takes an entry of the flow in among those that are ready.
func (f *flow) put(r ref) {
	if r.link().late {
		f.late.push(ordered{r})
	} else {
		f.timely.push(timely{r})
	}
	f.settle()
}

// take takes an entry out of those that are ready.
func (f *flow) take(r ref) {
	if l := r.link(); l.late {
		f.late.remove(l.at)
	} else {
		f.timely.remove(l.at)
	}
	f.settle()
}

// settle puts the flow where it belongs after it has changed.
func (f *flow) settle() {
	has := len(f.timely)+len(f.late) > 0
	switch {
	case has && f.ready < 0:
		f.band.ready.push(f)
	case has:
		f.band.ready.fix(f.ready)
	case f.ready >= 0:
		f.band.ready.remove(f.ready)
	}
}
