package translate

import (
	"bufio"
	"encoding/json"
	"errors"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/sluicegate/sluice/gateway/wire"
)

// fate is what a translation does with one value of one field.
type fate int

const (
	kept    fate = iota // it is in the chat body
	without             // it is left out, since the answer does not depend on it
	ignored             // as without, whatever the value is
	refused             // it is named in a 400
)

// sample is a value of a field and its fate. trace is how one that is kept shows.
type sample struct {
	value string
	fate  fate
	trace string
}

func keep(value, trace string) sample { return sample{value, kept, trace} }
func omit(value string) sample        { return sample{value, without, ""} }
func ignore(value string) sample      { return sample{value, ignored, ""} }
func no(value string) sample          { return sample{value, refused, ""} }

// subject is one of the SDK's types: where an object of it stands in a request, what
// it needs at least, and what becomes of its fields.
type subject struct {
	body    string // with a * for the object's members
	path    string // of the object
	least   map[string]string
	fields  map[string][]sample
	purpose Purpose
	// byType says that the type has no equivalent as such: its type is refused.
	byType bool
}

const (
	inUser      = `{"model":"m","max_tokens":5,"messages":[{"role":"user","content":[{*}]}]}`
	inAssistant = `{"model":"m","max_tokens":5,"messages":[{"role":"assistant","content":[{*}]}]}`
	inResult    = `{"model":"m","max_tokens":5,"messages":[{"role":"user","content":[{"type":"tool_result","tool_use_id":"t","content":[{*}]}]}]}`
	inTools     = `{"model":"m","max_tokens":5,"messages":[],"tools":[{*}]}`
	inTop       = `{"model":"m","max_tokens":5,"messages":[],`
	inSource    = `{"model":"m","max_tokens":5,"messages":[{"role":"user","content":[{"type":"image","source":{*}}]}]}`
)

func refusedBlock() subject {
	return subject{body: inUser, path: "messages[0].content[0]", byType: true}
}

func refusedTool() subject { return subject{body: inTools, path: "tools[0]", byType: true} }

func message(role string) subject {
	return subject{
		body: `{"model":"m","max_tokens":5,"messages":[{*}]}`, path: "messages[0]",
		least: map[string]string{"role": `"` + role + `"`, "content": `"hi"`},
		fields: map[string][]sample{
			"role":    {keep(`"`+role+`"`, `"role":"`+role+`"`)},
			"content": {keep(`"words"`, `"content":"words"`), keep(`[{"type":"text","text":"words"}]`, `"content":"words"`)},
		},
	}
}

func topLevel(p Purpose) subject {
	s := subject{
		body: `{*}`, purpose: p,
		least: map[string]string{"model": `"m"`, "max_tokens": `5`, "messages": `[{"role":"user","content":"hi"}]`},
		fields: map[string][]sample{
			"model":    {keep(`"other"`, `"model":"other"`)},
			"messages": {keep(`[{"role":"user","content":"words"}]`, `{"role":"user","content":"words"}`)},
			"system":   {keep(`"be kind"`, `{"role":"system","content":"be kind"}`), keep(`[{"type":"text","text":"be "},{"type":"text","text":"kind"}]`, `{"role":"system","content":"be kind"}`)},
			"tools":    {keep(`[{"name":"f","input_schema":{"type":"object"}}]`, `"tools":[{"type":"function","function":{"name":"f","parameters":{"type":"object"}}}]`)},
			// The engine caches every prompt by itself.
			"cache_control": {ignore(`{"type":"ephemeral","ttl":"1h"}`)},
			"speed":         {omit(`"standard"`), no(`"fast"`)},
			"output_config": {keep(`{"effort":"low"}`, `"reasoning_effort":"low"`)},
			"thinking": {
				omit(`{"type":"disabled"}`), omit(`{"type":"adaptive"}`),
				no(`{"type":"enabled","budget_tokens":1024}`), no(`{"type":"between_tools"}`),
			},
			"user_profile_id": {no(`"u"`)},
			"workspace_id":    {no(`"w"`)},
			"tool_choice":     {keep(`{"type":"auto"}`, `"tool_choice":"auto"`)},
		},
	}
	if p == ForCount {
		s.fields["tool_choice"] = []sample{omit(`{"type":"auto"}`)} // it is no part of the prompt
		delete(s.least, "max_tokens")
		return s
	}
	maps.Copy(s.fields, map[string][]sample{
		"max_tokens":     {keep(`7`, `"max_tokens":7`), no(`0`)},
		"stop_sequences": {keep(`["\n\n"]`, `"stop":["\n\n"]`)},
		"metadata":       {keep(`{"user_id":"u-1"}`, `"user":"u-1"`)},
		// There is one tier, and it is the standard one.
		"service_tier":  {omit(`"auto"`), omit(`"standard_only"`), no(`"priority"`)},
		"container":     {no(`"c"`), no(`{"id":"c"}`)},
		"diagnostics":   {no(`{"previous_message_id":null}`)},
		"inference_geo": {no(`"eu"`)},
		"stream": {
			keep(`true`, `"stream":true,"stream_options":{"include_usage":true,"continuous_usage_stats":true}`),
			omit(`false`),
		},
	})
	return s
}

