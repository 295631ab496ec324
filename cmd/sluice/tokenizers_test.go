//go:build cgo && !notokenizers

package main

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sluicegate/sluice/gateway"
	"github.com/sluicegate/sluice/gateway/openai"
	"github.com/sluicegate/sluice/gateway/wire"
	"github.com/sluicegate/sluice/scoring"
	"github.com/sluicegate/sluice/scoring/simworker"
	"github.com/sluicegate/sluice/scoring/simworker/model"
	"github.com/sluicegate/sluice/scoring/tokenize"
	"github.com/sluicegate/sluice/scoring/tokenize/verify"
	"github.com/sluicegate/sluice/tenancy"
)

// bentTokenizer is an engine's tokenizer that puts one id more before the
// prompts of bodies that hold a certain text. Without one it is unbent. It takes
// templates that come with a request.
type bentTokenizer struct {
	simworker.Tokenizer
	where atomic.Pointer[string]
}

func (b *bentTokenizer) bend(where string) { b.where.Store(&where) }

func (b *bentTokenizer) bent(body []byte) bool {
	where := b.where.Load()
	return where != nil && bytes.Contains(body, []byte(*where))
}

// EncodeChat implements simworker.Tokenizer.
func (b *bentTokenizer) EncodeChat(body []byte) ([]uint32, error) {
	if bytes.Contains(body, []byte(`"chat_template":`)) {
		return []uint32{9}, nil
	}
	ids, err := b.Tokenizer.EncodeChat(body)
	if b.bent(body) {
		ids = append([]uint32{7}, ids...)
	}
	return ids, err
}

// tokenRig is a worker with the demo model's tokenizer, and tokenizers that know
// it.
type tokenRig struct {
	t      *testing.T
	engine *bentTokenizer
	worker *simworker.Worker
	fleet  *scoring.Fleet
	id     scoring.WorkerID
	tokens *tokenizers
	log    *bytes.Buffer // to be read once Run has returned
	stop   func()
}

// demoTokenizer loads the demo model whatever the configuration says.
func demoTokenizer(_ *ModelConfig, opts tokenize.Options) (*tokenize.Tokenizer, error) {
	return tokenize.LoadFS(model.FS, opts)
}

func newTokenRig(t *testing.T, engine simworker.Tokenizer, load tokenizerLoader, change func(*Config)) *tokenRig {
	t.Helper()
	r := &tokenRig{t: t, engine: &bentTokenizer{Tokenizer: engine}, log: &bytes.Buffer{}}
	cfg := simworker.DefaultConfig()
	cfg.Model = "upstream-name"
	var err error
	if r.worker, err = simworker.Start(cfg, r.engine); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = r.worker.Close() })
	r.fleet = scoring.NewFleet(scoring.DefaultConfig())
	r.id, err = r.fleet.Add(time.Now(), scoring.WorkerSpec{Name: "w", Pool: "p", Address: r.worker.URL(), Models: []string{demoModel}})
	if err != nil {
		t.Fatal(err)
	}
	r.fleet.SetReady(time.Now(), r.id, true, "")
	c := DefaultConfig()
	c.Models = []ModelConfig{{Name: demoModel, Upstream: cfg.Model, BytesPerToken: 3}}
	c.Tokens.SampleEvery = 0
	if change != nil {
		change(&c)
	}
	r.tokens = newTokenizers(&c, load, newRoster(r.fleet, nil), newLogger(r.log, LogConfig{Level: "info", Format: "text"}))
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := r.tokens.Run(ctx); err != nil {
			t.Error(err)
		}
	}()
	r.stop = func() { cancel(); <-done }
	t.Cleanup(func() { r.stop(); r.tokens.Close() })
	return r
}

// demoEngine is the demo model's tokenizer for a simulated worker.
func demoEngine(t *testing.T) *simTokenizer {
	t.Helper()
	lent, err := tokenize.LoadFS(model.FS, tokenize.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = lent.Close() })
	size, err := vocabularySize(model.FS)
	if err != nil {
		t.Fatal(err)
	}
	return &simTokenizer{local: lent, size: size}
}

func (r *tokenRig) model() *modelTokenizer { return r.tokens.models[demoModel] }

func (r *tokenRig) wait(what string, want tokenState) {
	r.t.Helper()
	soon(r.t, what, stackPatience, func() bool { return r.model().state() == want })
}

