package policy

import (
	"maps"
	"slices"
	"strings"

	"github.com/google/cel-go/cel"
	"github.com/google/cel-go/common/types/ref"
)

// compiled is a policy ready to be evaluated. It is immutable.
type compiled struct {
	name   string
	doc    *policyDoc
	ignore bool
	// variables in the order of the document; varIndex finds them by full name.
	variables   []*expression
	varNames    []string
	varIndex    map[string]int
	match       []rule
	validations []validation
	effects     []effect
	limits      []limit
	annotations []rule
	// env declares all that the policy's expressions may read; nil unless
	// Config.KeepSource is set.
	env *cel.Env
}

// rule is a named expression. ref is policy/name.
type rule struct {
	ref  string
	expr *expression
}

type validation struct {
	rule
	reason  Reason
	message string
	dynamic *expression
}

type effect struct {
	ref          string
	when         *expression // nil: always
	class        int         // index of the class, -1 when none is named
	override     bool
	doc          *effectDoc
	maxTokens, n *expression
	isolation    int // rank, -1 when none is named
	labels       []string
	// removes marks the pools that the effect takes away, by index; nil when it
	// does not route.
	removes []bool
}

type limit struct {
	ref              string
	doc              *limitDoc
	when             *expression
	limit            *expression
	key              []*expression
	estimate, charge *expression
	// reads of lazy work that the charge makes, resolved at admission.
	chargeTokens, chargeContent bool
}

// binding applies a policy to a selection of requests. It is immutable.
type binding struct {
	name     string
	policy   *compiled
	doc      *bindingDoc
	selector *selector
	mode     Mode
	audit    bool
	params   map[string]ref.Val // by full name
	// counters are the beginnings of the identities of the limits' counters.
	counters []string
	// admits is what the index knows of the binding. selected says that this is
	// all of its selector; decided says the same of each match condition.
	admits   map[dimension]admitted
	selected bool
	decided  []bool
}

// builder compiles the documents of one load.
type builder struct {
	p        *problems
	cfg      *Config
	env      *cel.Env
	vars     map[string]variable
	warnings []Warning
}

// compilePolicy compiles all expressions of a policy. sizes are the largest
// parameter values of its bindings.
func (b *builder) compilePolicy(d *policyDoc, sizes map[string]valueSize) *compiled {
	c := &compiler{p: b.p, policy: d, env: b.env, keep: b.cfg.KeepSource, vars: map[string]variable{}, traits: map[string]*expression{}, broken: map[string]bool{}, later: map[string]bool{}}
	maps.Copy(c.vars, b.vars)
	out := &compiled{name: d.name, doc: d, ignore: d.ignore, varIndex: map[string]int{}}
	params := make([]variable, 0, len(d.params))
	for _, s := range d.params {
		name := "params." + s.name
		params = append(params, variable{name: name, typ: s.shape.celType(), size: sizes[name]})
	}
	if err := c.extend(params...); err != nil {
		d.at.errorf(b.p, "%v", err)
		return out
	}
	c.matching = true
	for _, m := range d.match {
		out.match = append(out.match, rule{d.name + "/" + m.name, c.compile(m.expr, scopeAll, cel.BoolType)})
	}
	c.matching = false
	if err := b.compileVariables(c, d, out); err != nil {
		d.at.errorf(b.p, "%v", err)
		return out
	}
	b.compileValidations(c, d, out)
	for i := range d.effects {
		out.effects = append(out.effects, b.compileEffect(c, &d.effects[i]))
	}
	for i := range d.limits {
		out.limits = append(out.limits, compileLimit(c, &d.limits[i]))
	}
	for _, a := range d.annotations {
		x := c.compile(a.expr, scopeAll, cel.StringType, optionalString)
		c.refuseClientText(a.expr, x)
		out.annotations = append(out.annotations, rule{d.name + "/" + a.name, x})
	}
	if b.cfg.KeepSource {
		out.env = c.env
	}
	return out
}

// compileVariables compiles and declares the variables one after another, since
// each may read the earlier ones.
func (b *builder) compileVariables(c *compiler, d *policyDoc, out *compiled) error {
	for _, v := range d.variables {
		c.later["variables."+v.name] = true
	}
	for _, v := range d.variables {
		x := c.compile(v.expr, scopeAll)
		name := "variables." + v.name
		delete(c.later, name)
		typ := cel.DynType
		if c.broken[name] = x == nil; x != nil {
			typ = x.typ
			c.traits[name] = x
		}
		size := valueSize{self: maxVariable, key: maxVariable, elem: maxVariableElem}
		if err := c.extend(variable{name: name, typ: typ, size: size}); err != nil {
			return err
		}
		out.varIndex[name] = len(out.variables)
		out.variables = append(out.variables, x)
		out.varNames = append(out.varNames, name)
	}
	return nil
}

