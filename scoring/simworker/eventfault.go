package simworker

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
