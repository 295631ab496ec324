package openai

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/sluicegate/sluice/gateway/wire"
	"github.com/sluicegate/sluice/gateway/wire/wiretest"
)

// summary is a Request in one comparable piece of text, what is absent left out.
func summary(r *wire.Request) string {
	var b strings.Builder
	add := func(name string, given bool, value any) {
		if given {
			fmt.Fprintf(&b, " %s=%v", name, value)
		}
	}
	number := func(name string, v *int64) {
		if v != nil {
			add(name, true, *v)
		}
	}
	add("model", true, string(r.Model))
	add("stream", r.Stream, true)
	add("options", r.StreamOptions.Present, "{")
	add("usage", r.StreamOptions.IncludeUsage, true)
	add("continuous", r.StreamOptions.ContinuousUsage, true)
	number("max", r.MaxTokens)
	number("n", r.N)
	number("best", r.BestOf)
	add("user", r.User != nil, string(r.User))
	add("salt", r.CacheSalt != nil, string(r.CacheSalt))
	add("priority", r.HasPriority, r.Priority)
	for _, name := range r.ToolNames {
		add("tool", true, string(name))
	}
	add("messages", r.MessageCount != 0, r.MessageCount)
	add("images", r.ImageCount != 0, r.ImageCount)
	add("modalities", r.Modalities != 0, r.Modalities.AppendNames(nil))
	add("text", r.TextBytes != 0, r.TextBytes)
	add("ids", r.TokenIDs != 0, r.TokenIDs)
	add("prompts", r.Operation == wire.Completion, r.PromptCount)
	return strings.TrimSpace(b.String())
}

