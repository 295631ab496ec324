package translate

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"strings"
	"testing"

	"github.com/sluicegate/sluice/gateway/sse"
	"github.com/sluicegate/sluice/gateway/wire"
)

// heard is what a client makes of the events of a message: its content, as the SDK
// puts it together, and what is wrong with the events.
type heard struct {
	id, model, reason string
	matched           any
	content           []map[string]any
	usage             map[string]any
	first             map[string]any // the usage that the message began with
	done              bool
	begun             bool
	open              int // index of the open block, or -1
	pieces            string
}

func newHeard() *heard { return &heard{open: -1} }

// hear takes one event. It is as strict as the format is said to be.
func (h *heard) hear(name string, data []byte) error {
	var e struct {
		Type    string
		Index   *int
		Message struct {
			ID, Type, Role, Model string
			Content               []any
			StopReason            *string `json:"stop_reason"`
			Usage                 map[string]any
		}
		ContentBlock map[string]any `json:"content_block"`
		Delta        map[string]any
		Usage        map[string]any
	}
	if err := json.Unmarshal(data, &e); err != nil {
		return fmt.Errorf("%s: %w", data, err)
	}
	if e.Type != name {
		return fmt.Errorf("event %q is of type %q", name, e.Type)
	}
	if h.done || !h.begun && name != "message_start" {
		return fmt.Errorf("%s outside of a message", name)
	}
	switch name {
	case "message_start":
		if h.begun || e.Message.Type != "message" || e.Message.Role != "assistant" || e.Message.Content == nil || e.Message.StopReason != nil {
			return fmt.Errorf("a message begins with %s", data)
		}
		h.begun, h.id, h.model = true, e.Message.ID, e.Message.Model
		h.first, h.usage = e.Message.Usage, map[string]any{}
		maps.Copy(h.usage, e.Message.Usage)
	case "content_block_start":
		if h.open >= 0 || *e.Index != len(h.content) {
			return fmt.Errorf("block %d begins while %d of %d is open", *e.Index, h.open, len(h.content))
		}
		h.open, h.pieces = *e.Index, ""
		h.content = append(h.content, e.ContentBlock)
	case "content_block_delta":
		if h.open != *e.Index || h.open < 0 {
			return fmt.Errorf("a piece of block %d while %d is open", *e.Index, h.open)
		}
		return h.piece(e.Delta)
	case "content_block_stop":
		if h.open != *e.Index || h.open < 0 {
			return fmt.Errorf("block %d ends while %d is open", *e.Index, h.open)
		}
		return h.stop()
	case "message_delta":
		if h.open >= 0 || h.reason != "" {
			return errors.New("a message ends with a block open, or twice")
		}
		h.reason, h.matched = e.Delta["stop_reason"].(string), e.Delta["stop_sequence"]
		maps.Copy(h.usage, e.Usage)
	case "message_stop":
		if h.reason == "" {
			return errors.New("a message stops without its reason")
		}
		h.done = true
	default:
		return fmt.Errorf("unknown event %q", name)
	}
	return nil
}

func (h *heard) piece(delta map[string]any) error {
	block := h.content[h.open]
	key, piece := "", ""
	switch block["type"].(string) + " " + delta["type"].(string) {
	case "text text_delta":
		key = "text"
	case "thinking thinking_delta":
		key = "thinking"
	case "tool_use input_json_delta":
		piece = delta["partial_json"].(string)
		h.pieces += piece
	default:
		return fmt.Errorf("a %v in a block of %v", delta["type"], block["type"])
	}
	if key != "" {
		piece = delta[key].(string)
		block[key] = block[key].(string) + piece
	}
	if piece == "" {
		return errors.New("an empty piece")
	}
	return nil
}

func (h *heard) stop() error {
	block := h.content[h.open]
	h.open = -1
	switch block["type"] {
	case "text":
		if block["text"] == "" {
			return errors.New("an empty text")
		}
	case "tool_use":
		block["raw"] = h.pieces
		var input any
		if json.Unmarshal([]byte(h.pieces), &input) == nil {
			block["input"] = input
		}
	}
	return nil
}

// hearAll hears all events of a text.
func hearAll(text []byte) (*heard, error) {
	h := newHeard()
	var s sse.Scanner
	s.Feed(text)
	for ev, ok := s.Next(); ok; ev, ok = s.Next() {
		if err := h.hear(string(ev.Name), ev.Data); err != nil {
			return h, err
		}
	}
	return h, nil
}

// chunk is a chunk of a chat completion with a delta.
func chunk(delta string) string {
	return `{"id":"chatcmpl-1","object":"chat.completion.chunk","model":"tiny","choices":[{"index":0,"delta":` + delta + `,"finish_reason":null}]}`
}

