//go:build !cgo || notokenizers

package tokenize

import (
	"context"
	"io/fs"
)

// Tokenizer computes token ids in this process. This build has no native
// library, so that none can be loaded and no method is ever called.
type Tokenizer struct{}

// Load returns ErrNoNative in this build.
func Load(string, Options) (*Tokenizer, error) { return nil, ErrNoNative }

// LoadFS returns ErrNoNative in this build.
func LoadFS(fs.FS, Options) (*Tokenizer, error) { return nil, ErrNoNative }

// Append returns ErrNoNative in this build.
func (*Tokenizer) Append(context.Context, *Prompts, Kind, []byte) error { return ErrNoNative }

// Explain returns ErrNoNative in this build.
func (*Tokenizer) Explain(Kind, []byte) (Explanation, error) { return Explanation{}, ErrNoNative }

// Decode returns the empty text in this build.
func (*Tokenizer) Decode([]uint32, bool) string { return "" }

// Stats returns nothing in this build.
func (*Tokenizer) Stats() Stats { return Stats{} }

// Whole returns the empty text in this build.
func (*Tokenizer) Whole() string { return "" }

// Close does nothing in this build.
func (*Tokenizer) Close() error { return nil }
