package openai

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/sluicegate/sluice/gateway/wire"
	"github.com/sluicegate/sluice/gateway/wire/wiretest"
)

func TestScanOfTheOtherOperations(t *testing.T) {
	var req wire.Request
	f := func(op wire.Operation, body, want string) {
		t.Helper()
		if err := Scan(&req, op, []byte(body)); err != nil {
			t.Errorf("Scan(%s) fails: %v", body, err)
			return
		}
		if got := summary(&req); got != want {
			t.Errorf("Scan(%v, %s)\n got %s\nwant %s", op, body, got, want)
		}
	}
	f(wire.Responses, `{"model":"m","input":"hello","max_output_tokens":4,"max_tokens":9,"n":5}`, `model=m max=4 messages=1 modalities=[text] text=5`)
	f(wire.Responses, `{"model":"m","input":[],"instructions":"be brief","stream":true,"stream_options":{"include_obfuscation":false}}`,
		`model=m stream=true options={ modalities=[text] text=8`)
	f(wire.Responses, `{"model":"m","input":[{"role":"user","content":"ab"},{"type":"message","role":"assistant","content":[{"type":"output_text","text":"cde"}]}]}`,
		`model=m messages=2 modalities=[text] text=5`)
	f(wire.Responses, `{"model":"m","input":[{"role":"user","content":[{"type":"input_image","image_url":"u"},{"type":"input_file","file_data":"x"},{"type":"input_text","text":"t"}]}]}`,
		`model=m messages=1 images=1 modalities=[text image file] text=1`)
	f(wire.Responses, `{"model":"m","input":[{"type":"input_image","image_url":"u"}]}`, `model=m messages=1 images=1 modalities=[image]`)
	f(wire.Responses, `{"model":"m","input":[{"type":"function_call","call_id":"c","name":"f","arguments":"{}"},{"type":"function_call_output","call_id":"c","output":"three"}]}`,
		`model=m messages=2 modalities=[text] text=10`)
	f(wire.Responses, `{"model":"m","input":[{"type":"computer_call_output","output":{"type":"computer_screenshot","image_url":"u"}}]}`,
		`model=m messages=1 images=1 modalities=[image]`)
	f(wire.Responses, `{"model":"m","input":"x","previous_input_messages":[{"role":"user"}],"user":"u","cache_salt":"s","priority":2}`,
		`model=m user=u salt=s priority=2 messages=1 modalities=[text] text=18`)
	f(wire.Responses, `{"model":"m","input":"x","prompt":null,"conversation":null,"request_id":null,"background":false,"previous_response_id":null}`,
		`model=m messages=1 modalities=[text] text=1`)
	tools := `[{"type":"function","name":"f","parameters":{}}, {"type":"web_search"},{"type":"mcp","server_label":"l"},{"name":"n"},{"type":"custom","name":"c"},{},{"type":"function","function":{"name":"g"}}]`
	f(wire.Responses, `{"model":"m","input":"","tools":`+tools+`}`,
		fmt.Sprintf(`model=m tool=f tool=web_search tool=mcp tool=l tool=n tool=custom tool=c tool= tool=g messages=1 text=%d`, len(tools)))
	f(wire.Responses, `{"model":"m","input":"","tools":[{"type":"namespace","name":"ns","tools":[{"type":"function","name":"f"},{"type":"custom","name":"g"}]}]}`,
		`model=m tool=namespace tool=ns tool=f tool=custom tool=g tool=ns__f tool=ns__g messages=1 text=104`)
	f(wire.Responses, `{"model":"m","input":"","tools":[{"tools":[{"name":"f"},{}],"name":"n\u0073","type":"namespace"},{"type":"namespace","tools":[{"name":"g"}]}]}`,
		`model=m tool=f tool= tool=ns tool=namespace tool=ns__f tool=namespace tool=g messages=1 text=109`)
	f(wire.Responses, `{"model":"m","input":[{"role":"developer","content":"a","tools":[{"type":"function","function":{"name":"f"}}]},{"role":"user","tools":"no list"}]}`,
		`model=m tool=f messages=2 modalities=[text] text=53`)
	f(wire.Embeddings, `{"model":"m","input":"abc","max_tokens":3,"n":2}`, `model=m modalities=[text] text=3`)
	f(wire.Embeddings, `{"model":"m","input":["a","bc"],"stream":false}`, `model=m modalities=[text] text=3`)
	f(wire.Embeddings, `{"model":"m","input":[[1,2],[3]]}`, `model=m modalities=[text] ids=3`)
	f(wire.Embeddings, `{"model":"m","messages":[{"role":"user","content":"ab"}]}`, `model=m messages=1 modalities=[text] text=2`)
	f(wire.Tokenize, `{"model":"m","prompt":"abc"}`, `model=m modalities=[text] text=3`)
	f(wire.Tokenize, `{"model":"m","messages":[{"role":"user","content":"ab"}],"tools":[{"type":"function","function":{"name":"f"}}]}`,
		`model=m tool=f messages=1 modalities=[text] text=47`)
	f(wire.Detokenize, `{"model":"m","tokens":[1,2,3]}`, `model=m modalities=[text] ids=3`)
	f(wire.Chat, `{"model":"m","messages":[],"tokens":1,"tokens":2,"conversation":"c"}`, `model=m`)
}

