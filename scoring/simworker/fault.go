package simworker

import "time"

// Fault is what goes wrong on purpose. The zero value is a healthy worker; all
// parts that are set hold at once. Every value has a meaning, so there is no
// invalid Fault.
type Fault struct {
	// Stall stops the scheduler for this long from the moment it is set;
	// negative means until the next SetFault. HTTP stays up, clients that
	// leave are still noticed.
	Stall time.Duration
	// SlowFactor multiplies the time of every step; 0 and below mean 1.
	SlowFactor float64

	// The rest hits requests on the generating routes only, each of the next
	// Requests ones; 0 and below mean all until the next SetFault.
	Requests int
	// Status answers with this status and an engine-shaped error body; 0 means
	// no such answer.
	Status int
	// HangHeaders accepts the request and never answers, until the client
	// leaves or the fault is replaced.
	HangHeaders bool
	// FirstByteDelay waits before the first byte of the body of a 200; headers
	// of a stream go out before it.
	FirstByteDelay time.Duration
	// DropAfterEvents closes the connection of a stream without an end after
	// this many of its events; a negative value closes it after the headers. An
	// answer that is no stream is cut in the middle of its body. 0 means no drop.
	DropAfterEvents int
	// MalformedEvent makes the second event of a stream broken JSON.
	MalformedEvent bool
	// NoDone ends a stream cleanly but without its "data: [DONE]".
	NoDone bool
}

// EventFault is what goes wrong with the next batches of KV events. Each
// number counts batches; they are used up in the order of the fields.
type EventFault struct {
	// Drop sends the next batches to nobody but keeps them for replay, as a
	// full queue does.
	Drop int
	// Lose takes a sequence number and keeps no batch for it, as a batch that
	// could not be encoded does.
	Lose int
	// Duplicate sends the next batches twice.
	Duplicate int
	// Corrupt sends payloads that are no msgpack; replay has the right ones.
	Corrupt int
	// BadEvent puts an event of an unknown kind before the true ones.
	BadEvent int
}