func TestScan(t *testing.T) {
	var req wire.Request // One Request for all, so that nothing is left of the last.
	f := func(op wire.Operation, body, want string) {
		t.Helper()
		if err := Scan(&req, op, []byte(body)); err != nil {
			t.Errorf("Scan(%s) fails: %v", body, err)
			return
		}
		if req.Operation != op {
			t.Errorf("the operation is %v, want %v", req.Operation, op)
		}
		if got := summary(&req); got != want {
			t.Errorf("Scan(%s)\n got %s\nwant %s", body, got, want)
		}
	}
	chat := func(members, want string) {
		t.Helper()
		f(wire.Chat, `{"model":"m","messages":[]`+members+`}`, "model=m"+want)
	}
	messages := func(messages, want string) {
		t.Helper()
		f(wire.Chat, `{"model":"m","messages":[`+messages+`]}`, "model=m"+want)
	}
	prompt := func(prompt, want string) {
		t.Helper()
		f(wire.Completion, `{"model":"m","prompt":`+prompt+`}`, "model=m"+want)
	}

	// Fields.
	chat(``, "")
	chat(`,"stream":true`, " stream=true")
	chat(`,"stream":false,"stream_options":null`, "")
	chat(`,"stream_options":{}`, " options={")
	chat(`,"stream_options":{"include_usage":true,"x":1}`, " options={ usage=true")
	chat(`,"stream_options":{"include_usage":null,"continuous_usage_stats":true}`, " options={ continuous=true")
	chat(`,"max_tokens":5`, " max=5")
	chat(`,"max_tokens":null`, "")
	chat(`,"max_completion_tokens":7,"max_tokens":5`, " max=7")
	chat(`,"max_tokens":5,"max_completion_tokens":null`, " max=5")
	chat(`,"max_output_tokens":5`, "")
	chat(`,"n":2,"best_of":3`, " n=2 best=3")
	chat(`,"user":"u","cache_salt":"s"`, " user=u salt=s")
	chat(`,"user":"","cache_salt":null`, " user=")
	chat(`,"priority":0`, " priority=0")
	chat(`,"priority":null`, "")
	chat(`,"kv_transfer_params":null,"ec_transfer_params":null,"vllm_xargs":{"a":1}`, "")
	chat(`,"vllm_xargs":"x"`, "")
	chat(`,"background":true,"previous_response_id":"r"`, "")

	// Spellings.
	f(wire.Chat, " {\r\n\t\"mod\\u0065l\" : \"a\\u002fb\\n\\ud83d\\ude00\" , \"messages\" : [ ] } \n", "model=a/b\n😀")
	chat(`,"Model":5,"MODEL":"x","Stream":1`, "")
	chat(`,"max_tokens":1e2`, " max=100")
	chat(`,"max_tokens":100.0`, " max=100")
	chat(`,"max_tokens":2147483647`, " max=2147483647")
	chat(`,"max_tokens":-0`, " max=0")
	chat(`,"seed":18446744073709551616,"temperature":-0.5E-10,"x":[{},[],"",{"x":{"x":1,"x":2}},null]`, "")
	chat(`,"x":1,"x":2,"temperature":1,"temperature":2`, "")

	// The prompt of a chat.
	messages(`{"role":"user","content":"héllo"}`, " messages=1 modalities=[text] text=6")
	messages(`{"role":"user","content":"a\"\u00e9\ud83d\ude00\ud800"}`, " messages=1 modalities=[text] text=11")
	messages(`{"role":"assistant","content":null},{"role":"user","content":""},{}`, " messages=3")
	messages(`{"role":"assistant","tool_calls":[{"id":"1","type":"function","function":{"name":"f","arguments":"{}"}}]}`,
		" messages=1 text=71")
	messages(`{"role":"assistant","reasoning":"abc","name":"d","refusal":null,"other":"not counted"}`,
		" messages=1 modalities=[text] text=4")
	messages(`{"content":["ab",{"type":"text","text":"cd"},{"text":"ef"},{"type":"refusal","refusal":"g"}]}`,
		" messages=1 modalities=[text] text=7")
	messages(`{"content":[{"type":"image_url","image_url":{"url":"data:image/png;base64,AAAA"}},{"image_url":"http://x"},`+
		`{"type":"input_image"},{"type":"unheard_of","image_pil":1},{"type":"input_audio","input_audio":{}},`+
		`{"type":"video_url"},{"type":"file","file":{}},{"type":"unheard_of"}]}`,
		" messages=1 images=4 modalities=[image audio video file]")
	messages(`{"content":[{"type":"text","text":"a","image_url":"no image"}]}`, " messages=1 modalities=[text] text=1")
	messages(`{"content":[{"t\u0079pe":"im\u0061ge_url"}]}`, " messages=1 images=1 modalities=[image]")
	chat(`,"tools":[{"type":"function","function":{"name":"g\u0065t","parameters":{"type":"object","properties":{"type":{"type":["string","null"]}}}}},{"function":{"name":null}}]`,
		" tool=get tool= text=159")
	// A tool whose name is not where it is looked for is a tool all the same.
	chat(`,"tools":[{"type":"custom","custom":{"name":"x"}}]`, " tool= text=41")
	chat(`,"tools":[{},{"name":"x"},{"function":{}},{"function":null},{"function":{"name":""}}]`, " tool= tool= tool= tool= tool= text=76")
	// Some templates declare tools with a message.
	messages(`{"role":"developer","content":"a","tools":[{"type":"function","function":{"name":"f"}},{}]}`,
		" tool=f tool= messages=1 modalities=[text] text=49")
	messages(`{"role":"developer","tools":null},{"tools":[]}`, " messages=2")
	chat(`,"tools":[]`, "")
	chat(`,"tools":null`, "")
	chat(`,"prompt":5,"input":[5],"system":5`, "")

	// The prompts of a completion.
	f(wire.Completion, `{"model":"m"}`, "model=m prompts=0")
	prompt(`null`, " prompts=0")
	prompt(`"abc"`, " modalities=[text] text=3 prompts=1")
	prompt(`""`, " prompts=1")
	prompt(`["a","bc",""]`, " modalities=[text] text=3 prompts=3")
	prompt(`[]`, " prompts=0")
	prompt(`[1,2, 3.0]`, " modalities=[text] ids=3 prompts=1")
	prompt(`[[1,2],[],[3]]`, " modalities=[text] ids=3 prompts=3")
	f(wire.Completion, `{"model":"m","max_completion_tokens":7,"max_tokens":5,"messages":"unread","tools":5}`, "model=m max=5 prompts=0")
	f(wire.Completion, `{"model":"m","max_completion_tokens":7}`, "model=m max=7 prompts=0")
}

