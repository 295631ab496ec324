package gateway

import (
	"slices"

	"github.com/valyala/fasthttp"

	"github.com/sluicegate/sluice/gateway/wire"
	"github.com/sluicegate/sluice/tenancy"
)

// Endpoint is an operation that the gateway sends to workers.
type Endpoint struct {
	Operation wire.Operation
	// Path is the worker's path for it, which is called by POST.
	Path string
}

// Endpoints lists what workers can offer, in a fixed order.
func Endpoints() []Endpoint {
	var out []Endpoint
	for _, op := range wire.Operations() {
		for _, r := range allRoutes {
			if r.op == op {
				out = append(out, Endpoint{op, r.upstream})
			}
		}
	}
	return out
}

// Offers knows what pools offer, as their workers say. It is safe for concurrent use.
type Offers interface {
	// PoolEndpoints is what every worker of the pool offers; false where none has said.
	PoolEndpoints(pool string) (wire.Endpoints, bool)
}

// unsaid is what a pool is taken to offer of which nobody has said: what every engine
// that generates has.
var unsaid = wire.EndpointsOf(wire.Chat, wire.Completion)

// poolOffers reports whether a pool offers an operation, by the configuration's word
// and otherwise by that of its workers.
func (ex *exchange) poolOffers(p *Pool, name string, op wire.Operation) bool {
	if p.Endpoints != nil {
		return p.Endpoints.Has(op)
	}
	if o := ex.g.parts.Offers; o != nil {
		if set, known := o.PoolEndpoints(name); known {
			return set.Has(op)
		}
	}
	return unsaid.Has(op)
}

// offered reports whether any pool that serves the model offers an operation. Of a
// model that no pool serves, policies and the router have to say so.
func (ex *exchange) offered(op wire.Operation) bool {
	served := false
	for name, p := range ex.st.Pools {
		if p.Models != nil && !slices.Contains(p.Models, ex.model.Name) {
			continue
		}
		served = true
		if ex.poolOffers(&p, name, op) {
			return true
		}
	}
	return !served
}

// offering are the pools of a list that offer an operation: the list itself where all
// do.
func (ex *exchange) offering(pools []string, op wire.Operation) []string {
	lacks := func(name string) bool {
		p := ex.st.Pools[name]
		return !ex.poolOffers(&p, name, op)
	}
	if !slices.ContainsFunc(pools, lacks) {
		return pools
	}
	return slices.DeleteFunc(slices.Clone(pools), lacks)
}

// checkEndpoint refuses an operation that no pool which serves the model offers.
func (ex *exchange) checkEndpoint() *rejection {
	if ex.offered(ex.route.op) || ex.offeredInstead() {
		return nil
	}
	return endpointNotSupported()
}

// narrow keeps those of the permitted pools that offer the operation, or serve it by
// translation.
func (ex *exchange) narrow(*fasthttp.RequestCtx) *rejection {
	ex.pools = ex.offering(ex.decision.Pools, ex.route.op)
	if rej := ex.widen(); rej != nil {
		return rej
	}
	if len(ex.pools) == 0 && len(ex.decision.Pools) > 0 {
		return endpointNotSupported()
	}
	return ex.mayGoOn(ex.pools)
}

func endpointNotSupported() *rejection {
	return &rejection{
		status: fasthttp.StatusNotFound, kind: wire.TypeInvalid, code: "endpoint_not_supported",
		message: "the model does not offer this endpoint; use another endpoint or model", outcome: tenancy.OutcomeRejected,
	}
}
