package policy

import (
	"math/bits"
	"slices"
	"strconv"

	"github.com/google/cel-go/common/ast"
	"github.com/google/cel-go/common/operators"
	"github.com/google/cel-go/common/types"
	"github.com/google/cel-go/common/types/ref"
	"github.com/google/cel-go/common/types/traits"
)

// A request matches few of many bindings, and most of them can be told by the
// plain words of the request: its operation, model, tenant, tier. The index
// finds the bindings whose selector and match conditions these words do not
// already make false, without evaluating anything. It only ever leaves out a
// binding that has a false condition, which does not apply even if another
// condition fails; what it cannot decide is evaluated.

// dimension is a variable that the index knows. Reading it cannot fail.
type dimension uint8

const (
	dimOperation dimension = iota
	dimDialect
	dimMethod
	dimPath
	dimModel
	dimRequestedModel
	dimModelFamily
	dimStream
	dimKind
	dimPrincipal
	dimSubject
	dimIssuer
	dimTenant
	dimTeam
	dimTier
	dimCount
)

var dimensions = map[string]dimension{
	"request.operation": dimOperation, "request.dialect": dimDialect, "request.method": dimMethod, "request.path": dimPath,
	"request.model": dimModel, "request.requested_model": dimRequestedModel, "request.model_family": dimModelFamily, "request.stream": dimStream,
	"principal.kind": dimKind, "principal.id": dimPrincipal, "principal.subject": dimSubject, "principal.issuer": dimIssuer,
	"tenant.id": dimTenant, "tenant.team": dimTeam, "tenant.tier": dimTier,
}

// of is the request's value; a boolean's is true or false.
func (d dimension) of(in *Input) string {
	switch d {
	case dimOperation:
		return in.Request.Operation
	case dimDialect:
		return in.Request.Dialect
	case dimMethod:
		return in.Request.Method
	case dimPath:
		return in.Request.Path
	case dimModel:
		return in.Request.Model
	case dimRequestedModel:
		return in.Request.RequestedModel
	case dimModelFamily:
		return in.Request.ModelFamily
	case dimStream:
		return strconv.FormatBool(in.Request.Stream)
	case dimKind:
		return in.Principal.Kind
	case dimPrincipal:
		return in.Principal.ID
	case dimSubject:
		return in.Principal.Subject
	case dimIssuer:
		return in.Principal.Issuer
	case dimTenant:
		return in.Tenant.ID
	case dimTeam:
		return in.Tenant.Team
	case dimTier:
		return in.Tenant.Tier
	}
	panic("BUG: policy: a dimension of the index without a variable")
}

// admitted are the values of one variable under which a condition can be true:
// those listed, or, with not, all others.
type admitted struct {
	not    bool
	values map[string]bool
}

func admit(values ...string) admitted {
	a := admitted{values: map[string]bool{}}
	for _, v := range values {
		a.values[v] = true
	}
	return a
}

func (a admitted) has(v string) bool { return a.values[v] != a.not }

func (a admitted) negated() admitted { return admitted{!a.not, a.values} }

// and admits what both admit.
func (a admitted) and(b admitted) admitted {
	if a.not && !b.not {
		a, b = b, a
	}
	out := admitted{not: a.not && b.not, values: map[string]bool{}}
	for v := range a.values {
		if out.not || b.has(v) {
			out.values[v] = true
		}
	}
	if out.not {
		for v := range b.values {
			out.values[v] = true
		}
	}
	return out
}

// or admits what either admits.
func (a admitted) or(b admitted) admitted { return a.negated().and(b.negated()).negated() }

// constraint is a necessary condition in terms of dimensions. With exact it is
// sufficient, too: the expression is true where the constraint holds, false
// elsewhere, and never an error.
type constraint struct {
	dims  map[dimension]admitted
	exact bool
}

func (c constraint) and(d constraint) constraint {
	out := constraint{dims: map[dimension]admitted{}, exact: c.exact && d.exact}
	for _, from := range []map[dimension]admitted{c.dims, d.dims} {
		for dim, a := range from {
			if old, ok := out.dims[dim]; ok {
				a = old.and(a)
			}
			out.dims[dim] = a
		}
	}
	return out
}

