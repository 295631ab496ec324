package policy

import (
	"slices"
	"strings"

	"github.com/google/cel-go/cel"
	"github.com/google/cel-go/common/ast"
	"github.com/google/cel-go/common/operators"
	"github.com/google/cel-go/common/types"
)

// use is how an expression uses one variable of type string or bool, or which
// words it looks for in a list. It is what deciding a rule without a request
// rests on: a variable that is only ever compared with known words behaves alike
// for all others.
type use struct {
	// words that it is compared with, or that are looked for in it.
	words []word
	// params whose words it is compared with, looked for in, or a key of.
	params []string
	// open: it is used in another way, so that its words say nothing.
	open bool
}

// word is a literal and its place in the file.
type word struct {
	text      string
	line, col int
}

// usesOf lists how an expression uses the declared variables.
func usesOf(x exprDoc, a *ast.AST, vars map[string]variable) map[string]*use {
	w := &useWalker{x: x, info: a.SourceInfo(), vars: vars, uses: map[string]*use{}}
	w.visit(a.Expr())
	return w.uses
}

type useWalker struct {
	x    exprDoc
	info *ast.SourceInfo
	vars map[string]variable
	uses map[string]*use
}

func (w *useWalker) of(name string) *use {
	if w.uses[name] == nil {
		w.uses[name] = &use{}
	}
	return w.uses[name]
}

func (w *useWalker) visit(e ast.Expr) {
	switch e.Kind() {
	case ast.IdentKind:
		if v, ok := w.vars[e.AsIdent()]; ok && v.typ.IsExactType(cel.StringType) {
			w.of(v.name).open = true
		} else if ok && v.typ.IsExactType(cel.BoolType) {
			w.of(v.name)
		}
	case ast.SelectKind:
		w.visit(e.AsSelect().Operand())
	case ast.CallKind:
		w.call(e.AsCall())
	case ast.ListKind:
		w.all(e.AsList().Elements())
	case ast.MapKind:
		for _, x := range e.AsMap().Entries() {
			w.visit(x.AsMapEntry().Key())
			w.visit(x.AsMapEntry().Value())
		}
	case ast.ComprehensionKind:
		c := e.AsComprehension()
		w.all([]ast.Expr{c.IterRange(), c.AccuInit(), c.LoopCondition(), c.LoopStep(), c.Result()})
	}
}

func (w *useWalker) all(list []ast.Expr) {
	for _, e := range list {
		w.visit(e)
	}
}

func (w *useWalker) call(call ast.CallExpr) {
	args := call.Args()
	if call.IsMemberFunction() {
		w.visit(call.Target())
	} else if len(args) == 2 && w.comparison(call.FunctionName(), args[0], args[1]) {
		return
	}
	w.all(args)
}

// comparison notes a call that holds a variable against words, and reports
// whether it is one.
func (w *useWalker) comparison(fn string, x, y ast.Expr) bool {
	switch fn {
	case operators.Equals, operators.NotEquals:
		return w.against(x, y) || w.against(y, x)
	case operators.In:
		return w.against(x, y) || w.member(x, y)
	case operators.Index, operators.OptIndex:
		return w.against(y, x) // a parameter's map by the variable's value
	}
	return false
}

// against notes that a string variable is compared with words: a literal, a list
// of literals, or a parameter.
func (w *useWalker) against(x, words ast.Expr) bool {
	if x.Kind() != ast.IdentKind {
		return false
	}
	v, ok := w.vars[x.AsIdent()]
	if !ok || !v.typ.IsExactType(cel.StringType) {
		return false
	}
	if words.Kind() == ast.IdentKind && strings.HasPrefix(words.AsIdent(), "params.") {
		u := w.of(v.name)
		u.params = append(u.params, words.AsIdent())
		return true
	}
	found, ok := w.literals(words)
	if ok {
		u := w.of(v.name)
		u.words = append(u.words, found...)
	}
	return ok
}

// member notes that a word is looked for in a list variable.
func (w *useWalker) member(x, list ast.Expr) bool {
	if list.Kind() != ast.IdentKind {
		return false
	}
	v, ok := w.vars[list.AsIdent()]
	if !ok || !v.typ.IsExactType(cel.ListType(cel.StringType)) {
		return false
	}
	found, ok := w.literals(x)
	if ok {
		u := w.of(v.name)
		u.words = append(u.words, found...)
	}
	return ok
}

// literals reads a string literal or a list of them.
func (w *useWalker) literals(e ast.Expr) ([]word, bool) {
	if e.Kind() == ast.ListKind {
		var out []word
		for _, x := range e.AsList().Elements() {
			one, ok := w.literals(x)
			if !ok || x.Kind() == ast.ListKind {
				return nil, false
			}
			out = append(out, one...)
		}
		return out, true
	}
	text, ok := stringLiteral(e)
	if !ok {
		return nil, false
	}
	at := w.info.GetStartLocation(e.ID())
	line, col := w.x.locate(at.Line(), at.Column())
	return []word{{text, line, col}}, true
}

// wordsOf are the strings of a parameter's value: itself, its elements, or its
// keys.
func (b *binding) wordsOf(param string) []string {
	v, ok := b.params[param]
	if !ok {
		return nil
	}
	if s, ok := v.(types.String); ok {
		return []string{string(s)}
	}
	var out []string
	iterate(v, func(e any) {
		if s, ok := e.(types.String); ok {
			out = append(out, string(s))
		}
	})
	slices.Sort(out)
	return out
}
