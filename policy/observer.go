package policy

// Observer is told what an evaluation does, in the order in which it happens.
// Its methods are called from the goroutine that decides and must not call
// back into the Set.
type Observer interface {
	// Read reports that an expression read a variable of section 2, present or
	// absent.
	Read(variable string)
	// Outcome reports one evaluated match condition, validation or effect.
	Outcome(o Outcome)
}

// Outcome is the result of one match condition, validation or effect for one
// binding.
type Outcome struct {
	Kind    RuleKind
	Rule    string // policy/name
	Binding string
	Mode    Mode
	// True is the expression's value; for an effect, whether it fired. It says
	// nothing when Err is set.
	True bool
	Err  error
}

// RuleKind says what part of a policy a rule is.
type RuleKind string

// The kinds of rules.
const (
	SelectorRule    RuleKind = "selector" // of a binding; its rule is the policy's name
	MatchCondition  RuleKind = "matchCondition"
	Variable        RuleKind = "variable"
	Validation      RuleKind = "validation"
	Effect          RuleKind = "effect"
	LimitRule       RuleKind = "limit"
	AuditAnnotation RuleKind = "auditAnnotation"
)
