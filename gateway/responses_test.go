package gateway

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/sluicegate/sluice/gateway/gatewaytest"
	"github.com/sluicegate/sluice/tenancy"
)

const (
	responseBody       = `{"model":"m","input":"hello there","max_output_tokens":4}`
	responseStreamBody = `{"model":"m","input":"hello there","max_output_tokens":4,"stream":true}`
)

// recordedResponse is the stream of a real engine, and its events.
func recordedResponse(t testing.TB) (text string, events []string) {
	t.Helper()
	b, err := os.ReadFile("testdata/responses_stream.sse")
	if err != nil {
		t.Fatal(err)
	}
	text = string(b)
	for event := range strings.SplitAfterSeq(text, "\n\n") {
		if event != "" {
			events = append(events, event)
		}
	}
	return text, events
}

// TestResponseStreamCutAnywhere: wherever the worker's bytes are cut, the client gets
// the same ones, and the row the same tokens. The recording is cut once at every place.
func TestResponseStreamCutAnywhere(t *testing.T) {
	text, _ := recordedResponse(t)
	cut := make(chan int, 1)
	worker := gatewaytest.NewWorker(t, func(x *gatewaytest.Exchange) {
		i := <-cut
		x.StreamHead()
		x.Chunk(text[:i])
		x.Chunk(text[i:])
		x.End()
	})
	r := newRig(t, []string{worker.URL()}, allEndpoints())
	conn := r.dial()
	for i := 1; i < len(text); i++ {
		cut <- i
		conn.Send("POST", "/v1/responses", responseStreamBody, "Authorization: Bearer "+goodKey)
		resp, got := conn.Answer()
		if resp.StatusCode != 200 || got != text {
			t.Fatalf("cut at %d: got %d %s", i, resp.StatusCode, got)
		}
	}
	r.idle()
	for _, row := range r.ledger.all() {
		if row.InputTokens != 10 || row.OutputTokens != 4 || row.CachedTokens != 0 || row.Flags != tenancy.FlagStream || row.TTFT <= 0 {
			t.Fatalf("row %+v", row)
		}
	}
	if body := string(worker.Next(t).Body); strings.Contains(body, "stream_options") {
		t.Errorf("the worker was asked for usage: %s", body)
	}
}

// TestResponseFirstToken: the first token is the first delta, not what opens the answer.
func TestResponseFirstToken(t *testing.T) {
	_, events := recordedResponse(t)
	open := make(chan struct{})
	worker := gatewaytest.NewWorker(t, gatewaytest.Gate(open, events[:4], events[4:]))
	r := newRig(t, []string{worker.URL()}, allEndpoints())
	stream := gatewaytest.NewEventReader(r.post("/v1/responses", responseStreamBody).Head().Body)
	for range 4 {
		if _, err := stream.Next(); err != nil {
			t.Fatal(err)
		}
	}
	opened := time.Now()
	close(open)
	if rest, err := stream.All(); err != nil || len(rest) != len(events)-4 {
		t.Fatalf("%d events follow, %v", len(rest), err)
	}
	row := r.row()
	if least := opened.Sub(row.Start); row.TTFT < least {
		t.Errorf("the first token came after %v, the worker was let go on after %v", row.TTFT, least)
	}
}

// TestResponseStreamFailures: a stream that breaks off ends with one event that holds the
// error in both forms and the next number, and with nothing after it.
func TestResponseStreamFailures(t *testing.T) {
	_, events := recordedResponse(t)
	for _, c := range []struct {
		name   string
		worker gatewaytest.Behaviour
		sent   int // whole events that come before the error
		code   string
		output int64
	}{
		{"cut off", gatewaytest.DropAfter(gatewaytest.RST, events[:6]...), 6, "upstream_error", 2},
		{"cut off in an event", gatewaytest.DropAfter(gatewaytest.FIN, append(events[:5:5], events[5][:40])...), 5, "upstream_error", 1},
		{"ended without its mark", gatewaytest.Stream(events[:11]...), 11, "upstream_error", 4},
		{"an error of the worker's", gatewaytest.Stream(append(events[:5:5],
			`data: {"error":{"message":"secret words of the worker","type":"InternalServerError","code":500}}`+"\n\n", events[11])...), 5, "upstream_error", 1},
		{"a named error", gatewaytest.Stream(append(events[:5:5],
			"event: error\n"+`data: {"type":"error","code":"x","message":"secret words of the worker"}`+"\n\n")...), 5, "upstream_error", 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			worker := gatewaytest.NewWorker(t, c.worker)
			r := newRig(t, []string{worker.URL()}, allEndpoints())
			conn := r.post("/v1/responses", responseStreamBody)
			got, err := gatewaytest.NewEventReader(conn.Head().Body).All()
			if err != nil || len(got) != c.sent+1 {
				t.Fatalf("%d events, want %d and an error (%v)", len(got), c.sent, err)
			}
			for i, ev := range got[:c.sent] {
				if ev.Raw != events[i] {
					t.Errorf("event %d is %q, want %q", i, ev.Raw, events[i])
				}
			}
			last := got[c.sent]
			for _, want := range []string{
				`{"type":"error","code":"` + c.code + `","message":"`, `","param":null,"sequence_number":` + fmt.Sprint(c.sent) + `,"error":{"type":"server_error","code":"` + c.code + `"`,
			} {
				if last.Name != "error" || !strings.Contains(last.Data, want) || strings.Contains(last.Data, "secret") {
					t.Errorf("the last event is %q, want %q in it", last.Raw, want)
				}
			}
			conn.Closed()
			row := r.row()
			if row.ErrorCode != c.code || row.OutputTokens != c.output || !row.Flags.Has(tenancy.FlagEstimated) {
				t.Errorf("row %+v", row)
			}
		})
	}
}