// serverTool are the blocks and tools of what Anthropic runs on its own servers.
func serverTool(name string) (subject, bool) {
	for _, prefix := range []string{"Bash", "CodeExecution", "TextEditorCodeExecution", "WebFetch", "WebSearch", "ToolSearch"} {
		if strings.HasPrefix(name, prefix) && strings.HasSuffix(name, "ToolResultBlockParam") {
			return refusedBlock(), true
		}
	}
	for _, prefix := range []string{
		"CodeExecutionTool", "BrowserToolset", "ComputerToolset", "MemoryTool", "ToolBash", "ToolSearchTool", "ToolTextEditor",
		"WebFetchTool", "WebSearchTool",
	} {
		if strings.HasPrefix(name, prefix) {
			return refusedTool(), true
		}
	}
	return subject{}, false
}

func subjects() map[string]subject {
	cache := []sample{ignore(`{"type":"ephemeral"}`)}
	return map[string]subject{
		"MessageCreateParamsNonStreaming": topLevel(ForWorker),
		"MessageCreateParamsStreaming":    topLevel(ForWorker),
		"MessageCountTokensParams":        topLevel(ForCount),
		"UserMessageParam":                message("user"),
		"AssistantMessageParam":           message("assistant"),
		"SystemMessageParam":              message("system"),
		"TextBlockParam": {
			body: inUser, path: "messages[0].content[0]", least: map[string]string{"type": `"text"`, "text": `"hi"`},
			fields: map[string][]sample{
				"type": {keep(`"text"`, `"content":"hi"`)}, "text": {keep(`"words"`, `"content":"words"`)},
				"cache_control": cache,
				"citations": {omit(`[]`), no(`[{"type":"char_location","cited_text":"x","document_index":0,` +
					`"document_title":null,"start_char_index":0,"end_char_index":1}]`)},
			},
		},
		"ImageBlockParam": {
			body: inUser, path: "messages[0].content[0]",
			least: map[string]string{"type": `"image"`, "source": `{"type":"url","url":"https://x.test/a.png"}`},
			fields: map[string][]sample{
				"type":          {keep(`"image"`, `"type":"image_url"`)},
				"source":        {keep(`{"type":"url","url":"https://x.test/b.png"}`, `"image_url":{"url":"https://x.test/b.png"}`)},
				"cache_control": cache, "transformations": {no(`{"oversized_image":"downsize"}`)},
			},
		},
		"Base64ImageSourceParam": {
			body: inSource, path: "messages[0].content[0].source",
			least: map[string]string{"type": `"base64"`, "media_type": `"image/png"`, "data": `"AAAA"`},
			fields: map[string][]sample{
				"type": {keep(`"base64"`, `"url":"data:image/png;base64,AAAA"`)},
				"data": {keep(`"BBBB"`, `;base64,BBBB"`)},
				"media_type": {
					keep(`"image/jpeg"`, `data:image/jpeg;`), keep(`"image/gif"`, `data:image/gif;`),
					keep(`"image/webp"`, `data:image/webp;`), keep(`"image/png"`, `data:image/png;`),
				},
			},
		},
		"URLImageSourceParam": {
			body: inSource, path: "messages[0].content[0].source",
			least: map[string]string{"type": `"url"`, "url": `"https://x.test/a"`},
			fields: map[string][]sample{
				"type": {keep(`"url"`, `"url":"https://x.test/a"`)}, "url": {keep(`"https://x.test/b"`, `"url":"https://x.test/b"`)},
			},
		},
		"FileImageSourceParam": {body: inSource, path: "messages[0].content[0].source", byType: true},
		"ToolUseBlockParam": {
			body: inAssistant, path: "messages[0].content[0]",
			least: map[string]string{"type": `"tool_use"`, "id": `"t1"`, "name": `"f"`, "input": `{}`},
			fields: map[string][]sample{
				"type": {keep(`"tool_use"`, `"tool_calls":[`)}, "id": {keep(`"t2"`, `"id":"t2"`)}, "name": {keep(`"g"`, `"name":"g"`)},
				"input":         {keep(`{"a": 1.0}`, `"arguments":"{\"a\": 1.0}"`)},
				"cache_control": cache, "toolset_name": {no(`"s"`)},
				"caller": {omit(`{"type":"direct"}`), no(`{"type":"code_execution_20250825","tool_id":"x"}`)},
			},
		},
		"DirectCallerParam": {
			body:   strings.Replace(inAssistant, `{*}`, `{"type":"tool_use","id":"t","name":"f","input":{},"caller":{*}}`, 1),
			path:   "messages[0].content[0].caller",
			fields: map[string][]sample{"type": {omit(`"direct"`)}}, least: map[string]string{"type": `"direct"`},
		},
		"ServerToolCallerParam":         refusedCaller(),
		"ServerToolCaller20260120Param": refusedCaller(),
		"ToolResultBlockParam": {
			body: inUser, path: "messages[0].content[0]", least: map[string]string{"type": `"tool_result"`, "tool_use_id": `"t1"`},
			fields: map[string][]sample{
				"type": {keep(`"tool_result"`, `{"role":"tool"`)}, "tool_use_id": {keep(`"t2"`, `"tool_call_id":"t2"`)},
				"content": {
					keep(`"found"`, `"content":"found"`), keep(`[{"type":"text","text":"a"},{"type":"text","text":"b"}]`, `"content":"a\nb"`),
				},
				"is_error":      {keep(`true`, `"content":"Error: "`), omit(`false`)},
				"cache_control": cache, "toolset_name": {no(`"s"`)},
			},
		},
		// What was thought in earlier turns is left out: the contract says so.
		"ThinkingBlockParam": {
			body: inAssistant, path: "messages[0].content[0]",
			least:  map[string]string{"type": `"thinking"`, "thinking": `"hm"`, "signature": `"s"`},
			fields: map[string][]sample{"type": {omit(`"thinking"`)}, "thinking": {ignore(`"other"`)}, "signature": {ignore(`"other"`)}},
		},
		"RedactedThinkingBlockParam": {
			body: inAssistant, path: "messages[0].content[0]", least: map[string]string{"type": `"redacted_thinking"`, "data": `"x"`},
			fields: map[string][]sample{"type": {omit(`"redacted_thinking"`)}, "data": {ignore(`"y"`)}},
		},
		"DocumentBlockParam":        refusedBlock(),
		"SearchResultBlockParam":    refusedBlock(),
		"ContainerUploadBlockParam": refusedBlock(),
		"ServerToolUseBlockParam":   refusedBlock(),
		"ToolReferenceBlockParam":   {body: inResult, path: "messages[0].content[0].content[0]", byType: true},
		"BrowserStateBlockParam":    {body: inResult, path: "messages[0].content[0].content[0]", byType: true},
		"ToolParam": {
			body: inTools, path: "tools[0]", least: map[string]string{"name": `"f"`, "input_schema": `{"type":"object"}`},
			fields: map[string][]sample{
				"type": {omit(`"custom"`), no(`"web_search_20250305"`)}, "name": {keep(`"g"`, `"name":"g"`)},
				"description":   {keep(`"does"`, `"description":"does"`)},
				"input_schema":  {keep(`{"type": "object", "x": 1e3}`, `"parameters":{"type": "object", "x": 1e3}`)},
				"strict":        {keep(`true`, `"strict":true`), keep(`false`, `"strict":false`)},
				"cache_control": cache, "defer_loading": {omit(`false`), no(`true`)},
				"allowed_callers": {
					omit(`["direct"]`), no(`["code_execution_20250825"]`), no(`["direct","code_execution_20260120"]`),
					no(`["code_execution_20260521"]`), no(`[]`),
				},
				"input_examples": {omit(`[]`), no(`[{"a":1}]`)},
				// Inputs are always streamed as they come.
				"eager_input_streaming": {omit(`true`), omit(`false`)},
			},
		},
		"InputSchemaTyped": {
			body: strings.Replace(inTools, `{*}`, `{"name":"f","input_schema":{*}}`, 1), path: "tools[0].input_schema",
			fields: map[string][]sample{
				"type": {keep(`"object"`, `"type":"object"`)}, "properties": {keep(`{"a":{}}`, `"properties":{"a":{}}`)},
				"required": {keep(`["a"]`, `"required":["a"]`)},
			},
		},
		"ToolChoiceAutoParam": choiceOf("auto", `"auto"`), "ToolChoiceAnyParam": choiceOf("any", `"required"`),
		"ToolChoiceNoneParam": choiceOf("none", `"none"`), "ToolChoiceToolParam": choiceOf("tool", `{"type":"function","function":{"name":"f"}}`),
		"MetadataParam": {
			body: inTop + `"metadata":{*}}`, path: "metadata",
			fields: map[string][]sample{"user_id": {keep(`"u"`, `"user":"u"`)}},
		},
		"OutputConfigParam": {
			body: inTop + `"output_config":{*}}`, path: "output_config",
			fields: map[string][]sample{
				"effort": {
					keep(`"low"`, `"reasoning_effort":"low"`), keep(`"medium"`, `"reasoning_effort":"medium"`), keep(`"high"`, `"reasoning_effort":"high"`),
					keep(`"xhigh"`, `"reasoning_effort":"xhigh"`), keep(`"max"`, `"reasoning_effort":"max"`),
				},
				"format": {keep(`{"type":"json_schema","schema":{"a":1}}`,
					`"response_format":{"type":"json_schema","json_schema":{"name":"json_schema","schema":{"a":1}}}`)},
			},
		},
		"JSONOutputFormatParam": {
			body: inTop + `"output_config":{"format":{*}}}`, path: "output_config.format",
			least: map[string]string{"type": `"json_schema"`, "schema": `{}`},
			fields: map[string][]sample{
				"type": {keep(`"json_schema"`, `"type":"json_schema"`), no(`"regex"`)}, "schema": {keep(`{"b":2}`, `"schema":{"b":2}`)},
			},
		},
		"ThinkingConfigDisabledParam": thinking(map[string][]sample{"type": {omit(`"disabled"`)}}),
		"ThinkingConfigAdaptiveParam": thinking(map[string][]sample{
			"type": {omit(`"adaptive"`)}, "display": {omit(`"summarized"`), no(`"omitted"`)},
		}),
		"ThinkingConfigEnabledParam":      {body: inTop + `"thinking":{*}}`, path: "", byType: true},
		"ThinkingConfigBetweenToolsParam": {body: inTop + `"thinking":{*}}`, path: "", byType: true},
	}
}

