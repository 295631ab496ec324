package gateway

import (
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/sluicegate/sluice/gateway/gatewaytest"
	"github.com/sluicegate/sluice/tenancy"
)

// read returns an answer's events as one text, and how the body ended.
func read(t testing.TB, c *gatewaytest.Client) (status int, text string, err error) {
	t.Helper()
	resp := c.Head()
	b, err := io.ReadAll(resp.Body)
	return resp.StatusCode, string(b), err
}

// TestStream relays a stream unchanged, but for the usage chunk that the
// client didn't ask for.
func TestStream(t *testing.T) {
	for _, asked := range []bool{false, true} {
		worker := gatewaytest.NewWorker(t, gatewaytest.Chat("a", "b"))
		r := newRig(t, []string{worker.URL()})
		body := streamBody
		if asked {
			body = strings.Replace(body, `"stream":true`, `"stream":true,"stream_options":{"include_usage":true}`, 1)
		}
		status, text, err := read(t, r.chat(body))
		if status != 200 || err != nil {
			t.Fatalf("got %d %v", status, err)
		}
		if strings.Contains(text, `"choices":[]`) != asked || !strings.HasSuffix(text, "data: [DONE]\n\n") {
			t.Errorf("asked for usage %v, got %s", asked, text)
		}
		if !strings.Contains(string(worker.Next(t).Body), `"include_usage":true`) {
			t.Error("the worker was not asked for usage")
		}
		row := r.row()
		if row.InputTokens != 10 || row.OutputTokens != 2 || row.TTFT <= 0 || row.Flags.Has(tenancy.FlagEstimated) || !row.Flags.Has(tenancy.FlagStream) {
			t.Errorf("row %+v", row)
		}
		if s := r.meter.last(); s.UpstreamTTFT <= 0 || s.UpstreamTTFT > s.Row.TTFT {
			t.Errorf("summary %+v", s)
		}
	}
}

// TestUsageChunkWithoutUsage: a usage chunk is what the client didn't ask for even if its
// worker has nothing to say in it, and is the client's where it did. The estimate counts.
func TestUsageChunkWithoutUsage(t *testing.T) {
	const chunk = `data: {"choices":[],"usage":null}` + "\n\n"
	worker := gatewaytest.NewWorker(t, gatewaytest.Stream(gatewaytest.ContentEvent("a", "stop"), chunk, gatewaytest.DoneEvent))
	for _, asked := range []bool{false, true} {
		r := newRig(t, []string{worker.URL()})
		body := streamBody
		if asked {
			body = strings.Replace(body, `"stream":true`, `"stream":true,"stream_options":{"include_usage":true}`, 1)
		}
		status, text, err := read(t, r.chat(body))
		if status != 200 || err != nil || strings.Contains(text, chunk) != asked {
			t.Errorf("asked for usage %v, got %d %v %s", asked, status, err, text)
		}
		if row := r.row(); !row.Flags.Has(tenancy.FlagEstimated) || row.OutputTokens != 1 {
			t.Errorf("row %+v", row)
		}
	}
}

// TestStreamInPieces gives the same bytes however the worker cuts them.
func TestStreamInPieces(t *testing.T) {
	worker := gatewaytest.NewWorker(t, gatewaytest.Trickle(1, 0, "a", "b"), gatewaytest.Trickle(7, 0, "a", "b"), gatewaytest.Trickle(1000, 0, "a", "b"))
	r := newRig(t, []string{worker.URL()})
	var first string
	for i := range 3 {
		status, text, err := read(t, r.chat(streamBody))
		if status != 200 || err != nil {
			t.Fatalf("got %d %v", status, err)
		}
		if i == 0 {
			first = text
		}
		if text != first || !strings.HasSuffix(text, "data: [DONE]\n\n") {
			t.Errorf("run %d: %s", i, text)
		}
	}
}