func finishChunk(finish, stop string) string {
	return `{"model":"tiny","choices":[{"index":0,"delta":{"content":""},"finish_reason":` + finish + `,"stop_reason":` + stop + `}]}`
}

func piece(index int, id, name, args string) string {
	c := fmt.Sprintf(`{"index":%d`, index)
	if id != "" {
		c += `,"id":"` + id + `","type":"function"`
	}
	f := ""
	if name != "" {
		f = `"name":"` + name + `",`
	}
	text, _ := json.Marshal(args)
	return c + `,"function":{` + f + `"arguments":` + string(text) + `}}`
}

func calls(pieces ...string) string { return `{"tool_calls":[` + strings.Join(pieces, ",") + `]}` }

var testUsage = wire.Usage{Input: 10, Output: 6, Known: true}

// translate runs chunks through a Translator.
func translate(chunks ...string) ([]byte, error) {
	t := NewTranslator("msg_r1", 1<<20)
	var out []byte
	var err error
	for _, c := range chunks {
		if out, err = t.AppendChunk(out, []byte(c), testUsage); err != nil {
			return out, err
		}
	}
	return t.AppendEnd(out, testUsage)
}

// brief is the content of a message in few words.
func (h *heard) brief() string {
	var parts []string
	for _, b := range h.content {
		switch b["type"] {
		case "text":
			parts = append(parts, fmt.Sprintf("text %q", b["text"]))
		case "thinking":
			parts = append(parts, fmt.Sprintf("thinking %q", b["thinking"]))
		case "tool_use":
			parts = append(parts, fmt.Sprintf("%v=%v%v", b["id"], b["name"], b["raw"]))
		}
	}
	parts = append(parts, h.reason)
	if h.matched != nil {
		parts = append(parts, fmt.Sprintf("at %q", h.matched))
	}
	return strings.Join(parts, "; ")
}

