package simworker

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"
)

// message is what these tests read of a messages answer, whole or put together
// from a stream.
type message struct {
	ID, Type, Role, Model string
	Content               []messageBlock
	StopReason            *string `json:"stop_reason"`
	StopSequence          *string `json:"stop_sequence"`
	Usage                 struct {
		Input    int  `json:"input_tokens"`
		Output   int  `json:"output_tokens"`
		Read     *int `json:"cache_read_input_tokens"`
		Creation *int `json:"cache_creation_input_tokens"`
	}
}

type messageBlock struct {
	Type, Text, ID, Name string
	Input                json.RawMessage
}

func messagesBody(content, extra string) string {
	return fmt.Sprintf(`{"model":"tiny","max_tokens":12,"messages":[{"role":"user","content":%q}]%s}`, content, extra)
}

func wholeMessage(t *testing.T, w *Worker, body string) *message {
	t.Helper()
	resp, text := post(t, w, "/v1/messages", body)
	m := new(message)
	if err := json.Unmarshal([]byte(text), m); err != nil || resp.StatusCode != http.StatusOK {
		t.Fatalf("%d %s: %v", resp.StatusCode, text, err)
	}
	return m
}

// streamedMessage puts a stream together as a client does.
func streamedMessage(t *testing.T, w *Worker, body string) *message {
	t.Helper()
	_, text := post(t, w, "/v1/messages", strings.TrimSuffix(body, "}")+`,"stream":true}`)
	m := new(message)
	var pieces string
	for e := range strings.SplitSeq(strings.TrimSuffix(text, "\n\n"), "\n\n") {
		name, data, _ := strings.Cut(e, "\n")
		var ev struct {
			Type    string
			Message *message
			Block   messageBlock `json:"content_block"`
			Delta   struct {
				Type, Text  string
				PartialJSON string  `json:"partial_json"`
				Reason      *string `json:"stop_reason"`
				Sequence    *string `json:"stop_sequence"`
			}
			Usage json.RawMessage
		}
		if err := json.Unmarshal([]byte(strings.TrimPrefix(data, "data: ")), &ev); err != nil || name != "event: "+ev.Type {
			t.Fatalf("event %q: %v", e, err)
		}
		switch ev.Type {
		case "message_start":
			m = ev.Message
		case "content_block_start":
			m.Content = append(m.Content, ev.Block)
		case "content_block_delta":
			pieces += ev.Delta.Text + ev.Delta.PartialJSON
		case "content_block_stop":
			if last := &m.Content[len(m.Content)-1]; last.Type == "tool_use" {
				last.Input = json.RawMessage(pieces)
			} else {
				last.Text = pieces
			}
		case "message_delta":
			m.StopReason, m.StopSequence = ev.Delta.Reason, ev.Delta.Sequence
			if err := json.Unmarshal(ev.Usage, &m.Usage); err != nil {
				t.Fatal(err)
			}
		case "message_stop":
			return m
		}
	}
	t.Fatalf("no message_stop in %s", text)
	return nil
}

const messagesTools = `,"tools":[{"name":"weather","description":"d","input_schema":{"properties":{"city":{"type":"string"}}}},{"name":"time","input_schema":{}}]`

func TestMessagesStreamAndWholeAnswerSayTheSame(t *testing.T) {
	w := startWorker(t, func(c *Config) { c.ToolCalls = true; c.OutputTokens = 6 })
	for _, extra := range []string{
		"", messagesTools, messagesTools + `,"tool_choice":{"type":"none"}`, messagesTools + `,"tool_choice":{"type":"tool","name":"time"}`,
		`,"system":"be brief"`, `,"stop_sequences":["never there"]`,
	} {
		whole, stream := wholeMessage(t, w, messagesBody("hello", extra)), streamedMessage(t, w, messagesBody("hello", extra))
		for _, m := range []*message{whole, stream} {
			m.ID = ""
			for i := range m.Content {
				m.Content[i].ID = ""
			}
		}
		a, _ := json.Marshal(whole)
		b, _ := json.Marshal(stream)
		if string(a) != string(b) {
			t.Errorf("%s:\nwhole    %s\nstreamed %s", extra, a, b)
		}
	}
}

