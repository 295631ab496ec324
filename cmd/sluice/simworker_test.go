package main

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"
)

// TestSimworkerCommand starts two workers, asks one, and ends them.
func TestSimworkerCommand(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	out, in := io.Pipe()
	var diag bytes.Buffer
	code := make(chan int, 1)
	go func() {
		code <- execute(ctx, time.Now, strings.Fields("simworker --workers 2 --model m --time-scale 0 --output-tokens 0 --enable-scale-out --slow 1=2"), nil, in, &diag)
	}()
	var listing simListing
	if err := json.NewDecoder(out).Decode(&listing); err != nil {
		t.Fatal(err)
	}
	if listing.Model != "m" || len(listing.Workers) != 2 {
		t.Fatalf("listing %+v, want two workers of model m", listing)
	}
	for _, w := range listing.Workers {
		if !strings.HasPrefix(w.URL, "http://127.0.0.1:") || !strings.HasPrefix(w.Events, "tcp://127.0.0.1:") || !strings.HasPrefix(w.Replay, "tcp://127.0.0.1:") {
			t.Errorf("addresses %+v", w)
		}
		for path, want := range map[string]string{
			"/v1/chat/completions":        `"completion_tokens":5`,
			"/v1/chat/completions/render": `"token_ids":[`,
		} {
			resp, err := http.Post(w.URL+path, "application/json", strings.NewReader(`{"model":"m","messages":[{"role":"user","content":"Hello."}],"max_tokens":5}`))
			if err != nil {
				t.Fatal(err)
			}
			body, err := io.ReadAll(resp.Body)
			_ = resp.Body.Close()
			if err != nil || resp.StatusCode != http.StatusOK || !strings.Contains(string(body), want) {
				t.Errorf("%s: status %d, %v, body %s; want 200 with %s", path, resp.StatusCode, err, body, want)
			}
		}
	}
	http.DefaultClient.CloseIdleConnections()
	cancel()
	if got := <-code; got != exitOK {
		t.Errorf("exit code %d: %s", got, diag.String())
	}
}

func TestSimworkerUsage(t *testing.T) {
	f := func(flags, want string) {
		t.Helper()
		var out, diag bytes.Buffer
		code := execute(context.Background(), time.Now, append([]string{"simworker"}, strings.Fields(flags)...), nil, &out, &diag)
		if code != exitUsage || !strings.Contains(diag.String(), want) || out.Len() > 0 {
			t.Errorf("simworker %s: exit code %d, %q; want %d with %q", flags, code, diag.String(), exitUsage, want)
		}
	}
	f("--workers 0", "--workers is 0, should be at least 1")
	f("--prefill-tps 0", "--prefill-tps is 0, should be above 0")
	f("--slow 3", "--slow 3 is not INDEX=FACTOR, as in 0=3")
	f("--slow 1=2", "there is no worker 1, they count from 0 to 0")
	f("--slow 0=0", "the factor should be above 0")
	f("--blocks 10", "10 blocks of 16 tokens cannot hold one request of MaxModelLen 32768"[3:])
	f("--jitter 2", "timing: Jitter is 2")
}
