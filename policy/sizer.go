package policy

import (
	"math"
	"math/bits"
	"unicode/utf8"

	"github.com/google/cel-go/checker"
	"github.com/google/cel-go/common/ast"
	"github.com/google/cel-go/common/types"
)

// unbounded is a size that nothing bounds. A cost that depends on it is beyond
// every limit.
const unbounded = math.MaxUint64

// The longest texts of a number, boolean, duration or timestamp, in any of the
// notations of format.
const (
	scalarText = 80
	doubleText = 1400
)

// sizer bounds the sizes of values inside an expression, for the cost
// estimator of the library: it knows the maxima of variables and, unlike the
// library, the sizes of list elements.
type sizer struct {
	checked *ast.AST
	vars    func(name string) (valueSize, bool)
	// guess is the size of a value of no known type; 0 is none.
	guess uint64
}

// locals are the loop variables in force.
type locals struct {
	name string
	size valueSize
	up   *locals
}

func (l *locals) find(name string) (valueSize, bool) {
	for ; l != nil; l = l.up {
		if l.name == name {
			return l.size, true
		}
	}
	return valueSize{}, false
}

// EstimateSize bounds what the library cannot.
func (z *sizer) EstimateSize(n checker.AstNode) *checker.SizeEstimate {
	most := z.pathSize(n.Path())
	if most == unbounded {
		most = z.of(n.Expr(), nil).self
	}
	if most == unbounded {
		return nil
	}
	return &checker.SizeEstimate{Max: most}
}

// EstimateCallCost leaves all costs to the library.
func (z *sizer) EstimateCallCost(string, string, *checker.AstNode, []checker.AstNode) *checker.CallEstimate {
	return nil
}

// pathSize resolves the library's paths: a variable, then @items, @keys,
// @values, @indices or the name of a map's key.
func (z *sizer) pathSize(path []string) uint64 {
	if len(path) == 0 || len(path) > 2 {
		return unbounded
	}
	s, ok := z.vars(path[0])
	switch {
	case !ok:
		return unbounded
	case len(path) == 1:
		return s.self
	case path[1] == "@keys":
		return s.key
	case path[1] == "@indices":
		return 1
	default:
		return s.elem
	}
}

// of bounds a value: its own size, that of its keys and of its elements.
func (z *sizer) of(e ast.Expr, sc *locals) valueSize {
	if z.isScalar(e) {
		return valueSize{1, unbounded, unbounded}
	}
	if z.guess > 0 && z.checked.GetType(e.ID()).Kind() == types.DynKind {
		return valueSize{z.guess, z.guess, z.guess}
	}
	switch e.Kind() {
	case ast.LiteralKind:
		return valueSize{literalSize(e), unbounded, unbounded}
	case ast.IdentKind:
		if s, ok := sc.find(e.AsIdent()); ok {
			return s
		}
		if s, ok := z.vars(e.AsIdent()); ok {
			return s
		}
	case ast.SelectKind:
		return element(z.of(e.AsSelect().Operand(), sc))
	case ast.ListKind:
		return z.ofList(e.AsList(), sc)
	case ast.MapKind:
		return z.ofMap(e.AsMap(), sc)
	case ast.CallKind:
		return z.ofCall(e, sc)
	case ast.ComprehensionKind:
		return z.ofComprehension(e.AsComprehension(), sc)
	}
	return valueSize{unbounded, unbounded, unbounded}
}

// element is what an index yields: its own elements are not known.
func element(s valueSize) valueSize { return valueSize{s.elem, unbounded, unbounded} }

func (z *sizer) isScalar(e ast.Expr) bool {
	switch t := z.checked.GetType(e.ID()); t.Kind() {
	case types.BoolKind, types.IntKind, types.UintKind, types.DoubleKind, types.DurationKind, types.TimestampKind, types.TypeKind, types.NullTypeKind:
		return true
	case types.OpaqueKind:
		return isAddress(t)
	}
	return false
}

// isAddress reports whether a type is one of the network library's.
func isAddress(t *types.Type) bool { return t.TypeName() == "net.IP" || t.TypeName() == "net.CIDR" }

func literalSize(e ast.Expr) uint64 {
	switch v := e.AsLiteral().(type) {
	case types.String:
		return uint64(utf8.RuneCountInString(string(v)))
	case types.Bytes:
		return uint64(len(v))
	}
	return 1
}

func (z *sizer) ofList(l ast.ListExpr, sc *locals) valueSize {
	s := valueSize{self: uint64(l.Size())}
	for _, e := range l.Elements() {
		s.elem = max(s.elem, z.of(e, sc).self)
	}
	return s
}

func (z *sizer) ofMap(m ast.MapExpr, sc *locals) valueSize {
	s := valueSize{self: uint64(m.Size())}
	for _, ent := range m.Entries() {
		me := ent.AsMapEntry()
		s.key = max(s.key, z.of(me.Key(), sc).self)
		s.elem = max(s.elem, z.of(me.Value(), sc).self)
	}
	return s
}

