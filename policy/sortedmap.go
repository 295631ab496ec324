package policy

import (
	"cmp"
	"slices"
	"strings"

	"github.com/google/cel-go/cel"
	"github.com/google/cel-go/common/ast"
	"github.com/google/cel-go/common/types"
	"github.com/google/cel-go/common/types/ref"
	"github.com/google/cel-go/common/types/traits"
	"github.com/google/cel-go/interpreter"
)

// The library iterates maps in Go's order, which differs from run to run: a
// join, a first element, a cost would differ with it. Every map that a
// comprehension can range over therefore yields its keys in one order. Maps
// from outside are sorted where they are made: request variables, parameters
// and variables.*. For maps that an expression makes itself, sortRanges puts
// funcSorted around the range.
const (
	funcSorted     = "@sorted" // no expression can call it: CEL has no such token
	overloadSorted = "sorted_map"
)

// sortedMap is a map that iterates in the order of its keys. It is made for
// one evaluation, or sorted before it is shared.
type sortedMap struct {
	traits.Mapper
	keys []ref.Val
}

// sorted returns v, a map so that it iterates in order.
func sorted(v ref.Val) ref.Val {
	switch m := v.(type) {
	case *sortedMap:
		return m
	case traits.Mapper:
		return &sortedMap{Mapper: m}
	}
	return v
}

// sortedNow is sorted for values that several goroutines will read.
func sortedNow(v ref.Val) ref.Val {
	v = sorted(v)
	if m, ok := v.(*sortedMap); ok {
		m.sort()
	}
	return v
}

func (m *sortedMap) sort() []ref.Val {
	if m.keys == nil {
		n, _ := m.Size().(types.Int)
		keys := make([]ref.Val, 0, n)
		for it := m.Mapper.Iterator(); it.HasNext() == types.True; {
			keys = append(keys, it.Next())
		}
		slices.SortFunc(keys, compareKeys)
		m.keys = keys
	}
	return m.keys
}

// compareKeys orders strings by their bytes and numbers by value. Keys of
// several types in one map stand together by type.
func compareKeys(a, b ref.Val) int {
	if x, ok := a.(types.String); ok {
		if y, ok := b.(types.String); ok {
			return strings.Compare(string(x), string(y))
		}
	}
	if c := strings.Compare(a.Type().TypeName(), b.Type().TypeName()); c != 0 {
		return c
	}
	if x, ok := a.(traits.Comparer); ok {
		if n, ok := x.Compare(b).(types.Int); ok {
			return cmp.Compare(n, 0)
		}
	}
	return 0
}

// Iterator implements traits.Iterable.
func (m *sortedMap) Iterator() traits.Iterator { return &keyIterator{keys: m.sort()} }

// Fold implements traits.Foldable for comprehensions with two variables.
func (m *sortedMap) Fold(f traits.Folder) {
	for _, k := range m.sort() {
		if v, _ := m.Find(k); !f.FoldEntry(k, v) {
			return
		}
	}
}

// IsZeroValue implements traits.Zeroer.
func (m *sortedMap) IsZeroValue() bool { return m.Size() == types.IntZero }

// keyIterator yields keys. Like the library's iterators it is a value only in
// form: no expression can get hold of it.
type keyIterator struct {
	traits.Iterator // the methods of ref.Val, never called
	keys            []ref.Val
	next            int
}

// HasNext implements traits.Iterator.
func (it *keyIterator) HasNext() ref.Val { return types.Bool(it.next < len(it.keys)) }

// Next implements traits.Iterator. It returns nil at the end.
func (it *keyIterator) Next() ref.Val {
	if it.next == len(it.keys) {
		return nil
	}
	it.next++
	return it.keys[it.next-1]
}

// sortedFunction declares funcSorted.
func sortedFunction() cel.EnvOption {
	return cel.Function(funcSorted, cel.Overload(overloadSorted, []*cel.Type{cel.DynType}, cel.DynType, cel.UnaryBinding(sorted)))
}

// sortedCost makes the order free: it is the library's omission, and costs
// less than the loop that needs it.
func sortedCost() cel.ProgramOption {
	return cel.CostTrackerOptions(interpreter.OverloadCostTracker(overloadSorted, func([]ref.Val, ref.Val) *uint64 {
		free := uint64(0)
		return &free
	}))
}

// sortRanges rewrites a checked tree so that no loop depends on the order of a
// map. Variables are sorted already, lists have an order.
func sortRanges(a *ast.AST, isVariable func(name string) bool) {
	fac := ast.NewExprFactory()
	next := ast.MaxID(a)
	ast.PostOrderVisit(a.Expr(), ast.NewExprVisitor(func(e ast.Expr) {
		if e.Kind() != ast.ComprehensionKind {
			return
		}
		c := e.AsComprehension()
		r := c.IterRange()
		if a.GetType(r.ID()).Kind() == types.ListKind || r.Kind() == ast.IdentKind && isVariable(r.AsIdent()) {
			return
		}
		call := fac.NewCall(next, funcSorted, r)
		a.SetType(next, a.GetType(r.ID()))
		a.SetReference(next, ast.NewFunctionReference(overloadSorted))
		next++
		e.SetKindCase(fac.NewComprehensionTwoVar(e.ID(), call, c.IterVar(), c.IterVar2(), c.AccuVar(), c.AccuInit(), c.LoopCondition(), c.LoopStep(), c.Result()))
	}))
}
