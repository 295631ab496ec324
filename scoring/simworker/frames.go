package simworker

import (
	"context"
	"fmt"
	"net/http"
	"strconv"
)

// usage is a request's token counts.
type usage struct {
	prompt, completion int
	// cached and created are prompt tokens found in the cache and newly put
	// into it; details shows them.
	cached, created int
}

func appendInt(dst []byte, key string, v int) []byte {
	dst = append(dst, key...)
	return strconv.AppendInt(dst, int64(v), 10)
}

// append writes the counts that every usage object begins with, unclosed.
func (u usage) append(dst []byte) []byte {
	dst = appendInt(dst, `{"prompt_tokens":`, u.prompt)
	dst = appendInt(dst, `,"total_tokens":`, u.prompt+u.completion)
	return appendInt(dst, `,"completion_tokens":`, u.completion)
}

func (u usage) appendDetails(dst []byte) []byte {
	dst = appendInt(dst, `,"prompt_tokens_details":{"cached_tokens":`, u.cached)
	dst = appendInt(dst, `,"created_cache_tokens":`, u.created)
	return append(dst, '}')
}

// frames writes the events of one stream. What all of them begin with is
// written once. A returned slice is valid until the next call.
type frames struct {
	g    *generation
	head []byte // up to and with "choices":[
	buf  []byte
}

func (g *generation) frames() *frames {
	f := &frames{g: g}
	object := "text_completion"
	if g.p.chat {
		object = "chat.completion.chunk"
	}
	f.head = g.appendHead(nil, object)
	f.head = append(f.head, `,"choices":[`...)
	return f
}

// appendHead writes the members that every answer begins with.
func (g *generation) appendHead(dst []byte, object string) []byte {
	dst = append(dst, `{"id":`...)
	dst = appendString(dst, g.id)
	dst = append(dst, `,"object":"`+object+`","created":`...)
	dst = strconv.AppendInt(dst, g.created, 10)
	dst = append(dst, `,"model":`...)
	return appendString(dst, g.p.model)
}

// role returns the event that opens a choice of a chat.
func (f *frames) role(c *choice) []byte {
	b := append(f.buf[:0], f.head...)
	b = appendInt(b, `{"index":`, c.index)
	b = append(b, `,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}]`...)
	b = f.appendContinuous(b, c, 0)
	b = append(b, `,"prompt_token_ids":null,"prompt_text":null}`...)
	f.buf = b
	return b
}

// chunk returns the event for d.
func (f *frames) chunk(c *choice, d delta) []byte {
	b := append(f.buf[:0], f.head...)
	b = appendInt(b, `{"index":`, c.index)
	switch {
	case f.g.p.called != nil:
		b = f.g.appendCallDelta(b, c, d.text)
	case f.g.p.chat:
		b = append(b, `,"delta":{"content":`...)
		b = appendString(b, d.text)
		b = append(b, '}')
	default:
		b = append(b, `,"text":`...)
		b = appendString(b, d.text)
	}
	b = append(b, `,"logprobs":`...)
	b = f.g.appendLogprobs(b, d.tokens)
	b = append(b, `,"finish_reason":`...)
	if d.done {
		b = appendString(b, f.g.p.finishReason(c))
	} else {
		b = append(b, "null"...)
	}
	if d.done || !f.g.p.chat {
		b = append(b, `,"stop_reason":`...)
		b = appendStringOrNull(b, c.stopReason)
	}
	if !f.g.p.chat {
		b = append(b, `,"prompt_token_ids":null`...)
	}
	b = append(b, `,"token_ids":null}]`...)
	b = f.appendContinuous(b, c, c.generated)
	if d.done && !f.g.p.usage {
		b = f.g.appendFingerprint(b)
	}
	f.buf = append(b, '}')
	return f.buf
}

// appendContinuous writes the usage that every event has if the client asked.
func (f *frames) appendContinuous(b []byte, c *choice, generated int) []byte {
	if !f.g.p.continuous {
		return b
	}
	b = append(b, `,"usage":`...)
	b = usage{prompt: f.g.promptTokens[c.prompt], completion: generated}.append(b)
	return append(b, `,"completion_tokens_details":null}`...)
}

