package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"

	"golang.org/x/sync/errgroup"

	"github.com/sluicegate/sluice/gateway"
	"github.com/sluicegate/sluice/gateway/anthropic/translate"
	"github.com/sluicegate/sluice/gateway/wire"
	"github.com/sluicegate/sluice/scoring/tokenize"
	"github.com/sluicegate/sluice/scoring/tokenize/verify"
	"github.com/sluicegate/sluice/tenancy"
	"github.com/sluicegate/sluice/tenancy/plainfile"
)

// tokenSource says where a request's token ids came from.
type tokenSource int

const (
	// fromLocal: from the model's tokenizer in this process.
	fromLocal tokenSource = iota
	// fromClient: the prompt was sent as ids.
	fromClient
	// fromWorker: from a worker's /tokenize.
	fromWorker
	// fromBeginning: locally, as far as to the first image or the like.
	fromBeginning
	// fromNobody: there are none, only an estimate.
	fromNobody
	// askWorker: not from here, and no worker was asked yet. It is not counted.
	askWorker
	// tooLate: there was too little time to find them here. It is not counted.
	tooLate
)

// tokenSources are the names of all sources in metrics and on debug pages.
var tokenSources = [...]string{"local", "client", "worker", "beginning", "estimate"}

// tokenizers finds the token ids of prompts: by a local tokenizer as far as it
// agrees with the workers, else by asking a worker. It implements
// gateway.Tokenizer.
type tokenizers struct {
	remote *tokenize.Remote
	gate   *tokenize.Gate
	roster *roster
	log    *slog.Logger
	models map[string]*modelTokenizer // by name; does not change
	loaded map[tokenizerFiles]*tokenize.Tokenizer
	turn   atomic.Uint32 // of the workers that are asked
	pool   sync.Pool     // of *tokenize.Prompts
}

// modelTokenizer is one model's share of tokenizers.
type modelTokenizer struct {
	name, upstream string
	local          *tokenize.Tokenizer // nil if there is none
	checker        *verify.Checker     // of local
	ratio          tokenRatio
	used           [len(tokenSources)]atomic.Int64 // requests by source
}

// tokenizerFiles is what two models must have in common to share a tokenizer,
// as a base model and its adapters do.
type tokenizerFiles struct{ dir, template, format, kwargs string }

// tokenizerLoader loads a model's tokenizer, nil if it has none.
type tokenizerLoader func(*ModelConfig, tokenize.Options) (*tokenize.Tokenizer, error)

// newTokenizers loads the models' tokenizers. In a build without native
// tokenizers the workers are asked for everything, and the log says so.
func newTokenizers(cfg *Config, load tokenizerLoader, workers *roster, log *slog.Logger) (*tokenizers, error) {
	c := &cfg.Tokens
	t := &tokenizers{
		remote: tokenize.NewRemote(tokenize.RemoteOptions{Timeout: c.RemoteTimeout, Parallel: c.RemoteParallel}),
		gate:   tokenize.NewGate(c.Parallel),
		roster: workers, log: log,
		models: make(map[string]*modelTokenizer, len(cfg.Models)),
		loaded: make(map[tokenizerFiles]*tokenize.Tokenizer),
		pool:   sync.Pool{New: func() any { return new(tokenize.Prompts) }},
	}
	for i := range cfg.Models {
		m := &cfg.Models[i]
		mt := &modelTokenizer{name: m.Name, upstream: m.Upstream}
		mt.ratio.start(m.BytesPerToken)
		t.models[m.Name] = mt
		local, err := t.load(m, int64(c.CacheBytes), load)
		switch {
		case errors.Is(err, tokenize.ErrNoNative):
			log.Warn("this build has no native tokenizers: token ids come from the workers' /tokenize", "model", m.Name)
		case err != nil:
			t.Close()
			return nil, fmt.Errorf("cannot load the tokenizer of model %q: %w", m.Name, err)
		case local == nil:
			log.Info("no tokenizer configured: token ids come from the workers' /tokenize", "model", m.Name)
		default:
			if why := local.Whole(); why != "" {
				log.Warn("prompts of this model are encoded as a whole, each turn of a conversation anew", "model", m.Name, "because", why)
			}
			mt.local = local
			mt.checker = verify.New(verify.Options{
				Model: m.Name, Local: mt.append, Probes: append(verify.DefaultProbes(), verify.MessagesProbes()...), Workers: func() []verify.Worker { return t.verifiers(mt) },
				Every: c.SampleEvery, Log: log,
			})
		}
	}
	return t, nil
}

// load loads a model's tokenizer, or takes that of another model with the same
// files.
func (t *tokenizers) load(m *ModelConfig, cacheBytes int64, load tokenizerLoader) (*tokenize.Tokenizer, error) {
	key := tokenizerFiles{m.Tokenizer, m.ChatTemplate, m.ContentFormat, m.TemplateKwargs}
	if tok := t.loaded[key]; tok != nil {
		return tok, nil
	}
	opts := tokenize.Options{ContentFormat: m.ContentFormat, TemplateKwargs: json.RawMessage(m.TemplateKwargs), CacheBytes: cacheBytes, Gate: t.gate}
	tok, err := load(m, opts)
	if tok != nil && err == nil {
		t.loaded[key] = tok
	}
	return tok, err
}