// TestEventsAreFlushedAtOnce sees the first events while the worker still holds
// the rest back.
func TestEventsAreFlushedAtOnce(t *testing.T) {
	open := make(chan struct{})
	worker := gatewaytest.NewWorker(t, gatewaytest.Gate(open,
		[]string{gatewaytest.RoleEvent, gatewaytest.ContentEvent("a", "")},
		[]string{gatewaytest.ContentEvent("b", "stop"), gatewaytest.DoneEvent}))
	r := newRig(t, []string{worker.URL()})
	events := gatewaytest.NewEventReader(r.chat(streamBody).Head().Body)
	for range 2 {
		if _, err := events.Next(); err != nil {
			t.Fatal(err)
		}
	}
	close(open)
	if rest, err := events.All(); err != nil || len(rest) != 2 {
		t.Fatalf("got %v %v", rest, err)
	}
	if row := r.row(); !row.Flags.Has(tenancy.FlagEstimated) || row.OutputTokens != 2 {
		t.Errorf("row %+v", row)
	}
}

// TestStreamInHTTP10 ends with the connection, which is the only framing that
// version has for it.
func TestStreamInHTTP10(t *testing.T) {
	for _, secure := range []bool{false, true} {
		worker := gatewaytest.NewWorker(t, gatewaytest.Stream(gatewaytest.ContentEvent("a", "stop"), gatewaytest.DoneEvent), gatewaytest.DropAfter(gatewaytest.FIN, gatewaytest.RoleEvent))
		opts := []rigOption{}
		if secure {
			opts = append(opts, withTLS())
		}
		r := newRig(t, []string{worker.URL()}, opts...)
		get := func() string {
			c := r.dial()
			text := gatewaytest.RequestText("POST", "/v1/chat/completions", streamBody, "Authorization: Bearer "+goodKey, "Connection: keep-alive")
			if err := c.Write(strings.Replace(text, "HTTP/1.1", "HTTP/1.0", 1)); err != nil {
				t.Fatal(err)
			}
			return c.Closed()
		}
		head, body, _ := strings.Cut(get(), "\r\n\r\n")
		if !strings.HasPrefix(head, "HTTP/1.1 200") || strings.Contains(head, "Transfer-Encoding") || !strings.Contains(head, "Connection: close") ||
			strings.Contains(head, "Content-Length") || !strings.Contains(head, "X-Request-Id") || !strings.Contains(head, "Date") {
			t.Errorf("head %s", head)
		}
		if body != gatewaytest.ContentEvent("a", "stop")+gatewaytest.DoneEvent {
			t.Errorf("body %s", body)
		}
		if row := r.row(); row.Outcome != tenancy.OutcomeCompleted || row.TTFT <= 0 {
			t.Errorf("row %+v", row)
		}
		_, body, _ = strings.Cut(get(), "\r\n\r\n")
		if !strings.HasPrefix(body, gatewaytest.RoleEvent+`data: {"error"`) {
			t.Errorf("body %s", body)
		}
		r.idle()
	}
}

// TestStreamFailures: whatever goes wrong after the first event ends with one
// error event, no terminal mark and a closed connection.
func TestStreamFailures(t *testing.T) {
	events := []string{gatewaytest.RoleEvent, gatewaytest.ContentEvent("a", "")}
	half := append(append([]string(nil), events...), `data: {"id":"half`)
	for _, c := range []struct {
		name   string
		worker gatewaytest.Behaviour
		code   string
	}{
		{"dropped with FIN", gatewaytest.DropAfter(gatewaytest.FIN, events...), "upstream_error"},
		{"dropped with RST", gatewaytest.DropAfter(gatewaytest.RST, events...), "upstream_error"},
		{"dropped in an event", gatewaytest.DropAfter(gatewaytest.FIN, half...), "upstream_error"},
		{"half a chunk", gatewaytest.HalfChunk(gatewaytest.FIN, events...), "upstream_error"},
		{"no terminal mark", gatewaytest.WithoutDone("a", "b"), "upstream_error"},
		{"error inside", gatewaytest.ErrorInStream(500, "a"), "upstream_error"},
		{"silence", gatewaytest.StallAfter(events...), "upstream_timeout"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			worker := gatewaytest.NewWorker(t, c.worker)
			r := newRig(t, []string{worker.URL()}, withConfig(func(cfg *Config) {
				if c.code == "upstream_timeout" { // else a worker that is late would be silent
					cfg.StreamIdle = 200 * time.Millisecond
				}
			}))
			client := r.chat(streamBody)
			resp := client.Head()
			b, err := io.ReadAll(resp.Body)
			text := string(b)
			if resp.StatusCode != 200 || err != nil {
				t.Fatalf("got %d %v %s", resp.StatusCode, err, text)
			}
			if !strings.Contains(text, `"code":"`+c.code+`"`) || strings.Contains(text, "[DONE]") || strings.Contains(text, "half") {
				t.Errorf("got %s", text)
			}
			if rest := client.Closed(); rest != "" {
				t.Errorf("more bytes after the end: %q", rest)
			}
			row := r.row()
			if row.Outcome != tenancy.OutcomeUpstreamError || !row.Flags.Has(tenancy.FlagEstimated) || row.InputTokens == 0 {
				t.Errorf("row %+v", row)
			}
			if len(worker.Seen()) != 1 {
				t.Errorf("the worker was asked %d times", len(worker.Seen()))
			}
		})
	}
}