func TestMessagesCallTools(t *testing.T) {
	w := startWorker(t, func(c *Config) { c.ToolCalls = true; c.OutputTokens = 6 })
	plain := startWorker(t, nil)
	f := func(w *Worker, extra, name, property string) {
		t.Helper()
		m := wholeMessage(t, w, messagesBody("hello", messagesTools+extra))
		b := m.Content[0]
		if name == "" {
			if b.Type != "text" || *m.StopReason == "tool_use" {
				t.Errorf("%s: %+v, want a text", extra, m)
			}
			return
		}
		var input map[string]string
		if err := json.Unmarshal(b.Input, &input); err != nil || b.Type != "tool_use" || b.Name != name || b.ID == "" || len(input) != 1 || input[property] == "" {
			t.Errorf("%s: %+v, %v; want a call of %s with %s", extra, b, err, name, property)
		}
		if want := "tool_use"; *m.StopReason != want && *m.StopReason != "max_tokens" {
			t.Errorf("%s: stopped by %s", extra, *m.StopReason)
		}
	}
	f(w, "", "weather", "city")
	f(w, `,"tool_choice":{"type":"auto"}`, "weather", "city")
	f(w, `,"tool_choice":{"type":"any"}`, "weather", "city")
	f(plain, `,"tool_choice":{"type":"any","disable_parallel_tool_use":true}`, "weather", "city")
	f(plain, `,"tool_choice":{"type":"tool","name":"time"}`, "time", "input")
	f(plain, `,"tool_choice":{"type":"none"}`, "", "")

	answered := `{"model":"tiny","max_tokens":12,"messages":[{"role":"user","content":"hello"},
		{"role":"assistant","content":[{"type":"tool_use","id":"a","name":"weather","input":{"city":"x"}}]},
		{"role":"user","content":[{"type":"tool_result","tool_use_id":"a","content":"warm"}]}]` + messagesTools + `}`
	if m := wholeMessage(t, w, answered); m.Content[0].Type != "text" {
		t.Errorf("%+v: want a text behind a tool's result", m)
	}
}

func TestChatCallsTools(t *testing.T) {
	w := startWorker(t, func(c *Config) { c.ToolCalls = true; c.OutputTokens = 6 })
	tools := `,"tools":[{"type":"function","function":{"name":"weather","parameters":{"type":"object","properties":{"city":{"type":"string"}}}}}]`
	for choice, want := range map[string]string{
		"": "tool_calls", `,"tool_choice":"required"`: "tool_calls", `,"tool_choice":{"type":"function","function":{"name":"weather"}}`: "stop",
	} {
		_, whole := post(t, w, "/v1/chat/completions", chatBody("hello", tools+choice))
		_, stream := post(t, w, "/v1/chat/completions", chatBody("hello", tools+choice+`,"stream":true`))
		type call struct {
			ID, Type string
			Function struct{ Name, Arguments string }
		}
		var a struct {
			Choices []struct {
				Message struct {
					Content *string
					Calls   []call `json:"tool_calls"`
				}
				Reason string `json:"finish_reason"`
			}
		}
		if err := json.Unmarshal([]byte(whole), &a); err != nil || len(a.Choices) != 1 || len(a.Choices[0].Message.Calls) != 1 {
			t.Fatalf("%s: %v", whole, err)
		}
		c := a.Choices[0].Message.Calls[0]
		if c.Type != "function" || c.Function.Name != "weather" || !strings.HasPrefix(c.Function.Arguments, `{"city": "`) || !json.Valid([]byte(c.Function.Arguments)) || a.Choices[0].Reason != want {
			t.Errorf("%s: %+v, want a call and %s", choice, a, want)
		}
		var name, id, arguments, reason string
		for _, e := range events(stream) {
			var ev struct {
				Choices []struct {
					Delta struct {
						Calls []call `json:"tool_calls"`
					}
					Reason string `json:"finish_reason"`
				}
			}
			if e == "[DONE]" {
				break
			}
			if err := json.Unmarshal([]byte(e), &ev); err != nil {
				t.Fatal(err)
			}
			for _, c := range ev.Choices[0].Delta.Calls {
				id, name, arguments = id+c.ID, name+c.Function.Name, arguments+c.Function.Arguments
			}
			reason += ev.Choices[0].Reason
		}
		if id == "" || name != "weather" || arguments != c.Function.Arguments || reason != want {
			t.Errorf("%s: streamed %q %q %q %q, whole %+v", choice, id, name, arguments, reason, c)
		}
	}
}

