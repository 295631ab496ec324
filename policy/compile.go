package policy

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/google/cel-go/cel"
	"github.com/google/cel-go/common/ast"
	"github.com/google/cel-go/common/operators"
	"github.com/google/cel-go/common/types"
)

// expression is a compiled expression. It is immutable.
type expression struct {
	program  cel.Program
	typ      *cel.Type
	estimate uint64
	// loops: the program has a comprehension, so it looks at the clock.
	loops bool
	// reads are the declared names that the text reads, sorted.
	reads []string
	// uses are how the text uses variables of type string, bool and list(string).
	uses map[string]*use
	// lazy are the lazy variables read, also through variables.*.
	tokens, content bool
	// client: the text or a variable that it reads is written by the client.
	client bool
	// headers are the literal names looked up in request.headers.
	headers []string
	// constant: nothing is read, and the value is always this one.
	constant types.Bool
	isConst  bool
	// shared numbers, from 1, the texts that stand in several places and read
	// nothing but the request, so that one evaluation serves all. 0 is none.
	shared int
	text   string
	at     Error // place, without a text
	// source and checked are kept for explanations; unset unless
	// Config.KeepSource is.
	source  exprDoc
	checked *cel.Ast
	// zones are the parameters that name time zones.
	zones []string
	// tree is kept of match conditions, for the index.
	tree ast.Expr
	// cheap: the program tracks no cost, and its estimate is charged.
	cheap bool
}

// compiler compiles the expressions of one policy.
type compiler struct {
	p      *problems
	policy *policyDoc
	env    *cel.Env
	// vars are the names that the environment declares.
	vars map[string]variable
	// traits of variables.*, by full name.
	traits map[string]*expression
	// broken are variables.* with a fault of their own, declared as dyn.
	broken map[string]bool
	// later are variables.* that stand further down in the document.
	later map[string]bool
	// sections that may not read variables.* say so.
	matching bool
	// keep what an explanation needs.
	keep bool
	// guess is the size that values of no known type are taken to have in cost
	// estimates; 0 leaves them without a bound.
	guess uint64
}

// extend declares more variables.
func (c *compiler) extend(vars ...variable) error {
	if len(vars) == 0 {
		return nil
	}
	opts := make([]cel.EnvOption, len(vars))
	for i, v := range vars {
		opts[i] = cel.Variable(v.name, v.typ)
		c.vars[v.name] = v
	}
	env, err := c.env.Extend(opts...)
	if err != nil {
		return fmt.Errorf("cannot declare the variables of policy %s: %w", c.policy.name, err)
	}
	c.env = env
	return nil
}

// place is the start of an expression, for faults without a better one.
func (x exprDoc) place() Error {
	return Error{File: x.file, Line: x.line, Col: x.col, Path: x.path}
}

func (c *compiler) fault(x exprDoc, line, col int, format string, args ...any) {
	line, col = x.locate(line, col)
	c.p.addAt(x.file, line, col, x.path, fmt.Sprintf(format, args...))
}

// compile compiles one expression to one of the wanted types, or reports its
// faults and returns nil. An expression that was left out is nil, too.
func (c *compiler) compile(x exprDoc, scope scope, want ...*cel.Type) (out *expression) {
	if !x.set || strings.TrimSpace(x.text) == "" {
		return nil
	}
	defer func() {
		if r := recover(); r != nil {
			c.fault(x, 0, 0, "cannot compile: the evaluator failed on this expression")
			out = nil
		}
	}()
	checked, iss := c.env.Compile(x.text)
	if iss.Err() != nil {
		c.report(x, iss)
		return nil
	}
	out = &expression{typ: checked.OutputType(), at: x.place(), text: x.text}
	if !c.inspect(x, checked, scope, out) || slices.ContainsFunc(out.reads, c.isBroken) {
		return nil
	}
	if !typeAllowed(out.typ, want) {
		c.fault(x, 0, 0, "the result is %s, it must be %s", out.typ, typeList(want))
		return nil
	}
	if !c.estimate(x, checked, out) {
		return nil
	}
	if c.keep && !c.keepSource(x, out) {
		return nil
	}
	sortRanges(checked.NativeRep(), c.isVariable)
	if c.matching {
		out.tree = checked.NativeRep().Expr()
	}
	out.cheap = out.estimate <= cheapCost && !out.loops && !out.tokens && !out.content
	options := append(programOptions(), regexCosts(checked.NativeRep()))
	if out.cheap {
		options = []cel.ProgramOption{cel.EvalOptions(cel.OptOptimize)}
	}
	program, err := c.env.Program(checked, options...)
	if err != nil {
		c.fault(x, 0, 0, "cannot compile: %v", err)
		return nil
	}
	out.program = program
	c.foldConstant(out)
	return out
}