func refusedCaller() subject {
	return subject{
		body: strings.Replace(inAssistant, `{*}`, `{"type":"tool_use","id":"t","name":"f","input":{},"caller":{*}}`, 1),
		path: "messages[0].content[0]", byType: true,
	}
}

func choiceOf(kind, trace string) subject {
	s := subject{
		body: inTop + `"tool_choice":{*}}`, path: "tool_choice", least: map[string]string{"type": `"` + kind + `"`},
		fields: map[string][]sample{
			"type":                      {keep(`"`+kind+`"`, `"tool_choice":`+trace)},
			"disable_parallel_tool_use": {keep(`true`, `"parallel_tool_calls":false`), omit(`false`)},
		},
	}
	if kind == "tool" {
		s.least["name"] = `"f"`
		s.fields["name"] = []sample{keep(`"g"`, `{"name":"g"}`)}
	}
	return s
}

func thinking(fields map[string][]sample) subject {
	kind := fields["type"][0].value
	return subject{
		body: inTop + `"thinking":{*}}`, path: "thinking", least: map[string]string{"type": kind}, fields: fields,
	}
}

// with is a request with an object that has the least of members, and one more.
func (s *subject) with(field, value string) []byte {
	members := maps.Clone(s.least)
	if members == nil {
		members = map[string]string{}
	}
	if field != "" {
		members[field] = value
	}
	var text []string
	for _, name := range slices.Sorted(maps.Keys(members)) {
		text = append(text, `"`+name+`":`+members[name])
	}
	return []byte(strings.Replace(s.body, "*", strings.Join(text, ","), 1))
}

