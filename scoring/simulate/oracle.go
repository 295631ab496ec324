package simulate

import (
	"time"

	"github.com/sluicegate/sluice/scoring/simworker/engine"
)

// oracle chooses workers by what the simulation knows and a router can't: the
// engines' queues, caches and steps, and how long each answer under way is. It
// knows no request that has not arrived.
//
// It takes the least true TTFT. That is the best for the request itself and not
// for all: it neither weighs what the request delays and evicts, nor what its
// blocks are worth later. So it is a yardstick and no bound.
type oracle struct {
	sim *sim
	// ahead are the engines as they will be; nil with shared cores, where no
	// engine can be told alone.
	ahead []*engine.Ahead
	ttft  []time.Duration // scratch
	best  []int           // scratch
	drawn uint64
}

func newOracle(m *sim) (*oracle, error) {
	o := &oracle{sim: m, ttft: make([]time.Duration, len(m.nodes))}
	if m.cores.limit > 0 {
		return o, nil
	}
	for i := range m.nodes {
		a, err := engine.NewAhead(m.cfg.engine(i))
		if err != nil {
			return nil, err
		}
		o.ahead = append(o.ahead, a)
	}
	return o, nil
}

// choose returns the worker on which the first token of p comes soonest, by
// chance among equals.
func (o *oracle) choose(p *engine.Prepared) int {
	least := never
	for w := range o.ttft {
		o.ttft[w] = o.firstToken(w, p)
		least = min(least, o.ttft[w])
	}
	o.best = o.best[:0]
	for w, t := range o.ttft {
		if t == least {
			o.best = append(o.best, w)
		}
	}
	o.drawn++
	return o.best[mix(o.sim.cfg.Seed+o.drawn)%uint64(len(o.best))]
}

// sent tells the oracle that a request went to a worker.
func (o *oracle) sent(w int, p *engine.Prepared) {
	if o.ahead == nil {
		return
	}
	if err := o.ahead[w].Add(o.sim.clock(), p); err != nil {
		panic("BUG: an engine refuses a request that it prepared: " + err.Error())
	}
}

// firstToken is when the first token of p comes if it is sent to worker w now
// and nothing is sent after it.
func (o *oracle) firstToken(w int, p *engine.Prepared) time.Duration {
	if o.ahead == nil {
		return newFork(o.sim).firstToken(w, p)
	}
	at, err := o.ahead[w].FirstToken(o.sim.clock(), p)
	if err != nil {
		panic("BUG: an engine refuses a request that it prepared: " + err.Error())
	}
	return at.Sub(epoch)
}
