package qos

import (
	"math"
	"time"
)

// recently is the lifetime of what rates remember.
const recently = 10 * time.Second

// meter measures what arrives, a second.
type meter struct {
	requests, work, room float64
	at                   time.Time
}

// add counts the part of one entry that is a pool's.
func (m *meter) add(now time.Time, e *Entry, work int64) {
	part := 1 / float64(len(e.Pools))
	*m = m.fade(now)
	m.requests += part
	m.work += part * float64(work)
	m.room += part * float64(e.Room)
}

// fade returns the meter as it is at a time.
func (m meter) fade(now time.Time) meter {
	left := math.Exp(-max(0, now.Sub(m.at).Seconds()) / recently.Seconds())
	if now.After(m.at) {
		m.at = now
	}
	m.requests *= left
	m.work *= left
	m.room *= left
	return m
}

// rate measures what work a pool takes a second while requests wait for it. It fades while
// that can't be measured, and when too little of it is left it is forgotten: the pool
// may have other workers by then.
type rate struct {
	work, seconds float64
	at            time.Time // when it was measured last
	// last is the work that was placed last while others waited on, at the time since.
	last  float64
	since time.Time
}

// placed notes work that the pool took while requests waited for it.
func (r *rate) placed(now time.Time, work int64, enough float64) {
	if !r.since.IsZero() {
		passed := max(0, now.Sub(r.since))
		left := math.Exp(-passed.Seconds() / recently.Seconds())
		r.work = r.work*left + r.last
		r.seconds = r.seconds*left + passed.Seconds()
	} else {
		left := r.left(now)
		if r.seconds >= enough && r.seconds*left < enough {
			left = 0
		}
		r.work, r.seconds = r.work*left, r.seconds*left
	}
	r.last, r.since, r.at = float64(work), now, now
}

// left is what is left of it at a time.
func (r *rate) left(now time.Time) float64 {
	if !r.since.IsZero() { // it is being measured
		return 1
	}
	return math.Exp(-max(0, now.Sub(r.at).Seconds()) / recently.Seconds())
}

// pause says that nothing waits for the pool, or that none of its workers may take work:
// the time until the next placement says nothing of how fast they do.
func (r *rate) pause() { r.since = time.Time{} }

// value returns tokens a second; 0: not known, as it takes so many seconds.
func (r *rate) value(now time.Time, enough float64) float64 {
	if r.seconds*r.left(now) < enough {
		return 0
	}
	return r.work / r.seconds
}
