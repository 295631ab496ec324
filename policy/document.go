package policy

import (
	"slices"
	"strconv"
	"time"
)

// The words of the format.
const (
	apiVersion   = "sluice/v1alpha1"
	kindPolicy   = "AdmissionPolicy"
	kindBinding  = "AdmissionPolicyBinding"
	kindTest     = "PolicyTest"
	actionDeny   = "Deny"
	actionWarn   = "Warn"
	actionAudit  = "Audit"
	failIgnore   = "Ignore"
	calendarDay  = "day"
	calendarMon  = "month"
	storeDeny    = "Deny"
	maxPolicies  = 256
	maxBindings  = 1024
	maxRules     = 64
	maxLimits    = 16
	maxAnnotates = 16
	maxKeyParts  = 16
)

// policyDoc is a decoded AdmissionPolicy. Expressions are still text.
type policyDoc struct {
	at          node
	name        string
	ignore      bool // failurePolicy: Ignore
	params      []paramSchema
	match       []namedExpr
	variables   []namedExpr
	validations []validationDoc
	effects     []effectDoc
	limits      []limitDoc
	annotations []namedExpr
}

// namedExpr is a named expression; at is the whole entry.
type namedExpr struct {
	at   node
	name string
	expr exprDoc
}

// exprDoc is the text of an expression and its path. It is empty (set false)
// where a document leaves it out.
type exprDoc struct {
	scalar
	path string
	set  bool
}

type validationDoc struct {
	namedExpr
	reason  Reason
	message string
	dynamic exprDoc // messageExpression
}

type effectDoc struct {
	at           node
	name         string
	when         exprDoc
	class        literal // empty: none
	override     bool
	preemptible  bool
	ttft         time.Duration
	allowPools   []literal
	denyPools    []literal
	poolLabels   []poolLabel
	maxTokens, n exprDoc
	isolation    string
	labels       []literal
}

// literal is a name that the configuration has to know.
type literal struct {
	text string
	at   node
}

// poolLabel is a label that a pool must carry.
type poolLabel struct{ key, value literal }

type limitDoc struct {
	at               node
	name             string
	when             exprDoc
	unit             Unit
	window           Window
	limit            exprDoc
	key              []exprDoc
	estimate, charge exprDoc
	onStoreError     string
}

// bindingDoc is a decoded AdmissionPolicyBinding.
type bindingDoc struct {
	at       node
	name     string
	policy   string
	policyAt node
	selector selector
	mode     Mode
	audit    bool // Audit beside Deny or Warn, or alone
	params   node
	hasParam bool
}

// header is what every document has.
type header struct {
	kind, name string
	root       node
	spec       node
}

// decodeHeader reads what all kinds share. ok is false when the document
// cannot be read any further.
func decodeHeader(p *problems, doc yamlDoc) (h header, ok bool) {
	root := node{doc: doc, n: doc.root}
	if root.kind() != "a mapping" {
		root.errorf(p, "a document is a mapping with apiVersion, kind, metadata and spec, found %s", root.kind())
		return h, false
	}
	f := root.fields(p, "apiVersion", "kind", "metadata", "spec")
	kind, found := f["kind"]
	if !found {
		root.errorf(p, "field kind is missing: use %s, %s or %s", kindPolicy, kindBinding, kindTest)
		return h, false
	}
	h.kind = kind.oneOf(p, kindPolicy, kindBinding, kindTest)
	if v, found := f["apiVersion"]; !found {
		root.errorf(p, "field apiVersion is missing: use %s", apiVersion)
	} else if s := v.str(p); s != "" && s != apiVersion {
		v.errorf(p, "unknown apiVersion %s: use %s", strconv.Quote(cut(s, 80)), apiVersion)
	}
	if meta, found := f["metadata"]; found {
		h.name = decodeMetadata(p, meta)
	} else {
		root.errorf(p, "field metadata is missing")
	}
	h.root, h.spec = root, f["spec"]
	h.root.path = h.kind + "/" + h.name
	h.spec.path = h.root.path + ".spec"
	h.spec.doc = doc
	if _, found := f["spec"]; !found || h.spec.isNull() {
		h.root.errorf(p, "field spec is missing")
		return h, false
	}
	return h, h.kind != ""
}

