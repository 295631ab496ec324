package openai

import (
	"bytes"

	"github.com/sluicegate/sluice/gateway/jsonscan"
	"github.com/sluicegate/sluice/gateway/wire"
)

// Stream observes the events of one answer to chat or completions. The zero
// value is ready to use. It allocates nothing and keeps no view of the data. It
// is not safe for concurrent use.
type Stream struct {
	usage    wire.Usage
	seen     wire.Flags
	deltas   int64
	complete bool
}

// Reset makes the Stream ready for another answer.
func (s *Stream) Reset() { *s = Stream{} }

// Usage returns the usage as far as the stream has told it: the last value of
// each count, never a sum.
func (s *Stream) Usage() wire.Usage { return s.usage }

// Complete tells whether the usage chunk has come with known usage, so that
// Usage is final.
func (s *Stream) Complete() bool { return s.complete }

// Seen returns all flags of all events so far.
func (s *Stream) Seen() wire.Flags { return s.seen }

// ContentDeltas counts the non-empty pieces of output so far. It stands in for
// the output tokens where no usage came; an event may hold several tokens.
func (s *Stream) ContentDeltas() int64 { return s.deltas }

// Observe looks at the data of the next event and returns what it is, 0 for an
// event without data or without anything of interest.
func (s *Stream) Observe(data []byte) wire.Flags {
	f := s.observe(bytes.Trim(data, " \t\r\n"))
	if f.Has(wire.Content) && !s.seen.Has(wire.Content) {
		f |= wire.FirstToken
	}
	s.seen |= f
	return f
}

func (s *Stream) observe(data []byte) wire.Flags {
	switch {
	case len(data) == 0:
		return 0
	case string(data) == "[DONE]":
		return wire.Done
	case data[0] != '{':
		return wire.Malformed
	}
	c := chunk{reader: reader{jsonscan.Cursor{B: data, MaxDepth: jsonscan.AnswerDepth}}}
	c.read()
	if c.Bad != jsonscan.FaultNone {
		return wire.Malformed
	}
	return s.take(&c)
}

// take adds what a chunk says to what is known.
func (s *Stream) take(c *chunk) wire.Flags {
	var f wire.Flags
	if c.failed || c.flatError {
		f |= wire.StreamError
	}
	if c.finished {
		f |= wire.FinishReason
	}
	if c.pieces > 0 {
		f |= wire.Content
		s.deltas += c.pieces
	}
	usageOnly := c.hasChoices && c.choices == 0 && c.hasUsage
	if usageOnly {
		f |= wire.UsageChunk
	}
	if c.usage.Known {
		f |= wire.HasUsage
		s.complete = usageOnly
		s.merge(c.usage)
	}
	return f
}

// merge takes a later usage over, except for a count that only an earlier one
// knew: the engine repeats the totals in its last chunk, but not all details.
func (s *Stream) merge(u wire.Usage) {
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
	reader
	usage      wire.Usage
	hasUsage   bool // usage is there, if only as null
	hasChoices bool // choices is an array
	choices    int
	pieces     int64 // choices with output in them
	finished   bool
	failed     bool // error is there and not null
	flatError  bool // object is "error"
}

func (c *chunk) read() {
	c.Enter()
	for key, ok := c.Member(); ok; key, ok = c.Member() {
		switch {
		case c.Is(key, "choices"):
			c.readChoices()
		case c.Is(key, "usage"):
			c.hasUsage = true
			c.usage = c.reader.usage(&chatUsage, false)
		case c.Is(key, "error"):
			c.failed = c.Peek() != 'n'
			c.Skip()
		case c.Is(key, "object"):
			c.flatError = c.TextIs("error")
		default:
			c.Skip()
		}
	}
	c.Finish()
}

func (c *chunk) readChoices() {
	c.hasChoices = c.Peek() == '['
	c.choices, c.pieces, c.finished = 0, 0, false
	if !c.hasChoices {
		c.Skip()
		return
	}
	c.Enter()
	for c.Element() {
		c.choices++
		if c.Peek() == '{' {
			c.readChoice()
		} else {
			c.Skip()
		}
	}
}

func (c *chunk) readChoice() {
	var text, delta, finished bool
	c.Enter()
	for key, ok := c.Member(); ok; key, ok = c.Member() {
		switch {
		case c.Is(key, "text"):
			text = c.NonEmpty()
		case c.Is(key, "delta"):
			delta = c.readDelta()
		case c.Is(key, "finish_reason"):
			finished = c.Peek() == '"'
			c.Skip()
		default:
			c.Skip()
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
	if c.Peek() != '{' {
		c.Skip()
		return false
	}
	c.Enter()
	for key, ok := c.Member(); ok; key, ok = c.Member() {
		switch {
		case c.Is(key, "content"):
			content = c.NonEmpty()
		case c.Is(key, "reasoning"):
			reasoning = c.NonEmpty()
		case c.Is(key, "reasoning_content"):
			reasoningContent = c.NonEmpty()
		case c.Is(key, "refusal"):
			refusal = c.NonEmpty()
		case c.Is(key, "tool_calls"):
			calls = c.HasElements()
		default:
			c.Skip()
		}
	}
	return content || reasoning || reasoningContent || refusal || calls
}
