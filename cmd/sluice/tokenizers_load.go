package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"golang.org/x/sync/errgroup"

	"github.com/sluicegate/sluice/gateway/anthropic/translate"
	"github.com/sluicegate/sluice/scoring/tokenize"
	"github.com/sluicegate/sluice/scoring/tokenize/verify"
	"github.com/sluicegate/sluice/tenancy/plainfile"
)

// tokenizerLoader loads a model's tokenizer, nil if it has none.
type tokenizerLoader func(*ModelConfig, tokenize.Options) (*tokenize.Tokenizer, error)

// tokenizerFiles is what two models must have in common to share a tokenizer,
// as a base model and its adapters do.
type tokenizerFiles struct{ dir, template, format, kwargs string }

// wantedTokenizer is a tokenizer to load, for the models that share it.
type wantedTokenizer struct {
	files   tokenizerFiles
	config  *ModelConfig // of the first of them
	options tokenize.Options
	models  []*modelTokenizer
	every   int // a live request in so many is compared
}

// want adds a model's tokenizer to those that Run loads.
func (t *tokenizers) want(cfg *Config, m *ModelConfig, mt *modelTokenizer) {
	files := tokenizerFiles{m.Tokenizer, m.ChatTemplate, m.ContentFormat, m.TemplateKwargs}
	for i := range t.wanted {
		if t.wanted[i].files == files {
			t.wanted[i].models = append(t.wanted[i].models, mt)
			return
		}
	}
	t.wanted = append(t.wanted, wantedTokenizer{
		files: files, config: m, models: []*modelTokenizer{mt}, every: cfg.Tokens.SampleEvery,
		options: tokenize.Options{
			ContentFormat: m.ContentFormat, TemplateKwargs: json.RawMessage(m.TemplateKwargs), CacheBytes: int64(cfg.Tokens.CacheBytes), Gate: t.gate,
		},
	})
}

// Run loads the local tokenizers, as many at a time as requests are tokenised, and compares each with the
// workers from when it is there until ctx ends. Meanwhile the workers are asked for its models' ids. In a
// build without native tokenizers the workers are asked for everything, and the log says so. Run returns an
// error at once if a tokenizer can't be loaded, and else nil.
func (t *tokenizers) Run(ctx context.Context) error {
	loads := make(chan struct{}, max(t.abreast, 1))
	group, ctx := errgroup.WithContext(ctx)
	for i := range t.wanted {
		w := &t.wanted[i]
		group.Go(func() error {
			select {
			case loads <- struct{}{}:
			case <-ctx.Done():
				return nil
			}
			err := t.load(w)
			<-loads
			if err != nil {
				return err
			}
			var checks errgroup.Group
			for _, m := range w.models {
				if local := m.here.Load(); local != nil {
					checks.Go(func() error { local.checker.Run(ctx); return nil })
				}
			}
			return checks.Wait()
		})
	}
	return group.Wait()
}

// load loads a tokenizer and gives it to its models.
func (t *tokenizers) load(w *wantedTokenizer) error {
	local, err := t.loader(w.config, w.options)
	if err != nil && !errors.Is(err, tokenize.ErrNoNative) {
		return fmt.Errorf("cannot load the tokenizer of model %q: %w", w.config.Name, err)
	}
	if local != nil {
		t.mu.Lock()
		t.loaded = append(t.loaded, local)
		t.mu.Unlock()
	}
	for _, m := range w.models {
		switch {
		case err != nil:
			t.log.Warn("this build has no native tokenizers: token ids come from the workers' /tokenize", "model", m.name)
		case local == nil:
			t.log.Info("no tokenizer configured: token ids come from the workers' /tokenize", "model", m.name)
		default:
			if why := local.Whole(); why != "" {
				t.log.Warn("prompts of this model are encoded as a whole, each turn of a conversation anew", "model", m.name, "because", why)
			}
			lt := &localTokenizer{Tokenizer: local}
			lt.checker = verify.New(verify.Options{
				Model: m.name, Local: lt.appendAny, Probes: append(verify.DefaultProbes(), verify.MessagesProbes()...),
				Workers: func() []verify.Worker { return t.verifiers(m) }, Every: w.every, Log: t.log,
			})
			m.here.Store(lt)
		}
		m.loading.Store(false)
	}
	return nil
}

// tokenizers loads the models' tokenizers, as a gateway does that is listening already. A build without
// native tokenizers can't judge them.
func (c *checker) tokenizers(cfg *Config) {
	errs := make([]error, len(cfg.Models))
	var group errgroup.Group
	group.SetLimit(max(cfg.Tokens.Parallel, 1))
	for i := range cfg.Models {
		group.Go(func() error {
			m := &cfg.Models[i]
			tok, err := loadTokenizer(m, tokenize.Options{ContentFormat: m.ContentFormat, TemplateKwargs: json.RawMessage(m.TemplateKwargs)})
			if tok != nil {
				return tok.Close()
			}
			errs[i] = err
			return nil
		})
	}
	if err := group.Wait(); err != nil {
		panic("BUG: a tokenizer of one owner is closed twice: " + err.Error())
	}
	var list []Issue
	for i, err := range errs {
		if err != nil && !errors.Is(err, tokenize.ErrNoNative) {
			list = append(list, Issue{File: c.config, Path: fmt.Sprintf("models[%d].tokenizer", i), Text: err.Error()})
		}
	}
	if len(list) > 0 {
		c.fail(&ConfigError{Issues: list})
	}
}

// ready reports whether all tokenizers are there that are ever going to be.
func (t *tokenizers) ready() bool {
	for _, m := range t.models {
		if m.loading.Load() {
			return false
		}
	}
	return true
}

// Close frees the local tokenizers. Run has returned by then.
func (t *tokenizers) Close() {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, tok := range t.loaded {
		if err := tok.Close(); err != nil {
			t.log.Error("cannot free a tokenizer", "error", err)
		}
	}
	t.loaded = nil
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

// appendAny is the local tokenizer as it is compared with workers: of a messages body it
// finds what it finds of the chat that is made of it.
func (l *localTokenizer) appendAny(ctx context.Context, dst *tokenize.Prompts, kind tokenize.Kind, body []byte) error {
	if kind == tokenize.Messages {
		form, err := translate.AppendChat(nil, body, translate.ForTokens, nil)
		if err != nil {
			return fmt.Errorf("%w: no chat can be made of the messages", tokenize.ErrUnsupported)
		}
		kind, body = tokenize.Chat, form
	}
	return l.Append(ctx, dst, kind, body)
}