// usage returns the event before the last.
func (f *frames) usage(u usage) []byte {
	b := append(f.buf[:0], f.head...)
	b = append(b, `],"usage":`...)
	b = u.append(b)
	if f.g.w.cfg.EnablePromptTokensDetails {
		b = u.appendDetails(b)
	}
	b = append(b, '}')
	b = f.g.appendFingerprint(b)
	f.buf = append(b, '}')
	return f.buf
}

func (g *generation) appendFingerprint(b []byte) []byte {
	b = append(b, `,"system_fingerprint":`...)
	return appendString(b, g.w.fingerprint)
}

// appendWhole writes the answer that is no stream.
func (g *generation) appendWhole(b []byte) []byte {
	object := "text_completion"
	if g.p.chat {
		object = "chat.completion"
	}
	b = g.appendHead(b, object)
	b = append(b, `,"choices":[`...)
	for i, c := range g.choices {
		if i > 0 {
			b = append(b, ',')
		}
		b = g.appendChoice(b, c)
	}
	b = append(b, `],"service_tier":null`...)
	b = g.appendFingerprint(b)
	b = append(b, `,"usage":`...)
	u := g.usage()
	b = u.append(b)
	if g.w.cfg.EnablePromptTokensDetails {
		b = u.appendDetails(b)
	} else {
		b = append(b, `,"prompt_tokens_details":null`...)
	}
	b = append(b, `,"completion_tokens_details":null}`...)
	if g.p.chat {
		b = append(b, `,"prompt_logprobs":null,"prompt_token_ids":null,"prompt_text":null`...)
	}
	return append(b, `,"kv_transfer_params":null,"ec_transfer_params":null,"metrics":null}`...)
}

func (g *generation) appendChoice(b []byte, c *choice) []byte {
	b = appendInt(b, `{"index":`, c.index)
	if g.p.chat {
		b = g.appendChatMessage(append(b, `,"message":`...), c)
	} else {
		b = append(b, `,"text":`...)
		b = appendString(b, c.text.String())
	}
	b = append(b, `,"logprobs":`...)
	b = g.appendLogprobs(b, c.tokens)
	b = append(b, `,"finish_reason":`...)
	b = appendString(b, g.p.finishReason(c))
	b = append(b, `,"stop_reason":`...)
	b = appendStringOrNull(b, c.stopReason)
	b = append(b, `,"token_ids":null`...)
	if !g.p.chat {
		b = append(b, `,"prompt_logprobs":null,"prompt_token_ids":null`...)
	}
	return append(b, `,"routed_experts":null}`...)
}

// streamWriter writes server-sent events, and applies the faults of a stream.
type streamWriter struct {
	rw     http.ResponseWriter
	rc     *http.ResponseController
	fault  Fault
	events int
	err    error
}

// start sends the headers at once: they are no sign of a first token.
func (s *streamWriter) start() {
	s.rw.Header().Set("Content-Type", "text/event-stream; charset=utf-8")
	s.rw.WriteHeader(http.StatusOK)
	_ = s.flush()
	if s.fault.DropAfterEvents < 0 {
		dropConnection(s.rw)
	}
}

func (s *streamWriter) event(data []byte) { s.named("", data) }

// named writes an event with a name, if that is not empty.
func (s *streamWriter) named(name string, data []byte) {
	s.events++
	if s.fault.MalformedEvent && s.events == 2 {
		data = data[:len(data)/2]
	}
	if name != "" {
		name = "event: " + name + "\n"
	}
	_, s.err = fmt.Fprintf(s.rw, "%sdata: %s\n\n", name, data)
	if s.events == s.fault.DropAfterEvents {
		dropConnection(s.rw)
	}
}

func (s *streamWriter) flush() error {
	if s.err == nil {
		s.err = s.rc.Flush()
	}
	return s.err
}

// fail ends the stream with an error event, unless nobody is left to read it.
func (s *streamWriter) fail(ctx context.Context, err error) {
	if ctx.Err() == nil {
		s.event(asAPIError(err).body())
		s.done()
	}
}

// done ends the stream.
func (s *streamWriter) done() {
	if !s.fault.NoDone && s.err == nil {
		_, s.err = s.rw.Write([]byte("data: [DONE]\n\n"))
	}
	_ = s.flush()
}
