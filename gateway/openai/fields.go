package openai

// field is a top-level key that the gateway reads, on any of its routes.
type field uint8

const (
	fieldModel field = iota
	fieldStream
	fieldStreamOptions
	fieldMaxTokens
	fieldMaxCompletionTokens
	fieldMaxOutputTokens
	fieldN
	fieldBestOf
	fieldPriority
	fieldCacheSalt
	fieldUser
	fieldPreviousResponseID
	fieldBackground
	fieldMessages
	fieldPrompt
	fieldInput
	fieldInstructions
	fieldSystem
	fieldTools
	fieldKVTransferParams
	fieldECTransferParams
	fieldXArgs
	fieldCount
	fieldNone = fieldCount
)

// String returns the key.
func (f field) String() string {
	return [...]string{
		"model", "stream", "stream_options",
		"max_tokens", "max_completion_tokens", "max_output_tokens",
		"n", "best_of", "priority", "cache_salt", "user",
		"previous_response_id", "background",
		"messages", "prompt", "input", "instructions", "system", "tools",
		"kv_transfer_params", "ec_transfer_params", "vllm_xargs", "unread",
	}[f]
}

// fieldOf returns the field of a key. Names are compared exactly: "Model" is
// some other key.
func fieldOf(key []byte) field {
	switch string(key) {
	case "model":
		return fieldModel
	case "stream":
		return fieldStream
	case "stream_options":
		return fieldStreamOptions
	case "max_tokens":
		return fieldMaxTokens
	case "max_completion_tokens":
		return fieldMaxCompletionTokens
	case "max_output_tokens":
		return fieldMaxOutputTokens
	case "n":
		return fieldN
	case "best_of":
		return fieldBestOf
	case "priority":
		return fieldPriority
	case "cache_salt":
		return fieldCacheSalt
	case "user":
		return fieldUser
	case "previous_response_id":
		return fieldPreviousResponseID
	case "background":
		return fieldBackground
	case "messages":
		return fieldMessages
	case "prompt":
		return fieldPrompt
	case "input":
		return fieldInput
	case "instructions":
		return fieldInstructions
	case "system":
		return fieldSystem
	case "tools":
		return fieldTools
	case "kv_transfer_params":
		return fieldKVTransferParams
	case "ec_transfer_params":
		return fieldECTransferParams
	case "vllm_xargs":
		return fieldXArgs
	}
	return fieldNone
}

// member is where a key and its value stand in a body.
type member struct {
	key        int // of the key's opening quote
	start, end int // of the value
	ordinal    int // how many members of its object come before it
	present    bool
}

// object is the extent of an object whose members may change.
type object struct {
	open    int // behind the opening bracket
	tail    int // behind the last member's value, or open
	members int
}

// scanState is what a Request keeps of a scan for AppendRewrite, and memory
// that is used again.
type scanState struct {
	size       int // of the body
	top        object
	options    object
	fields     [fieldCount]member
	include    member // stream_options.include_usage
	continuous member // stream_options.continuous_usage_stats
	ints       [fieldCount]int64
	given      [fieldCount]bool // ints that are not null
	scratch    []byte           // unescaped strings
}

// maxScratch is the largest scratch memory kept from one body to the next.
const maxScratch = 64 << 10

func (s *scanState) reset() scanState {
	if cap(s.scratch) > maxScratch {
		return scanState{}
	}
	return scanState{scratch: s.scratch[:0]}
}
