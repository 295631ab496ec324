package gateway

import (
	"github.com/valyala/fasthttp"

	"github.com/sluicegate/sluice/gateway/wire"
	"github.com/sluicegate/sluice/tenancy"
)

// checkStored refuses a response that goes on from a stored one, or is to be fetched
// later: nothing is stored here.
func (ex *exchange) checkStored() *rejection {
	if ex.route.op != wire.Responses {
		return nil
	}
	switch {
	case ex.req.PreviousResponse != nil:
		return storeUnavailable("previous_response_id", "send the whole conversation as `input`")
	case ex.req.Background:
		return storeUnavailable("background", "wait for the answer, or stream it")
	}
	return nil
}

func storeUnavailable(param, instead string) *rejection {
	return &rejection{
		status: fasthttp.StatusBadRequest, kind: wire.TypeInvalid, code: "response_store_unavailable", param: param,
		message: "`" + param + "` needs stored responses, and none are stored here; " + instead, outcome: tenancy.OutcomeRejected,
	}
}

// operationStored is what the routes of stored responses are to policies.
const operationStored = "stored_responses"
