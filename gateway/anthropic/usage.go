package anthropic

import (
	"fmt"

	"github.com/sluicegate/sluice/gateway/jsonscan"
	"github.com/sluicegate/sluice/gateway/wire"
)

// counts are the token counts of an answer as this API gives them, each known or
// not.
type counts struct {
	input, output, read, creation             int64
	hasInput, hasOutput, hasRead, hasCreation bool
}

// add takes over what later counts know. The last of each counts: they are
// repeated and never have to be added up.
func (c *counts) add(later counts) {
	if later.hasInput {
		c.input, c.hasInput = later.input, true
	}
	if later.hasOutput {
		c.output, c.hasOutput = later.output, true
	}
	if later.hasRead {
		c.read, c.hasRead = later.read, true
	}
	if later.hasCreation {
		c.creation, c.hasCreation = later.creation, true
	}
}

// usage is what the counts come to. The input of this API is what neither came
// from the cache nor went into it, so that all three make the prompt.
func (c *counts) usage() wire.Usage {
	if !c.hasInput || !c.hasOutput {
		return wire.Usage{}
	}
	return wire.Usage{
		Input: c.input + c.read + c.creation, Cached: c.read, Output: c.output,
		CachedKnown: c.hasRead, Known: true,
	}
}

// reader reads an answer of a worker.
type reader struct{ jsonscan.Cursor }

func newReader(b []byte) reader {
	return reader{jsonscan.Cursor{B: b, MaxDepth: jsonscan.AnswerDepth}}
}

// counts reads a usage object; anything else has no counts.
func (r *reader) counts() counts {
	var c counts
	if r.Peek() != '{' {
		r.Skip()
		return c
	}
	r.Enter()
	for key, ok := r.Member(); ok; key, ok = r.Member() {
		switch {
		case r.Is(key, "input_tokens"):
			c.input, c.hasInput = r.Count()
		case r.Is(key, "output_tokens"):
			c.output, c.hasOutput = r.Count()
		case r.Is(key, "cache_read_input_tokens"):
			c.read, c.hasRead = r.Count()
		case r.Is(key, "cache_creation_input_tokens"):
			c.creation, c.hasCreation = r.Count()
		default:
			r.Skip()
		}
	}
	return c
}

// ReadUsage returns the usage of an answer that is not a stream; it is not Known
// when the answer has none that is sane. That of count_tokens has used nothing. The
// error says that the body is not one JSON object; it does not quote the body.
func (Codec) ReadUsage(_ wire.Operation, body []byte) (wire.Usage, error) {
	r := newReader(body)
	r.Document()
	start, kind := r.I, r.Peek()
	var c counts
	if kind == '{' {
		r.Enter()
		for key, ok := r.Member(); ok; key, ok = r.Member() {
			if r.Is(key, "usage") {
				c = r.counts()
			} else {
				r.Skip()
			}
		}
	} else {
		r.Skip()
	}
	r.Finish()
	if r.Bad != jsonscan.FaultNone {
		return wire.Usage{}, fmt.Errorf("cannot read usage: the answer is not valid JSON: %v (at byte %d)", r.Bad, r.BadAt)
	}
	if kind != '{' {
		return wire.Usage{}, fmt.Errorf("cannot read usage: the answer is %s, not an object", jsonscan.KindOf(body[start:]))
	}
	return c.usage(), nil
}
