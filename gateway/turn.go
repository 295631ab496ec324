package gateway

import (
	"time"

	"github.com/sluicegate/sluice/tenancy"
)

// takeTurn waits until it is the request's turn at a worker, and reserves it. late
// says that until has come first, if that is set. A rejection is what the client is
// told.
func (ex *exchange) takeTurn(until time.Time) (late bool, rej *rejection) {
	ex.queued, ex.phase = true, tenancy.PhaseQueue
	if ex.over() {
		return false, shuttingDown()
	}
	res, err := ex.g.parts.Router.Pick(time.Now(), &ex.pick)
	if err != nil {
		return false, ex.noWorker(err)
	}
	ex.res, ex.queued = res, false
	return false, nil
}

// beatsQueued reports whether a stream gets keep-alive comments while it waits.
func (ex *exchange) beatsQueued() bool { return false }
