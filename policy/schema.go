package policy

import (
	"fmt"
	"math"
	"slices"
	"strconv"

	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/token"
	"github.com/google/cel-go/cel"
	"github.com/google/cel-go/common/types"
	"github.com/google/cel-go/common/types/ref"
	"github.com/google/cel-go/common/types/traits"
)

// paramSchema declares one parameter of a policy.
type paramSchema struct {
	at         node
	name       string
	shape      paramShape
	required   bool
	def        ref.Val // nil when there is none
	least      ref.Val // nil when there is none
	most       ref.Val
	oneOf      []ref.Val
	defaultDoc node
}

// paramShape is a type: a scalar, or a list or map of a scalar.
type paramShape struct {
	outer string // "", list or map
	elem  string // string, int, double, bool or duration
}

var (
	scalarTypes = []string{"string", "int", "double", "bool", "duration"}
	schemaTypes = append(slices.Clone(scalarTypes), "list", "map")
)

func scalarCELType(name string) *cel.Type {
	switch name {
	case "int":
		return cel.IntType
	case "double":
		return cel.DoubleType
	case "bool":
		return cel.BoolType
	case "duration":
		return cel.DurationType
	default:
		return cel.StringType
	}
}

func (s paramShape) celType() *cel.Type {
	switch s.outer {
	case "list":
		return cel.ListType(scalarCELType(s.elem))
	case "map":
		return cel.MapType(cel.StringType, scalarCELType(s.elem))
	default:
		return scalarCELType(s.elem)
	}
}

func decodeSchema(p *problems, n node) []paramSchema {
	f := n.fields(p, "schema")
	schema, ok := n.require(p, f, "schema")
	if !ok {
		return nil
	}
	var out []paramSchema
	for _, e := range schema.entries(p) {
		if !isIdentifier(e.key) {
			e.keyAt.errorf(p, "parameter name %s is no CEL identifier: use letters, digits and _, and no reserved word", strconv.Quote(cut(e.key, 80)))
			continue
		}
		if s, ok := decodeParam(p, e); ok {
			out = append(out, s)
		}
	}
	return out
}

func decodeParam(p *problems, e entry) (paramSchema, bool) {
	s := paramSchema{at: e.value, name: e.key}
	f := e.value.fields(p, "type", "items", "values", "required", "default", "min", "max", "enum")
	if !s.decodeType(p, f) {
		return s, false
	}
	s.required = boolField(p, f, "required")
	elem := paramShape{elem: s.shape.elem}
	s.least = s.bound(p, f, "min", elem)
	s.most = s.bound(p, f, "max", elem)
	if v, ok := f["enum"]; ok {
		for _, c := range v.list(p) {
			if val := elem.decode(p, c); val != nil {
				s.oneOf = append(s.oneOf, val)
			}
		}
		if len(s.oneOf) == 0 {
			v.errorf(p, "the list is empty: name a value, or leave the field out")
		}
	}
	if v, ok := f["default"]; ok {
		s.defaultDoc = v
		s.def = s.decode(p, v)
	}
	switch _, hasDefault := f["default"]; {
	case s.required && hasDefault:
		e.value.errorf(p, "a required parameter has no default: remove one of the two")
	case !s.required && !hasDefault:
		e.value.errorf(p, "give the parameter a default, or make it required: expressions always read a value")
	}
	return s, true
}

func (s *paramSchema) decodeType(p *problems, f map[string]node) bool {
	t, ok := s.at.require(p, f, "type")
	if !ok {
		return false
	}
	outer := t.oneOf(p, schemaTypes...)
	inner := map[string]string{"list": "items", "map": "values"}[outer]
	for _, name := range []string{"items", "values"} {
		if v, ok := f[name]; ok && name != inner && outer != "" {
			v.errorf(p, "a parameter of type %s has no %s", outer, name)
		}
	}
	switch {
	case outer == "":
		return false
	case inner == "":
		s.shape = paramShape{elem: outer}
		return true
	}
	elem, ok := s.at.require(p, f, inner)
	if !ok {
		return false
	}
	s.shape = paramShape{outer: outer, elem: elem.oneOf(p, scalarTypes...)}
	return s.shape.elem != ""
}

// bound reads min or max, which hold for the value or for each element.
func (s *paramSchema) bound(p *problems, f map[string]node, name string, elem paramShape) ref.Val {
	v, ok := f[name]
	if !ok {
		return nil
	}
	if s.shape.elem == "string" || s.shape.elem == "bool" {
		v.errorf(p, "%s is for numbers and durations, not for a %s", name, s.shape.elem)
		return nil
	}
	return elem.decode(p, v)
}

// decode reads a value and checks it against the schema. It returns nil after
// reporting a fault.
func (s *paramSchema) decode(p *problems, n node) ref.Val {
	before := len(p.list)
	val := s.shape.decode(p, n)
	if val == nil || len(p.list) > before {
		return nil
	}
	s.check(p, n, val)
	return val
}

