package qos

import "time"

// Placer is the fleet as a Queue needs it. Its methods are called from within
// the queue's and must not call it.
type Placer interface {
	// Begin says that a pump begins: nothing is held for any worker.
	Begin()
	// Wait returns the least predicted wait among the pool's workers that may take
	// work now; an idle worker's is 0. If no worker may take work it is Unbounded.
	// Where it is over bound, look is the earliest time at which it can be within it
	// by itself (zero: only an event changes it).
	Wait(now time.Time, pool PoolID, bound time.Duration) (wait time.Duration, look time.Time)
	// Place chooses the best worker for e among all its pools' and commits e to it
	// if that worker is in terms.Pool and open by the terms. It does not take the
	// second best because the best one is not open: e waits for it then.
	//
	// Where it commits, it keeps what the caller needs of it (a reservation) in
	// e.Payload. Where not, and the best worker is in terms.Pool, it remembers until
	// Begin that e holds for that worker, and adds e's work there to its wait in the
	// cost (not in what is open) of the entries it is asked for next: the wait of a
	// popular worker must show to those behind who stands in line for it, or all would
	// hold for it. An entry whose best worker is in another pool is offered there,
	// too, and must not stand in its own way.
	Place(now time.Time, e *Entry, terms Terms) (Placement, bool)
}

// Terms are the conditions under which an entry is given to a worker.
type Terms struct {
	// Pool is the pool whose room is given out; AnyPool: those of the entry.
	Pool PoolID
	// Bound is up to which predicted wait a worker is open. A Placer may take more
	// for it where one step of the engine is longer, so that a step can't close a
	// worker for itself; and a worker that has nothing to do is always open, so that
	// a wrong prediction can't close a fleet for ever.
	Bound time.Duration
	// Keep is the room that the pool must have left after e, for more urgent
	// requests that will arrive before running ones end: bounds on waiting do not
	// keep long answers from taking all sequences and blocks, and what runs is not
	// preempted. The queue says how much, by what more urgent classes did lately;
	// the Placer judges it: the worker is open only if it has the pool's Keep,
	// divided by the number of the pool's workers, still free after e.
	Keep Keep
}

// AnyPool stands for all pools of an entry.
const AnyPool PoolID = -1

// Keep is room to be left free in a pool: for so many sequences, and in them so
// many tokens of KV cache.
type Keep struct {
	Requests float64
	Tokens   float64
}

// Placement is what a Placer did, or would have done.
type Placement struct {
	// Pool is the best worker's, whether it was open or not.
	Pool PoolID
	// Work is what the entry truly costs there, as Entry.Work counts it; 0: as that.
	Work int64
	// Look is the earliest time at which that worker can have become open by
	// itself; zero: only an event changes it.
	Look time.Time
}
