package gateway

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/sluicegate/sluice/gateway/gatewaytest"
	"github.com/sluicegate/sluice/policy"
	"github.com/sluicegate/sluice/tenancy"
)

const (
	messagesBody   = `{"model":"m","max_tokens":4,"messages":[{"role":"user","content":"hello"}]}`
	messagesStream = `{"model":"m","max_tokens":4,"messages":[{"role":"user","content":"hello"}],"stream":true}`
	countBody      = `{"model":"m","messages":[{"role":"user","content":"hello"}]}`
)

// messages sends a request to a route of the Messages API on a connection of its own.
func (r *rig) messages(path, body string, header ...string) *gatewaytest.Client {
	c := r.dial()
	c.Send("POST", path, body, append([]string{"X-Api-Key: " + goodKey}, header...)...)
	return c
}

// recordedMessages are the exchanges with a real engine on its messages routes.
func recordedMessages(t testing.TB) map[string]string {
	t.Helper()
	b, err := os.ReadFile("anthropic/testdata/vllm-0.32.0.json")
	if err != nil {
		t.Fatal(err)
	}
	var list []struct {
		Name string `json:"name"`
		Body string `json:"response_body"`
	}
	if err := json.Unmarshal(b, &list); err != nil {
		t.Fatal(err)
	}
	byName := map[string]string{}
	for _, r := range list {
		byName[r.Name] = r.Body
	}
	return byName
}

// events cuts a stream of events that end with LF.
func events(stream string) []string {
	list := strings.SplitAfter(stream, "\n\n")
	return list[:len(list)-1]
}

// wantMessagesError checks an answer's status, error type and error code.
func wantMessagesError(t testing.TB, resp *http.Response, body string, status int, kind, code string) {
	t.Helper()
	var e struct {
		Type  string
		Error struct {
			Type, Message string
			Details       struct {
				Code string `json:"error_code"`
			}
		}
		RequestID string `json:"request_id"`
	}
	if err := json.Unmarshal([]byte(body), &e); err != nil {
		t.Fatalf("%s: %v", body, err)
	}
	if resp.StatusCode != status || e.Type != "error" || e.Error.Type != kind || e.Error.Details.Code != code || e.Error.Message == "" {
		t.Errorf("got %d %s, want %d, %s and %s", resp.StatusCode, body, status, kind, code)
	}
	if id := resp.Header.Get("Request-Id"); id == "" || id != e.RequestID || id != resp.Header.Get("X-Request-Id") {
		t.Errorf("the request id is %q in the header and %q in the body", id, e.RequestID)
	}
}

