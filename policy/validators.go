package policy

import (
	"regexp/syntax"
	"slices"

	"github.com/google/cel-go/cel"
	"github.com/google/cel-go/common/ast"
	"github.com/google/cel-go/common/types"
)

// regexValidator demands that the pattern of matches is a literal whose
// simplified program is small. The library's own size check compiles patterns
// without simplifying them and panics on counted repetition, such as a{2}.
type regexValidator struct{}

func (regexValidator) Name() string { return "sluice.validator.regex" }

func (regexValidator) Validate(_ *cel.Env, _ cel.ValidatorConfig, a *ast.AST, iss *cel.Issues) {
	for _, call := range ast.MatchDescendants(ast.NavigateAST(a), ast.FunctionMatcher("matches")) {
		args := call.AsCall().Args()
		pattern := args[len(args)-1]
		text, ok := stringLiteral(pattern)
		if !ok {
			iss.ReportErrorAtID(pattern.ID(), "the pattern of matches must be a string literal")
			continue
		}
		if n, err := regexSize(text); err != nil {
			iss.ReportErrorAtID(pattern.ID(), "the pattern is no RE2 regular expression: %v", err)
		} else if n > maxRegexProgram {
			iss.ReportErrorAtID(pattern.ID(), "the pattern compiles to %d instructions, at most %d are allowed", n, maxRegexProgram)
		}
	}
}

func stringLiteral(e ast.Expr) (string, bool) {
	if e.Kind() != ast.LiteralKind {
		return "", false
	}
	s, ok := e.AsLiteral().(types.String)
	return string(s), ok
}

// regexSize counts the instructions of a simplified pattern.
func regexSize(pattern string) (int, error) {
	re, err := syntax.Parse(pattern, syntax.Perl)
	if err != nil {
		return 0, err
	}
	prog, err := syntax.Compile(re.Simplify())
	if err != nil {
		return 0, err
	}
	return len(prog.Inst), nil
}

// loopVariableValidator refuses a loop variable that carries a top-level name:
// inside its loop, request.model would be a field of the loop variable.
type loopVariableValidator struct{}

func (loopVariableValidator) Name() string { return "sluice.validator.loop_variable" }

func (loopVariableValidator) Validate(_ *cel.Env, _ cel.ValidatorConfig, a *ast.AST, iss *cel.Issues) {
	for _, e := range ast.MatchDescendants(ast.NavigateAST(a), ast.KindMatcher(ast.ComprehensionKind)) {
		c := e.AsComprehension()
		for _, name := range []string{c.IterVar(), c.IterVar2()} {
			if slices.Contains(topLevel, name) {
				iss.ReportErrorAtID(e.ID(), "the loop variable %s hides the variables %s.*: use another name", name, name)
			}
		}
	}
}