func (z *sizer) ofCall(e ast.Expr, sc *locals) valueSize {
	call := e.AsCall()
	args := call.Args()
	if call.IsMemberFunction() {
		return z.ofMember(call, sc)
	}
	switch call.FunctionName() {
	case "_?_:_":
		return z.of(args[1], sc).union(z.of(args[2], sc))
	case "_+_":
		a, b := z.of(args[0], sc), z.of(args[1], sc)
		return valueSize{add(a.self, b.self), max(a.key, b.key), max(a.elem, b.elem)}
	case "_[_]", "_[?_]":
		return element(z.of(args[0], sc))
	case "_?._":
		return element(z.of(args[0], sc))
	case "optional.of", "optional.ofNonZeroValue", "dyn":
		return z.of(args[0], sc)
	case "optional.none":
		return valueSize{}
	case "string":
		return valueSize{z.text(args[0], sc), unbounded, unbounded}
	case "lists.range":
		return valueSize{maxRange, unbounded, 1}
	}
	return valueSize{unbounded, unbounded, unbounded}
}

func (z *sizer) ofMember(call ast.CallExpr, sc *locals) valueSize {
	t := z.of(call.Target(), sc)
	args := call.Args()
	switch call.FunctionName() {
	case "orValue", "or":
		return t.union(z.of(args[0], sc))
	case "value", "lowerAscii", "upperAscii", "trim", "reverse", "substring", "distinct", "sort", "@sortByAssociatedKeys", "slice":
		return t
	case "charAt":
		return valueSize{1, unbounded, unbounded}
	case "split":
		return valueSize{add(t.self, 1), unbounded, t.self}
	case "first", "last":
		return element(t)
	case "join":
		sep := uint64(0)
		if len(args) > 0 {
			sep = z.of(args[0], sc).self
		}
		return valueSize{mul(t.self, add(t.elem, sep)), unbounded, unbounded}
	case "format":
		return valueSize{z.formatted(t.self, args[0], sc), unbounded, unbounded}
	}
	return valueSize{unbounded, unbounded, unbounded}
}

// ofComprehension bounds what map, filter and the transforms build.
func (z *sizer) ofComprehension(c ast.ComprehensionExpr, sc *locals) valueSize {
	r := z.of(c.IterRange(), sc)
	isMap := z.checked.GetType(c.IterRange().ID()).Kind() == types.MapKind
	first := r.elem
	if isMap || c.HasIterVar2() {
		first = r.key
	}
	if c.HasIterVar2() && !isMap {
		first = 1
	}
	inner := &locals{c.IterVar(), valueSize{first, unbounded, unbounded}, sc}
	if c.HasIterVar2() {
		inner = &locals{c.IterVar2(), element(r), inner}
	}
	if c.AccuInit().Kind() != ast.ListKind {
		return valueSize{unbounded, unbounded, unbounded}
	}
	s := valueSize{self: r.self}
	z.appended(c.LoopStep(), inner, &s)
	return s
}

// appended finds the elements that a loop step adds to its accumulator.
func (z *sizer) appended(step ast.Expr, sc *locals, s *valueSize) {
	switch step.Kind() {
	case ast.ListKind:
		for _, e := range step.AsList().Elements() {
			s.elem = max(s.elem, z.of(e, sc).self)
		}
	case ast.CallKind:
		if fn := step.AsCall().FunctionName(); fn != "_?_:_" && fn != "_+_" {
			s.elem = unbounded
			return
		}
		args := step.AsCall().Args()
		for _, a := range args[len(args)-2:] {
			z.appended(a, sc, s)
		}
	case ast.IdentKind: // the accumulator
	default:
		s.elem = unbounded
	}
}

// text bounds the length of a value when it is printed.
func (z *sizer) text(e ast.Expr, sc *locals) uint64 {
	t := z.checked.GetType(e.ID())
	s := z.of(e, sc)
	switch t.Kind() {
	case types.StringKind, types.BytesKind:
		return s.self
	case types.ListKind:
		return mul(s.self, add(textOf(t.Parameters()[0], s.elem), 4))
	case types.MapKind:
		return mul(s.self, add(textOf(t.Parameters()[0], s.key), add(textOf(t.Parameters()[1], s.elem), 8)))
	case types.OpaqueKind:
		if isAddress(t) {
			return scalarText
		}
		return unbounded
	}
	return textOf(t, s.self)
}

// textOf bounds the text of an element of a known type and size.
func textOf(t *types.Type, size uint64) uint64 {
	switch t.Kind() {
	case types.StringKind, types.BytesKind:
		return size
	case types.DoubleKind:
		return doubleText
	case types.BoolKind, types.IntKind, types.UintKind, types.DurationKind, types.TimestampKind, types.NullTypeKind:
		return scalarText
	}
	return unbounded
}

// formatted bounds the result of format.
func (z *sizer) formatted(template uint64, list ast.Expr, sc *locals) uint64 {
	if list.Kind() != ast.ListKind {
		return unbounded
	}
	total := template
	for _, e := range list.AsList().Elements() {
		total = add(total, z.text(e, sc))
	}
	return total
}

func add(a, b uint64) uint64 {
	sum, carry := bits.Add64(a, b, 0)
	if carry != 0 {
		return unbounded
	}
	return sum
}

func mul(a, b uint64) uint64 {
	hi, lo := bits.Mul64(a, b)
	if hi != 0 {
		return unbounded
	}
	return lo
}
