package simworker

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
)

// otherAnswer is what these tests read of any answer of these routes.
type otherAnswer struct {
	ID, Object, Status string
	Data               []struct {
		Index     int
		Embedding json.RawMessage
	}
	Usage struct {
		PromptTokens     int `json:"prompt_tokens"`
		CompletionTokens int `json:"completion_tokens"`
		InputTokens      int `json:"input_tokens"`
		OutputTokens     int `json:"output_tokens"`
		Details          struct {
			Cached int `json:"cached_tokens"`
		} `json:"input_tokens_details"`
	}
	Output []struct {
		Content []struct{ Text string }
	}
}

func ask(t *testing.T, w *Worker, path, body string) otherAnswer {
	t.Helper()
	resp, text := post(t, w, path, body)
	if resp.StatusCode != http.StatusOK {
		t.Fatalf("%s %s: status %d: %s", path, body, resp.StatusCode, text)
	}
	var a otherAnswer
	if err := json.Unmarshal([]byte(text), &a); err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	return a
}

// A response has the prompt of the chat that it amounts to, so it has its length
// and finds its blocks in the cache.
func TestResponsesAreChats(t *testing.T) {
	w := startWorker(t, nil)
	long := strings.Repeat("word ", 60)
	for _, c := range []struct{ name, chat, responses string }{
		{"a string", `{"role":"user","content":"hi"}`, `"hi"`},
		{"items", `{"role":"user","content":"hi"},{"role":"assistant","content":"yes"},{"role":"user","content":"go on"}`,
			`[{"role":"user","content":[{"type":"input_text","text":"hi"}]},{"type":"message","role":"assistant","content":[{"type":"output_text","text":"yes"}]},{"role":"user","content":"go on"}]`},
		{"what a tool returned", `{"role":"user","content":"hi"},{"role":"assistant"},{"role":"tool","content":"3"}`,
			`[{"role":"user","content":"hi"},{"type":"function_call","call_id":"c","name":"f","arguments":"{}"},{"type":"function_call_output","call_id":"c","output":"3"}]`},
		{"a long text", `{"role":"user","content":"` + long + `"}`, `"` + long + `"`},
	} {
		t.Run(c.name, func(t *testing.T) {
			chat := ask(t, w, "/v1/chat/completions", `{"model":"tiny","max_tokens":2,"messages":[{"role":"system","content":"be brief"},`+c.chat+`]}`)
			got := ask(t, w, "/v1/responses", `{"model":"tiny","max_output_tokens":2,"instructions":"be brief","input":`+c.responses+`}`)
			if got.Usage.InputTokens != chat.Usage.PromptTokens || got.Usage.OutputTokens != 2 || got.Status != "incomplete" {
				t.Errorf("response %+v, chat %+v", got, chat)
			}
			if got.Usage.InputTokens > 100 && got.Usage.Details.Cached < 96 {
				t.Errorf("%d of %d tokens from the cache after the same chat", got.Usage.Details.Cached, got.Usage.InputTokens)
			}
		})
	}
}

func TestResponsesAreRefusedAsByTheEngine(t *testing.T) {
	w := startWorker(t, nil)
	for _, c := range []struct {
		name, body string
		status     int
		holds      string
	}{
		{"no input", `{"model":"tiny"}`, 400, "'loc': 'body.input'"},
		{"in the background", `{"model":"tiny","input":"x","background":true}`, 400, "background mode"},
		{"an earlier response", `{"model":"tiny","input":"x","previous_response_id":"resp_1"}`, 404, "Response with id 'resp_1' not found."},
		{"an unknown model", `{"model":"nope","input":"x"}`, 404, "does not exist"},
		{"an item of no kind", `{"model":"tiny","input":[{"type":"sound"}]}`, 400, "input[0]"},
		{"a tool to choose", `{"model":"tiny","input":"x","tools":[{"type":"function","name":"f","parameters":{}}]}`, 400, "--enable-auto-tool-choice"},
	} {
		t.Run(c.name, func(t *testing.T) {
			resp, body := post(t, w, "/v1/responses", c.body)
			if resp.StatusCode != c.status || !strings.Contains(body, c.holds) {
				t.Errorf("status %d: %s", resp.StatusCode, body)
			}
		})
	}
}

