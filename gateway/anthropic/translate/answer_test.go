package translate

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/sluicegate/sluice/gateway/wire"
)

// whole is a chat completion with a message.
func whole(message, finish, stop string) string {
	return `{"id":"chatcmpl-1","object":"chat.completion","model":"tiny","choices":[{"index":0,"message":` + message +
		`,"finish_reason":` + finish + `,"stop_reason":` + stop + `}],"usage":{"prompt_tokens":10}}`
}

func TestMessages(t *testing.T) {
	f := func(answer, content, reason, matched string) {
		t.Helper()
		got, err := AppendMessage([]byte("kept"), []byte(answer), "msg_r1", testUsage)
		want := `kept{"id":"msg_r1","type":"message","role":"assistant","model":"tiny","content":` + content + `,"stop_reason":"` + reason +
			`","stop_sequence":` + matched + `,"usage":{"input_tokens":10,"output_tokens":6}}`
		if err != nil || string(got) != want {
			t.Errorf("%s\n got %s, %v\nwant %s", answer, got, err, want)
		}
	}
	const empty = `[{"type":"text","text":""}]`
	f(whole(`{"role":"assistant","content":"a\u00e9\n"}`, `"stop"`, `null`), `[{"type":"text","text":"a\u00e9\n"}]`, "end_turn", "null")
	f(whole(`{"role":"assistant","content":null}`, `"length"`, `null`), empty, "max_tokens", "null")
	f(whole(`{"content":""}`, `"stop"`, `null`), empty, "end_turn", "null")
	f(whole(`{"content":"a"}`, `"stop"`, `"\n\n"`), `[{"type":"text","text":"a"}]`, "stop_sequence", `"\n\n"`)
	f(whole(`{"content":"a"}`, `"stop"`, `151645`), `[{"type":"text","text":"a"}]`, "end_turn", "null")
	f(whole(`{"content":"a"}`, `"content_filter"`, `null`), `[{"type":"text","text":"a"}]`, "refusal", "null")
	f(whole(`{"content":null,"refusal":"no"}`, `"stop"`, `null`), `[{"type":"text","text":"no"}]`, "refusal", "null")
	f(whole(`{"reasoning":"hm","reasoning_content":"hm","content":"a","audio":null,"function_call":null,"tool_calls":[]}`, `"stop"`, `null`),
		`[{"type":"thinking","thinking":"hm","signature":""},{"type":"text","text":"a"}]`, "end_turn", "null")
	f(whole(`{"content":"a","tool_calls":[{"id":"c1","type":"function","function":{"name":"f","arguments":"{\"a\": 1.0}"}},{"id":"c2","type":"function","function":{"name":"g","arguments":""}},{"type":"function","function":{"name":"h","arguments":null}}]}`, `"tool_calls"`, `null`),
		`[{"type":"text","text":"a"},{"type":"tool_use","id":"c1","name":"f","input":{"a": 1.0}},{"type":"tool_use","id":"c2","name":"g","input":{}},{"type":"tool_use","id":"toolu_r1_2","name":"h","input":{}}]`,
		"tool_use", "null")
	// A forced call ends with stop.
	f(whole(`{"content":"","tool_calls":[{"id":"c1","function":{"name":"f","arguments":"{}"}}]}`, `"stop"`, `null`),
		`[{"type":"tool_use","id":"c1","name":"f","input":{}}]`, "tool_use", "null")
	// The limit has cut a call off.
	f(whole(`{"content":"a","tool_calls":[{"id":"c1","function":{"name":"f","arguments":"{\"a\":"}}]}`, `"length"`, `null`),
		`[{"type":"text","text":"a"}]`, "max_tokens", "null")
}

