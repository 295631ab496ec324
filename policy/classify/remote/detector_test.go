package remote

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// secret stands in texts and answers of the tests; no error may show it.
const secret = "MARK-4111111111111111"

// testConfig is a detector of a shape at an address, with time enough for a
// slow machine.
func testConfig(shape, url string) Config {
	c := DefaultConfig(shape)
	c.Name, c.URL, c.Timeout = "d", url, 30*time.Second
	switch shape {
	case Presidio:
		c.Labels = map[string]string{"CREDIT_CARD": "pci", "EMAIL_ADDRESS": "pii", "PHONE_NUMBER": "pii", "URL": ""}
	case Moderation:
		c.Labels = map[string]string{"violence": "violence", "self-harm": "harm", "harassment": ""}
	case Classify:
		c.Labels = map[string]string{"INJECTION": "injection", "SAFE": ""}
	}
	return c
}

// answering is a detector whose service answers every request like this.
func answering(t testing.TB, shape string, status int, body string) *Detector {
	t.Helper()
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		w.WriteHeader(status)
		_, _ = io.WriteString(w, body)
	}))
	t.Cleanup(srv.Close)
	return mustNew(t, testConfig(shape, srv.URL))
}

func mustNew(t testing.TB, c Config) *Detector {
	t.Helper()
	d, err := New(c, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(d.client.CloseIdleConnections)
	return d
}

func fixture(t testing.TB, name string) string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join("testdata", name))
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func TestAnswers(t *testing.T) {
	for _, c := range []struct {
		name, shape, body string
		change            func(c *Config)
		want              map[string]int64
	}{
		{"presidio", Presidio, fixture(t, "presidio.json"), nil, map[string]int64{"pci": 1, "pii": 1, "": 1}},
		{"presidio, higher threshold", Presidio, `[{"entity_type":"CREDIT_CARD","start":0,"end":4,"score":0.69},{"entity_type":"EMAIL_ADDRESS","start":0,"end":4,"score":0.7}]`, func(c *Config) { c.Threshold = 0.7 }, map[string]int64{"pii": 1}},
		{"presidio, nothing", Presidio, "[]", nil, nil},
		{"presidio, two", Presidio, `[{"entity_type":"CREDIT_CARD","start":0,"end":4,"score":0.5},{"entity_type":"CREDIT_CARD","start":5,"end":9,"score":0.9}]`, nil, map[string]int64{"pci": 2}},
		{"moderation, scores", Moderation, fixture(t, "moderation.json"), nil, map[string]int64{"violence": 1, "harm": 1}},
		{"moderation, flags", Moderation, fixture(t, "moderation.json"), func(c *Config) { c.Threshold = 0 }, map[string]int64{"violence": 1}},
		{"moderation, flag without a score", Moderation, `{"results":[{"categories":{"violence":true,"other":true},"category_scores":{"violence":null}}]}`, nil, map[string]int64{"violence": 1, "": 1}},
		{"moderation, score below", Moderation, `{"results":[{"categories":{"violence":true},"category_scores":{"violence":0.4}}]}`, nil, nil},
		{"classify", Classify, fixture(t, "classify.json"), nil, map[string]int64{"injection": 1}},
		{"classify, below", Classify, fixture(t, "classify.json"), func(c *Config) { c.Threshold = 0.52 }, nil},
		{"classify, harmless", Classify, `{"data":[{"index":0,"label":"SAFE","probs":[0.9,0.1]}]}`, nil, nil},
		{"classify, unmapped", Classify, `{"data":[{"index":0,"label":"LABEL_1","probs":[0.9,0.1]}]}`, nil, map[string]int64{"": 1}},
	} {
		t.Run(c.name, func(t *testing.T) {
			d := answering(t, c.shape, 200, c.body)
			if c.change != nil {
				c.change(&d.cfg)
			}
			got, err := d.Detect(t.Context(), "some text")
			if err != nil || !maps.Equal(got, c.want) {
				t.Errorf("got %v, %v, want %v", got, err, c.want)
			}
		})
	}
}

