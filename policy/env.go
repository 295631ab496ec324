package policy

import (
	"fmt"
	"math"
	"sync"

	"github.com/google/cel-go/cel"
	"github.com/google/cel-go/checker"
	"github.com/google/cel-go/common"
	"github.com/google/cel-go/common/types"
	"github.com/google/cel-go/common/types/ref"
	"github.com/google/cel-go/common/types/traits"
	"github.com/google/cel-go/ext"
	"github.com/google/cel-go/interpreter"
)

// evaluatorVersion is part of every revision: another version can give other
// results or costs.
const evaluatorVersion = "github.com/google/cel-go v0.31.0"

// The frozen environment of sluice/v1alpha1 (section 3 of the format).
const (
	versionOptional = 2
	versionStrings  = 5
	versionLists    = 4
	versionMath     = 3
	versionNetwork  = 1
	versionSets     = 0
	versionTwoVar   = 0

	maxRange        = 1000
	maxExprSize     = 4096 // code points
	maxExprNesting  = 50
	maxExprNodes    = 1000
	maxLoopNesting  = 2
	maxRegexProgram = 1000 // instructions of a simplified pattern

	// cheapCost is the estimate up to which the cost of an expression without
	// loops and lazy reads is not tracked: it is charged its estimate, which is
	// what it can cost at most. Tracking takes longer than such an expression.
	cheapCost = 64

	exprCostLimit    = 10_000
	requestCostLimit = 100_000
	interruptEvery   = 100 // loop iterations between looks at the clock
)

// celEnv builds the environment of one load: the libraries and the variables
// that every policy has.
func celEnv(vars []variable) (*cel.Env, error) {
	opts := []cel.EnvOption{
		cel.Container(""),
		cel.OptionalTypes(cel.OptionalTypesVersion(versionOptional)),
		ext.Strings(ext.StringsVersion(versionStrings)),
		ext.Lists(ext.ListsVersion(versionLists), ext.ListsMaxRangeSize(maxRange)),
		ext.Math(ext.MathVersion(versionMath)),
		ext.Network(ext.NetworkVersion(versionNetwork)),
		ext.Sets(ext.SetsVersion(versionSets)),
		ext.TwoVarComprehensions(ext.TwoVarComprehensionsVersion(versionTwoVar)),
		sortedFunction(),
		cel.EagerlyValidateDeclarations(true),
		cel.DefaultUTCTimeZone(true),
		cel.CrossTypeNumericComparisons(true),
		cel.EnableMacroCallTracking(),
		cel.ParserExpressionSizeLimit(maxExprSize),
		cel.ParserRecursionLimit(maxExprNesting),
		cel.ExpressionNestingDepthLimit(maxExprNesting),
		cel.ExpressionNodeLimit(maxExprNodes),
		cel.ExtendedValidations(),
		cel.ASTValidators(cel.ValidateComprehensionNestingLimit(maxLoopNesting), regexValidator{}, loopVariableValidator{}, comparisonValidator{}, zoneValidator{}),
		// After the strings library, whose estimate of join counts an element as
		// one character, while format is counted by its template alone.
		cel.CostEstimatorOptions(priceEstimates()...),
		cel.CostEstimatorOptions(
			checker.OverloadCostEstimate("list_join", estimateJoin),
			checker.OverloadCostEstimate("list_join_string", estimateJoin),
			checker.OverloadCostEstimate("string_format", estimateFormat),
			checker.OverloadCostEstimate("matches", estimateMatches),
			checker.OverloadCostEstimate("matches_string", estimateMatches),
		),
	}
	for _, v := range vars {
		opts = append(opts, cel.Variable(v.name, v.typ))
	}
	env, err := cel.NewEnv(opts...)
	if err != nil {
		return nil, fmt.Errorf("cannot build the expression environment: %w", err)
	}
	return env, nil
}

// programOptions are the same for every program of a load. Tracking the state
// of an evaluation would silently turn cost tracking off, so a deciding
// program never does.
func programOptions() []cel.ProgramOption {
	return []cel.ProgramOption{
		cel.EvalOptions(cel.OptOptimize, cel.OptTrackCost),
		cel.CostLimit(exprCostLimit),
		cel.InterruptCheckFrequency(interruptEvery),
		cel.CostTrackerOptions(interpreter.OverloadCostTracker("string_format", trackFormat)),
		sortedCost(),
		cel.CostTrackerOptions(priceTrackers()...),
	}
}

// estimateJoin is the strings library's formula with the true bound of the
// elements' length.
func estimateJoin(est checker.CostEstimator, target *checker.AstNode, args []checker.AstNode) *checker.CallEstimate {
	z, ok := est.(*sizer)
	if !ok || target == nil {
		return nil
	}
	list := z.of((*target).Expr(), nil)
	if path := (*target).Path(); len(path) == 1 {
		if s, ok := z.vars(path[0]); ok {
			list = s
		}
	}
	if own := (*target).ComputedSize(); own != nil {
		list.self = min(list.self, own.Max)
	}
	sep := uint64(0)
	if len(args) > 0 {
		sep = sizeOfNode(z, args[0])
	}
	result := checker.SizeEstimate{Max: mul(list.self, add(list.elem, sep))}
	walk := checker.SizeEstimate{Min: 1, Max: add(list.self, 1)}.MultiplyByCostFactor(common.StringTraversalCostFactor)
	cost := walk.Add(result.MultiplyByCostFactor(1)).Add(checker.FixedCostEstimate(1))
	return &checker.CallEstimate{CostEstimate: cost, ResultSize: &result}
}

// estimateFormat counts the template and the result, as trackFormat does. The
// library counts the template alone, under which a template of many %s builds
// megabytes at the price of a few hundred characters.
func estimateFormat(est checker.CostEstimator, target *checker.AstNode, args []checker.AstNode) *checker.CallEstimate {
	z, ok := est.(*sizer)
	if !ok || target == nil || len(args) != 1 {
		return nil
	}
	template := sizeOfNode(z, *target)
	result := checker.SizeEstimate{Max: z.formatted(template, args[0].Expr(), nil)}
	size := checker.SizeEstimate{Max: add(template, result.Max)}
	cost := size.MultiplyByCostFactor(common.StringTraversalCostFactor).Add(checker.FixedCostEstimate(1))
	return &checker.CallEstimate{CostEstimate: cost, ResultSize: &result}
}

func sizeOfNode(z *sizer, n checker.AstNode) uint64 {
	if s := n.ComputedSize(); s != nil {
		return s.Max
	}
	if s := z.EstimateSize(n); s != nil {
		return s.Max
	}
	return unbounded
}

func trackFormat(args []ref.Val, result ref.Val) *uint64 {
	size := textSize(args[0]) + textSize(result)
	cost := uint64(math.Ceil(float64(size)*common.StringTraversalCostFactor)) + 1
	return &cost
}

func textSize(v ref.Val) uint64 {
	if s, ok := v.(traits.Sizer); ok {
		return uint64(s.Size().(types.Int))
	}
	return 1
}

// baseEnv is the environment without claims, built once per process: it is
// immutable, and most of the time of a load goes into building it.
var baseEnv = sync.OnceValues(func() (*cel.Env, error) { return celEnv(baseVariables()) })
