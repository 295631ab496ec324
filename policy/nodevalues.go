package policy

import (
	"context"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/google/cel-go/common/ast"
	"github.com/google/cel-go/common/operators"
	"github.com/google/cel-go/common/types"
	"github.com/google/cel-go/common/types/ref"
	"github.com/google/cel-go/common/types/traits"
	"github.com/google/cel-go/interpreter"
	"github.com/google/cel-go/parser"
)

// maxShown is how many bytes of a value or sub-expression are shown.
const maxShown = 256

// nodeValues evaluates an expression once more and lists the values of its
// sub-expressions. Where that cannot be done there are none.
func nodeValues(ctx context.Context, a *activation, x *expression) (out []NodeValue) {
	defer func() {
		if recover() != nil { // values are worth less than the rest of the explanation
			out = nil
		}
	}()
	program, err := a.b.policy.traced(x)
	if err != nil {
		return nil
	}
	_, details, err := program.ContextEval(ctx, a)
	if details == nil || details.State() == nil {
		return nil
	}
	_ = err // it stands among the values
	w := &valueWalker{a: a, x: x, info: x.checked.NativeRep().SourceInfo(), state: details.State()}
	w.visit(x.checked.NativeRep().Expr(), 0, true)
	return w.out
}

// valueWalker lists the nodes of an expression as its author wrote it: where a
// macro stands in the text, its call and not its expansion is walked.
type valueWalker struct {
	a     *activation
	x     *expression
	info  *ast.SourceInfo
	state interpreter.EvalState
	out   []NodeValue
}

// visit adds a node and its parts. asked says whether the node around it was
// evaluated.
func (w *valueWalker) visit(e ast.Expr, depth int, asked bool) {
	if isLiteral(e) || e.ID() == 0 && e.Kind() != ast.CallKind {
		return
	}
	val, evaluated := w.state.Value(e.ID())
	name, isName := w.variable(e)
	if isName && !evaluated && asked {
		val, evaluated = w.a.peek(name)
	}
	if e.Kind() == ast.IdentKind && !isName && !evaluated {
		return // a loop variable of a loop that did not run, or where it is declared
	}
	n := NodeValue{Depth: depth, Text: w.text(e), Evaluated: evaluated}
	n.Line, n.Col = w.place(e)
	if evaluated {
		n.Value = show(val)
	}
	w.out = append(w.out, n)
	if isName {
		return
	}
	for _, part := range w.parts(e) {
		w.visit(part, depth+1, evaluated)
	}
}

// isLiteral reports whether a node is a constant that explains itself.
func isLiteral(e ast.Expr) bool {
	switch e.Kind() {
	case ast.LiteralKind:
		return true
	case ast.ListKind:
		return !slices.ContainsFunc(e.AsList().Elements(), func(x ast.Expr) bool { return !isLiteral(x) })
	}
	return false
}

// variable reports whether a node is a declared variable as a whole.
func (w *valueWalker) variable(e ast.Expr) (string, bool) {
	parts, ok := chain(e)
	if !ok {
		return "", false
	}
	name := strings.Join(parts, ".")
	return name, slices.Contains(w.x.reads, name)
}

// parts are the operands of a node, of a macro those of its call.
func (w *valueWalker) parts(e ast.Expr) []ast.Expr {
	if call, ok := w.info.GetMacroCall(e.ID()); ok {
		e = call
	}
	switch e.Kind() {
	case ast.CallKind:
		call := e.AsCall()
		if call.FunctionName() == operators.Has && len(call.Args()) == 1 && call.Args()[0].Kind() == ast.SelectKind {
			return []ast.Expr{call.Args()[0].AsSelect().Operand()} // the field is looked for, not read
		}
		if call.IsMemberFunction() {
			return append([]ast.Expr{call.Target()}, call.Args()...)
		}
		return call.Args()
	case ast.SelectKind:
		return []ast.Expr{e.AsSelect().Operand()}
	case ast.ListKind:
		return e.AsList().Elements()
	case ast.MapKind:
		var out []ast.Expr
		for _, x := range e.AsMap().Entries() {
			out = append(out, x.AsMapEntry().Key(), x.AsMapEntry().Value())
		}
		return out
	}
	return nil
}

// text is the node as CEL.
func (w *valueWalker) text(e ast.Expr) string {
	text, err := parser.Unparse(e, w.info, parser.WrapOnColumn(maxExprSize*4))
	if err != nil {
		return "?"
	}
	return cut(strings.Join(strings.Fields(text), " "), maxShown)
}

// place is where the text of a node begins, as a line and column of the file.
func (w *valueWalker) place(e ast.Expr) (line, col int) {
	start := w.start(e)
	if start < 0 {
		return w.x.at.Line, w.x.at.Col
	}
	loc := w.info.GetLocationByOffset(start)
	return w.x.source.locate(loc.Line(), loc.Column())
}

