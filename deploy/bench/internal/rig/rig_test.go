package rig

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/sluicegate/sluice/scoring/simworker/model"
)

func TestParseCounters(t *testing.T) {
	c, err := ParseCounters([]byte("# HELP x y\nvllm:prompt_tokens_total{a=\"b\"} 10.0\nvllm:prompt_tokens_cached_total 4\n" +
		"vllm:request_success_total{r=\"stop\"} 1\nvllm:request_success_total{r=\"length\"} 2\nother 5\n"))
	if want := (Counters{Prompt: 10, Cached: 4, Finished: 3}); err != nil || c != want {
		t.Errorf("%+v, %v; want %+v", c, err, want)
	}
	if _, err := ParseCounters([]byte("vllm:prompt_tokens_total x\n")); err == nil {
		t.Error("a value that is no number was read")
	}
}

// FuzzCounters reads arbitrary metrics: counters only ever add up what was there.
func FuzzCounters(f *testing.F) {
	f.Add([]byte("# HELP x\nvllm:prompt_tokens_total{engine=\"0\"} 12.0\nvllm:prompt_tokens_total{engine=\"1\"} 3\n"))
	f.Add([]byte("vllm:request_success_total{finished_reason=\"stop\"} 1e400\n"))
	f.Add([]byte("vllm:num_preemptions_total x\n\xff{ 7"))
	f.Fuzz(func(t *testing.T, text []byte) {
		once, err := ParseCounters(text)
		twice, err2 := ParseCounters(append(append(bytes.Clone(text), '\n'), text...))
		if (err == nil) != (err2 == nil) {
			t.Fatalf("once: %v, twice: %v", err, err2)
		}
		if err == nil && once.Prompt == once.Prompt && once.Prompt*2 != twice.Prompt {
			t.Fatalf("%v tokens once, %v twice", once.Prompt, twice.Prompt)
		}
	})
}

// A process's usage is that of all it has started.
func TestUsage(t *testing.T) {
	p, err := Start(t.TempDir(), "shell", nil, nil, "sh", "-c", "sleep 60 & sleep 60")
	if err != nil {
		t.Fatal(err)
	}
	defer p.Stop()
	err = p.WaitFor(t.Context(), time.Minute, func(context.Context) error {
		if n := len(p.pids()); n < 3 {
			return errors.New("the shell has not started its two yet")
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if now, most := p.RSS(), p.PeakRSS(); now <= 0 || most <= 0 {
		t.Errorf("holds %d bytes, at most %d", now, most)
	}
	if busy, all, err := MachineBusy(); err != nil || busy <= 0 || busy > all {
		t.Errorf("busy %v of %v, %v", busy, all, err)
	}
}

// A program that ends while it is waited for is an error with its log.
func TestProcessEnds(t *testing.T) {
	p, err := Start(t.TempDir(), "false", nil, nil, "sh", "-c", "echo broken; exit 3")
	if err != nil {
		t.Fatal(err)
	}
	err = p.WaitFor(t.Context(), time.Minute, func(context.Context) error { return errors.New("not yet") })
	if err == nil || !strings.Contains(err.Error(), "broken") {
		t.Errorf("%v, want the log", err)
	}
	p.Stop()
}

// Texts have as many words as asked for and depend on their seed alone.
func TestWords(t *testing.T) {
	w, err := NewWords(model.FS, "m")
	if err != nil {
		t.Fatal(err)
	}
	a := w.Text(1, 2, 50)
	if n := len(strings.Fields(a)); n != 50 || a != w.Text(1, 2, 50) || a == w.Text(1, 3, 50) || a == w.Text(2, 2, 50) {
		t.Errorf("%d words: %s", n, a)
	}
	want := `{"model":"m","messages":[{"role":"user","content":"x"}],"max_tokens":7,"ignore_eos":true,"stream":true}`
	if got := string(w.Body(7, Message{Role: "user", Content: "x"})); got != want {
		t.Errorf("body %s, want %s", got, want)
	}
}

// What a refusal asks for is kept, and a stream that ends with an error is none
// that came whole.
func TestSendFailures(t *testing.T) {
	srv := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		if r.Header.Get("Authorization") != "Bearer key" {
			t.Errorf("authorization is %q", r.Header.Get("Authorization"))
		}
		switch string(body) {
		case "refuse":
			rw.Header().Set("Retry-After", "7")
			http.Error(rw, "later", http.StatusTooManyRequests)
		case "break":
			_, _ = io.WriteString(rw, ": wait\n\ndata: {\"error\":{\"code\":\"overloaded\"}}\n\n")
		default:
			_, _ = io.WriteString(rw, `data: {"choices":[{"delta":{"content":"a"}}]}`+"\n\ndata: [DONE]\n\n")
		}
	}))
	defer srv.Close()
	s := NewSender(srv.URL)
	defer s.Close()
	send := func(body string) Outcome { return s.Send(t.Context(), []byte(body), "key", time.Second, time.Now()) }
	if o := send("fine"); o.Err != nil || !o.Got || o.Status != 200 || o.At != time.Second || o.First > o.Total {
		t.Errorf("%+v", o)
	}
	if o := send("refuse"); o.Err == nil || o.Got || o.Status != 429 || o.RetryAfter != 7*time.Second {
		t.Errorf("%+v, want a status of 429 and to return after 7s", o)
	}
	if o := send("break"); o.Err == nil || !strings.Contains(o.Err.Error(), "overloaded") || o.Got || o.Status != 200 {
		t.Errorf("%+v, want the stream's error", o)
	}
}
