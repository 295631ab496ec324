package policy

import (
	"slices"
	"time"
	_ "time/tzdata" // zones are the same wherever the gateway runs

	"github.com/google/cel-go/cel"
	"github.com/google/cel-go/checker"
	"github.com/google/cel-go/common/ast"
	"github.com/google/cel-go/common/operators"
	"github.com/google/cel-go/common/overloads"
	"github.com/google/cel-go/common/types"
	"github.com/google/cel-go/common/types/ref"
	"github.com/google/cel-go/common/types/traits"
	"github.com/google/cel-go/interpreter"
)

// The library prices some operations at one unit whatever they do, under which
// an admitted expression can hold a core for a second. Here are the prices that
// make a unit about the same work everywhere; TestEveryOverloadIsPriced finds
// operations that need one.
//
// A text is measured in characters at load and by its bytes at request time,
// of which a character has at most four: counting characters is itself work
// that nobody has paid for.
const (
	// charsPerUnit are the characters that are compared or parsed for a unit,
	// charsCounted those that are only counted or found equal.
	charsPerUnit = 10
	charsCounted = 100
	bytesPerChar = 4
	// zoneCost is that of reading a time zone.
	zoneCost = 100
)

// zoned are the overloads that read a time zone.
var zoned = []string{
	overloads.TimestampToYearWithTz, overloads.TimestampToMonthWithTz, overloads.TimestampToDayOfYearWithTz,
	overloads.TimestampToDayOfMonthZeroBasedWithTz, overloads.TimestampToDayOfMonthOneBasedWithTz, overloads.TimestampToDayOfWeekWithTz,
	overloads.TimestampToHoursWithTz, overloads.TimestampToMinutesWithTz, overloads.TimestampToSecondsWithTz, overloads.TimestampToMillisecondsWithTz,
}

// parsed are the overloads that read a text, and quote it in their error.
var parsed = []string{
	overloads.StringToTimestamp, overloads.StringToDuration, overloads.StringToBool, overloads.StringToInt, overloads.StringToUint, overloads.StringToDouble,
}

// counted are the overloads that count characters.
var counted = []string{overloads.SizeString, overloads.SizeStringInst}

// ordered are the overloads that compare two texts by their order.
var ordered = []string{
	overloads.LessString, overloads.LessEqualsString, overloads.GreaterString, overloads.GreaterEqualsString,
	overloads.LessBytes, overloads.LessEqualsBytes, overloads.GreaterBytes, overloads.GreaterEqualsBytes,
}

// searched are the overloads that look for one text in another, which they copy.
var searched = []string{
	"string_index_of_string", "string_index_of_string_int", "string_last_index_of_string", "string_last_index_of_string_int",
}

// price is the cost of a call by the sizes of its target and arguments.
type price func(sizes []uint64) uint64

// units rounds up.
func units(size, per uint64) uint64 { return size/per + min(size%per, 1) }

func textPrices() map[string]price {
	out := map[string]price{}
	set := func(ids []string, p price) {
		for _, id := range ids {
			out[id] = p
		}
	}
	set(zoned, func([]uint64) uint64 { return zoneCost })
	set(parsed, func(s []uint64) uint64 { return add(1, units(s[0], charsPerUnit)) })
	set(counted, func(s []uint64) uint64 { return add(1, units(s[0], charsCounted)) })
	set(ordered, func(s []uint64) uint64 { return max(1, units(min(s[0], s[1]), charsPerUnit)) })
	set(searched, func(s []uint64) uint64 { return add(1, units(mul(s[0], max(1, s[1])), charsPerUnit)) })
	set([]string{overloads.ContainsString}, func(s []uint64) uint64 {
		return max(1, mul(units(s[0], charsPerUnit), max(1, units(s[1], charsPerUnit))))
	})
	return out
}

// priceEstimates are the prices at load.
func priceEstimates() []checker.CostOption {
	out := []checker.CostOption{
		checker.OverloadCostEstimate(overloads.Equals, estimateEquals),
		checker.OverloadCostEstimate(overloads.NotEquals, estimateEquals),
	}
	for id, p := range textPrices() {
		out = append(out, checker.OverloadCostEstimate(id, func(est checker.CostEstimator, target *checker.AstNode, args []checker.AstNode) *checker.CallEstimate {
			z, ok := est.(*sizer)
			if !ok {
				return nil
			}
			if target != nil {
				args = append([]checker.AstNode{*target}, args...)
			}
			sizes := make([]uint64, len(args))
			for i, a := range args {
				sizes[i] = sizeOfNode(z, a)
			}
			return &checker.CallEstimate{CostEstimate: checker.CostEstimate{Max: p(sizes)}}
		}))
	}
	return out
}

