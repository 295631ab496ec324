//go:build cgo && !notokenizers

package tokenize

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// conversationBody is a chat body of about size bytes in turns of 8 KB. The text
// is different for every seed, so that no segment is known.
func conversationBody(b testing.TB, size, seed int) []byte {
	b.Helper()
	var messages []map[string]string
	for turn := 0; size > 0; turn++ {
		n := min(size, 8<<10)
		size -= n
		var text strings.Builder
		for i := 0; text.Len() < n; i++ {
			fmt.Fprintf(&text, "In paragraph %d of turn %d the report no. %d says: the invoice was paid on time. ", i, turn, seed)
		}
		role := "user"
		if turn%2 == 1 {
			role = "assistant"
		}
		messages = append(messages, map[string]string{"role": role, "content": text.String()})
	}
	body, err := json.Marshal(map[string]any{"model": "m", "messages": messages})
	if err != nil {
		b.Fatal(err)
	}
	return body
}

// BenchmarkAppend measures a conversation that was never seen (cold), the same
// one again (repeated), and one that grew by a short turn (next turn).
func BenchmarkAppend(b *testing.B) {
	for _, model := range []string{"qwen3", "gemma3"} {
		tok := load(b, model)
		for _, size := range []int{2 << 10, 32 << 10, 220 << 10} {
			name := fmt.Sprintf("%s/%dKB/", model, size>>10)
			b.Run(name+"cold", func(b *testing.B) {
				bodies := make([][]byte, 64)
				for i := range bodies {
					bodies[i] = conversationBody(b, size, i)
				}
				cold := &Tokenizer{native: tok.native, now: tok.now, gate: tok.gate}
				var p Prompts
				b.SetBytes(int64(size))
				for i := 0; b.Loop(); i++ {
					p.Reset()
					if err := cold.Append(b.Context(), &p, Chat, bodies[i%len(bodies)]); err != nil {
						b.Fatal(err)
					}
				}
			})
			b.Run(name+"repeated", func(b *testing.B) {
				body := conversationBody(b, size, -1)
				var p Prompts
				if err := tok.Append(b.Context(), &p, Chat, body); err != nil {
					b.Fatal(err)
				}
				b.ReportAllocs()
				b.SetBytes(int64(size))
				for b.Loop() {
					p.Reset()
					if err := tok.Append(b.Context(), &p, Chat, body); err != nil {
						b.Fatal(err)
					}
				}
			})
		}
	}
}

// BenchmarkBurst measures how long a prompt of 220 KB that was never seen takes
// when so many come at once (ns/prompt, all of them over their number: flat
// as long as the processors are what limits it), and how long a
// short message takes beside them (p50-short-ms, p99-short-ms).
func BenchmarkBurst(b *testing.B) {
	tok := load(b, "qwen3")
	short := []byte(`{"messages":[{"role":"user","content":"a short message that was never seen"}]}`)
	for _, n := range []int{1, 20, 200} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			// Without a memo, so that a few bodies are enough.
			cold := &Tokenizer{native: tok.native, now: tok.now, gate: NewGate(0)}
			bodies := make([][]byte, 8)
			for i := range bodies {
				bodies[i] = conversationBody(b, 220<<10, i)
			}
			var waits []time.Duration
			for b.Loop() {
				var wg sync.WaitGroup
				done := make(chan struct{})
				for i := range n {
					wg.Go(func() {
						var p Prompts
						if err := cold.Append(b.Context(), &p, Chat, bodies[i%len(bodies)]); err != nil {
							b.Error(err)
						}
					})
				}
				go func() { wg.Wait(); close(done) }()
				for running := true; running; {
					select {
					case <-done:
						running = false
					case <-time.After(5 * time.Millisecond):
						var p Prompts
						start := time.Now()
						if err := cold.Append(b.Context(), &p, Chat, short); err != nil {
							b.Error(err)
						}
						waits = append(waits, time.Since(start))
					}
				}
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*n), "ns/prompt")
			slices.Sort(waits)
			if len(waits) > 0 {
				b.ReportMetric(waits[len(waits)/2].Seconds()*1000, "p50-short-ms")
				b.ReportMetric(waits[len(waits)*99/100].Seconds()*1000, "p99-short-ms")
			}
		})
	}
}
