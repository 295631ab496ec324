package gateway

import (
	"strconv"
	"time"

	"github.com/valyala/fasthttp"

	"github.com/sluicegate/sluice/policy"
	"github.com/sluicegate/sluice/ratelimit"
)

// limitDimension is what the rate limit headers of a dialect tell apart.
type limitDimension int

const (
	dimRequests limitDimension = iota
	dimTokens                  // whatever they are counted as
	dimInputTokens
	dimOutputTokens
	limitDimensions
	dimNone limitDimension = -1
)

// dimensionOf says which rate limit headers a unit shows in, if any: money and
// concurrency have none. Limits in input or output tokens are ones in tokens, and
// a dimension of their own where a dialect has it.
func dimensionOf(u policy.Unit) (all, own limitDimension) {
	switch u {
	case policy.Requests:
		return dimRequests, dimNone
	case policy.Tokens:
		return dimTokens, dimNone
	case policy.InputTokens:
		return dimTokens, dimInputTokens
	case policy.OutputTokens:
		return dimTokens, dimOutputTokens
	}
	return dimNone, dimNone
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

// limitViews are what is shown of each dimension.
type limitViews [limitDimensions]limitView

// add shows a limit where it is the tightest of its dimensions.
func (s *limitViews) add(u policy.Unit, v ratelimit.View) {
	all, own := dimensionOf(u)
	for _, d := range [...]limitDimension{all, own} {
		if d != dimNone {
			s[d].tightest(v)
		}
	}
}

// setLimitHeaders shows the tightest limit of each dimension as it stands when
// the answer begins, this request's own reservation included. A limit that
// reserves nothing for the request is not shown: it bounds what one request may
// ask for, not what is left.
func (ex *exchange) setLimitHeaders(ctx *fasthttp.RequestCtx) {
	if len(ex.reserved) == 0 {
		return
	}
	var shown limitViews
	now := time.Now()
	for _, r := range ex.reserved {
		for i, index := range r.indices {
			l := &ex.limits[index]
			if all, _ := dimensionOf(l.Unit); all != dimNone && l.Mode == policy.Enforced && l.Estimate > 0 {
				shown.add(l.Unit, r.lease.ViewNow(now, i))
			}
		}
	}
	shown.write(&ctx.Response.Header, ex.dialect, now)
}

// setRefusedHeaders shows, on a 429, the limit that refused.
func (ex *exchange) setRefusedHeaders(ctx *fasthttp.RequestCtx) {
	if ex.decision.Status != fasthttp.StatusTooManyRequests {
		return
	}
	for _, v := range ex.refusedViews {
		l := &ex.limits[v.index]
		if all, _ := dimensionOf(l.Unit); l.Rule == ex.decision.Rule && all != dimNone {
			var shown limitViews
			shown.add(l.Unit, v.view)
			shown.write(&ctx.Response.Header, ex.dialect, time.Now())
			return
		}
	}
}

// write sets the headers of a dialect.
func (s *limitViews) write(h *fasthttp.ResponseHeader, d dialect, now time.Time) {
	for dim := range s {
		v := &s[dim]
		if !v.set {
			continue
		}
		limit, remaining := strconv.FormatInt(v.Limit, 10), strconv.FormatInt(max(v.Remaining, 0), 10)
		if d == dialectAnthropic {
			name := "anthropic-ratelimit-" + [...]string{"requests", "tokens", "input-tokens", "output-tokens"}[dim]
			h.Set(name+"-limit", limit)
			h.Set(name+"-remaining", remaining)
			h.Set(name+"-reset", resetTime(now, v.Reset))
			continue
		}
		if dim := limitDimension(dim); dim == dimRequests || dim == dimTokens {
			name := [...]string{"requests", "tokens"}[dim]
			h.Set("x-ratelimit-limit-"+name, limit)
			h.Set("x-ratelimit-remaining-"+name, remaining)
			h.Set("x-ratelimit-reset-"+name, resetDuration(v.Reset))
		}
	}
}

// resetDuration renders a wait as OpenAI does: 12ms, 1s, 6m0s; rounded up so
// that it is never a promise that can't be kept.
func resetDuration(d time.Duration) string {
	switch {
	case d <= 0:
		return "0s"
	case d < time.Second:
		return strconv.FormatInt(int64((d+time.Millisecond-1)/time.Millisecond), 10) + "ms"
	case d > longestReset:
		d = longestReset
	}
	return ((d + time.Second - 1) / time.Second * time.Second).String()
}

// resetTime renders a wait as Anthropic does: an instant in whole seconds, rounded
// up as well.
func resetTime(now time.Time, d time.Duration) string {
	at := now.Add(min(max(d, 0), longestReset)).UTC()
	if whole := at.Truncate(time.Second); !whole.Equal(at) {
		at = whole.Add(time.Second)
	}
	return at.Format(time.RFC3339)
}

// longestReset is shown for debts that no one will live to see paid: what is
// longer has no date in four digits.
const longestReset = 100 * 365 * 24 * time.Hour