func TestPromptsOfTheOtherOperations(t *testing.T) {
	var req wire.Request
	for _, c := range []struct {
		op   wire.Operation
		body string
		want int
	}{
		{wire.Responses, `{"model":"m","input":[]}`, 1},
		{wire.Embeddings, `{"model":"m","input":["a","b","c"]}`, 3},
		{wire.Embeddings, `{"model":"m","input":[1,2]}`, 1},
		{wire.Embeddings, `{"model":"m","messages":[{"content":"a"}]}`, 1},
		{wire.Embeddings, `{"model":"m"}`, 0},
		{wire.Tokenize, `{"model":"m","messages":[{"content":"a"}]}`, 1},
		{wire.Detokenize, `{"model":"m","tokens":[]}`, 1},
	} {
		if err := Scan(&req, c.op, []byte(c.body)); err != nil || req.PromptCount != c.want || req.Choices() != 1 {
			t.Errorf("%v %s: %d prompts with %d choices (%v), want %d with one", c.op, c.body, req.PromptCount, req.Choices(), err, c.want)
		}
	}
}

func TestRefusalsOfTheOtherOperations(t *testing.T) {
	var req wire.Request
	many := strings.TrimSuffix(strings.Repeat(`{"type":"custom","name":"x"},`, 300), ",")
	for _, c := range []struct {
		op                wire.Operation
		body, code, param string
	}{
		{wire.Responses, `{"model":"m"}`, "invalid_request", "input"},
		{wire.Responses, `{"model":"m","input":null}`, "invalid_request", "input"},
		{wire.Responses, `{"model":"m","input":5}`, "invalid_request", "input"},
		{wire.Responses, `{"model":"m","input":["x"]}`, "invalid_request", "input[0]"},
		{wire.Responses, `{"model":"m","input":[{"role":1}]}`, "invalid_request", "input[0].role"},
		{wire.Responses, `{"model":"m","input":[{"content":[3]}]}`, "invalid_request", "input[0].content[0]"},
		{wire.Responses, `{"model":"m","input":[{"content":[{"text":3}]}]}`, "invalid_request", "input[0].content[0].text"},
		{wire.Responses, `{"model":"m","input":[{"content":"a","content":"b"}]}`, "duplicate_key", "input[0].content"},
		{wire.Responses, `{"model":"m","input":"a","inp\u0075t":"b"}`, "duplicate_key", "input"},
		{wire.Responses, `{"model":"m","input":"a","max_output_tokens":1,"max_output_tokens":2}`, "duplicate_key", "max_output_tokens"},
		{wire.Responses, `{"model":"m","input":"a","max_output_tokens":"2"}`, "invalid_request", "max_output_tokens"},
		{wire.Responses, `{"model":"m","input":"a","background":"true"}`, "invalid_request", "background"},
		{wire.Responses, `{"model":"m","input":"a","previous_response_id":3}`, "invalid_request", "previous_response_id"},
		{wire.Responses, `{"model":"m","input":"a","instructions":3}`, "invalid_request", "instructions"},
		{wire.Responses, `{"model":"m","input":"a","prompt":{"id":"p"}}`, "response_store_unavailable", "prompt"},
		{wire.Responses, `{"model":"m","input":"a","conversation":"c"}`, "response_store_unavailable", "conversation"},
		{wire.Responses, `{"model":"m","input":"a","conv\u0065rsation":{"id":"c"}}`, "response_store_unavailable", "conversation"},
		{wire.Responses, `{"model":"m","input":[{"type":"item_reference","id":"i"}]}`, "response_store_unavailable", "input[0].type"},
		{wire.Responses, `{"model":"m","input":"a","request_id":"resp_1"}`, "invalid_request", "request_id"},
		{wire.Responses, `{"model":"m","input":"a","kv_transfer_params":{}}`, "invalid_request", "kv_transfer_params"},
		{wire.Responses, `{"model":"m","input":"a","tools":[{"type":"mcp","server_url":"http://10.0.0.1/"}]}`, "invalid_request", "tools[0].server_url"},
		{wire.Responses, `{"model":"m","input":"a","tools":[{"type":"function","type":"mcp"}]}`, "duplicate_key", "tools[0].type"},
		{wire.Responses, `{"model":"m","input":"a","tools":[{"name":"a","name":"b"}]}`, "duplicate_key", "tools[0].name"},
		{wire.Responses, `{"model":"m","input":"a","tools":[` + many + `]}`, "invalid_request", "tools"},
		{wire.Responses, `{"model":"m","input":"a","tools":[{"type":"` + strings.Repeat("x", 129) + `"}]}`, "invalid_request", "tools[0].type"},
		{wire.Embeddings, `{"model":"m","input":"a","stream":true}`, "invalid_request", "stream"},
		{wire.Embeddings, `{"model":"m","input":{"a":1}}`, "invalid_request", "input"},
		{wire.Embeddings, `{"model":"m","input":"a","input":"b"}`, "duplicate_key", "input"},
		{wire.Embeddings, `{"model":"m","input":["a",1]}`, "invalid_request", "input[1]"},
		{wire.Tokenize, `{"model":"m","prompt":"a","stream":true}`, "invalid_request", "stream"},
		{wire.Tokenize, `{"prompt":"a"}`, "invalid_request", "model"},
		{wire.Detokenize, `{"model":"m","tokens":["a"]}`, "invalid_request", "tokens[0]"},
		{wire.Detokenize, `{"model":"m","tokens":[-1]}`, "invalid_request", "tokens[0]"},
		{wire.Detokenize, `{"model":"m","tokens":"1"}`, "invalid_request", "tokens"},
		{wire.Detokenize, `{"model":"m","tokens":[1],"t\u006fkens":[2]}`, "duplicate_key", "tokens"},
	} {
		err := Scan(&req, c.op, []byte(c.body))
		var e *wire.Error
		if !errors.As(err, &e) || e.Code != c.code || e.Param != c.param || e.Status != 400 {
			t.Errorf("%v %.90s: %#v, want %s at %s", c.op, c.body, err, c.code, c.param)
		}
	}
}