// TestMessagesPassUnchanged gives the client the recorded bytes and the ledger what
// they say, and the worker the client's own body.
func TestMessagesPassUnchanged(t *testing.T) {
	recorded := recordedMessages(t)
	for _, c := range []struct {
		name, path, body, answer string
		input, output            int64
		flags                    tenancy.Flags
	}{
		{"whole", "/v1/messages", messagesBody, recorded["messages"], 10, 4, tenancy.FlagCachedUnknown},
		{"stream", "/v1/messages?beta=true", messagesStream, recorded["messages_stream"], 10, 4, tenancy.FlagCachedUnknown | tenancy.FlagStream},
		{"count", "/v1/messages/count_tokens?beta=true", countBody, recorded["count_tokens"], 0, 0, 0},
		{"count with stream", "/v1/messages/count_tokens", strings.TrimSuffix(countBody, "}") + `,"stream":true}`, recorded["count_tokens"], 0, 0, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			behaviour := gatewaytest.JSON(200, c.answer)
			if c.flags&tenancy.FlagStream != 0 {
				behaviour = gatewaytest.Stream(events(c.answer)...)
			}
			worker := gatewaytest.NewWorker(t, behaviour)
			r := newRig(t, []string{worker.URL()}, allEndpoints())
			r.decider.set(func(_ context.Context, in *policy.Input) *policy.Decision {
				d := allow(in)
				d.CacheIsolation = isolationNone
				return d
			})
			client := r.messages(c.path, c.body, "Anthropic-Version: 2026-10-21", "Anthropic-Beta: a,b", "Anthropic-Beta: c", "Cookie: x=y")
			resp, body := client.Answer()
			if resp.StatusCode != 200 || body != c.answer {
				t.Fatalf("got %d %s\nwant %s", resp.StatusCode, body, c.answer)
			}
			if id := resp.Header.Get("Request-Id"); id == "" || id != resp.Header.Get("X-Request-Id") {
				t.Errorf("headers %v", resp.Header)
			}
			seen := worker.Next(t)
			path, _, _ := strings.Cut(c.path, "?")
			if seen.Target != path || string(seen.Body) != c.body {
				t.Errorf("the worker got %s %s", seen.Target, seen.Body)
			}
			h := seen.Header
			if h.Get("Anthropic-Version") != "2026-10-21" || h.Get("Anthropic-Beta") != "a,b,c" || h.Get("Cookie") != "" || h.Get("X-Api-Key") != "" || h.Get("Authorization") != "Bearer "+workerKey {
				t.Errorf("the worker got %v", h)
			}
			row := r.row()
			if row.InputTokens != c.input || row.OutputTokens != c.output || row.Flags != c.flags || row.Dialect != "anthropic" || row.Outcome != tenancy.OutcomeCompleted {
				t.Errorf("row %+v", row)
			}
			if want := map[string]string{"/v1/messages": "messages", "/v1/messages/count_tokens": "count_tokens"}[path]; row.Operation != want {
				t.Errorf("operation %s, want %s", row.Operation, want)
			}
			if (row.TTFT > 0) != (c.name == "stream") {
				t.Errorf("first token after %v", row.TTFT)
			}
		})
	}
}

// TestMessagesStreamInPieces gives the same bytes, usage and first token however the
// worker's stream is cut.
func TestMessagesStreamInPieces(t *testing.T) {
	stream := recordedMessages(t)["messages_stream"]
	pieces := func(n int) gatewaytest.Behaviour {
		return func(x *gatewaytest.Exchange) {
			x.StreamHead()
			for rest := stream; rest != ""; {
				k := min(n, len(rest))
				x.Chunk(rest[:k])
				rest = rest[k:]
			}
			x.End()
		}
	}
	halves := func(at int) gatewaytest.Behaviour {
		return func(x *gatewaytest.Exchange) {
			x.StreamHead()
			x.Chunk(stream[:at])
			x.Chunk(stream[at:])
			x.End()
		}
	}
	behaviours := []gatewaytest.Behaviour{pieces(1), pieces(2), pieces(7), pieces(1000)}
	for at := 1; at < len(stream); at += 13 {
		behaviours = append(behaviours, halves(at))
	}
	worker := gatewaytest.NewWorker(t, behaviours...)
	r := newRig(t, []string{worker.URL()}, allEndpoints())
	for i := range behaviours {
		status, text, err := read(t, r.messages("/v1/messages", messagesStream))
		if status != 200 || err != nil || text != stream {
			t.Fatalf("run %d: %d %v %s", i, status, err, text)
		}
	}
	r.idle()
	for i, row := range r.ledger.all() {
		if row.InputTokens != 10 || row.OutputTokens != 4 || row.TTFT <= 0 || row.Flags.Has(tenancy.FlagEstimated) {
			t.Errorf("run %d: row %+v", i, row)
		}
	}
}

// TestMessagesRewrite changes what the gateway must change, and no other byte.
func TestMessagesRewrite(t *testing.T) {
	worker := gatewaytest.NewWorker(t, gatewaytest.JSON(200, recordedMessages(t)["messages"]))
	r := newRig(t, []string{worker.URL()}, allEndpoints())
	const body = `{ "model":"m-alias", "priority":9,"max_tokens": 4,"messages":[{"role":"user","content":[{"type":"text","text":"\u0068i"}]}],"top_k":1e0,"cache_salt":"mine"}`
	if resp, answer := r.messages("/v1/messages", body).Answer(); resp.StatusCode != 200 {
		t.Fatalf("%d %s", resp.StatusCode, answer)
	}
	sent := string(worker.Next(t).Body)
	salt := sent[strings.LastIndex(sent, `:"`)+2 : len(sent)-2]
	want := strings.NewReplacer(`"m-alias"`, `"m"`, ` "priority":9,`, ``, `"mine"`, `"`+salt+`"`).Replace(body)
	if sent != want || len(salt) != 43 {
		t.Errorf("the worker got %s\nwant           %s", sent, want)
	}
}

