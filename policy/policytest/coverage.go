package policytest

import (
	"cmp"
	"slices"

	"github.com/sluicegate/sluice/policy"
)

// Coverage lists every outcome that a rule can have, and whether a test has
// seen it.
type Coverage struct {
	Items []CoverageItem
}

// CoverageItem is one outcome of one rule: true or false for a match condition
// or validation, fired or unfired for an effect, reserved or denied for a limit.
type CoverageItem struct {
	Rule    string
	Kind    policy.RuleKind
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
	file, rule string
	kind       policy.RuleKind
	outcome    string
}

func newCoverage() *coverage { return &coverage{items: map[coverageKey]*CoverageItem{}} }

func outcomesOf(r policy.RuleInfo) []string {
	switch r.Kind {
	case policy.Effect:
		if r.Conditional {
			return []string{"fired", "unfired"}
		}
		return []string{"fired"}
	case policy.LimitRule:
		return []string{"reserved", "denied"}
	default:
		return []string{"true", "false"}
	}
}

func (c *coverage) add(rules []policy.RuleInfo) {
	for _, r := range rules {
		for _, o := range outcomesOf(r) {
			key := coverageKey{r.At.File, r.Rule, r.Kind, o}
			if c.items[key] == nil {
				c.items[key] = &CoverageItem{Rule: r.Rule, Kind: r.Kind, Outcome: o, At: r.At}
			}
		}
	}
}

// see marks what one execution has shown.
func (c *coverage) see(rules []policy.RuleInfo, run *execution) {
	file := map[string]string{}
	for _, r := range rules {
		file[r.Rule] = r.At.File
	}
	mark := func(kind policy.RuleKind, rule, outcome string) {
		if item := c.items[coverageKey{file[rule], rule, kind, outcome}]; item != nil {
			item.Seen = true
		}
	}
	for _, o := range run.observed.outcomes {
		if o.Err == nil {
			mark(o.Kind, o.Rule, outcomeWord(o))
		}
	}
	for rule := range run.reserved {
		mark(policy.LimitRule, rule, "reserved")
	}
	for _, refs := range [][]policy.RuleRef{run.d.Denials, run.d.Warnings, run.d.WouldDeny} {
		for _, r := range refs {
			if r.Kind == policy.LimitRule && r.Reason != policy.PolicyError {
				mark(r.Kind, r.Rule, "denied")
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

func (c *coverage) report() Coverage {
	var out Coverage
	for _, item := range c.items {
		out.Items = append(out.Items, *item)
	}
	slices.SortFunc(out.Items, func(a, b CoverageItem) int {
		return cmp.Or(cmp.Compare(a.At.File, b.At.File), cmp.Compare(a.At.Line, b.At.Line), cmp.Compare(a.At.Col, b.At.Col), cmp.Compare(a.Outcome, b.Outcome))
	})
	return out
}
