package anthropic

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/sluicegate/sluice/gateway/wire"
	"github.com/sluicegate/sluice/gateway/wire/wiretest"
)

// summary spells what a scan has found, apart from what is as in most bodies.
func summary(req *wire.Request) string {
	var sb strings.Builder
	add := func(format string, args ...any) { fmt.Fprintf(&sb, format+" ", args...) }
	add("%s", req.Model)
	if req.Stream {
		add("stream")
	}
	if req.MaxTokens != nil {
		add("max=%d", *req.MaxTokens)
	}
	if req.User != nil {
		add("user=%s", req.User)
	}
	if req.CacheSalt != nil {
		add("salt=%s", req.CacheSalt)
	}
	if req.HasPriority {
		add("priority=%d", req.Priority)
	}
	if len(req.ToolNames) > 0 {
		add("tools=%q", req.ToolNames)
	}
	add("messages=%d", req.MessageCount)
	if req.ImageCount > 0 {
		add("images=%d", req.ImageCount)
	}
	add("%v text=%d", req.Modalities.AppendNames(nil), req.TextBytes)
	text := strings.TrimSpace(sb.String())
	for i, name := range []string{"system", "turns", "parts", "tools", "calls", "settings"} {
		if req.Features&(1<<i) != 0 {
			text += "+" + name
		}
	}
	return text
}

func TestScan(t *testing.T) {
	var req wire.Request
	f := func(body, want string) {
		t.Helper()
		if err := (Codec{}).Scan(&req, wire.Messages, []byte(body)); err != nil {
			t.Errorf("%s: %v", body, err)
			return
		}
		if got := summary(&req); got != want {
			t.Errorf("%s\n got %s\nwant %s", body, got, want)
		}
	}
	of := func(rest, want string) {
		t.Helper()
		f(`{"model":"m","max_tokens":5,`+rest+`}`, "m max=5 "+want)
	}
	user := func(content, want string) {
		t.Helper()
		of(`"messages":[{"role":"user","content":`+content+`}]`, "messages=1 "+want)
	}
	f(`{"messages":[],"stream":true,"max_tokens":1e2,"mod\u0065l":"a\u0062"}`, "ab stream max=100 messages=0 [] text=0")
	of(`"messages":[],"metadata":{"user_id":"u\u0031","x":{"user_id":2}},"cache_salt":"s","priority":7`, "user=u1 salt=s priority=7 messages=0 [] text=0")
	of(`"messages":[],"metadata":null,"cache_salt":null,"priority":null,"system":null,"tools":null,"stream":null,"vllm_xargs":{"a":1},"kv_transfer_params":null`, "messages=0 [] text=0")

	// System texts.
	of(`"messages":[],"system":"abc"`, "messages=0 [text] text=3+system")
	of(`"messages":[],"system":[{"type":"text","text":"ab","cache_control":{"type":"ephemeral"}},{"text":"\u00e9","type":"text"}]`, "messages=0 [text] text=4+system")
	of(`"messages":[],"system":""`, "messages=0 [] text=0")
	of(`"messages":[{"role":"user","content":"a"},{"role":"system","content":"b"}]`, "messages=2 [text] text=2+system")

	// Messages.
	user(`"hello"`, "[text] text=5")
	user(`[{"type":"text","text":"hello"}]`, "[text] text=5")
	user(`[{"type":"text","text":"he"},{"text":"llo"}]`, "[text] text=5+parts")
	user(`null`, "[] text=0")
	of(`"messages":[{"role":"user","content":"a"},{"role":"assistant","content":"b"}]`, "messages=2 [text] text=2+turns")

	// Images, and files that no worker takes.
	user(`[{"type":"image","source":{"type":"base64","media_type":"image/png","data":"AAAA"}}]`, "images=1 [image] text=0+parts")
	user(`[{"source":{"type":"url","url":"u"},"type":"im\u0061ge"}]`, "images=1 [image] text=0+parts")
	user(`[{"type":"document","title":"abc","source":{"type":"text","data":"x"}}]`, "[text file] text=3+parts")

	// Tools called, and what they have returned, also images inside of that.
	user(`[{"type":"tool_use","id":"i","name":"look","input":{"a": 1}}]`, "[text] text=12+calls")
	user(`[{"type":"tool_result","tool_use_id":"i","content":"warm"}]`, "[text] text=4+calls")
	user(`[{"type":"tool_result","content":[{"type":"text","text":"warm"},{"type":"image","source":{}}]}]`, "images=1 [text image] text=4+parts+calls")
	user(`[{"type":"tool_result","content":[{"type":"tool_result","content":[{"type":"image"}]}]}]`, "images=1 [image] text=0+parts+calls")
	user(`[{"type":"web_search_tool_result","content":{"type":"error"}}]`, "[] text=16")
	user(`[{"type":"thinking","thinking":"hm","signature":"long"}]`, "[text] text=2+settings")

	// Declared tools; those of the API's own by their type if they have no name.
	of(`"messages":[],"tools":[{"name":"a","input_schema":{}}]`, `tools=["a"] messages=0 [] text=32+tools`)
	of(`"messages":[],"tools":[{"type":"web_search_20250305","name":"web_search"},{"type":"mcp_toolset"},{"input_schema":{"name":"no"}}]`,
		`tools=["web_search" "mcp_toolset" ""] messages=0 [] text=106+tools`)
	of(`"messages":[],"tools":[]`, "messages=0 [] text=0")
	of(`"messages":[{"role":"system","content":[{"type":"tool_addition","tool":{"type":"tool_definition","definition":{"name":"late","input_schema":{}}}}]}]`,
		`tools=["late"] messages=1 [] text=73+system+tools+calls`)
	of(`"messages":[{"role":"system","content":[{"type":"tool_removal","tool":{"type":"tool_reference","name":"late"}}]}]`,
		`messages=1 [] text=39+system+calls`)

	// What a template is told besides.
	of(`"messages":[],"thinking":{"type":"disabled"}`, "messages=0 [] text=0+settings")
	of(`"messages":[],"output_config":null,"chat_template_kwargs":{"a":1}`, "messages=0 [] text=0+settings")

	// Unknown keys and those of other cases pass, also twice.
	of(`"messages":[],"Model":"x","Model":"y","temperature":1,"temperature":2`, "messages=0 [] text=0")

	if err := (Codec{}).Scan(&req, wire.CountTokens, []byte(`{"model":"m","messages":[{"role":"user","content":"x"}],"stream":true}`)); err != nil || req.Stream || req.MaxTokens != nil {
		t.Errorf("count_tokens: %v, stream %v, max %v", err, req.Stream, req.MaxTokens)
	}
}

