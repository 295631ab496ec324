package translate

import (
	"bytes"
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/sluicegate/sluice/gateway/wire"
)

// compact is a JSON text without white space, with its escapes as they are.
func compact(t *testing.T, text string) string {
	t.Helper()
	var b bytes.Buffer
	if err := json.Compact(&b, []byte(text)); err != nil {
		t.Fatalf("%v: %s", err, text)
	}
	return b.String()
}

func chatOf(t *testing.T, body string, p Purpose) string {
	t.Helper()
	got, err := AppendChat([]byte("kept"), []byte(body), p, nil)
	if err != nil {
		t.Fatalf("%v: %s", err, body)
	}
	text, ok := strings.CutPrefix(string(got), "kept")
	if !ok {
		t.Fatalf("what was there is gone: %s", got)
	}
	return text
}

func TestConversations(t *testing.T) {
	f := func(messages, want string) {
		t.Helper()
		got := chatOf(t, `{"model":"m","max_tokens":9,`+messages+`}`, ForWorker)
		if want = `{"model":"m","messages":` + compact(t, want) + `,"max_tokens":9}`; compact(t, got) != want {
			t.Errorf("%s\n got %s\nwant %s", messages, got, want)
		}
	}
	f(`"messages":[]`, `[]`)
	f(`"system":"","messages":[{"role":"user","content":""}]`, `[{"role":"user","content":""}]`)
	// Escapes stay as they are spelt, in whatever order the keys come.
	f(`"messages":[{"content":"a\u00e9\n\ud83d\ude00\"b","role":"user"}],"system":"s\u0073"`,
		`[{"role":"system","content":"s\u0073"},{"role":"user","content":"a\u00e9\n\ud83d\ude00\"b"}]`)
	// Texts of a system prompt are joined as the engine joins them; the header that
	// differs with every call goes.
	f(`"system":[{"type":"text","text":"x-anthropic-billing-header: cc=1"},{"type":"text","text":"a"},{"type":"text","text":"b","cache_control":{"type":"ephemeral"}}],"messages":[]`,
		`[{"role":"system","content":"ab"}]`)
	f(`"system":[{"type":"text","text":"x\u002danthropic-billing-header: cc=1"}],"messages":[]`, `[]`)
	f(`"messages":[{"role":"user","content":"a"},{"role":"system","content":"b"},{"role":"system","content":"x-anthropic-billing-header"},{"role":"system","content":[{"type":"text","text":"c"}]}]`,
		`[{"role":"user","content":"a"},{"role":"system","content":"b"},{"role":"system","content":"c"}]`)
	// One text is a string, more are parts.
	f(`"messages":[{"role":"user","content":[{"text":"a","type":"text"}]}]`, `[{"role":"user","content":"a"}]`)
	f(`"messages":[{"role":"user","content":[{"type":"text","text":"a"},{"type":"text","text":""},{"type":"text","text":"b"}]}]`,
		`[{"role":"user","content":[{"type":"text","text":"a"},{"type":"text","text":"b"}]}]`)
	f(`"messages":[{"role":"user","content":[{"type":"image","source":{"type":"base64","media_type":"image/png","data":"AA/+"}},{"type":"text","text":"a"},{"type":"image","source":{"type":"url","url":"https:\/\/x"}}]}]`,
		`[{"role":"user","content":[{"type":"image_url","image_url":{"url":"data:image/png;base64,AA/+"}},{"type":"text","text":"a"},{"type":"image_url","image_url":{"url":"https:\/\/x"}}]}]`)
	f(`"messages":[{"role":"user","content":[{"type":"image","source":{"type":"url","url":"u"}}]}]`,
		`[{"role":"user","content":[{"type":"image_url","image_url":{"url":"u"}}]}]`)
	// A turn of the assistant with calls.
	f(`"messages":[{"role":"assistant","content":[{"type":"thinking","thinking":"hm","signature":"s"},{"type":"text","text":"let me"},{"type":"tool_use","id":"t1","name":"f","input":{"a":[1.0,"\"é"]}},{"type":"tool_use","id":"t2","name":"g","input":{}}]}]`,
		`[{"role":"assistant","tool_calls":[{"id":"t1","type":"function","function":{"name":"f","arguments":"{\"a\":[1.0,\"\\\"é\"]}"}},{"id":"t2","type":"function","function":{"name":"g","arguments":"{}"}}],"content":"let me"}]`)
	f(`"messages":[{"role":"assistant","content":[{"type":"tool_use","id":"t1","name":"f"}]}]`,
		`[{"role":"assistant","tool_calls":[{"id":"t1","type":"function","function":{"name":"f","arguments":"{}"}}],"content":null}]`)
	f(`"messages":[{"role":"assistant","content":[{"type":"redacted_thinking","data":"x"}]}]`, `[{"role":"assistant","content":""}]`)
	// Results come before the text of their turn, in order, each with its images.
	f(`"messages":[{"role":"user","content":[{"type":"text","text":"now?"},{"type":"tool_result","tool_use_id":"t1","content":[{"type":"text","text":"a"},{"type":"image","source":{"type":"url","url":"u"}},{"type":"text","text":"b"}]},{"type":"tool_result","tool_use_id":"t2","is_error":true,"content":"no\tway"},{"type":"tool_result","tool_use_id":"t3"}]}]`,
		`[{"role":"tool","tool_call_id":"t1","content":"a\nb"},{"role":"user","content":[{"type":"image_url","image_url":{"url":"u"}}]},{"role":"tool","tool_call_id":"t2","content":"Error: no\tway"},{"role":"tool","tool_call_id":"t3","content":""},{"role":"user","content":"now?"}]`)
	f(`"messages":[{"role":"user","content":[{"type":"tool_result","tool_use_id":"t1","content":"r"}]},{"role":"user","content":"next"}]`,
		`[{"role":"tool","tool_call_id":"t1","content":"r"},{"role":"user","content":"next"}]`)
}

