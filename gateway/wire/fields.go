package wire

// Field is a top-level key that the gateway reads, on any of its routes.
type Field uint8

// The fields, in the order of their names below.
const (
	FieldModel Field = iota
	FieldStream
	FieldStreamOptions
	FieldMaxTokens
	FieldMaxCompletionTokens
	FieldMaxOutputTokens
	FieldN
	FieldBestOf
	FieldPriority
	FieldCacheSalt
	FieldUser
	FieldPreviousResponseID
	FieldBackground
	FieldStreamInterval
	FieldMessages
	FieldPrompt
	FieldInput
	FieldInstructions
	FieldSystem
	FieldTools
	FieldKVTransferParams
	FieldECTransferParams
	FieldXArgs
	// FieldCount is how many there are, and FieldNone any other key.
	FieldCount
	FieldNone = FieldCount
)

// fieldNames are the keys, by field; nothing changes them.
var fieldNames = [...]string{
	"model", "stream", "stream_options",
	"max_tokens", "max_completion_tokens", "max_output_tokens",
	"n", "best_of", "priority", "cache_salt", "user",
	"previous_response_id", "background", "stream_interval",
	"messages", "prompt", "input", "instructions", "system", "tools",
	"kv_transfer_params", "ec_transfer_params", "vllm_xargs", "unread",
}

// String returns the key.
func (f Field) String() string { return fieldNames[f] }

// FieldOf returns the field of a key. Names are compared exactly: "Model" is
// some other key.
func FieldOf(key []byte) Field {
	switch string(key) {
	case "model":
		return FieldModel
	case "stream":
		return FieldStream
	case "stream_options":
		return FieldStreamOptions
	case "max_tokens":
		return FieldMaxTokens
	case "max_completion_tokens":
		return FieldMaxCompletionTokens
	case "max_output_tokens":
		return FieldMaxOutputTokens
	case "n":
		return FieldN
	case "best_of":
		return FieldBestOf
	case "priority":
		return FieldPriority
	case "cache_salt":
		return FieldCacheSalt
	case "user":
		return FieldUser
	case "previous_response_id":
		return FieldPreviousResponseID
	case "background":
		return FieldBackground
	case "stream_interval":
		return FieldStreamInterval
	case "messages":
		return FieldMessages
	case "prompt":
		return FieldPrompt
	case "input":
		return FieldInput
	case "instructions":
		return FieldInstructions
	case "system":
		return FieldSystem
	case "tools":
		return FieldTools
	case "kv_transfer_params":
		return FieldKVTransferParams
	case "ec_transfer_params":
		return FieldECTransferParams
	case "vllm_xargs":
		return FieldXArgs
	}
	return FieldNone
}

// Member is where a key and its value stand in a body.
type Member struct {
	Key        int // of the key's opening quote
	Start, End int // of the value
	Ordinal    int // how many members of its object come before it
	Present    bool
}

// Object is the extent of an object whose members may change.
type Object struct {
	Open    int // behind the opening bracket
	Tail    int // behind the last member's value, or open
	Members int
}

// Places is what a Request keeps of a scan for a rewrite, and memory
// that is used again.
type Places struct {
	Size       int // of the body
	Top        Object
	Options    Object
	Fields     [FieldCount]Member
	Include    Member // stream_options.include_usage
	Continuous Member // stream_options.continuous_usage_stats
	Ints       [FieldCount]int64
	Given      [FieldCount]bool // ints that are not null
	Scratch    []byte           // unescaped strings
}

// maxScratch is the largest scratch memory kept from one body to the next.
const maxScratch = 64 << 10

func (s *Places) reset() Places {
	if cap(s.Scratch) > maxScratch {
		return Places{}
	}
	return Places{Scratch: s.Scratch[:0]}
}
