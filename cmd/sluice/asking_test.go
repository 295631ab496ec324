package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptrace"
	"slices"
	"strings"
	"sync"
	"time"
)

// told is what a client learned of one request.
type told struct {
	kind   string
	status int // 0: nothing came
	// whole says that the client takes the answer for the whole of it: a body of
	// the announced length, or a stream with its terminal mark.
	whole bool
	// failed says that a stream ended with an error event.
	failed bool
	// left says that the client went away on its own account.
	left bool
	// usage is what the client was told that it used; nil if it wasn't.
	usage *usageTold
	// events with content that it had read of a stream.
	events int
	// lost is why nothing came.
	lost string
}

type usageTold struct {
	Prompt     int `json:"prompt_tokens"`
	Completion int `json:"completion_tokens"`
	Details    struct {
		Cached int `json:"cached_tokens"`
	} `json:"prompt_tokens_details"`
}

// askers are clients that ask gateways for everything that a client may want,
// and note under each x-request-id what they were told.
type askers struct {
	keys map[string]string // credential by tenant
	// prefix makes the ids of several askers differ.
	prefix string
	// only are the kinds of requests that are made; empty: all.
	only []string

	mu    sync.Mutex // protects what follows
	rng   *rand.Rand
	next  int
	heard map[string]told
}

func newAskers(keys map[string]string, prefix string, seed uint64) *askers {
	return &askers{keys: keys, prefix: prefix, rng: rand.New(rand.NewPCG(seed, 1)), heard: make(map[string]told)}
}

// asking is one request to be sent.
type asking struct {
	id, kind, tenant string
	body             map[string]any
	// leaveAfter is after how many events the client goes away; -1: it stays.
	leaveAfter int
	// leaveIn is when a client goes away that waits for an answer; 0: it stays.
	leaveIn time.Duration
	// hasty clients go away at the terminal mark, and don't wait for the end of
	// the response.
	hasty bool
}

// kinds of requests and how often each is made.
var askingKinds = []struct {
	name  string
	share int
}{
	{"unary", 30}, {"stream", 30}, {"leaves a stream", 14}, {"leaves", 6}, {"two choices", 6},
	{"refused by a rule", 5}, {"no such model", 3}, {"no credential", 2}, {"limited", 4},
}

// draw makes up the next request.
func (a *askers) draw() asking {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.next++
	q := asking{id: fmt.Sprintf("%s-%d", a.prefix, a.next), tenant: "acme", leaveAfter: -1}
	q.kind = a.kindLocked()
	// Few beginnings, so that caches are found full.
	text := words(a.rng.IntN(20), 20+a.rng.IntN(150)) + words(1000+a.next, a.rng.IntN(20))
	q.body = map[string]any{
		"model": demoModel, "max_tokens": 1 + a.rng.IntN(40), "ignore_eos": a.rng.IntN(2) == 0,
		"messages": []map[string]string{{"role": "user", "content": text}},
	}
	if a.rng.IntN(4) == 0 {
		q.tenant = "globex"
	}
	switch q.kind {
	case "stream", "leaves a stream":
		q.body["stream"] = true
		q.hasty = a.rng.IntN(4) == 0
		if a.rng.IntN(3) > 0 {
			q.body["stream_options"] = map[string]bool{"include_usage": true}
		}
		if q.kind != "stream" {
			q.leaveAfter = a.rng.IntN(12)
			q.body["max_tokens"], q.body["ignore_eos"] = 200, true
		}
	case "leaves":
		q.leaveIn = time.Duration(1+a.rng.IntN(60)) * time.Millisecond
		q.body["stream"] = a.rng.IntN(2) == 0
	case "two choices":
		q.body["n"], q.body["stream"] = 2, a.rng.IntN(2) == 0
	case "refused by a rule":
		q.tenant = "initech"
		q.body["tools"] = []any{map[string]any{"type": "function", "function": map[string]any{"name": "shell", "parameters": map[string]any{"type": "object"}}}}
	case "no such model":
		q.body["model"] = "nobody-has-this"
	case "no credential":
		q.tenant = ""
	case "limited":
		q.tenant = "initech"
	}
	return q
}

// asMany has askers go on for a time, and until they have made so many requests.
func (a *askers) asMany(least int, d time.Duration) (more func() bool) {
	end := time.Now().Add(d)
	return func() bool {
		a.mu.Lock()
		defer a.mu.Unlock()
		return a.next < least || time.Now().Before(end)
	}
}

