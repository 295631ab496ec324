package simworker

import (
	"context"
	"fmt"
	"net/http"
	"strings"
)

// messages is one request to /v1/messages at work: the generation of the chat
// that it amounts to. Its answer is one block: the text, or the call of a tool.
type messages struct {
	*generation
	opened bool // the block has begun
	buf    []byte
}

func writeMessagesError(rw http.ResponseWriter, e *apiError) {
	writeJSON(rw, e.Status, e.messagesBody())
}

// serveMessages handles POST /v1/messages.
func (w *Worker) serveMessages(rw http.ResponseWriter, r *http.Request, body []byte) {
	w.counted(func() {
		fail := func(err error) {
			if r.Context().Err() == nil { // Else nobody is left to read it.
				writeMessagesError(rw, asAPIError(err))
			}
		}
		fault, apiErr := w.nextFault(r)
		if apiErr != nil {
			fail(apiErr)
			return
		}
		q, apiErr := w.newMessages(r, body)
		if apiErr != nil {
			fail(apiErr)
			return
		}
		q.fault = fault
		defer q.account(r)
		if q.p.stream {
			q.serveStream(r.Context(), rw)
		} else if err := q.collect(r.Context()); err != nil {
			fail(err)
		} else {
			q.writeWhole(r, rw, q.appendMessage(nil))
		}
	})
}

// newMessages reads a body and submits its chat.
func (w *Worker) newMessages(r *http.Request, body []byte) (*messages, *apiError) {
	form, stream, apiErr := parseMessages(body, false)
	if apiErr != nil {
		return nil, apiErr
	}
	g, apiErr := w.newGeneration(r, form.body(), true)
	if apiErr != nil {
		// The chat is made by the route's own code, so what is wrong with it has
		// the route's form.
		return nil, &apiError{Status: apiErr.Status, Message: apiErr.Message, Kind: strings.Replace(apiErr.Kind, "Bad Request", "BadRequestError", 1)}
	}
	g.p.stream = stream
	return &messages{generation: g}, nil
}

// serveCountTokens answers how many tokens the prompt of a messages body has.
func (w *Worker) serveCountTokens(rw http.ResponseWriter, _ *http.Request, body []byte) {
	n, apiErr := w.countTokens(body)
	if apiErr != nil {
		writeMessagesError(rw, apiErr)
		return
	}
	writeJSON(rw, http.StatusOK, fmt.Appendf(nil, `{"input_tokens":%d,"context_management":{"original_input_tokens":%d}}`, n, n))
}

func (w *Worker) countTokens(body []byte) (int, *apiError) {
	form, _, apiErr := parseMessages(body, true)
	if apiErr != nil {
		return 0, apiErr
	}
	if _, _, ok := w.resolveModel(form.Model); !ok {
		return 0, errUnknownModel(form.Model, w.served())
	}
	ids, apiErr := w.tokenize(form.body(), true)
	return len(ids), apiErr
}

// appendMessagesUsage appends u as the messages routes show it. What was cached
// is not part of the input there, so with details the input is less.
func (q *messages) appendMessagesUsage(b []byte, u usage, details bool) []byte {
	details = details && q.w.cfg.EnablePromptTokensDetails
	if details {
		u.prompt = max(0, u.prompt-u.cached-u.created)
	}
	b = appendInt(b, `{"input_tokens":`, u.prompt)
	b = appendInt(b, `,"output_tokens":`, u.completion)
	if details {
		b = appendInt(b, `,"cache_creation_input_tokens":`, u.created)
		b = appendInt(b, `,"cache_read_input_tokens":`, u.cached)
	}
	return append(b, '}')
}

// stopReason is why the answer ended in the words of the messages routes, and
// the stop string that ended it, if one did.
func (q *messages) stopReason() (reason, sequence string) {
	c := q.choices[0]
	switch {
	case c.finish.String() == "length":
		return "max_tokens", ""
	case q.p.called != nil:
		return "tool_use", ""
	case c.stopReason != "":
		return "stop_sequence", c.stopReason
	}
	return "end_turn", ""
}

