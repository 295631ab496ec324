package tokenize

import "io/fs"

// Tokenizer computes token ids in this process. This build has no native
// library, so that none can be loaded.
type Tokenizer struct{}

// Load returns ErrNoNative in this build.
func Load(dir string, opts Options) (*Tokenizer, error) { return nil, ErrNoNative }

// LoadFS returns ErrNoNative in this build.
func LoadFS(fsys fs.FS, opts Options) (*Tokenizer, error) { return nil, ErrNoNative }

// Append returns ErrNoNative in this build.
func (t *Tokenizer) Append(dst *Prompts, kind Kind, body []byte) error { return ErrNoNative }

// Explain returns ErrNoNative in this build.
func (t *Tokenizer) Explain(kind Kind, body []byte) (Explanation, error) {
	return Explanation{}, ErrNoNative
}

// Decode returns the empty text in this build.
func (t *Tokenizer) Decode(ids []uint32, skipSpecial bool) string { return "" }

// Stats returns nothing in this build.
func (t *Tokenizer) Stats() Stats { return Stats{} }

// Close does nothing in this build.
func (t *Tokenizer) Close() error { return nil }
