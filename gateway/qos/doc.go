// Package qos is the queue of requests that wait for a worker.
//
// A [Queue] knows classes (how urgent, what share is kept for them), tenants,
// and pools of workers. Each waiting request is an [Entry] that may go to one
// or more pools. [Queue.Pump] decides who is tried on a pool that has room, in
// which order, and when to stop; a [Placer] says whether the fleet takes a
// request now, and commits it. What became of an entry comes back as an
// [Outcome].
//
// Order in a pool: classes by urgency, except that a class whose share is owed
// goes first; in a class, tenants fairly by tokens of work; among tenants that
// are level, the earliest deadline. A request that can't go to the worker it
// is best for never keeps others from other workers, and no pool waits for
// another.
//
// The package is pure: it knows no clock, goroutine, lock, fleet or logger.
// Time is an argument, so the gateway and the simulator run the same code.
//
// A Queue is not safe for concurrent use: whoever shares it locks it. A Placer
// is called with that lock held.
//
// Design note: docs/0037-qos.md.
package qos