func TestRewriteOfAResponse(t *testing.T) {
	for _, c := range []struct {
		op   wire.Operation
		body string
		m    wire.Mutation
		want string
	}{
		{op: wire.Responses, body: `{"model":"a", "input":"x" }`, m: wire.Mutation{Model: new("w"), MaxTokens: new(int64(7)), CacheSalt: new("s"), InjectUsage: true},
			want: `{"model":"w", "input":"x","max_output_tokens":7,"cache_salt":"s" }`},
		{op: wire.Responses, body: `{"max_output_tokens":1e2,"model":"a","input":"x","stream":true,"max_tokens":3}`,
			m:    wire.Mutation{MaxTokens: new(int64(99)), InjectUsage: true},
			want: `{"max_output_tokens":99,"model":"a","input":"x","stream":true,"max_tokens":3}`},
		{op: wire.Embeddings, body: `{"model":"a","input":"x","n":4,"priority":1}`,
			m:    wire.Mutation{MaxTokens: new(int64(1)), N: new(int64(1)), RemovePriority: true, CacheSalt: new("s")},
			want: `{"model":"a","input":"x","n":4,"cache_salt":"s"}`},
		{op: wire.Detokenize, body: `{"tokens":[1],"cache_salt":"mine","model":"a"}`, m: wire.Mutation{RemoveCacheSalt: true, MaxTokens: new(int64(1))},
			want: `{"tokens":[1],"model":"a"}`},
	} {
		var req wire.Request
		if err := Scan(&req, c.op, []byte(c.body)); err != nil {
			t.Fatal(err)
		}
		if got := string(AppendRewrite(nil, []byte(c.body), &req, c.m)); got != c.want {
			t.Errorf("%s\nbecomes %s\n   want %s", c.body, got, c.want)
		}
	}
}