func (b *builder) compileValidations(c *compiler, d *policyDoc, out *compiled) {
	for _, v := range d.validations {
		x := validation{
			rule:    rule{d.name + "/" + v.name, c.compile(v.expr, scopeAll, cel.BoolType)},
			reason:  v.reason,
			message: v.message,
			dynamic: c.compile(v.dynamic, scopeAll, cel.StringType),
		}
		c.refuseClientText(v.dynamic, x.dynamic)
		out.validations = append(out.validations, x)
	}
}

// refuseClientText reports an expression whose result is shown or logged and
// that reads what the client has written.
func (c *compiler) refuseClientText(x exprDoc, e *expression) {
	if e == nil || !e.client {
		return
	}
	for _, name := range e.reads {
		t := c.traits[name]
		if c.vars[name].client || t != nil && t.client {
			c.fault(x, 0, 0, "%s holds text written by the client, which must not come back in a message or an annotation", name)
		}
	}
}

func (b *builder) compileEffect(c *compiler, d *effectDoc) effect {
	e := effect{ref: c.policy.name + "/" + d.name, doc: d, class: -1, isolation: -1, override: d.override, labels: texts(d.labels)}
	e.when = c.compile(d.when, scopeAll, cel.BoolType)
	e.maxTokens = c.compile(d.maxTokens, scopeAll, cel.IntType)
	e.n = c.compile(d.n, scopeAll, cel.IntType)
	if d.class.text != "" {
		e.class = slices.Index(b.cfg.Classes, d.class.text)
		b.known(d.class, "class", b.cfg.Classes)
	}
	if d.isolation != "" {
		e.isolation = isolationRank(d.isolation)
	}
	for _, l := range d.labels {
		b.checkLabel(l)
	}
	b.checkPools(d)
	e.removes = b.removedPools(d)
	return e
}

// known reports a literal that the configuration does not know.
func (b *builder) known(l literal, what string, names []string) {
	if l.text != "" && !b.cfg.AnyNames && !slices.Contains(names, l.text) {
		l.at.errorf(b.p, "the configuration has no %s %q%s", what, cut(l.text, 80), didYouMean(l.text, names))
	}
}

func (b *builder) checkLabel(l literal) {
	switch {
	case l.text != "" && !isName(l.text):
		l.at.errorf(b.p, "label %q is not allowed: use 1 to 63 of a-z, 0-9 and -, with a letter or digit at both ends", cut(l.text, 80))
	case b.cfg.Labels != nil:
		b.known(l, "label", b.cfg.Labels)
	}
}

func (b *builder) checkPools(d *effectDoc) {
	pools := make([]string, len(b.cfg.Pools))
	values := map[string][]string{}
	for i, p := range b.cfg.Pools {
		pools[i] = p.Name
		for k, v := range p.Labels {
			values[k] = append(values[k], v)
		}
	}
	for _, l := range slices.Concat(d.allowPools, d.denyPools) {
		b.known(l, "pool", pools)
	}
	for _, l := range d.poolLabels {
		b.known(l.key, "pool label", slices.Sorted(maps.Keys(values)))
		if known, ok := values[l.key.text]; ok {
			b.known(l.value, "pool whose label "+l.key.text+" is", known)
		}
	}
}

// removedPools marks the pools that an effect takes away. Intersecting the
// allowed, subtracting the denied and requiring labels are all that: the pools
// left are those that no fired effect removes.
func (b *builder) removedPools(d *effectDoc) []bool {
	if len(d.allowPools)+len(d.denyPools)+len(d.poolLabels) == 0 {
		return nil
	}
	allow, deny := texts(d.allowPools), texts(d.denyPools)
	out := make([]bool, len(b.cfg.Pools))
	for i, p := range b.cfg.Pools {
		out[i] = len(allow) > 0 && !slices.Contains(allow, p.Name) || slices.Contains(deny, p.Name)
		for _, l := range d.poolLabels {
			got, ok := p.Labels[l.key.text]
			out[i] = out[i] || !ok || got != l.value.text
		}
	}
	return out
}

func compileLimit(c *compiler, d *limitDoc) limit {
	l := limit{ref: c.policy.name + "/" + d.name, doc: d}
	l.when = c.compile(d.when, scopeLimit, cel.BoolType)
	l.limit = c.compile(d.limit, scopeLimit, cel.IntType)
	for _, k := range d.key {
		l.key = append(l.key, c.compile(k, scopeLimit, cel.StringType))
	}
	l.estimate = c.compile(d.estimate, scopeLimit, cel.IntType)
	l.charge = c.compile(d.charge, scopeCharge, cel.IntType)
	if l.charge != nil {
		l.chargeTokens, l.chargeContent = l.charge.tokens, l.charge.content
	}
	return l
}

// isolationRank orders the scopes, the strictest last.
func isolationRank(name string) int {
	return slices.Index([]string{IsolationNone, IsolationTenant, IsolationPrincipal}, name)
}

// compareBindings is the canonical order: policy name, then binding name.
func compareBindings(a, b *binding) int {
	if c := strings.Compare(a.policy.name, b.policy.name); c != 0 {
		return c
	}
	return strings.Compare(a.name, b.name)
}
