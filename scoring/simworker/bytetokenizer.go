package simworker

import "errors"

// ByteTokenizer is a tokenizer without a model: one id a byte, and a few
// special ones for a ChatML template. It is for tests that need no real one.
type ByteTokenizer struct{}

// NewByteTokenizer returns a ByteTokenizer.
func NewByteTokenizer() *ByteTokenizer { return &ByteTokenizer{} }

var errNotReady = errors.New("not available")

// EncodeChat implements Tokenizer.
func (*ByteTokenizer) EncodeChat([]byte) ([]uint32, error) { return nil, errNotReady }

// EncodeCompletion implements Tokenizer.
func (*ByteTokenizer) EncodeCompletion([]byte) ([][]uint32, error) { return nil, errNotReady }

// Decode implements Tokenizer.
func (*ByteTokenizer) Decode([]uint32) string { return "" }

// VocabSize implements Tokenizer.
func (*ByteTokenizer) VocabSize() int { return 256 }
