package simworker

import (
	"bytes"
	"context"
	"encoding/json"
	"net/http"
	"strconv"
	"strings"
)

// responses is one request to /v1/responses at work: the generation of the chat
// that it amounts to, and what its answers repeat of it.
type responses struct {
	*generation
	id, item     string
	maxOutput    int // 0: to the end of the context
	instructions json.RawMessage
	metadata     json.RawMessage
	toolChoice   json.RawMessage
	tools        json.RawMessage
	user         json.RawMessage
	temperature  json.RawMessage
	topP         json.RawMessage
	sequence     int
	buf          []byte
}

// serveResponses handles POST /v1/responses without a store of responses, which
// is how the engine starts unless it is told otherwise.
func (w *Worker) serveResponses(rw http.ResponseWriter, r *http.Request, body []byte) {
	w.counted(func() {
		fault, ok := w.takeFault(rw, r)
		if !ok {
			return
		}
		q, apiErr := w.newResponses(r, body)
		if apiErr != nil {
			writeError(rw, apiErr)
			return
		}
		q.fault = fault
		defer q.account(r)
		if q.p.stream {
			q.serveStream(r.Context(), rw)
			return
		}
		q.serveWhole(r, rw)
	})
}

// newResponses reads a body and submits its chat.
func (w *Worker) newResponses(r *http.Request, body []byte) (*responses, *apiError) {
	f, apiErr := parseObject(body)
	if apiErr != nil {
		return nil, apiErr
	}
	q := &responses{
		id: "resp_" + randomHex(8), item: "msg_" + randomHex(8),
		instructions: f.get("instructions"), metadata: f.get("metadata"), toolChoice: f.get("tool_choice"),
		tools: f.get("tools"), user: f.get("user"), temperature: f.get("temperature"), topP: f.get("top_p"),
		maxOutput: f.integer("max_output_tokens", 0),
	}
	chat, apiErr := responsesChat(f)
	if apiErr != nil {
		return nil, apiErr
	}
	if f.boolean("background") {
		return nil, &apiError{
			Status: http.StatusBadRequest, Kind: "invalid_request_error", Param: "background",
			Message: "This vLLM engine does not support `store=True` and therefore does not support the background mode. " +
				"To enable these features, set the environment variable `VLLM_ENABLE_RESPONSES_API_STORE=1` when launching the vLLM server.",
		}
	}
	if id := f.str("previous_response_id"); id != "" {
		return nil, &apiError{
			Status: http.StatusNotFound, Kind: "invalid_request_error", Param: "response_id",
			Message: "Response with id '" + id + "' not found.",
		}
	}
	if apiErr := f.err(); apiErr != nil {
		return nil, apiErr
	}
	if q.generation, apiErr = w.newGeneration(r, chat, true); apiErr != nil {
		return nil, apiErr
	}
	q.p.called = nil // Its items are texts only.
	return q, nil
}

// responsesChat is the chat body that the engine makes of a body.
func responsesChat(f *fields) ([]byte, *apiError) {
	chat := map[string]any{}
	for name, as := range map[string]string{
		"model": "model", "stream": "stream", "max_output_tokens": "max_completion_tokens", "temperature": "temperature", "top_p": "top_p",
		"cache_salt": "cache_salt", "seed": "seed", "stop": "stop", "ignore_eos": "ignore_eos", "priority": "priority",
		"vllm_xargs": "vllm_xargs", "tool_choice": "tool_choice",
	} {
		if raw := f.get(name); raw != nil {
			chat[as] = raw
		}
	}
	var messages []any
	if text := f.str("instructions"); text != "" {
		messages = append(messages, map[string]any{"role": "system", "content": text})
	}
	raw := f.get("input")
	var items []json.RawMessage
	switch {
	case raw == nil:
		f.missing("input")
	case raw[0] == '"':
		messages = append(messages, map[string]any{"role": "user", "content": raw})
	case json.Unmarshal(raw, &items) != nil:
		f.wrong("input", "list_type", "Input should be a valid list", raw)
	}
	for i, item := range items {
		m, err := responsesItem(item)
		if err != "" {
			return nil, badRequest("", "input[%d]: %s", i, err)
		}
		messages = append(messages, m)
	}
	chat["messages"] = messages
	var tools []json.RawMessage
	if raw := f.get("tools"); raw != nil {
		if json.Unmarshal(raw, &tools) != nil {
			f.wrong("tools", "list_type", "Input should be a valid list", raw)
		}
		var functions []any
		for _, t := range tools {
			functions = append(functions, map[string]any{"type": "function", "function": t})
		}
		if functions != nil {
			chat["tools"] = functions
		}
	}
	body, err := json.Marshal(chat)
	if err != nil {
		return nil, badRequest("", "%s", err.Error())
	}
	return body, f.err()
}

