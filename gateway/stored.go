package gateway

import (
	"bytes"
	"slices"
	"strings"
	"time"

	"github.com/valyala/fasthttp"

	"github.com/sluicegate/sluice/gateway/openai"
	"github.com/sluicegate/sluice/gateway/wire"
	"github.com/sluicegate/sluice/scoring"
	"github.com/sluicegate/sluice/tenancy"
)

// operationStored is what the routes of stored responses are to policies.
const operationStored = "stored_responses"

var (
	routeStored = &route{
		template: "/v1/responses/{id}", operation: operationStored, allow: "DELETE, GET, HEAD, OPTIONS", get: true, del: true,
		handle: (*Gateway).stored,
	}
	routeStoredItems = &route{
		template: "/v1/responses/{id}/input_items", operation: operationStored, allow: "GET, HEAD, OPTIONS", get: true,
		handle: (*Gateway).stored,
	}
	routeStoredCancel = &route{
		template: "/v1/responses/{id}/cancel", operation: operationStored, allow: "OPTIONS, POST", post: true,
		handle: (*Gateway).stored,
	}

	storedRoutes   = []*route{routeStored, routeStoredItems, routeStoredCancel}
	responsePrefix = []byte("/v1/responses/")
)

// findStored matches a path among the routes of stored responses; nil if it is none of
// them.
func findStored(path []byte) *route {
	id, behind := storedID(path)
	if !validResponseID(id) {
		return nil
	}
	switch string(behind) {
	case "":
		return routeStored
	case "/input_items":
		return routeStoredItems
	case "/cancel":
		return routeStoredCancel
	}
	return nil
}

// StoredResponseRoute is the template of the route of a stored response that a path is of;
// false if it is none. Policies see it as the operation stored_responses, without a model.
func StoredResponseRoute(path string) (template string, ok bool) {
	r := findStored([]byte(path))
	if r == nil {
		return "", false
	}
	return r.template, true
}

// storedID is the id in the path of a stored response, and what comes behind it.
func storedID(path []byte) (id, behind []byte) {
	rest, ok := bytes.CutPrefix(path, responsePrefix)
	if !ok {
		return nil, nil
	}
	if i := bytes.IndexByte(rest, '/'); i >= 0 {
		return rest[:i], rest[i:]
	}
	return rest, nil
}

// storedCodec reads what workers answer about a stored response: it is no generation, so
// that its usage is nobody's charge again.
type storedCodec struct{ openai.ResponsesCodec }

// ReadUsage implements codec.
func (storedCodec) ReadUsage(_ wire.Operation, body []byte) (wire.Usage, error) {
	_, err := openai.ReadUsage(wire.Responses, body)
	return wire.Usage{}, err
}

// MapWorkerError implements codec. A worker that doesn't know the response says so in
// an error of its own, one without the route doesn't.
func (c storedCodec) MapWorkerError(status int, body []byte) wire.WorkerError {
	if status == fasthttp.StatusMethodNotAllowed {
		status = fasthttp.StatusNotFound
	}
	return goneFrom(c.ResponsesCodec.MapWorkerError(status, body))
}

// goneFrom makes a worker's word that it has nothing of that name the client's: the id
// was good.
func goneFrom(we wire.WorkerError) wire.WorkerError {
	if we.Cause != wire.CauseStaleModel {
		return we
	}
	rej := responseNotFound()
	return wire.WorkerError{Status: rej.status, Cause: wire.CauseRequest, Body: rej.content()}
}

// checkStored judges a response that goes on from a stored one, or is to be fetched
// later.
func (ex *exchange) checkStored() *rejection {
	if ex.route.op != wire.Responses {
		return nil
	}
	switch store := ex.g.responses; {
	case ex.req.Background:
		// Nobody could be charged for an answer that is made after the request has ended.
		return storeUnavailable("background", "wait for the answer, or stream it")
	case ex.req.PreviousResponse == nil:
	case !store.on():
		return storeUnavailable("previous_response_id", "send the whole conversation as `input`")
	default:
		return ex.goOnFrom(string(ex.req.PreviousResponse))
	}
	return nil
}

// namedAnswer is an Observer of answers that can be asked for again.
type namedAnswer interface {
	// ID is the answer's id, nil until it is known.
	ID() []byte
}

// bind remembers the response once its id is known.
func (r *relay) bind() {
	named, ok := r.stream.(namedAnswer)
	if !ok || r.bound || !r.ex.bindsResponses() {
		return
	}
	if id := named.ID(); id != nil {
		r.bound = true
		r.ex.bindResponse(id)
	}
}

// bindResponse remembers the worker of a response that has an id. It is that of the
// attempt under way.
func (ex *exchange) bindResponse(id []byte) {
	w := ex.res.Worker()
	ex.g.responses.bind(time.Now(), storedResponse{
		id: string(id), tenant: ex.principal.Tenant.ID, model: ex.model.Name, pool: w.Pool, worker: w.ID,
	})
}

// bindsResponses reports whether the answer is a response that may be asked for again.
func (ex *exchange) bindsResponses() bool {
	return ex.route.op == wire.Responses && ex.g.responses.on()
}

