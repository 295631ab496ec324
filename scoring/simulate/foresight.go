package simulate

import (
	"errors"
	"slices"
	"time"

	"github.com/sluicegate/sluice/scoring/simworker/engine"
)

const (
	// seen is how many requests ahead the oracle with foresight looks, for each
	// worker of the fleet.
	seen = 4
	// tried is how many workers it tries, those with the least TTFT.
	tried = 4
)

// foreseen is what the oracle with foresight knows of the requests to come. It
// tries a request on several workers: for each it plays the next arrivals, which
// the greedy oracle routes, and adds up the times to first token. That is one
// step of rollout with the greedy oracle as its policy (Bertsekas: Rollout
// algorithms for stochastic scheduling problems, 1999), over the true future.
type foreseen struct {
	sim *sim
	// order is the plan's requests as they arrive, place where each of them is in
	// it.
	order, place []int
	// prepared are those that were looked at and have not arrived.
	prepared map[int]*engine.Prepared
	text     []uint32 // scratch
	workers  []int    // scratch
}

// init fails where the future depends on what is chosen.
func (f *foreseen) init(m *sim) error {
	switch {
	case m.cores.limit > 0:
		return errors.New("oracle-foresight: workers share cores, and it can look ahead only with a machine for each")
	case m.plan.Streams > 0:
		return errors.New("oracle-foresight: arrivals of a closed loop depend on its choices, so it can't know them")
	}
	f.sim = m
	n := len(m.plan.Requests)
	f.order, f.place = make([]int, n), make([]int, n)
	f.prepared = make(map[int]*engine.Prepared)
	for i := range m.plan.Requests {
		if m.plan.Requests[i].Turn {
			return errors.New("oracle-foresight: arrivals of later turns depend on its choices, so it can't know them")
		}
		f.order[i] = i
	}
	slices.SortStableFunc(f.order, func(a, b int) int {
		return int(m.plan.Requests[a].At - m.plan.Requests[b].At)
	})
	for k, i := range f.order {
		f.place[i] = k
	}
	return nil
}

// weigh replaces the costs of request i, which are its own TTFT, by the sums over
// it and the next requests; those of workers that it does not try by never.
func (f *foreseen) weigh(o *oracle, i int, p *engine.Prepared) {
	delete(f.prepared, i)
	f.workers = f.workers[:0]
	for w := range o.cost {
		f.workers = append(f.workers, w)
		o.cost[w] = never
	}
	slices.SortStableFunc(f.workers, func(a, b int) int { return int(o.ttft[a] - o.ttft[b]) })
	k := f.place[i] + 1
	next := f.order[k:min(len(f.order), k+seen*len(o.cost))]
	for _, w := range f.workers[:min(tried, len(f.workers))] {
		o.cost[w] = o.ttft[w] - f.sim.now + f.play(o.ahead, w, p, next)
	}
}

// play sends p to worker w now, and what comes next to where its first token
// comes soonest. It returns the sum of the times to first token of the latter.
func (f *foreseen) play(ahead []*engine.Ahead, w int, p *engine.Prepared, next []int) time.Duration {
	copies := make([]*engine.Ahead, len(ahead))
	for i, a := range ahead {
		copies[i] = a.Clone()
	}
	add(copies[w], f.sim.clock(), p)
	sum := time.Duration(0)
	for _, i := range next {
		at := epoch.Add(f.sim.plan.Requests[i].At)
		q := f.prepare(i)
		var best *engine.Ahead
		var least time.Time
		for _, c := range copies {
			if t := soonest(c, at, q); best == nil || t.Before(least) {
				best, least = c, t
			}
		}
		add(best, at, q)
		sum += least.Sub(at)
	}
	return sum
}

// prepare prepares a request to come, once.
func (f *foreseen) prepare(i int) *engine.Prepared {
	if p := f.prepared[i]; p != nil {
		return p
	}
	f.text = f.text[:0]
	for _, s := range f.sim.plan.Requests[i].Prompt {
		f.text = s.append(f.text)
	}
	p := f.sim.prepare(i, f.text)
	f.prepared[i] = p
	return p
}