// TestNothingFollowsABrokenStream: the connection ends with it, even if the next
// request has come already.
func TestNothingFollowsABrokenStream(t *testing.T) {
	worker := gatewaytest.NewWorker(t, gatewaytest.DropAfter(gatewaytest.FIN, gatewaytest.RoleEvent), gatewaytest.Chat("a"))
	r := newRig(t, []string{worker.URL()})
	c := r.dial()
	auth := "Authorization: Bearer " + goodKey
	if err := c.Write(gatewaytest.RequestText("POST", "/v1/chat/completions", streamBody, auth) +
		gatewaytest.RequestText("POST", "/v1/chat/completions", chatBody, auth)); err != nil {
		t.Fatal(err)
	}
	if _, body := c.Answer(); !strings.Contains(body, `"code":"upstream_error"`) {
		t.Errorf("got %s", body)
	}
	if rest := c.Closed(); rest != "" {
		t.Errorf("got %q after the stream", rest)
	}
	r.row()
}

// TestRequestErrorInsideAStream is the client's fault: its worker is not blamed.
func TestRequestErrorInsideAStream(t *testing.T) {
	for status, blamed := range map[int]int{400: 0, 500: 1} {
		worker := gatewaytest.NewWorker(t, gatewaytest.ErrorInStream(status, "a"))
		r := newRig(t, []string{worker.URL()})
		if _, text, err := read(t, r.chat(streamBody)); err != nil || !strings.Contains(text, `"error":{`) {
			t.Fatalf("got %v %s", err, text)
		}
		r.row()
		if r.health.failures != blamed {
			t.Errorf("status %d: health was told of %d failures, want %d", status, r.health.failures, blamed)
		}
		if r.health.successes != 0 {
			t.Errorf("status %d: health was told of a success", status)
		}
	}
}

// TestWholeAnswersAreSuccesses: the health keeper is told of an answer once it
// is whole.
func TestWholeAnswersAreSuccesses(t *testing.T) {
	worker := gatewaytest.NewWorker(t, gatewaytest.Chat("a", "b"))
	r := newRig(t, []string{worker.URL()})
	for i, body := range []string{streamBody, chatBody} {
		if _, text, err := read(t, r.chat(body)); err != nil {
			t.Fatalf("got %v %s", err, text)
		}
		if r.health.successes != i+1 || r.health.failures != 0 {
			t.Errorf("after %d answers health was told of %d successes and %d failures", i+1, r.health.successes, r.health.failures)
		}
	}
}

