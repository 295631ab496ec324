package policy

import (
	"fmt"
	"slices"
	"strings"
)

// vocabulary are the words that a variable can have, as far as they are known
// when policies load.
type vocabulary struct {
	words []string
	// what says what a word of it is: "the gateway has no operation %q".
	what string
	// typos: only a word that is near to one of them is worth a warning, since
	// others may come without the policies changing.
	typos bool
}

// vocabularies lists them by variable. A vocabulary that is not known is left
// out.
func (b *builder) vocabularies() map[string]vocabulary {
	out := map[string]vocabulary{
		"request.operation":         {operations, "the gateway has no operation %q", false},
		"request.modalities":        {[]string{"text", "image", "audio", "video", "file"}, "there is no modality %q", false},
		"request.dialect":           {[]string{"openai", "anthropic"}, "there is no dialect %q", false},
		"principal.kind":            {[]string{"api_key", "jwt", "mtls", "anonymous"}, "there is no kind of principal %q", false},
		"content.scan_status":       {scanStatuses, "there is no scan status %q", false},
		"effective.cache_isolation": {[]string{IsolationNone, IsolationTenant, IsolationPrincipal}, "there is no isolation %q", false},
		"effective.qos_class":       {b.cfg.Classes, "the configuration has no class %q", false},
	}
	if len(b.cfg.Pools) > 0 {
		models := []string{""} // of the routes that name none
		for _, p := range b.cfg.Pools {
			models = append(models, p.Models...)
		}
		for name := range b.cfg.Models {
			models = append(models, name)
		}
		out["request.model"] = vocabulary{models, "the configuration has no model %q", false}
	}
	if b.cfg.Tenants != nil {
		var ids, teams, tiers []string
		for _, t := range b.cfg.Tenants {
			ids, teams, tiers = append(ids, t.ID), append(teams, t.Team), append(tiers, t.Tier)
		}
		out["tenant.id"] = vocabulary{ids, "there is no tenant %q", false}
		out["tenant.team"] = vocabulary{teams, "no tenant is of the team %q", true}
		out["tenant.tier"] = vocabulary{tiers, "no tenant is of the tier %q", true}
	}
	if b.cfg.AnyNames {
		delete(out, "effective.qos_class")
	}
	return out
}

// problem says what is wrong with a word; nothing when it is known.
func (v *vocabulary) problem(text string) string {
	if slices.Contains(v.words, text) {
		return ""
	}
	hint := didYouMean(text, v.words)
	if v.typos && hint == "" {
		return ""
	}
	return fmt.Sprintf(v.what, cut(text, 80)) + hint
}

// reviewWords warns of words that a variable never has, in expressions and in
// the parameters that they compare with.
func (b *builder) reviewWords(c *compiled, bindings []*binding) {
	known := b.vocabularies()
	params := map[[2]string]bool{} // variable and parameter, reviewed once
	c.each(func(_ placedRule, _ string, x *expression) {
		for _, name := range sortedUses(x.uses) {
			v, ok := known[name]
			if !ok {
				continue
			}
			for _, w := range x.uses[name].words {
				if text := v.problem(w.text); text != "" {
					at := x.at
					at.Line, at.Col = w.line, w.col
					b.warn(WarnUnknownWord, at, "%s", text)
				}
			}
			for _, p := range x.uses[name].params {
				if !params[[2]string{name, p}] {
					params[[2]string{name, p}] = true
					b.reviewParamWords(name, p, v, bindings)
				}
			}
		}
	})
}

func (b *builder) reviewParamWords(name, param string, v vocabulary, bindings []*binding) {
	for _, bd := range bindings {
		for _, w := range bd.wordsOf(param) {
			if text := v.problem(w); text != "" {
				at := bd.doc.params.placeOr(bd.doc.at)
				at.Path += "." + strings.TrimPrefix(param, "params.")
				b.warn(WarnUnknownWord, at, "%s (%s is compared with it)", text, name)
			}
		}
	}
}

// placeOr is the node's place, or that of another one where it is not written.
func (n node) placeOr(other node) Error {
	if n.n == nil {
		return other.place()
	}
	return n.place()
}

func sortedUses(m map[string]*use) []string {
	out := make([]string, 0, len(m))
	for k := range m {
		out = append(out, k)
	}
	slices.Sort(out)
	return out
}