// TestRequests pins what is sent.
func TestRequests(t *testing.T) {
	const text = "a \"quoted\" line\n<b> é"
	for _, c := range []struct {
		shape, path string
		change      func(c *Config)
		body        string
	}{
		{Presidio, "/analyze", nil, `{"text":"a \"quoted\" line\n\u003cb\u003e é","language":"en","score_threshold":0.5}`},
		{Presidio, "/analyze", func(c *Config) { c.Entities, c.Language = []string{"URL", "CREDIT_CARD"}, "de" }, `{"text":"a \"quoted\" line\n\u003cb\u003e é","language":"de","score_threshold":0.5,"entities":["URL","CREDIT_CARD"]}`},
		{Moderation, "/v1/moderations", nil, `{"input":["a \"quoted\" line\n\u003cb\u003e é"]}`},
		{Moderation, "/proxy/moderate", func(c *Config) { c.URL += "/proxy/moderate"; c.Model = "m" }, `{"model":"m","input":["a \"quoted\" line\n\u003cb\u003e é"]}`},
		{Classify, "/classify", func(c *Config) { c.Model, c.APIKey, c.URL = "m", "a-key-of-the-tests", c.URL+"/" }, `{"model":"m","input":["a \"quoted\" line\n\u003cb\u003e é"]}`},
	} {
		var got *http.Request
		var body []byte
		srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			got = r
			body, _ = io.ReadAll(r.Body)
			_, _ = io.WriteString(w, fixture(t, c.shape+".json"))
		}))
		cfg := testConfig(c.shape, srv.URL)
		if c.change != nil {
			c.change(&cfg)
		}
		if _, err := mustNew(t, cfg).Detect(t.Context(), text); err != nil {
			t.Error(err)
		}
		srv.Close()
		if got.Method != "POST" || got.URL.Path != c.path || got.Header.Get("Content-Type") != "application/json" || string(body) != c.body {
			t.Errorf("%s %s %s\nwant %s %s", got.Method, got.URL.Path, body, c.path, c.body)
		}
		want := ""
		if cfg.APIKey != "" {
			want = "Bearer " + cfg.APIKey
		}
		if got.Header.Get("Authorization") != want || got.Header.Get("Cookie") != "" {
			t.Errorf("credentials %v", got.Header)
		}
	}
}

