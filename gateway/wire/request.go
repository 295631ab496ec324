package wire

// Operation is the endpoint a body was sent to.
type Operation uint8

const (
	// Chat is POST /v1/chat/completions.
	Chat Operation = iota + 1
	// Completion is POST /v1/completions.
	Completion
	// Embeddings is POST /v1/embeddings.
	Embeddings
	// Responses is POST /v1/responses.
	Responses
	// Messages is POST /v1/messages.
	Messages
	// CountTokens is POST /v1/messages/count_tokens.
	CountTokens
	// Tokenize is POST /tokenize.
	Tokenize
	// Detokenize is POST /detokenize.
	Detokenize
)

// String returns the name that policies know the operation by.
func (op Operation) String() string {
	switch op {
	case Chat:
		return "chat"
	case Completion:
		return "completion"
	case Embeddings:
		return "embeddings"
	case Responses:
		return "responses"
	case Messages:
		return "messages"
	case CountTokens:
		return "count_tokens"
	case Tokenize:
		return "tokenize"
	case Detokenize:
		return "detokenize"
	}
	return "unknown"
}

// StreamOptions is the request's stream_options.
type StreamOptions struct {
	// Present is true when the key holds an object.
	Present bool
	// IncludeUsage is stream_options.include_usage: the client wants the usage
	// chunk.
	IncludeUsage bool
	// ContinuousUsage is stream_options.continuous_usage_stats.
	ContinuousUsage bool
}

// Modality is a set of kinds of content.
type Modality uint8

const (
	// Text is text of any kind, token ids included.
	Text Modality = 1 << iota
	// Image is a picture, by URL or inline.
	Image
	// Audio is sound.
	Audio
	// Video is moving pictures.
	Video
	// File is a document.
	File
)

// AppendNames appends the names that policies know the modalities by, in a
// fixed order.
func (m Modality) AppendNames(dst []string) []string {
	for i, name := range [...]string{"text", "image", "audio", "video", "file"} {
		if m&(1<<i) != 0 {
			dst = append(dst, name)
		}
	}
	return dst
}

// Request is what Scan found in a body. Its byte slices and pointers are views
// into the body or into the Request itself: they hold until the body changes or
// Reset is called, and must not be changed. Null counts as absent throughout.
//
// A Request is made to be pooled: one Scan after another, each of which resets
// it first. It is not safe for concurrent use.
type Request struct {
	// Operation is what Scan was told.
	Operation Operation
	// Model is the model's name as the client wrote it, unescaped: never empty,
	// at most 256 characters.
	Model []byte
	// Stream tells whether the client wants an event stream.
	Stream bool
	// StreamOptions is what the client said about usage.
	StreamOptions StreamOptions
	// MaxTokens is the limit on output tokens that the engine will apply, nil
	// when the client gave none. On chat it is max_completion_tokens if given,
	// else max_tokens; on completions max_tokens if given, else
	// max_completion_tokens, which the engine does not know there.
	MaxTokens *int64
	// N and BestOf are n and best_of, nil when absent.
	N, BestOf *int64
	// User is the client's own word for its user: good for keys, never an
	// identity. Nil when absent.
	User []byte
	// CacheSalt is the client's cache_salt, nil when absent.
	CacheSalt []byte
	// HasPriority is true when the client gave a priority, which is Priority.
	HasPriority bool
	Priority    int64
	// ToolNames are the names of the declared tools, in order: at most 512, of
	// at most 128 characters each. One that has no function.name is empty here.
	ToolNames [][]byte
	// MessageCount is the number of messages.
	MessageCount int
	// ImageCount is the number of images in the messages.
	ImageCount int
	// Modalities are the kinds of content that occur.
	Modalities Modality
	// TextBytes is the size in UTF-8 of all text that becomes part of a prompt:
	// the messages' text and tool calls and the declared tools, or the prompts.
	TextBytes int
	// TokenIDs is the number of prompt tokens given as ids.
	TokenIDs int
	// PromptCount is the number of prompts: 1 on chat, the number of strings or
	// token id lists in prompt on completions, and 0 there without a prompt.
	PromptCount int
	// PreviousResponse is previous_response_id, nil when absent, and Background is
	// background; they mean something to responses alone.
	PreviousResponse []byte
	Background       bool
	// StreamInterval is how many tokens an event of the stream may hold because the
	// client wants it so; 0 where it has not said.
	StreamInterval int64
	// Features are the things in the body that chat templates treat each in a way
	// of its own.
	Features Feature
	// ChatForm is the body in the form of a chat completion, for those who find
	// its tokens; nil where the body itself is what they read.
	ChatForm []byte
	// Places is where the scan has found things. It belongs to the dialect that
	// has scanned the body, and is what its rewrite goes by.
	Places Places
}

// Reset forgets everything about the last body but keeps memory for the next.
func (r *Request) Reset() {
	*r = Request{ToolNames: r.ToolNames[:0], Places: r.Places.reset()}
}

// Choices is the number of choices the engine will generate for each prompt:
// the larger of n and best_of, at least 1.
func (r *Request) Choices() int64 {
	c := int64(1)
	if r.N != nil {
		c = max(c, *r.N)
	}
	if r.BestOf != nil {
		c = max(c, *r.BestOf)
	}
	return c
}
