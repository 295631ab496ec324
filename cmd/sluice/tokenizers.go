package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sluicegate/sluice/gateway"
	"github.com/sluicegate/sluice/gateway/openai"
	"github.com/sluicegate/sluice/scoring"
	"github.com/sluicegate/sluice/scoring/tokenize"
	"github.com/sluicegate/sluice/tenancy"
)

// tokenState says who computes a model's token ids, and how far that is
// trusted.
type tokenState int32

const (
	// tokensUnverified: a local tokenizer is loaded and was not yet compared
	// with a worker.
	tokensUnverified tokenState = iota
	// tokensVerified: the local tokenizer agreed with a worker.
	tokensVerified
	// tokensRemote: a worker's /tokenize is asked, as there is no local
	// tokenizer.
	tokensRemote
	// tokensMismatch: the local tokenizer disagreed with a worker and is not
	// used; a worker's /tokenize is asked.
	tokensMismatch
)

// tokenStates are all states by name.
var tokenStates = []string{"unverified", "verified", "remote", "mismatch"}

// String is the state's name in metrics and log.
func (s tokenState) String() string { return tokenStates[s] }

// tokenizers finds the token ids of prompts: by a local tokenizer that agreed
// with a worker, else by asking a worker. It implements gateway.Tokenizer.
type tokenizers struct {
	remote *tokenize.Remote
	fleet  *scoring.Fleet
	log    *slog.Logger
	models map[string]*modelTokenizer // by name; does not change
	wake   chan struct{}              // a model is to be compared again; holds one
	pool   sync.Pool                  // of *tokenize.Prompts
}

// modelTokenizer is one model's share of tokenizers.
type modelTokenizer struct {
	name, upstream string
	local          *tokenize.Tokenizer // nil if there is none
	state          atomic.Int32
	usedLocal      atomic.Int64 // requests answered locally
	usedRemote     atomic.Int64
	failed         atomic.Int64
	// disagreed counts answers whose prompt the engine found to be of another
	// length, inARow those since the last that agreed. doubted is when the
	// tokenizer was last put in doubt, in Unix seconds.
	disagreed, inARow, doubted atomic.Int64
}

// newTokenizers loads the models' tokenizers. In a build without native
// tokenizers the workers are asked for everything, and the log says so.
func newTokenizers(models []ModelConfig, load func(*ModelConfig) (*tokenize.Tokenizer, error), fleet *scoring.Fleet, log *slog.Logger) (*tokenizers, error) {
	t := &tokenizers{
		remote: tokenize.NewRemote(tokenize.RemoteOptions{}), fleet: fleet, log: log,
		models: make(map[string]*modelTokenizer, len(models)), wake: make(chan struct{}, 1),
		pool: sync.Pool{New: func() any { return new(tokenize.Prompts) }},
	}
	for i := range models {
		m := &models[i]
		mt := &modelTokenizer{name: m.Name, upstream: m.Upstream}
		mt.state.Store(int32(tokensRemote))
		t.models[m.Name] = mt
		local, err := load(m)
		switch {
		case errors.Is(err, tokenize.ErrNoNative):
			log.Warn("this build has no native tokenizers: token ids come from the workers' /tokenize", "model", m.Name)
		case err != nil:
			t.Close()
			return nil, fmt.Errorf("cannot load the tokenizer of model %q: %w", m.Name, err)
		case local == nil:
			log.Info("no tokenizer configured: token ids come from the workers' /tokenize", "model", m.Name)
		default:
			mt.local = local
			mt.state.Store(int32(tokensUnverified))
		}
	}
	return t, nil
}

// loadTokenizer loads a model's tokenizer from the folder its configuration
// names; nil if it names none.
func loadTokenizer(m *ModelConfig) (*tokenize.Tokenizer, error) {
	if m.Tokenizer == "" {
		return nil, nil
	}
	return tokenize.Load(m.Tokenizer, tokenize.Options{})
}

// Close frees the local tokenizers.
func (t *tokenizers) Close() {
	for _, m := range t.models {
		if m.local != nil {
			if err := m.local.Close(); err != nil {
				t.log.Error("cannot free a tokenizer", "model", m.name, "error", err)
			}
		}
	}
}

