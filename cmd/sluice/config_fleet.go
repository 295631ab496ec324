package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/sluicegate/sluice/policy"
)

// models checks the models and that every name leads to one model.
func (v *validator) models() {
	if len(v.cfg.Models) == 0 {
		v.errorf("models", "is empty, should list at least one model")
	}
	owner := make(map[string]string) // by name or alias: the path that claimed it
	for i := range v.cfg.Models {
		m := &v.cfg.Models[i]
		at := fmt.Sprintf("models[%d]", i)
		v.modelName(at+".name", m.Name, owner)
		for j, alias := range m.Aliases {
			v.modelName(fmt.Sprintf("%s.aliases[%d]", at, j), alias, owner)
		}
		if m.ContextLength == 0 {
			v.errorf(at+".contextLength", "is missing, should be the most tokens a prompt and its answer can have together (the worker's --max-model-len)")
		} else {
			v.count(at+".contextLength", m.ContextLength, 1, 1<<31-1)
			v.count(at+".defaultMaxTokens", m.DefaultMaxTokens, 1, max(1, m.ContextLength))
		}
		if !(m.BytesPerToken >= 0.1 && m.BytesPerToken <= 100) {
			v.errorf(at+".bytesPerToken", "is %g, should be between 0.1 and 100", m.BytesPerToken)
		}
		if m.Tokenizer == "" {
			v.warnf(at+".tokenizer", "none: prompts of %q are tokenised by its workers' /tokenize, one call more a request", clip(m.Name))
		} else if st, err := os.Stat(m.Tokenizer); err == nil && st.IsDir() { // files() reports the rest
			v.readable(configPath{at + ".tokenizer", new(filepath.Join(m.Tokenizer, "tokenizer.json")), false})
		}
		v.template(at, m)
		served := slices.ContainsFunc(v.cfg.Pools, func(p PoolConfig) bool { return p.serves(m.Name) })
		if !served {
			v.warnf(at+".name", "no pool serves %q: requests for it are refused", clip(m.Name))
		}
	}
}

// template checks what is said of the workers' chat template.
func (v *validator) template(at string, m *ModelConfig) {
	v.oneOf(at+".contentFormat", m.ContentFormat, "auto", "string", "openai")
	if m.TemplateKwargs != "" {
		var kwargs map[string]json.RawMessage
		if err := json.Unmarshal([]byte(m.TemplateKwargs), &kwargs); err != nil || kwargs == nil {
			v.errorf(at+".templateKwargs", "is no JSON object, should be what the workers were given as --default-chat-template-kwargs")
		}
	}
	if m.Tokenizer == "" && (m.ChatTemplate != "" || m.ContentFormat != "auto" || m.TemplateKwargs != "") {
		v.errorf(at+".tokenizer", "is missing; chatTemplate, contentFormat and templateKwargs are for a model with a tokenizer")
	}
}

// modelName checks a name that clients may use, and claims it.
func (v *validator) modelName(path, name string, owner map[string]string) {
	switch {
	case name == "":
		v.errorf(path, "is missing, should be the name that clients use")
		return
	case utf8.RuneCountInString(name) > maxModelName:
		v.errorf(path, "has %d characters, should have at most %d", utf8.RuneCountInString(name), maxModelName)
	case strings.ContainsFunc(name, func(r rune) bool { return r <= ' ' || r > '~' }):
		v.errorf(path, "%q holds white space or a character outside printable ASCII", clip(name))
	}
	if first, taken := owner[name]; taken {
		v.errorf(path, "%q is taken by %s; names and aliases of all models are distinct", clip(name), first)
		return
	}
	owner[name] = path
}

// claims are the names, addresses and event endpoints of workers that are taken, each with the path that
// claimed it.
type claims struct {
	names, urls map[string]string
	endpoints   *[]endpointUse
}

func newClaims(endpoints []endpointUse) claims {
	return claims{names: make(map[string]string), urls: make(map[string]string), endpoints: &endpoints}
}

