package gateway

import (
	"slices"
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
		c := ex.claim(&ex.limits[i])
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
		ex.noteUsed(now)
		return nil
	}
	for _, f := range failed {
		ex.refused = append(ex.refused, f.Index)
	}
	d.RefuseLimits(failed)
	if d.Allow {
		ex.countReserved()
		ex.noteUsed(now)
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
		if l := &ex.limits[i]; l.Mode == policy.Enforced && inTokens(l.Unit) {
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

// inTokens reports whether a unit counts tokens.
func inTokens(u policy.Unit) bool {
	all, _ := dimensionOf(u)
	return all == dimTokens
}

// take reserves claims together and remembers the reservation, or says which
// failed. Of limits whose counters can't be had, those whose policy says Allow are
// left out and charged when the request is settled, and those that say Local are
// reserved in this process, as a part of their size, and charged as well.
func (ex *exchange) take(now time.Time, claims []ratelimit.Claim, indices []int) []policy.LimitFailure {
	var local []int
	for len(claims) > 0 {
		lease, failures := ex.g.parts.Limiter.Reserve(ex.ctx, now, claims)
		if len(failures) == 0 {
			ex.reserved = append(ex.reserved, reservedLimit{lease: lease, indices: indices})
			break
		}
		rest, restIndices := ex.without(failures, claims, indices, &local)
		if len(rest) == len(claims) {
			return ex.refusals(failures, indices)
		}
		claims, indices = rest, restIndices
	}
	if len(local) == 0 {
		return nil
	}
	failed := ex.takeLocal(now, local)
	if len(failed) > 0 && len(claims) > 0 { // all or none
		last := len(ex.reserved) - 1
		ex.reserved[last].lease.Cancel(now)
		ex.reserved = ex.reserved[:last]
	}
	return failed
}

// without leaves out the claims that need not be reserved in their store, and
// notes what becomes of them.
func (ex *exchange) without(failures []ratelimit.Failure, claims []ratelimit.Claim, indices []int, local *[]int) ([]ratelimit.Claim, []int) {
	var rest []ratelimit.Claim
	var restIndices []int
	for i := range claims {
		at := slices.IndexFunc(failures, func(f ratelimit.Failure) bool { return f.Index == i && f.Store != "" })
		how := ex.limits[indices[i]].OnStoreError
		switch {
		case at >= 0 && how == ratelimit.OnStoreErrorAllow:
			ex.owed = append(ex.owed, indices[i])
		case at >= 0 && how == ratelimit.OnStoreErrorLocal && ex.g.parts.LocalLimiter != nil:
			*local = append(*local, indices[i])
		default:
			if at >= 0 {
				ex.g.storeFailed(failures[at].Store, ratelimit.OnStoreErrorDeny)
			}
			rest, restIndices = append(rest, claims[i]), append(restIndices, indices[i])
			continue
		}
		ex.g.storeFailed(failures[at].Store, how)
	}
	return rest, restIndices
}

// takeLocal reserves limits in this process, together, each with the part of its
// size that one process may have. A request that is larger than that takes all of
// it: it can't wait for more.
func (ex *exchange) takeLocal(now time.Time, indices []int) []policy.LimitFailure {
	claims := make([]ratelimit.Claim, len(indices))
	for i, index := range indices {
		c := ex.claim(&ex.limits[index])
		c.Limit = localLimit(c.Limit, c.LocalFraction)
		c.Amount = min(c.Amount, c.Limit)
		claims[i] = c
	}
	lease, failures := ex.g.parts.LocalLimiter.Reserve(ex.ctx, now, claims)
	if len(failures) > 0 {
		return ex.refusals(failures, indices)
	}
	ex.reserved = append(ex.reserved, reservedLimit{lease: lease, indices: indices, local: true})
	return nil
}

// localLimit is a part of a limit, at least 1.
func localLimit(limit int64, fraction float64) int64 {
	if fraction <= 0 || fraction >= 1 {
		return limit
	}
	return max(1, int64(float64(limit)*fraction))
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

// claim is what a limit asks of a limiter, for a caller of the tenant.
func (g *Gateway) claim(l *policy.Limit, tenant string) ratelimit.Claim {
	return ratelimit.Claim{
		Counter: l.Counter, Unit: ratelimit.Unit(l.Unit),
		Window: ratelimit.Window{Duration: l.Window.Duration, Calendar: l.Window.Calendar},
		Limit:  l.Limit, Amount: l.Estimate,
		Rule: l.Rule, Tenant: tenant, OnStoreError: l.OnStoreError, LocalFraction: g.parts.LocalFraction,
	}
}

func (ex *exchange) claim(l *policy.Limit) ratelimit.Claim {
	return ex.g.claim(l, ex.principal.Tenant.ID)
}

// refusedView is the state of a limit that refused.
type refusedView struct {
	index int
	view  ratelimit.View
}