func decodeMetadata(p *problems, meta node) string {
	f := meta.fields(p, "name", "annotations")
	if a, ok := f["annotations"]; ok {
		a.stringMap(p)
	}
	n, ok := f["name"]
	if !ok {
		meta.errorf(p, "field name is missing")
		return ""
	}
	return n.ruleName(p)
}

// ruleName reads a name of the form that rules, policies and labels have.
func (n node) ruleName(p *problems) string {
	s := n.str(p)
	if s != "" && !isName(s) {
		n.errorf(p, "name %s is not allowed: use 1 to 63 of a-z, 0-9 and -, with a letter or digit at both ends", strconv.Quote(cut(s, 80)))
		return ""
	}
	return s
}

// field reads a required field.
func (n node) require(p *problems, f map[string]node, name string) (node, bool) {
	v, ok := f[name]
	if !ok {
		n.errorf(p, "field %s is missing", name)
	}
	return v, ok
}

// optional expressions and strings.
func exprField(p *problems, f map[string]node, name string) exprDoc {
	v, ok := f[name]
	if !ok {
		return exprDoc{}
	}
	return v.exprDoc(p)
}

func (n node) exprDoc(p *problems) exprDoc {
	return exprDoc{scalar: n.expr(p), path: n.path, set: true}
}

func strField(p *problems, f map[string]node, name string) string {
	if v, ok := f[name]; ok {
		return v.str(p)
	}
	return ""
}

func boolField(p *problems, f map[string]node, name string) bool {
	if v, ok := f[name]; ok {
		return v.boolean(p)
	}
	return false
}

func decodePolicy(p *problems, h header) *policyDoc {
	d := &policyDoc{at: h.root, name: h.name}
	f := h.spec.fields(p, "description", "failurePolicy", "params", "matchConditions", "variables", "validations", "effects", "limits", "auditAnnotations")
	strField(p, f, "description")
	if v, ok := f["failurePolicy"]; ok {
		d.ignore = v.oneOf(p, "Fail", failIgnore) == failIgnore
	}
	if v, ok := f["params"]; ok {
		d.params = decodeSchema(p, v)
	}
	names := ruleNames{}
	d.match = decodeNamed(p, f["matchConditions"], "expression", func(n node) string { return names.read(p, n) })
	d.variables = decodeNamed(p, f["variables"], "expression", variableNames(p))
	d.validations = decodeValidations(p, f["validations"], names)
	d.effects = decodeEffects(p, f["effects"], names)
	d.limits = decodeLimits(p, f["limits"], names)
	keys := ruleNames{}
	d.annotations = decodeAnnotations(p, f["auditAnnotations"], keys)
	if len(d.validations)+len(d.effects)+len(d.limits)+len(d.annotations) == 0 {
		h.root.errorf(p, "the policy decides nothing: give it validations, effects, limits or auditAnnotations")
	}
	return d
}

// ruleNames holds the names taken in one policy. A rule is written policy/name,
// whatever its kind, so the kinds share them.
type ruleNames map[string]bool

func (r ruleNames) read(p *problems, n node) string {
	name := n.ruleName(p)
	if name != "" && r[name] {
		n.errorf(p, "the name %s is taken by another rule of this policy", name)
	}
	r[name] = true
	return name
}

func variableNames(p *problems) func(node) string {
	seen := map[string]bool{}
	return func(n node) string {
		name := n.str(p)
		switch {
		case name != "" && !isIdentifier(name):
			n.errorf(p, "variable name %s is no CEL identifier: use letters, digits and _, and no reserved word", strconv.Quote(cut(name, 80)))
			return ""
		case name != "" && seen[name]:
			n.errorf(p, "the variable %s is declared twice", name)
		}
		seen[name] = true
		return name
	}
}