// responsesItem is the chat message of one item, or what is wrong with it.
func responsesItem(raw json.RawMessage) (message any, fault string) {
	var item struct {
		Type, Role, Name string
		Content          json.RawMessage
		CallID           string `json:"call_id"`
		Arguments        string
		Output           json.RawMessage
	}
	if json.Unmarshal(raw, &item) != nil {
		return nil, "an item must be an object"
	}
	switch item.Type {
	case "", "message":
		return map[string]any{"role": item.Role, "content": textParts(item.Content)}, ""
	case "function_call":
		call := map[string]any{"id": item.CallID, "type": "function", "function": map[string]string{"name": item.Name, "arguments": item.Arguments}}
		return map[string]any{"role": "assistant", "tool_calls": []any{call}}, ""
	case "function_call_output":
		return map[string]any{"role": "tool", "tool_call_id": item.CallID, "content": textParts(item.Output)}, ""
	case "reasoning":
		return map[string]any{"role": "assistant", "reasoning": textParts(item.Content)}, ""
	}
	return nil, "items of type " + strconv.Quote(item.Type) + " are not supported by this model"
}

// textParts gives the parts of texts the type that a chat has for them.
func textParts(raw json.RawMessage) any {
	var parts []map[string]any
	if len(raw) == 0 {
		return nil
	}
	if json.Unmarshal(raw, &parts) != nil {
		return raw
	}
	for _, p := range parts {
		if p["type"] == "input_text" || p["type"] == "output_text" {
			p["type"] = "text"
		}
	}
	return parts
}

// serveWhole answers when the text is complete.
func (q *responses) serveWhole(r *http.Request, rw http.ResponseWriter) {
	if err := q.collect(r.Context()); err != nil {
		fail(rw, r, err)
		return
	}
	q.writeWhole(r, rw, q.appendResponse(nil, q.choices[0], true))
}

// serveStream answers with the events of one message item.
func (q *responses) serveStream(ctx context.Context, rw http.ResponseWriter) {
	s := &streamWriter{rw: rw, rc: http.NewResponseController(rw), fault: q.fault}
	s.start()
	if err := q.w.faults.wait(ctx, q.fault.FirstByteDelay); err != nil {
		q.fail(ctx, s, err)
		return
	}
	c := q.choices[0]
	for _, name := range []string{"response.created", "response.in_progress"} {
		q.event(s, name, func(b []byte) []byte {
			return append(q.appendResponse(append(b, `"response":`...), c, false), ',')
		})
	}
	var buf []arrival
	opened := false
	for !q.allDone() {
		got, err := q.call.take(ctx, buf)
		if err != nil {
			q.fail(ctx, s, err)
			return
		}
		for _, a := range got {
			_, d, _ := q.feed(a)
			if d.text == "" {
				continue
			}
			if !opened {
				opened = true
				q.open(s)
			}
			c.text.WriteString(d.text)
			q.event(s, "response.output_text.delta", func(b []byte) []byte {
				b = appendString(append(b, `"content_index":0,"delta":`...), d.text)
				return append(q.appendItemID(b), `,"logprobs":[],"output_index":0,`...)
			})
		}
		if s.flush() != nil {
			return
		}
		buf = got
	}
	if opened {
		q.close(s, c)
	}
	if !q.fault.NoDone {
		q.event(s, "response.completed", func(b []byte) []byte {
			return append(q.appendResponse(append(b, `"response":`...), c, true), ',')
		})
	}
	_ = s.flush()
	q.whole = s.err == nil && !q.fault.NoDone
}

// open writes the events before the first text.
func (q *responses) open(s *streamWriter) {
	q.event(s, "response.output_item.added", func(b []byte) []byte {
		b = appendString(append(b, `"item":{"id":`...), q.item)
		return append(b, `,"content":[],"role":"assistant","status":"in_progress","type":"message","phase":null},"output_index":0,`...)
	})
	q.event(s, "response.content_part.added", func(b []byte) []byte {
		b = q.appendItemID(append(b, `"content_index":0`...))
		return append(b, `,"output_index":0,"part":{"annotations":[],"text":"","type":"output_text","logprobs":[]},`...)
	})
}

// close writes the events behind the last text.
func (q *responses) close(s *streamWriter, c *choice) {
	q.event(s, "response.output_text.done", func(b []byte) []byte {
		b = append(q.appendItemID(append(b, `"content_index":0`...)), `,"logprobs":[],"output_index":0,`...)
		return b
	}, c.text.String())
	q.event(s, "response.content_part.done", func(b []byte) []byte {
		b = append(q.appendItemID(append(b, `"content_index":0`...)), `,"output_index":0,"part":`...)
		return append(appendOutputText(b, c), ',')
	})
	q.event(s, "response.output_item.done", func(b []byte) []byte {
		return append(q.appendItem(append(b, `"item":`...), c), `,"output_index":0,`...)
	})
}

