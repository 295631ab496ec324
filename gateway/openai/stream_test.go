package openai

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math/big"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/sluicegate/sluice/gateway/jsonscan"
	"github.com/sluicegate/sluice/gateway/wire"
	"github.com/sluicegate/sluice/gateway/wire/wiretest"
)

func TestStreamRecordings(t *testing.T) {
	known := func(in, out int64) wire.Usage { return wire.Usage{Input: in, Output: out, Known: true} }
	f := func(name, flags string, usage wire.Usage, complete bool, deltas int64) {
		t.Run(name, func(t *testing.T) {
			t.Helper()
			r, ok := wiretest.Recordings(t)[name]
			if !ok {
				t.Fatal("not recorded")
			}
			var s Stream
			var got []string
			for _, data := range eventsOf(r) {
				got = append(got, s.Observe([]byte(data)).String())
			}
			if strings.Join(got, " ") != flags {
				t.Errorf("flags:\n got %s\nwant %s", strings.Join(got, " "), flags)
			}
			if s.Usage() != usage || s.Complete() != complete || s.ContentDeltas() != deltas {
				t.Errorf("usage %+v, complete %v, %d deltas, want %+v, %v, %d", s.Usage(), s.Complete(), s.ContentDeltas(), usage, complete, deltas)
			}
			if !s.Seen().Has(wire.Done | wire.FirstToken | wire.FinishReason) {
				t.Errorf("seen are %v", s.Seen())
			}
		})
	}
	f("chat_stream_nousage", " first+content content content content content content+finish done", wire.Usage{}, false, 6)
	f("chat_stream_usage", " first+content content content content content content+finish usage+usage-chunk done", known(10, 6), true, 6)
	f("chat_stream_continuous", "usage first+content+usage content+usage content+usage content+usage content+usage content+usage+finish usage+usage-chunk done",
		known(10, 6), true, 6)
	f("chat_n2_logprobs", "  first+content content content content+finish content content+finish done", wire.Usage{}, false, 6)
	f("completions_ids_stream", "first+content content content content+finish usage+usage-chunk done", known(4, 4), true, 4)
}

func TestStreamObserve(t *testing.T) {
	f := func(data, want string) {
		t.Helper()
		var s Stream
		got := s.Observe([]byte(data))
		if got.String() != want {
			t.Errorf("Observe(%s) = %v, want %s", data, got, want)
		}
		if s.Seen() != got {
			t.Errorf("seen are %v after %v", s.Seen(), got)
		}
	}
	f("", "")
	f(" \n", "")
	f("[DONE]", "done")
	f(" [DONE] ", "done")
	f("[DONE]x", "malformed")
	f("[]", "malformed")
	f("5", "malformed")
	f("{", "malformed")
	f(`{"choices":[]} x`, "malformed")
	f("{\"x\":\"\xff\"}", "malformed")
	f(`{"":"0000000000000000","object":"0`, "malformed")
	f(`{"object":"\x"}`, "malformed")
	f(`{}`, "")
	f(`{"choices":null,"usage":null,"error":null}`, "")

	// First token.
	choice := func(choice, want string) {
		t.Helper()
		f(`{"choices":[`+choice+`]}`, want)
	}
	delta := func(delta, want string) {
		t.Helper()
		choice(`{"delta":`+delta+`,"index":1}`, want)
	}
	delta(`{"role":"assistant","content":""}`, "")
	delta(`{"content":null}`, "")
	delta(`{"content":"a"}`, "first+content")
	delta(`{"c\u006fntent":"\u0061"}`, "first+content")
	delta(`{"content":" "}`, "first+content")
	delta(`{"reasoning":"a","content":""}`, "first+content")
	delta(`{"reasoning_content":"a"}`, "first+content")
	delta(`{"refusal":"a"}`, "first+content")
	delta(`{"tool_calls":[{"index":0}]}`, "first+content")
	delta(`{"tool_calls":[]}`, "")
	delta(`{"tool_calls":null,"x":"a"}`, "")
	delta(`null`, "")
	choice(`{"text":"a"}`, "first+content")
	choice(`{"text":"","finish_reason":"stop"}`, "finish")
	choice(`{"finish_reason":"length","text":"a"}`, "first+content+finish")
	choice(`{"finish_reason":null,"x":{"text":"a","delta":{"content":"a"}}}`, "")
	choice(`{"logprobs":{"content":[{"token":"a"}]},"delta":{}}`, "")
	choice(`{"delta":{}},{"delta":{"content":"a"}}`, "first+content")
	choice(`5`, "")
	f(`{"x":[{"choices":[{"text":"a"}]}],"delta":{"content":"a"}}`, "")

	// Usage.
	f(`{"choices":[],"usage":{"prompt_tokens":1,"completion_tokens":2}}`, "usage+usage-chunk")
	f(`{"usage":{"completion_tokens":2,"prompt_tokens":1},"choices":[]}`, "usage+usage-chunk")
	f(`{"choices":[],"usage":null}`, "usage-chunk")
	f(`{"choices":[]}`, "")
	f(`{"choices":[],"usage":{"prompt_tokens":-1,"completion_tokens":2}}`, "usage-chunk")
	f(`{"choices":[],"usage":"many"}`, "usage-chunk")
	f(`{"usage":{"prompt_tokens":1,"completion_tokens":2}}`, "usage")
	f(`{"choices":[{"text":"a"}],"usage":{"prompt_tokens":1,"completion_tokens":2}}`, "first+content+usage")

	// Errors.
	f(`{"error":{"message":"x","code":400}}`, "error")
	f(`{"error":"x"}`, "error")
	f(`{"object":"error","message":"x"}`, "error")
	f(`{"object":"chat.completion.chunk"}`, "")
}

