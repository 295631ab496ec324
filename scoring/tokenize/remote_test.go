package tokenize

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// worker is a /tokenize that answers as f says and keeps what it was asked.
type worker struct {
	*httptest.Server

	mu    sync.Mutex // protects what follows
	asked []map[string]any
	auth  []string
}

func newWorker(t *testing.T, f func(w http.ResponseWriter, n int)) *worker {
	t.Helper()
	w := &worker{}
	w.Server = httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodPost || r.URL.Path != "/tokenize" || r.Header.Get("Content-Type") != "application/json" {
			t.Errorf("asked %s %s %s", r.Method, r.URL.Path, r.Header.Get("Content-Type"))
		}
		data, err := io.ReadAll(r.Body)
		if err != nil {
			return
		}
		var ask map[string]any
		if err := json.Unmarshal(data, &ask); err != nil {
			t.Errorf("asked %q: %v", data, err)
		}
		w.mu.Lock()
		w.asked = append(w.asked, ask)
		w.auth = append(w.auth, r.Header.Get("Authorization"))
		n := len(w.asked)
		w.mu.Unlock()
		f(rw, n)
	}))
	t.Cleanup(w.Close)
	return w
}

// questions returns what was asked so far.
func (w *worker) questions() []map[string]any {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.asked)
}

// answer gives the ids 1 to n.
func answer(rw http.ResponseWriter, n int) {
	ids := []int{}
	for i := range n {
		ids = append(ids, i+1)
	}
	_ = json.NewEncoder(rw).Encode(map[string]any{"count": n, "max_model_len": 8192, "tokens": ids, "token_strs": nil})
}

func TestRemoteChat(t *testing.T) {
	f := func(body string, want string) {
		t.Helper()
		w := newWorker(t, answer)
		dst := Prompts{IDs: []uint32{5}, Ends: []int{1}}
		if err := NewRemote(RemoteOptions{}).Append(t.Context(), Target{URL: w.URL, Model: "served", APIKey: "k"}, &dst, Chat, []byte(body)); err != nil {
			t.Errorf("%s: %v", body, err)
			return
		}
		if !slices.Equal(dst.IDs, []uint32{5, 1}) || !slices.Equal(dst.Ends, []int{1, 2}) {
			t.Errorf("%s: got %+v", body, dst)
		}
		got, err := json.Marshal(w.questions()[0])
		if err != nil {
			t.Fatal(err)
		}
		w.mu.Lock()
		auth := w.auth[0]
		w.mu.Unlock()
		if string(got) != want || auth != "Bearer k" {
			t.Errorf("%s: asked %s with %q, want %s", body, got, auth, want)
		}
	}
	f(`{"model":"alias","stream":true,"temperature":0,"messages":[{"role":"user","content":"x"}],"tools":[{"a":1}],"add_generation_prompt":false,"continue_final_message":true,"add_special_tokens":true,"chat_template_kwargs":{"a":1}}`,
		`{"add_generation_prompt":false,"add_special_tokens":true,"chat_template_kwargs":{"a":1},"continue_final_message":true,"messages":[{"content":"x","role":"user"}],"model":"served","tools":[{"a":1}]}`)
	// What only the chat endpoint takes reaches the template all the same.
	f(`{"messages":[],"reasoning_effort":"low","documents":[{"text":"d"}]}`,
		`{"chat_template_kwargs":{"documents":[{"text":"d"}],"enable_thinking":true,"reasoning_effort":"low"},"messages":[],"model":"served"}`)
	f(`{"messages":[],"reasoning_effort":"none","chat_template_kwargs":{"x":null}}`,
		`{"chat_template_kwargs":{"enable_thinking":false,"reasoning_effort":"none","x":null},"messages":[],"model":"served"}`)
	f(`{"messages":[],"reasoning_effort":"none","documents":null,"chat_template_kwargs":{"enable_thinking":null}}`,
		`{"chat_template_kwargs":{"enable_thinking":null,"reasoning_effort":"none"},"messages":[],"model":"served"}`)
}

func TestRemoteCompletion(t *testing.T) {
	f := func(body string, asked string, want ...[]uint32) {
		t.Helper()
		w := newWorker(t, answer)
		var dst Prompts
		if err := NewRemote(RemoteOptions{}).Append(t.Context(), Target{URL: w.URL + "/", Model: "m"}, &dst, Completion, []byte(body)); err != nil {
			t.Errorf("%s: %v", body, err)
			return
		}
		if dst.Len() != len(want) {
			t.Errorf("%s: %d prompts, want %d", body, dst.Len(), len(want))
			return
		}
		for i := range want {
			if !slices.Equal(dst.At(i), want[i]) {
				t.Errorf("%s: prompt %d is %v, want %v", body, i, dst.At(i), want[i])
			}
		}
		var texts []string
		for _, ask := range w.questions() {
			texts = append(texts, fmt.Sprintf("%v/%v", ask["prompt"], ask["add_special_tokens"]))
		}
		if got := strings.Join(texts, " "); got != asked {
			t.Errorf("%s: asked %q, want %q", body, got, asked)
		}
	}
	f(`{"prompt":"a"}`, "a/<nil>", []uint32{1})
	f(`{"prompt":"a","add_special_tokens":false}`, "a/false", []uint32{1})
	f(`{"prompt": [ "a" , "b" ]}`, "a/<nil> b/<nil>", []uint32{1}, []uint32{1, 2})
	f(`{"prompt":[3,4]}`, "", []uint32{3, 4})
	f(`{"prompt":[[3],[4,5]]}`, "", []uint32{3}, []uint32{4, 5})
}

