package openai

import "fmt"

// Usage is the token counts of an answer.
type Usage struct {
	// Input counts prompt tokens, cached ones included.
	Input int64
	// Cached counts prompt tokens read from the cache; it means something only
	// when CachedKnown.
	Cached int64
	// Output counts generated tokens of all choices, reasoning included.
	Output int64
	// Reasoning counts the generated tokens that were reasoning, 0 when the
	// worker does not say.
	Reasoning int64
	// CachedKnown is false when the worker did not say how many tokens were
	// cached, which is not the same as none.
	CachedKnown bool
	// Known is true when both Input and Output were given and are sane.
	Known bool
}

// maxCount bounds a token count: no answer comes near it, and sums of a few
// cannot overflow.
const maxCount = 1 << 40

// Check returns u, or Usage that is not known if u cannot be true for an answer
// of a model with a context of contextLen tokens (0: unknown) to that many
// prompts and choices a prompt: each prompt, and each choice, fits the context.
func (u Usage) Check(contextLen int64, prompts int, choices int64) Usage {
	if !u.Known || contextLen <= 0 {
		return u
	}
	over := func(n, parts int64) bool { return n > 0 && (n-1)/parts >= contextLen }
	p, c := max(int64(prompts), 1), max(choices, 1)
	if over(u.Input, p) || over(u.Output, p*c) {
		return Usage{}
	}
	return u
}

// ReadUsage returns the usage of an answer that is not a stream; it is not
// Known when the answer has none that is sane. The error says that the body is
// not one JSON object; it does not quote the body.
func ReadUsage(body []byte) (Usage, error) {
	c := cursor{b: body, maxDepth: answerDepth}
	c.document()
	start, kind := c.i, c.peek()
	var u Usage
	if kind == '{' {
		u = c.answer()
	} else {
		c.skip()
	}
	c.finish()
	if c.bad != faultNone {
		return Usage{}, fmt.Errorf("cannot read usage: the answer is not valid JSON: %v (at byte %d)", c.bad, c.badAt)
	}
	if kind != '{' {
		return Usage{}, fmt.Errorf("cannot read usage: the answer is %s, not an object", kindOf(body[start:]))
	}
	return u, nil
}

// answer reads the object of an answer that is not a stream.
func (c *cursor) answer() Usage {
	var u Usage
	c.enter()
	for key, ok := c.member(); ok; key, ok = c.member() {
		if c.is(key, "usage") {
			u = c.usage()
		} else {
			c.skip()
		}
	}
	return u
}

// is tells whether a key has the given name, which is plain ASCII.
func (c *cursor) is(key token, name string) bool {
	raw := c.b[key.start:key.end]
	if !key.escaped {
		return string(raw) == name
	}
	var buf [64]byte
	return key.size == len(name) && string(appendUnescaped(buf[:0], raw)) == name
}

// usage reads a usage object; anything else is no usage.
func (c *cursor) usage() Usage {
	var u Usage
	var input, output bool
	if c.peek() != '{' {
		c.skip()
		return u
	}
	c.enter()
	for key, ok := c.member(); ok; key, ok = c.member() {
		switch {
		case c.is(key, "prompt_tokens"):
			u.Input, input = c.tokens()
		case c.is(key, "completion_tokens"):
			u.Output, output = c.tokens()
		case c.is(key, "prompt_tokens_details"):
			u.Cached, u.CachedKnown = c.detail("cached_tokens")
		case c.is(key, "completion_tokens_details"):
			u.Reasoning, _ = c.detail("reasoning_tokens")
		default:
			c.skip()
		}
	}
	if !input || !output {
		return Usage{}
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

// tokens reads a count; it reports false for null and for what cannot be one.
func (c *cursor) tokens() (int64, bool) {
	if ch := c.peek(); ch == '-' || ch >= '0' && ch <= '9' {
		return integer(c.number(), maxCount)
	}
	c.skip()
	return 0, false
}

// detail reads one count of an object of details.
func (c *cursor) detail(name string) (n int64, known bool) {
	if c.peek() != '{' {
		c.skip()
		return 0, false
	}
	c.enter()
	for key, ok := c.member(); ok; key, ok = c.member() {
		if c.is(key, name) {
			n, known = c.tokens()
		} else {
			c.skip()
		}
	}
	return n, known
}
