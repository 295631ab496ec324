package gateway

import (
	"fmt"
	"strings"

	"github.com/sluicegate/sluice/gateway/gatewaytest"
	"github.com/sluicegate/sluice/gateway/wire"
)

// matrixDialect is a route as the matrix plays it, and how its worker and its clients
// speak.
type matrixDialect struct {
	name, path string
	stream     bool // the route streams
	bills      bool // its tokens are charged
	input      int64
	output     int64

	// request is a body with a text in it.
	request func(text string, stream bool) string
	// events are a whole stream up to its last event but the mark; the first two can
	// be passed on before the rest is known. usage is the JSON text of its usage.
	events func(usage string) []string
	mark   func(usage string) string
	// answer is a whole answer that is no stream, with a text in it.
	answer func(text, usage string) string
	usage  string
	// failed is the event by which the worker reports a failure of its own.
	failed string
	// big is an event, of a content of n bytes.
	big func(n int) string

	// translated says that the worker has no such route, and is spoken to in another
	// form; the client's mark is then ends.
	translated bool
	ends       string
}

// end is the mark with which a stream ends for the client.
func (d *matrixDialect) end(usage string) string {
	if d.translated {
		return d.ends
	}
	return d.mark(usage)
}

// good is the behaviour of a worker that is well.
func (d *matrixDialect) good() gatewaytest.Behaviour {
	return func(x *gatewaytest.Exchange) {
		if !x.WantsStream() {
			x.Respond(200, "application/json", d.answer("ab", d.usage))
			return
		}
		x.StreamHead()
		for _, e := range d.events(d.usage) {
			x.Chunk(e)
		}
		x.Chunk(d.mark(d.usage))
		x.End()
	}
}

// doneMark is the terminal mark of chat and completions, which has no usage in it.
func doneMark(string) string { return gatewaytest.DoneEvent }

func matrixDialects() []*matrixDialect {
	return []*matrixDialect{
		matrixChat(), matrixCompletions(), matrixEmbeddings(), matrixResponses(), matrixTokenize(), matrixDetokenize(),
		matrixMessages(), matrixCountTokens(), matrixMessagesTranslated(), matrixCountTokensTranslated(),
	}
}

func matrixChat() *matrixDialect {
	return &matrixDialect{
		name: "chat", path: "/v1/chat/completions", stream: true, bills: true, input: 10, output: 2,
		request: func(text string, stream bool) string {
			return fmt.Sprintf(`{"model":"m","messages":[{"role":"user","content":%q}],"stream":%v}`, text, stream)
		},
		events: func(usage string) []string {
			return []string{gatewaytest.RoleEvent, gatewaytest.ContentEvent("a", ""), gatewaytest.ContentEvent("b", "stop"), gatewaytest.UsageEvent(usage)}
		},
		mark: doneMark, answer: gatewaytest.ChatBody, usage: gatewaytest.Usage(10, 2),
		failed: "data: " + gatewaytest.ErrorBody(500, "secret words of the worker") + "\n\n",
		big:    func(n int) string { return gatewaytest.ContentEvent(strings.Repeat("x", n), "") },
	}
}

func matrixCompletions() *matrixDialect {
	event := func(text, finish, more string) string {
		return fmt.Sprintf(`data: {"id":"cmpl-0","object":"text_completion","created":1,"model":"m","choices":[{"index":0,"text":%q,"logprobs":null,"finish_reason":%s}]%s}`+"\n\n", text, finish, more)
	}
	return &matrixDialect{
		name: "completions", path: "/v1/completions", stream: true, bills: true, input: 10, output: 2,
		request: func(text string, stream bool) string {
			return fmt.Sprintf(`{"model":"m","prompt":%q,"stream":%v}`, text, stream)
		},
		events: func(usage string) []string {
			return []string{
				event("a", "null", ""), event("b", `"stop"`, ""),
				`data: {"id":"cmpl-0","object":"text_completion","created":1,"model":"m","choices":[],"usage":` + usage + "}\n\n",
			}
		},
		mark: doneMark, usage: gatewaytest.Usage(10, 2),
		answer: func(text, usage string) string {
			return fmt.Sprintf(`{"id":"cmpl-0","object":"text_completion","created":1,"model":"m","choices":[{"index":0,"text":%q,"logprobs":null,"finish_reason":"stop"}],"usage":%s}`, text, usage)
		},
		failed: "data: " + gatewaytest.ErrorBody(500, "secret words of the worker") + "\n\n",
		big:    func(n int) string { return event(strings.Repeat("x", n), "null", "") },
	}
}

func matrixEmbeddings() *matrixDialect {
	return &matrixDialect{
		name: "embeddings", path: "/v1/embeddings", bills: true, input: 10, usage: `{"prompt_tokens":10,"total_tokens":10}`,
		request: func(text string, _ bool) string { return fmt.Sprintf(`{"model":"m","input":%q}`, text) },
		answer: func(text, usage string) string {
			return fmt.Sprintf(`{"object":"list","id":%q,"model":"m","data":[{"object":"embedding","index":0,"embedding":[0.5]}],"usage":%s}`, text, usage)
		},
	}
}