func TestPurposes(t *testing.T) {
	body := `{"model":"m","max_tokens":9,"stream":true,"temperature":0.5,"thinking":{"type":"disabled"},"output_config":{"effort":"high"},
		"chat_template_kwargs":{"a":1},"cache_salt":"s","tool_choice":{"type":"any"},
		"tools":[{"name":"f","input_schema":{"properties":{}}}],
		"messages":[{"role":"assistant","content":[{"type":"thinking","thinking":"hm\n"},{"type":"text","text":"a"}]},
		{"role":"user","content":[{"type":"tool_result","tool_use_id":"t","is_error":true,"content":"x"}]}]}`
	f := func(p Purpose, want string) {
		t.Helper()
		if got := chatOf(t, body, p); compact(t, got) != compact(t, want) {
			t.Errorf("purpose %d\n got %s\nwant %s", p, got, want)
		}
	}
	const tools = `"tools":[{"type":"function","function":{"name":"f","parameters":{"properties":{},"type":"object"}}}]`
	f(ForWorker, `{"model":"m","messages":[{"role":"assistant","content":"a"},{"role":"tool","tool_call_id":"t","content":"Error: x"}],`+tools+
		`,"tool_choice":"required","reasoning_effort":"high","max_tokens":9,"temperature":0.5,"cache_salt":"s","chat_template_kwargs":{"a":1},
		"stream":true,"stream_options":{"include_usage":true,"continuous_usage_stats":true}}`)
	f(ForCount, `{"model":"m","messages":[{"role":"assistant","content":"a"},{"role":"tool","tool_call_id":"t","content":"Error: x"}],`+tools+
		`,"chat_template_kwargs":{"a":1,"reasoning_effort":"high","enable_thinking":true}}`)
	f(ForTokens, `{"model":"m","messages":[{"role":"assistant","reasoning":"hm\n","content":"a"},{"role":"tool","tool_call_id":"t","content":"x"}],`+tools+
		`,"chat_template_kwargs":{"a":1},"reasoning_effort":"none"}`)
	// What plays no part in the prompt is no reason not to find its tokens.
	body = `{"model":"m","max_tokens":"x","messages":[],"container":"c","thinking":{"type":"enabled","budget_tokens":2000},"stop":1}`
	f(ForTokens, `{"model":"m","messages":[]}`)
}

