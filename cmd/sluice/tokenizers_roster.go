package main

import (
	"slices"
	"sync"
	"time"

	"github.com/sluicegate/sluice/scoring"
	"github.com/sluicegate/sluice/scoring/tokenize"
)

// rosterAge is how old the list of ready workers may be. A worker that fails
// meanwhile is found out by being asked.
const rosterAge = 500 * time.Millisecond

// roster lists the ready workers by model, for those who ask them for token
// ids. It is kept for a moment, since a list of all workers is too dear to be
// made for each request.
type roster struct {
	fleet *scoring.Fleet
	keys  map[string]string // API keys by pool

	mu      sync.Mutex // protects what follows
	made    time.Time
	byModel map[string][]rosterEntry
	seen    map[scoring.WorkerID]*presence
}

// rosterEntry is a ready worker.
type rosterEntry struct {
	// incarnation changes when the worker was away: it may have come back with
	// another model or version.
	incarnation              uint64
	name, pool, address, key string
}

// presence counts how often a worker came.
type presence struct {
	ready bool
	times uint64
}

func newRoster(fleet *scoring.Fleet, keys map[string]string) *roster {
	return &roster{fleet: fleet, keys: keys, seen: make(map[scoring.WorkerID]*presence)}
}

func (e *rosterEntry) target(model string) tokenize.Target {
	return tokenize.Target{URL: e.address, Model: model, APIKey: e.key}
}

// ready are the ready workers that serve the model. The list does not change.
func (r *roster) ready(model string) []rosterEntry {
	r.mu.Lock()
	defer r.mu.Unlock()
	if now := time.Now(); r.byModel == nil || now.Sub(r.made) >= rosterAge {
		r.make(now)
	}
	return r.byModel[model]
}

// within are the entries whose worker stands in one of the pools.
func within(pools []string, all []rosterEntry) []rosterEntry {
	if !slices.ContainsFunc(all, func(e rosterEntry) bool { return !slices.Contains(pools, e.pool) }) {
		return all // as for most requests
	}
	var out []rosterEntry
	for _, e := range all {
		if slices.Contains(pools, e.pool) {
			out = append(out, e)
		}
	}
	return out
}

// make lists the workers. It requires that mu is held.
func (r *roster) make(now time.Time) {
	r.made, r.byModel = now, make(map[string][]rosterEntry)
	there := make(map[scoring.WorkerID]bool)
	for _, w := range r.fleet.Snapshot(now) {
		id := w.Worker.ID
		there[id] = true
		p := r.seen[id]
		if p == nil {
			p = &presence{}
			r.seen[id] = p
		}
		if w.Ready && !p.ready {
			p.times++
		}
		p.ready = w.Ready
		if !w.Ready {
			continue
		}
		e := rosterEntry{
			incarnation: uint64(id)<<32 | p.times,
			name:        w.Worker.Name, pool: w.Worker.Pool, address: w.Worker.Address, key: r.keys[w.Worker.Pool],
		}
		for _, names := range [][]string{w.Models, w.Adapters} {
			for _, name := range names {
				r.byModel[name] = append(r.byModel[name], e)
			}
		}
	}
	for id := range r.seen {
		if !there[id] {
			delete(r.seen, id)
		}
	}
}

// addresses maps the address of each worker that was seen to its name.
func (r *roster) addresses() map[string]string {
	out := make(map[string]string)
	for _, w := range r.fleet.Snapshot(time.Now()) {
		out[w.Worker.Address] = w.Worker.Name
	}
	return out
}