func TestFaultsOfResponseStreams(t *testing.T) {
	const body = `{"model":"tiny","input":"x","stream":true,"max_output_tokens":4}`
	w := startWorker(t, nil)
	w.SetFault(Fault{Status: http.StatusServiceUnavailable})
	if resp, _ := post(t, w, "/v1/responses", body); resp.StatusCode != http.StatusServiceUnavailable {
		t.Errorf("status %d", resp.StatusCode)
	}
	w.SetFault(Fault{NoDone: true})
	if _, text := post(t, w, "/v1/responses", body); strings.Contains(text, "response.completed") || !strings.Contains(text, "response.output_item.done") {
		t.Errorf("a stream without its end: %s", text)
	}
}

func TestEmbeddings(t *testing.T) {
	w := startWorker(t, func(cfg *Config) { cfg.Embeddings = 8 })
	for _, c := range []struct {
		name, input string
		vectors     int
		tokens      int
	}{
		{"a string", `"abc"`, 1, 3},
		{"strings", `["abc","de"]`, 2, 5},
		{"token ids", `[1,2,3,4]`, 1, 4},
		{"lists of ids", `[[1,2],[3],[4,5,6]]`, 3, 6},
	} {
		t.Run(c.name, func(t *testing.T) {
			a := ask(t, w, "/v1/embeddings", `{"model":"tiny","input":`+c.input+`}`)
			if len(a.Data) != c.vectors || a.Usage.PromptTokens != c.tokens || a.Usage.CompletionTokens != 0 || a.Object != "list" {
				t.Errorf("answer %+v", a)
			}
			for i, d := range a.Data {
				var v []float64
				if err := json.Unmarshal(d.Embedding, &v); err != nil || len(v) != 8 || d.Index != i {
					t.Errorf("vector %d: %s (%v)", i, d.Embedding, err)
				}
			}
		})
	}
	two := ask(t, w, "/v1/embeddings", `{"model":"tiny","input":["same","same"],"encoding_format":"base64","dimensions":4}`)
	var texts []string
	for _, d := range two.Data {
		var s string
		if err := json.Unmarshal(d.Embedding, &s); err != nil {
			t.Fatal(err)
		}
		if raw, err := base64.StdEncoding.DecodeString(s); err != nil || len(raw) != 16 {
			t.Errorf("vector %q: %d bytes, %v", s, len(raw), err)
		}
		texts = append(texts, s)
	}
	if len(slices.Compact(texts)) != 1 {
		t.Errorf("one text has the vectors %q", texts)
	}
	chat := ask(t, w, "/v1/embeddings", `{"model":"tiny","messages":[{"role":"user","content":"hi"}]}`)
	if len(chat.Data) != 1 || chat.Usage.PromptTokens < 5 {
		t.Errorf("answer to a chat: %+v", chat)
	}
	for _, body := range []string{`{"model":"tiny"}`, `{"model":"tiny","input":"x","dimensions":9}`, `{"model":"tiny","input":"x","encoding_format":"hex"}`} {
		if resp, text := post(t, w, "/v1/embeddings", body); resp.StatusCode != http.StatusBadRequest {
			t.Errorf("%s: status %d: %s", body, resp.StatusCode, text)
		}
	}
}

// A worker describes the routes that its model has, and has no others.
func TestRoutesFollowTheModel(t *testing.T) {
	generating := []string{"/v1/chat/completions", "/v1/completions", "/v1/responses"}
	for _, embeddings := range []int{0, 8} {
		t.Run(fmt.Sprint(embeddings), func(t *testing.T) {
			w := startWorker(t, func(cfg *Config) { cfg.Embeddings = embeddings })
			_, text := get(t, w, "/openapi.json")
			var api struct {
				Paths map[string]map[string]any
			}
			if err := json.Unmarshal([]byte(text), &api); err != nil {
				t.Fatal(err)
			}
			for path, here := range map[string]bool{
				"/v1/embeddings": embeddings > 0, "/tokenize": true, "/detokenize": true,
				generating[0]: embeddings == 0, generating[1]: embeddings == 0, generating[2]: embeddings == 0,
			} {
				if _, described := api.Paths[path]["post"]; described != here {
					t.Errorf("%s described: %t, should be %t", path, described, here)
				}
				if resp, _ := post(t, w, path, "{}"); (resp.StatusCode != http.StatusNotFound) != here {
					t.Errorf("%s answers status %d, should be there: %t", path, resp.StatusCode, here)
				}
			}
		})
	}
}