// or keeps what both sides demand of one variable. Together they say all only
// where that variable is the only one.
func (c constraint) or(d constraint) constraint {
	out := constraint{dims: map[dimension]admitted{}}
	for dim, a := range c.dims {
		if b, ok := d.dims[dim]; ok {
			out.dims[dim] = a.or(b)
		}
	}
	out.exact = c.exact && d.exact && len(c.dims) == 1 && len(d.dims) == 1 && len(out.dims) == 1
	return out
}

// negated is known only of what is exactly one variable's.
func (c constraint) negated() constraint {
	if !c.exact || len(c.dims) != 1 {
		return constraint{}
	}
	out := constraint{dims: map[dimension]admitted{}, exact: true}
	for dim, a := range c.dims {
		out.dims[dim] = a.negated()
	}
	return out
}

// constrain finds what a condition demands, with the parameters of one binding.
func constrain(e ast.Expr, params map[string]ref.Val) constraint {
	switch e.Kind() {
	case ast.LiteralKind:
		switch e.AsLiteral() {
		case types.True:
			return constraint{exact: true}
		case types.False:
			return constraint{map[dimension]admitted{dimOperation: admit()}, true}
		}
	case ast.IdentKind:
		if e.AsIdent() == "request.stream" {
			return constraint{map[dimension]admitted{dimStream: admit("true")}, true}
		}
	case ast.CallKind:
		return constrainCall(e.AsCall(), params)
	}
	return constraint{}
}

func constrainCall(call ast.CallExpr, params map[string]ref.Val) constraint {
	args := call.Args()
	switch call.FunctionName() {
	case operators.LogicalAnd:
		return constrain(args[0], params).and(constrain(args[1], params))
	case operators.LogicalOr:
		return constrain(args[0], params).or(constrain(args[1], params))
	case operators.LogicalNot:
		return constrain(args[0], params).negated()
	case operators.Equals, operators.NotEquals:
		c := constrainEqual(args[0], args[1], params)
		if c.dims == nil {
			c = constrainEqual(args[1], args[0], params)
		}
		if call.FunctionName() == operators.NotEquals {
			c = c.negated()
		}
		return c
	case operators.In:
		dim, ok := dimensionOf(args[0])
		values, known := members(args[1], params)
		if ok && known && dim != dimStream {
			return constraint{map[dimension]admitted{dim: admit(values...)}, true}
		}
	}
	return constraint{}
}

func constrainEqual(variable, value ast.Expr, params map[string]ref.Val) constraint {
	dim, ok := dimensionOf(variable)
	v, known := wordOf(value, params)
	if !ok || !known {
		return constraint{}
	}
	return constraint{map[dimension]admitted{dim: admit(v)}, true}
}

func dimensionOf(e ast.Expr) (dimension, bool) {
	if e.Kind() != ast.IdentKind {
		return 0, false
	}
	d, ok := dimensions[e.AsIdent()]
	return d, ok
}

// wordOf is the text of a literal or parameter, of the type of the variable
// that it is compared with: the type check has seen to that.
func wordOf(e ast.Expr, params map[string]ref.Val) (string, bool) {
	switch e.Kind() {
	case ast.LiteralKind:
		return wordOfValue(e.AsLiteral())
	case ast.IdentKind:
		if v, ok := params[e.AsIdent()]; ok {
			return wordOfValue(v)
		}
	}
	return "", false
}

func wordOfValue(v ref.Val) (string, bool) {
	switch v := v.(type) {
	case types.String:
		return string(v), true
	case types.Bool:
		return strconv.FormatBool(bool(v)), true
	}
	return "", false
}

// members are the strings of a list literal or of a parameter, which is a list
// or a map with them as keys.
func members(e ast.Expr, params map[string]ref.Val) (out []string, known bool) {
	switch e.Kind() {
	case ast.ListKind:
		for _, m := range e.AsList().Elements() {
			w, ok := wordOf(m, params)
			if !ok || len(e.AsList().OptionalIndices()) > 0 {
				return nil, false
			}
			out = append(out, w)
		}
		return out, true
	case ast.IdentKind:
		v, ok := params[e.AsIdent()].(traits.Iterable)
		if !ok {
			return nil, false
		}
		for it := v.Iterator(); it.HasNext() == types.True; {
			w, ok := it.Next().(types.String)
			if !ok {
				return nil, false
			}
			out = append(out, string(w))
		}
		return out, true
	}
	return nil, false
}