func TestScanRecordedRequests(t *testing.T) {
	want := map[string]string{
		"chat":                   "model=tiny max=6 messages=1 modalities=[text] text=11",
		"chat_stream_nousage":    "model=tiny stream=true max=6 messages=1 modalities=[text] text=11",
		"chat_stream_usage":      "model=tiny stream=true options={ usage=true max=6 messages=1 modalities=[text] text=11",
		"chat_stream_continuous": "model=tiny stream=true options={ usage=true continuous=true max=6 messages=1 modalities=[text] text=11",
		"chat_n2_logprobs":       "model=tiny stream=true max=3 n=2 messages=1 modalities=[text] text=2",
		"chat_tools_stream":      "model=tiny stream=true max=3 tool=f messages=1 modalities=[text] text=TOOLS",
		"completions":            "model=tiny max=4 modalities=[text] text=16 prompts=1",
		"completions_ids_stream": "model=tiny stream=true options={ usage=true max=4 modalities=[text] ids=4 prompts=1",
		"completions_batch":      "model=tiny max=2 modalities=[text] text=6 prompts=2",
		"err_model":              "model=nope messages=1 modalities=[text] text=1",
		"err_type":               "model=tiny messages=1 modalities=[text] text=1",
		"err_priority":           "model=tiny max=1 priority=3 messages=1 modalities=[text] text=1",
	}
	seen := 0
	for name, r := range wiretest.Recordings(t) {
		expected, ok := want[name]
		if !ok {
			continue
		}
		seen++
		var req wire.Request
		if err := Scan(&req, operationOf(r), r.RequestBody); err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		var tools struct {
			Tools json.RawMessage `json:"tools"`
		}
		if err := json.Unmarshal(r.RequestBody, &tools); err != nil {
			t.Fatal(err)
		}
		expected = strings.ReplaceAll(expected, "TOOLS", fmt.Sprint(2+len(tools.Tools)))
		if got := summary(&req); got != expected {
			t.Errorf("%s:\n got %s\nwant %s", name, got, expected)
		}
	}
	if seen != len(want) {
		t.Errorf("%d recordings, want %d", seen, len(want))
	}
}

func TestRequestChoices(t *testing.T) {
	f := func(members string, want int64) {
		t.Helper()
		var req wire.Request
		if err := Scan(&req, wire.Completion, []byte(`{"model":"m"`+members+`}`)); err != nil {
			t.Fatal(err)
		}
		if got := req.Choices(); got != want {
			t.Errorf("%s makes %d choices, want %d", members, got, want)
		}
	}
	f(``, 1)
	f(`,"n":0`, 1)
	f(`,"n":3`, 3)
	f(`,"n":2,"best_of":5`, 5)
	f(`,"n":5,"best_of":2`, 5)
}

func TestScanSizes(t *testing.T) {
	f := func(body string, param string) {
		t.Helper()
		var req wire.Request
		if param == "" {
			if err := Scan(&req, wire.Chat, []byte(body)); err != nil {
				t.Errorf("a body at the limit fails: %v", err)
			}
			return
		}
		if e := refusal(t, &req, wire.Chat, body); e.Param != param {
			t.Errorf("a body over the limit gives %+v, want an error for %s", e, param)
		}
	}
	model := func(n int) string { return `{"model":"` + strings.Repeat("é", n) + `","messages":[]}` }
	f(model(256), "")
	f(model(257), "model")
	name := func(n int) string {
		return `{"model":"m","messages":[],"tools":[{"function":{"name":"` + strings.Repeat("é", n) + `"}}]}`
	}
	f(name(128), "")
	f(name(129), "tools[0].function.name")
	tools := func(n int) string {
		list := slices.Repeat([]string{`{"function":{"name":"f"}}`}, n)
		return `{"model":"m","messages":[],"tools":[` + strings.Join(list, ",") + `]}`
	}
	f(tools(512), "")
	f(tools(513), "tools")
	deep := func(n int) string {
		return `{"model":"m","messages":[],"x":` + strings.Repeat("[", n-1) + strings.Repeat("]", n-1) + `}`
	}
	f(deep(128), "")
	var req wire.Request
	if e := refusal(t, &req, wire.Chat, deep(129)); e.Code != "invalid_json" {
		t.Errorf("129 levels give %+v", e)
	}
}

