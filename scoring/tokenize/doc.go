// Package tokenize turns the body of a chat or completions request into the
// token ids that an engine would compute for it, so that the scorer can match
// them against the blocks the engines announce. One wrong id makes every block
// after it miss, therefore the engine's rules are followed to the letter and a
// request that cannot be followed exactly is refused with [ErrUnsupported]
// rather than guessed at.
//
// A [Tokenizer] works in this process: it holds a model's tokenizer and chat
// template in a native library that native/build.sh builds. A [Remote] asks a
// worker's /tokenize instead. A build with the tag notokenizers, or without cgo,
// has only the latter.
//
// docs/0002-tokens.md tells why it is built this way.
package tokenize