// ask tokenises a body as the gateway does, and says where the ids came from.
func (r *tokenRig) ask(op wire.Operation, body string) (gateway.Tokens, string) {
	r.t.Helper()
	var req wire.Request
	if err := openai.Scan(&req, op, []byte(body)); err != nil {
		r.t.Fatal(err)
	}
	var before [len(tokenSources)]int64
	for i := range before {
		before[i] = r.model().used[i].Load()
	}
	m, pools := &gateway.Model{Name: demoModel, BytesPerToken: 3}, []string{"p"}
	got := r.tokens.Local(r.t.Context(), nil, m, &req, []byte(body))
	if got.AskWorker {
		got = r.tokens.Remote(r.t.Context(), nil, m, pools, &req, []byte(body))
	} else if got.Local {
		r.tokens.Sample(m, pools, &req, []byte(body))
	}
	source := ""
	for i := range before {
		if r.model().used[i].Load() > before[i] {
			source += tokenSources[i]
		}
	}
	return got, source
}

func chatOf(text, more string) string {
	return fmt.Sprintf(`{"model":"m","messages":[{"role":"user","content":%q}]%s}`, text, more)
}

// TestTokensFollowTheEngine loads what a configuration may name and holds it
// against a worker: what agrees is used, what disagrees or isn't there gives way
// to the worker's own ids, and the log says so.
func TestTokensFollowTheEngine(t *testing.T) {
	own := demoEngine(t)
	for _, c := range []struct {
		name   string
		engine simworker.Tokenizer
		load   tokenizerLoader
		state  tokenState
		source string
		log    string
	}{
		{"agrees", own, demoTokenizer, tokensVerified, "local", "the local tokenizer agrees with the worker"},
		{"disagrees", simworker.NewByteTokenizer(), demoTokenizer, tokensMismatch, "worker", "the local tokenizer disagrees with the worker"},
		{
			"none configured", own, func(*ModelConfig, tokenize.Options) (*tokenize.Tokenizer, error) { return nil, nil },
			tokensRemote, "worker", "no tokenizer configured: token ids come from the workers' /tokenize",
		}, {
			"none built in", own, func(*ModelConfig, tokenize.Options) (*tokenize.Tokenizer, error) { return nil, tokenize.ErrNoNative },
			tokensRemote, "worker", "this build has no native tokenizers: token ids come from the workers' /tokenize",
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := newTokenRig(t, c.engine, c.load, nil)
			r.wait("a verdict", c.state)
			body := chatOf("Tell me about rivers.", "")
			want, err := c.engine.EncodeChat([]byte(body))
			if err != nil {
				t.Fatal(err)
			}
			got, source := r.ask(wire.Chat, body)
			if !slices.Equal(got.IDs, want) || got.Count != len(want) || !got.Exact || source != c.source {
				t.Errorf("got %+v from %s, want the engine's %v from %s", got, source, want, c.source)
			}
			r.stop()
			if !strings.Contains(r.log.String(), c.log) {
				t.Errorf("the log lacks %q:\n%s", c.log, r.log.String())
			}
		})
	}
}

// TestOneShapeGoesToTheWorkers: an engine that prints tools in another way is
// asked about requests with tools, and about no others.
func TestOneShapeGoesToTheWorkers(t *testing.T) {
	own := demoEngine(t)
	r := newTokenRig(t, own, demoTokenizer, nil)
	r.wait("a verdict", tokensVerified)
	r.engine.bend(`"tools"`)
	r.fleet.SetReady(time.Now(), r.id, false, "restarting")
	soon(t, "the roster to see it leave", stackPatience, func() bool { return len(r.tokens.roster.ready(demoModel)) == 0 })
	r.fleet.SetReady(time.Now(), r.id, true, "")
	soon(t, "a new verdict", stackPatience, func() bool {
		c := r.model().here.Load().checker
		return !c.Trusts(verify.ChatTools) && !c.Trusts(verify.ChatToolCalls) && !c.Trusts(verify.MessagesTools)
	})
	if _, source := r.ask(wire.Chat, chatOf("hi", "")); source != "local" {
		t.Errorf("a plain request went to %s", source)
	}
	const tools = `,"tools":[{"type":"function","function":{"name":"f"}}]`
	got, source := r.ask(wire.Chat, chatOf("hi", tools))
	if source != "worker" || !got.Exact || got.IDs[0] != 7 {
		t.Errorf("a request with tools got %+v from %s, want the engine's own ids", got, source)
	}
	page := r.tokens.pages()[demoModel]
	if page.State != "partial" || page.Requests["worker"] != 1 || page.Requests["local"] != 1 {
		t.Errorf("the page says %+v", page)
	}
	for _, s := range page.Shapes {
		bad := slices.Contains([]string{"chat-tools", "chat-tool-calls", "messages-tools"}, s.Shape)
		if bad != (s.State == "mismatch") || bad != (s.Last != nil) {
			t.Errorf("the page says %+v", s)
		}
	}
}

