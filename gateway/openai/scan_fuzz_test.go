package openai

import (
	"bytes"
	"encoding/json"
	"errors"
	"reflect"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/sluicegate/sluice/gateway/jsonscan"
	"github.com/sluicegate/sluice/gateway/wire"
)

// FuzzScanRewrite checks a scan and a rewrite of any body against what the
// standard library reads of it.
func FuzzScanRewrite(f *testing.F) {
	for _, r := range recordings(f) {
		if len(r.RequestBody) > 0 {
			f.Add([]byte(r.RequestBody), true)
			f.Add([]byte(r.RequestBody), false)
		}
	}
	for _, body := range []string{
		`{"model":"m","messages":[],"stream":true,"stream_options":{"x":1,"continuous_usage_stats":true},"n":3,"best_of":1e1}`,
		`{"priority":1,"cache_salt":"s","mod\u0065l":"\ud83d\ude00","messages":[{"content":["a",{"type":"image_url"}]}],"max_tokens":10e-1}`,
		`{"model":"m","prompt":[[1,2],[3]],"max_completion_tokens":5,"user":"u","x":1,"x":2}`,
		`{"model":"m","messages":[{"role":"a","role":"b"}]}`, `{"model":"m","tools":[{"function":{"name":"\ud800"}}],"messages":[]}`,
		"\xef\xbb\xbf{}", `{"model":"m"} x`, `[{"model":"m"}]`, `{"model":NaN}`, strings.Repeat(`{"a":`, 130),
	} {
		f.Add([]byte(body), true)
		f.Add([]byte(body), false)
	}
	f.Fuzz(func(t *testing.T, body []byte, chat bool) {
		op := wire.Completion
		if chat {
			op = wire.Chat
		}
		before := bytes.Clone(body)
		var req wire.Request
		err := Scan(&req, op, body)
		if !bytes.Equal(before, body) {
			t.Fatal("a scan changes the body")
		}
		object := json.Valid(body) && utf8.Valid(body) && nesting(body) <= jsonscan.RequestDepth && bytes.HasPrefix(bytes.TrimLeft(body, " \r\n\t"), []byte("{"))
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
		}
	})
}

func decode(t testing.TB, body []byte) map[string]any {
	t.Helper()
	dec := json.NewDecoder(bytes.NewReader(body))
	dec.UseNumber()
	var doc map[string]any
	if err := dec.Decode(&doc); err != nil {
		t.Fatalf("the standard library cannot read %q: %v", body, err)
	}
	return doc
}

func checkScan(t *testing.T, req *wire.Request, body []byte) {
	t.Helper()
	doc := decode(t, body)
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
	if (doc["n"] != nil) != (req.N != nil) {
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
	want := decode(t, body)
	want["model"], want["cache_salt"] = "w", "z"
	delete(want, "priority")
	for _, key := range []string{"max_tokens", "max_completion_tokens"} {
		if _, ok := want[key]; ok {
			want[key] = json.Number("5")
		}
	}
	if _, ok := want["max_completion_tokens"]; !ok || req.Operation == wire.Completion {
		want["max_tokens"] = json.Number("5")
	}
	if options, _ := want["stream_options"].(map[string]any); req.Stream && options["include_usage"] != true {
		if options == nil {
			options = map[string]any{}
		}
		options["include_usage"] = true
		if options["continuous_usage_stats"] == true {
			options["continuous_usage_stats"] = false
		}
		want["stream_options"] = options
	}
	got := decode(t, out)
	for _, key := range []string{"max_tokens", "max_completion_tokens"} {
		// One that was 5 already keeps its spelling.
		if n, ok := got[key].(json.Number); ok {
			if v, ok := jsonscan.Integer([]byte(n), maxInteger); ok && v == 5 {
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