// TestResponseIncomplete: an answer that its limit has cut is complete.
func TestResponseIncomplete(t *testing.T) {
	for _, end := range []string{"response.completed", "response.incomplete", "response.failed"} {
		worker := gatewaytest.NewWorker(t, gatewaytest.Stream(
			"event: response.created\ndata: {\"type\":\"response.created\",\"sequence_number\":0,\"response\":{\"id\":\"resp_1\",\"usage\":null}}\n\n",
			"event: "+end+"\ndata: {\"type\":\""+end+"\",\"sequence_number\":1,\"response\":{\"id\":\"resp_1\",\"status\":\"x\",\"usage\":{\"input_tokens\":7,\"output_tokens\":3,\"input_tokens_details\":{\"cached_tokens\":5},\"output_tokens_details\":{\"reasoning_tokens\":2}}}}\n\n"))
		r := newRig(t, []string{worker.URL()}, allEndpoints())
		status, text, err := read(t, r.post("/v1/responses", responseStreamBody))
		if status != 200 || err != nil || strings.Contains(text, "event: error") {
			t.Fatalf("got %d %s %v", status, text, err)
		}
		row := r.row()
		if row.InputTokens != 7 || row.CachedTokens != 5 || row.OutputTokens != 3 || row.ReasoningTokens != 2 || row.Outcome != tenancy.OutcomeCompleted {
			t.Errorf("%s: row %+v", end, row)
		}
	}
}

// TestStateThatIsNotHere: what would need stored responses is refused by name, and no
// worker hears of it.
func TestStateThatIsNotHere(t *testing.T) {
	worker := answering(t)
	r := newRig(t, []string{worker.URL()}, allEndpoints())
	for _, c := range []struct{ member, param string }{
		{`"previous_response_id":"resp_1"`, "previous_response_id"},
		{`"previous\u005fresponse_id":"resp_1"`, "previous_response_id"},
		{`"background":true`, "background"},
		{`"prompt":{"id":"p"}`, "prompt"},
		{`"conversation":"c"`, "conversation"},
	} {
		resp, text := r.post("/v1/responses", `{"model":"m","input":"x",`+c.member+`}`).Answer()
		wantError(t, resp, text, 400, "response_store_unavailable")
		if !strings.Contains(text, `"param":"`+c.param+`"`) {
			t.Errorf("%s: %s", c.member, text)
		}
	}
	for _, c := range []struct{ method, target string }{
		{"GET", "/v1/responses/resp_1"}, {"DELETE", "/v1/responses/resp_1"}, {"GET", "/v1/responses/resp_1/input_items"}, {"POST", "/v1/responses/resp_1/cancel"},
	} {
		conn := r.dial()
		conn.Send(c.method, c.target, "", "Authorization: Bearer "+goodKey)
		resp, text := conn.Answer()
		wantError(t, resp, text, 404, "response_store_unavailable")
	}
	for _, member := range []string{`"store":true`, `"previous_response_id":null`, `"background":false`, `"prompt":null`} {
		if resp, text := r.post("/v1/responses", `{"model":"m","input":"x",`+member+`}`).Answer(); resp.StatusCode != 200 {
			t.Errorf("%s: got %d %s", member, resp.StatusCode, text)
		}
	}
	for _, target := range []string{"/v1/responses/", "/v1/responses/a b", "/v1/responses/resp.1", "/v1/responses/" + strings.Repeat("x", 129), "/v1/responses/r/", "/v1/responses/r/items", "/v1/responses/r/cancel/x", "/v1/responses/%72"} {
		conn := r.dial()
		conn.Send("GET", strings.ReplaceAll(target, " ", "+"), "", "Authorization: Bearer "+goodKey)
		resp, text := conn.Answer()
		wantError(t, resp, text, 404, "unknown_url")
	}
	if n := len(worker.Seen()); n != 4 {
		t.Errorf("the worker got %d requests, want 4", n)
	}
	r.idle()
}
