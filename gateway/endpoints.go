package gateway

import (
	"slices"
	"time"

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
	// PoolEndpoints is what every worker of the pool offers. It is not known where one has
	// not said; awaited says that it may yet.
	PoolEndpoints(pool string) (set wire.Endpoints, known, awaited bool)
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
		if set, known, _ := o.PoolEndpoints(name); known {
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

// mayBeOffered reports whether a pool of which nobody knows yet what it offers may turn
// out to offer the operation, or what stands in for it.
func (ex *exchange) mayBeOffered(pool string) bool {
	o := ex.g.parts.Offers
	if o == nil || ex.st.Pools[pool].Endpoints != nil {
		return false
	}
	_, known, awaited := o.PoolEndpoints(pool)
	return !known && awaited
}

// checkEndpoint refuses an operation that no pool which serves the model offers or may
// turn out to offer.
func (ex *exchange) checkEndpoint() *rejection {
	if ex.offered(ex.route.op) || ex.offeredInstead() {
		return nil
	}
	for name, p := range ex.st.Pools {
		if (p.Models == nil || slices.Contains(p.Models, ex.model.Name)) && ex.mayBeOffered(name) {
			return nil
		}
	}
	return endpointNotSupported()
}

// narrow keeps those of the permitted pools that offer the operation, or serve it by
// translation.
func (ex *exchange) narrow(*fasthttp.RequestCtx) *rejection {
	permitted := ex.decision.Pools
	ex.pools = ex.offering(permitted, ex.route.op)
	rej := ex.widen()
	if rej == nil && len(ex.pools) == 0 && len(permitted) > 0 {
		rej = endpointNotSupported()
	}
	if rej != nil {
		if ex.untold = slices.ContainsFunc(permitted, ex.mayBeOffered); !ex.untold {
			return rej
		}
		ex.pools = permitted
	}
	return ex.mayGoOn(ex.pools)
}

// awaitOffers refuses for the moment what nobody can send anywhere before the workers
// have said what they offer: when the gateway or they have just started.
func (ex *exchange) awaitOffers(*fasthttp.RequestCtx) *rejection {
	if !ex.untold {
		return nil
	}
	return unavailable("the workers have not said yet whether they offer this endpoint; try again", 5*time.Second)
}

func endpointNotSupported() *rejection {
	return &rejection{
		status: fasthttp.StatusNotFound, kind: wire.TypeInvalid, code: "endpoint_not_supported",
		message: "the model does not offer this endpoint; use another endpoint or model", outcome: tenancy.OutcomeRejected,
	}
}
