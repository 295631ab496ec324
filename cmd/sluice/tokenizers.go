package main

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"

	"github.com/sluicegate/sluice/gateway"
	"github.com/sluicegate/sluice/gateway/wire"
	"github.com/sluicegate/sluice/scoring/tokenize"
	"github.com/sluicegate/sluice/scoring/tokenize/verify"
	"github.com/sluicegate/sluice/tenancy"
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
	remote  *tokenize.Remote
	gate    *tokenize.Gate
	roster  *roster
	log     *slog.Logger
	models  map[string]*modelTokenizer // by name; does not change
	loader  tokenizerLoader
	wanted  []wantedTokenizer // that Run loads
	abreast int               // how many it loads at a time
	turn    atomic.Uint32     // of the workers that are asked
	pool    sync.Pool         // of *tokenize.Prompts

	mu     sync.Mutex            // protects loaded
	loaded []*tokenize.Tokenizer // that Close frees
}

// modelTokenizer is one model's share of tokenizers.
type modelTokenizer struct {
	name, upstream string
	// here is the local tokenizer; nil if there is none, or none yet.
	here    atomic.Pointer[localTokenizer]
	loading atomic.Bool // it may still come
	ratio   tokenRatio
	used    [len(tokenSources)]atomic.Int64 // requests by source
}

// localTokenizer is a tokenizer in this process, and how far it is trusted.
type localTokenizer struct {
	*tokenize.Tokenizer
	checker *verify.Checker
}

// newTokenizers returns the models' tokenizers, of which Run loads those that are local.
func newTokenizers(cfg *Config, load tokenizerLoader, workers *roster, log *slog.Logger) *tokenizers {
	c := &cfg.Tokens
	t := &tokenizers{
		remote: tokenize.NewRemote(tokenize.RemoteOptions{Timeout: c.RemoteTimeout, Parallel: c.RemoteParallel}),
		gate:   tokenize.NewGate(c.Parallel),
		roster: workers, log: log,
		models: make(map[string]*modelTokenizer, len(cfg.Models)),
		loader: load, abreast: c.Parallel,
		pool: sync.Pool{New: func() any { return new(tokenize.Prompts) }},
	}
	for i := range cfg.Models {
		m := &cfg.Models[i]
		mt := &modelTokenizer{name: m.Name, upstream: m.Upstream}
		mt.ratio.start(m.BytesPerToken)
		mt.loading.Store(true)
		t.models[m.Name] = mt
		t.want(cfg, m, mt)
	}
	return t
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
	if m := t.models[model.Name]; m != nil {
		if local := m.here.Load(); local != nil {
			local.checker.Offer(shapeOf(req), kindOf(req), body, pools)
		}
	}
}

// Decode implements gateway.Tokenizer.
func (t *tokenizers) Decode(model *gateway.Model, ids []uint32) (text string, ok bool) {
	m := t.models[model.Name]
	if m == nil {
		return "", false
	}
	local := m.here.Load()
	if local == nil {
		return "", false
	}
	return local.Tokenizer.Decode(ids, false), true
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
	kind, shape, local := kindOf(req), shapeOf(req), m.here.Load()
	switch {
	case kind == tokenize.Completion && req.TokenIDs > 0:
		// A list that is no list of ids throughout is refused without a call.
		if t.remote.Append(ctx, tokenize.Target{}, dst, kind, body) != nil {
			return fromNobody
		}
		return fromClient
	case local != nil && req.Operation == wire.Messages && !local.checker.Trusts(messagesShapeOf(req)):
		return fromNobody // no other chat can be made of it, so there is no use in asking about this one
	case local != nil && local.checker.Trusts(shape):
		err := local.Append(ctx, dst, kind, body)
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
	if local := m.here.Load(); local != nil && s.Tokens.Local {
		local.checker.Answered(s.Row.End(), s.Row.InputTokens == int64(s.Tokens.Count))
	}
}

// judged reports whether every local tokenizer is there and was compared with a worker.
func (t *tokenizers) judged() bool {
	for _, m := range t.models {
		if s := m.state(); s == tokensUnverified || s == tokensLoading {
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