// priceTrackers are the prices at request time.
func priceTrackers() []interpreter.CostTrackerOption {
	out := []interpreter.CostTrackerOption{
		interpreter.OverloadCostTracker(overloads.Equals, trackEquals),
		interpreter.OverloadCostTracker(overloads.NotEquals, trackEquals),
	}
	for id, p := range textPrices() {
		out = append(out, interpreter.OverloadCostTracker(id, func(args []ref.Val, _ ref.Val) *uint64 {
			var space [3]uint64
			sizes := space[:0]
			for _, a := range args {
				sizes = append(sizes, charsAtLeast(a))
			}
			cost := p(sizes)
			return &cost
		}))
	}
	return out
}

// charsAtLeast is how many characters a text has at least; another value has
// its size, or 1.
func charsAtLeast(v ref.Val) uint64 {
	switch v := v.(type) {
	case types.String:
		return units(uint64(len(v)), bytesPerChar)
	case types.Bytes:
		return units(uint64(len(v)), bytesPerChar)
	case *types.Optional:
		if v.HasValue() {
			return charsAtLeast(v.GetValue())
		}
	}
	return textSize(v)
}

// estimateEquals prices a comparison of scalars, texts, and lists and maps of
// them. comparisonValidator refuses what is deeper.
func estimateEquals(est checker.CostEstimator, _ *checker.AstNode, args []checker.AstNode) *checker.CallEstimate {
	z, ok := est.(*sizer)
	if !ok || len(args) != 2 {
		return nil
	}
	n := min(sizeOfNode(z, args[0]), sizeOfNode(z, args[1]))
	cost := units(n, charsPerUnit)
	if aggregate(args[0].Type()) && aggregate(args[1].Type()) {
		text := min(z.entryText(args[0]), z.entryText(args[1]))
		if n == 0 {
			text = 0
		}
		cost = add(1, mul(n, add(1, units(text, charsCounted))))
	}
	return &checker.CallEstimate{CostEstimate: checker.CostEstimate{Max: cost}}
}

// entryText bounds the texts of one entry of a list or map, its key included.
func (z *sizer) entryText(n checker.AstNode) uint64 {
	s := z.of(n.Expr(), nil)
	if path := n.Path(); len(path) == 1 {
		if v, ok := z.vars(path[0]); ok {
			s = v
		}
	}
	total := uint64(0)
	params := unwrapped(n.Type()).Parameters()
	for i, t := range params {
		size := s.elem
		if i < len(params)-1 {
			size = s.key
		}
		if k := t.Kind(); k != types.StringKind && k != types.BytesKind && k != types.DynKind {
			size = 1
		}
		total = add(total, size)
	}
	return total
}

func trackEquals(args []ref.Val, _ ref.Val) *uint64 {
	a, b := held(args[0]), held(args[1])
	x, y := charsAtLeast(a), charsAtLeast(b)
	cost := units(min(x, y), charsPerUnit)
	_, listed := a.(traits.Lister)
	_, mapped := a.(traits.Mapper)
	switch {
	case !listed && !mapped:
	case x != y || a.Type() != b.Type():
		cost = 1
	default:
		cost = 1 + x + min(entryTexts(a), entryTexts(b))/charsCounted
	}
	return &cost
}

// held is the value of an optional.
func held(v ref.Val) ref.Val {
	if o, ok := v.(*types.Optional); ok && o.HasValue() {
		return o.GetValue()
	}
	return v
}

// entryTexts sums the sizes of the texts in a list or map.
func entryTexts(v ref.Val) uint64 {
	total := uint64(0)
	switch v := v.(type) {
	case traits.Lister:
		for i := range v.Size().(types.Int) {
			total += charsAtLeast(v.Get(i))
		}
	case traits.Mapper:
		for it := v.Iterator(); it.HasNext() == types.True; {
			k := it.Next()
			total += charsAtLeast(k) + charsAtLeast(v.Get(k))
		}
	}
	return total
}

// unwrapped is the type that an optional holds.
func unwrapped(t *types.Type) *types.Type {
	for t.Kind() == types.OpaqueKind && t.TypeName() == "optional_type" {
		t = t.Parameters()[0]
	}
	return t
}