func TestStreamLastValueWins(t *testing.T) {
	var s Stream
	f := func(usage string, want wire.Usage, complete bool) {
		t.Helper()
		s.Observe([]byte(usage))
		if s.Usage() != want || s.Complete() != complete {
			t.Errorf("after %s: %+v, complete %v, want %+v, %v", usage, s.Usage(), s.Complete(), want, complete)
		}
	}
	chunk := func(usage string) string { return `{"choices":[{"index":0}],"usage":` + usage + `}` }
	f(`{"choices":[]}`, wire.Usage{}, false)
	f(chunk(`{"prompt_tokens":10,"completion_tokens":0,"prompt_tokens_details":{"cached_tokens":8}}`),
		wire.Usage{Input: 10, Cached: 8, CachedKnown: true, Known: true}, false)
	f(chunk(`{"prompt_tokens":10,"completion_tokens":5,"prompt_tokens_details":null,"completion_tokens_details":{"reasoning_tokens":2}}`),
		wire.Usage{Input: 10, Cached: 8, Output: 5, Reasoning: 2, CachedKnown: true, Known: true}, false)
	f(chunk(`null`), wire.Usage{Input: 10, Cached: 8, Output: 5, Reasoning: 2, CachedKnown: true, Known: true}, false)
	f(chunk(`{"prompt_tokens":10,"completion_tokens":-5}`), wire.Usage{Input: 10, Cached: 8, Output: 5, Reasoning: 2, CachedKnown: true, Known: true}, false)
	f(`{"choices":[],"usage":{"prompt_tokens":10,"completion_tokens":6,"prompt_tokens_details":{"cached_tokens":0}}}`,
		wire.Usage{Input: 10, Output: 6, Reasoning: 2, CachedKnown: true, Known: true}, true)
	f(chunk(`{"prompt_tokens":10,"completion_tokens":7,"prompt_tokens_details":{"cached_tokens":9},"completion_tokens_details":{"reasoning_tokens":5}}`),
		wire.Usage{Input: 10, Cached: 9, Output: 7, Reasoning: 5, CachedKnown: true, Known: true}, false)
	f(chunk(`{"prompt_tokens":8,"completion_tokens":4}`), wire.Usage{Input: 8, Output: 4, Known: true}, false)
	s.Reset()
	if s != (Stream{}) {
		t.Errorf("after a reset: %+v", s)
	}
}