// maxTemplateBytes bounds a chat template, against the wrong file being named.
const maxTemplateBytes = 1 << 20

// loadTokenizer loads a model's tokenizer from the files its configuration
// names.
func loadTokenizer(m *ModelConfig, opts tokenize.Options) (*tokenize.Tokenizer, error) {
	if m.Tokenizer == "" {
		return nil, nil
	}
	if m.ChatTemplate != "" {
		text, err := plainfile.Read(m.ChatTemplate, maxTemplateBytes)
		if err != nil {
			return nil, fmt.Errorf("cannot read the chat template: %w", err)
		}
		opts.ChatTemplate = string(text)
	}
	return tokenize.Load(m.Tokenizer, opts)
}

// Close frees the local tokenizers.
func (t *tokenizers) Close() {
	for _, tok := range t.loaded {
		if err := tok.Close(); err != nil {
			t.log.Error("cannot free a tokenizer", "error", err)
		}
	}
}

// Run compares each local tokenizer with the workers until ctx ends.
func (t *tokenizers) Run(ctx context.Context) {
	var group errgroup.Group
	for _, m := range t.models {
		if m.checker != nil {
			group.Go(func() error { m.checker.Run(ctx); return nil })
		}
	}
	_ = group.Wait() // none of them fails
}

// Local implements gateway.Tokenizer.
func (t *tokenizers) Local(ctx context.Context, dst []uint32, model *gateway.Model, req *wire.Request, body []byte) gateway.Tokens {
	return t.tokens(dst, model, req, func(m *modelTokenizer, prompts *tokenize.Prompts) tokenSource {
		return t.findHere(ctx, m, prompts, req, body)
	})
}

// Remote implements gateway.Tokenizer.
func (t *tokenizers) Remote(ctx context.Context, dst []uint32, model *gateway.Model, pools []string, req *wire.Request, body []byte) gateway.Tokens {
	return t.tokens(dst, model, req, func(m *modelTokenizer, prompts *tokenize.Prompts) tokenSource {
		if t.ask(ctx, m, pools, prompts, kindOf(req), body) != nil {
			return fromNobody
		}
		return fromWorker
	})
}

// Sample implements gateway.Tokenizer.
func (t *tokenizers) Sample(model *gateway.Model, pools []string, req *wire.Request, body []byte) {
	if m := t.models[model.Name]; m != nil && m.checker != nil {
		m.checker.Offer(shapeOf(req), kindOf(req), body, pools)
	}
}

// Decode implements gateway.Tokenizer.
func (t *tokenizers) Decode(model *gateway.Model, ids []uint32) (text string, ok bool) {
	m := t.models[model.Name]
	if m == nil || m.local == nil {
		return "", false
	}
	return m.local.Decode(ids, false), true
}

// tokens are what find has found. A request whose ids are still to be found is not
// counted yet.
func (t *tokenizers) tokens(
	dst []uint32, model *gateway.Model, req *wire.Request, find func(*modelTokenizer, *tokenize.Prompts) tokenSource,
) gateway.Tokens {
	m := t.models[model.Name]
	if m == nil {
		return gateway.Tokens{IDs: dst}
	}
	prompts := t.pool.Get().(*tokenize.Prompts)
	defer t.pool.Put(prompts)
	prompts.Reset()
	source := find(m, prompts)
	out := gateway.Tokens{IDs: append(dst, longest(prompts)...), Count: len(prompts.IDs), Exact: true, Local: source == fromLocal}
	switch source {
	case askWorker, tooLate:
		out.AskWorker, out.Late = source == askWorker, source == tooLate
		fallthrough
	case fromBeginning, fromNobody:
		out.Count, out.Exact = max(out.Count, model.Estimate(req, m.ratio.bytesPerToken())), false
	}
	if int(source) < len(m.used) {
		m.used[source].Add(1)
	}
	return out
}

// findHere finds the ids of a body without asking anybody. Without any dst stays
// empty.
func (t *tokenizers) findHere(ctx context.Context, m *modelTokenizer, dst *tokenize.Prompts, req *wire.Request, body []byte) tokenSource {
	kind, shape := kindOf(req), shapeOf(req)
	switch {
	case kind == tokenize.Completion && req.TokenIDs > 0:
		// A list that is no list of ids throughout is refused without a call.
		if t.remote.Append(ctx, tokenize.Target{}, dst, kind, body) != nil {
			return fromNobody
		}
		return fromClient
	case m.local != nil && req.Operation == wire.Messages && !m.checker.Trusts(messagesShapeOf(req)):
		return fromNobody // no other chat can be made of it, so there is no use in asking about this one
	case m.local != nil && m.checker.Trusts(shape):
		err := m.local.Append(ctx, dst, kind, body)
		if err == nil && dst.Beginning {
			return fromBeginning // there is nobody to compare it with, short of loading the image
		}
		if err == nil {
			return fromLocal
		}
		if errors.Is(err, context.DeadlineExceeded) {
			return tooLate
		}
		if !errors.Is(err, tokenize.ErrUnsupported) {
			return fromNobody // the engine is going to refuse it, or nobody waits for it
		}
	}
	return askWorker
}

