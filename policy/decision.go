package policy

import "time"

// Reason says why a request was refused. Reasons are stable words: they are
// logged and mapped to a status and a client-visible code.
type Reason string

// The reasons of a denial.
const (
	Forbidden             Reason = "Forbidden"
	Invalid               Reason = "Invalid"
	PolicyError           Reason = "PolicyError"
	NoPermittedPool       Reason = "NoPermittedPool"
	NoQuota               Reason = "NoQuota"
	ExceedsLimit          Reason = "ExceedsLimit"
	BudgetExhausted       Reason = "BudgetExhausted"
	RateLimited           Reason = "RateLimited"
	LimitStoreUnavailable Reason = "LimitStoreUnavailable"
)

// Mode says what a binding's outcome may do.
type Mode string

// The modes, from a binding's actions: Deny, Warn, or Audit alone.
const (
	Enforced Mode = "Enforced"
	Warn     Mode = "Warn"
	Shadow   Mode = "Shadow"
)

// Cache isolation scopes, from the loosest to the strictest.
const (
	IsolationNone      = "none"
	IsolationTenant    = "tenant"
	IsolationPrincipal = "principal"
)

// Unit says what a limit counts.
type Unit string

// The units of limits.
const (
	Requests     Unit = "requests"
	InputTokens  Unit = "input_tokens"
	OutputTokens Unit = "output_tokens"
	Tokens       Unit = "tokens"
	Cost         Unit = "cost"
	Concurrency  Unit = "concurrency"
)

// Window is the time over which a limit counts: a bucket refilled evenly over
// Duration, or a calendar period in UTC. Both are zero for Concurrency.
type Window struct {
	Duration time.Duration
	Calendar string // "", "day" or "month"
}

// Decision is the outcome for one request. It belongs to the caller, is not
// shared with the Set, and must not be used by two goroutines at once.
type Decision struct {
	// Allow is false when the request must be refused with Status, Reason and
	// Message. Rule (policy/name) is for the log and for tenants that may see it.
	Allow         bool
	Status        int
	Reason        Reason
	Rule, Message string
	// RetryAfter is the time after which every limit would fit; zero where a
	// retry is not advised.
	RetryAfter time.Duration

	// Denials lists every enforced failure, not only the one reported. Warnings
	// are those of Warn bindings, WouldDeny those of bindings that only audit.
	// Errors lists evaluation errors of any mode.
	Denials, Warnings, WouldDeny, Errors []RuleRef

	// Pools are the permitted pools, sorted by configuration order. They bind
	// every later step. Empty where no engine is called.
	Pools []string
	// Class is the QoS class; Preemptible and TTFTTarget are of that class.
	// TTFTTarget is zero where no effect gave one.
	Class       string
	Preemptible bool
	TTFTTarget  time.Duration
	// MaxTokens is the effective cap on output tokens, nil where the operation
	// generates none. MaxTokensChanged says that the body must be made to say so.
	MaxTokens        *int64
	MaxTokensChanged bool
	// N is the effective number of choices. NChanged says that the body must be
	// made to say so.
	N        int64
	NChanged bool
	// CacheIsolation is none, tenant or principal.
	CacheIsolation string
	// Labels added by effects, sorted.
	Labels []string
	// Annotations by policy/key, of enforced and warning bindings;
	// ShadowAnnotations of those that only audit. For the log only.
	Annotations, ShadowAnnotations map[string]string
	// Fired lists the effects that applied, of every mode.
	Fired []RuleRef
	// Limits to reserve. See Limit.Mode.
	Limits []Limit

	// LogInFull says that a binding with the action Audit matched, so the
	// decision is logged whatever the sampling.
	LogInFull bool
	Cost      CostReport
	// Revision of the Set that decided.
	Revision string
}

// RuleRef names a rule of a policy as one binding applied it.
type RuleRef struct {
	Rule    string // policy/name
	Binding string
	Mode    Mode
	Kind    RuleKind
	Reason  Reason
	// Message is the public text: safe for clients.
	Message string
	// ErrorKind and Detail describe an evaluation error. Detail is for the log
	// only: it can hold input values, and is cut to 256 bytes.
	ErrorKind ErrorKind
	Detail    string
}

// Limit is one reservation that a decision asks for.
//
// All limits whose Mode is Enforced are reserved together or not at all. Each
// other one is reserved by itself; its failure refuses nothing. Every failure
// is reported to [Decision.RefuseLimits].
type Limit struct {
	Rule, Binding string
	Mode          Mode
	Unit          Unit
	Window        Window
	// Limit is the bucket's capacity or the period's budget, above zero.
	Limit int64
	// Key as the policy computed it, for logs.
	Key []string
	// Counter identifies the counter: policy, limit, binding, unit, window and
	// key, each with its length, so that no two keys can be mistaken for one.
	Counter string
	// Estimate is the amount to reserve, not above Limit.
	Estimate int64
	// OnStoreError is Deny, Allow or Local.
	OnStoreError string
}

// LimitFailure reports that Decision.Limits[Index] could not be reserved.
type LimitFailure struct {
	Index int
	// Wait until the reservation would fit, if nothing else is reserved.
	Wait time.Duration
	// StoreFailed says that the counter could not be reached.
	StoreFailed bool
}

// CostReport is the work that a decision took.
type CostReport struct {
	// Units of CEL cost for enforced bindings, and for all others.
	Units, ShadowUnits int64
	// Expressions evaluated.
	Expressions int
	// Scan and Tokenize are the times spent in lazy variables; zero when unread.
	Scan, Tokenize time.Duration
	// Duration of Decide, lazy work included.
	Duration time.Duration
}

// RefuseLimits records that limits could not be reserved. Failures of enforced
// limits turn the decision into a denial; those of Warn and Shadow limits are
// added to Warnings and WouldDeny. An index that is out of range is a bug of
// the caller and panics.
func (d *Decision) RefuseLimits(failed []LimitFailure) {
	for _, f := range failed {
		if f.Index < 0 || f.Index >= len(d.Limits) {
			panic("BUG: policy: limit failure out of range")
		}
		d.Allow = false
	}
}

// Charges returns what each of Limits is charged for the usage, parallel to
// Limits. A charge expression that fails or is negative charges the estimate
// and is added to Errors. Concurrency limits are charged 0.
func (d *Decision) Charges(u Usage) []int64 {
	return make([]int64, len(d.Limits))
}

// WarningHeaders returns the values of the Warning response headers: at most
// five, each at most 256 bytes of printable ASCII.
func (d *Decision) WarningHeaders() []string { return nil }