// TestMessagesPolicies shows policies what a messages request is.
func TestMessagesPolicies(t *testing.T) {
	worker := gatewaytest.NewWorker(t)
	r := newRig(t, []string{worker.URL()}, allEndpoints())
	var in policy.RequestInput
	r.decider.set(func(_ context.Context, i *policy.Input) *policy.Decision {
		in = i.Request
		return &policy.Decision{Status: 403, Message: "no", Revision: "sha256:test"}
	})
	for path, body := range map[string]string{
		"/v1/messages": `{"model":"m","max_tokens":7,"system":"s","metadata":{"user_id":"u"},"tools":[{"name":"look","input_schema":{}}],
			"messages":[{"role":"user","content":[{"type":"tool_result","tool_use_id":"x","content":[{"type":"image","source":{}}]}]}]}`,
		"/v1/messages/count_tokens": `{"model":"m","metadata":{"user_id":"u"},"tools":[{"name":"look","input_schema":{}}],
			"messages":[{"role":"user","content":[{"type":"image","source":{}}]}]}`,
	} {
		resp, answer := r.messages(path, body).Answer()
		wantMessagesError(t, resp, answer, 403, "permission_error", "policy_denied")
		operation := strings.ReplaceAll(path[strings.LastIndex(path, "/")+1:], "-", "_")
		if in.Operation != operation || in.Dialect != "anthropic" || in.Path != path || in.Model != "m" || in.MessageCount != 1 || in.ImageCount != 1 ||
			fmt.Sprint(in.ToolNames) != "[look]" || in.User == nil || *in.User != "u" || in.Stream || in.N != 1 || in.Prompts != 1 {
			t.Errorf("%s: policies saw %+v", path, in)
		}
		if (in.MaxTokens != nil) != (path == "/v1/messages") {
			t.Errorf("%s: max_tokens %v", path, in.MaxTokens)
		}
	}
	if len(worker.Seen()) > 0 {
		t.Error("a worker was called")
	}
}

// TestMessagesRefusals has every refusal in the API's own words.
func TestMessagesRefusals(t *testing.T) {
	f := func(behaviour gatewaytest.Behaviour, body string, status int, kind, code string, header ...string) *http.Response {
		t.Helper()
		var workers []string
		if behaviour != nil {
			// A second attempt finds the same.
			workers = []string{gatewaytest.NewWorker(t, behaviour, behaviour, behaviour).URL()}
		}
		r := newRig(t, workers, allEndpoints())
		resp, answer := r.messages("/v1/messages", body, header...).Answer()
		wantMessagesError(t, resp, answer, status, kind, code)
		if strings.Contains(answer, "secret") || strings.Contains(answer, "tiny") {
			t.Errorf("the worker's words reach the client: %s", answer)
		}
		r.idle()
		return resp
	}
	const invalid = "invalid_request_error"
	f(nil, messagesBody, 401, "authentication_error", "invalid_api_key", "Authorization: Bearer other-key-than-the-first")
	f(nil, `{`, 400, invalid, "invalid_json")
	f(nil, countBody, 400, invalid, "invalid_request")
	f(nil, strings.Replace(messagesBody, `"m"`, `"secret"`, 1), 404, "not_found_error", "model_not_found")
	f(nil, messagesBody, 503, "api_error", "unavailable")
	if resp := f(gatewaytest.Fail(503), messagesBody, 529, "overloaded_error", "overloaded"); resp.Header.Get("Retry-After") == "" {
		t.Error("an overloaded model gives no Retry-After")
	}
	f(gatewaytest.Fail(429), messagesStream, 529, "overloaded_error", "overloaded")
	f(gatewaytest.Fail(500), messagesBody, 502, "api_error", "upstream_error")
	f(gatewaytest.Fail(401), messagesBody, 502, "api_error", "upstream_error")
	f(gatewaytest.JSON(404, recordedMessages(t)["err_messages_model"]), messagesBody, 502, "api_error", "upstream_error")
	f(gatewaytest.JSON(404, `{"detail":"Not Found"}`), messagesBody, 404, "not_found_error", "endpoint_not_supported")
	f(gatewaytest.JSON(400, `{"type":"error","error":{"type":"BadRequestError","message":"that tool is unknown"}}`), messagesStream, 400, invalid, "invalid_request")
	f(gatewaytest.JSON(400, `{"type":"error","error":{"type":"BadRequestError","message":"This model's maximum context length is 5 tokens."}}`), messagesBody,
		400, invalid, "context_length_exceeded")
	f(gatewaytest.JSON(422, `{"error":{"message":"secret","code":422}}`), messagesBody, 400, invalid, "invalid_request")
	f(gatewaytest.JSON(200, `nonsense`), messagesBody, 502, "api_error", "upstream_error")
	f(gatewaytest.JSON(200, recordedMessages(t)["messages"]), messagesStream, 502, "api_error", "upstream_error")

	r := newRig(t, nil, allEndpoints())
	c := r.dial()
	c.Send("PUT", "/v1/messages", "{}", "X-Api-Key: "+goodKey)
	resp, answer := c.Answer()
	wantMessagesError(t, resp, answer, 405, invalid, "method_not_allowed")
	if resp.Header.Get("Allow") != "OPTIONS, POST" {
		t.Errorf("Allow: %s", resp.Header.Get("Allow"))
	}
	c = r.dial()
	c.Send("POST", "/v1/messages/", messagesBody, "X-Api-Key: "+goodKey)
	resp, answer = c.Answer()
	wantMessagesError(t, resp, answer, 404, "not_found_error", "unknown_url")
}

