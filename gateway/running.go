package gateway

import (
	"time"

	"github.com/sluicegate/sluice/gateway/wire"
)

// A stream that goes beyond what was reserved for it is charged as it runs, so that
// other requests don't count on what it has taken already.
const (
	// useTokens and useShare are how much more output there must be before the limits
	// are told again, in tokens and as a part of all, useEvery how much later.
	useTokens = 64
	useShare  = 100
	useEvery  = 250 * time.Millisecond
)

// runningUse is what the limits were told of a stream's use.
type runningUse struct {
	on    bool
	after int64 // output beyond which they are told
	last  time.Time
}

// begin finds out how much output was reserved.
func (u *runningUse) begin(ex *exchange) {
	if len(ex.reserved) > 0 {
		u.after, u.on = ex.decision.OutputReserved()
	}
}

// tellUse tells the limits what the stream has used so far, once that is beyond
// what they have reserved, and then every now and then.
func (r *relay) tellUse() {
	u := &r.use
	if !u.on || r.done {
		return
	}
	so := r.usageSoFar()
	if so.Output <= u.after {
		return
	}
	now := time.Now()
	if !u.last.IsZero() && now.Sub(u.last) < useEvery {
		return
	}
	u.last, u.after = now, so.Output+max(useTokens, so.Output/useShare)
	r.ex.useSoFar(now, so)
}

// usageSoFar is the worker's own count where it gives one as it goes, or else the
// gateway's.
func (r *relay) usageSoFar() wire.Usage {
	if u := r.ex.checkedUsage(r.stream.Usage()); u.Known {
		return u
	}
	return wire.Usage{Input: int64(r.ex.inputTokens()), Output: r.countedOutput()}
}

// useSoFar has the limits take what is beyond the reservations.
func (ex *exchange) useSoFar(now time.Time, so wire.Usage) {
	c := charge{settle: true, usage: so, estimated: !so.Known}
	row := ex.row(&ending{charge: c}, now)
	if ex.st.Pricer != nil {
		ex.st.Pricer.Price(row)
	}
	all := ex.decision.ChargesSoFar(usageOf(&c, row))
	for _, r := range ex.reserved {
		amounts := make([]int64, len(r.indices))
		for i, index := range r.indices {
			amounts[i] = all[index]
		}
		r.lease.Use(now, amounts)
	}
}

// countedOutput is the output as the gateway counts it: an event for a token, and for
// as many as the client has asked to have in one, but for the first of each text. It
// is no more than what the request may generate.
func (r *relay) countedOutput() int64 {
	n, q := r.stream.ContentDeltas(), r.ex.req
	texts := max(int64(q.PromptCount), 1) * q.Choices()
	if q.StreamInterval <= 1 || n <= texts {
		return n
	}
	most := int64(r.ex.model.ContextLength)
	if d := r.ex.decision; d != nil && d.MaxTokens != nil {
		most = *d.MaxTokens
	} else if q.MaxTokens != nil {
		most = *q.MaxTokens
	}
	counted := texts + (n-texts)*q.StreamInterval
	if most > 0 {
		counted = min(counted, most*texts)
	}
	return max(n, counted)
}
