package openai

import (
	"bytes"
	"encoding/json"
	"fmt"
	"testing"

	"github.com/sluicegate/sluice/gateway/wire"
	"github.com/sluicegate/sluice/gateway/wire/wiretest"
)

func BenchmarkScan(b *testing.B) {
	for _, kib := range []int{1, 32, 256} {
		for _, text := range []string{"plain words of a prompt. ", "漢字と仮名 ", `\"quoted\" and\n`} {
			content := bytes.Repeat([]byte(text), kib<<10/len(text))
			body := append(append([]byte(`{"model":"m","messages":[{"role":"user","content":"`), content...), `"}],"stream":true}`...)
			if !json.Valid(body) {
				b.Fatal("the body is no JSON")
			}
			b.Run(fmt.Sprintf("%dKiB/%.5q", kib, text), func(b *testing.B) {
				var req wire.Request
				b.SetBytes(int64(len(body)))
				b.ReportAllocs()
				for b.Loop() {
					if err := Scan(&req, wire.Chat, body); err != nil {
						b.Fatal(err)
					}
				}
			})
		}
	}
}

func BenchmarkObserve(b *testing.B) {
	data := []byte(eventsOf(wiretest.Recordings(b)["chat_stream_continuous"])[2])
	var s Stream
	b.SetBytes(int64(len(data)))
	b.ReportAllocs()
	for b.Loop() {
		s.Observe(data)
	}
}