func TestStreams(t *testing.T) {
	f := func(want string, chunks ...string) {
		t.Helper()
		chunks = append([]string{chunk(`{"role":"assistant","content":""}`)}, chunks...)
		out, err := translate(chunks...)
		if err != nil {
			t.Errorf("want %s: %v", want, err)
			return
		}
		h, err := hearAll(out)
		if err != nil || !h.done {
			t.Errorf("want %s: %v\n%s", want, err, out)
			return
		}
		if got := h.brief(); got != want {
			t.Errorf("got  %s\nwant %s", got, want)
		}
	}
	text := func(s string) string { return chunk(`{"content":"` + s + `"}`) }
	stop := finishChunk(`"stop"`, `null`)
	f(`end_turn`, stop)
	f(`text "ab\nc"; end_turn`, text(`a`), text(``), text(`b\nc`), stop)
	f(`text "a"; max_tokens`, text(`a`), finishChunk(`"length"`, `null`))
	f(`text "a"; refusal`, text(`a`), finishChunk(`"content_filter"`, `null`))
	f(`text "a"; stop_sequence; at "\n\"b"`, text(`a`), finishChunk(`"stop"`, `"\n\"b"`))
	f(`text "a"; end_turn`, text(`a`), finishChunk(`"stop"`, `151645`))
	f(`text "a"; end_turn`, text(`a`), finishChunk(`"repetition"`, `null`))
	f(`text "no"; refusal`, chunk(`{"refusal":"no"}`), stop)
	// The finish reason may come with the last words.
	f(`text "ab"; max_tokens`, text(`a`), `{"choices":[{"delta":{"content":"b"},"finish_reason":"length"}]}`)
	// Reasoning, under either name.
	f(`thinking "hm m"; text "a"; end_turn`, chunk(`{"reasoning":"hm"}`), chunk(`{"reasoning_content":" m"}`), text(`a`), stop)
	f(`thinking "hm"; text "a"; end_turn`, chunk(`{"reasoning":"hm","reasoning_content":"hm","content":"a"}`), stop)
	f(`text "a"; thinking "hm"; text "b"; end_turn`, text(`a`), chunk(`{"reasoning":"hm"}`), text(`b`), stop)
	// Calls.
	tools := finishChunk(`"tool_calls"`, `null`)
	f(`text "a"; c1=f{"x":1}; tool_use`, text(`a`), chunk(calls(piece(0, "c1", "f", ""))), chunk(calls(piece(0, "", "", `{"x"`))), chunk(calls(piece(0, "", "", `:1}`))), tools)
	f(`c1=f{}; tool_use`, chunk(calls(piece(0, "c1", "f", ""))), tools)
	f(`c1=f{"x":1}; tool_use`, chunk(calls(piece(0, "c1", "f", `{"x":1}`))), stop)
	f(`c1=f{"x":; max_tokens`, chunk(calls(piece(0, "c1", "f", `{"x":`))), finishChunk(`"length"`, `null`))
	f(`c1=f{"x":; stop_sequence; at "y"`, chunk(calls(piece(0, "c1", "f", `{"x":`))), finishChunk(`"stop"`, `"y"`))
	f(`c1=f{"x":1}; tool_use`, chunk(calls(piece(0, "c1", "f", `{"x":1}`))), finishChunk(`"stop"`, `"y"`))
	// One after the other, each at once.
	f(`c1=f{"a":"}"}; c2=g{"b":2}; tool_use`, chunk(calls(piece(0, "c1", "f", `{"a":"}`))), chunk(calls(piece(0, "", "", `"}`))),
		chunk(calls(piece(1, "c2", "g", `{"b"`))), chunk(calls(piece(1, "", "", `:2}`))), tools)
	// Mixed, also in one chunk.
	f(`c1=f{"a":1}; c2=g{"b":2}; c3=h{}; tool_use`, chunk(calls(piece(0, "c1", "f", `{"a"`), piece(1, "c2", "g", `{"b"`))),
		chunk(calls(piece(1, "", "", `:2}`), piece(2, "c3", "h", ``))), chunk(calls(piece(0, "", "", `:1}`))), tools)
	// A word in the middle of a call waits for its end.
	f(`c1=f{"a":1}; text "by the "; c2=g{}; tool_use`, chunk(calls(piece(0, "c1", "f", `{"a"`))), text(`by the `),
		chunk(calls(piece(1, "c2", "g", ``))), text(``), chunk(calls(piece(0, "", "", `:1}`))), tools, text(``))
	f(`c1=f{"a":1}; text "x y"; tool_use`, chunk(calls(piece(0, "c1", "f", `{"a"`))), text(`x`), text(` y`), chunk(calls(piece(0, "", "", `:1}`))), tools)
	f(`c1=f{"a":1}; text "x"; tool_use`, chunk(calls(piece(0, "c1", "f", `{"a":1}`))), text(`x`), chunk(calls(piece(0, "", "", "\n"))), tools)
	// Engines differ in what they repeat.
	f(`c1=f{"a":1}; tool_use`, chunk(calls(piece(0, "c1", "f", `{"a"`))), chunk(calls(piece(0, "c1", "", `:1`))), chunk(calls(piece(0, "c1", "f", `}`))), tools)
	f(`c1=f{"a":1}; c2=f{"b":2}; tool_use`, chunk(calls(piece(0, "c1", "f", `{"a":1}`))), chunk(calls(piece(0, "c2", "f", `{"b":2}`))), tools)
	f(`toolu_r1_0=f{}; tool_use`, chunk(calls(piece(0, "", "f", `{}`))), tools)
	f(`c1=f{"a":1}; tool_use`, chunk(`{"tool_calls":[{"id":"c1","function":{"name":"f","arguments":"{\"a\":1}"}}]}`), tools)
	// Other choices are nobody's.
	f(`text "a"; end_turn`, `{"choices":[{"index":1,"delta":{"content":"b"}},{"index":0,"delta":{"content":"a"}}]}`, stop)
}

func TestStreamFrame(t *testing.T) {
	tr := NewTranslator("msg_r1", 100)
	start, err := tr.AppendChunk(nil, []byte(chunk(`{"role":"assistant","content":""}`)), wire.Usage{Input: 10, Known: true})
	if err != nil {
		t.Fatal(err)
	}
	if want := "event: message_start\n" + `data: {"type":"message_start","message":{"id":"msg_r1","type":"message","role":"assistant","model":"tiny",` +
		`"content":[],"stop_reason":null,"stop_sequence":null,"usage":{"input_tokens":10,"output_tokens":0}}}` + "\n\n"; string(start) != want {
		t.Errorf("it begins with %q", start)
	}
	// Later chunks without words add nothing.
	if more, err := tr.AppendChunk(nil, []byte(`{"choices":[],"usage":{}}`), testUsage); err != nil || len(more) > 0 {
		t.Errorf("a chunk without choices gives %q, %v", more, err)
	}
	if more, err := tr.AppendChunk(nil, []byte(`{"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}`), testUsage); err != nil || len(more) > 0 {
		t.Errorf("a chunk without words gives %q, %v", more, err)
	}
	end, err := tr.AppendEnd(nil, wire.Usage{Input: 10, Cached: 4, CachedKnown: true, Output: 6, Known: true})
	if want := "event: message_delta\n" + `data: {"type":"message_delta","delta":{"stop_reason":"end_turn","stop_sequence":null},` +
		`"usage":{"input_tokens":6,"cache_read_input_tokens":4,"output_tokens":6}}` + "\n\nevent: message_stop\ndata: {\"type\":\"message_stop\"}\n\n"; err != nil || string(end) != want {
		t.Errorf("it ends with %q, %v", end, err)
	}
}

