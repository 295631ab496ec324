package simworker

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
)

// shape describes JSON by its member names, in order, and the kinds of its
// values, so that two answers can be compared apart from ids, times and texts.
// Values that the protocol fixes are kept.
func shape(t *testing.T, text string) string {
	t.Helper()
	dec := json.NewDecoder(strings.NewReader(text))
	dec.UseNumber()
	var sb strings.Builder
	shapeValue(t, dec, &sb, "")
	return sb.String()
}

// fixed are the members whose values are compared, not only their kind.
var fixed = []string{
	"object", "role", "finish_reason", "owned_by", "type", "param", "code", "index", "max_model_len", "success",
	"enable_kv_cache_events", "publisher", "buffer_steps", "hwm", "max_queue_size", "topic", "version", "completion_tokens", "model",
	"output_tokens", "stop_reason", "sequence_number", "output_index", "content_index", "status", "reason",
}

func shapeValue(t *testing.T, dec *json.Decoder, sb *strings.Builder, name string) {
	t.Helper()
	tok, err := dec.Token()
	if err != nil {
		t.Fatal(err)
	}
	switch tok := tok.(type) {
	case json.Delim:
		sb.WriteRune(rune(tok))
		if name == "bytes" { // as long as the token, which is noise
			for dec.More() {
				if _, err := dec.Token(); err != nil {
					t.Fatal(err)
				}
			}
		}
		for dec.More() {
			key := ""
			if tok == '{' {
				k, err := dec.Token()
				if err != nil {
					t.Fatal(err)
				}
				key = k.(string)
				sb.WriteString(key + ":")
			}
			shapeValue(t, dec, sb, key)
			sb.WriteByte(',')
		}
		if _, err := dec.Token(); err != nil {
			t.Fatal(err)
		}
		sb.WriteByte("]}"[strings.IndexRune("[{", rune(tok))])
	case nil:
		sb.WriteString("null")
	default:
		if slices.Contains(fixed, name) {
			fmt.Fprint(sb, tok)
		} else {
			fmt.Fprintf(sb, "<%T>", tok)
		}
	}
}

// streamShape returns the shapes of a stream's events by choice, as choices
// interleave as they please, with what is for all choices apart.
func streamShape(t *testing.T, body string) map[string][]string {
	t.Helper()
	list := map[string][]string{}
	for _, e := range events(body) {
		if e == "[DONE]" {
			list["all"] = append(list["all"], e)
			continue
		}
		var v struct {
			Choices []struct{ Index int }
		}
		if err := json.Unmarshal([]byte(e), &v); err != nil {
			t.Fatalf("event %q: %v", e, err)
		}
		key := "all"
		if len(v.Choices) > 0 {
			key = fmt.Sprint(v.Choices[0].Index)
		}
		list[key] = append(list[key], shape(t, e))
	}
	return list
}

// request returns the recorded request as it was sent.
func (r *recorded) request() string {
	switch r.Name {
	case "err_badjson":
		return `{"model":` // the body itself is not in the recording
	case "err_toolong":
		return strings.Replace(string(r.RequestBody), "LONG", strings.Repeat("word ", 9000), 1)
	}
	if string(r.RequestBody) == "null" {
		return ""
	}
	return string(r.RequestBody)
}

func TestAnswersAreShapedAsRecorded(t *testing.T) {
	w := startWorker(t, nil)
	entries := readJSON[[]recorded](t, "testdata/vllm-0.32.0/http.json")
	if len(entries) < 25 {
		t.Fatalf("%d recorded entries, want all", len(entries))
	}
	for _, e := range entries {
		if e.Name == "metrics" {
			continue // TestMetricsAreNamedAsRecorded
		}
		t.Run(strings.Trim(e.Name, "/"), func(t *testing.T) {
			resp, body := send(t, newRequest(t, e.Method, w.URL()+e.Path, e.request()))
			if resp.StatusCode != e.Status {
				t.Fatalf("status %d, recorded %d: %s", resp.StatusCode, e.Status, body)
			}
			compareHeaders(t, resp, &e)
			switch {
			case strings.HasPrefix(e.Name, "err_") && e.Status != http.StatusOK, e.Name == "chat_tools_stream", e.Name == "embeddings":
				if body != e.ResponseBody {
					t.Errorf("body     %s\nrecorded %s", body, e.ResponseBody)
				}
			case e.Name == "responses_stream", e.Name == "messages_stream":
				compareNamedStreams(t, body, e.ResponseBody)
			case e.TransferEncoding != nil:
				compareStreams(t, body, e.ResponseBody)
			case e.Name == "tokenize":
				if !strings.HasPrefix(body, `{"count":30,"max_model_len":8192,"tokens":[256,`) || !strings.HasSuffix(body, `],"token_strs":null}`) {
					t.Errorf("body %s is not like %s", body, e.ResponseBody)
				}
			case e.ResponseBody == "":
				if body != "" {
					t.Errorf("body %q, recorded none", body)
				}
			default:
				if got, want := shape(t, body), shape(t, e.ResponseBody); got != want {
					t.Errorf("shape    %s\nrecorded %s", got, want)
				}
			}
		})
	}
}

