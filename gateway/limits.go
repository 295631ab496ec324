package gateway

import (
	"slices"
	"strconv"
	"time"

	"github.com/valyala/fasthttp"

	"github.com/sluicegate/sluice/policy"
	"github.com/sluicegate/sluice/ratelimit"
)

// reserve takes what the decision's limits ask for: the enforced ones all
// together or none, each other one by itself.
func (ex *exchange) reserve(ctx *fasthttp.RequestCtx) *rejection {
	d := ex.decision
	ex.limits = d.Limits // RefuseLimits takes them out of the decision
	now := time.Now()
	var enforced []ratelimit.Claim
	var indices []int
	var failed []policy.LimitFailure
	for i := range ex.limits {
		c := claim(&ex.limits[i])
		if ex.limits[i].Mode == policy.Enforced {
			enforced, indices = append(enforced, c), append(indices, i)
			continue
		}
		failed = append(failed, ex.take(now, []ratelimit.Claim{c}, []int{i})...)
	}
	if len(enforced) > 0 {
		failed = append(failed, ex.take(now, enforced, indices)...)
	}
	defer ex.verdictStands()
	if len(failed) == 0 {
		ex.countReserved()
		return nil
	}
	for _, f := range failed {
		ex.refused = append(ex.refused, f.Index)
	}
	d.RefuseLimits(failed)
	if d.Allow {
		ex.countReserved()
		return nil
	}
	ex.setRefusedHeaders(ctx)
	return ex.denied()
}

// countReserved shows the tokens that the request holds: of several limits in
// tokens, the most that one of them has reserved.
func (ex *exchange) countReserved() {
	tokens := int64(0)
	for i := range ex.limits {
		if l := &ex.limits[i]; l.Mode == policy.Enforced && dimension(l.Unit) == "tokens" {
			tokens = max(tokens, l.Estimate)
		}
	}
	if tokens > 0 && ex.model != nil {
		ex.unreserve = ex.g.parts.Meter.Reserved(ex.principal.Tenant.ID, ex.model.Name, tokens)
	}
}

// uncountReserved undoes countReserved; a second call does nothing.
func (ex *exchange) uncountReserved() {
	if ex.unreserve != nil {
		ex.unreserve()
		ex.unreserve = nil
	}
}

// take reserves claims together and remembers the lease, or says which failed. A
// limit whose counter can't be reached, and whose policy says Allow, is left out
// and charged when the request is settled. Local would be a bucket of this replica:
// with counters in its own memory that is the very counter that failed, so it
// refuses, as Deny does.
func (ex *exchange) take(now time.Time, claims []ratelimit.Claim, indices []int) []policy.LimitFailure {
	for len(claims) > 0 {
		lease, failures := ex.g.parts.Limiter.Reserve(ex.ctx, now, claims)
		if len(failures) == 0 {
			ex.reserved = append(ex.reserved, reservedLimit{lease, indices})
			return nil
		}
		rest, restIndices := ex.without(failures, claims, indices)
		if len(rest) == len(claims) {
			return ex.refusals(failures, indices)
		}
		claims, indices = rest, restIndices
	}
	return nil
}

// without leaves out the claims that may be charged later, and notes them.
func (ex *exchange) without(failures []ratelimit.Failure, claims []ratelimit.Claim, indices []int) ([]ratelimit.Claim, []int) {
	var rest []ratelimit.Claim
	var restIndices []int
	for i := range claims {
		failed := slices.ContainsFunc(failures, func(f ratelimit.Failure) bool { return f.Index == i && f.Store != "" })
		if failed && ex.limits[indices[i]].OnStoreError == ratelimit.OnStoreErrorAllow {
			ex.owed = append(ex.owed, indices[i])
			continue
		}
		rest, restIndices = append(rest, claims[i]), append(restIndices, indices[i])
	}
	return rest, restIndices
}

