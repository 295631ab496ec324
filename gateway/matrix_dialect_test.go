package gateway

import (
	"fmt"
	"strings"

	"github.com/sluicegate/sluice/gateway/gatewaytest"
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
	mark   string
	// answer is a whole answer that is no stream, with a text in it.
	answer func(text, usage string) string
	usage  string
	// failed is the event by which the worker reports a failure of its own.
	failed string
	// big is an event, of a content of n bytes.
	big func(n int) string
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
		x.Chunk(d.mark)
		x.End()
	}
}

func matrixDialects() []*matrixDialect {
	return []*matrixDialect{matrixChat(), matrixCompletions()}
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
		mark: gatewaytest.DoneEvent, answer: gatewaytest.ChatBody, usage: gatewaytest.Usage(10, 2),
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
		mark: gatewaytest.DoneEvent, usage: gatewaytest.Usage(10, 2),
		answer: func(text, usage string) string {
			return fmt.Sprintf(`{"id":"cmpl-0","object":"text_completion","created":1,"model":"m","choices":[{"index":0,"text":%q,"logprobs":null,"finish_reason":"stop"}],"usage":%s}`, text, usage)
		},
		failed: "data: " + gatewaytest.ErrorBody(500, "secret words of the worker") + "\n\n",
		big:    func(n int) string { return event(strings.Repeat("x", n), "null", "") },
	}
}