func TestScanErrors(t *testing.T) {
	f := func(body, code, param string) {
		t.Helper()
		var req wire.Request
		err := Codec{}.Scan(&req, wire.Messages, []byte(body))
		var e *wire.Error
		if !errors.As(err, &e) || e.Code != code || e.Param != param || e.Status != 400 || e.Message == "" {
			t.Errorf("%s\n got %+v\nwant %s at %q", body, err, code, param)
		}
	}
	of := func(rest, code, param string) {
		t.Helper()
		f(`{"model":"m","max_tokens":5,"messages":[],`+rest+`}`, code, param)
	}
	messages := func(list, code, param string) {
		t.Helper()
		f(`{"model":"m","max_tokens":5,"messages":`+list+`}`, code, param)
	}
	const invalid, twice, noJSON = "invalid_request", "duplicate_key", "invalid_json"
	for _, body := range []string{``, ` `, `[]`, `null`, `"x"`, `{`, `{"model":"m"} x`, "\xef\xbb\xbf{}", `{"model":NaN}`, "{\"model\":\"\xff\"}", strings.Repeat(`{"a":`, 130)} {
		f(body, noJSON, "")
	}
	f(`{"max_tokens":1,"messages":[]}`, invalid, "model")
	f(`{"model":"","max_tokens":1,"messages":[]}`, invalid, "model")
	f(`{"model":"`+strings.Repeat("m", 257)+`","max_tokens":1,"messages":[]}`, invalid, "model")
	f(`{"model":"m","messages":[]}`, invalid, "max_tokens")
	f(`{"model":"m","max_tokens":null,"messages":[]}`, invalid, "max_tokens")
	f(`{"model":"m","max_tokens":1}`, invalid, "messages")
	f(`{"model":"m","max_tokens":1,"messages":null}`, invalid, "messages")

	of(`"max_tok\u0065ns":5`, twice, "max_tokens")
	of(`"model":"m"`, twice, "model")
	of(`"metadata":{},"metadata":{}`, twice, "metadata")
	of(`"metadata":{"user_id":"a","user_\u0069d":"b"}`, twice, "metadata.user_id")
	of(`"metadata":[]`, invalid, "metadata")
	of(`"metadata":{"user_id":7}`, invalid, "metadata.user_id")
	of(`"stream":"true"`, invalid, "stream")
	of(`"stream":1`, invalid, "stream")
	of(`"n":"1"`, invalid, "n")
	of(`"priority":-1`, invalid, "priority")
	of(`"cache_salt":7`, invalid, "cache_salt")
	of(`"cache_salt":"\ud800"`, invalid, "cache_salt")
	of(`"kv_transfer_params":{}`, invalid, "kv_transfer_params")
	of(`"ec_transfer_params":{}`, invalid, "ec_transfer_params")
	of(`"vllm_xargs":{"kv_transfer_params":{}}`, invalid, "vllm_xargs.kv_transfer_params")
	f(`{"model":"m","max_tokens":"100","messages":[]}`, invalid, "max_tokens")
	f(`{"model":"m","max_tokens":2147483648,"messages":[]}`, invalid, "max_tokens")

	of(`"system":7`, invalid, "system")
	of(`"system":["x"]`, invalid, "system[0]")
	of(`"system":[{"type":"text","text":7}]`, invalid, "system[0].text")
	of(`"system":[{},{"type":"text","type":"text"}]`, twice, "system[1].type")

	messages(`{}`, invalid, "messages")
	messages(`["x"]`, invalid, "messages[0]")
	messages(`[{"role":7}]`, invalid, "messages[0].role")
	messages(`[{},{"role":"user","role":"user"}]`, twice, "messages[1].role")
	messages(`[{"content":"a","content":"b"}]`, twice, "messages[0].content")
	messages(`[{"content":7}]`, invalid, "messages[0].content")
	messages(`[{"content":["x"]}]`, invalid, "messages[0].content[0]")
	messages(`[{"content":[{"type":"text","text":"a","text":"b"}]}]`, twice, "messages[0].content[0].text")
	messages(`[{"content":[{"type":"text","text":{}}]}]`, invalid, "messages[0].content[0].text")
	messages(`[{"content":[{"type":7}]}]`, invalid, "messages[0].content[0].type")
	messages(`[{"content":[{"type":"image","source":{},"source":{}}]}]`, twice, "messages[0].content[0].source")
	messages(`[{"content":[{"type":"image","source":{"type":"a","type":"b"}}]}]`, twice, "messages[0].content[0]")
	messages(`[{"content":[{"content":7}]}]`, invalid, "messages[0].content[0].content")
	messages(`[{"content":[{},{"content":[{"text":7}]}]}]`, invalid, "messages[0].content[1].content[].text")
	messages(`[{"content":[{"content":[7]}]}]`, invalid, "messages[0].content[0].content[]")
	messages(`[{"content":[{"content":[{"text":"a","text":"b"}]}]}]`, twice, "messages[0].content[0].content[].text")
	messages(`[{"content":[{"input":{"type":1,"type":2}}]}]`, twice, "messages[0].content[0]")
	messages(`[{"x":{"role":1,"role":2}}]`, twice, "messages[0]")

	of(`"tools":{}`, invalid, "tools")
	of(`"tools":["x"]`, invalid, "tools[0]")
	of(`"tools":[{"name":7}]`, invalid, "tools[0].name")
	of(`"tools":[{},{"name":"a","name":"b"}]`, twice, "tools[1].name")
	of(`"tools":[{"name":"a\ud800"}]`, invalid, "tools[0].name")
	of(`"tools":[{"name":"`+strings.Repeat("n", 129)+`"}]`, invalid, "tools[0].name")
	of(`"tools":[{"type":"`+strings.Repeat("n", 129)+`"}]`, invalid, "tools[0].type")
	of(`"tools":[`+strings.Repeat(`{},`, 512)+`{}]`, invalid, "tools")
	messages(`[{"content":[{"type":"tool_addition","tool":{"definition":{"name":"a"},"definition":{"name":"b"}}}]}]`, twice, "messages[0].content[0].tool.definition")
	messages(`[{"content":[{"tool":7}]}]`, invalid, "messages[0].content[0].tool")

	// Bad JSON is told before what was wrong earlier.
	f(`{"model":7,"messages":[`, noJSON, "")
}

