// Package translate turns the bodies of Anthropic's Messages API into those of
// OpenAI's chat completions, and the answers to them back, for pools whose
// workers have no messages route of their own. It works over bytes: it knows no
// HTTP, opens nothing and waits for nothing.
//
// The rule of the way there is that nothing is lost without a word. Every field
// of a request either has an equivalent, or asks for nothing that the answer
// depends on, or is refused with the name that the client knows it by. A field
// that this package has never heard of is refused too: it may be one that matters.
//
// Strings are copied as they are spelt, escapes and all, and numbers and schemas
// byte by byte, so that a translation changes the frame around a client's text
// and never the text.
//
// The way back has two forms: [AppendMessage] for an answer that comes at once,
// and [Translator] for a stream of chunks. Both hold no more than one bounded
// part of an answer.
package translate