func kindOf(op openai.Operation) tokenize.Kind {
	if op == openai.Chat {
		return tokenize.Chat
	}
	return tokenize.Completion
}

// Tokenise implements gateway.Tokenizer.
func (t *tokenizers) Tokenise(ctx context.Context, dst []uint32, model *gateway.Model, req *openai.Request, body []byte) gateway.Tokens {
	m := t.models[model.Name]
	if m == nil {
		return gateway.Tokens{IDs: dst}
	}
	prompts := t.pool.Get().(*tokenize.Prompts)
	defer t.pool.Put(prompts)
	prompts.Reset()
	if !t.find(ctx, m, prompts, kindOf(req.Operation), body) {
		m.failed.Add(1)
		return gateway.Tokens{IDs: dst}
	}
	return gateway.Tokens{IDs: append(dst, longest(prompts)...), Count: len(prompts.IDs), Exact: true}
}

// find asks who is to be asked for a model's token ids.
func (t *tokenizers) find(ctx context.Context, m *modelTokenizer, dst *tokenize.Prompts, kind tokenize.Kind, body []byte) bool {
	switch tokenState(m.state.Load()) {
	case tokensVerified, tokensUnverified:
		if m.local.Append(ctx, dst, kind, body) != nil {
			return false
		}
		m.usedLocal.Add(1)
	default:
		base := t.worker(m.name)
		if base == "" || t.remote.Append(ctx, tokenize.Target{URL: base, Model: m.upstream}, dst, kind, body) != nil {
			return false
		}
		m.usedRemote.Add(1)
	}
	return true
}

// longest is the prompt that decides where a request with several goes: all of
// them go to one worker, and this one has the most to save there.
func longest(p *tokenize.Prompts) (ids []uint32) {
	for i := range p.Len() {
		if one := p.At(i); len(one) > len(ids) {
			ids = one
		}
	}
	return ids
}

// worker is the address of the ready worker with the least to do that serves
// the model, or empty.
func (t *tokenizers) worker(model string) string {
	best, least := "", -1
	for _, w := range t.fleet.Snapshot(time.Now()) {
		if w.Ready && w.Serves(model) && (least < 0 || w.InFlight < least) {
			best, least = w.Worker.Address, w.InFlight
		}
	}
	return best
}

// workers are the addresses of all ready workers that serve the model.
func (t *tokenizers) workers(model string) (out []string) {
	for _, w := range t.fleet.Snapshot(time.Now()) {
		if w.Ready && w.Serves(model) {
			out = append(out, w.Worker.Address)
		}
	}
	return out
}

// verifyEvery is the pause between attempts to compare a local tokenizer with
// a worker that isn't ready yet.
const verifyEvery = 500 * time.Millisecond

// Run compares each local tokenizer with the workers as soon as one is ready,
// and again when answers put it in doubt, until ctx ends. A model that disagrees
// is served by its workers' /tokenize from then on.
func (t *tokenizers) Run(ctx context.Context) {
	tick := time.NewTicker(verifyEvery)
	defer tick.Stop()
	for {
		retry := tick.C
		if t.judge(ctx) {
			retry = nil // until something is in doubt
		}
		select {
		case <-ctx.Done():
			return
		case <-t.wake:
		case <-retry:
		}
	}
}

// judge compares what is to be compared. It reports false if something could
// not be judged yet.
func (t *tokenizers) judge(ctx context.Context) bool {
	all := true
	for _, m := range t.models {
		if tokenState(m.state.Load()) == tokensUnverified && !t.verify(ctx, m) {
			all = false
		}
	}
	return all
}

const (
	// doubtAfter answers in a row that disagree put a tokenizer in doubt. One
	// alone may be a request that the engine cuts by a parameter of its own.
	doubtAfter = 3
	// doubtEvery bounds how often that happens to a model, since a client can
	// bring such answers about.
	doubtEvery = time.Minute
)

