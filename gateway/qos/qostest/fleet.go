package qostest

import (
	"slices"
	"time"

	"github.com/sluicegate/sluice/gateway/qos"
)

// Fleet is a [qos.Placer] of workers that compute prompts one after the other at a
// fixed rate and answer any number of requests at a time, up to their slots.
// It is in virtual time: Advance ends what is over.
type Fleet struct {
	Workers []*Worker
	// Dirty is told of the pools where room may have come.
	Dirty func(qos.PoolID)

	held []float64 // seconds of work set aside, by worker
}

// Worker is one worker of a Fleet.
type Worker struct {
	Pool qos.PoolID
	// Rate is its tokens of work a second.
	Rate float64
	// Slots bounds what it has in flight; 0: nothing does.
	Slots int
	// Closed says that it takes no work.
	Closed bool

	busy    time.Time // until when there is work
	running []running
}

type running struct {
	end   time.Time
	entry *qos.Entry
}

// Request is what a Fleet knows of an entry: its Payload.
type Request struct {
	Name string
	// Near is the worker that has its prompt in the cache: there it costs a tenth. It counts
	// from 1; 0: none has.
	Near int
	// Only is the one worker that can take it. It counts from 1; 0: any can.
	Only int
	// Answer is for how long it holds its slot after its work is done.
	Answer time.Duration

	// Worker is where it went, set by Place.
	Worker *Worker
}

// Begin implements [qos.Placer].
func (f *Fleet) Begin() {
	f.held = slices.Grow(f.held[:0], len(f.Workers))[:len(f.Workers)]
	clear(f.held)
}

func (w *Worker) wait(now time.Time) time.Duration { return max(0, w.busy.Sub(now)) }

// slotWait is until when all slots are taken.
func (w *Worker) slotWait(now time.Time) time.Duration {
	if w.Slots == 0 || len(w.running) < w.Slots {
		return 0
	}
	first := slices.MinFunc(w.running, func(a, b running) int { return a.end.Compare(b.end) })
	return max(0, first.end.Sub(now))
}

// Wait implements [qos.Placer].
func (f *Fleet) Wait(now time.Time, pool qos.PoolID, bound time.Duration) (time.Duration, time.Time) {
	least := qos.Unbounded
	for _, w := range f.Workers {
		if w.Pool == pool && !w.Closed {
			least = min(least, w.wait(now))
		}
	}
	var look time.Time
	if least > bound && least < qos.Unbounded {
		look = now.Add(least - bound)
	}
	return least, look
}

// work is what an entry costs at a worker, which counts from 0.
func (f *Fleet) work(i int, e *qos.Entry) int64 {
	if r, ok := e.Payload.(*Request); ok && r.Near == i+1 {
		return max(1, e.Work/10)
	}
	return e.Work
}

// Place implements [qos.Placer].
func (f *Fleet) Place(now time.Time, e *qos.Entry, terms qos.Terms) (qos.Placement, bool) {
	r, _ := e.Payload.(*Request)
	best, least := -1, 0.0
	for i, w := range f.Workers {
		if w.Closed || !slices.Contains(e.Pools, w.Pool) || r != nil && r.Only != 0 && r.Only != i+1 {
			continue
		}
		cost := max(w.wait(now), w.slotWait(now)).Seconds() + f.held[i] + float64(f.work(i, e))/w.Rate
		if best < 0 || cost < least {
			best, least = i, cost
		}
	}
	if best < 0 {
		return qos.Placement{Pool: terms.Pool}, false
	}
	w := f.Workers[best]
	placed := qos.Placement{Pool: w.Pool, Work: f.work(best, e)}
	wait := w.wait(now)
	keep := 0
	if terms.Keep.Requests > 0 {
		workers := 0
		for _, o := range f.Workers {
			if o.Pool == w.Pool {
				workers++
			}
		}
		keep = int(terms.Keep.Requests/float64(workers)) + 1
	}
	full := w.Slots > 0 && len(w.running)+1+keep > w.Slots && len(w.running) > 0
	if w.Pool != terms.Pool || wait > terms.Bound || full {
		if w.Pool == terms.Pool && wait > terms.Bound {
			placed.Look = now.Add(wait - terms.Bound)
		}
		if w.Pool == terms.Pool {
			f.held[best] += float64(placed.Work) / w.Rate
		}
		return placed, false
	}
	w.busy = now.Add(wait + time.Duration(float64(placed.Work)/w.Rate*float64(time.Second)))
	end := w.busy
	if r != nil {
		end = end.Add(r.Answer)
		r.Worker = w
	}
	w.running = append(w.running, running{end, e})
	return placed, true
}

// Next returns when something ends; false: nothing runs.
func (f *Fleet) Next() (time.Time, bool) {
	var next time.Time
	for _, w := range f.Workers {
		for _, r := range w.running {
			if next.IsZero() || r.end.Before(next) {
				next = r.end
			}
		}
	}
	return next, !next.IsZero()
}

// Advance ends what is over by now, tells Dirty, and calls ended for each.
func (f *Fleet) Advance(now time.Time, ended func(*qos.Entry)) {
	for _, w := range f.Workers {
		n := len(w.running)
		w.running = slices.DeleteFunc(w.running, func(r running) bool {
			over := !r.end.After(now)
			if over && ended != nil {
				ended(r.entry)
			}
			return over
		})
		if len(w.running) < n && f.Dirty != nil {
			f.Dirty(w.Pool)
		}
	}
}

// Running counts what is in flight.
func (f *Fleet) Running() int {
	n := 0
	for _, w := range f.Workers {
		n += len(w.running)
	}
	return n
}

// Fail ends what w has of e, without an answer, and tells Dirty.
func (f *Fleet) Fail(e *qos.Entry) {
	for _, w := range f.Workers {
		n := len(w.running)
		w.running = slices.DeleteFunc(w.running, func(r running) bool { return r.entry == e })
		if len(w.running) < n && f.Dirty != nil {
			f.Dirty(w.Pool)
		}
	}
}