// TestFailuresBeforeTheAnswer says which failures are tried on another worker
// and what the client is told when none is left.
func TestFailuresBeforeTheAnswer(t *testing.T) {
	for _, c := range []struct {
		name   string
		worker gatewaytest.Behaviour
		stream bool
		retry  bool
		status int
		code   string
	}{
		{"503", gatewaytest.Fail(503), true, true, 503, "overloaded"},
		{"429", gatewaytest.Fail(429), false, true, 503, "overloaded"},
		{"closed before the header", gatewaytest.CloseBeforeHead(gatewaytest.FIN), true, true, 502, "upstream_error"},
		{"reset before the header", gatewaytest.CloseBeforeHead(gatewaytest.RST), false, true, 502, "upstream_error"},
		{"dropped after the header", gatewaytest.DropAfter(gatewaytest.FIN), true, true, 502, "upstream_error"},
		{"not HTTP", gatewaytest.NotHTTP(), true, true, 502, "upstream_error"},
		{"500", gatewaytest.Fail(500), true, false, 502, "upstream_error"},
		{"401", gatewaytest.Fail(401), true, false, 502, "upstream_error"},
		{"silence", gatewaytest.Stall(), true, false, 504, "upstream_timeout"},
		{"silence, not streaming", gatewaytest.Stall(), false, false, 504, "upstream_timeout"},
		{"silence after the header", gatewaytest.HeadOnly(), true, false, 504, "upstream_timeout"},
		{"wrong content type", gatewaytest.WrongContentType(), true, false, 502, "upstream_error"},
		{"wrong content type, not streaming", gatewaytest.WrongContentType(), false, false, 502, "upstream_error"},
		{"huge headers", gatewaytest.HugeHeaders(1 << 20), true, false, 502, "upstream_error"},
		{"half an event", gatewaytest.DropAfter(gatewaytest.FIN, `data: {"id`), true, false, 502, "upstream_error"},
		{"half a body", gatewaytest.HalfBody(gatewaytest.FIN, gatewaytest.ChatBody("a", gatewaytest.Usage(1, 1))), false, false, 502, "upstream_error"},
		{"body that is no JSON", gatewaytest.JSON(200, `{"a":`), false, false, 502, "upstream_error"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			bad := gatewaytest.NewWorker(t, c.worker)
			short := withConfig(func(cfg *Config) {
				if c.status == 504 { // else a worker that is late would be silent
					cfg.FirstByteStream, cfg.FirstByteUnary, cfg.StreamIdle = time.Second, time.Second, time.Second
				}
			})
			body := chatBody
			if c.stream {
				body = streamBody
			}
			alone := newRig(t, []string{bad.URL()}, short)
			resp, text := alone.chat(body).Answer()
			wantError(t, resp, text, c.status, c.code)
			if row := alone.row(); row.Outcome != tenancy.OutcomeUpstreamError || row.OutputTokens != 0 {
				t.Errorf("row %+v", row)
			}

			// Beside a good worker, which is picked second, the
			// client sees success exactly if a second try is right.
			good := gatewaytest.NewWorker(t, gatewaytest.Chat("a"))
			both := newRig(t, []string{bad.URL(), good.URL()}, short)
			resp, text = both.chat(body).Answer()
			if c.retry && resp.StatusCode != 200 || !c.retry && resp.StatusCode != c.status {
				t.Errorf("beside a good worker: got %d %s, retry wanted: %v", resp.StatusCode, text, c.retry)
			}
			if row := both.row(); c.retry && (row.Attempts != 2 || row.Worker != "w2" || row.InputTokens != 10) {
				t.Errorf("row %+v", row)
			}
		})
	}
}

// TestUnreachableWorker is retried elsewhere.
func TestUnreachableWorker(t *testing.T) {
	good := gatewaytest.NewWorker(t, gatewaytest.Chat("a"))
	r := newRig(t, []string{"http://127.0.0.1:1", good.URL()})
	if resp, text := r.chat(chatBody).Answer(); resp.StatusCode != 200 {
		t.Fatalf("got %d %s", resp.StatusCode, text)
	}
	if row := r.row(); row.Attempts != 2 {
		t.Errorf("row %+v", row)
	}
	if r.health.failures != 1 {
		t.Errorf("health was told of %d failures, want 1", r.health.failures)
	}
}

