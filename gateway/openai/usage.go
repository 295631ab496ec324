package openai

import (
	"fmt"

	"github.com/sluicegate/sluice/gateway/jsonscan"
	"github.com/sluicegate/sluice/gateway/wire"
)

// ReadUsage returns the usage of an answer that is not a stream; it is not
// Known when the answer has none that is sane. What gives no text has no output
// tokens, and what puts nothing through a model has no tokens at all. The error says
// that the body is not one JSON object; it does not quote the body.
func ReadUsage(op wire.Operation, body []byte) (wire.Usage, error) {
	c := reader{jsonscan.Cursor{B: body, MaxDepth: jsonscan.AnswerDepth}}
	c.Document()
	start, kind := c.I, c.Peek()
	var u wire.Usage
	if kind == '{' {
		u = c.answer(op == wire.Embeddings)
	} else {
		c.Skip()
	}
	c.Finish()
	if err := c.answerFault(body, start); err != nil {
		return wire.Usage{}, err
	}
	if op == wire.Tokenize || op == wire.Detokenize {
		return wire.Usage{Known: true, CachedKnown: true}, nil
	}
	return u, nil
}

// answerFault says what is wrong with an answer that was read, whose value begins at
// start; nil if it is an object.
func (c *reader) answerFault(body []byte, start int) error {
	if c.Bad != jsonscan.FaultNone {
		return fmt.Errorf("cannot read usage: the answer is not valid JSON: %v (at byte %d)", c.Bad, c.BadAt)
	}
	if body[start] != '{' {
		return fmt.Errorf("cannot read usage: the answer is %s, not an object", jsonscan.KindOf(body[start:]))
	}
	return nil
}

// reader reads the answer of a worker.
type reader struct{ jsonscan.Cursor }

// answer reads the object of an answer that is not a stream.
func (c *reader) answer(inputOnly bool) wire.Usage {
	var u wire.Usage
	c.Enter()
	for key, ok := c.Member(); ok; key, ok = c.Member() {
		if c.Is(key, "usage") {
			u = c.usage(&chatUsage, inputOnly)
		} else {
			c.Skip()
		}
	}
	return u
}

// usageNames are the names that a route has for the counts of a usage object.
type usageNames struct{ input, output, inputDetails, outputDetails string }

var (
	chatUsage     = usageNames{"prompt_tokens", "completion_tokens", "prompt_tokens_details", "completion_tokens_details"}
	responseUsage = usageNames{"input_tokens", "output_tokens", "input_tokens_details", "output_tokens_details"}
)

// usage reads a usage object; anything else is no usage. With inputOnly there is no
// output to be counted, whatever it says.
func (c *reader) usage(names *usageNames, inputOnly bool) wire.Usage {
	var u wire.Usage
	var input, output bool
	if c.Peek() != '{' {
		c.Skip()
		return u
	}
	c.Enter()
	for key, ok := c.Member(); ok; key, ok = c.Member() {
		switch {
		case c.Is(key, names.input):
			u.Input, input = c.Count()
		case c.Is(key, names.output):
			u.Output, output = c.Count()
		case c.Is(key, names.inputDetails):
			u.Cached, u.CachedKnown = c.detail("cached_tokens")
		case c.Is(key, names.outputDetails):
			u.Reasoning, _ = c.detail("reasoning_tokens")
		default:
			c.Skip()
		}
	}
	if inputOnly {
		u.Output, u.Reasoning, output = 0, 0, true
	}
	if !input || !output {
		return wire.Usage{}
	}
	return sane(u)
}

// sane marks usage as known, without the details that can't be true.
func sane(u wire.Usage) wire.Usage {
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
