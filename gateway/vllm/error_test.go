package vllm

import (
	"encoding/json"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/sluicegate/sluice/gateway/jsonscan"
	"github.com/sluicegate/sluice/gateway/wire"
	"github.com/sluicegate/sluice/gateway/wire/wiretest"
)

var (
	failed = wire.ErrorBody{Message: "The model's server failed. Retry the request.", Type: "server_error", Code: "upstream_error"}
	full   = wire.ErrorBody{Message: "The model is overloaded. Retry after a while.", Type: "server_error", Code: "overloaded"}
	noPath = wire.ErrorBody{
		Message: "The model does not offer this endpoint. Use another endpoint or model.",
		Type:    "invalid_request_error", Code: "endpoint_not_supported",
	}
)

const refusedText = "The model's server refused the request as invalid."

func refused(message, param string) wire.ErrorBody {
	return wire.ErrorBody{Message: message, Type: "invalid_request_error", Param: param, Code: "invalid_request"}
}

func TestMapErrorRecordings(t *testing.T) {
	f := func(name string, want wire.WorkerError) {
		t.Helper()
		r, ok := wiretest.Recordings(t)[name]
		if !ok {
			t.Fatalf("%s is not recorded", name)
		}
		if got := MapError(r.Status, []byte(r.ResponseBody)); got != want {
			t.Errorf("%s:\n got %+v\nwant %+v", name, got, want)
		}
	}
	f("err_model", wire.WorkerError{Status: 502, Cause: wire.CauseStaleModel, Body: failed})
	f("err_messages_model", wire.WorkerError{Status: 502, Cause: wire.CauseStaleModel, Body: failed})
	f("embeddings", wire.WorkerError{Status: 404, Cause: wire.CauseNoEndpoint, Body: noPath})
	f("err_badjson", wire.WorkerError{Status: 400, Cause: wire.CauseRequest, Body: refused(
		"1 validation error:\n  {'type': 'json_invalid', 'loc': 'body.9', 'msg': 'JSON decode error', 'input': '<dict of 0 items>', 'ctx': {'error': 'Expecting value'}}", "")})
	f("err_missing", wire.WorkerError{Status: 400, Cause: wire.CauseRequest, Body: refused(
		"1 validation error:\n  {'type': 'missing', 'loc': 'body.messages', 'msg': 'Field required', 'input': '<dict of 1 items>'}", "messages")})
	f("err_type", wire.WorkerError{Status: 400, Cause: wire.CauseRequest, Body: refused(
		"1 validation error:\n  {'type': 'float_parsing', 'loc': 'body.temperature', 'msg': 'Input should be a valid number, unable to parse string as a number', 'input': 'hot'}", "temperature")})
	f("chat_tools_stream", wire.WorkerError{Status: 400, Cause: wire.CauseRequest, Body: refused(
		`"auto" tool choice requires --enable-auto-tool-choice and --tool-call-parser to be set`, "")})
	f("err_toolong", wire.WorkerError{Status: 400, Cause: wire.CauseContext, Body: wire.ErrorBody{
		Message: "This model's maximum context length is 8192 tokens. However, your prompt contains at least 8193 input tokens, " +
			"which exceeds this limit even without any output tokens. Please reduce the length of the input prompt. (parameter=input_tokens, value=8193)",
		Type: "invalid_request_error", Code: "context_length_exceeded",
	}})
}

// ownWordsOnContext stands for a worker's where its status is not 400.
const ownWordsOnContext = "The input is longer than the model's context. Shorten it, or ask for less output."

func TestMapErrorStatuses(t *testing.T) {
	const secret = "s3cr3t /opt/models http://10.0.0.1"
	bodies := []string{
		``, secret, `{"error":{"message":"` + secret + `","type":"` + secret + `","param":"` + secret + `","code":500}}`,
		`{"detail":"` + secret + `"}`, `{"detail":[{"loc":["body","n"],"msg":"` + secret + `"}]}`, `{"object":"error","message":"` + secret + `"}`,
		`<html>` + secret, `"` + secret, `{"error":"` + secret + `"}`, `[]`, `null`, "{\"error\":{\"message\":\"" + secret + "\xff",
	}
	f := func(status int, want wire.WorkerError) {
		t.Helper()
		for _, body := range bodies {
			got := MapError(status, []byte(body))
			if got != want {
				t.Errorf("status %d with %s\n got %+v\nwant %+v", status, body, got, want)
			}
		}
	}
	invalid := wire.WorkerError{Status: 400, Cause: wire.CauseRequest, Body: refused(refusedText, "")}
	for _, status := range []int{408, 409, 422} {
		f(status, invalid)
	}
	for _, status := range []int{401, 403} {
		f(status, wire.WorkerError{Status: 502, Cause: wire.CauseCredential, Body: failed})
	}
	for _, status := range []int{429, 503} {
		f(status, wire.WorkerError{Status: 503, Cause: wire.CauseSaturated, Body: full})
	}
	for _, status := range []int{0, 100, 204, 301, 302, 307, 402, 405, 406, 411, 415, 417, 418, 431, 500, 501, 502, 504, 505, 599} {
		f(status, wire.WorkerError{Status: 502, Cause: wire.CauseFault, Body: failed})
	}
	f(413, wire.WorkerError{Status: 413, Cause: wire.CauseRequest, Body: wire.ErrorBody{
		Message: "The request is too large for the model's server.", Type: "invalid_request_error", Code: "request_too_large",
	}})
}

