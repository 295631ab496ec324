//go:build cgo && !notokenizers

package main

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sluicegate/sluice/gateway"
	"github.com/sluicegate/sluice/gateway/wire"
	"github.com/sluicegate/sluice/scoring"
	"github.com/sluicegate/sluice/scoring/tokenize"
	"github.com/sluicegate/sluice/tenancy"
)

// looseTokenizers are tokenizers without workers.
func looseTokenizers(c *Config, load tokenizerLoader) *tokenizers {
	return newTokenizers(c, load, newRoster(scoring.NewFleet(scoring.DefaultConfig()), nil), slog.New(slog.DiscardHandler))
}

// TestModelsShareATokenizer: a base model and its adapter name the same files.
func TestModelsShareATokenizer(t *testing.T) {
	var loads atomic.Int32
	c := DefaultConfig()
	c.Models = []ModelConfig{
		{Name: "base", Tokenizer: "a", BytesPerToken: 3}, {Name: "adapter", Tokenizer: "a", BytesPerToken: 3},
		{Name: "other", Tokenizer: "a", TemplateKwargs: `{"x":1}`, BytesPerToken: 3},
	}
	tokens := looseTokenizers(&c, func(m *ModelConfig, opts tokenize.Options) (*tokenize.Tokenizer, error) {
		loads.Add(1)
		return demoTokenizer(m, opts)
	})
	defer tokens.Close()
	for i := range tokens.wanted {
		if err := tokens.load(&tokens.wanted[i]); err != nil {
			t.Fatal(err)
		}
	}
	of := func(name string) *localTokenizer { return tokens.models[name].here.Load() }
	base, adapter, other := of("base"), of("adapter"), of("other")
	if n := loads.Load(); n != 2 || base.Tokenizer != adapter.Tokenizer || base.Tokenizer == other.Tokenizer || base.checker == adapter.checker {
		t.Errorf("%d tokenizers were loaded, want one for both and one for the other", n)
	}
}

// TestRequestsDoNotWaitForTokenizers: while a tokenizer loads its model's prompts get the workers' ids, as
// they would without one; the others load beside it; and it is used as soon as it is there.
func TestRequestsDoNotWaitForTokenizers(t *testing.T) {
	own := demoEngine(t)
	gate, begun := make(chan struct{}), make(chan string, 2)
	r := newTokenRig(t, own, func(m *ModelConfig, opts tokenize.Options) (*tokenize.Tokenizer, error) {
		begun <- m.Name
		<-gate
		return demoTokenizer(m, opts)
	}, func(c *Config) {
		c.Tokens.Parallel = 2
		c.Models[0].Tokenizer = "a"
		c.Models = append(c.Models, ModelConfig{Name: "other", Tokenizer: "b", BytesPerToken: 3})
	})
	for range 2 { // neither waits for the other
		select {
		case <-begun:
		case <-time.After(stackPatience):
			t.Fatal("the tokenizers load one after another")
		}
	}
	body := chatOf("Tell me about rivers.", "")
	want, err := own.EncodeChat([]byte(body))
	if err != nil {
		t.Fatal(err)
	}
	if got, source := r.ask(wire.Chat, body); source != "worker" || !got.Exact || !slices.Equal(got.IDs, want) {
		t.Errorf("while it loads: got %+v from %s, want the engine's %v from a worker", got, source, want)
	}
	if _, ok := r.tokens.Decode(&gateway.Model{Name: demoModel}, want); ok {
		t.Error("a tokenizer that is not there decodes")
	}
	if r.tokens.ready() || r.tokens.judged() || r.model().state() != tokensLoading {
		t.Errorf("a tokenizer that is not there is %v", r.model().state())
	}
	close(gate)
	soon(t, "the tokenizers", stackPatience, r.tokens.ready)
	r.wait("a verdict", tokensVerified)
	if got, source := r.ask(wire.Chat, body); source != "local" || !slices.Equal(got.IDs, want) {
		t.Errorf("when it is there: got %+v from %s", got, source)
	}
}