// stored serves the routes of one stored response. Policies judge the request, whether
// there is such a response or not.
func (g *Gateway) stored(ctx *fasthttp.RequestCtx, ex *exchange) {
	ex.muteWhenGone()
	for _, step := range [...]func(*exchange, *fasthttp.RequestCtx) *rejection{
		(*exchange).readUnwanted,
		(*exchange).admitMetadata,
		(*exchange).findResponse,
		(*exchange).forwardStored,
	} {
		rej := step(ex, ctx)
		if rej == nil && ex.gone.Load() {
			ex.leave()
			return
		}
		if rej != nil {
			if ex.wasCut.Load() {
				rej = ex.cutShort()
			}
			ex.reject(ctx, rej)
			return
		}
	}
	if ex.method == fasthttp.MethodDelete {
		g.responses.forget(ex.principal.Tenant.ID, ex.goesOnFrom.id)
	}
	ex.respond(ctx)
}

// readUnwanted reads a body that clients may send where none is needed; it goes nowhere.
func (ex *exchange) readUnwanted(ctx *fasthttp.RequestCtx) *rejection {
	if ex.announced == 0 {
		return nil
	}
	if rej := ex.checkMedia(ctx); rej != nil {
		return rej
	}
	return ex.readBody(ctx)
}

// findResponse finds the response that the path names. The tenant must still have its
// model, and the policies must have left its pool.
func (ex *exchange) findResponse(ctx *fasthttp.RequestCtx) *rejection {
	if !ex.g.responses.on() {
		return &rejection{
			status: fasthttp.StatusNotFound, kind: wire.TypeInvalid, code: "response_store_unavailable",
			message: "no responses are stored here; send the whole conversation as `input`", outcome: tenancy.OutcomeRejected,
		}
	}
	id, _ := storedID(targetPath(ctx.Request.Header.RequestURI()))
	if rej := ex.goOnFrom(string(id)); rej != nil {
		return rej
	}
	return ex.mayGoOn(ex.decision.Pools)
}

// goOnFrom finds a response of the tenant's, of a model that it may still use.
func (ex *exchange) goOnFrom(id string) *rejection {
	r, ok := ex.g.responses.find(ex.start, ex.principal.Tenant.ID, id)
	if !ok || ex.st.Models.find(r.model, ex.principal) == nil {
		return responseNotFound()
	}
	ex.goesOnFrom = &r
	return nil
}

// mayGoOn refuses to go on from a response whose pool the policies have taken away.
func (ex *exchange) mayGoOn(pools []string) *rejection {
	if ex.goesOnFrom == nil || slices.Contains(pools, ex.goesOnFrom.pool) {
		return nil
	}
	return &rejection{
		status: fasthttp.StatusForbidden, kind: "permission_error", code: "policy_denied",
		message: "no permitted pool has the response", outcome: tenancy.OutcomeDenied,
	}
}

// forwardStored asks the worker that keeps the response, and no other.
func (ex *exchange) forwardStored(ctx *fasthttp.RequestCtx) *rejection {
	r := ex.goesOnFrom
	if ex.req == nil {
		ex.req = acquireRequest()
	}
	ex.codec = storedCodec{}
	ex.upstream = strings.Replace(ex.route.template, "{id}", r.id, 1)
	if ex.upstreamMethod = ex.method; ex.method == fasthttp.MethodHead {
		ex.upstreamMethod = fasthttp.MethodGet
	}
	ex.pick = scoring.Request{Model: r.model, Pools: ex.decision.Pools, Only: r.worker, Unary: true}
	ex.traceparent, ex.tracestate = traceContext(&ctx.Request.Header)
	ex.tries = tries{left: 1}
	if f := ex.beginAnswer(); f != nil {
		return ex.keeperGone(ex.attemptFailed(f))
	}
	return nil
}

// keeperGone is the answer where the worker that keeps a response is not there: what it
// had is gone, and no other has it.
func (ex *exchange) keeperGone(rej *rejection) *rejection {
	none := len(ex.attempts) == 0 && rej.code == "unavailable"
	dead := len(ex.attempts) > 0 && ex.attempts[len(ex.attempts)-1].Status == 0 && rej.status == fasthttp.StatusBadGateway
	if ex.over() || !none && !dead {
		return rej
	}
	gone := responseNotFound()
	gone.cause = rej
	return gone
}

func storeUnavailable(param, instead string) *rejection {
	return &rejection{
		status: fasthttp.StatusBadRequest, kind: wire.TypeInvalid, code: "response_store_unavailable", param: param,
		message: "`" + param + "` can't be used here; " + instead, outcome: tenancy.OutcomeRejected,
	}
}

// responseNotFound is the one answer for a response that is unknown, expired, another
// tenant's, or gone with its worker.
func responseNotFound() *rejection {
	return &rejection{
		status: fasthttp.StatusNotFound, kind: wire.TypeInvalid, code: "response_not_found",
		message: "there is no such response, or it is no longer kept", outcome: tenancy.OutcomeRejected,
	}
}
