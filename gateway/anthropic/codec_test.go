package anthropic

import (
	"strings"
	"testing"

	"github.com/sluicegate/sluice/gateway/wire"
	"github.com/sluicegate/sluice/gateway/wire/wiretest"
)

func operationOf(r wiretest.Recording) wire.Operation {
	if strings.HasSuffix(r.Path, "count_tokens") {
		return wire.CountTokens
	}
	return wire.Messages
}

func TestRecordedAnswers(t *testing.T) {
	f := func(name string, want wire.Usage) {
		t.Helper()
		r := wiretest.Recordings(t)[name]
		got, err := Codec{}.ReadUsage(operationOf(r), []byte(r.ResponseBody))
		if err != nil || got != want {
			t.Errorf("%s: %+v, %v; want %+v", name, got, err, want)
		}
	}
	f("messages", wire.Usage{Input: 10, Output: 4, Known: true})
	f("count_tokens", wire.Usage{})

	r := wiretest.Recordings(t)["err_messages_model"]
	if got := (Codec{}).MapWorkerError(r.Status, []byte(r.ResponseBody)); got.Cause != wire.CauseStaleModel || got.Status != 502 || strings.Contains(got.Body.Message, "tiny") {
		t.Errorf("an unknown model becomes %+v, want one that names no model", got)
	}
}

func TestRecordedRequests(t *testing.T) {
	for name, r := range wiretest.Recordings(t) {
		var req wire.Request
		if err := (Codec{}).Scan(&req, operationOf(r), r.RequestBody); err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if req.MessageCount != 1 || req.TextBytes == 0 || req.PromptCount != 1 || req.Choices() != 1 || req.Modalities != wire.Text || req.Features != 0 {
			t.Errorf("%s is scanned as %+v", name, req)
		}
		if req.Stream != (name == "messages_stream") || (req.MaxTokens != nil) != (req.Operation == wire.Messages) {
			t.Errorf("%s: stream %v, at most %v tokens", name, req.Stream, req.MaxTokens)
		}
		if got := (Codec{}).AppendRewrite(nil, r.RequestBody, &req, wire.Mutation{}); string(got) != string(r.RequestBody) {
			t.Errorf("%s: a rewrite that changes nothing gives %s", name, got)
		}
	}
}

func TestReadUsage(t *testing.T) {
	f := func(usage string, want wire.Usage) {
		t.Helper()
		got, err := Codec{}.ReadUsage(wire.Messages, []byte(`{"content":[{"usage":{"input_tokens":7,"output_tokens":7}}],"usage":`+usage+`}`))
		if err != nil || got != want {
			t.Errorf("%s: %+v, %v; want %+v", usage, got, err, want)
		}
	}
	f(`{"input_tokens":24,"cache_creation_input_tokens":0,"cache_read_input_tokens":96,"output_tokens":3}`,
		wire.Usage{Input: 120, Cached: 96, Output: 3, CachedKnown: true, Known: true})
	f(`{"input_tokens":24,"cache_creation_input_tokens":96,"cache_read_input_tokens":0,"output_tokens":3}`,
		wire.Usage{Input: 120, Output: 3, CachedKnown: true, Known: true})
	f(`{"output_tokens":3,"x":{"input_tokens":1},"input_tokens":2,"cache_read_input_tokens":null}`, wire.Usage{Input: 2, Output: 3, Known: true})
	f(`{"input_tokens":1.0e1,"output_tokens":0}`, wire.Usage{Input: 10, Known: true})
	for _, unknown := range []string{
		`null`, `{}`, `[]`, `"x"`, `{"input_tokens":3}`, `{"output_tokens":3}`, `{"input_tokens":null,"output_tokens":3}`, `{"input_tokens":-1,"output_tokens":3}`,
		`{"input_tokens":1.5,"output_tokens":3}`, `{"input_tokens":"1","output_tokens":3}`, `{"input_tokens":1e20,"output_tokens":3}`,
	} {
		f(unknown, wire.Usage{})
	}
	for _, bad := range []string{``, `[]`, `null`, `{"usage":`, `{} x`, `{"usage":{}}}`} {
		if u, err := (Codec{}).ReadUsage(wire.Messages, []byte(bad)); err == nil || u != (wire.Usage{}) {
			t.Errorf("%q: %+v, %v; want an error", bad, u, err)
		}
	}
}