// event writes an event: what members adds, its number, a text if there is one,
// and its name.
func (q *responses) event(s *streamWriter, name string, members func(b []byte) []byte, text ...string) {
	b := members(append(q.buf[:0], '{'))
	b = appendInt(b, `"sequence_number":`, q.sequence)
	if len(text) > 0 {
		b = appendString(append(b, `,"text":`...), text[0])
	}
	b = appendString(append(b, `,"type":`...), name)
	q.buf = append(b, '}')
	q.sequence++
	s.named(name, q.buf)
}

// fail ends the stream with an error event, unless nobody is left to read it.
func (q *responses) fail(ctx context.Context, s *streamWriter, err error) {
	if ctx.Err() == nil {
		s.event(asAPIError(err).body())
		_ = s.flush()
	}
}

func (q *responses) appendItemID(b []byte) []byte {
	return appendString(append(b, `,"item_id":`...), q.item)
}

func appendOutputText(b []byte, c *choice) []byte {
	b = appendString(append(b, `{"annotations":[],"text":`...), c.text.String())
	return append(b, `,"type":"output_text","logprobs":null}`...)
}

func (q *responses) appendItem(b []byte, c *choice) []byte {
	b = appendString(append(b, `{"id":`...), q.item)
	b = appendOutputText(append(b, `,"content":[`...), c)
	return append(b, `],"role":"assistant","status":"completed","type":"message","phase":null}`...)
}

// appendResponse writes the response object as it is at the beginning of its
// stream, or at the end.
func (q *responses) appendResponse(b []byte, c *choice, done bool) []byte {
	cut := done && c.finish.String() == "length"
	b = appendString(append(b, `{"id":`...), q.id)
	b = strconv.AppendInt(append(b, `,"created_at":`...), q.created, 10)
	b = append(b, `,"incomplete_details":`...)
	if cut {
		b = append(b, `{"reason":"max_output_tokens"}`...)
	} else {
		b = append(b, "null"...)
	}
	b = appendRaw(append(b, `,"instructions":`...), q.instructions, "null")
	b = appendRaw(append(b, `,"metadata":`...), q.metadata, "null")
	b = appendString(append(b, `,"model":`...), q.p.model)
	b = append(b, `,"object":"response","output":[`...)
	if done && c.text.Len() > 0 {
		b = q.appendItem(b, c)
	}
	b = appendRaw(append(b, `],"parallel_tool_calls":true,"temperature":`...), q.temperature, "1.0")
	b = appendRaw(append(b, `,"tool_choice":`...), q.toolChoice, `"none"`)
	b = appendRaw(append(b, `,"tools":`...), q.tools, "[]")
	b = appendRaw(append(b, `,"top_p":`...), q.topP, "1.0")
	limit := q.maxOutput
	if limit == 0 {
		limit = q.w.cfg.MaxModelLen - q.promptTokens[0]
	}
	b = appendInt(b, `,"background":false,"max_output_tokens":`, limit)
	b = append(b, `,"max_tool_calls":null,"previous_response_id":null,"prompt":null,"reasoning":null,"service_tier":"auto","status":`...)
	switch {
	case cut:
		b = append(b, `"incomplete"`...)
	case done:
		b = append(b, `"completed"`...)
	default:
		b = append(b, `"in_progress"`...)
	}
	b = append(b, `,"text":null,"top_logprobs":null,"truncation":"disabled","usage":`...)
	if done {
		b = q.usage().appendResponses(b)
	} else {
		b = append(b, "null"...)
	}
	b = appendRaw(append(b, `,"user":`...), q.user, "null")
	return append(b, `,"presence_penalty":0.0,"frequency_penalty":0.0,"kv_transfer_params":null,"ec_transfer_params":null,"input_messages":null,"output_messages":null}`...)
}

// appendResponses writes the counts in the form of /v1/responses, which always
// tells what came from the cache.
func (u usage) appendResponses(b []byte) []byte {
	b = appendInt(b, `{"input_tokens":`, u.prompt)
	b = appendInt(b, `,"input_tokens_details":{"cached_tokens":`, u.cached)
	b = appendInt(b, `,"cache_write_tokens":0,"input_tokens_per_turn":[],"cached_tokens_per_turn":[]},"output_tokens":`, u.completion)
	b = append(b, `,"output_tokens_details":{"reasoning_tokens":0,"tool_output_tokens":0,"output_tokens_per_turn":[],"tool_output_tokens_per_turn":[]}`...)
	return append(appendInt(b, `,"total_tokens":`, u.prompt+u.completion), '}')
}

// appendRaw repeats a client's value without its line ends, or writes absent.
func appendRaw(b []byte, raw json.RawMessage, absent string) []byte {
	var out bytes.Buffer
	if len(raw) == 0 || json.Compact(&out, raw) != nil {
		return append(b, absent...)
	}
	return append(b, strings.TrimSpace(out.String())...)
}
