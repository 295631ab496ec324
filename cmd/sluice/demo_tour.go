package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/sluicegate/sluice/scoring/simworker"
)

// tour plays the demo against itself. Each step sends real requests and says
// what it saw; a step that didn't see what it must fails the tour.
type tour struct {
	d      *demo
	a      *app
	out    io.Writer
	client *http.Client
	base   string
}

func newTour(d *demo, a *app, out io.Writer) *tour {
	return &tour{d: d, a: a, out: out, base: a.baseURL(), client: &http.Client{Timeout: 30 * time.Second}}
}

// play runs every step in order, the books last, since they close over
// everything that was asked before.
func (t *tour) play(ctx context.Context) error {
	defer t.client.CloseIdleConnections()
	failed := 0
	for _, s := range []struct {
		name string
		run  func(context.Context) (string, error)
	}{
		{"no credential", t.noCredential},
		{"allowed, streaming", t.allowed},
		{"denied by a policy", t.denied},
		{"restricted data", t.restricted},
		{"a label nobody vouches for", t.untrustedLabel},
		{"cached prefix", t.cachedPrefix},
		{"cached prefix, long queue", t.spill},
		{"more work than workers", t.overload},
		{"rate limited", t.rateLimited},
		{"chargeback", t.chargeback},
		{"client leaves", t.clientLeaves},
	} {
		saw, err := s.run(ctx)
		if err != nil {
			failed++
			fmt.Fprintf(t.out, "FAIL  %-27s %v\n", s.name, err)
			continue
		}
		fmt.Fprintf(t.out, "ok    %-27s %s\n", s.name, saw)
	}
	if failed > 0 {
		return fmt.Errorf("%s of the tour failed", count(failed, "step"))
	}
	return nil
}

// answer is what one request brought.
type answer struct {
	status int
	header http.Header
	body   []byte
	ttft   time.Duration // to the first event of a stream
	usage  struct {
		Prompt     int `json:"prompt_tokens"`
		Completion int `json:"completion_tokens"`
		Details    struct {
			Cached int `json:"cached_tokens"`
		} `json:"prompt_tokens_details"`
	}
	code, message string
}

// ask sends a chat request as a tenant; an empty tenant sends no credential.
func (t *tour) ask(ctx context.Context, tenant string, body map[string]any, header ...string) (*answer, error) {
	body["model"] = demoModel
	text, err := json.Marshal(body)
	if err != nil {
		return nil, err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, t.base+"/v1/chat/completions", bytes.NewReader(text))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Content-Type", "application/json")
	if tenant != "" {
		req.Header.Set("Authorization", "Bearer "+t.d.keys[tenant])
	}
	for i := 0; i+1 < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	start := time.Now()
	resp, err := t.client.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	a := &answer{status: resp.StatusCode, header: resp.Header}
	first := bufio.NewReader(resp.Body)
	_, _ = first.Peek(1)
	a.ttft = time.Since(start)
	if a.body, err = io.ReadAll(first); err != nil {
		return nil, fmt.Errorf("the answer was cut short: %w", err)
	}
	var whole struct {
		Usage any `json:"usage"`
		Error struct{ Code, Message string }
	}
	whole.Usage = &a.usage
	if json.Unmarshal(a.body, &whole) == nil {
		a.code, a.message = whole.Error.Code, whole.Error.Message
	}
	return a, nil
}

func (a *answer) worker() string { return a.header.Get("x-sluice-worker") }

func (a *answer) want(status int, code string) error {
	if a.status != status || a.code != code {
		return fmt.Errorf("want status %d and code %q, got %d and %q: %s", status, code, a.status, a.code, a.message)
	}
	return nil
}

func user(text string) map[string]any {
	return map[string]any{"max_tokens": 4, "messages": []map[string]string{{"role": "user", "content": text}}}
}

// long is text of about n tokens. Without a native tokenizer the simulated
// workers count every byte as a token.
func (t *tour) long(seed, n int) string {
	if !t.d.native {
		n /= 7
	}
	return words(seed, n)
}

// words is deterministic text of so many words.
func words(seed, n int) string {
	list := []string{"river", "stone", "lamp", "harbour", "north", "seven", "window", "grain", "paper", "cloud", "market", "iron"}
	var b strings.Builder
	x := uint32(seed)*2654435761 + 1
	for range n {
		x = x*1664525 + 1013904223
		b.WriteString(list[x>>16%uint32(len(list))])
		b.WriteByte(' ')
	}
	return b.String()
}