// TestLiveRequestsAreSampled: what no probe shows, a request does, and from then
// on such requests get the engine's ids.
func TestLiveRequestsAreSampled(t *testing.T) {
	r := newTokenRig(t, demoEngine(t), demoTokenizer, func(c *Config) { c.Tokens.SampleEvery = 1 })
	r.engine.bend("rare word")
	r.wait("a verdict", tokensVerified)
	if _, source := r.ask(wire.Chat, chatOf("a rare word", "")); source != "local" {
		t.Fatalf("the first one went to %s", source)
	}
	r.wait("the sample to be judged", tokensPartial)
	got, source := r.ask(wire.Chat, chatOf("a rare word", ""))
	if source != "worker" || got.IDs[0] != 7 {
		t.Errorf("after that it got %+v from %s", got, source)
	}
	r.stop()
	if strings.Contains(r.log.String(), "rare") {
		t.Errorf("the log quotes a request:\n%s", r.log.String())
	}
}

// TestAnswersPutATokenizerInDoubt swaps the engine's tokenizer behind the
// gateway's back: three answers with another prompt length have it compared
// again and set aside.
func TestAnswersPutATokenizerInDoubt(t *testing.T) {
	r := newTokenRig(t, demoEngine(t), demoTokenizer, nil)
	r.wait("a verdict", tokensVerified)
	answer := func(engine int64) {
		r.tokens.observe(&gateway.Summary{Tokens: gateway.Tokens{Count: 10, Exact: true, Local: true}, Row: &tenancy.Row{
			Model: demoModel, Outcome: tenancy.OutcomeCompleted, InputTokens: engine, Start: time.Now(),
		}})
	}
	r.engine.bend("messages")
	for _, n := range []int64{11, 11, 10, 11, 11, 10, 11, 11} {
		answer(n)
	}
	if s := r.model().state(); s != tokensVerified {
		t.Fatalf("the state is %v after two in a row", s)
	}
	// What a worker counted says nothing of the local tokenizer.
	r.tokens.observe(&gateway.Summary{Tokens: gateway.Tokens{Count: 11, Exact: true}, Row: &tenancy.Row{
		Model: demoModel, Outcome: tenancy.OutcomeCompleted, InputTokens: 11, Start: time.Now(),
	}})
	answer(11)
	r.wait("the tokenizer to be set aside", tokensPartial)
	if n := r.model().here.Load().checker.Status().Disagreements; n != 7 {
		t.Errorf("%d disagreements were counted, want 7", n)
	}
}