func TestStreamFirstTokenOnce(t *testing.T) {
	var s Stream
	for i, want := range []string{"", "first+content", "content", "content"} {
		data := fmt.Sprintf(`{"choices":[{"text":%q}]}`, strings.Repeat("a", i))
		if got := s.Observe([]byte(data)).String(); got != want {
			t.Errorf("event %d is %s, want %s", i, got, want)
		}
	}
	if s.ContentDeltas() != 3 {
		t.Errorf("%d deltas, want 3", s.ContentDeltas())
	}
}

// referenceChunk is what an event is by the standard library's reading.
func referenceChunk(data []byte) (flags wire.Flags, deltas int64, usage wire.Usage) {
	var doc map[string]any
	read := json.NewDecoder(bytes.NewReader(data))
	read.UseNumber() // a float64 cannot hold each number
	if err := read.Decode(&doc); err != nil || doc == nil || !json.Valid(data) {
		return wire.Malformed, 0, wire.Usage{}
	}
	str := func(v any) bool { s, ok := v.(string); return ok && s != "" }
	choices, isArray := doc["choices"].([]any)
	for _, item := range choices {
		choice, _ := item.(map[string]any)
		delta, _ := choice["delta"].(map[string]any)
		calls, _ := delta["tool_calls"].([]any)
		if str(choice["text"]) || str(delta["content"]) || str(delta["reasoning"]) || str(delta["reasoning_content"]) ||
			str(delta["refusal"]) || len(calls) > 0 {
			flags |= wire.Content
			deltas++
		}
		if _, ok := choice["finish_reason"].(string); ok {
			flags |= wire.FinishReason
		}
	}
	if doc["error"] != nil || doc["object"] == "error" {
		flags |= wire.StreamError
	}
	if _, told := doc["usage"]; told && isArray && len(choices) == 0 {
		flags |= wire.UsageChunk
	}
	if usage = referenceUsage(doc["usage"]); usage.Known {
		flags |= wire.HasUsage
	}
	return flags, deltas, usage
}

func referenceUsage(v any) wire.Usage {
	doc, _ := v.(map[string]any)
	count := func(v any) (int64, bool) {
		text, _ := v.(json.Number)
		n, ok := new(big.Rat).SetString(text.String())
		if !ok || !n.IsInt() || n.Sign() < 0 || n.Cmp(big.NewRat(jsonscan.MaxCount, 1)) > 0 {
			return 0, false
		}
		return n.Num().Int64(), true
	}
	detail := func(v any, key string) (int64, bool) {
		m, _ := v.(map[string]any)
		return count(m[key])
	}
	in, okIn := count(doc["prompt_tokens"])
	out, okOut := count(doc["completion_tokens"])
	if !okIn || !okOut {
		return wire.Usage{}
	}
	u := wire.Usage{Input: in, Output: out, Known: true}
	if n, ok := detail(doc["prompt_tokens_details"], "cached_tokens"); ok && n <= in {
		u.Cached, u.CachedKnown = n, true
	}
	if n, ok := detail(doc["completion_tokens_details"], "reasoning_tokens"); ok && n <= out {
		u.Reasoning = n
	}
	return u
}

func checkObserve(t interface {
	Helper()
	Fatalf(string, ...any)
}, data []byte) {
	t.Helper()
	want, deltas, usage := referenceChunk(data)
	if want.Has(wire.Content) {
		want |= wire.FirstToken
	}
	var s Stream
	if got := s.Observe(data); got != want || s.ContentDeltas() != deltas || s.Usage() != usage {
		t.Fatalf("%s is %v with %d deltas and %+v, want %v with %d and %+v", data, got, s.ContentDeltas(), s.Usage(), want, deltas, usage)
	}
}

func TestStreamAgainstStandardOnRecordings(t *testing.T) {
	seen := 0
	for _, r := range wiretest.Recordings(t) {
		if !r.IsStream() {
			continue
		}
		for _, data := range eventsOf(r) {
			if data != "[DONE]" {
				checkObserve(t, []byte(data))
				seen++
			}
		}
	}
	if seen < 35 {
		t.Errorf("only %d recorded events", seen)
	}
}