// A conversation has as many tokens as the chat that the engine makes of it.
func TestMessagesAreWrittenAsAChat(t *testing.T) {
	w := startWorker(t, nil)
	f := func(messages, chat string) {
		t.Helper()
		_, body := post(t, w, "/v1/messages/count_tokens", `{"model":"tiny",`+messages+`}`)
		var got struct {
			Input int `json:"input_tokens"`
		}
		if err := json.Unmarshal([]byte(body), &got); err != nil || got.Input == 0 {
			t.Errorf("%s: %s, %v", messages, body, err)
			return
		}
		_, body = post(t, w, "/tokenize", `{"model":"tiny","messages":`+chat+`}`)
		var want struct{ Count int }
		if err := json.Unmarshal([]byte(body), &want); err != nil || got.Input != want.Count {
			t.Errorf("%s: %d tokens, want %d as for %s, %v", messages, got.Input, want.Count, chat, err)
		}
		if m := wholeMessage(t, w, `{"model":"tiny","max_tokens":1,`+messages+`}`); m.Usage.Input != want.Count || m.Usage.Output != 1 {
			t.Errorf("%s: usage %+v, want %d", messages, m.Usage, want.Count)
		}
	}
	f(`"messages":[{"role":"user","content":"hello there"}]`, `[{"role":"user","content":"hello there"}]`)
	f(`"system":"be brief","messages":[{"role":"user","content":[{"type":"text","text":"a"},{"type":"text","text":"b"}]}]`,
		`[{"role":"system","content":"be brief"},{"role":"user","content":"a\nb"}]`)
	f(`"system":[{"type":"text","text":"x-anthropic-billing-header: 1"},{"type":"text","text":"one"},{"type":"text","text":"two"}],"messages":[{"role":"user","content":"a"}]`,
		`[{"role":"system","content":"onetwo"},{"role":"user","content":"a"}]`)
	f(`"messages":[{"role":"user","content":"a"},{"role":"assistant","content":[{"type":"thinking","thinking":"t","signature":"s"},{"type":"tool_use","id":"i","name":"n","input":{}}]},
		{"role":"user","content":[{"type":"text","text":"later"},{"type":"tool_result","tool_use_id":"i","content":[{"type":"text","text":"x"},{"type":"text","text":"y"}]}]}]`,
		`[{"role":"user","content":"a"},{"role":"assistant"},{"role":"tool","content":"x\ny"},{"role":"user","content":"later"}]`)
	f(`"messages":[{"role":"user","content":"a"},{"role":"system","content":"x-anthropic-billing-header"},{"role":"system","content":"s"},{"role":"user","content":[{"type":"tool_result","content":"r"}]}]`,
		`[{"role":"user","content":"a"},{"role":"system","content":"s"},{"role":"tool","content":"r"}]`)
}