// refusals says which limits did not fit.
func (ex *exchange) refusals(failures []ratelimit.Failure, indices []int) []policy.LimitFailure {
	out := make([]policy.LimitFailure, len(failures))
	for i, f := range failures {
		out[i] = policy.LimitFailure{Index: indices[f.Index], Wait: f.Wait, StoreFailed: f.Store != ""}
		ex.refusedViews = append(ex.refusedViews, refusedView{indices[f.Index], f.View})
	}
	return out
}

func claim(l *policy.Limit) ratelimit.Claim {
	return ratelimit.Claim{
		Counter: l.Counter, Unit: ratelimit.Unit(l.Unit),
		Window: ratelimit.Window{Duration: l.Window.Duration, Calendar: l.Window.Calendar},
		Limit:  l.Limit, Amount: l.Estimate, OnStoreError: l.OnStoreError,
	}
}

// setLimitHeaders shows the tightest limit of each dimension as it stands with
// this request's own reservation. A limit that reserves nothing for the request
// is not shown: it bounds what one request may ask for, not what is left.
func (ex *exchange) setLimitHeaders(ctx *fasthttp.RequestCtx) {
	var shown [2]limitView
	for _, r := range ex.reserved {
		for i, index := range r.indices {
			l := &ex.limits[index]
			if l.Mode != policy.Enforced || l.Estimate == 0 {
				continue
			}
			switch dimension(l.Unit) {
			case "requests":
				shown[0].tightest(r.lease.View(i))
			case "tokens":
				shown[1].tightest(r.lease.View(i))
			}
		}
	}
	for i, dim := range [...]string{"requests", "tokens"} {
		if shown[i].set {
			setLimitHeaders(&ctx.Response.Header, dim, shown[i].View)
		}
	}
}

// setRefusedHeaders shows, on a 429, the limit that refused.
func (ex *exchange) setRefusedHeaders(ctx *fasthttp.RequestCtx) {
	if ex.decision.Status != fasthttp.StatusTooManyRequests {
		return
	}
	for _, v := range ex.refusedViews {
		l := &ex.limits[v.index]
		if dim := dimension(l.Unit); l.Rule == ex.decision.Rule && dim != "" {
			setLimitHeaders(&ctx.Response.Header, dim, v.view)
			return
		}
	}
}

// refusedView is the state of a limit that refused.
type refusedView struct {
	index int
	view  ratelimit.View
}

// limitView is one limit as rate limit headers show it.
type limitView struct {
	ratelimit.View
	set bool
}

// tightest keeps, of two limits of a dimension, the one with the smaller
// remaining, ties to the later reset.
func (v *limitView) tightest(o ratelimit.View) {
	if !v.set || o.Remaining < v.Remaining || o.Remaining == v.Remaining && o.Reset > v.Reset {
		v.View, v.set = o, true
	}
}

// dimension says which rate limit headers a unit shows in, if any: money and
// concurrency have none.
func dimension(u policy.Unit) string {
	switch u {
	case policy.Requests:
		return "requests"
	case policy.Tokens, policy.InputTokens, policy.OutputTokens:
		return "tokens"
	}
	return ""
}

// setLimitHeaders writes the OpenAI names of a dimension's limit.
func setLimitHeaders(h *fasthttp.ResponseHeader, dim string, v ratelimit.View) {
	h.Set("x-ratelimit-limit-"+dim, strconv.FormatInt(v.Limit, 10))
	h.Set("x-ratelimit-remaining-"+dim, strconv.FormatInt(max(v.Remaining, 0), 10))
	h.Set("x-ratelimit-reset-"+dim, resetDuration(v.Reset))
}

// resetDuration renders a wait as OpenAI does: 12ms, 1s, 6m0s; rounded up so
// that it is never a promise that can't be kept.
func resetDuration(d time.Duration) string {
	switch {
	case d <= 0:
		return "0s"
	case d < time.Second:
		return strconv.FormatInt(int64((d+time.Millisecond-1)/time.Millisecond), 10) + "ms"
	}
	return ((d + time.Second - 1) / time.Second * time.Second).String()
}
