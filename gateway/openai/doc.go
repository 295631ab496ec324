// Package openai is the OpenAI wire dialect of the gateway: chat completions
// and completions, as vLLM serves them.
//
// A request body is scanned once, by [Scan], which checks it strictly and
// remembers where the fields are that the gateway reads. It is never decoded
// and encoded again: [AppendRewrite] changes the few keys that a policy
// or the gateway itself must change, and copies every other byte.
//
// Answers are only observed. [Stream] looks at the events of a stream for the
// first token, usage, errors and the end; [ReadUsage] does so for a whole
// body. Error bodies of workers are never relayed: gateway/vllm rebuilds them.
//
// Nothing in this package logs, and no error text holds content of a request.
package openai