// constraint is what the selector demands. It is exact unless patterns or
// tenant labels have to be looked at.
func (s *selector) constraint() constraint {
	c := constraint{dims: map[dimension]admitted{}, exact: len(s.labels) == 0}
	demand := func(dim dimension, a admitted) {
		c = c.and(constraint{map[dimension]admitted{dim: a}, true})
	}
	if len(s.tenants) > 0 {
		demand(dimTenant, admit(s.tenants...))
	}
	if len(s.exclude) > 0 {
		demand(dimTenant, admit(s.exclude...).negated())
	}
	if len(s.operations) > 0 {
		demand(dimOperation, admit(s.operations...))
	}
	switch {
	case len(s.models) == 0:
	case slices.ContainsFunc(s.models, isPattern):
		c.exact = false
	default:
		demand(dimModel, admit(s.models...))
	}
	return c
}

// constrain finds what the index may know of a binding, within what is left of
// the room for values.
func (b *binding) constrain(room *int) {
	b.admits, b.selected, b.decided = nil, false, make([]bool, len(b.policy.match))
	all := b.selector.constraint()
	selected, decided := all.exact, make([]bool, len(b.policy.match))
	for i, m := range b.policy.match {
		if m.expr == nil || m.expr.tree == nil {
			continue
		}
		c := constrain(m.expr.tree, b.params)
		decided[i] = c.exact
		all = all.and(constraint{c.dims, true})
	}
	size := 0
	for _, a := range all.dims {
		size += len(a.values)
	}
	if size <= *room {
		*room -= size
		b.admits, b.selected, b.decided = all.dims, selected, decided
	}
}

// Bounds of an index: the values that it lists, each with a bit for every
// binding.
const maxIndexValues = 8192

// index finds candidates among one list of bindings. It is immutable.
type index struct {
	bindings int
	dims     []indexedDimension
}

type indexedDimension struct {
	of     dimension
	listed map[string]bitset
	other  bitset // for a value that is not listed
}

// bitset has a bit for each binding of a list.
type bitset []uint64

func newBitset(n int) bitset { return make(bitset, (n+63)/64) }

func (b bitset) set(i int) { b[i/64] |= 1 << (i % 64) }

// buildIndex indexes a list of bindings, in their order.
func buildIndex(list []*binding) *index {
	x := &index{bindings: len(list)}
	for dim := range dimCount {
		values := map[string]bool{}
		used := false
		for _, b := range list {
			a, ok := b.admits[dim]
			used = used || ok
			for v := range a.values {
				values[v] = true
			}
		}
		if used {
			x.dims = append(x.dims, indexDimension(dim, list, values))
		}
	}
	return x
}

func indexDimension(dim dimension, list []*binding, values map[string]bool) indexedDimension {
	d := indexedDimension{of: dim, listed: make(map[string]bitset, len(values)), other: newBitset(len(list))}
	for v := range values {
		d.listed[v] = newBitset(len(list))
	}
	for i, b := range list {
		a, ok := b.admits[dim]
		if !ok || a.not {
			d.other.set(i)
		}
		for v, set := range d.listed {
			if !ok || a.has(v) {
				set.set(i)
			}
		}
	}
	return d
}

// candidates are the bindings that a request can match.
type candidates [maxBindings / 64]uint64

func (x *index) find(in *Input) (out candidates) {
	words := (x.bindings + 63) / 64
	for i := range words {
		out[i] = ^uint64(0)
	}
	if rest := x.bindings % 64; rest > 0 {
		out[words-1] = 1<<rest - 1
	}
	for i := range x.dims {
		d := &x.dims[i]
		set, ok := d.listed[d.of.of(in)]
		if !ok {
			set = d.other
		}
		for w := range words {
			out[w] &= set[w]
		}
	}
	return out
}

// each yields the candidates in the order of the list.
func (c *candidates) each(yield func(i int) bool) {
	for w, word := range c {
		for ; word != 0; word &= word - 1 {
			if !yield(w*64 + bits.TrailingZeros64(word)) {
				return
			}
		}
	}
}
