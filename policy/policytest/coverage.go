package policytest

import (
	"cmp"
	"slices"

	"github.com/sluicegate/sluice/policy"
)

// Coverage lists every outcome that a rule or one of its expressions can have,
// and whether a test has seen it.
type Coverage struct {
	Items []CoverageItem
}

// CoverageItem is one outcome:
//
//   - of a match condition, a validation, or a variable that is a boolean: true
//     and false;
//   - of an effect: fired and, with a condition, unfired;
//   - of a limit: reserved, denied and, with a condition, unfired;
//   - of an annotation with an optional value: given and none;
//   - of any other expression: evaluated;
//   - of an operand of && || ?:, if those are asked for: true and false.
//
// Field names the expression inside its rule where that is not the rule's own
// condition, and Operand is the text of an operand.
type CoverageItem struct {
	Rule    string
	Kind    policy.RuleKind
	Field   string
	Operand string
	Outcome string
	At      policy.Error
	Seen    bool
}

// Percent is the share of outcomes seen, 100 when there are none.
func (c Coverage) Percent() float64 {
	if len(c.Items) == 0 {
		return 100
	}
	return 100 * float64(len(c.Items)-len(c.Missing())) / float64(len(c.Items))
}

// Missing lists the outcomes that no test has seen.
func (c Coverage) Missing() []CoverageItem {
	return slices.DeleteFunc(slices.Clone(c.Items), func(i CoverageItem) bool { return i.Seen })
}

// coverage collects outcomes by the place of a rule, so that a policy that
// several suites load counts once.
type coverage struct {
	items map[coverageKey]*CoverageItem
}

type coverageKey struct {
	file, rule  string
	kind        policy.RuleKind
	field, what string
	// line and col tell operands apart.
	line, col int
}

func newCoverage() *coverage { return &coverage{items: map[coverageKey]*CoverageItem{}} }

// subject is what the rules and expressions of one set are known by.
type subject struct {
	rules       []policy.RuleInfo
	expressions []policy.ExpressionInfo
	operands    []policy.OperandInfo // none unless they are asked for
	// byPlace finds an expression by where it stands.
	byPlace map[policy.Error]policy.ExpressionInfo
	// file of a rule.
	file map[string]string
}

func newSubject(set *policy.Set) *subject {
	s := &subject{
		rules: set.Rules(), expressions: set.Expressions(), operands: set.Operands(),
		byPlace: map[policy.Error]policy.ExpressionInfo{}, file: map[string]string{},
	}
	for _, r := range s.rules {
		s.file[r.Rule] = r.At.File
	}
	for _, x := range s.expressions {
		s.byPlace[x.At] = x
	}
	return s
}

// operandKey is the key of an operand's outcome: its place and path say what it
// is.
func operandKey(at policy.Error, outcome string) coverageKey {
	return coverageKey{file: at.File, field: at.Path, line: at.Line, col: at.Col, what: outcome}
}

// outcomesOf lists the outcomes of a rule as a whole.
func outcomesOf(r policy.RuleInfo) []string {
	switch r.Kind {
	case policy.Effect:
		if r.Conditional {
			return []string{"fired", "unfired"}
		}
		return []string{"fired"}
	case policy.LimitRule:
		if r.Conditional {
			return []string{"reserved", "denied", "unfired"}
		}
		return []string{"reserved", "denied"}
	default:
		return []string{"true", "false"}
	}
}

// outcomesOfExpression lists the outcomes of an expression that its rule as a
// whole does not show.
func outcomesOfExpression(x policy.ExpressionInfo) []string {
	switch {
	case x.Field == "when", x.Kind == policy.MatchCondition, x.Kind == policy.Validation && x.Field == "expression":
		return nil
	case x.Result == policy.ResultBool:
		return []string{"true", "false"}
	case x.Result == policy.ResultOptional && x.Kind == policy.AuditAnnotation:
		return []string{"given", "none"}
	}
	return []string{"evaluated"}
}

