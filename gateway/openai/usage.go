package openai

import (
	"fmt"

	"github.com/sluicegate/sluice/gateway/jsonscan"
	"github.com/sluicegate/sluice/gateway/wire"
)

// ReadUsage returns the usage of an answer that is not a stream; it is not
// Known when the answer has none that is sane. The error says that the body is
// not one JSON object; it does not quote the body.
func ReadUsage(body []byte) (wire.Usage, error) {
	c := reader{jsonscan.Cursor{B: body, MaxDepth: jsonscan.AnswerDepth}}
	c.Document()
	start, kind := c.I, c.Peek()
	var u wire.Usage
	if kind == '{' {
		u = c.answer()
	} else {
		c.Skip()
	}
	c.Finish()
	if c.Bad != jsonscan.FaultNone {
		return wire.Usage{}, fmt.Errorf("cannot read usage: the answer is not valid JSON: %v (at byte %d)", c.Bad, c.BadAt)
	}
	if kind != '{' {
		return wire.Usage{}, fmt.Errorf("cannot read usage: the answer is %s, not an object", jsonscan.KindOf(body[start:]))
	}
	return u, nil
}

// reader reads the answer of a worker.
type reader struct{ jsonscan.Cursor }

// answer reads the object of an answer that is not a stream.
func (c *reader) answer() wire.Usage {
	var u wire.Usage
	c.Enter()
	for key, ok := c.Member(); ok; key, ok = c.Member() {
		if c.Is(key, "usage") {
			u = c.usage()
		} else {
			c.Skip()
		}
	}
	return u
}

// usage reads a usage object; anything else is no usage.
func (c *reader) usage() wire.Usage {
	var u wire.Usage
	var input, output bool
	if c.Peek() != '{' {
		c.Skip()
		return u
	}
	c.Enter()
	for key, ok := c.Member(); ok; key, ok = c.Member() {
		switch {
		case c.Is(key, "prompt_tokens"):
			u.Input, input = c.Count()
		case c.Is(key, "completion_tokens"):
			u.Output, output = c.Count()
		case c.Is(key, "prompt_tokens_details"):
			u.Cached, u.CachedKnown = c.detail("cached_tokens")
		case c.Is(key, "completion_tokens_details"):
			u.Reasoning, _ = c.detail("reasoning_tokens")
		default:
			c.Skip()
		}
	}
	if !input || !output {
		return wire.Usage{}
	}
	u.Known = true
	if u.Cached > u.Input {
		u.Cached, u.CachedKnown = 0, false
	}
	if u.Reasoning > u.Output {
		u.Reasoning = 0
	}
	return u
}

// detail reads one count of an object of details.
func (c *reader) detail(name string) (n int64, known bool) {
	if c.Peek() != '{' {
		c.Skip()
		return 0, false
	}
	c.Enter()
	for key, ok := c.Member(); ok; key, ok = c.Member() {
		if c.Is(key, name) {
			n, known = c.Count()
		} else {
			c.Skip()
		}
	}
	return n, known
}
