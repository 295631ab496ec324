// Package simulate routes a load over a simulated fleet in virtual time, one
// routing strategy against another.
//
// A worker is the scheduler, the block pool and the cost model of
// scoring/simworker/engine; the router is a real [scoring.Fleet], which learns
// of the workers only what it would learn of real ones: their cache events, a
// moment late; their own account of their load, now and then; and the first
// tokens and ends of its requests. What a strategy costs here is so decided by
// the code that decides it live. The oracle alone sees the workers' true state.
//
// The package is pure: it knows no clock, network, goroutine or logger, and
// equal inputs and seeds give equal results to the last digit.
//
// Design note: docs/0010-simulate.md.
package simulate