func (c *coverage) add(s *subject) {
	item := func(key coverageKey, i CoverageItem) {
		if c.items[key] == nil {
			c.items[key] = &i
		}
	}
	for _, r := range s.rules {
		for _, o := range outcomesOf(r) {
			item(coverageKey{file: r.At.File, rule: r.Rule, kind: r.Kind, what: o}, CoverageItem{Rule: r.Rule, Kind: r.Kind, Outcome: o, At: r.At})
		}
	}
	for _, x := range s.expressions {
		for _, o := range outcomesOfExpression(x) {
			item(coverageKey{file: x.At.File, rule: x.Rule, kind: x.Kind, field: x.Field, what: o}, CoverageItem{Rule: x.Rule, Kind: x.Kind, Field: x.Field, Outcome: o, At: x.At})
		}
	}
	for _, x := range s.operands {
		for _, o := range []string{"true", "false"} {
			item(operandKey(x.At, o), CoverageItem{Rule: x.Rule, Kind: x.Kind, Field: x.Field, Operand: x.Text, Outcome: o, At: x.At})
		}
	}
}

// see marks what one execution has shown.
func (c *coverage) see(s *subject, run *execution) {
	mark := func(file, rule string, kind policy.RuleKind, field, outcome string) {
		if item := c.items[coverageKey{file: file, rule: rule, kind: kind, field: field, what: outcome}]; item != nil {
			item.Seen = true
		}
	}
	for key := range run.observed.operands {
		if item := c.items[key]; item != nil {
			item.Seen = true
		}
	}
	for _, o := range run.observed.outcomes {
		if o.Err == nil {
			mark(s.file[o.Rule], o.Rule, o.Kind, "", outcomeWord(o))
		}
	}
	for _, e := range run.observed.evaluated {
		x, known := s.byPlace[e.At]
		if !known || e.Err != nil {
			continue
		}
		mark(x.At.File, x.Rule, x.Kind, x.Field, expressionWord(x, e))
		if x.Kind == policy.LimitRule && x.Field == "when" && !e.True {
			mark(x.At.File, x.Rule, x.Kind, "", "unfired")
		}
	}
	for rule := range run.reserved {
		mark(s.file[rule], rule, policy.LimitRule, "", "reserved")
	}
	for _, refs := range [][]policy.RuleRef{run.d.Denials, run.d.Warnings, run.rehearsed.WouldDeny} {
		for _, r := range refs {
			if r.Kind == policy.LimitRule && r.Reason != policy.PolicyError {
				mark(s.file[r.Rule], r.Rule, r.Kind, "", "denied")
			}
		}
	}
}

func outcomeWord(o policy.Outcome) string {
	switch {
	case o.Kind == policy.Effect && o.True:
		return "fired"
	case o.Kind == policy.Effect:
		return "unfired"
	case o.True:
		return "true"
	default:
		return "false"
	}
}

func expressionWord(x policy.ExpressionInfo, e policy.Evaluated) string {
	switch {
	case x.Result == policy.ResultBool && e.True:
		return "true"
	case x.Result == policy.ResultBool:
		return "false"
	case x.Result == policy.ResultOptional && x.Kind == policy.AuditAnnotation && e.True:
		return "given"
	case x.Result == policy.ResultOptional && x.Kind == policy.AuditAnnotation:
		return "none"
	}
	return "evaluated"
}

func (c *coverage) report() Coverage {
	var out Coverage
	for _, item := range c.items {
		out.Items = append(out.Items, *item)
	}
	slices.SortFunc(out.Items, func(a, b CoverageItem) int {
		return cmp.Or(cmp.Compare(a.At.File, b.At.File), cmp.Compare(a.At.Line, b.At.Line), cmp.Compare(a.At.Col, b.At.Col),
			cmp.Compare(a.Field, b.Field), cmp.Compare(a.Operand, b.Operand), cmp.Compare(a.Outcome, b.Outcome))
	})
	return out
}
