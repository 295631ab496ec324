package classify

import (
	"context"
	"fmt"
	"maps"
	"strings"
	"testing"
	"time"
)

// TestDialects puts an address into every place of every dialect where a client
// can write text, and expects each once and a complete scan.
func TestDialects(t *testing.T) {
	c := mustNew(t, each())
	f := func(name, body string) {
		t.Helper()
		want := int64(strings.Count(body, "@example"))
		got := scanBody(c, body)
		if got.Findings[Email] != want || got.ScanStatus != StatusComplete {
			t.Errorf("%s: %d addresses and %s, want %d and complete", name, got.Findings[Email], got.ScanStatus, want)
		}
	}
	f("chat: all roles", `{"model":"m","messages":[{"role":"system","content":"a@example.com"},{"role":"developer","content":"b@example.com"},
		{"role":"user","name":"c@example.com","content":"d@example.com"},{"role":"assistant","content":"e@example.com","reasoning_content":"f@example.com","refusal":"g@example.com"}]}`)
	f("chat: parts", `{"messages":[{"role":"user","content":[{"type":"text","text":"a@example.com"},{"text":"b@example.com","type":"text"},"c@example.com"]}]}`)
	f("chat: tools", `{"messages":[{"role":"assistant","content":null,"tool_calls":[{"id":"a@example.com","type":"function","function":{"name":"b@example.com","arguments":"{\"to\":\"c@example.com\"}"}}]},
		{"role":"tool","tool_call_id":"x","content":"{\"rows\":[[\"d@example.com\"]]}"}],
		"tools":[{"type":"function","function":{"name":"f","description":"e@example.com","parameters":{"type":"object","properties":{"f@example.com":{"enum":["g@example.com"],"description":"h@example.com"}}}}}]}`)
	f("chat: settings", `{"messages":[],"stop":["a@example.com"],"user":"b@example.com","metadata":{"c@example.com":"d@example.com"},
		"response_format":{"type":"json_schema","json_schema":{"name":"e@example.com","schema":{"const":"f@example.com"}}},"documents":[{"title":"g@example.com","text":"h@example.com"}],
		"chat_template_kwargs":{"x":{"y":[["i@example.com"]]}},"guided_regex":"j@example.com","some_new_field":[{"k@example.com":{"l@example.com":[1,true,"m@example.com"]}}]}`)
	f("completion", `{"model":"m","prompt":"a@example.com","suffix":"b@example.com"}`)
	f("completion: list", `{"prompt":["a@example.com","b@example.com"]}`)
	f("embeddings", `{"model":"m","input":["a@example.com"]}`)
	f("responses", `{"model":"m","instructions":"a@example.com","input":[{"role":"user","content":[{"type":"input_text","text":"b@example.com"}]},
		{"type":"function_call","call_id":"c","name":"n","arguments":"{\"x\":\"c@example.com\"}"},{"type":"function_call_output","call_id":"c","output":"d@example.com"},
		{"type":"reasoning","summary":[{"type":"summary_text","text":"e@example.com"}]},{"type":"message","role":"assistant","content":[{"type":"output_text","text":"f@example.com"}]}]}`)
	f("responses: text", `{"input":"a@example.com","text":{"format":{"type":"json_schema","schema":{"title":"b@example.com"}}}}`)
	f("messages", `{"model":"m","system":[{"type":"text","text":"a@example.com","cache_control":{"type":"ephemeral"}}],"messages":[{"role":"user","content":[{"type":"text","text":"b@example.com"},
		{"type":"tool_result","tool_use_id":"x","content":[{"type":"text","text":"c@example.com"}]},{"type":"tool_result","content":"d@example.com"},
		{"type":"document","source":{"type":"text","media_type":"text/plain","data":"e@example.com"},"title":"f@example.com","context":"g@example.com"}]},
		{"role":"assistant","content":[{"type":"thinking","thinking":"h@example.com"},{"type":"tool_use","id":"x","name":"n","input":{"type":"file","to":"i@example.com","j@example.com":1}}]}],
		"tools":[{"name":"t","input_schema":{"type":"object","description":"k@example.com"}}],"stop_sequences":["l@example.com"]}`)
	f("messages: system text", `{"system":"a@example.com","messages":[]}`)
	f("not an object", `["a@example.com",{"b":"b@example.com"}]`)
	f("a string", `"a@example.com"`)
	f("escapes", `{"prompt":"\u0061@example\u002ecom\nb@\u0065xample.com","@example":1}`)
	f("surrogates and unknown escapes", `{"prompt":"\ud83d\ude00 a@example.com \ud800 b@example.com \x c@example.com"}`)
}

