// Package scoring decides which worker returns the first token of a request
// soonest.
//
// A [Fleet] holds what is known of each worker: the blocks in its prefix cache
// (from the events the engine publishes), the work this process has sent to it
// and not yet seen finish, and coefficients learned from the first tokens it
// returned. [Fleet.Pick] predicts the time to first token (TTFT) of one request
// on each eligible worker, takes the least, and counts the load it adds in the
// same critical section. The caller gets a [Reservation] and reports back with
// FirstToken and Done.
//
// The package is pure: it knows no clock, I/O, goroutine or logger. Time is an
// argument, so the same code runs live, in tests and in a simulation.
//
// All methods of Fleet and Reservation are safe for concurrent use.
//
// Design note: docs/0004-scoring.md.
package scoring
