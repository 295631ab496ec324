package policy

import (
	"fmt"
	"slices"
	"strings"
)

// Warning is something that loads but is worth a reviewer's look.
type Warning struct {
	Error
	Kind WarningKind
}

// WarningKind is a stable word for filters and tests.
type WarningKind string

// The kinds of warnings.
const (
	WarnUnbound       WarningKind = "unbound-policy"
	WarnConstant      WarningKind = "constant-rule"
	WarnUnused        WarningKind = "unused-variable"
	WarnUnreadParam   WarningKind = "unread-param"
	WarnHeader        WarningKind = "header-not-allowed"
	WarnIgnore        WarningKind = "ignore-protects"
	WarnOverride      WarningKind = "override"
	WarnRaise         WarningKind = "raises-class"
	WarnLoosen        WarningKind = "loosens-isolation"
	WarnClientKey     WarningKind = "client-key"
	WarnCost          WarningKind = "cost-sum"
	WarnSelectsNone   WarningKind = "selects-nothing"
	WarnUnknownTenant WarningKind = "unknown-tenant"
	WarnUnknownOp     WarningKind = "unknown-operation"
	WarnUnknownWord   WarningKind = "unknown-word"
	WarnContradicts   WarningKind = "no-pool-left"
	WarnShadowEffect  WarningKind = "effect-not-applied"
	WarnDecided       WarningKind = "decided-by-binding"
	WarnCurrency      WarningKind = "currency-unpriced"
)

// operations of the gateway's routes. More may come, so another name in a
// selector is worth a warning, no error.
var operations = []string{
	"chat", "completion", "responses", "messages", "embeddings", "count_tokens", "tokenize", "detokenize", "stored_responses", "models",
}

func (b *builder) warn(kind WarningKind, at Error, format string, args ...any) {
	at.Text = fmt.Sprintf(format, args...)
	b.warnings = append(b.warnings, Warning{Error: at, Kind: kind})
}

func (n node) place() Error {
	line, col := n.position()
	return Error{File: n.doc.file.name, Line: line, Col: col, Path: n.path}
}

// review looks for what loads but may not be meant.
func (b *builder) review(s *Set) {
	bound := map[*compiled][]*binding{}
	d := newDecider(b, s)
	for _, bd := range slices.Concat(s.live, s.shadow) {
		bound[bd.policy] = append(bound[bd.policy], bd)
		b.reviewBinding(bd)
	}
	for _, c := range s.policies {
		if len(bound[c]) == 0 {
			b.warn(WarnUnbound, c.doc.at.place(), "no binding names the policy, so it does nothing")
		}
		b.reviewRules(c)
		b.reviewReads(c)
		for i := range c.effects {
			b.reviewEffect(c, &c.effects[i])
		}
		b.reviewLimits(c)
		b.reviewWords(c, bound[c])
		d.policy(c, bound[c])
	}
	b.reviewCost(s)
	slices.SortStableFunc(b.warnings, func(x, y Warning) int { return compareErrors(x.Error, y.Error) })
}

func (b *builder) reviewBinding(bd *binding) {
	sel := bd.selector
	for _, op := range sel.operations {
		if !slices.Contains(operations, op) {
			b.warn(WarnUnknownOp, sel.opsAt.place(), "the gateway has no operation %q%s", cut(op, 80), didYouMean(op, operations))
		}
	}
	if len(sel.tenants) > 0 && !slices.ContainsFunc(sel.tenants, func(t string) bool { return !slices.Contains(sel.exclude, t) }) {
		b.warn(WarnSelectsNone, bd.doc.at.place(), "every tenant that the binding selects is excluded, so it selects nothing")
	}
	b.reviewTenants(bd)
	b.reviewCurrencies(bd)
	served := func(pattern string) bool {
		return slices.ContainsFunc(b.cfg.Pools, func(p Pool) bool {
			return slices.ContainsFunc(p.Models, func(m string) bool { return globMatch(pattern, m) })
		})
	}
	if len(sel.models) > 0 && len(b.cfg.Pools) > 0 && !slices.ContainsFunc(sel.models, served) {
		b.warn(WarnSelectsNone, sel.modelsAt.place(), "no pool serves a model that matches, so the binding selects nothing")
	}
	if bd.mode != Enforced && len(bd.policy.effects) > 0 && len(bd.policy.validations)+len(bd.policy.limits) == 0 {
		b.warn(WarnShadowEffect, bd.doc.at.place(), "the policy has effects only, which apply with the action Deny alone")
	}
}