// kindLocked draws a kind of request. The mutex is held.
func (a *askers) kindLocked() string {
	for {
		n := a.rng.IntN(100)
		for _, k := range askingKinds {
			if n -= k.share; n < 0 {
				if len(a.only) == 0 || slices.Contains(a.only, k.name) {
					return k.name
				}
				break
			}
		}
	}
}

// run sends requests from so many clients for as long as there are to be more or,
// for each client, until nobody answers any more. bases are the gateways, taken in
// turn.
func (a *askers) run(more func() bool, clients int, bases ...string) {
	// A connection that lies idle for 75 s is closed by the gateway, which a request would
	// cross that is sent on it just then.
	transport := &http.Transport{MaxIdleConnsPerHost: clients, IdleConnTimeout: 30 * time.Second}
	defer transport.CloseIdleConnections()
	var wg sync.WaitGroup
	for i := range clients {
		wg.Go(func() {
			for n := i; more(); n++ {
				q := a.draw()
				got := ask(context.Background(), transport, bases[n%len(bases)], a.keys[q.tenant], &q)
				for again := 0; got.crossed() && again < 3; again++ {
					got = ask(context.Background(), transport, bases[n%len(bases)], a.keys[q.tenant], &q)
				}
				a.note(q.id, got)
				switch {
				case got.status == 0 && !got.left:
					return
				case got.status == http.StatusTooManyRequests:
					time.Sleep(10 * time.Millisecond) // as who is told to come later
				}
			}
		})
	}
	wg.Wait()
}

// crossed says that a request was sent on a kept connection that the gateway was just
// closing, as it does behind an error event: it never arrived, and clients send such
// a request again.
func (t *told) crossed() bool {
	return t.status == 0 && strings.Contains(t.lost, "server closed idle connection")
}

func (a *askers) note(id string, got told) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.heard[id] = got
}

// ask sends one request, and returns what its client learned, however it ended.
func ask(ctx context.Context, transport http.RoundTripper, base, key string, q *asking) (got told) {
	got.kind = q.kind
	text, err := json.Marshal(q.body)
	if err != nil {
		panic("BUG: " + err.Error())
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	if q.leaveIn > 0 {
		leave := time.AfterFunc(q.leaveIn, cancel)
		defer leave.Stop()
	}
	var conn net.Conn
	ctx = httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{GotConn: func(i httptrace.GotConnInfo) { conn = i.Conn }})
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, base+"/v1/chat/completions", bytes.NewReader(text))
	if err != nil {
		panic("BUG: " + err.Error())
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("X-Request-Id", q.id)
	if key != "" {
		req.Header.Set("Authorization", "Bearer "+key)
	}
	resp, err := transport.RoundTrip(req)
	if err != nil {
		got.left, got.lost = ctx.Err() != nil, fmt.Sprintf("%v (%T)", err, err)
		return got
	}
	defer resp.Body.Close()
	got.status = resp.StatusCode
	if strings.HasPrefix(resp.Header.Get("Content-Type"), "text/event-stream") {
		got.readStream(resp.Body, q.leaveAfter)
		if got.failed {
			// Its end comes right behind, and would meet a request that is sent on it.
			conn.Close()
		}
		if got.whole && !q.hasty {
			_, _ = io.Copy(io.Discard, resp.Body)
		}
	} else {
		got.readWhole(resp.Body)
	}
	if !got.whole && ctx.Err() != nil {
		got.left = true
	}
	return got
}

func (t *told) readWhole(body io.Reader) {
	text, err := io.ReadAll(body)
	if err != nil {
		return
	}
	t.whole = true
	var answer struct{ Usage *usageTold }
	if json.Unmarshal(text, &answer) == nil {
		t.usage = answer.Usage
	}
}

// readStream reads events to the end of the stream, or until its client leaves.
func (t *told) readStream(body io.Reader, leaveAfter int) {
	lines := bufio.NewReader(body)
	for n := 0; n != leaveAfter; {
		line, err := lines.ReadString('\n')
		if err != nil {
			return
		}
		data, ok := strings.CutPrefix(line, "data: ")
		if !ok {
			continue
		}
		n++
		if data == "[DONE]\n" {
			t.whole = true
			return
		}
		var event struct {
			Error   any
			Usage   *usageTold
			Choices []struct{ Delta struct{ Content string } }
		}
		if json.Unmarshal([]byte(data), &event) != nil {
			continue
		}
		if event.Error != nil {
			t.failed = true
			return
		}
		if event.Usage != nil {
			t.usage = event.Usage
		}
		if len(event.Choices) > 0 && event.Choices[0].Delta.Content != "" {
			t.events++
		}
	}
	t.left = true
}