// TestMessagesStreamFailures ends a stream that fails with one error event and no
// end that clients could take for success.
func TestMessagesStreamFailures(t *testing.T) {
	all := events(recordedMessages(t)["messages_stream"])
	begun := all[:4] // two tokens
	for _, c := range []struct {
		name          string
		worker        gatewaytest.Behaviour
		kind, code    string
		input, output int64
		estimated     bool
	}{
		{"dropped", gatewaytest.DropAfter(gatewaytest.RST, begun...), "api_error", "upstream_error", 10, 2, true},
		{"dropped in an event", gatewaytest.DropAfter(gatewaytest.FIN, append(append([]string{}, begun...), "event: content_block_delta\ndata: {\"type\":\"cont")...), "api_error", "upstream_error", 10, 2, true},
		{"ended without its mark", gatewaytest.Stream(begun...), "api_error", "upstream_error", 10, 2, true},
		{"ended just before its mark", gatewaytest.Stream(all[:len(all)-1]...), "api_error", "upstream_error", 10, 4, false},
		{
			"the worker's own error", gatewaytest.Stream(append(append([]string{}, begun...),
				"event: error\ndata: {\"type\":\"error\",\"error\":{\"type\":\"internal_error\",\"message\":\"secret\"}}\n\n", all[len(all)-1])...),
			"api_error", "upstream_error", 10, 2, true,
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			worker := gatewaytest.NewWorker(t, c.worker)
			r := newRig(t, []string{worker.URL()}, allEndpoints())
			client := r.messages("/v1/messages", messagesStream)
			resp := client.Head()
			reader := gatewaytest.NewEventReader(resp.Body)
			var last gatewaytest.Event
			n := 0
			for {
				ev, err := reader.Next()
				if errors.Is(err, io.EOF) {
					break
				}
				if err != nil {
					t.Fatal(err)
				}
				last = ev
				n++
				if ev.Name == "message_stop" || strings.Contains(ev.Raw, "secret") {
					t.Errorf("the client got %q", ev.Raw)
				}
			}
			var body struct {
				Type  string
				Error struct {
					Type    string
					Details struct {
						Code string `json:"error_code"`
					}
				}
				RequestID string `json:"request_id"`
			}
			if err := json.Unmarshal([]byte(last.Data), &body); err != nil || last.Name != "error" || body.Type != "error" || body.Error.Type != c.kind || body.Error.Details.Code != c.code {
				t.Errorf("the last event is %q (%v), want %s and %s", last.Raw, err, c.kind, c.code)
			}
			if body.RequestID == "" || body.RequestID != resp.Header.Get("Request-Id") {
				t.Errorf("the event's request id is %q", body.RequestID)
			}
			if n < len(begun)+1 {
				t.Errorf("%d events, want those before the failure too", n)
			}
			row := r.row()
			if row.InputTokens != c.input || row.OutputTokens != c.output || row.Flags.Has(tenancy.FlagEstimated) != c.estimated || row.ErrorCode != c.code {
				t.Errorf("row %+v", row)
			}
		})
	}
}