// TestLeftOut lists what is not scanned, and text that only looks like that.
func TestLeftOut(t *testing.T) {
	c := mustNew(t, each())
	f := func(body string, cards int64, status string) {
		t.Helper()
		got := scanBody(c, body)
		if got.Findings[PaymentCard] != cards || got.ScanStatus != status {
			t.Errorf("%.120s: %d cards and %s, want %d and %s", body, got.Findings[PaymentCard], got.ScanStatus, cards, status)
		}
	}
	f(`{"model":"4111111111111111"}`, 0, StatusComplete)
	f(`{"x":{"model":"4111111111111111"}}`, 1, StatusComplete)
	f(`[{"model":"4111111111111111"}]`, 1, StatusComplete)
	f(`{"model":["4111111111111111"]}`, 1, StatusComplete)
	padded := strings.Repeat("A/+9", 80) + "/4111111111111111"
	image := func(url string) string {
		return `{"messages":[{"content":[{"type":"image_url","image_url":{"url":"` + url + `"}}]}]}`
	}
	f(image("data:image/png;base64,"+padded), 0, StatusPartial)
	f(image("DATA:image/png;base64,"+padded), 0, StatusPartial)
	f(image("data:text/plain,"+padded), 1, StatusPartial)
	f(image("data:image/png;base64,"+padded+" "), 1, StatusPartial)
	f(image("data:;base64,4111111111111111"), 1, StatusPartial)
	f(image(strings.ReplaceAll("data:image/png;base64,"+padded, "/", `\/`)), 0, StatusPartial)
	f(`{"prompt":"data:image/png;base64,`+padded+`"}`, 0, StatusPartial)
	f(`{"prompt":"`+padded+`"}`, 1, StatusComplete)
	f(`{"messages":[{"content":[{"type":"input_audio","input_audio":{"data":"`+padded+`","format":"wav"}}]}]}`, 0, StatusPartial)
	f(`{"messages":[{"content":[{"type":"image","source":{"type":"base64","data":"`+padded+`"}}]}]}`, 0, StatusPartial)
	f(`{"messages":[{"content":[{"type":"document","source":{"type":"text","data":"4111111111111111"}}]}]}`, 1, StatusComplete)
	f(`{"messages":[{"content":[{"type":"file","file":{"file_data":"`+padded+`","filename":"a.pdf"}}]}]}`, 0, StatusPartial)
	f(`{"data":"`+padded+`"}`, 1, StatusComplete)
}