// check holds the value, or each element, against min, max and enum.
func (s *paramSchema) check(p *problems, n node, val ref.Val) {
	if s.shape.outer == "" {
		s.checkOne(p, n, val)
		return
	}
	for it := val.(traits.Iterable).Iterator(); it.HasNext() == types.True; {
		next := it.Next()
		if m, ok := val.(traits.Mapper); ok {
			next = m.Get(next)
		}
		s.checkOne(p, n, next)
	}
}

func (s *paramSchema) checkOne(p *problems, n node, val ref.Val) {
	below := func(a, b ref.Val) bool { return a.(traits.Comparer).Compare(b) == types.IntNegOne }
	if s.least != nil && below(val, s.least) {
		n.errorf(p, "%v is below the minimum %v of parameter %s", plain(val), plain(s.least), s.name)
	}
	if s.most != nil && below(s.most, val) {
		n.errorf(p, "%v is above the maximum %v of parameter %s", plain(val), plain(s.most), s.name)
	}
	if s.oneOf == nil {
		return
	}
	for _, c := range s.oneOf {
		if c.Equal(val) == types.True {
			return
		}
	}
	words := make([]string, len(s.oneOf))
	for i, c := range s.oneOf {
		words[i] = fmt.Sprint(plain(c))
	}
	n.errorf(p, "%v is no value of parameter %s: use one of %v", plain(val), s.name, words)
}

// plain is a value as an author writes it.
func plain(v ref.Val) any {
	if d, ok := v.(types.Duration); ok {
		return d.Duration
	}
	return v.Value()
}

// decode reads a value of the shape, or reports and returns nil.
func (s paramShape) decode(p *problems, n node) ref.Val {
	switch s.outer {
	case "list":
		out := []ref.Val{}
		for _, e := range n.list(p) {
			if v := (paramShape{elem: s.elem}).decode(p, e); v != nil {
				out = append(out, v)
			}
		}
		return types.NewRefValList(types.DefaultTypeAdapter, out)
	case "map":
		out := map[ref.Val]ref.Val{}
		for _, e := range n.entries(p) {
			if v := (paramShape{elem: s.elem}).decode(p, e.value); v != nil {
				out[types.String(e.key)] = v
			}
		}
		return sortedNow(types.NewRefValMap(types.DefaultTypeAdapter, out))
	}
	return decodeScalar(p, n, s.elem)
}

func decodeScalar(p *problems, n node, elem string) ref.Val {
	before := len(p.list)
	var out ref.Val
	switch elem {
	case "string":
		out = types.String(n.str(p))
	case "bool":
		out = types.Bool(n.boolean(p))
	case "int":
		out = types.Int(n.integer(p))
	case "double":
		out = types.Double(n.double(p))
	case "duration":
		out = types.Duration{Duration: n.duration(p, math.MinInt64, math.MaxInt64)}
	}
	if len(p.list) > before {
		return nil
	}
	return out
}

// double reads a finite number.
func (n node) double(p *problems) float64 {
	switch v := n.n.(type) {
	case *ast.IntegerNode:
		return float64(n.integer(p))
	case *ast.FloatNode:
		return v.Value
	case *ast.StringNode:
		// An exponent without a dot (1e3) reaches us as plain text.
		f, err := strconv.ParseFloat(v.Value, 64)
		if err == nil && v.Token.Type == token.StringType && !math.IsInf(f, 0) && !math.IsNaN(f) {
			return f
		}
	}
	n.errorf(p, "expected a finite number, found %s", n.kind())
	return 0
}

// values reads a binding's parameters against the schema. Every parameter has
// a value afterwards, unless a fault was reported.
func paramValues(p *problems, schema []paramSchema, b *bindingDoc) map[string]ref.Val {
	names := make([]string, len(schema))
	for i, s := range schema {
		names[i] = s.name
	}
	given := b.params.fields(p, names...)
	out := make(map[string]ref.Val, len(schema))
	for i := range schema {
		s := &schema[i]
		v, ok := given[s.name]
		switch {
		case ok:
			out[s.name] = s.decode(p, v)
		case s.required:
			at := b.at
			at.path = b.params.path
			at.errorf(p, "parameter %s is required by policy %s: give it under spec.params", s.name, b.policy)
		default:
			out[s.name] = s.def
		}
	}
	return out
}

// valueSize is the size of a parameter's value for cost estimates: of the
// value, of its largest key and of its largest element.
type valueSize struct {
	self, key, elem uint64
}

func sizeOf(v ref.Val) valueSize {
	var s valueSize
	s.self = scalarSize(v)
	it, ok := v.(traits.Iterable)
	if !ok {
		return s
	}
	m, isMap := v.(traits.Mapper)
	for i := it.Iterator(); i.HasNext() == types.True; {
		e := i.Next()
		if isMap {
			s.key = max(s.key, scalarSize(e))
			e = m.Get(e)
		}
		s.elem = max(s.elem, scalarSize(e))
	}
	return s
}

func scalarSize(v ref.Val) uint64 {
	if z, ok := v.(traits.Sizer); ok {
		return uint64(z.Size().(types.Int))
	}
	return 1
}

func (s valueSize) union(o valueSize) valueSize {
	return valueSize{max(s.self, o.self), max(s.key, o.key), max(s.elem, o.elem)}
}
