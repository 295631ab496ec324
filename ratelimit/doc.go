// Package ratelimit meters what callers may use: requests, tokens, money and
// requests in flight, in windows of time. It is pure: no clock, I/O, goroutine
// or logger; time is an argument.
//
// A request reserves all its claims together or none of them (Reserve), and
// gives back the Lease once, either with what was really used (Settle) or
// unused (Cancel). Three kinds of counter follow from the claim:
//
//   - Unit concurrency: slots, taken at Reserve, freed at the end.
//   - A window of a duration: a token bucket. Capacity is the limit, refilled
//     evenly by the limit every window. The bucket may go below zero: an
//     overrun is owed, and later callers wait it off.
//   - A calendar window: a count that starts anew at each UTC day or month.
//
// Buckets are exact: levels are integers plus an integer remainder, so no
// amount is lost or made by rounding, and the sum of what is admitted and
// charged in any time t never exceeds limit × (1 + t/window), overruns apart.
// docs/0007-limits.md explains why that needs more than golang.org/x/time/rate
// and where that package is used.
//
// # Time
//
// Times should come from time.Now, whose monotonic reading makes steps of the
// wall clock invisible here. Calls may arrive with times slightly out of
// order: no counter ever runs backwards, so an old time earns nothing twice.
// For times without a monotonic reading (a simulation, a replayed log), a step
// back neither grants nor locks: see clock.
package ratelimit