// TestScanStatus goes through the reasons for each status and their order.
func TestScanStatus(t *testing.T) {
	c := mustNew(t, each())
	f := func(want, body string) {
		t.Helper()
		if got := scanBody(c, body).ScanStatus; got != want {
			t.Errorf("%s is %s, want %s", body, got, want)
		}
	}
	f(StatusComplete, ``)
	f(StatusComplete, `{}`)
	f(StatusComplete, `{"prompt":"x"}`)
	f(StatusComplete, " {\"prompt\" : [ \"x\" , \"y\" ] }\n")
	f(StatusComplete, `{"stop_token_ids":[1,2],"logit_bias":{"50256":-100},"seed":4111111111111111}`)

	f(StatusPartial, `{"previous_response_id":"resp_1"}`)
	f(StatusComplete, `{"previous_response_id":null}`)
	f(StatusComplete, `{"metadata":{"previous_response_id":"x"}}`)
	f(StatusPartial, `{"conversation":{"id":"c"}}`)
	f(StatusPartial, `{"prompt":{"id":"stored","variables":{}}}`)
	f(StatusPartial, `{"input":[{"type":"item_reference","id":"i"}]}`)
	f(StatusPartial, `{"input":[{"content":[{"type":"input_file","file_id":"f"}]}]}`)
	f(StatusPartial, `{"tools":[{"type":"file_search","vector_store_ids":["v"]}]}`)
	f(StatusPartial, `{"messages":[{"content":[{"type":"image_url","image_url":{"url":"https://example.com/a.png"}}]}]}`)
	f(StatusPartial, `{"messages":[{"content":[{"image_url":"https://example.com/a.png"}]}]}`)
	f(StatusPartial, `{"messages":[{"content":[{"type":"image","source":{"type":"url","url":"https://example.com/a.png"}}]}]}`)
	f(StatusPartial, `{"messages":[{"content":[{"type":"image_url","uuid":"cached"}]}]}`)
	f(StatusPartial, `{"messages":[{"content":[{"type":"audio_url","audio_url":{"url":""}}]}]}`)
	f(StatusPartial, `{"messages":[{"content":[{"type":"video_url"}]}]}`)
	f(StatusPartial, `{"messages":[{"role":"assistant","audio":{"id":"audio_1"}}]}`)
	f(StatusComplete, `{"messages":[{"role":"assistant","audio":null}],"modalities":["audio"],"audio":{"voice":"x","format":"wav"}}`)
	f(StatusPartial, `{"prompt":"x","prompt_embeds":"AAAA"}`)
	f(StatusComplete, `{"prompt":"x","prompt_embeds":null}`)
	f(StatusPartial, `{"prompt":[1,2,3]}`)
	f(StatusPartial, `{"input":[[1,2],[3]]}`)
	f(StatusPartial, `{"tokens":[1]}`)
	f(StatusComplete, `{"prompt":[]}`)

	// Data and schemas of tools are no parts of the conversation.
	f(StatusComplete, `{"messages":[{"content":[{"type":"tool_use","input":{"type":"file","file_id":"x","image_url":"https://example.com","prompt_embeds":"x"}}]}]}`)
	f(StatusComplete, `{"tools":[{"function":{"parameters":{"properties":{"file_id":{"type":"string"},"image_url":{"type":"string"}}}}}]}`)
	f(StatusComplete, `{"input":[{"type":"mcp_call","arguments":{"file_id":"x"}}]}`)

	f(StatusPartial, `{"prompt":"x"`)
	f(StatusPartial, `{"prompt":"x"}}`)
	f(StatusPartial, `{"prompt":"x`)
	f(StatusPartial, `not json`)
	f(StatusPartial, `{1:"x"}`)
	f(StatusPartial, strings.Repeat("[", 2000))

	none := mustNew(t, Config{MaxBytes: 1, Budget: 1})
	if got := scanBody(none, `{"prompt":"x"}`); got.ScanStatus != StatusUnavailable {
		t.Errorf("without detectors a body is %s, want unavailable", got.ScanStatus)
	}
	if got := scanBody(none, ``); got.ScanStatus != StatusComplete {
		t.Errorf("without a body the status is %s, want complete", got.ScanStatus)
	}
}

// TestBrokenBodies checks that what isn't JSON is scanned as text.
func TestBrokenBodies(t *testing.T) {
	c := mustNew(t, each())
	for _, body := range []string{
		`{"a":"x" "b@example.com"`, `b@example.com`, `{"a":"b@example.com`, `{"a":b@example.com}`, `["x"],"b@example.com"`, `{"b@example.com"}`,
		strings.Repeat("[", 2000) + `"b@example.com"`,
	} {
		if got := scanBody(c, body); got.Findings[Email] != 1 || got.ScanStatus != StatusPartial {
			t.Errorf("%.40s: %d addresses and %s, want 1 and partial", body, got.Findings[Email], got.ScanStatus)
		}
	}
}

// TestJoinedParts checks which strings are read as one text.
func TestJoinedParts(t *testing.T) {
	c := mustNew(t, each())
	f := func(want int64, body string) {
		t.Helper()
		if got := scanBody(c, body).Findings[PaymentCard]; got != want {
			t.Errorf("%s has %d cards, want %d", body, got, want)
		}
	}
	f(1, `{"messages":[{"content":[{"type":"text","text":"4111 1111"},{"type":"text","text":"1111 1111"}]}]}`)
	f(1, `{"messages":[{"content":[{"type":"text","text":"4111 11"},{"type":"text","text":"11 1111 "},{"text":"1111"}]}]}`)
	f(1, `{"messages":[{"content":["4111 1111",{"text":"1111 1111"}]}]}`)
	f(1, `{"system":[{"text":"4111 1111"},{"text":"1111 1111"}]}`)
	f(1, `{"input":[{"content":[{"type":"input_text","text":"41111111"},{"type":"input_text","text":"11111111"}]}]}`)
	f(1, `{"messages":[{"content":[{"type":"tool_result","content":[{"text":"4111 1111"},{"text":"1111 1111"}]}]}]}`)
	f(1, `{"messages":[{"content":"[{\"text\":\"4111 1111\"},{\"text\":\"1111 1111\"}]"}]}`)
	f(0, `{"messages":[{"content":"4111 1111"},{"content":"1111 1111"}]}`)
	f(0, `{"messages":[{"content":[{"text":"4111 1111"}]},{"content":[{"text":"1111 1111"}]}]}`)
	f(0, `{"prompt":["4111 1111","1111 1111"]}`)
	f(0, `{"stop":["4111 1111"],"user":"1111 1111"}`)
	f(0, `{"messages":[{"content":[{"text":"4111 1111"},{"type":"tool_result","content":[{"text":"x"}]},{"text":"1111 1111"}]}]}`)
	// Everything else sees a line break.
	if got := scanBody(c, `{"messages":[{"content":[{"text":"ann@exam"},{"text":"ple.com"}]}]}`); len(got.Findings) != 0 {
		t.Errorf("an address is joined over two parts: %v", got.Findings)
	}
}