// sdkField is a line of testdata/sdk_fields.txt.
type sdkField struct {
	name           string
	consts, inside []string
}

func sdkTypes(t *testing.T) map[string][]sdkField {
	t.Helper()
	f, err := os.Open("testdata/sdk_fields.txt")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	types := map[string][]sdkField{}
	split := func(s string) []string {
		if s == "-" {
			return nil
		}
		return strings.Split(s, ",")
	}
	lines := bufio.NewScanner(f)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		words := strings.Fields(lines.Text())
		if len(words) != 4 || words[0] == "#" {
			continue
		}
		types[words[0]] = append(types[words[0]], sdkField{words[1], split(words[2]), split(words[3])})
	}
	if err := lines.Err(); err != nil {
		t.Fatal(err)
	}
	return types
}

// TestEveryFieldOfTheSDK follows the types of the SDK from its requests on, through
// every field whose values are kept, and shows for every field that it is kept,
// makes no difference, or is refused by its name. A field that is new in the SDK,
// once the list is made anew, fails until somebody has decided.
func TestEveryFieldOfTheSDK(t *testing.T) {
	types, known := sdkTypes(t), subjects()
	if len(types) < 100 {
		t.Fatalf("%d types of the SDK are listed", len(types))
	}
	todo := []string{"MessageCreateParamsNonStreaming", "MessageCreateParamsStreaming", "MessageCountTokensParams"}
	seen := map[string]bool{}
	for len(todo) > 0 {
		name := todo[0]
		todo = todo[1:]
		if seen[name] {
			continue
		}
		seen[name] = true
		s, ok := known[name]
		if !ok {
			s, ok = serverTool(name)
		}
		if !ok {
			t.Errorf("%s: what becomes of it?", name)
			continue
		}
		t.Run(name, func(t *testing.T) {
			if s.byType {
				s.checkRefused(t, types[name])
				return
			}
			for _, f := range types[name] {
				if s.checkField(t, f) {
					todo = append(todo, f.inside...)
				}
			}
		})
	}
	for name := range known {
		if !seen[name] {
			t.Errorf("%s is in the table, and no field that is kept leads to it", name)
		}
	}
}