// TestFailuresOfManyKinds: overloaded is only what all workers were that were
// asked.
func TestFailuresOfManyKinds(t *testing.T) {
	down, full := gatewaytest.CloseBeforeHead(gatewaytest.FIN), gatewaytest.Fail(503)
	for _, c := range []struct {
		workers []gatewaytest.Behaviour
		status  int
		code    string
	}{
		{[]gatewaytest.Behaviour{full, full, full}, 503, "overloaded"},
		{[]gatewaytest.Behaviour{full, full, full, full}, 503, "overloaded"},
		{[]gatewaytest.Behaviour{down, full, full}, 502, "upstream_error"},
		{[]gatewaytest.Behaviour{down, full, full, full}, 502, "upstream_error"},
		{[]gatewaytest.Behaviour{full, full, down, full}, 502, "upstream_error"},
	} {
		var urls []string
		for _, b := range c.workers {
			urls = append(urls, gatewaytest.NewWorker(t, b).URL())
		}
		r := newRig(t, urls)
		resp, body := r.chat(chatBody).Answer()
		wantError(t, resp, body, c.status, c.code)
		if row := r.row(); row.Attempts != 3 {
			t.Errorf("%d attempts, want 3", row.Attempts)
		}
	}
}

func TestNoWorker(t *testing.T) {
	r := newRig(t, nil)
	resp, body := r.chat(chatBody).Answer()
	wantError(t, resp, body, 503, "unavailable")
	if resp.Header.Get("Retry-After") == "" {
		t.Error("a 503 without Retry-After")
	}
	r.row()
}

// TestStaleConnection reuses a kept connection that the worker closes on the
// next request, and replaces it without a second attempt.
func TestStaleConnection(t *testing.T) {
	worker := gatewaytest.NewWorker(t, gatewaytest.Chat("a"), gatewaytest.CloseBeforeHead(gatewaytest.FIN), gatewaytest.Chat("b"))
	r := newRig(t, []string{worker.URL()})
	for range 2 {
		if resp, text := r.chat(chatBody).Answer(); resp.StatusCode != 200 {
			t.Fatalf("got %d %s", resp.StatusCode, text)
		}
	}
	rows := r.ledger.all()
	if len(rows) != 2 || rows[1].Attempts != 1 {
		t.Errorf("rows %+v", rows)
	}
	seen := worker.Seen()
	if len(seen) != 3 || seen[0].Conn != seen[1].Conn || seen[1].Conn == seen[2].Conn {
		t.Errorf("connections used: %v", seen)
	}
}

// TestAnsweredConnectionIsNotStale: a kept connection on which a part of an
// answer came has been heard, so the request isn't sent again on it.
func TestAnsweredConnectionIsNotStale(t *testing.T) {
	for name, second := range map[string]gatewaytest.Behaviour{
		"huge headers": gatewaytest.HugeHeaders(1 << 20),
		"not HTTP":     gatewaytest.NotHTTP(),
		"half a header": func(x *gatewaytest.Exchange) {
			x.Raw("HTTP/1.1 200 OK\r\nContent-Le")
			x.Drop(gatewaytest.FIN)
		},
	} {
		t.Run(name, func(t *testing.T) {
			worker := gatewaytest.NewWorker(t, gatewaytest.Chat("a"), second, gatewaytest.Chat("b"))
			r := newRig(t, []string{worker.URL()})
			r.chat(chatBody).Answer()
			resp, body := r.chat(chatBody).Answer()
			wantError(t, resp, body, 502, "upstream_error")
			if n := len(worker.Seen()); n != 2 {
				t.Errorf("the worker was asked %d times, want 2", n)
			}
		})
	}
}

// TestBadUsage charges an estimate where the worker's usage can't be true.
func TestBadUsage(t *testing.T) {
	for _, usage := range []string{`null`, `{"prompt_tokens":-1,"completion_tokens":2}`, `"many"`, `{"prompt_tokens":999999,"completion_tokens":1}`} {
		worker := gatewaytest.NewWorker(t, gatewaytest.BadUsage(usage, "a", "b"))
		r := newRig(t, []string{worker.URL()})
		if status, text, err := read(t, r.chat(streamBody)); status != 200 || err != nil {
			t.Fatalf("%s: got %d %v %s", usage, status, err, text)
		}
		row := r.row()
		if !row.Flags.Has(tenancy.FlagEstimated) || row.InputTokens <= 0 || row.OutputTokens != 2 {
			t.Errorf("%s: row %+v", usage, row)
		}
	}
}

