package tokenize

// Kind is the shape of a request body.
type Kind uint8

// The bodies that are understood.
const (
	// Chat is a chat completions body: messages, tools, template settings.
	Chat Kind = iota + 1
	// Completion is a completions body: a text, a list of texts, token ids, or a
	// list of lists of token ids.
	Completion
	// Messages is a body of Anthropic's Messages API. Only workers understand it,
	// and they tell how long its prompt is and not its ids.
	Messages
)

// String names the kind for messages.
func (k Kind) String() string {
	switch k {
	case Chat:
		return "chat"
	case Completion:
		return "completion"
	case Messages:
		return "messages"
	default:
		return "unknown"
	}
}

// Prompts holds the token ids of the prompts of one request. A chat body has
// one prompt, a completions body one or more. The zero value is empty and ready.
// It is scratch space: keep one per request, or pool it.
type Prompts struct {
	// IDs are the ids of all prompts, one prompt after another.
	IDs []uint32
	// Ends[i] is where prompt i ends in IDs; it starts where the one before ends.
	Ends []int
	// Beginning is set when the last prompt goes on with something that has no
	// known ids, such as an image: its ids are those before that.
	Beginning bool
	// Length is that of the one prompt whose ids were not told; else 0.
	Length int
}

// Reset empties p and keeps its memory.
func (p *Prompts) Reset() {
	p.IDs = p.IDs[:0]
	p.Ends = p.Ends[:0]
	p.Beginning, p.Length = false, 0
}

// Len is the number of prompts.
func (p *Prompts) Len() int { return len(p.Ends) }

// At returns the ids of prompt i. The slice is a view into p.IDs: it is valid
// until the next Append or Reset.
func (p *Prompts) At(i int) []uint32 {
	start := 0
	if i > 0 {
		start = p.Ends[i-1]
	}
	return p.IDs[start:p.Ends[i]:p.Ends[i]]
}

// end closes the prompt whose ids were appended last.
func (p *Prompts) end() { p.Ends = append(p.Ends, len(p.IDs)) }

// Explanation tells how a body became token ids, for an operator who asks why.
// It holds the text of the request: show it only to those who may read that.
type Explanation struct {
	Prompts []ExplainedPrompt
}

// ExplainedPrompt is one prompt of an [Explanation].
type ExplainedPrompt struct {
	// Beginning is set when the prompt goes on with something that has no known
	// ids, such as an image. The segments then cover the beginning of Text only.
	Beginning bool
	// Text is what the tokenizer was given: the rendered chat template, or the
	// prompt itself. It is empty for a prompt that came as token ids.
	Text string
	// Segments cover Text in order; their ids, one after another, are the ids of
	// the prompt.
	Segments []Segment
}

// Segment is a piece of a prompt that is encoded on its own.
type Segment struct {
	// Text is the piece; empty for ids that the tokenizer added by itself (such
	// as a beginning-of-sequence token) or that the client sent.
	Text string
	// IDs are the ids of the piece.
	IDs []uint32
	// Special marks a token of the added vocabulary, found literally in the text
	// or added by the tokenizer.
	Special bool
	// Cached tells that the ids came from the memo and not from the encoder.
	Cached bool
}
