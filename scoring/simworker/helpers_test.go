package simworker

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"
)

// waitTime bounds every wait in these tests; reaching it is a failure.
const waitTime = time.Minute

// recordedConfig is the worker that was recorded, without waiting.
func recordedConfig() Config {
	cfg := DefaultConfig()
	cfg.Name, cfg.Model = "w1", "tiny"
	cfg.BlockSize, cfg.Blocks, cfg.BatchTokens, cfg.MaxModelLen = 32, 512, 1024, 8192
	cfg.TimeScale = 0
	return cfg
}

// startWorker starts a worker that is closed with the test. change may be nil.
func startWorker(t *testing.T, change func(*Config)) *Worker {
	t.Helper()
	cfg := recordedConfig()
	if change != nil {
		change(&cfg)
	}
	w, err := Start(cfg, NewByteTokenizer())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = w.Close() })
	return w
}

// slowly makes each step take d whatever it holds.
func slowly(d time.Duration) func(*Config) {
	return func(cfg *Config) {
		cfg.Timing.Step, cfg.TimeScale = d, 1
		cfg.Timing.PrefillToken, cfg.Timing.DecodeSeq, cfg.Timing.Context, cfg.Timing.Attention = 0, 0, 0, 0
	}
}

// client never reuses connections, so that none outlives its test.
var client = &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}

func newRequest(t *testing.T, method, url, body string) *http.Request {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), waitTime)
	t.Cleanup(cancel)
	r, err := http.NewRequestWithContext(ctx, method, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	if body != "" {
		r.Header.Set("Content-Type", "application/json")
	}
	return r
}

// send returns the answer and its whole body.
func send(t *testing.T, r *http.Request) (*http.Response, string) {
	t.Helper()
	resp, err := client.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp, string(b)
}

func post(t *testing.T, w *Worker, path, body string) (*http.Response, string) {
	t.Helper()
	return send(t, newRequest(t, http.MethodPost, w.URL()+path, body))
}

func get(t *testing.T, w *Worker, path string) (*http.Response, string) {
	t.Helper()
	return send(t, newRequest(t, http.MethodGet, w.URL()+path, ""))
}

// chatBody returns a chat request; extra is further members, with a comma first.
func chatBody(content, extra string) string {
	return fmt.Sprintf(`{"model":"tiny","messages":[{"role":"user","content":%q}]%s}`, content, extra)
}

// events returns the data of a stream's events.
func events(body string) []string {
	var list []string
	for e := range strings.SplitSeq(strings.TrimSuffix(body, "\n\n"), "\n\n") {
		list = append(list, strings.TrimPrefix(e, "data: "))
	}
	return list
}

// liveStream is a stream that is read while the worker writes it.
type liveStream struct {
	t      *testing.T
	resp   *http.Response
	lines  *bufio.Reader
	cancel context.CancelFunc
}

// openStream sends a request and returns once the headers are there.
func openStream(t *testing.T, w *Worker, path, body string) *liveStream {
	t.Helper()
	r := newRequest(t, http.MethodPost, w.URL()+path, body)
	ctx, cancel := context.WithCancel(r.Context())
	resp, err := client.Do(r.WithContext(ctx))
	if err != nil {
		cancel()
		t.Fatal(err)
	}
	s := &liveStream{t: t, resp: resp, lines: bufio.NewReader(resp.Body), cancel: cancel}
	t.Cleanup(s.leave)
	return s
}

// event returns the next event's data, or the error that ended the stream.
func (s *liveStream) event() (string, error) {
	for {
		line, err := s.lines.ReadString('\n')
		if err != nil {
			return "", err
		}
		if data, ok := strings.CutPrefix(line, "data: "); ok {
			return strings.TrimSuffix(data, "\n"), nil
		}
	}
}

func (s *liveStream) leave() {
	s.cancel()
	_ = s.resp.Body.Close()
}

// waitUntil polls what can be seen only from outside, until it holds.
func waitUntil(t *testing.T, w *Worker, what string, ok func(Stats) bool) {
	t.Helper()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	deadline := time.After(waitTime)
	for !ok(w.Stats()) {
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatalf("never happened: %s; %+v", what, w.Stats())
		}
	}
}

func waitIdle(t *testing.T, w *Worker) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), waitTime)
	defer cancel()
	if err := w.WaitIdle(ctx); err != nil {
		t.Fatal(err)
	}
}

// recorded is one entry of the HTTP recording.
type recorded struct {
	Name             string          `json:"name"`
	Method           string          `json:"method"`
	Path             string          `json:"path"`
	RequestBody      json.RawMessage `json:"request_body"`
	Status           int             `json:"status"`
	ContentType      *string         `json:"content_type"`
	TransferEncoding *string         `json:"transfer_encoding"`
	ResponseBody     string          `json:"response_body"`
}

func readJSON[T any](t *testing.T, path string) T {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var v T
	if err := json.Unmarshal(b, &v); err != nil {
		t.Fatal(err)
	}
	return v
}