func TestScanErrorsQuoteNothing(t *testing.T) {
	const secret = "s3cr3t"
	for _, body := range []string{
		`{"model":"` + secret + `","max_tokens":"` + secret + `","messages":[]}`,
		`{"model":"m","max_tokens":1,"messages":[{"role":{"` + secret + `":1}}]}`,
		`{"model":"m","max_tokens":1,"messages":[{"content":[{"` + secret + `":{"type":1,"type":"` + secret + `"}}]}]}`,
		`{"` + secret + `":` + secret,
	} {
		var req wire.Request
		if err := (Codec{}).Scan(&req, wire.Messages, []byte(body)); err == nil || strings.Contains(err.Error(), secret) {
			t.Errorf("%s: %v", body, err)
		}
	}
}

func TestAppendRewrite(t *testing.T) {
	var req wire.Request
	f := func(op wire.Operation, m wire.Mutation, body, want string) {
		t.Helper()
		if err := (Codec{}).Scan(&req, op, []byte(body)); err != nil {
			t.Errorf("%s: %v", body, err)
			return
		}
		if got := string(Codec{}.AppendRewrite([]byte("before"), []byte(body), &req, m)); got != "before"+want {
			t.Errorf("%+v of %s\n got %s\nwant before%s", m, body, got, want)
		}
	}
	messages := func(m wire.Mutation, body, want string) {
		t.Helper()
		const rest = `"messages":[],`
		f(wire.Messages, m, `{`+rest+body+`}`, `{`+rest+want+`}`)
	}
	const plain = ` "model" : "m" , "max_tokens" : 1e1 , "x" : 1.0 , "x" : 2 `
	messages(wire.Mutation{}, plain, plain)
	messages(wire.Mutation{InjectUsage: true, N: new(int64(1))}, plain+`,"stream":true,"n":3`, plain+`,"stream":true,"n":3`)
	messages(wire.Mutation{Model: new("w/é")}, plain, strings.Replace(plain, `"m"`, `"w/é"`, 1))
	messages(wire.Mutation{Model: new("m")}, plain, plain)
	messages(wire.Mutation{MaxTokens: new(int64(10))}, plain, plain)
	messages(wire.Mutation{MaxTokens: new(int64(5))}, plain, strings.Replace(plain, "1e1", "5", 1))
	messages(wire.Mutation{CacheSalt: new("s\"")}, plain, strings.TrimSuffix(plain, " ")+`,"cache_salt":"s\"" `)
	messages(wire.Mutation{CacheSalt: new("s")}, `"cache_salt":"mine",`+plain, `"cache_salt":"s",`+plain)
	messages(wire.Mutation{Priority: new(int64(3))}, plain, strings.TrimSuffix(plain, " ")+`,"priority":3 `)
	gone := wire.Mutation{RemoveCacheSalt: true, RemovePriority: true}
	messages(gone, plain, plain)
	messages(gone, `"priority":1,"model":"m","cache_salt":"s","max_tokens":1`, `"model":"m","max_tokens":1`)
	f(wire.Messages, gone, `{"cache_salt":"s" , "priority":1, "model":"m","max_tokens":1,"messages":[]}`, `{  "model":"m","max_tokens":1,"messages":[]}`)
	f(wire.CountTokens, wire.Mutation{MaxTokens: new(int64(5)), Model: new("w")}, `{"model":"m","messages":[]}`, `{"model":"w","messages":[]}`)
}

