package gateway

import (
	"time"

	"github.com/valyala/fasthttp"

	"github.com/sluicegate/sluice/tenancy"
)

// checkScope refuses an operation that the caller's credential is not for. Models
// outside of its scope are as if they did not exist, see Models.find.
func (ex *exchange) checkScope() *rejection {
	if ex.principal.Scope.AllowsOperation(ex.route.operation) {
		return nil
	}
	return &rejection{
		status: fasthttp.StatusForbidden, kind: "permission_error", code: "policy_denied",
		message: "this credential is not for this operation", outcome: tenancy.OutcomeDenied,
	}
}

// unknownCaller is the answer to a caller that Identify has refused. Where what
// would tell can't be had at the moment, the credential may well be right, and a
// client must not throw it away.
func unknownCaller(err error) *rejection {
	if authReason(err) != tenancy.AuthKeysDown {
		return unauthorized(err)
	}
	rej := unavailable("who calls can't be found out at the moment; the credential may be right, try again", 5*time.Second)
	rej.cause = err
	return rej
}