func TestMessagesUsageWithDetails(t *testing.T) {
	w := startWorker(t, func(c *Config) { c.EnablePromptTokensDetails = true })
	text := longText("", 101) // 120 tokens: three blocks and some
	for i, want := range [][3]int{{24, 0, 96}, {24, 96, 0}} {
		for _, m := range []*message{wholeMessage(t, w, messagesBody(text, "")), streamedMessage(t, w, messagesBody(text, ""))} {
			u := m.Usage
			if u.Read == nil || u.Creation == nil || u.Input+*u.Read+*u.Creation != 120 || u.Input != want[0] {
				t.Errorf("round %d: %+v, want %v", i, u, want)
			}
		}
	}
	_, body := post(t, w, "/v1/messages", messagesBody(text, `,"stream":true`))
	if start, _, _ := strings.Cut(body, "\n\n"); !strings.HasSuffix(start, `"usage":{"input_tokens":120,"output_tokens":0}}}`) {
		t.Errorf("the stream begins with %s; want the whole input and no details", start)
	}
}

func TestMessagesStopReasons(t *testing.T) {
	w := startWorker(t, func(c *Config) { c.OutputTokens = 4 })
	m := wholeMessage(t, w, strings.Replace(messagesBody("hello", ""), "12", "500", 1))
	if *m.StopReason != "end_turn" || m.StopSequence != nil {
		t.Errorf("%+v, want end_turn", m)
	}
	stop := m.Content[0].Text[:1]
	quoted, _ := json.Marshal([]string{stop})
	for _, m := range []*message{
		wholeMessage(t, w, messagesBody("hello", `,"stop_sequences":`+string(quoted))),
		streamedMessage(t, w, messagesBody("hello", `,"stop_sequences":`+string(quoted))),
	} {
		if *m.StopReason != "stop_sequence" || m.StopSequence == nil || *m.StopSequence != stop {
			t.Errorf("%+v, want to be stopped by %q", m, stop)
		}
	}
}

func TestMessagesRefusals(t *testing.T) {
	w := startWorker(t, nil)
	f := func(path, body string, status int, part string, early bool) {
		t.Helper()
		resp, got := post(t, w, path, body)
		var e struct {
			Type  string
			Error struct {
				Type, Message string
				Code          int
			}
		}
		if err := json.Unmarshal([]byte(got), &e); err != nil || resp.StatusCode != status || !strings.Contains(e.Error.Message, part) ||
			early != (e.Type == "") || early != (e.Error.Code == status) {
			t.Errorf("%s: %d %s, %v; want %d and %q, early %t", body, resp.StatusCode, got, err, status, part, early)
		}
	}
	const path, count = "/v1/messages", "/v1/messages/count_tokens"
	f(path, `{"model":"tiny"`, 400, "JSON decode error", true)
	f(path, `{"model":"tiny","messages":[]}`, 400, "body.max_tokens", true)
	f(path, `{"max_tokens":1,"messages":[]}`, 400, "body.model", true)
	f(path, `{"model":"tiny","max_tokens":0,"messages":[]}`, 400, "must be positive", true)
	f(path, `{"model":"tiny","max_tokens":1,"messages":[{"role":"tool","content":"x"}]}`, 400, "body.messages.0.role", true)
	f(path, `{"model":"tiny","max_tokens":1,"messages":[{"role":"user","content":[{"type":"document"}]}]}`, 400, "body.messages.0.content.0.type", true)
	f(path, `{"model":"tiny","max_tokens":1,"messages":[{"role":"user"}]}`, 400, "body.messages.0.content", true)
	f(path, messagesBody("x", `,"tools":[{"name":"a"}]`), 400, "body.tools.0.input_schema", true)
	f(path, messagesBody("x", `,"tool_choice":{"type":"required"}`), 400, "body.tool_choice.type", true)
	f(path, messagesBody("x", `,"cache_salt":""`), 400, "body.cache_salt", true)
	f(path, messagesBody("x", `,"cache_salt":"a/b"`), 400, "must not contain", false)
	f(path, messagesBody("x", messagesTools), 400, "--tool-call-parser", false)
	f(path, messagesBody("x", messagesTools+`,"tool_choice":{"type":"tool","name":"z"}`), 400, "does not match any", false)
	f(path, strings.Replace(messagesBody("x", ""), "12", "9000", 1), 400, "maximum context length", false)
	f(path, messagesBody("x", "")[:0]+`{"model":"no","max_tokens":1,"messages":[{"role":"user","content":"x"}]}`, 404, "Valid aliases", false)
	f(count, `{"model":"tiny"}`, 400, "body.messages", true)
	f(count, `{"model":"no","messages":[{"role":"user","content":"x"}]}`, 404, "Valid aliases", false)
	f(count, `{"model":"tiny","messages":[]}`, 400, "empty list", false)

	w.SetFault(Fault{Status: http.StatusServiceUnavailable})
	f(path, messagesBody("x", ""), 503, "simulated fault", false)
}

