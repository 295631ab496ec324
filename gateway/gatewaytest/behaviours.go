package gatewaytest

import (
	"fmt"
	"net/http"
	"strings"
	"time"
)

// JSON answers with a JSON body.
func JSON(status int, body string, header ...string) Behaviour {
	return func(x *Exchange) { x.Respond(status, "application/json", body, header...) }
}

// Fail answers with an engine's error body of the status, such as 500, 503 or
// 429.
func Fail(status int) Behaviour {
	return JSON(status, ErrorBody(status, "secret words of the worker"))
}

// Chat answers a chat request in full: as a stream of the tokens, with a usage
// chunk if asked for, or as one body, whatever the request wants. Ten prompt
// tokens and one output token for each of tokens are reported.
func Chat(tokens ...string) Behaviour {
	return func(x *Exchange) {
		usage := Usage(10, len(tokens))
		if !x.WantsStream() {
			x.Respond(http.StatusOK, "application/json", ChatBody(strings.Join(tokens, ""), usage))
			return
		}
		x.StreamHead()
		for _, event := range chatEvents(tokens) {
			x.Chunk(event)
		}
		if x.WantsUsage() {
			x.Chunk(UsageEvent(usage))
		}
		x.Chunk(DoneEvent)
		x.End()
	}
}

// Stream answers with the events, each in a chunk of its own, and a proper end.
func Stream(events ...string) Behaviour {
	return func(x *Exchange) {
		x.StreamHead()
		for _, event := range events {
			x.Chunk(event)
		}
		x.End()
	}
}

// Stall reads the request and never answers.
func Stall() Behaviour {
	return func(x *Exchange) { x.WaitLeft() }
}

// HeadOnly sends the head of an event stream and nothing more.
func HeadOnly() Behaviour {
	return func(x *Exchange) {
		x.StreamHead()
		x.WaitLeft()
	}
}

// StallAfter sends the events and nothing more, not even an end.
func StallAfter(events ...string) Behaviour {
	return func(x *Exchange) {
		x.StreamHead()
		for _, event := range events {
			x.Chunk(event)
		}
		x.WaitLeft()
	}
}

// CloseBeforeHead ends the connection without an answer.
func CloseBeforeHead(how Close) Behaviour {
	return func(x *Exchange) { x.Drop(how) }
}

// DropAfter sends the events, which may end in half an event, and ends the
// connection without the last chunk.
func DropAfter(how Close, events ...string) Behaviour {
	return func(x *Exchange) {
		x.StreamHead()
		for _, event := range events {
			x.Chunk(event)
		}
		x.Drop(how)
	}
}

// HalfBody answers with less of a body than its Content-Length says, and ends
// the connection.
func HalfBody(how Close, body string) Behaviour {
	return func(x *Exchange) {
		x.Raw(head(http.StatusOK, "application/json", []string{fmt.Sprintf("Content-Length: %d", 2*len(body)+1)}))
		x.Raw(body)
		x.Drop(how)
	}
}

// HalfChunk sends the events, then a chunk that is shorter than its size says,
// and ends the connection.
func HalfChunk(how Close, events ...string) Behaviour {
	return func(x *Exchange) {
		x.StreamHead()
		for _, event := range events {
			x.Chunk(event)
		}
		x.Raw("ff\r\ndata: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"ha")
		x.Drop(how)
	}
}

// WithoutDone streams the tokens and ends properly, but without [DONE].
func WithoutDone(tokens ...string) Behaviour {
	return Stream(chatEvents(tokens)...)
}

// Trickle streams the tokens n bytes at a time, each piece in a chunk of its
// own and gap after the one before, then [DONE] and a proper end.
func Trickle(n int, gap time.Duration, tokens ...string) Behaviour {
	return func(x *Exchange) {
		stream := strings.Join(chatEvents(tokens), "") + DoneEvent
		x.StreamHead()
		for len(stream) > 0 {
			k := min(n, len(stream))
			x.Chunk(stream[:k])
			stream = stream[k:]
			if !x.Pause(gap) {
				return
			}
		}
		x.End()
	}
}

// ErrorInStream streams the tokens, then an error as the engine reports one
// inside a stream, then the [DONE] that the engine sends even so.
func ErrorInStream(status int, tokens ...string) Behaviour {
	events := []string{RoleEvent}
	for _, token := range tokens {
		events = append(events, ContentEvent(token, ""))
	}
	events = append(events, "data: "+ErrorBody(status, "secret words of the worker")+"\n\n", DoneEvent)
	return Stream(events...)
}

// WrongContentType answers 200 with a body of a type that the request did not
// ask for: one JSON body for a stream, an event stream for anything else.
func WrongContentType() Behaviour {
	return func(x *Exchange) {
		if x.WantsStream() {
			x.Respond(http.StatusOK, "application/json", ChatBody("x", Usage(10, 1)))
			return
		}
		Stream(append(chatEvents([]string{"x"}), DoneEvent)...)(x)
	}
}

// HugeHeaders answers 200 with n bytes of headers.
func HugeHeaders(n int) Behaviour {
	return func(x *Exchange) {
		const line = 1024
		header := []string{}
		for i := 0; i*line < n; i++ {
			header = append(header, fmt.Sprintf("X-Padding-%d: %s", i, strings.Repeat("p", line)))
		}
		x.Respond(http.StatusOK, "application/json", ChatBody("x", Usage(10, 1)), header...)
	}
}

// BadUsage answers like Chat with usage that is the given JSON text, such as
// null, {"prompt_tokens":-1} or "many".
func BadUsage(usage string, tokens ...string) Behaviour {
	return func(x *Exchange) {
		if !x.WantsStream() {
			x.Respond(http.StatusOK, "application/json", ChatBody(strings.Join(tokens, ""), usage))
			return
		}
		Stream(append(chatEvents(tokens), UsageEvent(usage), DoneEvent)...)(x)
	}
}

// NotHTTP answers with bytes that are no HTTP at all and ends the connection.
func NotHTTP() Behaviour {
	return func(x *Exchange) {
		x.Raw("SSH-2.0-OpenSSH_9.9\r\n")
		x.Drop(FIN)
	}
}

// Gate sends the first events, waits until open is closed, sends the rest and
// ends properly.
func Gate(open <-chan struct{}, first, rest []string) Behaviour {
	return func(x *Exchange) {
		x.StreamHead()
		for _, event := range first {
			x.Chunk(event)
		}
		if !x.Wait(open) {
			return
		}
		for _, event := range rest {
			x.Chunk(event)
		}
		x.End()
	}
}