func matrixResponses() *matrixDialect {
	body := func(status, text, usage string) string {
		return fmt.Sprintf(`{"id":"resp_0","object":"response","created_at":1,"model":"m","status":%q,"output":[{"id":"msg_0","type":"message","role":"assistant",`+
			`"content":[{"type":"output_text","annotations":[],"text":%q}]}],"usage":%s}`, status, text, usage)
	}
	event := func(n int, name, rest string) string {
		return fmt.Sprintf("event: %s\ndata: {\"type\":%q,\"sequence_number\":%d,%s}\n\n", name, name, n, rest)
	}
	delta := func(n int, text string) string {
		return event(n, "response.output_text.delta", fmt.Sprintf(`"item_id":"msg_0","output_index":0,"content_index":0,"delta":%q`, text))
	}
	return &matrixDialect{
		name: "responses", path: "/v1/responses", stream: true, bills: true, input: 10, output: 2,
		usage: `{"input_tokens":10,"output_tokens":2,"total_tokens":12}`,
		request: func(text string, stream bool) string {
			return fmt.Sprintf(`{"model":"m","input":%q,"stream":%v}`, text, stream)
		},
		events: func(string) []string {
			return []string{event(0, "response.created", `"response":`+body("in_progress", "", "null")), delta(1, "a"), delta(2, "b")}
		},
		mark: func(usage string) string {
			return event(3, "response.completed", `"response":`+body("completed", "ab", usage))
		},
		answer: func(text, usage string) string { return body("completed", text, usage) },
		failed: "data: " + gatewaytest.ErrorBody(500, "secret words of the worker") + "\n\n",
		big:    func(n int) string { return delta(2, strings.Repeat("x", n)) },
	}
}

func matrixTokenize() *matrixDialect {
	return &matrixDialect{
		name: "tokenize", path: "/tokenize",
		request: func(text string, _ bool) string { return fmt.Sprintf(`{"model":"m","prompt":%q}`, text) },
		answer: func(text, _ string) string {
			return fmt.Sprintf(`{"count":2,"max_model_len":4096,"tokens":[1,2],"token_strs":[%q]}`, text)
		},
	}
}

func matrixDetokenize() *matrixDialect {
	return &matrixDialect{
		name: "detokenize", path: "/detokenize",
		request: func(text string, _ bool) string { return fmt.Sprintf(`{"model":"m","tokens":[1,2],"note":%q}`, text) },
		answer:  func(text, _ string) string { return fmt.Sprintf(`{"prompt":%q}`, text) },
	}
}

func matrixMessages() *matrixDialect {
	event := func(name, rest string) string {
		return fmt.Sprintf("event: %s\ndata: {\"type\":%q%s}\n\n", name, name, rest)
	}
	delta := func(text string) string {
		return event("content_block_delta", fmt.Sprintf(`,"index":0,"delta":{"type":"text_delta","text":%q}`, text))
	}
	return &matrixDialect{
		name: "messages", path: "/v1/messages", stream: true, bills: true, input: 10, output: 2,
		usage: `{"input_tokens":10,"output_tokens":2}`,
		request: func(text string, stream bool) string {
			return fmt.Sprintf(`{"model":"m","max_tokens":9,"messages":[{"role":"user","content":%q}],"stream":%v}`, text, stream)
		},
		events: func(usage string) []string {
			start := `,"message":{"id":"chatcmpl-0","type":"message","role":"assistant","content":[],"model":"m","stop_reason":null,"stop_sequence":null,"usage":{"input_tokens":10,"output_tokens":0}}`
			return []string{
				event("message_start", start), delta("a"), delta("b"), event("content_block_stop", `,"index":0`),
				event("message_delta", `,"delta":{"stop_reason":"end_turn","stop_sequence":null},"usage":`+usage),
			}
		},
		mark: func(string) string { return event("message_stop", "") },
		answer: func(text, usage string) string {
			return fmt.Sprintf(`{"id":"chatcmpl-0","type":"message","role":"assistant","content":[{"type":"text","text":%q}],"model":"m","stop_reason":"end_turn","usage":%s}`, text, usage)
		},
		failed: event("error", `,"error":{"type":"internal_error","message":"secret words of the worker"}`),
		big:    func(n int) string { return delta(strings.Repeat("x", n)) },
	}
}

func matrixCountTokens() *matrixDialect {
	return &matrixDialect{
		name: "count_tokens", path: "/v1/messages/count_tokens",
		request: func(text string, _ bool) string {
			return fmt.Sprintf(`{"model":"m","messages":[{"role":"user","content":%q}]}`, text)
		},
		answer: func(text, _ string) string {
			return fmt.Sprintf(`{"input_tokens":10,"context_management":{"original_input_tokens":10},"note":%q}`, text)
		},
	}
}

// matrixMessagesTranslated are messages before workers that have chat alone.
func matrixMessagesTranslated() *matrixDialect {
	messages, d := matrixMessages(), matrixChat()
	d.name, d.path, d.request = "messages translated", messages.path, messages.request
	d.translated, d.ends = true, messages.mark("")
	return d
}

// matrixCountTokensTranslated is count_tokens before workers that have /tokenize alone.
func matrixCountTokensTranslated() *matrixDialect {
	count, d := matrixCountTokens(), matrixTokenize()
	d.name, d.path, d.request, d.translated = "count_tokens translated", count.path, count.request, true
	return d
}

// endpoints is what the workers of a rig offer.
func (d *matrixDialect) endpoints() rigOption {
	if !d.translated {
		return allEndpoints()
	}
	set := wire.EndpointsOf(wire.Chat, wire.Tokenize)
	return withState(func(st *State) {
		p := st.Pools["p"]
		p.Endpoints, p.Salted = &set, set
		st.Pools = map[string]Pool{"p": p}
	})
}
