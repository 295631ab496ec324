// Package gatewaytest holds test doubles for both ends of the gateway: workers
// that fail the way the world fails, and clients that leave when they please.
//
// Both use real sockets on the loopback. A [Worker] writes its answers byte by
// byte, so that it can stop anywhere, and notices at once when its client goes.
// It speaks HTTP by itself and frames events by itself, so that a misreading in
// the gateway cannot hide in its double. For a worker that behaves like an
// engine, see the simulated worker of the scoring packages.
//
// A [Worker] plays a script: one [Behaviour] for each request, the last of them
// for all requests that follow.
package gatewaytest