// TestBadUsageOfABrokenStream charges an estimate as well where the stream ends
// before its terminal mark.
func TestBadUsageOfABrokenStream(t *testing.T) {
	for _, usage := range []string{gatewaytest.Usage(999999, 1), gatewaytest.Usage(10, 999999)} {
		worker := gatewaytest.NewWorker(t, gatewaytest.DropAfter(gatewaytest.FIN,
			gatewaytest.RoleEvent, gatewaytest.ContentEvent("a", "stop"), gatewaytest.UsageEvent(usage)))
		r := newRig(t, []string{worker.URL()})
		if status, text, err := read(t, r.chat(streamBody)); status != 200 || err != nil {
			t.Fatalf("%s: got %d %v %s", usage, status, err, text)
		}
		row := r.row()
		if !row.Flags.Has(tenancy.FlagEstimated) || row.InputTokens <= 0 || row.InputTokens > 100 || row.OutputTokens != 1 {
			t.Errorf("%s: row %+v", usage, row)
		}
	}
}

// TestHalfAChunkIsNoSilence: a worker that has sent a part of a chunk when a
// keep-alive comment comes due has all the time of a stream for the rest.
func TestHalfAChunkIsNoSilence(t *testing.T) {
	event := gatewaytest.ContentEvent("a", "stop")
	worker := gatewaytest.NewWorker(t, func(x *gatewaytest.Exchange) {
		x.StreamHead()
		chunk := fmt.Sprintf("%x\r\n%s\r\n", len(event), event)
		x.Pause(60 * time.Millisecond)
		x.Raw(chunk[:1])
		x.Pause(200 * time.Millisecond)
		x.Raw(chunk[1:])
		x.Chunk(gatewaytest.DoneEvent)
		x.End()
	})
	r := newRig(t, []string{worker.URL()}, withConfig(func(cfg *Config) { cfg.KeepAliveComment = 50 * time.Millisecond }))
	status, text, err := read(t, r.chat(streamBody))
	if status != 200 || err != nil || !strings.HasSuffix(text, event+gatewaytest.DoneEvent) {
		t.Errorf("got %d %v %s", status, err, text)
	}
}

// TestNoEndBehindTheMark: a worker that sends on behind the terminal mark, for ever,
// withholds neither the mark nor the row, and the connection is not used again.
func TestNoEndBehindTheMark(t *testing.T) {
	worker := gatewaytest.NewWorker(t, func(x *gatewaytest.Exchange) {
		x.StreamHead()
		x.Chunk(gatewaytest.ContentEvent("a", "stop") + gatewaytest.UsageEvent(gatewaytest.Usage(10, 1)) + gatewaytest.DoneEvent)
		for x.Pause(time.Millisecond) {
			x.Chunk(gatewaytest.ContentEvent("late", ""))
		}
	})
	r := newRig(t, []string{worker.URL()})
	status, text, err := read(t, r.chat(streamBody))
	if status != 200 || err != nil || !strings.HasSuffix(text, gatewaytest.DoneEvent) || strings.Contains(text, "late") {
		t.Errorf("got %d %v %s", status, err, text)
	}
	if row := r.row(); row.Outcome != tenancy.OutcomeCompleted || row.InputTokens != 10 || row.OutputTokens != 1 {
		t.Errorf("row %+v", row)
	}
}

// TestKeepAliveComments covers a long prefill.
func TestKeepAliveComments(t *testing.T) {
	open := make(chan struct{})
	worker := gatewaytest.NewWorker(t, gatewaytest.Gate(open, nil, []string{gatewaytest.ContentEvent("a", "stop"), gatewaytest.DoneEvent}))
	r := newRig(t, []string{worker.URL()}, withConfig(func(cfg *Config) { cfg.KeepAliveComment = 20 * time.Millisecond }))
	body := r.chat(streamBody).Head().Body
	buf := make([]byte, len(": keep-alive\n\n"))
	for range 3 {
		if _, err := io.ReadFull(body, buf); err != nil || string(buf) != ": keep-alive\n\n" {
			t.Fatalf("got %q %v", buf, err)
		}
	}
	close(open)
	rest, err := io.ReadAll(body)
	if err != nil || !strings.HasSuffix(string(rest), "data: [DONE]\n\n") {
		t.Fatalf("got %q %v", rest, err)
	}
	if row := r.row(); row.Outcome != tenancy.OutcomeCompleted {
		t.Errorf("row %+v", row)
	}
}
