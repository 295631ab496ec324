package policy

import (
	"strconv"
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

// require reads a field that must be there.
func (n node) require(p *problems, f map[string]node, name string) (node, bool) {
	v, ok := f[name]
	if !ok {
		n.errorf(p, "field %s is missing", name)
	}
	return v, ok
}

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
