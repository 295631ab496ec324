package gatewaytest

import (
	"encoding/json"
	"fmt"
)

// EventStream is the content type of the engine's streams.
const EventStream = "text/event-stream; charset=utf-8"

// DoneEvent is the event that ends a stream of chat or completions.
const DoneEvent = "data: [DONE]\n\n"

// RoleEvent is the first event of a chat stream: it carries no token.
const RoleEvent = `data: {"id":"chatcmpl-0","object":"chat.completion.chunk","created":1,"model":"m","choices":[{"index":0,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}]}` + "\n\n"

// ContentEvent is a chat stream's event with a piece of text. A finish of "" is
// written as null.
func ContentEvent(text, finish string) string {
	reason := []byte("null")
	if finish != "" {
		reason = quote(finish)
	}
	return fmt.Sprintf(`data: {"id":"chatcmpl-0","object":"chat.completion.chunk","created":1,"model":"m",`+
		`"choices":[{"index":0,"delta":{"content":%s},"logprobs":null,"finish_reason":%s}]}`+"\n\n", quote(text), reason)
}

// UsageEvent is a chat stream's usage chunk. The usage is JSON text and need
// not be true, or even a usage.
func UsageEvent(usage string) string {
	return `data: {"id":"chatcmpl-0","object":"chat.completion.chunk","created":1,"model":"m","choices":[],"usage":` +
		usage + "}\n\n"
}

// Usage is the JSON text of a usage.
func Usage(prompt, completion int) string {
	return fmt.Sprintf(`{"prompt_tokens":%d,"total_tokens":%d,"completion_tokens":%d}`, prompt, prompt+completion, completion)
}

// ChatBody is the body of a chat answer that is not a stream. The usage is JSON
// text.
func ChatBody(text, usage string) string {
	return fmt.Sprintf(`{"id":"chatcmpl-0","object":"chat.completion","created":1,"model":"m","choices":[{"index":0,`+
		`"message":{"role":"assistant","content":%s},"logprobs":null,"finish_reason":"stop"}],"usage":%s}`, quote(text), usage)
}

// ErrorBody is the body of an engine's error: its code is a number.
func ErrorBody(status int, message string) string {
	return fmt.Sprintf(`{"error":{"message":%s,"type":"InternalServerError","param":null,"code":%d}}`, quote(message), status)
}

// chatEvents are the events of a whole chat stream up to its last token.
func chatEvents(tokens []string) []string {
	events := []string{RoleEvent}
	for i, token := range tokens {
		finish := ""
		if i == len(tokens)-1 {
			finish = "stop"
		}
		events = append(events, ContentEvent(token, finish))
	}
	return events
}

func quote(s string) []byte {
	quoted, err := json.Marshal(s)
	if err != nil {
		panic(fmt.Sprintf("BUG: cannot encode a string: %v", err))
	}
	return quoted
}