// maxAsked bounds the workers that are tried for one request.
const maxAsked = 3

// ask asks a worker of the pools that is not known to fail and not busy with such
// questions.
func (t *tokenizers) ask(
	ctx context.Context, m *modelTokenizer, pools []string, dst *tokenize.Prompts, kind tokenize.Kind, body []byte,
) (err error) {
	ready := within(pools, t.roster.ready(m.name))
	first := int(t.turn.Add(1))
	for i := range min(len(ready), maxAsked) {
		w := &ready[(first+i)%len(ready)]
		err = t.remote.Append(ctx, w.target(m.upstream), dst, kind, body)
		if !errors.Is(err, tokenize.ErrBusy) && !errors.Is(err, tokenize.ErrBroken) {
			return err
		}
	}
	return cmp.Or(err, errNobodyToAsk)
}

var errNobodyToAsk = errors.New("no worker of the permitted pools is ready")

// verifiers are the ready workers of a model, for its checker.
func (t *tokenizers) verifiers(m *modelTokenizer) []verify.Worker {
	ready := t.roster.ready(m.name)
	out := make([]verify.Worker, len(ready))
	for i := range ready {
		to := ready[i].target(m.upstream)
		out[i] = verify.Worker{
			ID: ready[i].incarnation, Name: ready[i].name, Pool: ready[i].pool,
			Tokenise: func(ctx context.Context, dst *tokenize.Prompts, kind tokenize.Kind, body []byte) error {
				return t.remote.Append(ctx, to, dst, kind, body)
			},
		}
	}
	return out
}

// observe learns from a whole answer how long the engine found the prompts.
func (t *tokenizers) observe(s *gateway.Summary) {
	m := t.models[s.Row.Model]
	if m == nil || s.Row.Outcome != tenancy.OutcomeCompleted || s.Row.Flags.Has(tenancy.FlagEstimated) || s.Row.InputTokens == 0 {
		return
	}
	if s.PlainText {
		m.ratio.learn(s.TextBytes, int(s.Row.InputTokens))
	}
	if m.checker != nil && s.Tokens.Local {
		m.checker.Answered(s.Row.End(), s.Row.InputTokens == int64(s.Tokens.Count))
	}
}

// judged reports whether every local tokenizer was compared with a worker.
func (t *tokenizers) judged() bool {
	for _, m := range t.models {
		if m.state() == tokensUnverified {
			return false
		}
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

// kindOf is the form of the body in which a request's tokens are found: see
// wire.Request.ChatForm.
func kindOf(req *wire.Request) tokenize.Kind {
	switch req.Operation {
	case wire.Completion:
		return tokenize.Completion
	case wire.Embeddings, wire.Tokenize:
		if req.MessageCount == 0 {
			return tokenize.Completion
		}
	}
	return tokenize.Chat
}

// append is the local tokenizer as it is compared with workers: of a messages body it
// finds what it finds of the chat that is made of it.
func (m *modelTokenizer) append(ctx context.Context, dst *tokenize.Prompts, kind tokenize.Kind, body []byte) error {
	if kind == tokenize.Messages {
		form, err := translate.AppendChat(nil, body, translate.ForTokens, nil)
		if err != nil {
			return fmt.Errorf("%w: no chat can be made of the messages", tokenize.ErrUnsupported)
		}
		kind, body = tokenize.Chat, form
	}
	return m.local.Append(ctx, dst, kind, body)
}

// messagesShapeOf is the shape that a messages request is judged as besides that of
// the chat which is made of it.
func messagesShapeOf(req *wire.Request) verify.Shape {
	switch f := req.Features; {
	case f&(wire.TemplateSettings|wire.PromptSettings) != 0:
		return verify.MessagesSettings
	case f&(wire.Tools|wire.ToolCalls) != 0:
		return verify.MessagesTools
	case f&wire.ContentParts != 0:
		return verify.MessagesParts
	}
	return verify.MessagesPlain
}

// shapeOf is the shape that a request is judged as: that of the feature that
// the fewest requests have.
func shapeOf(req *wire.Request) verify.Shape {
	if kindOf(req) == tokenize.Completion {
		if req.PromptCount > 1 {
			return verify.CompletionTexts
		}
		return verify.CompletionText
	}
	for _, f := range [...]struct {
		feature wire.Feature
		shape   verify.Shape
	}{
		{wire.PromptSettings, verify.ChatContinue},
		{wire.TemplateSettings, verify.ChatKwargs},
		{wire.ToolCalls, verify.ChatToolCalls},
		{wire.Tools, verify.ChatTools},
		{wire.ContentParts, verify.ChatParts},
		{wire.Turns, verify.ChatTurns},
		{wire.SystemMessage, verify.ChatSystem},
	} {
		if req.Features&f.feature != 0 {
			return f.shape
		}
	}
	return verify.ChatPlain
}
