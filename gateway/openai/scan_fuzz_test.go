package openai

import (
	"bytes"
	"encoding/json"
	"errors"
	"reflect"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/sluicegate/sluice/gateway/bodyscan"
	"github.com/sluicegate/sluice/gateway/jsonscan"
	"github.com/sluicegate/sluice/gateway/wire"
	"github.com/sluicegate/sluice/gateway/wire/wiretest"
)

// FuzzScanRewrite checks a scan and a rewrite of any body against what the
// standard library reads of it.
func FuzzScanRewrite(f *testing.F) {
	for _, r := range wiretest.Recordings(f) {
		if len(r.RequestBody) > 0 {
			for op := range scanned {
				f.Add([]byte(r.RequestBody), uint8(op))
			}
		}
	}
	for _, body := range []string{
		`{"model":"m","messages":[],"stream":true,"stream_options":{"x":1,"continuous_usage_stats":true},"n":3,"best_of":1e1}`,
		`{"priority":1,"cache_salt":"s","mod\u0065l":"\ud83d\ude00","messages":[{"content":["a",{"type":"image_url"}]}],"max_tokens":10e-1}`,
		`{"model":"m","prompt":[[1,2],[3]],"max_completion_tokens":5,"user":"u","x":1,"x":2}`,
		`{"model":"m","messages":[{"role":"a","role":"b"}]}`, `{"model":"m","tools":[{"function":{"name":"\ud800"}}],"messages":[]}`,
		`{"model":"m","input":[{"role":"user","content":[{"type":"input_image","image_url":"u"}]},{"type":"function_call","name":"f","arguments":"{}","call_id":"c"}],"max_output_tokens":2}`,
		`{"model":"m","input":["a","b"],"instructions":"i","tools":[{"type":"mcp","server_label":"l"},{"type":"function","name":"f"}]}`,
		`{"model":"m","tokens":[1,2],"tokens":null,"conversation":null,"prompt":null}`,
		"\xef\xbb\xbf{}", `{"model":"m"} x`, `[{"model":"m"}]`, `{"model":NaN}`, strings.Repeat(`{"a":`, 130),
	} {
		for op := range scanned {
			f.Add([]byte(body), uint8(op))
		}
	}
	f.Fuzz(func(t *testing.T, body []byte, which uint8) {
		op := scanned[int(which)%len(scanned)]
		before := bytes.Clone(body)
		var req wire.Request
		err := Scan(&req, op, body)
		if !bytes.Equal(before, body) {
			t.Fatal("a scan changes the body")
		}
		object := json.Valid(body) && utf8.Valid(body) && wiretest.Nesting(body) <= jsonscan.RequestDepth && bytes.HasPrefix(bytes.TrimLeft(body, " \r\n\t"), []byte("{"))
		var e *wire.Error
		if err != nil && !errors.As(err, &e) {
			t.Fatalf("the error %v is no *Error", err)
		}
		if (e != nil && e.Code == "invalid_json") == object {
			t.Fatalf("%q is an object: %v, but the scan says %v", body, object, err)
		}
		if err == nil {
			checkScan(t, &req, body)
			checkRewrite(t, &req, body)
			checkTokenForm(t, &req, body)
		}
	})
}

// scanned are the operations of this dialect.
var scanned = [...]wire.Operation{wire.Chat, wire.Completion, wire.Embeddings, wire.Responses, wire.Tokenize, wire.Detokenize}

func checkTokenForm(t *testing.T, req *wire.Request, body []byte) {
	t.Helper()
	form, ok := TokenForm(body, req)
	if !ok || form == nil {
		return
	}
	doc := wiretest.Decode(t, form)
	_, chat := doc["messages"].([]any)
	if _, prompt := doc["prompt"]; chat == prompt {
		t.Fatalf("the form %s of %s is neither a chat nor a completion", form, body)
	}
}

func checkScan(t *testing.T, req *wire.Request, body []byte) {
	t.Helper()
	doc := wiretest.Decode(t, body)
	if doc["model"] != string(req.Model) {
		t.Fatalf("the model is %q, want %q", req.Model, doc["model"])
	}
	if stream, _ := doc["stream"].(bool); stream != req.Stream {
		t.Fatalf("stream is %v, want %v", req.Stream, stream)
	}
	if user, ok := doc["user"].(string); ok != (req.User != nil) || user != string(req.User) {
		t.Fatalf("the user is %q, want %q", req.User, user)
	}
	if messages, _ := doc["messages"].([]any); req.Operation == wire.Chat && len(messages) != req.MessageCount {
		t.Fatalf("%d messages, want %d", req.MessageCount, len(messages))
	}
	generates := req.Operation == wire.Chat || req.Operation == wire.Completion
	if (generates && doc["n"] != nil) != (req.N != nil) {
		t.Fatalf("n is %v, want %v", req.N, doc["n"])
	}
}

func checkRewrite(t *testing.T, req *wire.Request, body []byte) {
	t.Helper()
	if same := AppendRewrite(nil, body, req, wire.Mutation{}); !bytes.Equal(same, body) {
		t.Fatalf("no mutation gives %q for %q", same, body)
	}
	out := AppendRewrite(nil, body, req, wire.Mutation{
		Model: new("w"), MaxTokens: new(int64(5)), CacheSalt: new("z"), RemovePriority: true, InjectUsage: true,
	})
	want := wiretest.Decode(t, body)
	want["model"], want["cache_salt"] = "w", "z"
	delete(want, "priority")
	switch req.Operation {
	case wire.Chat, wire.Completion:
		for _, key := range []string{"max_tokens", "max_completion_tokens"} {
			if _, ok := want[key]; ok {
				want[key] = json.Number("5")
			}
		}
		if _, ok := want["max_completion_tokens"]; !ok || req.Operation == wire.Completion {
			want["max_tokens"] = json.Number("5")
		}
	case wire.Responses:
		want["max_output_tokens"] = json.Number("5")
	}
	if options, _ := want["stream_options"].(map[string]any); req.Stream && req.Operation != wire.Responses && options["include_usage"] != true {
		if options == nil {
			options = map[string]any{}
		}
		options["include_usage"] = true
		if options["continuous_usage_stats"] == true {
			options["continuous_usage_stats"] = false
		}
		want["stream_options"] = options
	}
	got := wiretest.Decode(t, out)
	for _, key := range []string{"max_tokens", "max_completion_tokens", "max_output_tokens"} {
		// One that was 5 already keeps its spelling.
		if n, ok := got[key].(json.Number); ok && want[key] == json.Number("5") {
			if v, ok := jsonscan.Integer([]byte(n), bodyscan.MaxInteger); ok && v == 5 {
				got[key] = json.Number("5")
			}
		}
	}
	if !reflect.DeepEqual(got, want) {
		t.Fatalf("the rewrite %q of %q reads as %v, want %v", out, body, got, want)
	}
	var again wire.Request
	if err := Scan(&again, req.Operation, out); err != nil {
		t.Fatalf("the rewrite %q is refused: %v", out, err)
	}
}
