package tokenize

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"testing"
)

// TestRemoteMessages learns the length of a messages body's prompt, and does not hold
// it against a worker that it has no such route.
func TestRemoteMessages(t *testing.T) {
	answers := map[string]string{} // by the model that is asked for; else 404
	server := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		var ask struct {
			Model    string            `json:"model"`
			Messages []json.RawMessage `json:"messages"`
		}
		data, _ := io.ReadAll(r.Body)
		if err := json.Unmarshal(data, &ask); err != nil || r.URL.Path != "/v1/messages/count_tokens" || len(ask.Messages) != 1 {
			t.Errorf("asked %s %s: %v", r.URL.Path, data, err)
		}
		answer, ok := answers[ask.Model]
		if !ok {
			rw.WriteHeader(http.StatusNotFound)
		}
		fmt.Fprint(rw, answer)
	}))
	defer server.Close()
	r := NewRemote(RemoteOptions{})
	ask := func(model string) (int, error) {
		var dst Prompts
		err := r.Append(t.Context(), Target{URL: server.URL, Model: model}, &dst, Messages, []byte(`{"model":"m","messages":[{"role":"user","content":"a"}]}`))
		if len(dst.IDs)+len(dst.Ends) > 0 {
			t.Errorf("ids %v of a prompt that nobody has told", dst.IDs)
		}
		return dst.Length, err
	}
	answers["served"] = `{"input_tokens":10,"context_management":{"original_input_tokens":10}}`
	for _, bad := range []string{``, `[]`, `{}`, `{"input_tokens":0}`, `{"input_tokens":"10"}`} {
		answers["bad"] = bad
		if n, err := ask("bad"); err == nil || n != 0 {
			t.Errorf("%q: %d, %v; want an error", bad, n, err)
		}
		if n, err := ask("served"); err != nil || n != 10 {
			t.Errorf("%d, %v; want 10", n, err)
		}
	}
	for range 20 { // more than a worker may fail
		var status *StatusError
		if _, err := ask("absent"); !errors.As(err, &status) || !status.Absent() {
			t.Fatalf("%v, want that the route is absent", err)
		}
	}
	if n, err := ask("served"); err != nil || n != 10 {
		t.Errorf("%d, %v; want that the worker is still asked", n, err)
	}
}