func TestBrokenStreams(t *testing.T) {
	f := func(want error, chunks ...string) {
		t.Helper()
		out, err := translate(chunks...)
		if err == nil || want != nil && !errors.Is(err, want) {
			t.Errorf("%.200q gives %v, want %v", chunks, err, want)
		}
		if strings.Contains(string(out), "message_stop") || strings.Contains(string(out), "message_delta") {
			t.Errorf("%.200q is brought to an end: %s", chunks, out)
		}
		if err != nil && strings.Contains(err.Error(), "secret") {
			t.Errorf("the error quotes: %v", err)
		}
	}
	f(errNotBegun)
	f(errChunk, `secret`)
	f(errChunk, `["secret"]`)
	f(errChunk, chunk(`{"content":"secret`))
	f(nil, chunk(`{"content":["secret"]}`))
	f(nil, chunk(`{"content":5}`))
	f(nil, chunk(`{"tool_calls":"secret"}`))
	f(nil, chunk(`{"function_call":{"name":"secret"}}`))
	f(errCall, chunk(`{"tool_calls":["secret"]}`))
	f(errCall, chunk(`{"tool_calls":[{"index":0,"function":{"name":"f","arguments":{"secret":1}}}]}`))
	f(errCall, chunk(calls(piece(0, "", "", `{"secret"`))))
	f(errCall, chunk(calls(piece(0, "c", "f", `{}`))), chunk(calls(piece(1, "d", "f", `{}`))), chunk(calls(piece(0, "", "", `secret`))))
	f(errAborted, chunk(`{"content":"a"}`), finishChunk(`"abort"`, `null`))
	f(errAborted, chunk(`{"content":"a"}`), finishChunk(`"error"`, `null`))
	f(errNoFinish, chunk(`{"content":"a"}`))
	f(errNoFinish, chunk(calls(piece(0, "c", "f", `{}`))))
	var many []string
	for i := range maxCalls + 1 {
		many = append(many, chunk(calls(piece(i, "c", "f", `{}`))))
	}
	f(errTooMany, many...)
}

// TestHeldBackIsBounded shows that what waits for a call's end is bounded, in words and
// in calls.
func TestHeldBackIsBounded(t *testing.T) {
	f := func(limit int, each string) {
		t.Helper()
		tr := NewTranslator("msg_r1", limit)
		out, err := tr.AppendChunk(nil, []byte(chunk(calls(piece(0, "c1", "f", `{"open`)))), testUsage)
		if err != nil {
			t.Fatal(err)
		}
		for range 1000 {
			if out, err = tr.AppendChunk(out[:0], []byte(each), testUsage); err != nil {
				break
			}
			if tr.held > limit {
				t.Fatalf("%d bytes are held back, of %d", tr.held, limit)
			}
		}
		if !errors.Is(err, errHeld) {
			t.Errorf("%s: %v", each, err)
		}
	}
	f(1000, chunk(`{"content":"twenty bytes of text"}`))
	f(10000, chunk(calls(piece(7, "c2", "g", `{"twenty bytes of `))))
}

// TestRecordedStream translates a recorded stream, cut into reads at every offset.
func TestRecordedStream(t *testing.T) {
	stream, err := os.ReadFile("../../sse/testdata/chat_stream_continuous.sse")
	if err != nil {
		t.Fatal(err)
	}
	run := func(cut int) string {
		tr := NewTranslator("msg_r1", 1<<20)
		s := sse.NewScanner(1 << 20)
		var out []byte
		read := func(b []byte) {
			s.Feed(b)
			for ev, ok := s.Next(); ok; ev, ok = s.Next() {
				var err error
				if string(ev.Data) == "[DONE]" {
					out, err = tr.AppendEnd(out, testUsage)
				} else {
					out, err = tr.AppendChunk(out, ev.Data, testUsage)
				}
				if err != nil {
					t.Fatalf("cut at %d: %v", cut, err)
				}
			}
		}
		read(stream[:cut])
		read(stream[cut:])
		return string(out)
	}
	want := run(0)
	h, err := hearAll([]byte(want))
	if err != nil || !h.done || h.model != "tiny" || h.id != "msg_r1" {
		t.Fatalf("%+v: %v\n%s", h, err, want)
	}
	if got := h.brief(); got != "text \".bold🔮\\tNSStringavigate抵御滅\"; max_tokens" {
		t.Errorf("it says %s", got)
	}
	for cut := range stream {
		if got := run(cut); got != want {
			t.Fatalf("cut at %d:\n got %s\nwant %s", cut, got, want)
		}
	}
}