// The recorded stream, event by event.
func TestResponseStreamRecording(t *testing.T) {
	r := wiretest.Recordings(t)["responses_stream"]
	var s ResponseStream
	var flags []string
	for event := range strings.SplitSeq(strings.TrimRight(r.ResponseBody, "\n"), "\n\n") {
		name, data, _ := strings.Cut(event, "\ndata: ")
		flags = append(flags, s.Observe([]byte(strings.TrimPrefix(name, "event: ")), []byte(data)).String())
	}
	want := []string{"", "", "", "", "first+content", "content", "content", "content", "", "", "", "usage+done"}
	if !slices.Equal(flags, want) {
		t.Errorf("events are %q, want %q", flags, want)
	}
	if u := s.Usage(); u != (wire.Usage{Input: 10, Output: 4, CachedKnown: true, Known: true}) || !s.Complete() || s.ContentDeltas() != 4 || s.NextSequence() != 12 {
		t.Errorf("usage %+v, complete %t, %d deltas, next %d", u, s.Complete(), s.ContentDeltas(), s.NextSequence())
	}
}

func TestResponseStreamObserve(t *testing.T) {
	var s ResponseStream
	f := func(name, data, want string) {
		t.Helper()
		if got := s.Observe([]byte(name), []byte(data)).String(); got != want {
			t.Errorf("%s %s is %q, want %q", name, data, got, want)
		}
	}
	f("", "", "")
	f("", "[DONE]", "malformed")
	f("response.created", `{"type":"response.created",`, "malformed")
	f("x", `{"type":"response.output_text.delta","delta":"","sequence_number":7}`, "")
	f("response.reasoning_text.delta", `{"delta":"a"}`, "first+content")
	f("", `{"type":"response.mcp_call_arguments.delta","delta":{}}`, "")
	f("", `{"type":"response.mcp_call_arguments.delta","delta":{"a":1}}`, "content")
	f("", `{"type":"response.output_text.done","delta":"a"}`, "")
	f("", `{"type":"response.in_progress","response":{"usage":{"input_tokens":3,"output_tokens":1}}}`, "usage")
	if s.Complete() || s.NextSequence() != 8 {
		t.Errorf("complete %t, next %d", s.Complete(), s.NextSequence())
	}
	f("response.incomplete", `{"response":{"usage":null}}`, "done")
	if !s.Complete() || s.Usage().CachedKnown {
		t.Errorf("complete %t with %+v", s.Complete(), s.Usage())
	}
	f("", `{"type":"response.failed","response":{"error":{"code":"server_error","message":"m"}}}`, "done")
	if _, failed := s.StreamError(); failed {
		t.Error("an end that the protocol has counts as an error")
	}
	f("", `{"error":{"message":"secret words","type":"InternalServerError","code":500}}`, "error")
	f("error", `{"code":"x","message":"m"}`, "error")
	e, failed := s.StreamError()
	if !failed || e.Body.Code != "upstream_error" || strings.Contains(e.Body.Message, "secret") {
		t.Errorf("the error is %+v", e)
	}
}