// TestFailures: whatever is no judgement is an error, which is not taken for a
// time-out and shows nothing of text, answer or key.
func TestFailures(t *testing.T) {
	for _, c := range []struct {
		shape  string
		status int
		body   string
		want   string
	}{
		{Presidio, 500, `{"error":"` + secret + `"}`, "it answers with status 500"},
		{Presidio, 204, "", "it answers with status 204"},
		{Presidio, 200, "", "the answer is no JSON"},
		{Presidio, 200, secret, "the answer is no JSON"},
		{Presidio, 200, `[`, "the answer is no JSON"},
		{Presidio, 200, `[]` + secret, "the answer goes on after its JSON"},
		{Presidio, 200, `[][]`, "the answer goes on after its JSON"},
		{Presidio, 200, `null`, "the answer is null, should be a list of findings"},
		{Presidio, 200, `{"error":"` + secret + `"}`, "the answer does not have the form of its shape"},
		{Presidio, 200, `[{"entity_type":4111111111111111}]`, "the answer does not have the form of its shape"},
		{Presidio, 200, `[[]]`, "the answer does not have the form of its shape"},
		{Presidio, 200, `[{"start":1,"end":2,"score":1}]`, "finding 0 has no entity_type"},
		{Presidio, 200, `[null]`, "finding 0 has no entity_type"},
		{Presidio, 200, `[{"entity_type":"X","start":1,"end":2}]`, "finding 0 has no score"},
		{Presidio, 200, `[{"entity_type":"X","score":1}]`, "finding 0 has no place in the text"},
		{Presidio, 200, `[{"entity_type":"X","score":1,"start":3,"end":2}]`, "finding 0 has no place in the text"},
		{Moderation, 200, `{}`, "the answer has 0 results for 1 texts"},
		{Moderation, 200, `{"results":[{},{}]}`, "the answer has 2 results for 1 texts"},
		{Moderation, 200, `{"results":[{"flagged":true}]}`, "result 0 judges no category"},
		{Moderation, 200, `{"results":[{"categories":{"violence":null},"category_scores":{}}]}`, "result 0 judges no category"},
		{Moderation, 200, `{"results":[{"categories":{"violence":"yes"}}]}`, "the answer does not have the form of its shape"},
		{Classify, 404, `{}`, "it answers with status 404"},
		{Classify, 200, `{"data":[]}`, "the answer has 0 results for 1 texts"},
		{Classify, 200, `{"data":[{"index":0,"label":null,"probs":[0.2,0.8],"num_classes":2}]}`, "result 0 has no label: the model's configuration does not name its classes (id2label)"},
		{Classify, 200, `{"data":[{"index":0,"probs":[1]}]}`, "result 0 has no label: the model's configuration does not name its classes (id2label)"},
		{Classify, 200, `{"data":[{"index":0,"label":"SAFE","probs":[]}]}`, "result 0 has no probabilities"},
		{Classify, 200, `{"data":[{"index":0,"label":"SAFE","probs":[-1.5,3.25]}]}`, "result 0 has probabilities beyond 0 and 1: the server gives raw scores"},
		{Classify, 200, `{"data":[{"index":1,"label":"SAFE","probs":[1]}]}`, "result 0 has no index of its own"},
		{Classify, 200, `{"data":[{"label":"SAFE","probs":[1]}]}`, "result 0 has no index of its own"},
		{Classify, 200, `{"data":[{"index":0,"label":"` + strings.Repeat("x", maxAnswer) + `"}]}`, "the answer is larger than 8388608 bytes"},
	} {
		var logged strings.Builder
		d := answering(t, c.shape, c.status, c.body)
		d.cfg.Log = slog.New(slog.NewTextHandler(&logged, nil))
		d.cfg.APIKey = secret
		hits, err := d.Detect(t.Context(), secret)
		if err == nil || err.Error() != "detector d: "+c.want || errors.Is(err, context.DeadlineExceeded) || len(hits) != 0 {
			t.Errorf("%s %.40s: got %v %v, want %s", c.shape, c.body, hits, err, c.want)
		}
		if strings.Contains(logged.String(), "MARK") || !strings.Contains(logged.String(), "a detector fails") {
			t.Errorf("logged %s", logged.String())
		}
	}
	// A detector without a threshold needs flags.
	d := answering(t, Moderation, 200, `{"results":[{"category_scores":{"violence":1}}]}`)
	d.cfg.Threshold = 0
	if _, err := d.Detect(t.Context(), "x"); err == nil || !strings.Contains(err.Error(), "there is no threshold for its scores") {
		t.Error(err)
	}
}

// TestNothingToJudge: texts without a word are not sent, since Presidio answers
// with an error.
func TestNothingToJudge(t *testing.T) {
	d := answering(t, Presidio, 500, "")
	for _, text := range []string{"", " \n\t "} {
		if hits, err := d.Detect(t.Context(), text); err != nil || len(hits) != 0 {
			t.Errorf("%q: %v %v", text, hits, err)
		}
	}
	if d.Requests() != 0 {
		t.Error("a request was sent")
	}
}

// TestPieces: a long text is judged whole, in pieces sent side by side, never
// more at once than allowed, and a finding that two pieces share counts once.
func TestPieces(t *testing.T) {
	const cards = 300
	var text strings.Builder
	for i := range cards {
		fmt.Fprintf(&text, "é card %04d, and some words after it 🙂\n", i)
	}
	var under, most atomic.Int64
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		n := under.Add(1)
		defer under.Add(-1)
		for m := most.Load(); n > m && !most.CompareAndSwap(m, n); m = most.Load() {
		}
		var q presidioRequest
		if err := json.NewDecoder(r.Body).Decode(&q); err != nil {
			t.Error(err)
		}
		if len(q.Text) > minText {
			t.Errorf("a piece of %d bytes", len(q.Text))
		}
		var out []map[string]any
		runes := []rune(q.Text)
		for i := range len(runes) - 8 {
			if string(runes[i:i+5]) == "card " {
				out = append(out, map[string]any{"entity_type": "CREDIT_CARD", "start": i, "end": i + 9, "score": 1})
			}
		}
		if out == nil {
			out = []map[string]any{}
		}
		_ = json.NewEncoder(w).Encode(out)
	}))
	defer srv.Close()
	c := testConfig(Presidio, srv.URL)
	c.MaxText, c.Parallel = minText, 3
	d := mustNew(t, c)
	var wg sync.WaitGroup
	for range 3 {
		wg.Go(func() {
			hits, err := d.Detect(t.Context(), text.String())
			if err != nil || hits["pci"] != cards {
				t.Errorf("%v %v", hits, err)
			}
		})
	}
	wg.Wait()
	if most.Load() > 3 || d.Requests() < 3*cards*40/minText {
		t.Errorf("%d at once, %d requests", most.Load(), d.Requests())
	}
}

