//go:build cgo && !notokenizers

package main

import (
	"bytes"
	"context"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sluicegate/sluice/gateway"
	"github.com/sluicegate/sluice/gateway/openai"
	"github.com/sluicegate/sluice/scoring"
	"github.com/sluicegate/sluice/scoring/simworker"
	"github.com/sluicegate/sluice/scoring/simworker/model"
	"github.com/sluicegate/sluice/scoring/tokenize"
	"github.com/sluicegate/sluice/tenancy"
)

// TestTokensFollowTheEngine loads what a configuration may name and holds it
// against a worker: what agrees is used, what disagrees or isn't there gives way
// to the worker's own ids, and the log says so.
func TestTokensFollowTheEngine(t *testing.T) {
	demo := func() *tokenize.Tokenizer {
		tok, err := tokenize.LoadFS(model.FS, tokenize.Options{})
		if err != nil {
			t.Fatal(err)
		}
		return tok
	}
	lent := demo()
	defer lent.Close()
	size, err := vocabularySize(model.FS)
	if err != nil {
		t.Fatal(err)
	}
	own := &simTokenizer{local: lent, size: size}
	for _, c := range []struct {
		name   string
		engine simworker.Tokenizer
		load   func(*ModelConfig) (*tokenize.Tokenizer, error)
		state  tokenState
		log    string
	}{
		{
			"agrees", own,
			func(*ModelConfig) (*tokenize.Tokenizer, error) { return demo(), nil },
			tokensVerified, "",
		}, {
			"disagrees", simworker.NewByteTokenizer(),
			func(*ModelConfig) (*tokenize.Tokenizer, error) { return demo(), nil },
			tokensMismatch, "the local tokenizer disagrees with the worker",
		}, {
			"none configured", own,
			func(*ModelConfig) (*tokenize.Tokenizer, error) { return nil, nil },
			tokensRemote, "no tokenizer configured: token ids come from the workers' /tokenize",
		}, {
			"none built in", own,
			func(*ModelConfig) (*tokenize.Tokenizer, error) { return nil, tokenize.ErrNoNative },
			tokensRemote, "this build has no native tokenizers: token ids come from the workers' /tokenize",
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			cfg := simworker.DefaultConfig()
			cfg.Model = "upstream-name"
			worker, err := simworker.Start(cfg, c.engine)
			if err != nil {
				t.Fatal(err)
			}
			defer worker.Close()
			fleet := scoring.NewFleet(scoring.DefaultConfig())
			id, err := fleet.Add(time.Now(), scoring.WorkerSpec{Name: "w", Pool: "p", Address: worker.URL(), Models: []string{demoModel}})
			if err != nil {
				t.Fatal(err)
			}
			var out bytes.Buffer
			log := newLogger(&out, LogConfig{Level: "info", Format: "text"})
			tokens, err := newTokenizers([]ModelConfig{{Name: demoModel, Upstream: cfg.Model}}, c.load, fleet, log)
			if err != nil {
				t.Fatal(err)
			}
			defer tokens.Close()
			fleet.SetReady(time.Now(), id, true, "")
			if !tokens.judge(t.Context()) {
				t.Fatal("nothing could be judged")
			}
			if got := tokenState(tokens.models[demoModel].state.Load()); got != c.state {
				t.Errorf("the state is %v, want %v", got, c.state)
			}
			if !strings.Contains(out.String(), c.log) {
				t.Errorf("the log lacks %q:\n%s", c.log, out.String())
			}
			body := []byte(`{"model":"demo-chat","messages":[{"role":"user","content":"Tell me about rivers."}]}`)
			want, err := c.engine.EncodeChat(body)
			if err != nil {
				t.Fatal(err)
			}
			got := tokens.Tokenise(t.Context(), nil, &gateway.Model{Name: demoModel}, &openai.Request{Operation: openai.Chat}, body)
			if !slices.Equal(got.IDs, want) || got.Count != len(want) || !got.Exact {
				t.Errorf("got %+v, want the engine's %v", got, want)
			}
		})
	}
}

// TestAnswersPutATokenizerInDoubt swaps the engine's tokenizer behind the
// gateway's back: three answers with another prompt length have it compared
// again and set aside. Answers that agree in between, or too few that don't,
// change nothing.
func TestAnswersPutATokenizerInDoubt(t *testing.T) {
	engine := &swappedTokenizer{Tokenizer: simworker.NewByteTokenizer()}
	lent, err := tokenize.LoadFS(model.FS, tokenize.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer lent.Close()
	engine.first = &simTokenizer{local: lent, size: 4096}
	cfg := simworker.DefaultConfig()
	cfg.Model = demoModel
	worker, err := simworker.Start(cfg, engine)
	if err != nil {
		t.Fatal(err)
	}
	defer worker.Close()
	fleet := scoring.NewFleet(scoring.DefaultConfig())
	id, err := fleet.Add(time.Now(), scoring.WorkerSpec{Name: "w", Pool: "p", Address: worker.URL(), Models: []string{demoModel}})
	if err != nil {
		t.Fatal(err)
	}
	fleet.SetReady(time.Now(), id, true, "")
	tokens, err := newTokenizers([]ModelConfig{{Name: demoModel, Upstream: demoModel}}, func(*ModelConfig) (*tokenize.Tokenizer, error) {
		return tokenize.LoadFS(model.FS, tokenize.Options{})
	}, fleet, newLogger(&bytes.Buffer{}, LogConfig{Level: "info", Format: "text"}))
	if err != nil {
		t.Fatal(err)
	}
	defer tokens.Close()
	done := make(chan struct{})
	ctx, stop := context.WithCancel(t.Context())
	go func() { defer close(done); tokens.Run(ctx) }()
	defer func() { stop(); <-done }()
	state := func() tokenState { return tokenState(tokens.models[demoModel].state.Load()) }
	soon(t, "the tokenizer to be verified", stackPatience, func() bool { return state() == tokensVerified })

	answer := func(engine int64) {
		tokens.observe(&gateway.Summary{Tokens: gateway.Tokens{Count: 10, Exact: true}, Row: &tenancy.Row{
			Model: demoModel, Outcome: tenancy.OutcomeCompleted, InputTokens: engine, Start: time.Now(),
		}})
	}
	engine.swapped.Store(true)
	for _, n := range []int64{11, 11, 10, 11, 11, 10} {
		answer(n)
	}
	if state() != tokensVerified {
		t.Fatalf("the state is %v after two in a row", state())
	}
	for range doubtAfter {
		answer(11)
	}
	soon(t, "the tokenizer to be set aside", stackPatience, func() bool { return state() == tokensMismatch })
	if n := tokens.models[demoModel].disagreed.Load(); n != 7 {
		t.Errorf("%d disagreements were counted, want 7", n)
	}
}

// swappedTokenizer is an engine's tokenizer that becomes another one.
type swappedTokenizer struct {
	simworker.Tokenizer
	first   simworker.Tokenizer
	swapped atomic.Bool
}

func (s *swappedTokenizer) now() simworker.Tokenizer {
	if s.swapped.Load() {
		return s.Tokenizer
	}
	return s.first
}

// EncodeChat implements simworker.Tokenizer.
func (s *swappedTokenizer) EncodeChat(body []byte) ([]uint32, error) { return s.now().EncodeChat(body) }

// EncodeCompletion implements simworker.Tokenizer.
func (s *swappedTokenizer) EncodeCompletion(body []byte) ([][]uint32, error) {
	return s.now().EncodeCompletion(body)
}