// reviewTenants warns of a selector that names tenants or labels that the
// tenants file does not have, as far as that is known.
func (b *builder) reviewTenants(bd *binding) {
	sel := bd.selector
	if b.cfg.Tenants == nil {
		return
	}
	var ids []string
	for _, t := range b.cfg.Tenants {
		ids = append(ids, t.ID)
	}
	check := func(named []string, at node) {
		for _, id := range named {
			if !slices.Contains(ids, id) {
				b.warn(WarnUnknownTenant, at.place(), "there is no tenant %q%s", cut(id, 80), didYouMean(id, ids))
			}
		}
	}
	check(sel.tenants, sel.tenantsAt)
	check(sel.exclude, sel.excludeAt)
	some := slices.ContainsFunc(b.cfg.Tenants, func(t TenantInfo) bool {
		in := &Input{Tenant: TenantInput{ID: t.ID, Labels: t.Labels}}
		return (&selector{tenants: sel.tenants, exclude: sel.exclude, labels: sel.labels}).matches(in)
	})
	all := len(sel.tenants) > 0 && !slices.ContainsFunc(sel.tenants, func(t string) bool { return !slices.Contains(sel.exclude, t) })
	if !some && !all {
		at := sel.tenantsAt
		if at.n == nil {
			at = sel.labelsAt
		}
		b.warn(WarnSelectsNone, at.placeOr(bd.doc.at), "no tenant matches the selector, so the binding selects nothing")
	}
}

// reviewRules warns of rules whose outcome is always the same.
func (b *builder) reviewRules(c *compiled) {
	for _, m := range c.match {
		b.constant(m.expr, "the policy never applies", "the condition always holds: remove it")
	}
	for _, v := range c.validations {
		b.constant(v.expr, "the validation refuses every request that it sees", "the validation never refuses: remove it")
	}
	for _, e := range c.effects {
		b.constant(e.when, "the effect never applies", "the effect always applies: remove `when`")
	}
	for _, l := range c.limits {
		b.constant(l.when, "the limit never applies", "the limit always applies: remove `when`")
	}
}

func (b *builder) constant(x *expression, never, always string) {
	if x == nil || !x.isConst {
		return
	}
	text := never
	if x.constant {
		text = always
	}
	b.warn(WarnConstant, x.at, "always %t: %s", bool(x.constant), text)
}

// expressions lists every expression of a policy.
func (c *compiled) expressions() []*expression {
	var out []*expression
	add := func(xs ...*expression) {
		for _, x := range xs {
			if x != nil {
				out = append(out, x)
			}
		}
	}
	for _, m := range c.match {
		add(m.expr)
	}
	add(c.variables...)
	for _, v := range c.validations {
		add(v.expr, v.dynamic)
	}
	for _, e := range c.effects {
		add(e.when, e.maxTokens, e.n)
	}
	for _, l := range c.limits {
		add(l.when, l.limit, l.estimate, l.charge)
		add(l.key...)
	}
	for _, a := range c.annotations {
		add(a.expr)
	}
	return out
}

func (b *builder) reviewReads(c *compiled) {
	read := map[string]bool{}
	for _, x := range c.expressions() {
		for _, name := range x.reads {
			read[name] = true
		}
	}
	for i, name := range c.varNames {
		if !read[name] {
			b.warn(WarnUnused, c.doc.variables[i].at.place(), "no expression reads %s", name)
		}
	}
	for _, s := range c.doc.params {
		if !read["params."+s.name] {
			b.warn(WarnUnreadParam, s.at.place(), "no expression reads params.%s", s.name)
		}
	}
	b.reviewHeaders(c)
}

