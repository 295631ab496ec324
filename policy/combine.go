package policy

import (
	"slices"
)

// effective is the combined outcome that the expressions of limits read.
type effective struct {
	maxTokens, n     int64
	class, isolation string
	labels           []string
}

// Operations that generate no text: caps on tokens do nothing there.
var withoutOutput = []string{"embeddings", "count_tokens", "tokenize", "detokenize", "stored_responses", "models"}

// Operations that put no prompt through an engine: there is no prefix to share. One that is not on this
// list is taken to have one.
var withoutPrompt = []string{"count_tokens", "tokenize", "detokenize", "stored_responses"}

// operationModels calls no engine.
const operationModels = "models"

// combine merges what the bindings say, by rules that give the same result in
// any order (section 5 of the format).
func (e *evaluation) combine(d *Decision, found []judged) {
	all := firedBy(found)
	for _, f := range all {
		d.Fired = append(d.Fired, f.ref)
	}
	all = slices.DeleteFunc(all, func(f fired) bool { return f.ref.Mode != Enforced })
	e.effective = &effective{}
	d.Labels = unionLabels(all)
	e.effective.labels = d.Labels
	if e.in.Request.Operation == operationModels {
		all = nil // no engine is called, so the rest does nothing
	}
	e.combineClass(d, all)
	e.combineCaps(d, all)
	e.combineIsolation(d, all)
	if e.in.Request.Operation != operationModels {
		e.combinePools(d, all)
	}
}

// firedBy lists the effects of all bindings in the order of reports.
func firedBy(found []judged) []fired {
	var all []fired
	for _, j := range found {
		all = append(all, j.fired...)
	}
	slices.SortFunc(all, func(a, b fired) int { return comparePositions(a.at, b.at) })
	return all
}

func unionLabels(all []fired) []string {
	out := []string{}
	for _, f := range all {
		out = append(out, f.effect.labels...)
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// combineClass takes the lowest class named, or, with any override, the lowest
// of those.
func (e *evaluation) combineClass(d *Decision, all []fired) {
	class, override := -1, false
	for _, f := range all {
		x := f.effect
		switch {
		case x.class < 0:
		case x.override && !override:
			class, override = x.class, true
		case x.override == override:
			class = max(class, x.class)
		}
	}
	cfg := e.set.cfg
	d.Class = cfg.DefaultClass
	if class >= 0 {
		d.Class = cfg.Classes[class]
		for _, f := range all {
			if f.effect.class == class {
				d.Preemptible = d.Preemptible || f.effect.doc.preemptible
				d.TTFTTarget = max(d.TTFTTarget, f.effect.doc.ttft)
			}
		}
	}
	e.effective.class = d.Class
}

// combineCaps takes the least cap. The client's lower value stays; a missing
// max_tokens takes the model's default first.
func (e *evaluation) combineCaps(d *Decision, all []fired) {
	r := &e.in.Request
	d.N = max(r.N, 1)
	for _, f := range all {
		if f.n > 0 {
			d.N = min(d.N, f.n)
		}
	}
	d.NChanged = d.N != max(r.N, 1)
	e.effective.n = d.N
	if slices.Contains(withoutOutput, r.Operation) {
		return
	}
	tokens := e.set.cfg.defaultMaxTokens(r.Model)
	if r.MaxTokens != nil {
		tokens = *r.MaxTokens
	}
	capped := false
	for _, f := range all {
		if f.maxTokens > 0 {
			capped = true
			tokens = min(tokens, f.maxTokens)
		}
	}
	d.MaxTokens = &tokens
	d.MaxTokensChanged = capped && (r.MaxTokens == nil || *r.MaxTokens != tokens)
	e.effective.maxTokens = tokens
}

func (c *Config) defaultMaxTokens(model string) int64 {
	if m := c.Models[model]; m.DefaultMaxTokens > 0 {
		return m.DefaultMaxTokens
	}
	return c.DefaultMaxTokens
}

// combineIsolation takes the strictest scope named, or the default.
func (e *evaluation) combineIsolation(d *Decision, all []fired) {
	rank := -1
	d.CacheIsolation = e.set.cfg.DefaultIsolation
	for _, f := range all {
		if f.effect.isolation > rank {
			rank = f.effect.isolation
			d.CacheIsolation = f.effect.doc.isolation
		}
	}
	e.effective.isolation = d.CacheIsolation
}

// combinePools takes what every fired effect removes from the pools that serve
// the model. None left is a denial that names every effect that removed one;
// it is never any pool.
func (e *evaluation) combinePools(d *Decision, all []fired) {
	cfg := e.set.cfg
	if len(cfg.Pools) == 0 {
		return
	}
	serving := e.serving()
	removed := make([]bool, len(cfg.Pools))
	var culprits []fired
	for _, f := range all {
		if e.remove(d, f, serving, removed) {
			culprits = append(culprits, f)
		}
	}
	if d.CacheIsolation != IsolationNone {
		for _, i := range serving {
			removed[i] = removed[i] || !e.salted(i)
		}
	}
	d.Pools = []string{}
	for _, i := range serving {
		if !removed[i] {
			d.Pools = append(d.Pools, cfg.Pools[i].Name)
		}
	}
	if len(d.Pools) > 0 || len(d.denied) > 0 {
		return // served, or denied for a better reason
	}
	for _, f := range culprits {
		ref := f.ref
		ref.Reason, ref.Message = NoPermittedPool, deniedBy(ref.Rule)
		d.deny(f.at, ref)
	}
	if len(culprits) == 0 {
		d.deny(position{}, RuleRef{Mode: Enforced, Kind: Effect, Reason: NoPermittedPool, Message: textNoPool})
	}
}

// serving lists the pools that serve the model. A request that names no model
// (an id route) may go to any pool.
func (e *evaluation) serving() []int {
	if e.in.Request.Model != "" {
		return e.set.serving[e.in.Request.Model]
	}
	all := make([]int, len(e.set.cfg.Pools))
	for i := range all {
		all[i] = i
	}
	return all
}

// remove marks the pools that one effect takes away, by its route or by the
// isolation that it demands, and reports whether a serving pool was among them.
func (e *evaluation) remove(d *Decision, f fired, serving []int, removed []bool) bool {
	any := false
	isolates := f.effect.doc.isolation == d.CacheIsolation && d.CacheIsolation != IsolationNone
	for _, i := range serving {
		routed := f.effect.removes != nil && f.effect.removes[i]
		if routed || isolates && !e.salted(i) {
			any, removed[i] = true, true
		}
	}
	return any
}

// salted reports whether a pool is known to keep caches apart for the operation.
func (e *evaluation) salted(pool int) bool {
	op := e.in.Request.Operation
	if slices.Contains(withoutPrompt, op) {
		return true
	}
	return slices.ContainsFunc(e.set.cfg.Pools[pool].Salted, func(known string) bool { return known == "*" || known == op })
}