// TestJSONInStrings checks that a string of JSON is scanned both ways and counted
// once, and so is one inside of it, but none inside of that.
func TestJSONInStrings(t *testing.T) {
	c := mustNew(t, each())
	f := func(want int64, content string) {
		t.Helper()
		if got := scanText(c, content).Findings[Email]; got != want {
			t.Errorf("%s has %d addresses, want %d", content, got, want)
		}
	}
	f(1, `{"to":"a@example.com"}`)
	f(2, ` [{"to":"a@example.com"},"b@example.com"]`)
	f(1, `{"to":"a\u0040example.com"}`)
	f(2, `{"to":"a\u0040example.com","cc":"b\u0040example.com"}`)
	f(1, `{"to":"a@example.com"`)
	f(2, `[a@example.com] and b@example.com`)
	f(1, `{"inner":"{\"to\":\"a\\u0040example.com\"}"}`)
	f(2, `{"inner":"{\"to\":\"a\\u0040example.com\"}","to":"b\u0040example.com"}`)
	f(1, `{"content":[{"text":"x"},{"text":"{\"to\":\"a\\u0040example.com\"}"}]}`)
	deep := `{"to":"a\u0040example.com"}`
	for range 2 {
		deep = `{"inner":` + quote(deep) + `}`
	}
	f(0, deep)
	f(1, `"a@example.com"`)
	two := `{"messages":[{"content":[{"text":"{\"a\":\"a\\u0040example.com\"}"},{"text":"[\"b\\u0040example.com\"]"},{"text":"c@example.com"}]}]}`
	if got := scanBody(c, two).Findings[Email]; got != 2 {
		// The count is the higher one of the two ways: one as written, two decoded.
		t.Errorf("parts of JSON have %d addresses, want 2", got)
	}
}

// TestNumbersOfJSON checks which JSON numbers are scanned: those of data.
func TestNumbersOfJSON(t *testing.T) {
	c := mustNew(t, each())
	f := func(want int64, body string) {
		t.Helper()
		if got := scanBody(c, body).Findings[PaymentCard]; got != want {
			t.Errorf("%s has %d cards, want %d", body, got, want)
		}
	}
	f(0, `{"seed":4111111111111111}`)
	f(1, `{"messages":[{"content":[{"type":"tool_use","input":{"card":4111111111111111}}]}]}`)
	f(1, `{"messages":[{"content":"{\"card\":4111111111111111}"}]}`)
	f(0, `{"messages":[{"x":0.4111111111111111}]}`)
}

// TestTokenIDs checks that ids are decoded and their text scanned.
func TestTokenIDs(t *testing.T) {
	c := mustNew(t, each())
	decode := func(ids []uint32) (string, bool) {
		var b strings.Builder
		for _, id := range ids {
			if id > 255 {
				return "", false
			}
			b.WriteByte(byte(id))
		}
		return b.String(), true
	}
	ids := func(text string) string {
		return strings.Trim(strings.ReplaceAll(fmt.Sprint([]byte(text)), " ", ", "), "")
	}
	f := func(body string, want int64, status string) {
		t.Helper()
		got := c.Scan(context.Background(), &Request{Body: []byte(body), Decode: decode})
		if got.Findings[Email] != want || got.ScanStatus != status {
			t.Errorf("%s: %d addresses and %s, want %d and %s", body, got.Findings[Email], got.ScanStatus, want, status)
		}
	}
	one, two := ids("a@example.com"), ids("bb@example.com")
	f(`{"prompt":`+one+`}`, 1, StatusComplete)
	f(`{"prompt":[`+one+` , `+two+`]}`, 2, StatusComplete)
	f(`{"input":[`+one+`]}`, 1, StatusComplete)
	f(`{"tokens":`+one+`,"x":"c@example.com"}`, 2, StatusComplete)
	f(`{"prompt":[`+one+`,"c@example.com"]}`, 2, StatusComplete)
	f(`{"prompt":[97,300]}`, 0, StatusPartial)
	f(`{"prompt":[97,1.5,"c@example.com"]}`, 1, StatusPartial)
	f(`{"prompt":[97,"c@example.com"]}`, 1, StatusPartial)
	f(`{"prompt":[99999999999]}`, 0, StatusPartial)
	f(`{"prompt":[97`, 0, StatusPartial)
	f(`{"stop_token_ids":`+one+`}`, 0, StatusComplete)
}

