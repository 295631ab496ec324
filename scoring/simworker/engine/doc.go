// Package engine is the part of the simulated worker that decides: a scheduler
// with a token budget a step, a block pool with a prefix cache, and the cache
// events they cause. It behaves as vLLM's V1 engine does where the recordings
// show it.
//
// The package is pure. It knows no clock, network, goroutine or logger; time
// comes in as an argument, so the same code runs live behind HTTP and in
// virtual time in a simulator. Nothing here is safe for concurrent use: the
// caller locks.
package engine