func TestMapErrorTexts(t *testing.T) {
	f := func(status int, body string, want wire.ErrorBody) {
		t.Helper()
		if got := MapError(status, []byte(body)); got.Body != want {
			t.Errorf("status %d with %s\n got %+v\nwant %+v", status, body, got.Body, want)
		}
	}
	context := func(message string) wire.ErrorBody {
		return wire.ErrorBody{Message: message, Type: "invalid_request_error", Code: "context_length_exceeded"}
	}
	f(400, `{"err\u006fr":{"code":400,"param":"body.tools","message":"a\u0062c"}}`, refused("abc", "tools"))
	f(400, `{"error":{"message":"abc","param":"body.messages.0.content"}}`, refused("abc", "messages.0.content"))
	f(400, `{"error":{"message":"abc","param":"body"}}`, refused("abc", ""))
	f(400, `{"error":{"message":"abc","param":"body.9"}}`, refused("abc", ""))
	f(400, `{"error":{"message":"abc","param":7}}`, refused("abc", ""))
	f(400, `{"error":{"message":"abc","param":"`+strings.Repeat("p", 257)+`"}}`, refused("abc", ""))
	f(400, `{"error":{"message":"abc","param":"/opt/models"}}`, refused("abc", ""))
	f(400, `{"error":{"message":null}}`, refused(refusedText, ""))
	f(400, `{"error":{"message":["abc"]}}`, refused(refusedText, ""))
	f(400, `{"error":"abc"}`, refused("abc", ""))
	f(400, `{"object":"error","message":"abc","type":"BadRequestError","param":"n","code":400}`, refused("abc", "n"))
	f(400, `{"message":"abc"}`, refused(refusedText, ""))
	f(400, `{"detail":"abc"}`, refused(refusedText, ""))
	f(400, `{"error":{"message":"abc"}`, refused("abc", ""))
	f(400, `{"error":{"message":"abc`, refused(refusedText, ""))
	f(400, `{"error":{"message":"abc","param":"input_tokens"}}`, context("abc"))
	f(400, `{"error":{"message":"This model's maximum context length is 5 tokens."}}`, context("This model's maximum context length is 5 tokens."))
	f(422, `{"error":{"message":"This model's maximum context length is 5 tokens."}}`, context(ownWordsOnContext))

	long := strings.Repeat("é", 1000)
	got := MapError(400, []byte(`{"error":{"message":"x`+long+`"}}`)).Body.Message
	if len(got) != 1023 || !utf8.ValidString(got) || !strings.HasPrefix(long, got[1:]) {
		t.Errorf("a long text is cut to %d bytes: %q", len(got), got)
	}
}

func TestMapStreamError(t *testing.T) {
	f := func(data string, want wire.WorkerError) {
		t.Helper()
		if got := MapStreamError([]byte(data)); got != want {
			t.Errorf("%s\n got %+v\nwant %+v", data, got, want)
		}
	}
	fault := wire.WorkerError{Status: 502, Cause: wire.CauseFault, Body: failed}
	f(`{"error":{"message":"CUDA out of memory at /opt","type":"InternalServerError","param":null,"code":500}}`, fault)
	f(`{"error":{"message":"x"}}`, fault)
	f(`{"error":"x"}`, fault)
	f(`{"error":`, fault)
	f(``, fault)
	f(`{"object":"error","message":"x","code":500}`, fault)
	f(`{"error":{"message":"bad","code":400,"param":"body.n"}}`, wire.WorkerError{Status: 400, Cause: wire.CauseRequest, Body: refused("bad", "n")})
	f(`{"error":{"message":"maximum context length","code":500}}`, wire.WorkerError{Status: 400, Cause: wire.CauseContext, Body: wire.ErrorBody{
		Message: ownWordsOnContext, Type: "invalid_request_error", Code: "context_length_exceeded",
	}})
}

func TestCauseNames(t *testing.T) {
	names := map[string]bool{}
	for c := wire.Cause(0); c <= wire.CauseSaturated; c++ {
		names[c.String()] = true
	}
	if len(names) != int(wire.CauseSaturated)+1 {
		t.Errorf("the causes' names are not distinct: %v", names)
	}
}

// FuzzMapError checks that any body of a worker becomes an answer of the
// dialect, of bounded size, with words of the worker on 400 only.
func FuzzMapError(f *testing.F) {
	for _, r := range wiretest.Recordings(f) {
		if r.Status >= 400 {
			f.Add(r.Status, []byte(r.ResponseBody))
		}
	}
	f.Add(400, []byte(`{"object":"error","message":"\ud800","param":"body.x"}`))
	f.Fuzz(func(t *testing.T, status int, body []byte) {
		mapped := MapError(status, body)
		if status != 400 && mapped.Status == 400 && mapped.Cause == wire.CauseRequest && mapped.Body.Message != refusedText {
			t.Fatalf("status %d keeps the words %q", status, mapped.Body.Message)
		}
		for _, e := range []wire.WorkerError{mapped, MapStreamError(body)} {
			if len(e.Body.Message) > maxWorkerText || len(e.Body.Param) > 256 || e.Cause == 0 || e.Body.Code == "" {
				t.Fatalf("status %d with %q gives %+v", status, body, e)
			}
			if e.Status != 400 && e.Status != 404 && e.Status != 413 && e.Status != 502 && e.Status != 503 {
				t.Fatalf("status %d becomes %d", status, e.Status)
			}
			if quoted := jsonscan.AppendQuoted(nil, e.Body.Message); !json.Valid(quoted) || !utf8.ValidString(e.Body.Message) {
				t.Fatalf("the message is %q", e.Body.Message)
			}
		}
	})
}