// TestTemplateVariables shows which variables a count is asked with: those that the
// engine's chat route would set.
func TestTemplateVariables(t *testing.T) {
	f := func(members, want string) {
		t.Helper()
		got := chatOf(t, `{"model":"m","messages":[]`+members+`}`, ForCount)
		if got != `{"model":"m","messages":[]`+want+`}` {
			t.Errorf("%s gives %s", members, got)
		}
	}
	f(``, ``)
	f(`,"chat_template_kwargs":{"a":1}`, `,"chat_template_kwargs":{"a":1}`)
	f(`,"output_config":{"effort":"low"}`, `,"chat_template_kwargs":{"reasoning_effort":"low","enable_thinking":true}`)
	f(`,"output_config":{"effort":"none"}`, `,"chat_template_kwargs":{"reasoning_effort":"none","enable_thinking":false}`)
	f(`,"output_config":{"effort":"low"},"chat_template_kwargs":{ "enable_thinking" : false }`,
		`,"chat_template_kwargs":{ "enable_thinking" : false ,"reasoning_effort":"low"}`)
	f(`,"output_config":{"effort":"low"},"chat_template_kwargs":{"reasoning_effort":"max"}`,
		`,"chat_template_kwargs":{"reasoning_effort":"max","enable_thinking":true}`)
	f(`,"output_config":{"effort":"low"},"chat_template_kwargs":7`, `,"chat_template_kwargs":7`)
}