func TestStreamAgainstStandard(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		checkObserve(t, []byte(drawChunk(t)))
	})
}

// drawChunk draws an event's data: any key order, escapes in keys, keys twice,
// values of the wrong type.
func drawChunk(t *rapid.T) string {
	junk := rapid.SampledFrom([]string{`null`, `5`, `""`, `"x"`, `[]`, `{}`, `true`, `[{"content":"x"}]`, `{"content":"x","prompt_tokens":1}`})
	object := func(label string, members map[string]func() string, most int) string {
		var names []string
		for _, name := range []string{"choices", "usage", "error", "object", "delta", "text", "finish_reason", "index", "content", "role",
			"reasoning", "reasoning_content", "refusal", "tool_calls", "prompt_tokens", "completion_tokens", "total_tokens",
			"prompt_tokens_details", "completion_tokens_details", "cached_tokens", "reasoning_tokens", "Content"} {
			if members[name] != nil {
				names = append(names, name)
			}
		}
		var parts []string
		for _, name := range rapid.SliceOfN(rapid.SampledFrom(names), 0, most).Draw(t, label) {
			value := members[name]()
			if rapid.IntRange(0, 9).Draw(t, "junk") == 0 {
				value = junk.Draw(t, "junk value")
			}
			parts = append(parts, drawKey(t, name)+": "+value)
		}
		return "{" + strings.Join(parts, " , ") + "}"
	}
	text := func() string { return wiretest.DrawString(t, "text") }
	count := func() string {
		return rapid.SampledFrom([]string{"0", "1", "10", "10.0", "1e3", "-1", "1.5", "null", "1e30"}).Draw(t, "count")
	}
	array := func(label string, item func() string) func() string {
		return func() string {
			var items []string
			for range rapid.IntRange(0, 3).Draw(t, label) {
				items = append(items, item())
			}
			return "[" + strings.Join(items, ",") + "]"
		}
	}
	delta := func() string {
		return object("delta", map[string]func() string{
			"role": text, "content": text, "reasoning": text, "reasoning_content": text, "refusal": text, "Content": text,
			"tool_calls": array("calls", func() string { return "{}" }),
		}, 3)
	}
	usage := func() string {
		return object("usage", map[string]func() string{
			"prompt_tokens": count, "completion_tokens": count, "total_tokens": count,
			"prompt_tokens_details": func() string { return object("in", map[string]func() string{"cached_tokens": count}, 2) },
			"completion_tokens_details": func() string {
				return object("out", map[string]func() string{"reasoning_tokens": count}, 2)
			},
		}, 6)
	}
	choice := func() string {
		return object("choice", map[string]func() string{"delta": delta, "text": text, "index": count, "finish_reason": text}, 4)
	}
	return object("chunk", map[string]func() string{
		"choices": array("choices", choice), "usage": usage, "error": func() string { return junk.Draw(t, "error") },
		"object": func() string {
			return rapid.SampledFrom([]string{`"error"`, `"\u0065rror"`, `"chunk"`}).Draw(t, "object")
		},
	}, 5)
}

func FuzzStream(f *testing.F) {
	for _, r := range wiretest.Recordings(f) {
		if r.IsStream() {
			for _, data := range eventsOf(r) {
				f.Add([]byte(data))
			}
		}
	}
	f.Add([]byte(`{"choices":[],"usage":{"prompt_tokens":1e1,"completion_tokens":2.0,"prompt_tokens_details":{"cached_tokens":3}}}`))
	f.Add([]byte(`{"choices":[],"usage":{"prompt_tokens":1e700,"completion_tokens":2}}`))
	f.Add([]byte(`{"error":{"message":"x"},"object":"error","choices":[{"text":"\ud800"}]}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		var s Stream
		flags := s.Observe(data)
		if !json.Valid(data) {
			if flags&^(wire.Malformed|wire.Done) != 0 {
				t.Fatalf("%q is no JSON but is %v", data, flags)
			}
			return
		}
		if flags.Has(wire.Malformed) || flags.Has(wire.Done) {
			return // Not UTF-8, too deep, no object.
		}
		checkObserve(t, data)
	})
}