// TestWhatIsAskedOfWhom goes through the kinds of bodies.
func TestWhatIsAskedOfWhom(t *testing.T) {
	r := newTokenRig(t, demoEngine(t), demoTokenizer, nil)
	r.wait("a verdict", tokensVerified)
	one, _ := r.ask(wire.Completion, `{"model":"m","prompt":"once"}`)
	long, _ := r.ask(wire.Completion, `{"model":"m","prompt":"once upon a time there was"}`)
	got, source := r.ask(wire.Completion, `{"model":"m","prompt":["once","once upon a time there was","once"]}`)
	if source != "local" || !slices.Equal(got.IDs, long.IDs) || got.Count != long.Count+2*one.Count || !got.Exact {
		t.Errorf("three texts got %+v from %s, want the longest one's %v and the count of all", got, source, long.IDs)
	}
	got, source = r.ask(wire.Completion, `{"model":"m","prompt":[5,6,7]}`)
	if source != "client" || !slices.Equal(got.IDs, []uint32{5, 6, 7}) || got.Count != 3 || !got.Exact {
		t.Errorf("ids got %+v from %s", got, source)
	}
	got, source = r.ask(wire.Completion, `{"model":"m","prompt":[[5],[6,7],[8,9]]}`)
	if source != "client" || !slices.Equal(got.IDs, []uint32{6, 7}) || got.Count != 5 || !got.Exact {
		t.Errorf("lists of ids got %+v from %s", got, source)
	}
	// Nobody here computes the ids of a request with its own template; a worker may.
	if got, source = r.ask(wire.Chat, chatOf("hi", `,"chat_template":"{{ messages }}"`)); source != "worker" || !got.Exact {
		t.Errorf("a request with a template got %+v from %s", got, source)
	}
	// /tokenize does not know of truncation, and an invalid body has no ids.
	for more, count := range map[string]int{`,"truncate_prompt_tokens":5`: 1, `,"tools":[{"type":"x"}]`: 5} {
		if got, source = r.ask(wire.Chat, chatOf("hi", more)); source != "estimate" || got.IDs != nil || got.Count != count || got.Exact {
			t.Errorf("%s got %+v from %s, want an estimate", more, got, source)
		}
	}
	// Before a picture the ids are known, and nothing is claimed of what follows.
	// The estimate counts the picture.
	const conversation = `{"model":"m","messages":[{"role":"system","content":"Be brief."},{"role":"user","content":%s}]}`
	plain, _ := r.ask(wire.Chat, fmt.Sprintf(conversation, `"a"`))
	got, source = r.ask(wire.Chat, fmt.Sprintf(conversation, `[{"type":"image_url","image_url":{"url":"http://x"}},{"type":"text","text":"a"}]`))
	if n := len(got.IDs); source != "beginning" || got.Exact || got.Count < 500 || n == 0 || n >= len(plain.IDs) || !slices.Equal(got.IDs, plain.IDs[:n]) {
		t.Errorf("a request with a picture got %+v from %s, want a beginning of %v", got, source, plain.IDs)
	}
	calls := r.tokens.remoteWorkers()["w"]
	if calls.Answered == 0 || calls.Breaker != "closed" {
		t.Errorf("the worker's state is %+v", calls)
	}
}

// TestWorkerThatFailsIsNotWaitedFor: its /tokenize is left alone after a few
// failures, and requests go on with an estimate by what answers taught.
func TestWorkerThatFailsIsNotWaitedFor(t *testing.T) {
	r := newTokenRig(t, demoEngine(t), func(*ModelConfig, tokenize.Options) (*tokenize.Tokenizer, error) { return nil, nil }, nil)
	if err := r.worker.Close(); err != nil {
		t.Fatal(err)
	}
	for range 2000 {
		r.tokens.observe(&gateway.Summary{TextBytes: 100, PlainText: true, Row: &tenancy.Row{
			Model: demoModel, Outcome: tenancy.OutcomeCompleted, InputTokens: 20,
		}})
	}
	body := chatOf(strings.Repeat("x", 1000), "")
	for range 10 {
		if got, source := r.ask(wire.Chat, body); source != "estimate" || got.Count < 195 || got.Count > 205 || got.Exact {
			t.Fatalf("got %+v from %s, want an estimate of 200", got, source)
		}
	}
	if w := r.tokens.remoteWorkers()["w"]; w.Breaker != "open" || w.Failed != 5 || w.Broken != 5 {
		t.Errorf("the worker's state is %+v, want 5 failures and 5 requests that did not ask", w)
	}
}

func TestRosterTellsIncarnationsApart(t *testing.T) {
	fleet := scoring.NewFleet(scoring.DefaultConfig())
	now := time.Now()
	id, err := fleet.Add(now, scoring.WorkerSpec{Name: "w", Pool: "p", Address: "http://w", Models: []string{"m", "alias"}, Adapters: []string{"lora"}})
	if err != nil {
		t.Fatal(err)
	}
	r := newRoster(fleet, map[string]string{"p": "key"})
	list := func() []rosterEntry {
		now = now.Add(time.Second)
		r.mu.Lock()
		r.make(now)
		r.mu.Unlock()
		for _, name := range []string{"alias", "lora"} {
			if !slices.Equal(r.byModel[name], r.byModel["m"]) {
				t.Errorf("%s has %v, the model %v", name, r.byModel[name], r.byModel["m"])
			}
		}
		return r.byModel["m"]
	}
	if got := list(); got != nil {
		t.Errorf("a worker that is not ready is listed: %v", got)
	}
	fleet.SetReady(now, id, true, "")
	first := list()
	if len(first) != 1 || first[0].name != "w" || first[0].target("u") != (tokenize.Target{URL: "http://w", Model: "u", APIKey: "key"}) {
		t.Fatalf("the list is %+v", first)
	}
	if again := list(); again[0].incarnation != first[0].incarnation {
		t.Error("a worker that stayed is taken for another one")
	}
	fleet.SetReady(now, id, false, "down")
	list()
	fleet.SetReady(now, id, true, "")
	if back := list(); back[0].incarnation == first[0].incarnation {
		t.Error("a worker that was away is taken for the same one")
	}
	fleet.Remove(id)
	if list(); len(r.seen) != 0 {
		t.Errorf("%d workers are remembered, want none", len(r.seen))
	}
}

