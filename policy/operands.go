package policy

import (
	"context"

	"github.com/google/cel-go/cel"
	"github.com/google/cel-go/common/ast"
	"github.com/google/cel-go/common/operators"
	"github.com/google/cel-go/common/types"
	"github.com/google/cel-go/common/types/ref"
)

// OperandInfo is a condition inside an expression: an operand of && or ||, or
// what stands before a ?, unless it is such an expression itself or a constant.
// Those inside loops are not listed: each iteration has its own.
type OperandInfo struct {
	ExpressionInfo
	// Text as CEL writes it. Line and Col of At are those of its beginning.
	Text string

	id int64
}

// OperandObserver is an [ExpressionObserver] that is told of operands, too. The
// set must have been loaded with [Config.KeepSource]. It evaluates every
// expression with operands twice.
type OperandObserver interface {
	ExpressionObserver
	// Operand reports that an operand was evaluated, and its value.
	Operand(o OperandInfo, isTrue bool)
}

// Operands lists the operands of all expressions of a set, by policy name and
// place in the document; none unless the set keeps its sources.
func (s *Set) Operands() []OperandInfo {
	var out []OperandInfo
	for _, c := range s.policies {
		c.each(func(r placedRule, field string, x *expression) {
			out = append(out, operandsOf(ExpressionInfo{Rule: r.ref, Kind: r.kind, Field: field, Result: resultKind(x.typ), At: x.at}, x)...)
		})
	}
	return out
}

func operandsOf(of ExpressionInfo, x *expression) []OperandInfo {
	if x.checked == nil {
		return nil
	}
	w := &valueWalker{x: x, info: x.checked.NativeRep().SourceInfo()}
	var out []OperandInfo
	var visit func(e ast.Expr, counts bool)
	visit = func(e ast.Expr, counts bool) {
		_, isMacro := w.info.GetMacroCall(e.ID())
		inner := conditions(e)
		if counts && len(inner) == 0 && !isLiteral(e) {
			o := OperandInfo{ExpressionInfo: of, Text: w.text(e), id: e.ID()}
			o.At.Line, o.At.Col = w.place(e)
			out = append(out, o)
		}
		if isMacro {
			return
		}
		for _, part := range w.parts(e) {
			visit(part, contains(inner, part))
		}
	}
	visit(x.checked.NativeRep().Expr(), false)
	return out
}

// conditions are the operands of a node that are conditions.
func conditions(e ast.Expr) []ast.Expr {
	if e.Kind() != ast.CallKind {
		return nil
	}
	switch args := e.AsCall().Args(); e.AsCall().FunctionName() {
	case operators.LogicalAnd, operators.LogicalOr:
		return args
	case operators.Conditional:
		return args[:1]
	}
	return nil
}

func contains(list []ast.Expr, e ast.Expr) bool {
	for _, x := range list {
		if x.ID() == e.ID() {
			return true
		}
	}
	return false
}

// observeOperands runs an expression again where its operands have an observer.
// It is told of them after the expression itself.
func observeOperands(to OperandObserver) func(*activation, *expression) {
	type known struct {
		program  cel.Program
		operands []OperandInfo
	}
	by := map[*expression]*known{}
	return func(a *activation, x *expression) {
		k := by[x]
		if k == nil {
			k = &known{operands: operandsOf(ExpressionInfo{At: x.at}, x)}
			if len(k.operands) > 0 {
				k.program, _ = a.b.policy.traced(x)
			}
			by[x] = k
		}
		if k.program == nil {
			return
		}
		_, details, _ := k.program.ContextEval(context.Background(), a) // an error is an operand's that was not evaluated
		if details == nil || details.State() == nil {
			return
		}
		for _, o := range k.operands {
			if v, ok := details.State().Value(o.id); ok && isBool(v) {
				to.Operand(o, v == types.True)
			}
		}
	}
}

func isBool(v ref.Val) bool {
	_, ok := v.(types.Bool)
	return ok
}