func aggregate(t *types.Type) bool {
	k := unwrapped(t).Kind()
	return k == types.ListKind || k == types.MapKind || k == types.DynKind
}

// depth is how many lists or maps a type has inside one another. What is not
// known until a request is deep.
func depth(t *types.Type) int {
	t = unwrapped(t)
	const unknown = 9
	switch t.Kind() {
	case types.ListKind, types.MapKind:
		most := 0
		for _, p := range t.Parameters() {
			most = max(most, depth(p))
		}
		return 1 + most
	case types.DynKind, types.AnyKind, types.TypeParamKind:
		return unknown
	}
	return 0
}

// comparisonValidator refuses comparisons that nothing bounds: of lists and
// maps that hold lists and maps.
type comparisonValidator struct{}

func (comparisonValidator) Name() string { return "sluice.validator.comparison" }

func (comparisonValidator) Validate(_ *cel.Env, _ cel.ValidatorConfig, a *ast.AST, iss *cel.Issues) {
	depthOf := func(e ast.Expr) int {
		if e.Kind() == ast.ListKind && e.AsList().Size() == 0 || e.Kind() == ast.MapKind && e.AsMap().Size() == 0 {
			return 0 // whatever its type is
		}
		return depth(a.GetType(e.ID()))
	}
	refuse := func(e ast.Expr) {
		iss.ReportErrorAtID(e.ID(), "a comparison of lists or maps that hold lists or maps has no bound: compare what they hold")
	}
	for _, e := range ast.MatchDescendants(ast.NavigateAST(a), ast.KindMatcher(ast.CallKind)) {
		call := e.AsCall()
		args := call.Args()
		switch fn := call.FunctionName(); {
		case (fn == operators.Equals || fn == operators.NotEquals) && min(depthOf(args[0]), depthOf(args[1])) > 1:
			refuse(e)
		case fn == operators.In && a.GetType(args[1].ID()).Kind() != types.MapKind && min(depthOf(args[0]), depthOf(args[1])-1) > 0:
			refuse(e)
		case (fn == "sets.contains" || fn == "sets.intersects" || fn == "sets.equivalent") && min(depthOf(args[0]), depthOf(args[1])) > 1:
			refuse(e)
		case fn == "distinct" && call.IsMemberFunction() && depthOf(call.Target()) > 1:
			refuse(e)
		}
	}
}

// zoneValidator demands that a time zone is a literal or a parameter: reading
// one opens a file, whose name is not for a client to write.
type zoneValidator struct{}

func (zoneValidator) Name() string { return "sluice.validator.time_zone" }

func (zoneValidator) Validate(_ *cel.Env, _ cel.ValidatorConfig, a *ast.AST, iss *cel.Issues) {
	for _, zone := range zonesOf(a) {
		text, literal := stringLiteral(zone)
		switch {
		case literal:
			if err := checkZone(text); err != nil {
				iss.ReportErrorAtID(zone.ID(), "unknown time zone %q: use a name such as Europe/Berlin, or an offset such as +01:00", cut(text, 80))
			}
		case !isParam(zone):
			iss.ReportErrorAtID(zone.ID(), "a time zone must be a string literal or a parameter")
		}
	}
}

// zonesOf lists the arguments that name time zones.
func zonesOf(a *ast.AST) []ast.Expr {
	var out []ast.Expr
	ast.PostOrderVisit(a.Expr(), ast.NewExprVisitor(func(e ast.Expr) {
		if e.Kind() != ast.CallKind || !e.AsCall().IsMemberFunction() || len(e.AsCall().Args()) != 1 {
			return
		}
		isZoned := func(id string) bool { return slices.Contains(zoned, id) }
		if slices.ContainsFunc(a.GetOverloadIDs(e.ID()), isZoned) {
			out = append(out, e.AsCall().Args()[0])
		}
	}))
	return out
}

func isParam(e ast.Expr) bool {
	return e.Kind() == ast.IdentKind && len(e.AsIdent()) > len("params.") && e.AsIdent()[:len("params.")] == "params."
}

// checkZone reports whether the evaluator can read a time zone.
func checkZone(zone string) error {
	v := types.Timestamp{Time: time.Unix(0, 0)}.Receive(overloads.TimeGetHours, overloads.TimestampToHoursWithTz, []ref.Val{types.String(zone)})
	if err, failed := v.(*types.Err); failed {
		return err
	}
	return nil
}
