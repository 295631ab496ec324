package simulate

import (
	"math"
	"time"

	"github.com/sluicegate/sluice/scoring/simworker/engine"
)

// oracle chooses workers by what the simulation knows and a router can't: the
// engines' queues, caches and steps, and how long each answer under way is. It
// knows no request that has not arrived.
type oracle struct {
	sim  *sim
	kind oracleKind
	// ahead are the engines as they will be; nil with shared cores, where no
	// engine can be told alone.
	ahead []*engine.Ahead
	cost  []float64 // scratch
	drawn uint64
	best  []int // scratch
}

func newOracle(m *sim, kind oracleKind) (*oracle, error) {
	o := &oracle{sim: m, kind: kind, cost: make([]float64, len(m.nodes))}
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

// choose returns the worker that costs least, by chance among equals.
func (o *oracle) choose(p *engine.Prepared) int {
	least := math.Inf(1)
	for w := range o.cost {
		at, _ := o.firstToken(w, p)
		o.cost[w] = float64(at)
		least = min(least, o.cost[w])
	}
	o.best = o.best[:0]
	for w, c := range o.cost {
		if c == least {
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
// and nothing is sent after it, and what it finds cached.
func (o *oracle) firstToken(w int, p *engine.Prepared) (at time.Duration, cached int) {
	if o.ahead == nil {
		return newFork(o.sim).firstToken(w, p)
	}
	t, cached, err := o.ahead[w].FirstToken(o.sim.clock(), p)
	if err != nil {
		panic("BUG: an engine refuses a request that it prepared: " + err.Error())
	}
	return t.Sub(epoch), cached
}