// TestGatewayServesWhileTokenizersLoad: a gateway answers before its tokenizers are there, charges what it
// always charges, and says to those who look that it is starting. When one turns out to be none it drains and
// ends with an error.
func TestGatewayServesWhileTokenizersLoad(t *testing.T) {
	d, err := newDemo(demoOptions{public: "127.0.0.1:0", admin: "127.0.0.1:0", timeScale: 0.1}, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = d.Close() })
	d.cfg.Drain.Delay = 0
	a, err := newApp(d.cfg, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = a.Close() })
	gate := make(chan error)
	a.tokens.loader = func(*ModelConfig, tokenize.Options) (*tokenize.Tokenizer, error) { return nil, <-gate }
	served := make(chan error, 1)
	go func() { served <- a.serve(t.Context()) }()

	soon(t, "a worker", stackPatience, func() bool { return a.fleet.Stats().ReadyWorkers == len(demoWorkers) })
	if text := readyText(t, a); !strings.Contains(text, `{"status":"not_ready","reasons":["starting"]}`) {
		t.Errorf("/readyz says %s", text)
	}
	if text := metricsText(t, a); !strings.Contains(text, `sluice_degraded{part="tokenizer",reason="loading"} 1`) {
		t.Errorf("the metrics do not say that a tokenizer is loading")
	}
	body := `{"model":"demo-chat","max_tokens":3,"ignore_eos":true,"messages":[{"role":"user","content":"a story"}]}`
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, a.baseURL()+chatPath, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+d.keys["acme"])
	req.Header.Set("Content-Type", "application/json")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		t.Errorf("a request meanwhile: %d", resp.StatusCode)
	}
	soon(t, "the row", stackPatience, func() bool { return len(rows(t, a)) == 1 })
	if row := rows(t, a)[0]; row.OutputTokens != 3 || row.InputTokens == 0 || row.Flags.Has(tenancy.FlagEstimated) {
		t.Errorf("the row is %+v", row)
	}

	gate <- errors.New("broken")
	select {
	case err := <-served:
		if err == nil || !strings.Contains(err.Error(), `cannot load the tokenizer of model "demo-chat": broken`) {
			t.Errorf("serve: %v", err)
		}
	case <-time.After(stackPatience):
		t.Fatal("a gateway with a broken tokenizer goes on")
	}
}

// TestTokenizerThatCannotLoad: it ends what runs it, and those that would come after it are not loaded.
func TestTokenizerThatCannotLoad(t *testing.T) {
	c := DefaultConfig()
	c.Tokens.Parallel = 1
	c.Models = []ModelConfig{{Name: "base", Tokenizer: "a", BytesPerToken: 3}, {Name: "other", Tokenizer: "b", BytesPerToken: 3}}
	tokens := looseTokenizers(&c, func(*ModelConfig, tokenize.Options) (*tokenize.Tokenizer, error) { return nil, errors.New("broken") })
	defer tokens.Close()
	if err := tokens.Run(context.Background()); err == nil || !strings.HasPrefix(err.Error(), `cannot load the tokenizer of model "`) {
		t.Errorf("got %v", err)
	}
	if tokens.ready() {
		t.Error("the tokenizers count as ready")
	}
}

// TestCheckLoadsTokenizers: what is no tokenizer is told before a deploy, at its key.
func TestCheckLoadsTokenizers(t *testing.T) {
	dir := t.TempDir()
	if err := os.CopyFS(dir, os.DirFS("testdata/script/files")); err != nil {
		t.Fatal(err)
	}
	write(t, dir, map[string]string{"tokenizer/tokenizer.json": "{}"})
	var out bytes.Buffer
	code := execute(t.Context(), scriptNow, []string{"check", "-c", filepath.Join(dir, "sluice.yaml")}, strings.NewReader(""), &out, &out)
	if code == exitOK || !strings.Contains(out.String(), "models[0].tokenizer: cannot load tokenizer: ") {
		t.Errorf("exit code %d:\n%s", code, out.String())
	}
}
