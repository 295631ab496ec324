package wire

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