func TestBrokenAnswers(t *testing.T) {
	f := func(answer string, want error) {
		t.Helper()
		got, err := AppendMessage([]byte("kept"), []byte(answer), "msg_r1", testUsage)
		if err == nil || want != nil && !errors.Is(err, want) || string(got) != "kept" {
			t.Errorf("%s gives %s, %v; want %v", answer, got, err, want)
		}
		if err != nil && strings.Contains(err.Error(), "secret") {
			t.Errorf("the error quotes: %v", err)
		}
	}
	f(`secret`, nil)
	f(`["secret"]`, nil)
	f(`{"choices":[]}`, errNoChoice)
	f(`{"choices":[{"index":1,"message":{"content":"secret"}}]}`, errNoChoice)
	f(`{"choices":[{"message":null}]}`, errNoChoice)
	f(whole(`{"content":["secret"]}`, `"stop"`, `null`), nil)
	f(whole(`{"audio":{"data":"secret"}}`, `"stop"`, `null`), nil)
	f(whole(`{"content":"secret"}`, `"abort"`, `null`), errAborted)
	f(whole(`{"content":"secret"}`, `null`, `null`), errNoFinish)
	f(whole(`{"content":"secret"}`, `""`, `null`), errNoFinish)
	f(whole(`{"content":null,"tool_calls":[{"id":"c1","function":{"name":"f","arguments":"{}"}}]}`, `null`, `"secret"`), errNoFinish)
	f(whole(`{"tool_calls":[{"id":"c","function":{"name":"f","arguments":"{secret"}}]}`, `"tool_calls"`, `null`), errCall)
	f(whole(`{"tool_calls":[{"id":"c","function":{"name":"f","arguments":"[\"secret\"]"}}]}`, `"tool_calls"`, `null`), errCall)
	f(whole(`{"tool_calls":[{"id":"c","function":{"arguments":"{}"}}]}`, `"tool_calls"`, `null`), errCall)
	f(whole(`{"tool_calls":[{"id":"c","function":{"name":"f","arguments":`+strings.Repeat("[", 600)+strings.Repeat("]", 600)+`}}]}`, `"stop"`, `null`), nil)
}

// TestUsage shows that a request costs the same on both routes: what the messages say
// adds up to what the chat completion said.
func TestUsage(t *testing.T) {
	f := func(u wire.Usage, want string) {
		t.Helper()
		got := appendUsage(nil, u)
		if string(got) != want {
			t.Errorf("%+v gives %s, want %s", u, got, want)
		}
		var back struct {
			Input  int64  `json:"input_tokens"`
			Read   *int64 `json:"cache_read_input_tokens"`
			Output int64  `json:"output_tokens"`
		}
		if err := json.Unmarshal(got, &back); err != nil {
			t.Fatal(err)
		}
		sum := wire.Usage{Input: back.Input, Output: back.Output, Known: true, CachedKnown: back.Read != nil, Reasoning: u.Reasoning}
		if back.Read != nil {
			sum.Cached = *back.Read
			sum.Input += *back.Read
		}
		if sum != u {
			t.Errorf("%s adds up to %+v, want %+v", got, sum, u)
		}
	}
	f(wire.Usage{Input: 10, Output: 4, Known: true}, `{"input_tokens":10,"output_tokens":4}`)
	f(wire.Usage{Input: 10, Output: 4, Known: true, CachedKnown: true}, `{"input_tokens":10,"cache_read_input_tokens":0,"output_tokens":4}`)
	f(wire.Usage{Input: 10, Cached: 10, Output: 4, Known: true, CachedKnown: true, Reasoning: 3}, `{"input_tokens":0,"cache_read_input_tokens":10,"output_tokens":4}`)
}

func TestCounts(t *testing.T) {
	f := func(answer, want string) {
		t.Helper()
		got, err := AppendCount([]byte("kept"), []byte(answer))
		if string(got) != "kept"+want || (err == nil) != (want != "") {
			t.Errorf("%s gives %s, %v; want %s", answer, got, err, want)
		}
	}
	f(`{"count":10,"max_model_len":8192,"tokens":[151644],"token_strs":null}`, `{"input_tokens":10}`)
	f(`{"count":0}`, `{"input_tokens":0}`)
	f(`{"count":"10"}`, ``)
	f(`{"count":null}`, ``)
	f(`{"count":-1}`, ``)
	f(`{"tokens":[1]}`, ``)
	f(`[10]`, ``)
	f(`{"count":10`, ``)
}