// TestByteBudget checks where a scan ends and that what was found before counts.
func TestByteBudget(t *testing.T) {
	cfg := each()
	cfg.MaxBytes = 100
	c := mustNew(t, cfg)
	f := func(body string, want int64, status string) {
		t.Helper()
		if got := scanBody(c, body); got.Findings[Email] != want || got.ScanStatus != status {
			t.Errorf("%.60s…: %d addresses and %s, want %d and %s", body, got.Findings[Email], got.ScanStatus, want, status)
		}
	}
	pad := func(n int) string { return strings.Repeat(" ", n) }
	f(message("a@example.com"+pad(87)), 1, StatusComplete)
	f(message("a@example.com"+pad(88)), 1, StatusPartial)
	f(message(pad(87)+"a@example.com"), 1, StatusComplete)
	f(message(pad(88)+"a@example.com"), 1, StatusPartial) // a@example.co
	f(message(pad(95)+"a@example.com"), 0, StatusPartial)
	f(`{"prompt":["`+pad(87)+`","a@example.com","b@example.com"]}`, 1, StatusPartial)
	f(`{"messages":[{"content":[{"text":"`+pad(80)+`"},{"text":"a@example.com"},{"text":"b@example.com"}]}]}`, 1, StatusPartial)
	f(message(strings.Repeat("é", 50)), 0, StatusComplete)
	f(message(strings.Repeat("é", 51)), 0, StatusPartial)
	if got, want := c.Stats().Bytes, uint64(0); got <= want {
		t.Errorf("%d bytes are counted", got)
	}
}

// TestTimeBudget moves the clock while a body is scanned.
func TestTimeBudget(t *testing.T) {
	cfg := each()
	cfg.Budget = 50 * time.Millisecond
	body := message("a@example.com " + strings.Repeat("word ", 100_000) + "b@example.com")
	f := func(step time.Duration, want map[string]int64, status string) {
		t.Helper()
		c := mustNew(t, cfg)
		now := time.Unix(0, 0)
		c.now = func() time.Time { now = now.Add(step); return now }
		got := scanBody(c, body)
		if !maps.Equal(got.Findings, want) || got.ScanStatus != status {
			t.Errorf("%v a look: %v and %s, want %v and %s", step, got.Findings, got.ScanStatus, want, status)
		}
	}
	f(time.Microsecond, map[string]int64{Email: 2}, StatusComplete)
	f(time.Second, map[string]int64{Email: 1}, StatusTimeout)

	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if got := mustNew(t, cfg).Scan(ctx, &Request{Body: []byte(body)}); got.ScanStatus != StatusTimeout {
		t.Errorf("after the end of the context a scan is %s, want timeout", got.ScanStatus)
	}
}

// TestManySmallStrings checks that the clock is looked at where no string is long.
func TestManySmallStrings(t *testing.T) {
	for name, body := range map[string]string{
		"strings": `[` + strings.Repeat(`"",`, 10_000) + `"a@example.com"]`,
		"numbers": `[` + strings.Repeat(`1,`, 10_000) + `"a@example.com"]`,
		"lists":   `[` + strings.Repeat(`[],`, 10_000) + `"a@example.com"]`,
		"keys":    `{` + strings.Repeat(`"k":{},`, 10_000) + `"k":"a@example.com"}`,
	} {
		c := mustNew(t, each())
		now := time.Unix(0, 0)
		c.now = func() time.Time { now = now.Add(time.Minute); return now }
		if got := scanBody(c, body); got.ScanStatus != StatusTimeout || len(got.Findings) != 0 {
			t.Errorf("%s: the scan goes on to the end: %s, %v", name, got.ScanStatus, got.Findings)
		}
	}
}

// TestFoldingHeedsTheClock checks that text which NFKC makes many times longer
// does not hold a core beyond the budget.
func TestFoldingHeedsTheClock(t *testing.T) {
	c := mustNew(t, each())
	now := time.Unix(0, 0)
	c.now = func() time.Time { now = now.Add(time.Minute); return now }
	if got := scanText(c, strings.Repeat("\ufdfa", 300_000)); got.ScanStatus != StatusTimeout {
		t.Errorf("the scan is %s, want timeout", got.ScanStatus)
	}
	s := c.pool.Get().(*scan)
	if n := len(s.fold.out); n > 4*chunk {
		t.Errorf("%d bytes were folded after the end of the budget", n)
	}
}
