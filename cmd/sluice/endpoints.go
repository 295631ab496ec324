package main

import (
	"fmt"
	"maps"
	"slices"

	"github.com/sluicegate/sluice/gateway"
	"github.com/sluicegate/sluice/gateway/wire"
	"github.com/sluicegate/sluice/scoring/discovery"
)

// endpointNames are the operations that pools can offer, by the policy format's names.
func endpointNames() []string {
	var names []string
	for _, op := range wire.Operations() {
		names = append(names, op.String())
	}
	return names
}

// endpoints checks the list of what a pool offers.
func (v *validator) endpoints(at string, list []string) {
	if list != nil && len(list) == 0 {
		v.errorf(at, "is empty, should list what the pool's workers have routes for, such as chat, or be left out, so that they are asked")
	}
	names := endpointNames()
	for i, name := range list {
		v.oneOf(fmt.Sprintf("%s[%d]", at, i), name, names...)
	}
	v.unique(at, list)
}

// withEndpoints are the pools with what the configuration in force says of them: what they offer, what their
// engines keep apart, how they schedule.
func withEndpoints(pools map[string]gateway.Pool, cfg *Config) map[string]gateway.Pool {
	pools = maps.Clone(pools)
	for i := range cfg.Pools {
		p := &cfg.Pools[i]
		gp := pools[p.Name]
		gp.Endpoints, gp.Salted, gp.PriorityScheduling = nil, endpointsNamed(p.CacheSalt), p.PriorityScheduling
		if p.Endpoints != nil {
			set := endpointsNamed(p.Endpoints)
			gp.Endpoints = &set
		}
		pools[p.Name] = gp
	}
	return pools
}

// endpointsNamed is the set of the operations with the given names; "*" are all.
func endpointsNamed(names []string) (set wire.Endpoints) {
	for _, op := range wire.Operations() {
		if slices.Contains(names, op.String()) || slices.Contains(names, "*") {
			set |= wire.EndpointsOf(op)
		}
	}
	return set
}

// offers tells the gateway what workers say that they offer. It implements
// gateway.Offers.
type offers struct{ checker *discovery.Checker }

// PoolEndpoints implements gateway.Offers. The checker's paths are those of
// gateway.Endpoints, in their order.
func (o offers) PoolEndpoints(pool string) (set wire.Endpoints, known, awaited bool) {
	paths, known, awaited := o.checker.Offered(pool)
	if !known {
		return 0, false, awaited
	}
	for i, e := range offerable {
		if paths.Has(i) {
			set |= wire.EndpointsOf(e.Operation)
		}
	}
	return set, true, false
}

// offerable is gateway.Endpoints, which does not change.
var offerable = gateway.Endpoints()
