// Package anthropic is the Anthropic wire dialect of the gateway: the Messages API
// as vLLM serves it.
//
// A request body is scanned once, strictly, and never decoded and encoded again: a
// rewrite changes the few keys that a policy or the gateway itself must change, and
// copies every other byte. Answers are only observed. Error bodies of workers are
// never relayed: gateway/vllm rebuilds them.
//
// Nothing in this package logs, and no error text holds content of a request.
package anthropic
