package openai

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