func TestRemoteRefusals(t *testing.T) {
	w := newWorker(t, answer)
	f := func(kind Kind, body string, want error) {
		t.Helper()
		dst := Prompts{IDs: []uint32{5}, Ends: []int{1}}
		err := NewRemote(RemoteOptions{}).Append(t.Context(), Target{URL: w.URL, Model: "m"}, &dst, kind, []byte(body))
		if !errors.Is(err, want) {
			t.Errorf("%s: got %v, want %v", body, err, want)
		}
		if len(dst.IDs) != 1 || len(dst.Ends) != 1 {
			t.Errorf("%s: dst was changed to %+v", body, dst)
		}
	}
	f(Chat, ``, ErrInvalid)
	f(Chat, `null`, ErrInvalid)
	f(Chat, `[]`, ErrInvalid)
	f(Chat, `{}`, ErrInvalid)
	f(Chat, `{"messages":[],"chat_template_kwargs":[]}`, ErrInvalid)
	f(Completion, `{}`, ErrInvalid)
	f(Completion, `{"prompt":null}`, ErrInvalid)
	f(Completion, `{"prompt":3}`, ErrInvalid)
	f(Completion, `{"prompt":[]}`, ErrInvalid)
	f(Completion, `{"prompt":["a",1]}`, ErrInvalid)
	f(Completion, `{"prompt":[1,"a"]}`, ErrInvalid)
	f(Completion, `{"prompt":[-1]}`, ErrInvalid)
	f(Completion, `{"prompt":[[1],2]}`, ErrInvalid)
	f(Completion, `{"prompt":"a","prompt_embeds":"AA"}`, ErrUnsupported)
	f(Completion, `{"prompt":"a","truncate_prompt_tokens":5}`, ErrUnsupported)
	f(Chat, `{"messages":[],"truncate_prompt_tokens":5}`, ErrUnsupported)
	f(Chat, `{"messages":[],"kv_transfer_params":{"prompt_token_ids":[1]}}`, ErrUnsupported)
	f(Chat, `{"messages":[{"role":"user","content":[{"type":"text","text":"a"},{"type":"image_url","image_url":{"url":"http://x"}}]}]}`, ErrUnsupported)
	f(Completion, `{"prompt":[`+strings.Repeat(`"a",`, 16)+`"a"]}`, ErrUnsupported)
	if n := len(w.questions()); n != 0 {
		t.Errorf("the worker was asked %d times", n)
	}
}

// TestRemoteFailures: each way a worker can fail is an error that quotes neither
// the prompt nor the worker's words, and leaves dst alone.
func TestRemoteFailures(t *testing.T) {
	const secret = "swordfish"
	body := []byte(`{"prompt":["one","swordfish"]}`)
	f := func(name string, opts RemoteOptions, second func(rw http.ResponseWriter), want string) error {
		t.Helper()
		w := newWorker(t, func(rw http.ResponseWriter, n int) {
			if n == 1 {
				answer(rw, 1)
				return
			}
			second(rw)
		})
		dst := Prompts{IDs: []uint32{5}, Ends: []int{1}}
		err := NewRemote(opts).Append(t.Context(), Target{URL: w.URL, Model: "m"}, &dst, Completion, body)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want %q", name, err, want)
			return err
		}
		if strings.Contains(err.Error(), secret) {
			t.Errorf("%s: error %q quotes", name, err)
		}
		if len(dst.IDs) != 1 || len(dst.Ends) != 1 {
			t.Errorf("%s: dst was changed to %+v", name, dst)
		}
		return err
	}
	status := f("400", RemoteOptions{}, func(rw http.ResponseWriter) {
		rw.WriteHeader(400)
		_, _ = io.WriteString(rw, `{"error":{"message":"swordfish"}}`)
	}, "400 Bad Request")
	var se *StatusError
	if !errors.As(status, &se) || se.Code != 400 {
		t.Errorf("400: got %v", status)
	}
	f("503", RemoteOptions{}, func(rw http.ResponseWriter) { rw.WriteHeader(503) }, "503")
	f("redirect", RemoteOptions{}, func(rw http.ResponseWriter) {
		rw.Header().Set("Location", "/elsewhere")
		rw.WriteHeader(307)
	}, "307")
	f("no JSON", RemoteOptions{}, func(rw http.ResponseWriter) { _, _ = io.WriteString(rw, "swordfish") }, "no list of tokens")
	f("no tokens", RemoteOptions{}, func(rw http.ResponseWriter) { _, _ = io.WriteString(rw, `{"count":1}`) }, "no list of tokens")
	f("negative", RemoteOptions{}, func(rw http.ResponseWriter) { _, _ = io.WriteString(rw, `{"tokens":[-1]}`) }, "no list of tokens")
	f("miscounted", RemoteOptions{}, func(rw http.ResponseWriter) { _, _ = io.WriteString(rw, `{"count":3,"tokens":[1]}`) }, "counts 3 tokens and lists 1")
	f("too long", RemoteOptions{MaxAnswer: 200}, func(rw http.ResponseWriter) { answer(rw, 500) }, "200 bytes")
	f("cut off", RemoteOptions{}, func(rw http.ResponseWriter) {
		rw.Header().Set("Content-Length", "100")
		_, _ = io.WriteString(rw, `{"tokens":[1`)
	}, "cannot read the worker's answer")
	f("aborted", RemoteOptions{}, func(http.ResponseWriter) { panic(http.ErrAbortHandler) }, "cannot reach the worker")
}