func TestReadUsageOfTheOtherOperations(t *testing.T) {
	f := func(read func(wire.Operation, []byte) (wire.Usage, error), op wire.Operation, body string, want wire.Usage) {
		t.Helper()
		if u, err := read(op, []byte(body)); err != nil || u != want {
			t.Errorf("%v %.60s: %+v (%v), want %+v", op, body, u, err, want)
		}
	}
	r := wiretest.Recordings(t)
	responses := ResponsesCodec{}.ReadUsage
	f(responses, wire.Responses, r["responses"].ResponseBody, wire.Usage{Input: 10, Output: 4, Known: true, CachedKnown: true})
	f(responses, wire.Responses, `{"usage":{"input_tokens":10,"output_tokens":4,"input_tokens_details":null,"output_tokens_details":{"reasoning_tokens":3}}}`,
		wire.Usage{Input: 10, Output: 4, Reasoning: 3, Known: true})
	f(responses, wire.Responses, `{"usage":{"input_tokens":1,"output_tokens":4,"input_tokens_details":{"cached_tokens":2},"output_tokens_details":{"reasoning_tokens":9}}}`,
		wire.Usage{Input: 1, Output: 4, Known: true})
	f(responses, wire.Responses, `{"usage":{"input_tokens":10}}`, wire.Usage{})
	f(ReadUsage, wire.Embeddings, `{"usage":{"prompt_tokens":5,"total_tokens":5}}`, wire.Usage{Input: 5, Known: true})
	f(ReadUsage, wire.Embeddings, `{"usage":{"prompt_tokens":5,"completion_tokens":7}}`, wire.Usage{Input: 5, Known: true})
	f(ReadUsage, wire.Tokenize, r["tokenize"].ResponseBody, wire.Usage{Known: true, CachedKnown: true})
	f(ReadUsage, wire.Detokenize, `{"prompt":"x"}`, wire.Usage{Known: true, CachedKnown: true})
	for _, body := range []string{"", "[]", `{"usage":`} {
		if _, err := responses(wire.Responses, []byte(body)); err == nil {
			t.Errorf("%q is taken for a response", body)
		}
	}
	if id := ResponseID([]byte(r["responses"].ResponseBody)); string(id) != "resp_bc6dd8dfc2dc14ac" {
		t.Errorf("the response's id is %q", id)
	}
}

func TestErrorEventOfAResponse(t *testing.T) {
	got := string(ResponsesCodec{}.AppendErrorEvent(nil, wire.ErrorBody{Message: "m\n", Type: "server_error", Code: "upstream_error"}, 502, "r", 7))
	want := "event: error\ndata: " + `{"type":"error","code":"upstream_error","message":"m\n","param":null,"sequence_number":7,` +
		`"error":{"type":"server_error","code":"upstream_error","message":"m\n","param":null}}` + "\n\n"
	if got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}

func TestTokenForm(t *testing.T) {
	const unknown = "unknown"
	for _, c := range []struct {
		op         wire.Operation
		body, want string
	}{
		{wire.Chat, `{"model":"m","messages":[]}`, ""},
		{wire.Completion, `{"model":"m","prompt":"a"}`, ""},
		{wire.Tokenize, `{"model":"m","prompt":"a"}`, ""},
		{wire.Detokenize, `{"model":"m","tokens":[1]}`, unknown},
		{wire.Embeddings, `{"model":"m","input": ["a","b"]}`, `{"prompt":["a","b"]}`},
		{wire.Embeddings, `{"model":"m","messages":[{"content":"a"}]}`, ""},
		{wire.Embeddings, `{"model":"m"}`, unknown},
		{wire.Responses, `{"model":"m","input":"a\n"}`, `{"messages":[{"role":"user","content":"a\n"}]}`},
		{wire.Responses, `{"input":[{"role":"user","content":"a"},{"type":"message","content":[{"text":"b","type":"output_text"}],"role":"assistant","id":"i"}],"instructions":"s","model":"m"}`,
			`{"messages":[{"role":"system","content":"s"},{"role":"user","content":"a"},{"role":"assistant","content":[{"type":"text","text":"b"}]}]}`},
		{wire.Responses, `{"model":"m","input":[{"type":"function_call","call_id":"1","name":"f","arguments":"{}"},{"type":"function_call","call_id":"2","name":"g","arguments":"[]"},{"type":"function_call_output","call_id":"1","output":"x"}],"tools":[{"type":"function","name":"f"}]}`,
			`{"messages":[{"role":"assistant","tool_calls":[{"type":"function","id":"1","function":{"name":"f","arguments":"{}"}},{"type":"function","id":"2","function":{"name":"g","arguments":"[]"}}]},` +
				`{"role":"tool","tool_call_id":"1","content":"x"}],"tools":[{"type":"function","function":{"type":"function","name":"f"}}]}`},
		{wire.Responses, `{"model":"m","input":[{"role":"user","content":[{"type":"input_image","image_url":"u"}]}]}`, unknown},
		{wire.Responses, `{"model":"m","input":[{"type":"reasoning","summary":[]}]}`, unknown},
		{wire.Responses, `{"model":"m","input":"a","reasoning":{"effort":"high"}}`, unknown},
		{wire.Responses, `{"model":"m","input":"a","tools":[{"type":"web_search"}]}`, unknown},
		{wire.Responses, `{"model":"m","input":"a","previous_response_id":"resp_1"}`, unknown},
	} {
		var req wire.Request
		if err := Scan(&req, c.op, []byte(c.body)); err != nil {
			t.Fatalf("%s: %v", c.body, err)
		}
		form, ok := TokenForm([]byte(c.body), &req)
		got := string(form)
		if !ok {
			got = unknown
		}
		if got != c.want {
			t.Errorf("%s\n got %s\nwant %s", c.body, got, c.want)
		}
	}
}