// keepSource keeps the text and a tree of its own, which sortRanges leaves as
// the author wrote it.
func (c *compiler) keepSource(x exprDoc, out *expression) bool {
	checked, iss := c.env.Compile(x.text)
	if iss.Err() != nil {
		c.report(x, iss)
		return false
	}
	out.source, out.checked = x, checked
	return true
}

// isVariable reports whether a name is a declared variable, not a loop's.
func (c *compiler) isVariable(name string) bool {
	_, ok := c.vars[name]
	return ok
}

// traced builds a program of an expression that tracks the value of every node
// by its id in x.checked. It tracks no cost and has no cost limit: it is for
// explanations of what a deciding program has already done within its limits.
// The policy must have been loaded with Config.KeepSource.
func (c *compiled) traced(x *expression) (cel.Program, error) {
	tree := ast.Copy(x.checked.NativeRep())
	declared := map[string]bool{}
	for _, name := range x.reads {
		declared[name] = true
	}
	sortRanges(tree, func(name string) bool { return declared[name] })
	program, err := c.env.PlanProgram(tree, cel.EvalOptions(cel.OptTrackState), cel.InterruptCheckFrequency(interruptEvery))
	if err != nil {
		return nil, fmt.Errorf("cannot trace: %w", err)
	}
	return program, nil
}

// isBroken reports whether a variable has a fault of its own, so that its
// readers need none.
func (c *compiler) isBroken(name string) bool { return c.broken[name] }

// typeAllowed reports whether a type is one of those wanted, or, when none is
// given, a fixed one.
func typeAllowed(t *cel.Type, want []*cel.Type) bool {
	if len(want) == 0 {
		return fixedType(t)
	}
	return slices.ContainsFunc(want, t.IsExactType)
}

// fixedType reports whether a type is known entirely when the policy loads.
func fixedType(t *cel.Type) bool {
	switch t.Kind() {
	case types.BoolKind, types.IntKind, types.UintKind, types.DoubleKind, types.StringKind, types.BytesKind,
		types.DurationKind, types.TimestampKind, types.ListKind, types.MapKind, types.OpaqueKind:
	default:
		return false
	}
	for _, p := range t.Parameters() {
		if !fixedType(p) {
			return false
		}
	}
	return true
}

func typeList(want []*cel.Type) string {
	if len(want) == 0 {
		return "a fixed type without dyn"
	}
	words := make([]string, len(want))
	for i, t := range want {
		words[i] = t.String()
	}
	return strings.Join(words, " or ")
}

// report turns the library's issues into faults. Where names are unknown, it
// says so in full: the library reports only the first part of a dotted name.
func (c *compiler) report(x exprDoc, iss *cel.Issues) {
	names := c.unknownNames(x)
	for _, n := range names {
		c.fault(x, n.line, n.col, "%s", n.text)
	}
	const most = 10
	for i, e := range iss.Errors() {
		// Said better by unknownNames and by regexValidator.
		if len(names) > 0 && strings.HasPrefix(e.Message, "undeclared reference to") || e.Message == "invalid matches argument" {
			continue
		}
		if i == most {
			break
		}
		c.fault(x, e.Location.Line(), e.Location.Column(), "%s", cut(firstLine(e.Message), 300))
	}
}

