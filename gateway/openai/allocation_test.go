//go:build !race

package openai

import (
	"strings"
	"testing"

	"github.com/sluicegate/sluice/gateway/wire"
	"github.com/sluicegate/sluice/gateway/wire/wiretest"
)

const ordinaryChat = `{"model":"llama-3.1-8b","messages":[{"role":"system","content":"You are a \"careful\" clerk.\n"},` +
	`{"role":"user","content":[{"type":"text","text":"Was steht in der Akte? 漢字"},{"type":"image_url","image_url":{"url":"data:image/png;base64,AAAA"}}]}],` +
	`"tools":[{"type":"function","function":{"name":"look_up","parameters":{"type":"object","properties":{"id":{"type":"string"}}}}}],` +
	`"temperature":0.7,"max_tokens":500,"stream":true,"stream_options":{"include_usage":false},"user":"u\u00e9","priority":3,"cache_salt":"mine"}`

func allocations(t *testing.T, what string, f func()) {
	t.Helper()
	f()
	if n := testing.AllocsPerRun(100, f); n != 0 {
		t.Errorf("%s makes %v allocations, want 0", what, n)
	}
}

func TestScanAllocatesNothing(t *testing.T) {
	var req wire.Request
	body := []byte(ordinaryChat)
	allocations(t, "a scan of an ordinary chat", func() {
		if err := Scan(&req, wire.Chat, body); err != nil {
			t.Fatal(err)
		}
	})
	response := []byte(`{"model":"m","stream":true,"instructions":"be brief","tools":[{"type":"web_search"},{"type":"function","name":"f","parameters":{}}],` +
		`"input":[{"role":"user","content":[{"type":"input_text","text":"hello"}]},{"type":"function_call","call_id":"c","name":"f","arguments":"{}"}]}`)
	allocations(t, "a scan of a response", func() {
		if err := Scan(&req, wire.Responses, response); err != nil {
			t.Fatal(err)
		}
	})
	ids := []byte(`{"model":"m","prompt":[` + strings.Repeat("12522,", 2000) + `7],"max_tokens":4}`)
	allocations(t, "a scan of token ids", func() {
		if err := Scan(&req, wire.Completion, ids); err != nil {
			t.Fatal(err)
		}
	})
}

func TestAppendRewriteAllocatesNothing(t *testing.T) {
	var req wire.Request
	body := []byte(ordinaryChat)
	if err := Scan(&req, wire.Chat, body); err != nil {
		t.Fatal(err)
	}
	m := wire.Mutation{Model: new("worker/é"), MaxTokens: new(int64(100)), N: new(int64(1)), CacheSalt: new("salt"), RemovePriority: true, InjectUsage: true}
	var dst []byte
	allocations(t, "a rewrite", func() { dst = AppendRewrite(dst[:0], body, &req, m) })
}

func TestStreamAllocatesNothing(t *testing.T) {
	var s Stream
	var events [][]byte
	for _, r := range wiretest.Recordings(t) {
		if r.IsStream() {
			for _, data := range eventsOf(r) {
				events = append(events, []byte(data))
			}
		}
	}
	if len(events) < 40 {
		t.Fatalf("only %d recorded events", len(events))
	}
	allocations(t, "a look at recorded events", func() {
		s.Reset()
		for _, data := range events {
			s.Observe(data)
		}
	})
}

func TestReadUsageAllocatesNothing(t *testing.T) {
	body := []byte(wiretest.Recordings(t)["chat"].ResponseBody)
	allocations(t, "the usage of an answer", func() {
		if _, err := ReadUsage(wire.Chat, body); err != nil {
			t.Fatal(err)
		}
	})
}