// FuzzResponseStream holds what is seen of any event against what the standard library
// reads of it.
func FuzzResponseStream(f *testing.F) {
	for event := range strings.SplitSeq(strings.TrimRight(wiretest.Recordings(f)["responses_stream"].ResponseBody, "\n"), "\n\n") {
		name, data, _ := strings.Cut(event, "\ndata: ")
		f.Add(strings.TrimPrefix(name, "event: "), []byte(data))
	}
	f.Add("error", []byte(`{"message":"m"}`))
	f.Add("", []byte(`{"type":"response.failed","response":{"id":"r","usage":{"input_tokens":1e1,"output_tokens":2,"input_tokens_details":{"cached_tokens":11}}}}`))
	f.Add("response.output_text.delta", []byte(`{"type":5,"delta":{},"sequence_number":-1}`))
	f.Fuzz(func(t *testing.T, name string, data []byte) {
		var s ResponseStream
		flags := s.Observe([]byte(name), data)
		if !json.Valid(data) {
			if flags&^wire.Malformed != 0 {
				t.Fatalf("%q is no JSON but is %v", data, flags)
			}
			return
		}
		if flags.Has(wire.Malformed) {
			return // not UTF-8, too deep, no object
		}
		if n := s.NextSequence(); n < 0 {
			t.Fatalf("the next number is %d", n)
		}
		if u := s.Usage(); u.Known && (u.Input < 0 || u.Output < 0 || u.CachedKnown && u.Cached > u.Input || u.Reasoning > u.Output) {
			t.Fatalf("usage %+v of %q", u, data)
		}
		if e, failed := s.StreamError(); failed != flags.Has(wire.StreamError) || failed && (e.Status == 0 || e.Body.Code == "") {
			t.Fatalf("%q is %v with the error %+v", data, flags, e)
		}
		var doc map[string]json.RawMessage
		if err := json.Unmarshal(data, &doc); err != nil {
			t.Fatalf("%q is %v, and no object: %v", data, flags, err)
		}
		if flags.Has(wire.Content) && doc["delta"] == nil || s.Usage().Known && doc["response"] == nil {
			t.Fatalf("%q is %v with the usage %+v", data, flags, s.Usage())
		}
		event := string(ResponsesCodec{}.AppendErrorEvent(nil, wire.ErrorBody{Message: name, Type: wire.TypeServer, Code: "x"}, 502, "r", s.NextSequence()))
		line := strings.TrimSuffix(strings.TrimPrefix(event, "event: error\ndata: "), "\n\n")
		if !json.Valid([]byte(line)) || strings.ContainsAny(line, "\r\n") {
			t.Fatalf("the error event %q is none", event)
		}
	})
}