// FuzzScanRewrite checks a scan and a rewrite of any body against what the
// standard library reads of it.
func FuzzScanRewrite(f *testing.F) {
	for _, r := range wiretest.Recordings(f) {
		f.Add([]byte(r.RequestBody), operationOf(r) == wire.CountTokens)
	}
	for _, body := range []string{
		`{"model":"m","max_tokens":1,"messages":[{"role":"user","content":[{"type":"tool_result","content":[{"type":"image","source":{"type":"url"}}]}]}]}`,
		`{"priority":1,"cache_salt":"s","mod\u0065l":"\ud83d\ude00","messages":[],"max_tokens":10e-1,"metadata":{"user_id":"u"}}`,
		`{"model":"m","messages":[{"role":"system","content":[{"type":"tool_addition","tool":{"definition":{"name":"n"}}}]}],"system":[{"text":"x"}]}`,
		`{"model":"m","tools":[{"name":"a"},{"type":"b"}],"messages":[],"max_tokens":2,"stream":true}`, `{"model":"m"} x`, strings.Repeat(`{"a":`, 130),
	} {
		f.Add([]byte(body), false)
		f.Add([]byte(body), true)
	}
	f.Fuzz(func(t *testing.T, body []byte, count bool) {
		op := wire.Messages
		if count {
			op = wire.CountTokens
		}
		before := bytes.Clone(body)
		var req wire.Request
		err := Codec{}.Scan(&req, op, body)
		if !bytes.Equal(before, body) {
			t.Fatal("a scan changes the body")
		}
		var e *wire.Error
		if err != nil && (!errors.As(err, &e) || e.Status != 400 || e.Code == "") {
			t.Fatalf("the error is %+v", err)
		}
		if e != nil && e.Code != "invalid_json" && (!json.Valid(body) || !utf8.Valid(body)) {
			t.Fatalf("%q is no JSON, but the scan says %v", body, err)
		}
		if err == nil {
			checkRewrite(t, &req, body)
		}
	})
}

