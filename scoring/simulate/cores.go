package simulate

import (
	"math"
	"slices"
	"time"
)

// cores is the computer that workers share: k steps that compute at a time, with
// k beyond limit, each proceed at limit/k of full speed (processor sharing). The
// fixed part of a step does not compute: it is the engine's own bookkeeping, on
// which a core sits that no other worker wants. With limit 0 there are no cores
// to share.
type cores struct {
	limit float64
	at    time.Duration // work is true as of then
	jobs  []job         // in the order they came
}

// job is a step under way: it computes from then on, and has that much work left
// in nanoseconds at full speed.
type job struct {
	worker int
	from   time.Duration
	work   float64
}

// rate is how fast each job that computes proceeds.
func (c *cores) rate() float64 {
	k := 0
	for i := range c.jobs {
		if c.jobs[i].from <= c.at {
			k++
		}
	}
	return min(1, c.limit/float64(max(1, k)))
}

// advance does the work of the time until now, during which no job may come, go
// or begin to compute. It is done then and at no other time, so that what else
// happens does not change how work is rounded.
func (c *cores) advance(now time.Duration) {
	done := float64(now-c.at) * c.rate()
	for i := range c.jobs {
		if c.jobs[i].from <= c.at {
			c.jobs[i].work -= done
		}
	}
	c.at = now
}

// enter adds a step that begins now: its fixed part, and what it takes in all at
// full speed.
func (c *cores) enter(now time.Duration, worker int, fixed, d time.Duration) {
	c.advance(now)
	c.jobs = append(c.jobs, job{worker, now + min(fixed, d), float64(max(0, d-fixed))})
}

// leave takes a worker's step out as of now.
func (c *cores) leave(now time.Duration, worker int) {
	c.advance(now)
	c.jobs = slices.DeleteFunc(c.jobs, func(j job) bool { return j.worker == worker })
}

// next says what is next if no step begins before, and when: a worker's step
// ends, or, with ends false, begins to compute, for which advance is due.
func (c *cores) next() (at time.Duration, worker int, ends, ok bool) {
	at, rate := never, c.rate()
	for i := range c.jobs {
		j := &c.jobs[i]
		due, over := j.from, j.from <= c.at
		if over {
			due = c.at + time.Duration(max(0, math.Ceil(j.work/rate)))
		}
		if due < at {
			at, worker, ends = due, j.worker, over
		}
	}
	return at, worker, ends, at != never
}

// busy says whether a step of the worker is under way.
func (c *cores) busy(worker int) bool {
	return slices.ContainsFunc(c.jobs, func(j job) bool { return j.worker == worker })
}
