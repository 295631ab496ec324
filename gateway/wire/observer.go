package wire

// Observer is told the events of one answer's stream, in order, and says what
// they are. It keeps no view of what it is given. It is not safe for concurrent
// use.
type Observer interface {
	// Observe looks at the next event: its name, empty without one, and its data.
	Observe(name, data []byte) Flags
	// Usage is the usage as far as the stream has told it.
	Usage() Usage
	// Complete tells whether Usage is final.
	Complete() bool
	// ContentDeltas counts the pieces of output so far, which stand in for output
	// tokens where no usage came.
	ContentDeltas() int64
	// NextSequence is the number that an error event carries if it ends the stream
	// now, for formats whose events are numbered; else 0.
	NextSequence() int64
	// StreamError is the worker's own error, rebuilt for the client, once Observe
	// has said StreamError; false before.
	StreamError() (WorkerError, bool)
}
