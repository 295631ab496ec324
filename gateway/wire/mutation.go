package wire

// Mutation is what must change in a body before it goes to a worker. The zero
// value changes nothing.
type Mutation struct {
	// Model replaces the model's name, for an alias.
	Model *string
	// MaxTokens is written to max_tokens and max_completion_tokens, whichever
	// the body has; with neither, and always on completions, to max_tokens. On
	// responses it is max_output_tokens; where nothing is generated there is none.
	MaxTokens *int64
	// N is an upper bound: n and best_of above it are lowered to it, and
	// nothing else about them changes.
	N *int64
	// CacheSalt sets cache_salt. RemoveCacheSalt takes it out; both together
	// are a bug.
	CacheSalt       *string
	RemoveCacheSalt bool
	// Priority sets priority. RemovePriority takes it out; both together are a
	// bug.
	Priority       *int64
	RemovePriority bool
	// InjectUsage asks the worker for the usage chunk: it sets
	// stream_options.include_usage, and if that was not true, turns
	// continuous_usage_stats off. It does nothing to a request that does not
	// stream, which the worker would refuse.
	InjectUsage bool
}
