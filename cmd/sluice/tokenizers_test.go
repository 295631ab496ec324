//go:build cgo && !notokenizers

package main

import (
	"bytes"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sluicegate/sluice/gateway"
	"github.com/sluicegate/sluice/gateway/openai"
	"github.com/sluicegate/sluice/scoring"
	"github.com/sluicegate/sluice/scoring/simworker"
	"github.com/sluicegate/sluice/scoring/simworker/model"
	"github.com/sluicegate/sluice/scoring/tokenize"
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
			tokens.Run(t.Context())
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
			got, err := tokens.Append(t.Context(), nil, &gateway.Model{Name: demoModel}, openai.Chat, body)
			if err != nil || !slices.Equal(got, want) {
				t.Errorf("ids %v, %v, want the engine's %v", got, err, want)
			}
		})
	}
}