// inspect records what an expression reads, and refuses what it may not read.
func (c *compiler) inspect(x exprDoc, checked *cel.Ast, sc scope, out *expression) bool {
	a := checked.NativeRep()
	reads := map[string]bool{}
	ok := true
	ast.PostOrderVisit(a.Expr(), ast.NewExprVisitor(func(e ast.Expr) {
		if e.Kind() == ast.ComprehensionKind {
			out.loops = true
		}
		if name, found := headerName(e); found {
			out.headers = append(out.headers, name)
		}
		if e.Kind() != ast.IdentKind {
			return
		}
		v, declared := c.vars[e.AsIdent()]
		if !declared || reads[v.name] {
			return
		}
		reads[v.name] = true
		if v.scope > sc {
			loc := a.SourceInfo().GetStartLocation(e.ID())
			c.fault(x, loc.Line(), loc.Column(), "%s can be read %s only", v.name, scopeName(v.scope))
			ok = false
		}
		c.inherit(v, out)
	}))
	out.reads = slices.Sorted(maps.Keys(reads))
	for _, zone := range zonesOf(a) {
		if isParam(zone) {
			out.zones = append(out.zones, zone.AsIdent())
		}
	}
	out.uses = usesOf(x, a, c.vars)
	return ok
}

// headerName returns the literal key of a look-up in request.headers.
func headerName(e ast.Expr) (string, bool) {
	isHeaders := func(e ast.Expr) bool { return e.Kind() == ast.IdentKind && e.AsIdent() == "request.headers" }
	switch e.Kind() {
	case ast.SelectKind:
		return e.AsSelect().FieldName(), isHeaders(e.AsSelect().Operand())
	case ast.CallKind:
		args := e.AsCall().Args()
		if len(args) != 2 {
			return "", false
		}
		switch e.AsCall().FunctionName() {
		case operators.Index, operators.OptIndex, operators.OptSelect:
			name, ok := stringLiteral(args[1])
			return name, ok && isHeaders(args[0])
		case operators.In:
			name, ok := stringLiteral(args[0])
			return name, ok && isHeaders(args[1])
		}
	}
	return "", false
}

// inherit passes a variable's properties on to an expression that reads it.
func (c *compiler) inherit(v variable, out *expression) {
	out.client = out.client || v.client
	out.tokens = out.tokens || v.lazy == lazyTokens
	out.content = out.content || v.lazy == lazyContent
	if t := c.traits[v.name]; t != nil {
		out.client = out.client || t.client
		out.tokens = out.tokens || t.tokens
		out.content = out.content || t.content
	}
}

func scopeName(s scope) string {
	if s == scopeCharge {
		return "in the charge of a limit"
	}
	return "in the expressions of a limit"
}

// estimate refuses an expression whose cost could exceed the limit at request
// time.
func (c *compiler) estimate(x exprDoc, checked *cel.Ast, out *expression) bool {
	z := &sizer{checked: checked.NativeRep(), guess: c.guess, vars: func(name string) (valueSize, bool) {
		v, ok := c.vars[name]
		return v.size, ok
	}}
	cost, err := c.env.EstimateCost(checked, z)
	if err != nil {
		c.fault(x, 0, 0, "cannot estimate the cost: %v", err)
		return false
	}
	out.estimate = add(cost.Max, indexCost(checked.NativeRep()))
	switch {
	case out.estimate > 1<<40:
		c.fault(x, 0, 0, "the cost has no bound below %d: bound the size of what it builds or searches", exprCostLimit)
		return false
	case out.estimate > exprCostLimit:
		c.fault(x, 0, 0, "the estimated cost is up to %d, at most %d is allowed: loop over less, or look up in a map parameter", out.estimate, exprCostLimit)
		return false
	}
	return true
}

// indexCost is what the library's estimate leaves out: one unit for an index
// into, or a field of, the result of a call.
func indexCost(a *ast.AST) uint64 {
	n := uint64(0)
	ast.PostOrderVisit(a.Expr(), ast.NewExprVisitor(func(e ast.Expr) {
		switch e.Kind() {
		case ast.SelectKind:
			if e.AsSelect().Operand().Kind() == ast.CallKind {
				n++
			}
		case ast.CallKind:
			switch e.AsCall().FunctionName() {
			case operators.Index, operators.OptIndex, operators.OptSelect:
				if e.AsCall().Args()[0].Kind() == ast.CallKind {
					n++
				}
			}
		}
	}))
	return n
}

// foldConstant finds out whether an expression always yields the same boolean.
func (c *compiler) foldConstant(x *expression) {
	if len(x.reads) > 0 || !x.typ.IsExactType(cel.BoolType) {
		return
	}
	val, _, err := x.program.Eval(cel.NoVars())
	if b, ok := val.(types.Bool); ok && err == nil {
		x.isConst, x.constant = true, b
	}
}
