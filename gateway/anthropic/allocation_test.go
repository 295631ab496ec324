//go:build !race

package anthropic

import (
	"strings"
	"testing"

	"github.com/sluicegate/sluice/gateway/wire"
)

const ordinary = `{"model":"llama-3.1-8b","max_tokens":500,"system":[{"type":"text","text":"You are a \"careful\" clerk.\n","cache_control":{"type":"ephemeral"}}],` +
	`"messages":[{"role":"user","content":[{"type":"text","text":"Was steht in der Akte? 漢字"},{"type":"image","source":{"type":"base64","media_type":"image/png","data":"AAAA"}}]},` +
	`{"role":"assistant","content":[{"type":"tool_use","id":"t1","name":"look_up","input":{"id":"7"}}]},` +
	`{"role":"user","content":[{"type":"tool_result","tool_use_id":"t1","content":[{"type":"text","text":"leer"}]}]}],` +
	`"tools":[{"name":"look_up","input_schema":{"type":"object","properties":{"id":{"type":"string"}}}}],` +
	`"temperature":0.7,"stream":true,"metadata":{"user_id":"u\u00e9"},"priority":3,"cache_salt":"mine"}`

func allocations(t *testing.T, what string, f func()) {
	t.Helper()
	f()
	if n := testing.AllocsPerRun(100, f); n != 0 {
		t.Errorf("%s makes %v allocations, want 0", what, n)
	}
}

func TestScanAndRewriteAllocateNothing(t *testing.T) {
	var req wire.Request
	body := []byte(ordinary)
	m := wire.Mutation{Model: new("worker/é"), MaxTokens: new(int64(100)), CacheSalt: new("salt"), RemovePriority: true}
	var dst []byte
	allocations(t, "a scan", func() {
		if err := (Codec{}).Scan(&req, wire.Messages, body); err != nil {
			t.Fatal(err)
		}
	})
	allocations(t, "a rewrite", func() { dst = Codec{}.AppendRewrite(dst[:0], body, &req, m) })
}

func TestStreamAllocatesNothing(t *testing.T) {
	var names, data [][]byte
	for e := range strings.SplitSeq(strings.TrimSuffix(string(recordedStream(t)), "\n\n"), "\n\n") {
		name, d, _ := strings.Cut(e, "\n")
		names, data = append(names, []byte(strings.TrimPrefix(name, "event: "))), append(data, []byte(strings.TrimPrefix(d, "data: ")))
	}
	var s Stream
	allocations(t, "observing a stream", func() {
		s = Stream{}
		for i := range data {
			s.Observe(names[i], data[i])
		}
	})
}
