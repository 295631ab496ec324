package gateway

import (
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sluicegate/sluice/gateway/gatewaytest"
	"github.com/sluicegate/sluice/tenancy"
)

// TestStreamsCutAnywhere sends recorded streams through the gateway, cut in two at every
// byte: the client gets the same bytes, and the row says the same. Responses have
// TestResponseStreamCutAnywhere.
func TestStreamsCutAnywhere(t *testing.T) {
	for _, c := range []struct{ recording, path, body string }{
		{"chat_stream_usage", "/v1/chat/completions", strings.Replace(streamBody, `"stream":true`, `"stream":true,"stream_options":{"include_usage":true}`, 1)},
		{"completions_ids_stream", "/v1/completions", `{"model":"m","prompt":"hello","stream":true,"stream_options":{"include_usage":true}}`},
		{"messages_stream", "/v1/messages", `{"model":"m","max_tokens":100,"messages":[{"role":"user","content":"hello"}],"stream":true}`},
	} {
		t.Run(c.recording, func(t *testing.T) {
			t.Parallel()
			recorded, err := os.ReadFile(filepath.Join("sse", "testdata", c.recording+".sse"))
			if err != nil {
				t.Fatal(err)
			}
			stream := string(recorded)
			step := 1
			if testing.Short() {
				step = 17
			}
			var script []gatewaytest.Behaviour
			for i := 0; i <= len(stream); i += step {
				script = append(script, func(x *gatewaytest.Exchange) {
					x.StreamHead()
					x.Chunk(stream[:i])
					x.Chunk(stream[i:])
					x.End()
				})
			}
			worker := gatewaytest.NewWorker(t, script...)
			r := newRig(t, []string{worker.URL()}, allEndpoints(), withParts(func(p *Parts) { p.Log = slog.New(slog.DiscardHandler) }))
			client := r.dial()
			var first *tenancy.Row
			for i := range script {
				client.Send("POST", c.path, c.body, "Authorization: Bearer "+goodKey)
				resp, text := client.Answer()
				if resp.StatusCode != 200 || text != stream {
					t.Fatalf("cut at %d: got %d\n%s\nwant\n%s", i*step, resp.StatusCode, text, stream)
				}
				rows := r.ledger.all()
				if len(rows) != i+1 {
					t.Fatalf("cut at %d: %d rows", i*step, len(rows))
				}
				row := rows[i]
				if first == nil {
					first = row
					if row.Outcome != tenancy.OutcomeCompleted || row.InputTokens == 0 || row.OutputTokens == 0 || row.Flags.Has(tenancy.FlagEstimated) {
						t.Fatalf("row %+v", row)
					}
				}
				if row.InputTokens != first.InputTokens || row.OutputTokens != first.OutputTokens || row.Flags != first.Flags || row.Outcome != first.Outcome || row.TTFT <= 0 {
					t.Fatalf("cut at %d: row %+v, want %+v", i*step, row, first)
				}
			}
			r.idle()
		})
	}
}

// TestFirstTokenIsThatOfItsEvent holds each recorded stream back behind every one of
// its events: the first token is noted with the event that has it, and not before.
func TestFirstTokenIsThatOfItsEvent(t *testing.T) {
	for _, c := range []struct {
		recording, path, body string
		event                 int // that has the first token, from 0
	}{
		{"chat_stream_usage", "/v1/chat/completions", streamBody, 1},
		{"completions_ids_stream", "/v1/completions", `{"model":"m","prompt":"hello","stream":true}`, 0},
		{"responses_stream", "/v1/responses", `{"model":"m","input":"hello","stream":true}`, 4},
		{"messages_stream", "/v1/messages", `{"model":"m","max_tokens":100,"messages":[{"role":"user","content":"hello"}],"stream":true}`, 2},
	} {
		recorded, err := os.ReadFile(filepath.Join("sse", "testdata", c.recording+".sse"))
		if err != nil {
			t.Fatal(err)
		}
		events := strings.SplitAfter(string(recorded), "\n\n")
		for n := 1; n <= c.event+1; n++ {
			worker := gatewaytest.NewWorker(t, gatewaytest.StallAfter(events[:n]...))
			r := newRig(t, []string{worker.URL()}, allEndpoints())
			client := r.dial()
			client.Send("POST", c.path, c.body, "Authorization: Bearer "+goodKey)
			if _, err := io.ReadFull(client.Head().Body, make([]byte, len(strings.Join(events[:n], "")))); err != nil {
				t.Fatal(err)
			}
			client.Leave(gatewaytest.FIN)
			if row := r.row(); (row.TTFT > 0) != (n > c.event) {
				t.Errorf("%s: after %d events there is a first token: %v", c.recording, n, row.TTFT > 0)
			}
		}
	}
}