// observe compares the prompt's length of a whole answer with what the local
// tokenizer made of it. It catches a worker that was started anew with another
// tokenizer or template, and a shape of request that the probes don't have.
func (t *tokenizers) observe(s *gateway.Summary) {
	m := t.models[s.Row.Model]
	if m == nil || !s.Tokens.Exact || s.Row.Outcome != tenancy.OutcomeCompleted || s.Row.Flags.Has(tenancy.FlagEstimated) ||
		tokenState(m.state.Load()) != tokensVerified {
		return
	}
	if s.Row.InputTokens == int64(s.Tokens.Count) {
		m.inARow.Store(0)
		return
	}
	m.disagreed.Add(1)
	if m.inARow.Add(1) < doubtAfter {
		return
	}
	now, last := s.Row.End().Unix(), m.doubted.Load()
	if now-last < int64(doubtEvery/time.Second) || !m.doubted.CompareAndSwap(last, now) {
		return
	}
	m.inARow.Store(0)
	m.state.Store(int32(tokensUnverified))
	t.log.Warn("answers say that prompts have another length than the local tokenizer finds; comparing it with the workers again", "model", m.name)
	select {
	case t.wake <- struct{}{}:
	default:
	}
}

// probes are the request shapes in which local ids are compared with the
// engine's.
var probes = []struct {
	shape string
	kind  tokenize.Kind
	body  string
}{
	{"chat", tokenize.Chat, `{"messages":[{"role":"user","content":"Once upon a time, in 1984."}]}`},
	{"turns", tokenize.Chat, `{"messages":[{"role":"system","content":"Be brief."},{"role":"user","content":"Hi"},{"role":"assistant","content":"Hello!"},{"role":"user","content":"naïve café 日本語 \ud83d\ude00"}]}`},
	{"parts", tokenize.Chat, `{"messages":[{"role":"user","content":[{"type":"text","text":"part one"},{"type":"text","text":"part two"}]}]}`},
	{"tools", tokenize.Chat, `{"messages":[{"role":"user","content":"weather?"}],"tools":[{"type":"function","function":{"name":"get","description":"d","parameters":{"type":"object","properties":{"b":{"type":"string"},"a":{"type":"integer"}}}}}]}`},
	{"completion", tokenize.Completion, `{"prompt":"Once upon a time\n\n  def f(x):\treturn x"}`},
}

// verify compares m's tokenizer with every ready worker. It reports false if
// nothing could be judged.
func (t *tokenizers) verify(ctx context.Context, m *modelTokenizer) bool {
	agreed := 0
	for _, base := range t.workers(m.name) {
		n, shape, err := t.compare(ctx, m, base)
		switch {
		case err != nil:
			t.log.Debug("cannot compare token ids with a worker yet", "model", m.name, "error", err)
			return false
		case shape != "":
			m.state.Store(int32(tokensMismatch))
			t.log.Warn("the local tokenizer disagrees with the worker; asking workers from now on", "model", m.name, "shape", shape)
			return true
		}
		agreed += n
	}
	if agreed == 0 {
		return false
	}
	m.state.Store(int32(tokensVerified))
	t.log.Info("the local tokenizer agrees with the workers", "model", m.name, "comparisons", agreed)
	return true
}

// compare puts the probes to the worker at base: how many agreed, and the shape
// of the first that didn't.
func (t *tokenizers) compare(ctx context.Context, m *modelTokenizer, base string) (agreed int, disagrees string, err error) {
	for _, p := range probes {
		var local, engine tokenize.Prompts
		if err := t.remote.Append(ctx, tokenize.Target{URL: base, Model: m.upstream}, &engine, p.kind, []byte(p.body)); err != nil {
			if status, ok := errors.AsType[*tokenize.StatusError](err); ok && status.Code == http.StatusBadRequest {
				continue // this template has no such shape
			}
			return 0, "", err
		}
		if err := m.local.Append(ctx, &local, p.kind, []byte(p.body)); err != nil || !slices.Equal(local.IDs, engine.IDs) {
			return agreed, p.shape, nil
		}
		agreed++
	}
	return agreed, "", nil
}

// judged reports whether every local tokenizer was compared with a worker.
func (t *tokenizers) judged() bool {
	for _, m := range t.models {
		if tokenState(m.state.Load()) == tokensUnverified {
			return false
		}
	}
	return true
}