// pools checks the pools and their workers. A worker is in one pool, once: its load is counted there.
func (v *validator) pools() {
	if len(v.cfg.Pools) == 0 {
		v.errorf("pools", "is empty, should list at least one pool of workers")
	}
	poolNames, taken := make(map[string]string), newClaims(v.listenUse())
	for i := range v.cfg.Pools {
		p := &v.cfg.Pools[i]
		at := fmt.Sprintf("pools[%d]", i)
		v.matching(at+".name", p.Name, labelPattern, "lower-case letters, digits and dashes, at most 63")
		v.claim(at+".name", p.Name, poolNames, "pool names are distinct")
		v.poolModels(at, p)
		for key, value := range p.Labels {
			if key == "" || len(key) > 63 || len(value) > 63 {
				v.errorf(at+".labels."+key, "a label's key has 1 to 63 characters and its value at most 63")
			}
		}
		for j, op := range p.CacheSalt {
			v.oneOf(fmt.Sprintf("%s.cacheSalt[%d]", at, j), op, append([]string{"*"}, policy.Operations()...)...)
		}
		v.unique(at+".cacheSalt", p.CacheSalt)
		v.endpoints(at+".endpoints", p.Endpoints)
		if len(p.Workers) == 0 && !p.WorkersFrom.Enabled() && !v.given(at+".workersFrom.") {
			v.errorf(at+".workers", "is empty, should list at least one worker, or workersFrom should say where they are listed")
		}
		v.workers(at+".workers", p.Workers, taken)
		v.gpus(at, p)
	}
	// Lists that change come after all of those that do not, whose names and addresses win.
	for i := range v.cfg.Pools {
		v.workersFrom(fmt.Sprintf("pools[%d].workersFrom", i), &v.cfg.Pools[i].WorkersFrom, taken)
	}
}

// workers checks a list of workers.
func (v *validator) workers(at string, list []WorkerConfig, taken claims) {
	for j := range list {
		w := &list[j]
		at := fmt.Sprintf("%s[%d]", at, j)
		v.matching(at+".name", w.Name, workerPattern, "letters, digits, dots, dashes and underscores, at most 63")
		v.claim(at+".name", w.Name, taken.names, "worker names are distinct across all pools")
		v.workerURL(at+".url", w.URL)
		v.claim(at+".url", strings.TrimRight(w.URL, "/"), taken.urls, "a worker is listed once, in one pool, or its load would be counted twice")
		v.workerEvents(at, w, taken.endpoints)
	}
}

// claim records an error if value is taken.
func (v *validator) claim(path, value string, owner map[string]string, rule string) {
	if value == "" {
		return
	}
	if first, taken := owner[value]; taken {
		v.errorf(path, "%q is taken by %s; %s", clip(value), first, rule)
		return
	}
	owner[value] = path
}

func (v *validator) poolModels(at string, p *PoolConfig) {
	if len(p.Models) == 0 {
		v.errorf(at+".models", "is empty, should list the models that every worker of the pool serves")
	}
	names := make([]string, len(v.cfg.Models))
	for i := range v.cfg.Models {
		names[i] = v.cfg.Models[i].Name
	}
	for j, name := range p.Models {
		if !slices.Contains(names, name) {
			v.errorf(fmt.Sprintf("%s.models[%d]", at, j), "no model is named %q%s", clip(name), suggest(name, names))
		}
	}
	v.unique(at+".models", p.Models)
	for j, name := range p.Adapters {
		at := fmt.Sprintf("%s.adapters[%d]", at, j)
		if !slices.Contains(names, name) {
			v.errorf(at, "no model is named %q%s", clip(name), suggest(name, names))
		}
		for k := range v.cfg.Pools {
			if slices.Contains(v.cfg.Pools[k].Models, name) {
				v.errorf(at, "%q is in pools[%d].models too; a model is a LoRA adapter in every pool or in none", clip(name), k)
			}
		}
	}
	v.unique(at+".adapters", p.Adapters)
}
