package policy

import "slices"

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
	// tenantsAt, excludeAt and labelsAt are where those stand; zero where they
	// do not.
	tenantsAt, excludeAt, labelsAt node
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
	s.tenantsAt, s.excludeAt, s.labelsAt = f["tenants"], f["excludeTenants"], f["matchTenantLabels"]
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
