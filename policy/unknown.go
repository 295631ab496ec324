package policy

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/google/cel-go/common/ast"
	"github.com/google/cel-go/common/operators"
)

// nameFault is an unknown name and its place in an expression.
type nameFault struct {
	line, col int
	text      string
}

// unknownNames lists the names of an expression that nothing declares. It works
// on the parsed text, since a text with unknown names has no checked form.
func (c *compiler) unknownNames(x exprDoc) []nameFault {
	parsed, iss := c.env.Parse(x.text)
	if iss.Err() != nil {
		return nil
	}
	w := &nameWalker{c: c, info: parsed.NativeRep().SourceInfo()}
	w.visit(parsed.NativeRep().Expr(), nil)
	return w.faults
}

type nameWalker struct {
	c      *compiler
	info   *ast.SourceInfo
	faults []nameFault
}

// bound is a list of loop variables in force.
type bound struct {
	name string
	up   *bound
}

func (b *bound) has(name string) bool {
	for ; b != nil; b = b.up {
		if b.name == name {
			return true
		}
	}
	return false
}

func (w *nameWalker) visit(e ast.Expr, in *bound) {
	switch e.Kind() {
	case ast.IdentKind, ast.SelectKind:
		w.visitName(e, in)
	case ast.CallKind:
		w.visitCall(e, in)
	case ast.ListKind:
		for _, x := range e.AsList().Elements() {
			w.visit(x, in)
		}
	case ast.MapKind:
		for _, x := range e.AsMap().Entries() {
			w.visit(x.AsMapEntry().Key(), in)
			w.visit(x.AsMapEntry().Value(), in)
		}
	case ast.ComprehensionKind:
		c := e.AsComprehension()
		w.visit(c.IterRange(), in)
		w.visit(c.AccuInit(), in)
		accu := &bound{c.AccuVar(), in}
		loop := &bound{c.IterVar(), &bound{c.IterVar2(), accu}}
		w.visit(c.LoopCondition(), loop)
		w.visit(c.LoopStep(), loop)
		w.visit(c.Result(), accu)
	}
}

// chain returns the parts of a dotted name, or false for another expression.
func chain(e ast.Expr) ([]string, bool) {
	switch e.Kind() {
	case ast.IdentKind:
		return []string{strings.TrimPrefix(e.AsIdent(), ".")}, true
	case ast.SelectKind:
		parts, ok := chain(e.AsSelect().Operand())
		return append(parts, e.AsSelect().FieldName()), ok
	}
	return nil, false
}

func (w *nameWalker) visitName(e ast.Expr, in *bound) {
	parts, ok := chain(e)
	if !ok {
		w.visit(e.AsSelect().Operand(), in)
		return
	}
	if in.has(parts[0]) {
		return
	}
	testOnly := e.Kind() == ast.SelectKind && e.AsSelect().IsTestOnly()
	for i := len(parts); i > 0; i-- {
		name := strings.Join(parts[:i], ".")
		if w.known(name) {
			if testOnly && i == len(parts) {
				w.add(e, fmt.Sprintf("has(%s): has works on keys of map variables only; an optional variable has .hasValue()", name))
			}
			return
		}
	}
	w.add(root(e), w.c.describeUnknown(parts))
}

// root is the first part of a dotted name, where its text begins.
func root(e ast.Expr) ast.Expr {
	for e.Kind() == ast.SelectKind {
		e = e.AsSelect().Operand()
	}
	return e
}

func (w *nameWalker) known(name string) bool {
	if _, ok := w.c.vars[name]; ok {
		return true
	}
	_, ok := w.c.env.CELTypeProvider().FindIdent(name)
	return ok
}

func (w *nameWalker) add(e ast.Expr, text string) {
	loc := w.info.GetStartLocation(e.ID())
	w.faults = append(w.faults, nameFault{loc.Line(), loc.Column(), text})
}

func (w *nameWalker) visitCall(e ast.Expr, in *bound) {
	call := e.AsCall()
	fn := call.FunctionName()
	if call.IsMemberFunction() {
		parts, ok := chain(call.Target())
		if ok && w.c.env.HasFunction(strings.Join(parts, ".")+"."+fn) {
			fn = strings.Join(parts, ".") + "." + fn
		} else {
			w.visit(call.Target(), in)
		}
	}
	args := call.Args()
	if fn == operators.OptSelect && len(args) == 2 {
		args = args[:1] // the second is the field's name
	}
	if !w.c.env.HasFunction(fn) {
		w.add(e, fmt.Sprintf("unknown function %q%s", fn, didYouMean(fn, w.functions())))
	}
	for _, a := range args {
		w.visit(a, in)
	}
}

func (w *nameWalker) functions() []string {
	var out []string
	for name := range w.c.env.Functions() {
		if !strings.ContainsAny(name, "_@") {
			out = append(out, name)
		}
	}
	return out
}

// describeUnknown names the whole dotted name and says why it cannot be read
// here, or what the author may have meant.
func (c *compiler) describeUnknown(parts []string) string {
	n := 1
	if slices.Contains(topLevel, parts[0]) {
		n = 2
	}
	if len(parts) > 2 && parts[0] == "principal" && parts[1] == "claims" {
		n = 3
	}
	name := strings.Join(parts[:min(n, len(parts))], ".")
	switch {
	case parts[0] == "variables" && c.matching:
		return fmt.Sprintf("%s cannot be read in matchConditions: they may read parameters, not variables", name)
	case c.later[name]:
		return fmt.Sprintf("%s is declared further down: a variable may read earlier ones only", name)
	case n == 3:
		return fmt.Sprintf("unknown name %q: the configuration declares no such claim%s", name, c.suggest(name, "principal.claims."))
	case parts[0] == "params" && len(parts) > 1:
		return fmt.Sprintf("unknown name %q: the policy's params.schema has no such parameter%s", name, c.suggest(name, "params."))
	case parts[0] == "variables" && len(parts) > 1:
		return fmt.Sprintf("unknown name %q: the policy declares no such variable%s", name, c.suggest(name, "variables."))
	}
	if len(parts) == 1 && slices.Contains(topLevel, name) {
		return fmt.Sprintf("there is no object %q: its fields are variables of their own, each read by its whole name", name)
	}
	full := strings.Join(parts, ".")
	if hint := c.suggest(full, ""); hint != "" {
		return fmt.Sprintf("unknown name %q%s", full, hint)
	}
	return fmt.Sprintf("unknown name %q%s", name, c.suggest(name, ""))
}

// suggest looks for the nearest declared name with a prefix.
func (c *compiler) suggest(name, prefix string) string {
	var names []string
	for n := range maps.Keys(c.vars) {
		if strings.HasPrefix(n, prefix) {
			names = append(names, n)
		}
	}
	return didYouMean(name, names)
}
