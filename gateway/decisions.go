package gateway

import (
	"time"

	"github.com/valyala/fasthttp"

	"github.com/sluicegate/sluice/policy"
	"github.com/sluicegate/sluice/tenancy"
)

// mayDecide refuses a request whose decision could not be noted, where nothing
// may go on that isn't.
func (ex *exchange) mayDecide() *rejection {
	if log := ex.g.parts.Decisions; log != nil && !log.Ready() {
		return unavailable("the gateway can't record its decisions at the moment", 5*time.Second)
	}
	return nil
}

// verdictStands is called when nothing can turn the verdict any more: the limits
// have been reserved, or have refused. It notes the decision and sets aside what
// the bindings that only audit need; a second call does nothing.
func (ex *exchange) verdictStands() {
	d := ex.decision
	if d == nil || ex.stands {
		return
	}
	ex.stands = true
	if log := ex.g.parts.Decisions; log != nil {
		ex.logged = log.Decided(ex.decisionID, ex.requestID, time.Now(), &ex.input, d)
	}
	ex.beginRehearsal()
}

// setDecisionHeader names the decision in the answer.
func (ex *exchange) setDecisionHeader(h *fasthttp.ResponseHeader) {
	if ex.decisionID != "" {
		h.Set(decisionIDHeader, ex.decisionID)
	}
}

// usageOf is what a request has used, in the words of policies.
func usageOf(c *charge, row *tenancy.Row) policy.Usage {
	return policy.Usage{
		InputTokens: c.usage.Input, CachedInputTokens: row.CachedTokens,
		OutputTokens: c.usage.Output, ReasoningTokens: row.ReasoningTokens,
		Cost: row.Costs.Total(), Complete: !c.estimated,
	}
}

// settlement returns what notes the end of a request that was let in and whose
// decision was kept; nil for others. A rehearsal is noted before it, since it may be
// what makes the decision worth keeping.
func (ex *exchange) settlement(now time.Time, end *ending, row *tenancy.Row, charged, available []int64) func() {
	d, log := ex.decision, ex.g.parts.Decisions
	if !ex.logged || !d.Allow {
		return nil
	}
	id, word, pool, usage := ex.decisionID, ex.settlementWord(end.outcome), row.Pool, usageOf(&end.charge, row)
	waited := ex.turn.waited
	return func() { log.Settled(id, now, word, pool, waited, usage, d, charged, available) }
}

// settlementWord is the decision log's word for an outcome. A request that the
// worker itself refused was sent, and did not succeed there.
func (ex *exchange) settlementWord(o tenancy.Outcome) string {
	switch {
	case o == tenancy.OutcomeCompleted:
		return "completed"
	case o == tenancy.OutcomeClientAborted:
		return "client_aborted"
	case o == tenancy.OutcomeUpstreamError || !ex.dispatched.IsZero():
		return "upstream_error"
	}
	return "not_sent"
}