// checkRefused shows that a type is refused for what it is, whatever else it has.
func (s *subject) checkRefused(t *testing.T, fields []sdkField) {
	i := slices.IndexFunc(fields, func(f sdkField) bool { return f.name == "type" })
	if i < 0 || len(fields[i].consts) == 0 {
		t.Fatal("it has no type to be refused by")
	}
	for _, kind := range fields[i].consts {
		s.least = map[string]string{"type": `"` + kind + `"`}
		for _, f := range fields {
			if f.name != "type" {
				s.least[f.name] = `"anything"`
			}
		}
		_, err := AppendChat(nil, s.with("", ""), s.purpose, nil)
		var e *wire.Error
		if !errors.As(err, &e) || e.Status != 400 || s.path != "" && !strings.HasPrefix(e.Param, s.path) || e.Param == "" {
			t.Errorf("%s: %+v", kind, e)
		}
		if e != nil && !strings.Contains(e.Message, "`"+e.Param+"`") {
			t.Errorf("%s: the message names another field than %q: %s", kind, e.Param, e.Message)
		}
	}
}

// checkField tries the values of a field, and reports whether what is inside them
// counts.
func (s *subject) checkField(t *testing.T, f sdkField) (inside bool) {
	samples := s.fields[f.name]
	if len(samples) == 0 {
		t.Errorf("%s: what becomes of it?", f.name)
		return false
	}
	for _, c := range f.consts {
		if !slices.ContainsFunc(samples, func(x sample) bool { return x.fate == ignored || strings.Contains(x.value, c) }) {
			t.Errorf("%s: what becomes of the value %q?", f.name, c)
		}
	}
	for _, x := range samples {
		inside = inside || (x.fate == kept || x.fate == without) && strings.Contains(x.value, "{")
		s.check(t, f.name, x)
	}
	return inside
}

func (s *subject) check(t *testing.T, field string, x sample) {
	t.Helper()
	got, err := AppendChat(nil, s.with(field, x.value), s.purpose, nil)
	path := field
	if s.path != "" {
		path = s.path + "." + field
	}
	if x.fate == refused {
		var e *wire.Error
		if !errors.As(err, &e) || e.Status != 400 || !strings.HasPrefix(e.Param, path) || !strings.Contains(e.Message, "`"+e.Param+"`") {
			t.Errorf("%s: %s gives %v, want a refusal that names %s", field, x.value, err, path)
		}
		return
	}
	if err != nil {
		t.Errorf("%s: %s is refused: %v", field, x.value, err)
		return
	}
	if !json.Valid(got) {
		t.Errorf("%s: %s gives invalid JSON: %s", field, x.value, got)
	}
	if x.fate == kept {
		if !strings.Contains(string(got), x.trace) {
			t.Errorf("%s: %s gives %s, without %s", field, x.value, got, x.trace)
		}
		return
	}
	if plain, err := AppendChat(nil, s.with("", ""), s.purpose, nil); err != nil || string(plain) != string(got) {
		t.Errorf("%s: %s gives %s, and %s without it (%v)", field, x.value, got, plain, err)
	}
}