func TestRefusals(t *testing.T) {
	f := func(body, code, param, contains string) {
		t.Helper()
		got, err := AppendChat(nil, []byte(body), ForWorker, nil)
		var e *wire.Error
		if !errors.As(err, &e) || e.Status != 400 || e.Code != code || e.Param != param {
			t.Errorf("%.120s gives %+v, %s; want %s of %q", body, e, got, code, param)
			return
		}
		if !strings.Contains(e.Message, contains) {
			t.Errorf("%.120s gives %q, want it to contain %q", body, e.Message, contains)
		}
	}
	ok := func(members string) string { return `{"model":"m","max_tokens":1,"messages":[]` + members + `}` }
	f(``, "invalid_json", "", "empty")
	f(`[]`, "invalid_json", "", "an array")
	f(`{"model":"m"} x`, "invalid_json", "", "more follows")
	f(`{"model":`, "invalid_json", "", "ends too early")
	f(`{"a":`+strings.Repeat("[", 200), "invalid_json", "", "128 levels")
	f(`{"max_tokens":1,"messages":[]}`, "invalid_request", "model", "missing")
	f(`{"model":null,"max_tokens":1,"messages":[]}`, "invalid_request", "model", "missing")
	f(`{"model":"m","messages":[]}`, "invalid_request", "max_tokens", "missing")
	f(`{"model":"m","messages":[],"max_tokens":"5"}`, "invalid_request", "max_tokens", "a string")
	f(`{"model":"m","messages":[],"max_tokens":-5}`, "invalid_request", "max_tokens", "integer")
	f(`{"model":"m","max_tokens":1}`, "invalid_request", "messages", "missing")
	f(`{"model":"m","max_tokens":1,"messages":"hi"}`, "invalid_request", "messages", "a string")
	f(`{"model":"m","max_tokens":1,"messages":[null]}`, "invalid_request", "messages[0]", "missing")
	f(`{"model":"m","max_tokens":1,"messages":[{"role":"user"}]}`, "invalid_request", "messages[0].content", "missing")
	f(`{"model":"m","max_tokens":1,"messages":[{"role":"tool","content":"x"}]}`, "invalid_request", "messages[0].role", "user, assistant")
	f(`{"model":"m","max_tokens":1,"messages":[{"role":"user","content":"x","name":"bob"}]}`, "invalid_request", "messages[0].name", "no equivalent")
	f(`{"model":"m","max_tokens":1,"messages":[{"role":"user","role":"user","content":"x"}]}`, "duplicate_key", "messages[0].role", "once")
	f(`{"model":"m","max_tokens":1,"messages":[{"role":"user","content":[{"type":"tool_use","id":"a","name":"b"}]}]}`,
		"invalid_request", "messages[0].content[0].type", "assistant")
	f(`{"model":"m","max_tokens":1,"messages":[{"role":"assistant","content":[{"type":"tool_result","tool_use_id":"a"}]}]}`,
		"invalid_request", "messages[0].content[0].type", "user")
	f(`{"model":"m","max_tokens":1,"messages":[{"role":"user","content":[{"type":"text","text":"a","id":"b"}]}]}`,
		"invalid_request", "messages[0].content[0].id", "no equivalent")
	f(`{"model":"m","max_tokens":1,"messages":[{"role":"user","content":[{"type":"text","text":"a","te\u0078t":"b"}]}]}`,
		"duplicate_key", "messages[0].content[0].text", "once")
	f(`{"model":"m","max_tokens":1,"messages":[{"role":"user","content":[{"type":"image","source":{"type":"url","url":"u","data":"x"}}]}]}`,
		"invalid_request", "messages[0].content[0].source.data", "no equivalent")
	f(ok(`,"system":[{"type":"image","source":{"type":"url","url":"u"}}]`), "invalid_request", "system[0].type", "text only")
	f(ok(`,"temperature":1,"temperature":2`), "duplicate_key", "temperature", "once")
	f(ok(`,"mcp_servers":[]`), "invalid_request", "mcp_servers", "no equivalent")
	f(ok(`,"n":2`), "invalid_request", "n", "no equivalent")
	f(ok(`,"`+strings.Repeat("k", 100)+`":1`), "invalid_request", "(an unknown key)", "no equivalent")
	f(ok(`,"se\u0000cret":1`), "invalid_request", "(an unknown key)", "no equivalent")
	f(ok(`,"stream":"true"`), "invalid_request", "stream", "a string")
	f(ok(`,"metadata":{"user_id":5}`), "invalid_request", "metadata.user_id", "a number")
	f(ok(`,"metadata":{"team":"x"}`), "invalid_request", "metadata.team", "no equivalent")
	f(ok(`,"tool_choice":{"type":"tool"}`), "invalid_request", "tool_choice.name", "missing")
	f(ok(`,"tool_choice":{"type":"auto","name":"f"}`), "invalid_request", "tool_choice.name", "no equivalent")
	f(ok(`,"tool_choice":{"type":"function"}`), "invalid_request", "tool_choice.type", "auto, any")
	f(ok(`,"tools":[{"name":"f"}]`), "invalid_request", "tools[0].input_schema", "missing")
	f(ok(`,"tools":[{"name":"f","input_schema":{"a":`+strings.Repeat("[", 124)+strings.Repeat("]", 124)+`}}]`),
		"invalid_request", "tools[0].input_schema", "too deep")
	f(ok(`,"output_config":{"task_budget":{}}`), "invalid_request", "output_config.task_budget", "no equivalent")
}

// TestNullIsAbsent shows that null stands for a field that is not there.
func TestNullIsAbsent(t *testing.T) {
	want := chatOf(t, `{"model":"m","max_tokens":1,"messages":[{"role":"user","content":[{"type":"text","text":"a"}]}]}`, ForWorker)
	body := `{"model":"m","max_tokens":1,"anything":null,"messages":[{"role":"user","name":null,"content":[{"type":"text","text":"a","id":null,"other":null}]}]`
	for _, name := range topNames {
		if !strings.Contains(body, `"`+name+`"`) {
			body += `,"` + name + `":null`
		}
	}
	if got := chatOf(t, body+`}`, ForWorker); got != want {
		t.Errorf("got %s\nwant %s", got, want)
	}
}