func checkRewrite(t *testing.T, req *wire.Request, body []byte) {
	t.Helper()
	doc := wiretest.Decode(t, body)
	if list, _ := doc["messages"].([]any); doc["model"] != string(req.Model) || len(list) != req.MessageCount {
		t.Fatalf("%q is scanned as %+v", body, req)
	}
	if same := (Codec{}).AppendRewrite(nil, body, req, wire.Mutation{}); !bytes.Equal(same, body) {
		t.Fatalf("no mutation gives %q for %q", same, body)
	}
	out := Codec{}.AppendRewrite(nil, body, req, wire.Mutation{Model: new("w"), MaxTokens: new(int64(5)), CacheSalt: new("z"), RemovePriority: true, InjectUsage: true})
	doc["model"], doc["cache_salt"] = "w", "z"
	delete(doc, "priority")
	got := wiretest.Decode(t, out)
	if req.Operation == wire.Messages {
		if v, err := got["max_tokens"].(json.Number).Float64(); err != nil || v != 5 {
			t.Fatalf("max_tokens is %v", got["max_tokens"])
		}
		doc["max_tokens"] = got["max_tokens"]
	}
	if !reflect.DeepEqual(got, doc) {
		t.Fatalf("the rewrite %q of %q reads as %v, want %v", out, body, got, doc)
	}
	var again wire.Request
	if err := (Codec{}).Scan(&again, req.Operation, out); err != nil || again.TextBytes != req.TextBytes || len(again.ToolNames) != len(req.ToolNames) {
		t.Fatalf("the rewrite %q is scanned as %+v, %v", out, again, err)
	}
}
