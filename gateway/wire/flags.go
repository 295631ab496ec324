package wire

import "strings"

// Flags say what an event of a stream is. An event may be several things.
type Flags uint16

const (
	// FirstToken is the stream's first event with content.
	FirstToken Flags = 1 << iota
	// Content is an event with at least one non-empty piece of output.
	Content
	// HasUsage is an event with known usage.
	HasUsage
	// UsageChunk is an event with an empty list of choices and usage, sane or
	// not: the one to drop when the client did not ask for it.
	UsageChunk
	// FinishReason is an event in which a choice ended.
	FinishReason
	// Done is the terminal mark.
	Done
	// StreamError is an error of the worker inside the stream.
	StreamError
	// Malformed is an event whose data is neither the terminal mark nor a JSON
	// object. It is relayed as it is.
	Malformed
)

// Has tells whether all of want are set.
func (f Flags) Has(want Flags) bool { return f&want == want }

// String spells the flags.
func (f Flags) String() string {
	var names []string
	for i, name := range []string{"first", "content", "usage", "usage-chunk", "finish", "done", "error", "malformed"} {
		if f&(1<<i) != 0 {
			names = append(names, name)
		}
	}
	return strings.Join(names, "+")
}
