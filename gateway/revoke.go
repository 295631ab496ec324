package gateway

import (
	"errors"

	"github.com/valyala/fasthttp"

	"github.com/sluicegate/sluice/tenancy"
)

// Cut ends the running requests of callers of whom revoked says so, and returns how
// many there were. Each ends with an error and is settled by what it has used, as
// when a client leaves. A request that is being identified meanwhile is not among
// them: whoever revokes calls Cut once more a moment later.
func (g *Gateway) Cut(revoked func(*tenancy.Principal) bool) int {
	n := 0
	g.live.each(func(ex *exchange) {
		if p := ex.known.Load(); p != nil && !ex.revoked.Load() && revoked(p) {
			n++
			ex.revoked.Store(true)
			ex.cut()
		}
	})
	return n
}

var (
	errRevoked        = errors.New("it was revoked while the request ran")
	errRevokedWaiting = errors.New("it was revoked while the request waited for a worker")
)

// takenBack is the end of a request whose caller was let in and is taken back.
func (ex *exchange) takenBack(cause error) *rejection {
	rej := unauthorized(&tenancy.AuthError{Reason: tenancy.AuthRevoked, KeyID: ex.principal.KeyID, Cause: cause})
	rej.outcome = tenancy.OutcomeRejected // not denied: a worker may have been called
	return rej
}

// cutShort is the end of a request that was cut before its answer began.
func (ex *exchange) cutShort() *rejection {
	if ex.revoked.Load() {
		return ex.takenBack(errRevoked)
	}
	return shuttingDown()
}

// cutEvent is what a stream ends with that was cut.
func (ex *exchange) cutEvent(cause error) *rejection {
	if ex.revoked.Load() {
		return &rejection{
			status: fasthttp.StatusUnauthorized, kind: "invalid_request_error", code: "invalid_api_key",
			message: "the credential was revoked", outcome: tenancy.OutcomeRejected, cause: cause, // the worker did well
		}
	}
	return &rejection{
		status: fasthttp.StatusServiceUnavailable, kind: "server_error", code: "unavailable",
		message: "the gateway is shutting down", outcome: tenancy.OutcomeUpstreamError, cause: cause,
	}
}