func TestRemoteGivesUpInTime(t *testing.T) {
	release := make(chan struct{})
	w := newWorker(t, func(http.ResponseWriter, int) { <-release })
	defer close(release)
	var dst Prompts
	body := []byte(`{"prompt":"a"}`)
	err := NewRemote(RemoteOptions{Timeout: 20 * time.Millisecond}).Append(t.Context(), Target{URL: w.URL, Model: "m"}, &dst, Completion, body)
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("timeout: got %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	err = NewRemote(RemoteOptions{}).Append(ctx, Target{URL: w.URL, Model: "m"}, &dst, Completion, body)
	if !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: got %v", err)
	}
	if err := NewRemote(RemoteOptions{}).Append(t.Context(), Target{URL: "::", Model: "m"}, &dst, Completion, body); err == nil {
		t.Error("an address that is no URL is taken")
	}
}

func TestPrompts(t *testing.T) {
	var p Prompts
	p.IDs = append(p.IDs, 1, 2)
	p.end()
	p.end()
	p.IDs = append(p.IDs, 3)
	p.end()
	if p.Len() != 3 || !slices.Equal(p.At(0), []uint32{1, 2}) || len(p.At(1)) != 0 || !slices.Equal(p.At(2), []uint32{3}) {
		t.Errorf("got %+v", p)
	}
	// A prompt's view cannot be appended into its neighbour.
	if _ = append(p.At(0), 9); p.IDs[2] != 3 {
		t.Error("appending to one prompt changed the next")
	}
	p.Reset()
	if p.Len() != 0 || len(p.IDs) != 0 {
		t.Errorf("got %+v after Reset", p)
	}
}

// FuzzRemoteBody: arbitrary bodies make no call that is not JSON, and no crash.
func FuzzRemoteBody(f *testing.F) {
	for _, seed := range []string{
		`{"messages":[]}`, `{"prompt":"a"}`, `{"prompt":["a"]}`, `{"prompt":[1]}`, `{"prompt":[[1]]}`, `{"prompt": [ [ ] ]}`, `[]`, ``, `{"prompt":{}}`,
	} {
		f.Add([]byte(seed))
	}
	client := &http.Client{Transport: roundTrip(func(r *http.Request) (*http.Response, error) {
		data, err := io.ReadAll(r.Body)
		if err != nil || !json.Valid(data) {
			panic(fmt.Sprintf("asked %q", data))
		}
		return &http.Response{StatusCode: 200, Body: io.NopCloser(strings.NewReader(`{"tokens":[1]}`))}, nil
	})}
	r := NewRemote(RemoteOptions{Client: client})
	f.Fuzz(func(t *testing.T, body []byte) {
		for _, kind := range []Kind{Chat, Completion} {
			var dst Prompts
			if err := r.Append(t.Context(), Target{URL: "http://worker", Model: "m"}, &dst, kind, body); err == nil && dst.Len() == 0 {
				t.Fatal("no error and no prompt")
			}
		}
	})
}

type roundTrip func(*http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// FuzzAnswer: an answer of /tokenize adds the one prompt that it lists, or
// nothing.
func FuzzAnswer(f *testing.F) {
	for _, seed := range []string{
		`{"count":3,"max_model_len":8192,"tokens":[1,2,3],"token_strs":null}`, `{"tokens":[]}`, `{"count":1,"tokens":[1,2]}`,
		`{"tokens":[-1]}`, `{"tokens":[4294967296]}`, `{"tokens":null}`, `{"detail":"Not Found"}`, `[1]`, ``,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		dst := Prompts{IDs: []uint32{7}, Ends: []int{1}}
		err := appendAnswer(&dst, data)
		switch {
		case dst.IDs[0] != 7 || dst.Ends[0] != 1:
			t.Fatalf("the prompt before it has changed: %+v", dst)
		case err != nil && (dst.Len() != 1 || len(dst.IDs) != 1):
			t.Fatalf("%v, and yet %+v", err, dst)
		case err == nil && (dst.Len() != 2 || dst.Ends[1] != len(dst.IDs)):
			t.Fatalf("%+v is not one prompt more", dst)
		}
	})
}
