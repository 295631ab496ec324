package simulate

import (
	"math"
	"slices"
	"time"
)

// cores is the computer that workers share: k steps under way beyond limit each
// proceed at limit/k of full speed (processor sharing). With limit 0 there is
// none.
type cores struct {
	limit float64
	at    time.Duration // work is true as of then
	jobs  []job         // in the order they came
}

// job is a step under way with the work it has left, in nanoseconds at full
// speed.
type job struct {
	worker int
	work   float64
}

// rate is how fast each job proceeds.
func (c *cores) rate() float64 { return min(1, c.limit/float64(len(c.jobs))) }

// advance does the work of the time until now. It is done when a step comes or
// goes and at no other time, so that what else happens does not change how it is
// rounded.
func (c *cores) advance(now time.Duration) {
	if len(c.jobs) > 0 {
		done := float64(now-c.at) * c.rate()
		for i := range c.jobs {
			c.jobs[i].work -= done
		}
	}
	c.at = now
}

// enter adds a step that begins now, of the given duration at full speed.
func (c *cores) enter(now time.Duration, worker int, d time.Duration) {
	c.advance(now)
	c.jobs = append(c.jobs, job{worker, float64(d)})
}

// leave takes a worker's step out as of now.
func (c *cores) leave(now time.Duration, worker int) {
	c.advance(now)
	c.jobs = slices.DeleteFunc(c.jobs, func(j job) bool { return j.worker == worker })
}

// next says which step ends next, and when, if no other begins before.
func (c *cores) next() (at time.Duration, worker int, ok bool) {
	if len(c.jobs) == 0 {
		return 0, 0, false
	}
	first := &c.jobs[0]
	for i := range c.jobs {
		if c.jobs[i].work < first.work {
			first = &c.jobs[i]
		}
	}
	left := max(0, math.Ceil(first.work/c.rate()))
	return c.at + time.Duration(left), first.worker, true
}

// busy says whether a step of the worker is under way.
func (c *cores) busy(worker int) bool {
	return slices.ContainsFunc(c.jobs, func(j job) bool { return j.worker == worker })
}