func TestMessagesFaults(t *testing.T) {
	w := startWorker(t, slowly(time.Millisecond))
	w.SetFault(Fault{NoDone: true, Requests: 1})
	if _, body := post(t, w, "/v1/messages", messagesBody("x", `,"stream":true`)); strings.Contains(body, "message_stop") || !strings.Contains(body, "message_delta") {
		t.Errorf("%s: want a stream without its end", body)
	}
	w.SetFault(Fault{MalformedEvent: true, Requests: 1})
	_, body := post(t, w, "/v1/messages", messagesBody("x", `,"stream":true`))
	if second := strings.Split(body, "\n\n")[1]; !strings.HasPrefix(second, "event: content_block_start\ndata: {") || strings.HasSuffix(second, "}") {
		t.Errorf("second event %q, want it cut", second)
	}
	w.SetFault(Fault{})

	s := openStream(t, w, "/v1/messages", strings.Replace(messagesBody("x", `,"stream":true`), "12", "5000", 1))
	if _, err := s.event(); err != nil {
		t.Fatal(err)
	}
	w.cancel() // as if the engine died under its server
	last := ""
	for {
		e, err := s.event()
		if err != nil {
			break
		}
		last = e
	}
	if !strings.HasPrefix(last, `{"type":"error","error":{"type":"internal_error","message":"EngineCore`) {
		t.Errorf("last event %s, want the engine's error", last)
	}
}

func TestMessagesClientLeaves(t *testing.T) {
	w := startWorker(t, slowly(time.Millisecond))
	s := openStream(t, w, "/v1/messages", strings.Replace(messagesBody("x", `,"stream":true`), "12", "5000", 1))
	if _, err := s.event(); err != nil {
		t.Fatal(err)
	}
	s.leave()
	waitUntil(t, w, "the request is aborted", func(s Stats) bool { return s.Aborted == 1 && s.Open == 0 })
}

func TestWorkerWithoutMessages(t *testing.T) {
	w := startWorker(t, func(c *Config) { c.NoMessages = true })
	for _, path := range []string{"/v1/messages", "/v1/messages/count_tokens"} {
		if resp, body := post(t, w, path, messagesBody("x", "")); resp.StatusCode != http.StatusNotFound || body != `{"detail":"Not Found"}` {
			t.Errorf("%s: %d %s", path, resp.StatusCode, body)
		}
	}
	if _, body := get(t, w, "/openapi.json"); strings.Contains(body, "/v1/messages") {
		t.Errorf("%s: want no messages routes", body)
	}
}

func FuzzParseMessages(f *testing.F) {
	f.Add([]byte(messagesBody("x", messagesTools+`,"system":[{"type":"text","text":"a"}],"tool_choice":{"type":"any"}`)), false)
	f.Add([]byte(`{"model":"tiny","messages":[{"role":"user","content":[{"type":"tool_result","content":[{"type":"image","source":{"type":"url","url":"u"}}]}]}]}`), true)
	f.Fuzz(func(t *testing.T, body []byte, count bool) {
		form, _, err := parseMessages(body, count)
		if err != nil {
			if b := err.messagesBody(); !json.Valid(b) || err.Status != http.StatusBadRequest {
				t.Errorf("error %d %s", err.Status, b)
			}
			return
		}
		if b := form.body(); !json.Valid(b) {
			t.Errorf("chat form %s", b)
		}
	})
}