// seen is how many requests have reached any worker.
func (t *tour) seen() (n uint64) {
	for _, w := range t.d.workers {
		n += w.Stats().Seen
	}
	return n
}

func (t *tour) noCredential(ctx context.Context) (string, error) {
	before := t.seen()
	a, err := t.ask(ctx, "", user("hello"))
	if err != nil {
		return "", err
	}
	if err := a.want(401, "invalid_api_key"); err != nil {
		return "", err
	}
	if t.seen() != before {
		return "", errors.New("a worker was called")
	}
	return "401, and no worker was called", nil
}

func (t *tour) allowed(ctx context.Context) (string, error) {
	body := user("Tell me about rivers.")
	body["stream"] = true
	a, err := t.ask(ctx, "acme", body)
	if err != nil {
		return "", err
	}
	if a.status != 200 || !bytes.HasSuffix(a.body, []byte("data: [DONE]\n\n")) {
		return "", fmt.Errorf("want a whole stream, got %d: %.200s", a.status, a.body)
	}
	if bytes.Contains(a.body, []byte(`"usage"`)) {
		return "", errors.New("the stream shows usage that the client did not ask for")
	}
	return fmt.Sprintf("first event after %v, from %s, %s us spent in the gateway", a.ttft.Round(time.Millisecond), a.worker(), a.header.Get("x-sluice-overhead-us")), nil
}

func (t *tour) denied(ctx context.Context) (string, error) {
	before := t.seen()
	body := user("list the files")
	body["tools"] = []any{map[string]any{"type": "function", "function": map[string]any{"name": "shell", "parameters": map[string]any{"type": "object"}}}}
	a, err := t.ask(ctx, "initech", body)
	if err != nil {
		return "", err
	}
	if err := a.want(403, "policy_denied"); err != nil {
		return "", err
	}
	if t.seen() != before {
		return "", errors.New("a worker was called")
	}
	return fmt.Sprintf("403 %q", a.message), nil
}

func (t *tour) restricted(ctx context.Context) (string, error) {
	for i := range 5 {
		a, err := t.ask(ctx, "acme", user(words(i, 20)), "x-sluice-content-labels", "pii")
		if err != nil {
			return "", err
		}
		if a.status != 200 || a.worker() != "restricted-1" {
			return "", fmt.Errorf("want restricted-1 to answer, got %d from %q: %s", a.status, a.worker(), a.message)
		}
	}
	return "5 of 5 labelled pii went to restricted-1", nil
}

func (t *tour) untrustedLabel(ctx context.Context) (string, error) {
	seen := make(map[string]int)
	for i := range 6 {
		a, err := t.ask(ctx, "globex", user(words(100+i, 20)), "x-sluice-content-labels", "pii", "x-tenant-id", "acme")
		if err != nil {
			return "", err
		}
		if a.status != 200 {
			return "", fmt.Errorf("got %d: %s", a.status, a.message)
		}
		seen[a.worker()]++
	}
	if n := seen["general-1"] + seen["general-2"]; n == 0 {
		return "", fmt.Errorf("a header of a tenant that may not declare labels moved its requests: %v", seen)
	}
	return "its x-sluice-content-labels and x-tenant-id headers changed nothing", nil
}

// cachedPrefix asks again and again with one long beginning: the worker that
// read it first must get the rest, and answer from its cache.
func (t *tour) cachedPrefix(ctx context.Context) (string, error) {
	prefix := t.long(7, 2500)
	first, err := t.ask(ctx, "acme", user(prefix+"question 0"))
	if err != nil {
		return "", err
	}
	home, cold := first.worker(), first.ttft
	if first.status != 200 || first.usage.Details.Cached > 64 {
		return "", fmt.Errorf("the first answer: status %d, %d tokens cached: %s", first.status, first.usage.Details.Cached, first.message)
	}
	cached, prompt, warm := 0, 0, time.Duration(0)
	const again = 5
	for i := range again {
		a, err := t.ask(ctx, "acme", user(fmt.Sprintf("%squestion %d", prefix, i+1)))
		if err != nil {
			return "", err
		}
		if a.status != 200 || a.worker() != home {
			return "", fmt.Errorf("request %d went to %q and not to %s, which holds the prefix (status %d %s)", i+1, a.worker(), home, a.status, a.message)
		}
		cached, prompt, warm = cached+a.usage.Details.Cached, prompt+a.usage.Prompt, warm+a.ttft/again
	}
	if cached*10 < prompt*9 {
		return "", fmt.Errorf("%s had only %d of %d prompt tokens in its cache", home, cached, prompt)
	}
	return fmt.Sprintf("%d of %d went to %s, which had %d%% of the tokens; answer after %v instead of %v",
		again, again, home, 100*cached/prompt, warm.Round(time.Millisecond), cold.Round(time.Millisecond)), nil
}