// TestBatches: several pieces go into one request where the shape has a list,
// and each is judged by itself.
func TestBatches(t *testing.T) {
	var sizes []int
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var q inputRequest
		if err := json.NewDecoder(r.Body).Decode(&q); err != nil {
			t.Error(err)
		}
		sizes = append(sizes, len(q.Input))
		var data []map[string]any
		for i, text := range slices.Backward(q.Input) { // in any order
			label := "SAFE"
			if strings.Contains(text, "ignore") {
				label = "INJECTION"
			}
			data = append(data, map[string]any{"index": i, "label": label, "probs": []float64{0.1, 0.9}})
		}
		_ = json.NewEncoder(w).Encode(map[string]any{"data": data})
	}))
	defer srv.Close()
	c := testConfig(Classify, srv.URL)
	c.MaxText, c.Parallel = minText, 1
	text := strings.Repeat("harmless words. ", 600) + "ignore it. " + strings.Repeat("harmless words. ", 600)
	hits, err := mustNew(t, c).Detect(t.Context(), text)
	if err != nil || hits["injection"] < 1 || hits["injection"] > 2 || len(hits) != 1 {
		t.Errorf("%v %v", hits, err)
	}
	if len(sizes) < 3 || sizes[0] != 32 {
		t.Errorf("batches of %v", sizes)
	}
}

// TestPartOfTheText: what was found until a failure comes with the error, and
// the pieces after it are not sent.
func TestPartOfTheText(t *testing.T) {
	var n atomic.Int64
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if n.Add(1) == 3 {
			w.WriteHeader(503)
			return
		}
		_, _ = io.WriteString(w, `[{"entity_type":"CREDIT_CARD","start":0,"end":4,"score":1}]`)
	}))
	defer srv.Close()
	c := testConfig(Presidio, srv.URL)
	c.MaxText, c.Parallel = minText, 1
	hits, err := mustNew(t, c).Detect(t.Context(), strings.Repeat("x", 100*minText))
	if err == nil || err.Error() != "detector d: it answers with status 503" || hits["pci"] != 2 {
		t.Errorf("%v %v", hits, err)
	}
	if n.Load() != 3 {
		t.Errorf("%d requests", n.Load())
	}
}

// TestFailuresAreLoggedOnce, and so is the recovery; without a word of the text, or
// of an answer that repeats it.
func TestFailuresAreLoggedOnce(t *testing.T) {
	var status atomic.Int64
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.WriteHeader(int(status.Load()))
		if status.Load() != http.StatusOK {
			_, _ = io.Copy(w, r.Body)
			return
		}
		_, _ = io.WriteString(w, "[]")
	}))
	defer srv.Close()
	var logged strings.Builder
	c := testConfig(Presidio, srv.URL)
	c.Log = slog.New(slog.NewTextHandler(&logged, nil))
	d := mustNew(t, c)
	for _, s := range []int64{200, 500, 503, 200, 200, 500} {
		status.Store(s)
		if _, err := d.Detect(t.Context(), "MarkedText"); err != nil && strings.Contains(err.Error(), "MarkedText") {
			t.Errorf("the error quotes the text: %v", err)
		}
	}
	if got := logged.String(); strings.Contains(got, "MarkedText") || strings.Count(got, "a detector fails") != 2 || strings.Count(got, "a detector works again") != 1 || !strings.Contains(got, "detector=d") {
		t.Error(got)
	}
}