// decodeNamed reads a list of entries with a name and one expression.
func decodeNamed(p *problems, n node, field string, readName func(node) string) []namedExpr {
	if n.n == nil {
		return nil
	}
	var out []namedExpr
	for _, e := range n.listMax(p, maxRules) {
		f := e.fields(p, "name", field)
		out = append(out, decodeNamedExpr(p, e, f, field, readName))
	}
	return out
}

func decodeNamedExpr(p *problems, e node, f map[string]node, field string, readName func(node) string) namedExpr {
	x := namedExpr{at: e}
	if v, ok := e.require(p, f, "name"); ok {
		x.name = readName(v)
	}
	if v, ok := e.require(p, f, field); ok {
		x.expr = v.exprDoc(p)
	}
	return x
}

func decodeValidations(p *problems, n node, names ruleNames) []validationDoc {
	if n.n == nil {
		return nil
	}
	var out []validationDoc
	for _, e := range n.listMax(p, maxRules) {
		f := e.fields(p, "name", "expression", "reason", "message", "messageExpression")
		v := validationDoc{
			namedExpr: decodeNamedExpr(p, e, f, "expression", func(n node) string { return names.read(p, n) }),
			reason:    Forbidden,
			dynamic:   exprField(p, f, "messageExpression"),
		}
		if r, ok := f["reason"]; ok && r.oneOf(p, string(Forbidden), string(Invalid)) == string(Invalid) {
			v.reason = Invalid
		}
		if m, ok := f["message"]; ok {
			v.message = m.str(p)
			if v.message != "" && !usableMessage(v.message) {
				m.errorf(p, "a message has 1 to %d bytes and no control characters", maxMessage)
			}
		}
		out = append(out, v)
	}
	return out
}

func decodeAnnotations(p *problems, n node, keys ruleNames) []namedExpr {
	if n.n == nil {
		return nil
	}
	var out []namedExpr
	for _, e := range n.listMax(p, maxAnnotates) {
		f := e.fields(p, "key", "valueExpression")
		x := namedExpr{at: e}
		if v, ok := e.require(p, f, "key"); ok {
			x.name = keys.read(p, v)
		}
		if v, ok := e.require(p, f, "valueExpression"); ok {
			x.expr = v.exprDoc(p)
		}
		out = append(out, x)
	}
	return out
}

func decodeEffects(p *problems, n node, names ruleNames) []effectDoc {
	if n.n == nil {
		return nil
	}
	var out []effectDoc
	for _, e := range n.listMax(p, maxRules) {
		f := e.fields(p, "name", "when", "qos", "route", "mutate", "cacheIsolation", "addLabels")
		d := effectDoc{at: e, when: exprField(p, f, "when")}
		if v, ok := e.require(p, f, "name"); ok {
			d.name = names.read(p, v)
		}
		if v, ok := f["qos"]; ok {
			d.decodeQoS(p, v)
		}
		if v, ok := f["route"]; ok {
			d.decodeRoute(p, v)
		}
		if v, ok := f["mutate"]; ok {
			d.decodeMutate(p, v)
		}
		if v, ok := f["cacheIsolation"]; ok {
			d.isolation = v.oneOf(p, IsolationNone, IsolationTenant, IsolationPrincipal)
		}
		if v, ok := f["addLabels"]; ok {
			d.labels = v.literals(p)
		}
		if !hasAny(f, "qos", "route", "mutate", "cacheIsolation", "addLabels") {
			e.errorf(p, "the effect does nothing: give it qos, route, mutate, cacheIsolation or addLabels")
		}
		out = append(out, d)
	}
	return out
}

func hasAny(f map[string]node, names ...string) bool {
	return slices.ContainsFunc(names, func(n string) bool { _, ok := f[n]; return ok })
}

// literals reads a list of names that must name something.
func (n node) literals(p *problems) []literal {
	var out []literal
	before := len(p.list)
	for _, e := range n.list(p) {
		out = append(out, literal{e.str(p), e})
	}
	if len(out) == 0 && len(p.list) == before {
		n.errorf(p, "the list is empty: name something, or leave the field out")
	}
	return out
}

