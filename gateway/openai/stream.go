package openai

// Flags say what an event of a stream is. An event may be several things.
type Flags uint16

const (
	// FirstToken is the stream's first event with content.
	FirstToken Flags = 1 << iota
	// Content is an event with at least one non-empty piece of output.
	Content
	// HasUsage is an event with known usage.
	HasUsage
	// UsageChunk is an event with an empty list of choices and a usage object:
	// the one to drop when the client did not ask for it.
	UsageChunk
	// FinishReason is an event in which a choice ended.
	FinishReason
	// Done is the terminal mark, [DONE].
	Done
	// StreamError is an error of the worker inside the stream.
	StreamError
	// Malformed is an event whose data is not valid JSON.
	Malformed
)