// appendMessage appends the answer to a messages request that is no stream.
// Members that are null are left out of it.
func (q *messages) appendMessage(b []byte) []byte {
	c := q.choices[0]
	b = appendString(append(b, `{"id":`...), q.id)
	b = append(b, `,"type":"message","role":"assistant","content":[`...)
	if t := q.p.called; t != nil {
		b = appendString(append(b, `{"type":"tool_use","id":`...), q.toolCallID(c))
		b = appendString(append(b, `,"name":`...), t.name)
		b = append(b, `,"input":`...)
		b = append(b, c.text.String()...) // It is JSON.
		b = append(b, '}')
	} else {
		b = appendString(append(b, `{"type":"text","text":`...), c.text.String())
		b = append(b, '}')
	}
	b = appendString(append(b, `],"model":`...), q.p.model)
	reason, sequence := q.stopReason()
	b = appendString(append(b, `,"stop_reason":`...), reason)
	if sequence != "" {
		b = appendString(append(b, `,"stop_sequence":`...), sequence)
	}
	b = q.appendMessagesUsage(append(b, `,"usage":`...), q.usage(), true)
	return append(b, '}')
}

// serveStream answers with an event for each token that has text.
func (q *messages) serveStream(ctx context.Context, rw http.ResponseWriter) {
	s := &streamWriter{rw: rw, rc: http.NewResponseController(rw), fault: q.fault}
	s.start()
	if err := q.w.faults.wait(ctx, q.fault.FirstByteDelay); err != nil {
		q.fail(ctx, s, err)
		return
	}
	var buf []arrival
	for begun := false; !q.allDone(); begun = true {
		got, err := q.call.take(ctx, buf)
		if err != nil {
			q.fail(ctx, s, err)
			return
		}
		if !begun {
			q.begin(s)
		}
		for _, a := range got {
			if c, d, ok := q.feed(a); ok {
				q.token(s, c, d)
			}
		}
		if s.flush() != nil {
			return
		}
		buf = got
	}
	q.end(s)
	_ = s.flush()
	q.whole = s.err == nil && !q.fault.NoDone
}

// event writes an event: its type, and the rest of its members.
func (q *messages) event(s *streamWriter, name string, rest func(b []byte) []byte) {
	b := appendString(append(q.buf[:0], `{"type":`...), name)
	q.buf = append(rest(b), '}')
	s.named(name, q.buf)
}

// begin writes the event before the first token. The engine does not know yet
// what came from the cache.
func (q *messages) begin(s *streamWriter) {
	q.event(s, "message_start", func(b []byte) []byte {
		b = appendString(append(b, `,"message":{"id":`...), q.id)
		b = append(b, `,"type":"message","role":"assistant","content":[],"model":`...)
		b = appendString(b, q.p.model)
		b = append(b, `,"stop_reason":null,"stop_sequence":null,"usage":`...)
		b = q.appendMessagesUsage(b, usage{prompt: q.promptTokens[0]}, false)
		return append(b, '}')
	})
}

// token writes what d adds; a token without text adds nothing.
func (q *messages) token(s *streamWriter, c *choice, d delta) {
	if d.text == "" {
		return
	}
	kind, member := "text_delta", "text"
	if q.p.called != nil {
		kind, member = "input_json_delta", "partial_json"
	}
	if !q.opened {
		q.opened = true
		q.event(s, "content_block_start", func(b []byte) []byte {
			b = append(b, `,"content_block":`...)
			if t := q.p.called; t != nil {
				b = appendString(append(b, `{"type":"tool_use","id":`...), q.toolCallID(c))
				b = appendString(append(b, `,"name":`...), t.name)
				b = append(b, `,"input":{}}`...)
			} else {
				b = append(b, `{"type":"text","text":""}`...)
			}
			return append(b, `,"index":0`...)
		})
	}
	q.event(s, "content_block_delta", func(b []byte) []byte {
		b = append(b, `,"delta":{"type":"`+kind+`","`+member+`":`...)
		b = appendString(b, d.text)
		return append(b, `},"index":0`...)
	})
}

// end writes the events behind the last token.
func (q *messages) end(s *streamWriter) {
	if q.opened {
		q.event(s, "content_block_stop", func(b []byte) []byte { return append(b, `,"index":0`...) })
	}
	q.event(s, "message_delta", func(b []byte) []byte {
		reason, sequence := q.stopReason()
		b = appendString(append(b, `,"delta":{"stop_reason":`...), reason)
		b = appendStringOrNull(append(b, `,"stop_sequence":`...), sequence)
		return q.appendMessagesUsage(append(b, `},"usage":`...), q.usage(), true)
	})
	if !q.fault.NoDone {
		q.event(s, "message_stop", func(b []byte) []byte { return b })
	}
}

// fail ends the stream with an error event, unless nobody is left to read it.
func (q *messages) fail(ctx context.Context, s *streamWriter, err error) {
	if ctx.Err() != nil {
		return
	}
	b := append(q.buf[:0], `{"type":"error","error":{"type":"internal_error","message":`...)
	q.buf = append(appendString(b, asAPIError(err).Message), "}}"...)
	s.named("error", q.buf)
	_ = s.flush()
}