func (n node) nonEmptyStrs(p *problems) []string { return texts(n.literals(p)) }

func texts(l []literal) []string {
	out := make([]string, len(l))
	for i, x := range l {
		out[i] = x.text
	}
	return out
}

// nonEmptyEntries reads a mapping that must name something.
func (n node) nonEmptyEntries(p *problems) []entry {
	before := len(p.list)
	out := n.entries(p)
	if len(out) == 0 && len(p.list) == before {
		n.errorf(p, "the mapping is empty: name a label, or leave the field out")
	}
	return out
}

func (d *effectDoc) decodeQoS(p *problems, n node) {
	f := n.fields(p, "class", "override", "preemptible", "ttftTarget")
	if v, ok := n.require(p, f, "class"); ok {
		d.class = literal{v.str(p), v}
	}
	d.override = boolField(p, f, "override")
	d.preemptible = boolField(p, f, "preemptible")
	if v, ok := f["ttftTarget"]; ok {
		d.ttft = v.duration(p, time.Millisecond, time.Hour)
	}
}

func (d *effectDoc) decodeRoute(p *problems, n node) {
	f := n.fields(p, "allowPools", "denyPools", "requirePoolLabels")
	if v, ok := f["allowPools"]; ok {
		d.allowPools = v.literals(p)
	}
	if v, ok := f["denyPools"]; ok {
		d.denyPools = v.literals(p)
	}
	if v, ok := f["requirePoolLabels"]; ok {
		for _, e := range v.nonEmptyEntries(p) {
			d.poolLabels = append(d.poolLabels, poolLabel{literal{e.key, e.keyAt}, literal{e.value.str(p), e.value}})
		}
	}
	if len(f) == 0 {
		n.errorf(p, "the route does nothing: give it allowPools, denyPools or requirePoolLabels")
	}
}

func (d *effectDoc) decodeMutate(p *problems, n node) {
	f := n.fields(p, "max_tokens", "n")
	d.maxTokens = exprField(p, f, "max_tokens")
	d.n = exprField(p, f, "n")
	if len(f) == 0 {
		n.errorf(p, "mutate does nothing: give it max_tokens or n")
	}
}

// duration reads a duration such as 800ms within bounds.
func (n node) duration(p *problems, least, most time.Duration) time.Duration {
	s := n.str(p)
	if s == "" {
		return 0
	}
	d, err := time.ParseDuration(s)
	if err != nil {
		n.errorf(p, "%s is no duration: write it like 800ms, 1m or 1h30m", strconv.Quote(cut(s, 80)))
		return 0
	}
	if d < least || d > most {
		n.errorf(p, "the duration is outside %s to %s", least, most)
	}
	return d
}

func decodeLimits(p *problems, n node, names ruleNames) []limitDoc {
	if n.n == nil {
		return nil
	}
	var out []limitDoc
	for _, e := range n.listMax(p, maxLimits) {
		f := e.fields(p, "name", "when", "unit", "window", "limit", "key", "estimate", "charge", "onStoreError")
		d := limitDoc{
			at: e, when: exprField(p, f, "when"), estimate: exprField(p, f, "estimate"), charge: exprField(p, f, "charge"),
			onStoreError: storeDeny,
		}
		if v, ok := e.require(p, f, "name"); ok {
			d.name = names.read(p, v)
		}
		if v, ok := e.require(p, f, "unit"); ok {
			d.unit = Unit(v.oneOf(p, unitNames()...))
		}
		if v, ok := e.require(p, f, "limit"); ok {
			d.limit = v.exprDoc(p)
		}
		if v, ok := e.require(p, f, "key"); ok {
			for _, k := range v.listMax(p, maxKeyParts) {
				d.key = append(d.key, k.exprDoc(p))
			}
		}
		d.decodeWindow(p, e, f)
		if v, ok := f["onStoreError"]; ok {
			d.onStoreError = v.oneOf(p, storeDeny, "Allow", "Local")
		}
		out = append(out, d)
	}
	return out
}