// reviewHeaders warns of headers read by a literal name that the gateway does
// not pass on.
func (b *builder) reviewHeaders(c *compiled) {
	if b.cfg.Headers == nil {
		return
	}
	for _, x := range c.expressions() {
		for _, name := range x.headers {
			if !slices.Contains(b.cfg.Headers, name) {
				hint := didYouMean(name, b.cfg.Headers)
				if strings.ToLower(name) != name {
					hint = "; header names are lower case"
				}
				b.warn(WarnHeader, x.at, "the header %q is not on the allowlist, so request.headers never has it%s", cut(name, 80), hint)
			}
		}
	}
}

func (b *builder) reviewEffect(c *compiled, e *effect) {
	at := e.doc.at.place()
	if c.ignore && (e.removes != nil || e.isolation >= 0) {
		b.warn(WarnIgnore, at, "failurePolicy Ignore drops this effect when it fails, which opens what it protects: use Fail")
	}
	if e.override {
		b.warn(WarnOverride, at, "override lifts requests to class %s above what other policies say", e.doc.class.text)
	} else if def := slices.Index(b.cfg.Classes, b.cfg.DefaultClass); e.class >= 0 && e.class < def {
		b.warn(WarnRaise, at, "names class %s, above the default %s, where no other policy names one", e.doc.class.text, b.cfg.DefaultClass)
	}
	if e.isolation >= 0 && e.isolation < isolationRank(b.cfg.DefaultIsolation) {
		b.warn(WarnLoosen, at, "names isolation %s, looser than the default %s, where no other policy names one", e.doc.isolation, b.cfg.DefaultIsolation)
	}
	if len(e.removes) > 0 && !slices.Contains(e.removes, false) {
		b.warn(WarnContradicts, at, "the effect leaves no pool of the configuration, so it refuses every request that it applies to")
	}
}

func (b *builder) reviewLimits(c *compiled) {
	for i := range c.limits {
		l := &c.limits[i]
		if c.ignore {
			b.warn(WarnIgnore, l.doc.at.place(), "failurePolicy Ignore drops this limit when it fails, which admits without it: use Fail")
		}
		for _, k := range l.key {
			if k != nil && k.client {
				b.warn(WarnClientKey, k.at, "the key holds text written by the client, who can change it to get a fresh counter")
			}
		}
	}
}

// EstimateSums are the estimated maximum costs of a request that every binding
// matches. What selectors keep apart is not considered.
type EstimateSums struct {
	// Enforced bindings, and all others.
	Enforced, Rehearsals int64
	// Limit of either sum, beyond which expressions of a request fail or are
	// skipped.
	Limit int64
}

// EstimateSums adds up the estimates of all bindings.
func (s *Set) EstimateSums() EstimateSums {
	var enforced, others uint64
	for _, bd := range slices.Concat(s.live, s.shadow) {
		total := &enforced
		if bd.mode != Enforced {
			total = &others
		}
		for _, x := range bd.policy.expressions() {
			*total = add(*total, x.estimate)
		}
	}
	return EstimateSums{Enforced: int64(enforced), Rehearsals: int64(others), Limit: requestCostLimit}
}

// reviewCost warns where the estimates of all bindings together could exceed
// the budget of one request.
func (b *builder) reviewCost(s *Set) {
	sums := s.EstimateSums()
	check := func(total int64, what string) {
		if total > sums.Limit {
			b.warn(WarnCost, Error{}, "the estimates of all %s bindings add up to %d, more than the %d of one request: a request that matches them all can be refused", what, total, sums.Limit)
		}
	}
	check(sums.Enforced, "enforced")
	check(sums.Rehearsals, "Warn and Audit")
}