// A Request must not hold on to the body or anything else of the last scan.
func TestRequestReset(t *testing.T) {
	var req wire.Request
	body := `{"model":"m","messages":[{"content":[{"type":"image_url"},"x"]}],"tools":[{"function":{"name":"f"}}],"stream":true,` +
		`"stream_options":{"include_usage":true},"max_tokens":1,"n":1,"best_of":1,"user":"u","cache_salt":"s","priority":1}`
	if err := Scan(&req, wire.Chat, []byte(body)); err != nil {
		t.Fatal(err)
	}
	req.Reset()
	if got := summary(&req); got != "model=" {
		t.Errorf("after a reset: %s", got)
	}
	if err := Scan(&req, wire.Completion, []byte(`{"model":"m"}`)); err != nil {
		t.Fatal(err)
	}
	if got := string(AppendRewrite(nil, []byte(`{"model":"m"}`), &req, wire.Mutation{RemovePriority: true, RemoveCacheSalt: true})); got != `{"model":"m"}` {
		t.Errorf("a rewrite uses places of an older body: %s", got)
	}
}

func TestScanFindsFeatures(t *testing.T) {
	var req wire.Request
	chat := func(messages, members string, want wire.Feature) {
		t.Helper()
		body := `{"model":"m","messages":[` + messages + `]` + members + `}`
		if err := Scan(&req, wire.Chat, []byte(body)); err != nil {
			t.Fatalf("Scan(%s) fails: %v", body, err)
		}
		if req.Features != want {
			t.Errorf("Scan(%s) finds the features %b, want %b", body, req.Features, want)
		}
	}
	const user = `{"role":"user","content":"a"}`
	chat(user, ``, 0)
	chat(`{"role":"system","content":"a"},`+user, ``, wire.SystemMessage)
	chat(`{"role":"developer","content":"a"},`+user, ``, wire.SystemMessage)
	chat(`{"role":"s\u0079stem","content":"a"},`+user, ``, wire.SystemMessage)
	chat(user+`,{"role":"assistant","content":"b"}`, ``, wire.Turns)
	chat(`{"role":"user","content":[{"type":"text","text":"a"}]}`, ``, wire.ContentParts)
	chat(user, `,"tools":[]`, 0)
	chat(user, `,"tools":[{"type":"function","function":{"name":"f"}}]`, wire.Tools)
	chat(user+`,{"role":"assistant","content":null,"tool_calls":[]}`, ``, wire.Turns|wire.ToolCalls)
	chat(user+`,{"role":"assistant","content":"b","tool_calls":null}`, ``, wire.Turns)
	chat(user+`,{"role":"tool","content":"b"}`, ``, wire.Turns|wire.ToolCalls)
	chat(user+`,{"role":"assistant","content":"b","reasoning":"c"}`, ``, wire.Turns|wire.TemplateSettings)
	chat(user, `,"chat_template_kwargs":{},"documents":null`, wire.TemplateSettings)
	chat(user, `,"documents":[]`, wire.TemplateSettings)
	chat(user, `,"reasoning_effort":"low"`, wire.TemplateSettings)
	chat(user, `,"continue_final_message":true`, wire.PromptSettings)
	chat(user, `,"add_generation_prompt":false`, wire.PromptSettings)
	chat(user, `,"add_special_tokens":true,"chat_template":null`, wire.PromptSettings)
	chat(user, `,"chat_template":"x"`, wire.OwnTemplate)
	if err := Scan(&req, wire.Completion, []byte(`{"model":"m","prompt":"a","suffix":"b"}`)); err != nil || req.Features != wire.PromptSettings {
		t.Errorf("a completion has the features %b, %v, want %b", req.Features, err, wire.PromptSettings)
	}
	if err := Scan(&req, wire.Completion, []byte(`{"model":"m","prompt":"a"}`)); err != nil || req.Features != 0 {
		t.Errorf("a plain completion has the features %b, %v, want none", req.Features, err)
	}
}