// start is the offset of the first character of a node: the library notes that
// of an operator or bracket, which can stand behind its operands or the name of
// its function.
func (w *valueWalker) start(e ast.Expr) int32 {
	start := int32(-1)
	if r, ok := w.info.GetOffsetRange(e.ID()); ok && e.ID() != 0 {
		start = r.Start - w.textBefore(r.Start, w.wordBefore(e))
	}
	for _, part := range w.parts(e) {
		if s := w.start(part); s >= 0 && (start < 0 || s < start) {
			start = s
		}
	}
	return start
}

// wordBefore is what the author has written before the place that the library
// notes: the name of a function before its bracket, the first parts of a name
// before its last dot.
func (w *valueWalker) wordBefore(e ast.Expr) string {
	if call, ok := w.info.GetMacroCall(e.ID()); ok {
		e = call
	}
	switch {
	case e.Kind() == ast.CallKind && !e.AsCall().IsMemberFunction():
		return e.AsCall().FunctionName()
	case e.Kind() == ast.IdentKind:
		if dot := strings.LastIndexByte(e.AsIdent(), '.'); dot > 0 {
			return e.AsIdent()[:dot]
		}
	}
	return ""
}

// textBefore is the length of a word if it ends at an offset.
func (w *valueWalker) textBefore(end int32, word string) int32 {
	runes := []rune(w.x.text)
	n := int32(len([]rune(word)))
	if end <= int32(len(runes)) && end >= n && string(runes[end-n:end]) == word {
		return n
	}
	return 0
}

// peek is the value of a declared name if it is there without lazy work.
func (a *activation) peek(name string) (ref.Val, bool) {
	if i, ok := a.b.policy.varIndex[name]; ok {
		if a.vars == nil || a.vars[i].val == nil {
			return nil, false
		}
		return a.vars[i].val, true
	}
	v := a.b.policy.lazyOf(name)
	if v == lazyTokens && !a.e.tokens.done || v == lazyContent && !a.e.scanned.done {
		return nil, false
	}
	got, ok := a.ResolveName(name)
	if !ok {
		return nil, false
	}
	val, ok := got.(ref.Val)
	return val, ok
}

// lazyOf says what work a base variable needs.
func (c *compiled) lazyOf(name string) lazyKind {
	for _, v := range baseVariables() {
		if v.name == name {
			return v.lazy
		}
	}
	return notLazy
}

// show writes a value as CEL would, cut to maxShown bytes.
func show(v ref.Val) string {
	var b strings.Builder
	write(&b, v, 0)
	text := b.String()
	if len(text) > maxShown {
		return cut(text, maxShown) + "…"
	}
	return text
}

// write appends a value. What is beyond maxShown is not looked at.
func write(b *strings.Builder, v ref.Val, depth int) {
	const deepest = 8
	if b.Len() > maxShown || depth > deepest {
		b.WriteString("…")
		return
	}
	switch v := v.(type) {
	case nil:
		b.WriteString("?")
	case types.String:
		b.WriteString(strconv.Quote(cut(string(v), maxShown)))
	case types.Timestamp:
		b.WriteString("timestamp(" + strconv.Quote(v.UTC().Format(time.RFC3339Nano)) + ")")
	case types.Duration:
		b.WriteString("duration(" + strconv.Quote(v.Duration.String()) + ")")
	case types.Double:
		b.WriteString(strconv.FormatFloat(float64(v), 'g', -1, 64))
	case types.Uint:
		b.WriteString(strconv.FormatUint(uint64(v), 10) + "u")
	case *types.Optional:
		if !v.HasValue() {
			b.WriteString("optional.none()")
			return
		}
		b.WriteString("optional.of(")
		write(b, v.GetValue(), depth+1)
		b.WriteString(")")
	case *types.Err:
		b.WriteString("error: " + cut(strings.ToValidUTF8(v.Error(), "?"), maxShown))
	case *types.Unknown:
		b.WriteString("unknown")
	case traits.Mapper:
		writeMap(b, v, depth)
	case traits.Lister:
		writeList(b, v, depth)
	case types.Int, types.Bool, types.Null:
		b.WriteString(plainText(v))
	default:
		b.WriteString(v.Type().TypeName() + "(" + plainText(v) + ")")
	}
}

// plainText is the text of a value that CEL converts to a string, or its type.
func plainText(v ref.Val) string {
	if s, ok := v.ConvertToType(types.StringType).(types.String); ok {
		return string(s)
	}
	if v == types.NullValue {
		return "null"
	}
	return v.Type().TypeName()
}

func writeList(b *strings.Builder, l traits.Lister, depth int) {
	b.WriteString("[")
	for i, it := 0, l.Iterator(); it.HasNext() == types.True && b.Len() <= maxShown; i++ {
		if i > 0 {
			b.WriteString(", ")
		}
		write(b, it.Next(), depth+1)
	}
	b.WriteString("]")
}

func writeMap(b *strings.Builder, m traits.Mapper, depth int) {
	b.WriteString("{")
	sorted, _ := sorted(m).(*sortedMap)
	for i, k := range sorted.sort() {
		if b.Len() > maxShown {
			break
		}
		if i > 0 {
			b.WriteString(", ")
		}
		write(b, k, depth+1)
		b.WriteString(": ")
		write(b, m.Get(k), depth+1)
	}
	b.WriteString("}")
}
