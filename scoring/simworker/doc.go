// Package simworker is a simulated vLLM 0.32.0 worker.
//
// It answers HTTP as the engine does (chat, completions, models, tokenize,
// metrics and the rest), publishes KV cache events over ZMQ PUB and answers
// replays over ROUTER, and runs a scheduler with chunked prefill, batched
// decode and a block-level prefix cache behind them. Instead of computing, it
// waits: every scheduler step takes the time a timing model gives it. Generated
// text is noise, the same for the same seed, prompt and choice.
//
// The wire is written by hand here, on the standard library's HTTP server and
// without this module's event decoder, so that a misreading there cannot hide
// in the fake. Recordings of a real engine are the reference; the tests compare
// against them.
//
// The engine itself is in the package engine below, which knows no clock and
// no network.
//
// Ownership: Start starts every goroutine of a Worker, Close and Kill end them
// all and wait. What is simulated and what is not is written down in
// docs/0006-simulated-worker.md.
package simworker