func unitNames() []string {
	return []string{string(Requests), string(InputTokens), string(OutputTokens), string(Tokens), string(Cost), string(Concurrency)}
}

// decodeWindow reads the window, which every unit but concurrency has.
func (d *limitDoc) decodeWindow(p *problems, e node, f map[string]node) {
	w, has := f["window"]
	if d.unit == Concurrency {
		for _, name := range []string{"window", "estimate", "charge"} {
			if v, ok := f[name]; ok {
				v.errorf(p, "a concurrency limit has no %s: it counts requests in flight", name)
			}
		}
		return
	}
	if !has {
		if d.unit != "" {
			e.errorf(p, "field window is missing: give 1s to 24h, day or month")
		}
		return
	}
	switch s := w.str(p); s {
	case calendarDay, calendarMon:
		d.window.Calendar = s
	default:
		d.window.Duration = w.duration(p, time.Second, 24*time.Hour)
	}
}

func decodeBinding(p *problems, h header) *bindingDoc {
	d := &bindingDoc{at: h.root, name: h.name}
	f := h.spec.fields(p, "policyName", "selector", "actions", "params")
	if v, ok := h.spec.require(p, f, "policyName"); ok {
		d.policy, d.policyAt = v.str(p), v
	}
	if v, ok := f["selector"]; ok {
		d.selector = decodeSelector(p, v)
	}
	if v, ok := h.spec.require(p, f, "actions"); ok {
		d.decodeActions(p, v)
	}
	d.params, d.hasParam = f["params"]
	if !d.hasParam {
		d.params = node{doc: h.spec.doc, path: h.spec.path + ".params"}
	}
	return d
}

func (d *bindingDoc) decodeActions(p *problems, n node) {
	seen := map[string]bool{}
	for _, e := range n.list(p) {
		a := e.oneOf(p, actionDeny, actionWarn, actionAudit)
		if a != "" && seen[a] {
			e.errorf(p, "the action %s is given twice", a)
		}
		seen[a] = true
	}
	d.audit = seen[actionAudit]
	switch {
	case seen[actionDeny] && seen[actionWarn]:
		n.errorf(p, "Deny and Warn exclude each other")
	case seen[actionDeny]:
		d.mode = Enforced
	case seen[actionWarn]:
		d.mode = Warn
	case seen[actionAudit]:
		d.mode = Shadow
	case len(seen) == 0:
		n.errorf(p, "actions is empty: give Deny, Warn or Audit")
	}
}

// selector says which requests a binding is for. Empty fields match all.
type selector struct {
	tenants, exclude   []string
	labels             map[string]string
	models, operations []string
	modelsAt, opsAt    node
}

func decodeSelector(p *problems, n node) selector {
	var s selector
	f := n.fields(p, "tenants", "excludeTenants", "matchTenantLabels", "models", "operations")
	lists := map[string]*[]string{"tenants": &s.tenants, "excludeTenants": &s.exclude, "models": &s.models, "operations": &s.operations}
	for name, to := range lists {
		if v, ok := f[name]; ok {
			*to = v.nonEmptyStrs(p)
		}
	}
	s.modelsAt, s.opsAt = f["models"], f["operations"]
	if v, ok := f["matchTenantLabels"]; ok {
		s.labels = map[string]string{}
		for _, e := range v.nonEmptyEntries(p) {
			s.labels[e.key] = e.value.str(p)
		}
	}
	return s
}

// matches reports whether the binding is for this request.
func (s *selector) matches(in *Input) bool {
	if len(s.tenants) > 0 && !slices.Contains(s.tenants, in.Tenant.ID) || slices.Contains(s.exclude, in.Tenant.ID) {
		return false
	}
	for k, v := range s.labels {
		if got, ok := in.Tenant.Labels[k]; !ok || got != v {
			return false
		}
	}
	if len(s.operations) > 0 && !slices.Contains(s.operations, in.Request.Operation) {
		return false
	}
	match := func(pattern string) bool { return globMatch(pattern, in.Request.Model) }
	return len(s.models) == 0 || slices.ContainsFunc(s.models, match)
}