// TestMessagesClientLeaves charges what a client has made a worker do.
func TestMessagesClientLeaves(t *testing.T) {
	all := events(recordedMessages(t)["messages_stream"])
	worker := gatewaytest.NewWorker(t, gatewaytest.StallAfter(all[:4]...))
	r := newRig(t, []string{worker.URL()}, allEndpoints())
	client := r.messages("/v1/messages", messagesStream)
	reader := gatewaytest.NewEventReader(client.Head().Body)
	for range 4 {
		if _, err := reader.Next(); err != nil {
			t.Fatal(err)
		}
	}
	client.Leave(gatewaytest.RST)
	row := r.row()
	if row.Outcome != tenancy.OutcomeClientAborted || row.InputTokens != 10 || row.OutputTokens != 2 || !row.Flags.Has(tenancy.FlagEstimated|tenancy.FlagAborted) {
		t.Errorf("row %+v", row)
	}
}

// TestMessagesUsageWithCache charges the same as the other dialect would: what came
// from the cache and what went into it is input.
func TestMessagesUsageWithCache(t *testing.T) {
	const usage = `"usage":{"input_tokens":24,"output_tokens":3,"cache_creation_input_tokens":32,"cache_read_input_tokens":64}`
	stream := "event: message_start\ndata: {\"type\":\"message_start\",\"message\":{\"usage\":{\"input_tokens\":120,\"output_tokens\":0}}}\n\n" +
		"event: message_delta\ndata: {\"type\":\"message_delta\",\"delta\":{\"stop_reason\":\"end_turn\"}," + usage + "}\n\n" +
		"event: message_stop\ndata: {\"type\":\"message_stop\"}\n\n"
	for body, behaviour := range map[string]gatewaytest.Behaviour{
		messagesBody: gatewaytest.JSON(200, `{"type":"message",`+usage+`}`), messagesStream: gatewaytest.Stream(events(stream)...),
	} {
		worker := gatewaytest.NewWorker(t, behaviour)
		r := newRig(t, []string{worker.URL()}, allEndpoints())
		if resp, answer := r.messages("/v1/messages", body).Answer(); resp.StatusCode != 200 {
			t.Fatalf("%d %s", resp.StatusCode, answer)
		}
		row := r.row()
		if row.InputTokens != 120 || row.CachedTokens != 64 || row.OutputTokens != 3 || row.Flags.Has(tenancy.FlagCachedUnknown) {
			t.Errorf("row %+v", row)
		}
	}
}

// TestMessagesLimits shows limits under the API's own names, on both routes.
func TestMessagesLimits(t *testing.T) {
	recorded := recordedMessages(t)
	worker := gatewaytest.NewWorker(t, gatewaytest.JSON(200, recorded["messages"]), gatewaytest.JSON(200, recorded["count_tokens"]))
	r := newRig(t, []string{worker.URL()}, allEndpoints())
	r.decider.set(func(_ context.Context, in *policy.Input) *policy.Decision {
		d := allow(in)
		d.Limits = []policy.Limit{{Rule: "p/rate", Mode: policy.Enforced, Unit: policy.Requests, Window: policy.Window{Duration: time.Minute}, Limit: 2, Counter: "rate", Estimate: 1}}
		return d
	})
	for _, path := range []string{"/v1/messages", "/v1/messages/count_tokens"} {
		resp, answer := r.messages(path, messagesBody).Answer()
		h := resp.Header
		if resp.StatusCode != 200 || h.Get("Anthropic-Ratelimit-Requests-Limit") != "2" || h.Get("Anthropic-Ratelimit-Requests-Remaining") != "1" ||
			h.Get("Anthropic-Ratelimit-Requests-Reset") == "" || h.Get("X-Ratelimit-Limit-Requests") != "" {
			t.Errorf("%s: %d %s, %v", path, resp.StatusCode, answer, h)
		}
	}
}