func compareHeaders(t *testing.T, resp *http.Response, e *recorded) {
	t.Helper()
	want := ""
	if e.ContentType != nil {
		want = *e.ContentType
	}
	if got := resp.Header.Get("Content-Type"); got != want {
		t.Errorf("content type %q, recorded %q", got, want)
	}
	chunked := e.TransferEncoding != nil
	if slices.Contains(resp.TransferEncoding, "chunked") != chunked {
		t.Errorf("transfer encoding %v, recorded chunked: %v", resp.TransferEncoding, chunked)
	}
}

func compareStreams(t *testing.T, body, recorded string) {
	t.Helper()
	if !strings.HasSuffix(body, "\n\ndata: [DONE]\n\n") {
		t.Errorf("stream ends with %q", body[max(0, len(body)-40):])
	}
	got, want := streamShape(t, body), streamShape(t, recorded)
	for key := range want {
		if !slices.Equal(got[key], want[key]) {
			t.Errorf("choice %s:\n%s\nrecorded:\n%s", key, strings.Join(got[key], "\n"), strings.Join(want[key], "\n"))
		}
	}
	if len(got) != len(want) {
		t.Errorf("%d choices, recorded %d", len(got), len(want))
	}
}

// compareNamedStreams compares streams whose events have names, one for one.
func compareNamedStreams(t *testing.T, body, recorded string) {
	t.Helper()
	got, want := strings.SplitAfter(body, "\n\n"), strings.SplitAfter(recorded, "\n\n")
	if len(got) != len(want) {
		t.Fatalf("%d events, recorded %d:\n%s", len(got), len(want), body)
	}
	for i := range want {
		gotName, gotData, _ := strings.Cut(got[i], "\ndata: ")
		wantName, wantData, _ := strings.Cut(want[i], "\ndata: ")
		if gotName != wantName {
			t.Errorf("event %d begins with %q, recorded %q", i, gotName, wantName)
		}
		if gotName == "" {
			continue
		}
		if g, w := shape(t, gotData), shape(t, wantData); g != w {
			t.Errorf("event %d has shape %s\nrecorded                %s", i, g, w)
		}
	}
}

// seriesNames returns kinds and series of an exposition, in order, with label
// names but without values; buckets keep their bound.
func seriesNames(text string) []string {
	var list []string
	for line := range strings.Lines(text) {
		line = strings.TrimSuffix(line, "\n")
		switch {
		case strings.HasPrefix(line, "# TYPE"):
			list = append(list, line)
		case line == "" || line[0] == '#':
		default:
			name, rest, _ := strings.Cut(line, "{")
			labels, _, _ := strings.Cut(rest, "} ")
			var names []string
			for l := range strings.SplitSeq(labels, `",`) {
				k, v, _ := strings.Cut(l, `="`)
				switch k {
				case "le", "reason", "source", "finished_reason", "sleep_state":
					k += "=" + strings.TrimSuffix(v, `"`)
				}
				names = append(names, k)
			}
			list = append(list, name+"{"+strings.Join(names, ",")+"}")
		}
	}
	return list
}

func TestMetricsAreNamedAsRecorded(t *testing.T) {
	w := startWorker(t, nil)
	for _, e := range readJSON[[]recorded](t, "testdata/vllm-0.32.0/http.json") {
		if e.Name != "metrics" {
			continue
		}
		resp, body := get(t, w, "/metrics")
		compareHeaders(t, resp, &e)
		got, want := seriesNames(body), seriesNames(e.ResponseBody)
		for i := range max(len(got), len(want)) {
			if i >= len(got) || i >= len(want) || got[i] != want[i] {
				t.Fatalf("from series %d on:\n%v\nrecorded:\n%v", i, got[i:min(i+3, len(got))], want[i:min(i+3, len(want))])
			}
		}
		return
	}
	t.Fatal("no metrics in the recording")
}