func TestTokenRatio(t *testing.T) {
	var r tokenRatio
	r.start(3)
	if got := r.bytesPerToken(); got != 3 {
		t.Errorf("the ratio is %v before anything is learned, want 3", got)
	}
	r.learn(0, 5)
	r.learn(5, 0)
	if got := r.bytesPerToken(); got != 3 {
		t.Errorf("the ratio is %v after answers that say nothing, want 3", got)
	}
	for range 2000 {
		r.learn(450, 100)
	}
	if got := r.bytesPerToken(); got < 4.49 || got > 4.51 {
		t.Errorf("the ratio is %v, want 4.5", got)
	}
	for range 3000 {
		r.learn(1<<20, 1)
	}
	if got := r.bytesPerToken(); got != 12 {
		t.Errorf("the ratio is %v, want no more than 12", got)
	}
	for range 6000 {
		r.learn(1, 1<<20)
	}
	if got := r.bytesPerToken(); got != 0.75 {
		t.Errorf("the ratio is %v, want no less than 0.75", got)
	}
}

func TestShapeOf(t *testing.T) {
	const user, system = `{"role":"user","content":"a"}`, `{"role":"system","content":"a"}`
	const parts = `{"role":"user","content":[{"type":"text","text":"a"}]}`
	const call = `{"role":"assistant","tool_calls":[{"id":"1","type":"function","function":{"name":"f","arguments":"{}"}}]}`
	const tools = `,"tools":[{"type":"function","function":{"name":"f"}}]`
	for _, c := range []struct {
		messages, more string
		want           verify.Shape
	}{
		{user, "", verify.ChatPlain},
		{system + "," + user, "", verify.ChatSystem},
		{system + "," + user + "," + user, "", verify.ChatTurns},
		{system + "," + user + "," + parts, "", verify.ChatParts},
		{parts, tools, verify.ChatTools},
		{user + "," + call, tools, verify.ChatToolCalls},
		{user + "," + call, tools + `,"chat_template_kwargs":{"a":1}`, verify.ChatKwargs},
		{user, tools + `,"reasoning_effort":"low","add_generation_prompt":false`, verify.ChatContinue},
	} {
		var req wire.Request
		body := `{"model":"m","messages":[` + c.messages + `]` + c.more + `}`
		if err := openai.Scan(&req, wire.Chat, []byte(body)); err != nil {
			t.Fatal(err)
		}
		if got := shapeOf(&req); got != c.want {
			t.Errorf("%s is %v, want %v", body, got, c.want)
		}
	}
	for prompt, want := range map[string]verify.Shape{`"a"`: verify.CompletionText, `["a"]`: verify.CompletionText, `["a","b"]`: verify.CompletionTexts} {
		var req wire.Request
		if err := openai.Scan(&req, wire.Completion, []byte(`{"model":"m","prompt":`+prompt+`}`)); err != nil {
			t.Fatal(err)
		}
		if got := shapeOf(&req); got != want {
			t.Errorf("%s is %v, want %v", prompt, got, want)
		}
	}
}

