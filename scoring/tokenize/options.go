package tokenize

import (
	"encoding/json"
	"time"
)

// Options tells how the workers of a model were started, as far as it changes
// the prompt, and what the tokenizer may use. The zero value is right for
// workers started without template flags.
type Options struct {
	// ChatTemplate replaces the model's own template; it is what the workers got
	// with --chat-template. Empty means the model's own.
	ChatTemplate string
	// ContentFormat is --chat-template-content-format: "auto" (or empty),
	// "string" or "openai".
	ContentFormat string
	// TemplateKwargs is --default-chat-template-kwargs, a JSON object.
	TemplateKwargs json.RawMessage
	// CacheBytes bounds the memo of encoded segments. 0 means 256 MiB, a negative
	// number switches the memo off.
	CacheBytes int64
	// Gate bounds the encoding of long texts; tokenizers of one process should
	// share one. Nil means one of its own with GOMAXPROCS places.
	Gate *Gate
	// Now is the clock that templates see through strftime_now; its location
	// should be the workers'. Nil means time.Now.
	Now func() time.Time
}

// Stats counts what a Tokenizer did since it was loaded.
type Stats struct {
	// Hits and Misses count look-ups of segments in the memo.
	Hits, Misses uint64
	// EncodedBytes is the text that went through the encoder.
	EncodedBytes uint64
	// CacheBytes and CacheEntries are what the memo holds now.
	CacheBytes   int64
	CacheEntries int
	// Evictions counts segments that the memo dropped to stay within its bound.
	Evictions uint64
}
