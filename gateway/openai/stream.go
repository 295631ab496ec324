package openai

import "bytes"

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
	// Done is the terminal mark, [DONE].
	Done
	// StreamError is an error of the worker inside the stream; MapStreamError
	// rebuilds it.
	StreamError
	// Malformed is an event whose data is neither [DONE] nor a JSON object. It
	// is relayed as it is.
	Malformed
)

// Has tells whether all of want are set.
func (f Flags) Has(want Flags) bool { return f&want == want }

// Stream observes the events of one answer to chat or completions. The zero
// value is ready to use. It allocates nothing and keeps no view of the data. It
// is not safe for concurrent use.
type Stream struct {
	usage    Usage
	seen     Flags
	deltas   int64
	complete bool
}

// Reset makes the Stream ready for another answer.
func (s *Stream) Reset() { *s = Stream{} }

// Usage returns the usage as far as the stream has told it: the last value of
// each count, never a sum.
func (s *Stream) Usage() Usage { return s.usage }

// Complete tells whether the usage chunk has come with known usage, so that
// Usage is final.
func (s *Stream) Complete() bool { return s.complete }

// Seen returns all flags of all events so far.
func (s *Stream) Seen() Flags { return s.seen }

// ContentDeltas counts the non-empty pieces of output so far. It stands in for
// the output tokens where no usage came; an event may hold several tokens.
func (s *Stream) ContentDeltas() int64 { return s.deltas }

// Observe looks at the data of the next event and returns what it is, 0 for an
// event without data or without anything of interest.
func (s *Stream) Observe(data []byte) Flags {
	f := s.observe(bytes.Trim(data, " \t\r\n"))
	if f.Has(Content) && !s.seen.Has(Content) {
		f |= FirstToken
	}
	s.seen |= f
	return f
}

func (s *Stream) observe(data []byte) Flags {
	switch {
	case len(data) == 0:
		return 0
	case string(data) == "[DONE]":
		return Done
	case data[0] != '{':
		return Malformed
	}
	c := chunk{cursor: cursor{b: data, maxDepth: answerDepth}}
	c.read()
	if c.bad != faultNone {
		return Malformed
	}
	return s.take(&c)
}

// take adds what a chunk says to what is known.
func (s *Stream) take(c *chunk) Flags {
	var f Flags
	if c.failed || c.flatError {
		f |= StreamError
	}
	if c.finished {
		f |= FinishReason
	}
	if c.pieces > 0 {
		f |= Content
		s.deltas += c.pieces
	}
	usageOnly := c.hasChoices && c.choices == 0 && c.hasUsage
	if usageOnly {
		f |= UsageChunk
	}
	if c.usage.Known {
		f |= HasUsage
		s.complete = usageOnly
		s.merge(c.usage)
	}
	return f
}

// merge takes a later usage over, except for a count that only an earlier one
// knew: the engine repeats the totals in its last chunk, but not all details.
func (s *Stream) merge(u Usage) {
	if !u.CachedKnown && s.usage.CachedKnown && s.usage.Cached <= u.Input {
		u.Cached, u.CachedKnown = s.usage.Cached, true
	}
	if u.Reasoning == 0 && s.usage.Reasoning <= u.Output {
		u.Reasoning = s.usage.Reasoning
	}
	s.usage = u
}

// chunk is one event's object. Where a key occurs twice the last one counts, as
// it does for the readers clients use.
type chunk struct {
	cursor
	usage      Usage
	hasUsage   bool // usage is there and not null
	hasChoices bool // choices is an array
	choices    int
	pieces     int64 // choices with output in them
	finished   bool
	failed     bool // error is there and not null
	flatError  bool // object is "error"
}

func (c *chunk) read() {
	c.enter()
	for key, ok := c.member(); ok; key, ok = c.member() {
		switch {
		case c.is(key, "choices"):
			c.readChoices()
		case c.is(key, "usage"):
			c.hasUsage = c.peek() != 'n'
			c.usage = c.cursor.usage()
		case c.is(key, "error"):
			c.failed = c.peek() != 'n'
			c.skip()
		case c.is(key, "object"):
			c.flatError = c.textIs("error")
		default:
			c.skip()
		}
	}
	c.finish()
}

func (c *chunk) readChoices() {
	c.hasChoices = c.peek() == '['
	c.choices, c.pieces, c.finished = 0, 0, false
	if !c.hasChoices {
		c.skip()
		return
	}
	c.enter()
	for c.element() {
		c.choices++
		if c.peek() == '{' {
			c.readChoice()
		} else {
			c.skip()
		}
	}
}

func (c *chunk) readChoice() {
	var text, delta, finished bool
	c.enter()
	for key, ok := c.member(); ok; key, ok = c.member() {
		switch {
		case c.is(key, "text"):
			text = c.nonEmpty()
		case c.is(key, "delta"):
			delta = c.readDelta()
		case c.is(key, "finish_reason"):
			finished = c.peek() == '"'
			c.skip()
		default:
			c.skip()
		}
	}
	if text || delta {
		c.pieces++
	}
	c.finished = c.finished || finished
}

// readDelta tells whether a delta holds output: text, reasoning, a refusal or a
// tool call. The role alone is none.
func (c *chunk) readDelta() bool {
	var content, reasoning, reasoningContent, refusal, calls bool
	if c.peek() != '{' {
		c.skip()
		return false
	}
	c.enter()
	for key, ok := c.member(); ok; key, ok = c.member() {
		switch {
		case c.is(key, "content"):
			content = c.nonEmpty()
		case c.is(key, "reasoning"):
			reasoning = c.nonEmpty()
		case c.is(key, "reasoning_content"):
			reasoningContent = c.nonEmpty()
		case c.is(key, "refusal"):
			refusal = c.nonEmpty()
		case c.is(key, "tool_calls"):
			calls = c.hasElements()
		default:
			c.skip()
		}
	}
	return content || reasoning || reasoningContent || refusal || calls
}

// nonEmpty passes over a value and tells whether it is a string with something
// in it.
func (c *cursor) nonEmpty() bool {
	if c.peek() != '"' {
		c.skip()
		return false
	}
	t := c.str()
	return t.end > t.start
}

// hasElements passes over a value and tells whether it is an array with
// something in it.
func (c *cursor) hasElements() bool {
	if c.peek() != '[' {
		c.skip()
		return false
	}
	n := 0
	c.enter()
	for c.element() {
		n++
		c.skip()
	}
	return n > 0
}

// textIs passes over a value and tells whether it is the given string of plain
// ASCII.
func (c *cursor) textIs(want string) bool {
	if c.peek() != '"' {
		c.skip()
		return false
	}
	return c.is(c.str(), want)
}