func TestMessagesShapeOf(t *testing.T) {
	for members, want := range map[string]verify.Shape{
		`"messages":[{"role":"user","content":"a"}]`:                                                                verify.MessagesPlain,
		`"system":[{"type":"text","text":"s"}],"messages":[{"role":"user","content":[{"type":"text","text":"a"}]}]`: verify.MessagesPlain,
		`"messages":[{"role":"user","content":[{"type":"text","text":"a"},{"type":"text","text":"b"}]}]`:            verify.MessagesParts,
		`"messages":[],"tools":[{"name":"t","input_schema":{}}]`:                                                    verify.MessagesTools,
		`"messages":[{"role":"user","content":[{"type":"tool_result","content":"a"},{"type":"text","text":"b"}]}]`:  verify.MessagesTools,
		`"messages":[{"role":"assistant","content":[{"type":"thinking","thinking":"a"}]}],"tools":[{"name":"t"}]`:   verify.MessagesSettings,
		`"messages":[],"thinking":{"type":"disabled"}`:                                                              verify.MessagesSettings,
	} {
		var req wire.Request
		if err := scanBody(&req, wire.Messages, []byte(`{"model":"m","max_tokens":1,`+members+`}`)); err != nil {
			t.Fatal(err)
		}
		if got := messagesShapeOf(&req); got != want {
			t.Errorf("%s is %v, want %v", members, got, want)
		}
	}
}

// TestPromptsReachNoOtherPool: only workers of the pools that a decision leaves are
// asked about a request, or shown it as a sample; without any nobody is. The probes,
// which hold nothing of a client, go everywhere.
func TestPromptsReachNoOtherPool(t *testing.T) {
	const marked = "a restricted prompt"
	engine := demoEngine(t)
	load := demoTokenizer
	for _, local := range []bool{true, false} {
		if !local {
			load = func(*ModelConfig, tokenize.Options) (*tokenize.Tokenizer, error) { return nil, nil }
		}
		outside, inside := &nosyTokenizer{Tokenizer: engine, marked: marked}, &nosyTokenizer{Tokenizer: engine, marked: marked}
		r := newTokenRig(t, outside, load, func(c *Config) { c.Tokens.SampleEvery = 1 })
		cfg := simworker.DefaultConfig()
		cfg.Model = "upstream-name"
		second, err := simworker.Start(cfg, inside)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = second.Close() })
		id, err := r.fleet.Add(time.Now(), scoring.WorkerSpec{Name: "w2", Pool: "q", Address: second.URL(), Models: []string{demoModel}})
		if err != nil {
			t.Fatal(err)
		}
		r.fleet.SetReady(time.Now(), id, true, "")
		soon(t, "the roster to see both", stackPatience, func() bool { return len(r.tokens.roster.ready(demoModel)) == 2 })
		if local {
			r.wait("a verdict", tokensVerified)
			soon(t, "both to be probed", stackPatience, func() bool { return inside.calls.Load() > 0 && outside.calls.Load() > 0 })
		}
		body := []byte(chatOf(marked, ""))
		var req wire.Request
		if err := openai.Scan(&req, wire.Chat, body); err != nil {
			t.Fatal(err)
		}
		m := &gateway.Model{Name: demoModel, BytesPerToken: 3}
		for range 4 { // the workers take turns
			if got := r.tokens.Local(t.Context(), nil, m, &req, body); got.AskWorker == local || got.Exact != local {
				t.Fatalf("found here: %+v", got)
			}
			if local {
				continue
			}
			if got := r.tokens.Remote(t.Context(), nil, m, []string{"q"}, &req, body); !got.Exact || len(got.IDs) == 0 {
				t.Fatalf("found in q: %+v", got)
			}
			for _, nowhere := range [][]string{nil, {}, {"r"}} {
				if got := r.tokens.Remote(t.Context(), nil, m, nowhere, &req, body); got.Exact || len(got.IDs) > 0 {
					t.Fatalf("found in %v: %+v", nowhere, got)
				}
			}
		}
		if local {
			r.tokens.Sample(m, nil, &req, body)
			r.tokens.Sample(m, []string{"q"}, &req, body)
			soon(t, "the sample to be compared", stackPatience, func() bool { return inside.shown.Load() > 0 })
		}
		r.stop()
		if inside.shown.Load() == 0 || outside.shown.Load() != 0 {
			t.Errorf("local %v: the prompt was shown %d times in the pool and %d times outside", local, inside.shown.Load(), outside.shown.Load())
		}
	}
}

// nosyTokenizer is an engine's tokenizer that counts the bodies it is shown, and those
// with a certain text.
type nosyTokenizer struct {
	simworker.Tokenizer
	marked       string
	calls, shown atomic.Int64
}

// EncodeChat implements simworker.Tokenizer.
func (n *nosyTokenizer) EncodeChat(body []byte) ([]uint32, error) {
	n.calls.Add(1)
	if bytes.Contains(body, []byte(n.marked)) {
		n.shown.Add(1)
	}
	return n.Tokenizer.EncodeChat(body)
}
