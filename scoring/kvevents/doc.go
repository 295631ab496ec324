// Package kvevents follows the KV cache events that a vLLM worker publishes by
// ZeroMQ and turns them into scoring events.
//
// Four layers, each usable and tested by itself:
//
//   - [ParseFrames] and [Decode] read the wire format: message frames, and the
//     msgpack batch inside. They accept every form that engine versions are
//     known to send. One malformed event costs that event and is counted; its
//     siblings are kept.
//   - [Machine] is the sequence state machine of one publisher: what a gap, a
//     restart, a reconnect or a truncated replay means for the view. It is
//     pure: no clock, no I/O, no goroutine.
//   - link is one ZMTP connection with bounded memory.
//   - [Subscriber] joins them: it connects, subscribes, asks for replays, and
//     feeds a [Sink] (the fleet's index).
//
// The view a Sink holds is never more than the worker's cache holds, as far as
// the events tell: whatever is uncertain is cleared. A block that is forgotten
// costs one cache hit, a block that is wrongly believed in sends a request to
// the wrong worker.
//
// How silence is noticed: ZeroMQ publishers send no heartbeat, and an idle
// engine publishes nothing for hours, so a quiet connection says nothing. A
// dead process closes its connection, a dead host is found by TCP keep-alive
// within about half a minute, and a hung engine fails its health checks, which
// are the business of package discovery. While the publisher is away the view
// is kept for [Options].StaleAfter only.
//
// The reasoning is in docs/0005-cache-events.md.
package kvevents
