package policy

import (
	"slices"
	"time"
)

// effectDoc is a decoded entry of effects.
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
			if d.labels = v.literals(p); len(d.labels) > maxLabelCount {
				v.errorf(p, "%d labels, at most %d are allowed", len(d.labels), maxLabelCount)
			}
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