// spill sends, at once, more work that begins alike than one worker should
// take: some must leave the worker that holds the prefix.
func (t *tour) spill(ctx context.Context) (string, error) {
	prefix := t.long(7, 400)
	if _, err := t.ask(ctx, "acme", user(prefix)); err != nil {
		return "", err
	}
	// A machine that has much else to do may send the requests one after the
	// other, so that there is no queue to avoid: then once more.
	for attempt := 1; ; attempt++ {
		served, err := t.atOnce(ctx, prefix, 100*attempt)
		switch {
		case err != nil:
			return "", err
		case served["general-1"] > 0 && served["general-2"] > 0:
			return fmt.Sprintf("8 at once were shared: general-1 %d, general-2 %d, restricted-1 %d", served["general-1"], served["general-2"], served["restricted-1"]), nil
		case attempt == 4:
			return "", fmt.Errorf("all of them queued at one worker: %v", served)
		}
	}
}

// atOnce sends eight requests that begin with prefix and says who served them.
func (t *tour) atOnce(ctx context.Context, prefix string, seed int) (map[string]int, error) {
	var mu sync.Mutex
	var wg sync.WaitGroup
	served := make(map[string]int)
	var failed error
	for i := range 8 {
		wg.Go(func() {
			a, err := t.ask(ctx, "acme", user(prefix+t.long(1000+seed+i, 3000)))
			mu.Lock()
			defer mu.Unlock()
			switch {
			case err != nil:
				failed = err
			case a.status != 200:
				failed = fmt.Errorf("got %d: %s", a.status, a.message)
			default:
				served[a.worker()]++
			}
		})
	}
	wg.Wait()
	return served, failed
}

func (t *tour) rateLimited(ctx context.Context) (string, error) {
	for sent := range 200 {
		before := t.seen()
		a, err := t.ask(ctx, "initech", user("hello"))
		if err != nil {
			return "", err
		}
		if a.status == 200 {
			continue
		}
		if err := a.want(429, "rate_limit_exceeded"); err != nil {
			return "", err
		}
		wait, err := strconv.Atoi(a.header.Get("Retry-After"))
		if err != nil || wait < 1 {
			return "", fmt.Errorf("a 429 with Retry-After %q", a.header.Get("Retry-After"))
		}
		if t.seen() != before {
			return "", errors.New("a worker was called")
		}
		return fmt.Sprintf("429 after %s, Retry-After %d s, %q", count(sent, "request"), wait, a.message), nil
	}
	return "", errors.New("200 requests of the bronze tenant were all admitted")
}

// clientLeaves closes a stream in its middle and waits for the worker to stop.
func (t *tour) clientLeaves(ctx context.Context) (string, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	before := t.aborted()
	body := user("Write a very long story.")
	body["stream"], body["max_tokens"] = true, 4000
	text, err := json.Marshal(body)
	if err != nil {
		return "", err
	}
	text = bytes.Replace(text, []byte(`{`), []byte(`{"model":"`+demoModel+`","ignore_eos":true,`), 1)
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, t.base+"/v1/chat/completions", bytes.NewReader(text))
	if err != nil {
		return "", err
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Authorization", "Bearer "+t.d.keys["globex"])
	resp, err := t.client.Do(req)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	if _, err := bufio.NewReader(resp.Body).ReadString('\n'); err != nil {
		return "", fmt.Errorf("no first event (status %d): %w", resp.StatusCode, err)
	}
	left := time.Now()
	cancel()
	for t.aborted() == before {
		if time.Since(left) > 10*time.Second {
			return "", errors.New("ten seconds after its client left, the worker was still generating")
		}
		time.Sleep(5 * time.Millisecond)
	}
	return fmt.Sprintf("the worker stopped %v after its client left", time.Since(left).Round(time.Millisecond)), nil
}

func (t *tour) aborted() (n uint64) {
	for _, w := range t.d.workers {
		n += w.Stats().Aborted
	}
	return n
}

// totals sums what the workers say they did.
func totals(workers map[string]*simworker.Worker) (prompt, cached, output int64) {
	for _, w := range workers {
		s := w.Stats()
		prompt += int64(s.PromptComputed + s.PromptCached)
		cached += int64(s.PromptCached)
		output += int64(s.GenerationTokens)
	}
	return prompt, cached, output
}
