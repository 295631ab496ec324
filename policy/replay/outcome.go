package replay

import (
	"slices"

	"github.com/sluicegate/sluice/policy"
)

// outcome is what one set, or the log, says about a request.
type outcome struct {
	allow  bool
	status int
	reason string
	rule   string
	// configured: the refusal hangs on pools, prices or defaults of the gateway's
	// configuration.
	configured bool
	// counters: a counter refused, which is not replayed. Of the log only.
	counters bool
	// refusedByCounter is the limit whose counter refused the request that the
	// baseline admits.
	refusedByCounter string
	// unknown are the rules whose value hangs on an input that the record lacks,
	// in the order of reports. verdictUnknown says that the verdict does, too.
	unknown        []unknown
	verdictUnknown bool

	pools     []string
	class     string
	maxTokens *int64
	n         int64
	isolation string
	labels    []string
	fired     []string // enforced effects by rule
	limits    map[limitName]int64
}

// unknown is a rule that could not be judged, and why.
type unknown struct{ rule, why string }

// limitName is a limit as one binding applies it.
type limitName struct{ rule, binding string }

// counterReasons are the refusals of counters.
var counterReasons = []policy.Reason{policy.RateLimited, policy.BudgetExhausted, policy.LimitStoreUnavailable}

// recorded is the outcome that stands in a record.
func recorded(r *policy.Record) outcome {
	o := outcome{
		allow: r.Verdict == "allow", status: r.Status, reason: string(r.Reason), rule: r.Rule,
		counters: slices.Contains(counterReasons, r.Reason), configured: r.Reason == policy.NoPermittedPool || r.Reason == policy.ExceedsLimit,
		pools: r.Effective.Pools, class: r.Effective.QoSClass, maxTokens: r.Effective.MaxTokens, n: r.Effective.N,
		isolation: r.Effective.CacheIsolation, labels: r.Effective.Labels, limits: map[limitName]int64{},
	}
	for _, e := range r.Effects {
		if e.Enforced {
			o.fired = append(o.fired, e.Rule)
		}
	}
	for _, l := range r.Limits {
		if l.Enforced {
			o.limits[limitName{l.Rule, l.Binding}] = l.Limit
		}
	}
	return o
}

// outcomeOf is the outcome of a decision on what a record holds. A rule whose
// evaluation needed more than that neither denies nor allows: it is unknown.
func outcomeOf(d *policy.Decision) outcome {
	o := outcome{
		allow: d.Allow, status: d.Status, reason: string(d.Reason), rule: d.Rule,
		pools: d.Pools, class: d.Class, maxTokens: d.MaxTokens, n: d.N, isolation: d.CacheIsolation, labels: d.Labels,
		limits: map[limitName]int64{},
	}
	for _, e := range d.Errors {
		if e.ErrorKind == policy.ErrorAbsent && e.Mode == policy.Enforced {
			o.unknown = append(o.unknown, unknown{e.Rule, e.Detail})
		}
	}
	o.verdictUnknown = len(o.unknown) > 0
	for _, r := range d.Denials {
		if r.ErrorKind != policy.ErrorAbsent {
			// It denies whatever the others would have said.
			o.verdictUnknown = false
			o.reason, o.rule, o.status = string(r.Reason), r.Rule, 0
			o.configured = r.Reason == policy.NoPermittedPool || r.Kind == policy.LimitRule
			if r.Rule == d.Rule && r.Reason == d.Reason {
				o.status = d.Status
			}
			break
		}
	}
	for _, f := range d.Fired {
		if f.Mode == policy.Enforced {
			o.fired = append(o.fired, f.Rule)
		}
	}
	for _, l := range d.Limits {
		if l.Mode == policy.Enforced {
			o.limits[limitName{l.Rule, l.Binding}] = l.Limit
		}
	}
	return o
}

// asks reports whether the outcome reserves in a limit of the name.
func (o *outcome) asks(rule string) bool {
	for name := range o.limits {
		if name.rule == rule {
			return true
		}
	}
	return false
}
