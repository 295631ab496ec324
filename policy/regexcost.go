package policy

import (
	"github.com/google/cel-go/cel"
	"github.com/google/cel-go/checker"
	"github.com/google/cel-go/common/ast"
	"github.com/google/cel-go/common/types"
	"github.com/google/cel-go/common/types/ref"
	"github.com/google/cel-go/interpreter"
)

// regexStepsPerUnit is how many steps of a regular expression (one instruction
// at one character) count as one unit of cost.
const regexStepsPerUnit = 20

// regexCost prices a match. The library prices matches by the length of the pattern's text, under which
// (a?){1000} over a long header costs no more than (a?){1}. The price here is
// what the matcher may do: characters times instructions.
func regexCost(chars, instructions uint64) uint64 {
	return add(1, mul(add(chars, 1), instructions)/regexStepsPerUnit)
}

// regexCosts gives the run-time price of the patterns of one expression.
func regexCosts(a *ast.AST) cel.ProgramOption {
	sizes := map[string]uint64{}
	for _, call := range ast.MatchDescendants(ast.NavigateAST(a), ast.FunctionMatcher("matches")) {
		args := call.AsCall().Args()
		if text, ok := stringLiteral(args[len(args)-1]); ok {
			if n, err := regexSize(text); err == nil {
				sizes[text] = uint64(n)
			}
		}
	}
	track := func(args []ref.Val, _ ref.Val) *uint64 {
		text, pattern := textSize(args[0]), args[1]
		s, ok := pattern.(types.String)
		n, known := sizes[string(s)]
		cost := uint64(exprCostLimit + 1)
		if ok && known {
			cost = regexCost(text, n)
		}
		return &cost
	}
	return cel.CostTrackerOptions(
		interpreter.OverloadCostTracker("matches", track),
		interpreter.OverloadCostTracker("matches_string", track),
	)
}

// estimateMatches is the price at load.
func estimateMatches(est checker.CostEstimator, target *checker.AstNode, args []checker.AstNode) *checker.CallEstimate {
	z, ok := est.(*sizer)
	if !ok || len(args) == 0 {
		return nil
	}
	text, pattern := args[0], args[len(args)-1]
	if target != nil {
		text = *target
	}
	literal, _ := stringLiteral(pattern.Expr())
	n, err := regexSize(literal)
	if err != nil {
		return nil
	}
	cost := regexCost(sizeOfNode(z, text), uint64(n))
	return &checker.CallEstimate{CostEstimate: checker.CostEstimate{Max: cost}}
}