// TestHeadersOfTheMessagesAPIStayThere gives them to workers on its own routes only.
func TestHeadersOfTheMessagesAPIStayThere(t *testing.T) {
	worker := gatewaytest.NewWorker(t, gatewaytest.Chat("a"), gatewaytest.JSON(200, recordedMessages(t)["messages"]))
	r := newRig(t, []string{worker.URL()}, allEndpoints())
	if resp, body := r.chat(chatBody, "Anthropic-Version: 1", "Anthropic-Beta: x").Answer(); resp.StatusCode != 200 || resp.Header.Get("Request-Id") != "" {
		t.Errorf("%d %s %v", resp.StatusCode, body, resp.Header)
	}
	if h := worker.Next(t).Header; h.Get("Anthropic-Version")+h.Get("Anthropic-Beta") != "" {
		t.Errorf("on chat the worker got %v", h)
	}
	if resp, body := r.messages("/v1/messages", messagesBody, "Anthropic-Version: \xc3\xa9", "Anthropic-Beta: "+strings.Repeat("x", maxAPIHeader+1)).Answer(); resp.StatusCode != 200 {
		t.Errorf("%d %s", resp.StatusCode, body)
	}
	if h := worker.Next(t).Header; h.Get("Anthropic-Version")+h.Get("Anthropic-Beta") != "" {
		t.Errorf("the worker got %v, want none that is not fit", h)
	}
}

// TestModelsOfTheMessagesAPI answers in the form of the API whose header is there,
// in errors too.
func TestModelsOfTheMessagesAPI(t *testing.T) {
	r := newRig(t, nil)
	get := func(target string, header ...string) (*http.Response, string) {
		c := r.dial()
		c.Send("GET", target, "", append([]string{"Anthropic-Version: 2023-06-01"}, header...)...)
		return c.Answer()
	}
	key := "X-Api-Key: " + goodKey
	const model = `{"type":"model","id":"m","display_name":"m","created_at":"1970-01-01T00:00:00Z"}`
	for target, want := range map[string]string{
		"/v1/models":                      `{"data":[` + model + `],"has_more":false,"first_id":"m","last_id":"m"}`,
		"/v1/models?limit=1&after_id=m":   `{"data":[],"has_more":false,"first_id":null,"last_id":null}`,
		"/v1/models?before_id=z&limit=20": `{"data":[` + model + `],"has_more":false,"first_id":"m","last_id":"m"}`,
		"/v1/models/m":                    model,
	} {
		resp, body := get(target, key)
		if resp.StatusCode != 200 || body != want || resp.Header.Get("Request-Id") == "" {
			t.Errorf("%s: %d %s, want %s", target, resp.StatusCode, body, want)
		}
	}
	resp, body := get("/v1/models?limit=0", key)
	wantMessagesError(t, resp, body, 400, "invalid_request_error", "invalid_request")
	for _, id := range []string{"secret", "nope", "%zz"} {
		resp, body := get("/v1/models/"+id, key)
		wantMessagesError(t, resp, body, 404, "not_found_error", "model_not_found")
	}
	resp, body = get("/v1/models")
	wantMessagesError(t, resp, body, 401, "authentication_error", "invalid_api_key")
	c := r.dial()
	c.Send("POST", "/v1/models", "{}", "Anthropic-Version: 1", key)
	resp, body = c.Answer()
	wantMessagesError(t, resp, body, 405, "invalid_request_error", "method_not_allowed")
	// Elsewhere the header picks nothing.
	c = r.dial()
	c.Send("POST", "/v1/chat/completions", "{}", "Anthropic-Version: 1")
	resp, body = c.Answer()
	wantError(t, resp, body, 401, "invalid_api_key")
	r.idle()
}