func TestNames(t *testing.T) {
	var n Names
	body := `{"model":"m","max_tokens":1,"system":"s","messages":[{"role":"user","content":"a"},{"role":"user","content":[
		{"type":"text","text":"b"},{"type":"tool_result","tool_use_id":"t","content":[{"type":"image","source":{"type":"url","url":"u"}}]}]}]}`
	for range 2 { // the second body finds nothing of the first
		if _, err := AppendChat(nil, []byte(body), ForWorker, &n); err != nil {
			t.Fatal(err)
		}
	}
	f := func(param, want string) {
		t.Helper()
		if got := n.Param(param); got != want {
			t.Errorf("%s is %s to the client, want %s", param, got, want)
		}
	}
	f("messages[0].content", "system")
	f("messages.1.content", "messages[0]")
	f("messages[2]", "messages[1].content[1]")
	f("messages.3.content.0.image_url.url", "messages[1].content[1]")
	f("messages.4", "messages[1]")
	f("messages.5", "messages")
	f("messages", "messages")
	f("tools.0.function.parameters.type", "tools[0].input_schema.type")
	f("tools[1].function.name", "tools[1].name")
	f("tools[1].function", "tools[1]")
	f("tools", "tools")
	f("stop", "stop_sequences")
	f("stop.3", "stop_sequences[3]")
	f("user", "metadata.user_id")
	f("tool_choice.function.name", "tool_choice.name")
	f("tool_choice", "tool_choice")
	f("parallel_tool_calls", "tool_choice.disable_parallel_tool_use")
	f("response_format.json_schema.schema.a", "output_config.format.schema.a")
	f("temperature", "temperature")
	f("stopped", "stopped")

	g := func(message, param, want string) {
		t.Helper()
		got := n.Error(wire.ErrorBody{Message: message, Param: param, Type: "t", Code: "c"})
		if got.Message != want || got.Param != n.Param(param) || got.Type != "t" || got.Code != "c" {
			t.Errorf("got %+v, want %q", got, want)
		}
	}
	g("`stop` has nonstop, stop_x and stop.", "stop", "`stop_sequences` has nonstop, stop_x and stop_sequences.")
	g("It is wrong.", "user", "It is wrong. (`metadata.user_id`)")
	g("It is wrong.", "temperature", "It is wrong. (`temperature`)")
	g("The temperature is wrong.", "temperature", "The temperature is wrong.")
	if got := n.Error(wire.ErrorBody{Message: "m"}); got.Message != "m" {
		t.Errorf("without a param: %+v", got)
	}
}

// TestSizeOfAChat: whatever a body holds, its translation is at most about twice
// as long, so that the memory it takes follows from the body's size.
func TestSizeOfAChat(t *testing.T) {
	const n = 10_000
	for _, unit := range []string{"\x7f", `\"`, `\\`, "\u2028", "a", `\u007f`} {
		text := strings.Repeat(unit, n)
		input := `{"a":"` + text + `"}`
		body := `{"model":"m","max_tokens":1,"messages":[{"role":"assistant","content":[{"type":"tool_use","id":"i","name":"f","input":` + input + `}]}]}`
		got, err := AppendChat(nil, []byte(body), ForWorker, nil)
		if err != nil {
			t.Fatal(err)
		}
		if len(got) > 2*len(body)+200 {
			t.Errorf("%q: %d bytes of %d", unit, len(got), len(body))
		}
		var chat struct {
			Messages []struct {
				Calls []struct{ Function struct{ Arguments string } } `json:"tool_calls"`
			}
		}
		if err := json.Unmarshal(got, &chat); err != nil || chat.Messages[0].Calls[0].Function.Arguments != input {
			t.Errorf("%q: the arguments are not the input's text (%v)", unit, err)
		}
	}
	spaced := "{\n\t\"a\" :\r [ ]\n}"
	got := value(spaced).appendAsString(nil)
	var back string
	if err := json.Unmarshal(got, &back); err != nil || back != spaced {
		t.Errorf("%s is %q (%v)", got, back, err)
	}
}
