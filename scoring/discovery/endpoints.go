package discovery

import (
	"context"
	"encoding/json"
)

const (
	// maxDescription bounds /openapi.json, which takes a few hundred KiB for one
	// engine.
	maxDescription = 4 << 20
	// maxPaths is how many paths a PathSet has room for.
	maxPaths = 31
	// maxPathTries is how often in a row the description is asked for that doesn't come.
	maxPathTries = 3
	// pathsKnown marks a worker that has described itself.
	pathsKnown = 1 << maxPaths
)

// PathSet is a set of the paths in [Config.Paths], by their index.
type PathSet uint32

// Has tells whether the i-th path is in the set.
func (s PathSet) Has(i int) bool { return s&(1<<i) != 0 }

// Offered returns which of Config.Paths every ready worker of a pool has a POST route
// for, or every worker where none is ready. It is not known if one of them has not said,
// or there is none; awaited says that one may still, as it was not asked yet or has not
// answered.
func (c *Checker) Offered(pool string) (paths PathSet, known, awaited bool) {
	c.mu.RLock()
	defer c.mu.RUnlock()
	ready, all := ^uint32(0), ^uint32(0)
	anyReady, any := false, false
	readyAwaited, allAwaited := false, false
	for _, m := range c.members {
		if m.w.Pool != pool {
			continue
		}
		offers := m.offers.Load()
		all, any, allAwaited = all&offers, true, allAwaited || !m.asked.Load()
		if m.ready.Load() {
			ready, anyReady, readyAwaited = ready&offers, true, readyAwaited || !m.asked.Load()
		}
	}
	if anyReady {
		all, allAwaited = ready, readyAwaited
	}
	if !any || all&pathsKnown == 0 {
		return 0, false, !any || allAwaited
	}
	return PathSet(all &^ pathsKnown), true, false
}

// learnPaths asks a worker for the description of its routes, once for each version
// and process. What can't be read now but was known before is kept. It reports whether
// the answer will do until the next regular look: an engine makes the document when it
// is first asked for it, which can take longer than the call may.
func (m *member) learnPaths(ctx context.Context) bool {
	if len(m.c.cfg.Paths) == 0 {
		return true
	}
	m.mu.Lock()
	version := m.status.Version
	m.mu.Unlock()
	if m.offers.Load()&pathsKnown != 0 && version == m.described {
		return true
	}
	body, err := m.api.get(ctx, "/openapi.json", maxDescription)
	if err != nil && isTransport(err) {
		m.pathTries++
		enough := m.pathTries%maxPathTries == 0
		if enough {
			m.asked.Store(true)
		}
		return enough
	}
	var offers uint32
	if err == nil {
		offers = describedPaths(body, m.c.cfg.Paths)
	}
	m.described, m.pathTries = version, 0
	m.setOffers(offers)
	m.asked.Store(true)
	return true
}

// setOffers takes over what the worker has routes for; 0 is not known.
func (m *member) setOffers(offers uint32) {
	if m.offers.Swap(offers) == offers {
		return
	}
	var paths []string
	for i, path := range m.c.cfg.Paths {
		if offers&(1<<i) != 0 {
			paths = append(paths, path)
		}
	}
	m.mu.Lock()
	m.status.Endpoints = paths
	m.mu.Unlock()
	m.c.log.Info("worker's endpoints changed", "worker", m.w.Name, "endpoints", paths)
}

// describedPaths reads an OpenAPI document. One that has none of the paths describes
// something else, so that nothing is known.
func describedPaths(body []byte, paths []string) uint32 {
	var api struct {
		Paths map[string]map[string]json.RawMessage `json:"paths"`
	}
	if json.Unmarshal(body, &api) != nil {
		return 0
	}
	var offers uint32
	for i, path := range paths {
		if _, ok := api.Paths[path]["post"]; ok {
			offers |= 1<<i | pathsKnown
		}
	}
	return offers
}
