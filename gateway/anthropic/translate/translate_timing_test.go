package translate

import (
	"fmt"
	"strings"
	"testing"
)

// BenchmarkAppendChat translates a long conversation of many blocks.
func BenchmarkAppendChat(b *testing.B) {
	var turns []string
	for i := range 100 {
		turns = append(turns,
			fmt.Sprintf(`{"role":"user","content":[{"type":"tool_result","tool_use_id":"t%d","content":"%s"},{"type":"text","text":"and\n\"now\"?","cache_control":{"type":"ephemeral"}}]}`,
				i, strings.Repeat("some words of a result, ", 80)),
			fmt.Sprintf(`{"role":"assistant","content":[{"type":"text","text":"let me see"},{"type":"tool_use","id":"t%d","name":"read","input":{"path":"a/b/c","lines":[1,2]}}]}`, i+1))
	}
	body := []byte(`{"model":"m","max_tokens":1000,"stream":true,"system":"be brief","messages":[` + strings.Join(turns, ",") + `]}`)
	b.SetBytes(int64(len(body)))
	b.ReportAllocs()
	dst := make([]byte, 0, 2*len(body))
	var names Names
	for b.Loop() {
		if _, err := AppendChat(dst, body, ForWorker, &names); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkAppendChunk translates a chunk with a word.
func BenchmarkAppendChunk(b *testing.B) {
	t := NewTranslator("msg_r1", 1<<20)
	data := []byte(chunk(`{"content":" word"}`))
	var dst []byte
	b.ReportAllocs()
	for b.Loop() {
		var err error
		if dst, err = t.AppendChunk(dst[:0], data, testUsage); err != nil {
			b.Fatal(err)
		}
	}
}
