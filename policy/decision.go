package policy

import (
	"cmp"
	"slices"
	"time"
)

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
	// are those of Warn bindings. WouldDeny are those of bindings that only audit,
	// which a [Rehearsal] finds: it is empty in what Decide returns.
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
	// ShadowAnnotations, like WouldDeny, a rehearsal's. For the log only.
	Annotations, ShadowAnnotations map[string]string
	// Fired lists the effects that applied, of every mode.
	Fired []RuleRef
	// Limits to reserve. See Limit.Mode.
	Limits []Limit

	// LogInFull says that a binding with the action Audit matched, so the
	// decision is logged whatever the sampling. Of bindings that only audit the
	// rehearsal says so: [RehearsalOutcome.LogInFull].
	LogInFull bool
	Cost      CostReport
	// Revision of the Set that decided.
	Revision string

	// What the exported lists are made from, and what is needed to settle.
	denied, warned, would, failed []placed
	notes                         []note
	e                             *evaluation
	rehearse                      []*binding    // those that only audit and may match
	kept                          []reservation // parallel to Limits
}

// placed is a rule with its place in the order of reports.
type placed struct {
	at  position
	ref RuleRef
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
	// WarnAt are the per cents of Limit at whose use a warning is given, ascending.
	WarnAt []int64
	// Warned is the highest of them that is reached; see [Decision.NoteUsed].
	Warned int64
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
	// Skipped are the expressions of Warn and Audit bindings that were left out
	// because the request had spent their budget.
	Skipped int
	// Scan and Tokenize are the times spent in lazy variables; zero when unread.
	Scan, Tokenize time.Duration
	// Duration of Decide, lazy work included.
	Duration time.Duration
}

// deny records a failure by its binding's mode.
func (d *Decision) deny(at position, ref RuleRef) {
	p := placed{at, ref}
	switch ref.Mode {
	case Enforced:
		d.denied = append(d.denied, p)
	case Warn:
		d.warned = append(d.warned, p)
	default:
		d.would = append(d.would, p)
	}
}

func (d *Decision) addError(at position, ref RuleRef) {
	d.failed = append(d.failed, placed{at, ref})
}

// annotate keeps an annotation. Two bindings of one policy can give one key
// two values: both are kept, in the order of the bindings' names.
func (d *Decision) annotate(b *binding, key, value string) {
	d.notes = append(d.notes, note{b.mode == Shadow, b.name, key, value})
}

// conclude sorts what was recorded and derives the verdict.
func (d *Decision) conclude() {
	d.sortLists()
	d.Allow = len(d.Denials) == 0
	if d.Allow {
		return
	}
	first := d.Denials[0]
	d.Reason, d.Rule, d.Message = first.Reason, first.Rule, first.Message
	d.Status = first.Reason.status()
	if d.Status != 429 {
		d.RetryAfter = 0
	}
}

// sortLists makes the exported lists, in the order in which rules are
// reported.
func (d *Decision) sortLists() {
	d.Denials = refs(d.Denials, d.denied)
	d.Warnings = refs(d.Warnings, d.warned)
	d.WouldDeny = refs(d.WouldDeny, d.would)
	d.Errors = refs(d.Errors, d.failed)
	d.Annotations = joinNotes(d.notes, false)
	d.ShadowAnnotations = joinNotes(d.notes, true)
}

func refs(dst []RuleRef, from []placed) []RuleRef {
	if len(from) == 0 {
		return dst
	}
	slices.SortStableFunc(from, comparePlaced)
	dst = dst[:0]
	for _, p := range from {
		dst = append(dst, p.ref)
	}
	return dst
}

// comparePlaced orders failed validations before evaluation errors, before
// pools, before limits. Limits have an order of their own: the reason, then
// the rule.
func comparePlaced(a, b placed) int {
	ra, rb := a.ref.Reason.rank(), b.ref.Reason.rank()
	if ra != rb {
		return cmp.Compare(ra, rb)
	}
	if ra >= NoQuota.rank() {
		return cmp.Or(cmp.Compare(a.ref.Rule, b.ref.Rule), cmp.Compare(a.ref.Binding, b.ref.Binding))
	}
	return cmp.Or(comparePositions(a.at, b.at), cmp.Compare(a.ref.Reason, b.ref.Reason))
}

// rank is the place of a reason among the reasons of one denial.
func (r Reason) rank() int {
	return slices.Index([]Reason{"", PolicyError, NoPermittedPool, NoQuota, ExceedsLimit, BudgetExhausted, RateLimited, LimitStoreUnavailable}, r)
}

// status is the HTTP status of a denial.
func (r Reason) status() int {
	switch r {
	case Invalid, ExceedsLimit:
		return 400
	case RateLimited, BudgetExhausted:
		return 429
	case LimitStoreUnavailable:
		return 503
	default:
		return 403
	}
}

// note is an annotation of one binding.
type note struct {
	shadow              bool
	binding, key, value string
}

// joinNotes makes the map of annotations: different values of one key are
// joined by a comma.
func joinNotes(notes []note, shadow bool) map[string]string {
	if len(notes) == 0 {
		return nil
	}
	slices.SortStableFunc(notes, func(a, b note) int {
		return cmp.Or(cmp.Compare(a.key, b.key), cmp.Compare(a.binding, b.binding))
	})
	out := map[string]string{}
	seen := map[[2]string]bool{}
	for _, n := range notes {
		if n.shadow != shadow || seen[[2]string{n.key, n.value}] {
			continue
		}
		seen[[2]string{n.key, n.value}] = true
		if old, ok := out[n.key]; ok {
			n.value = old + "," + n.value
		}
		out[n.key] = cut(n.value, maxAnnotation)
	}
	return out
}
