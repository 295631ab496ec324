package simworker

// Tokenizer turns bodies into token ids and ids into text. Implementations
// are safe for concurrent use. An error's text goes to the client in a 400, so
// it must not hold anything that the client did not send.
type Tokenizer interface {
	// EncodeChat returns the prompt of a chat body, rendered by the model's
	// template. Unknown fields are ignored.
	EncodeChat(body []byte) ([]uint32, error)
	// EncodeCompletion returns one prompt for each element of the body's
	// "prompt": a string, a list of strings, ids, or lists of ids.
	EncodeCompletion(body []byte) ([][]uint32, error)
	// Decode returns the text of ids. Ids outside the vocabulary give nothing;
	// an incomplete UTF-8 sequence gives U+FFFD.
	Decode(ids []uint32) string
	// VocabSize is the number of ids that generated text is drawn from.
	VocabSize() int
}
