package simulate

import (
	"errors"
	"slices"
	"time"

	"github.com/sluicegate/sluice/scoring/simworker/engine"
)

// oracle chooses workers by what the simulation knows and a router can't: the
// engines' queues, caches and steps, and how long each answer under way is.
//
// The greedy one takes the least true TTFT, and knows no request that has not
// arrived. That is the best for the request itself and not for all: it neither
// weighs what the request delays and evicts, nor what its blocks are worth later.
// So it is a yardstick and no bound. The one with foresight does weigh that, over
// the requests that come next; see foreseen.
type oracle struct {
	sim  *sim
	kind oracleKind
	// ahead are the engines as they will be; nil with shared cores, where no
	// engine can be told alone.
	ahead []*engine.Ahead
	next  foreseen
	ttft  []time.Duration // scratch
	cost  []time.Duration // scratch
	best  []int           // scratch
	drawn uint64
}

func newOracle(m *sim, kind oracleKind) (*oracle, error) {
	switch {
	case m.cfg.QoS != nil:
		return nil, errors.New("an oracle chooses for requests that arrive, and with a queue they wait first")
	case len(m.pools) > 1:
		return nil, errors.New("an oracle chooses among all workers, and there are several pools")
	}
	n := len(m.nodes)
	o := &oracle{sim: m, kind: kind, ttft: make([]time.Duration, n), cost: make([]time.Duration, n)}
	if kind == foresight {
		if err := o.next.init(m); err != nil {
			return nil, err
		}
	}
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

// choose returns the worker for request i that costs least, by chance among
// equals. For the greedy oracle the cost is the time of its first token.
func (o *oracle) choose(i int, p *engine.Prepared) int {
	for w := range o.ttft {
		o.ttft[w] = o.firstToken(w, p)
	}
	copy(o.cost, o.ttft)
	if o.kind == foresight {
		o.next.weigh(o, i, p)
	}
	least := slices.Min(o.cost)
	o.best = o.best[:0]
	for w, t := range o.cost {
		if t == least {
			o.best = append(o.best, w)
		}
	}
	o.drawn++
	return o.best[mix(o.sim.cfg.Seed+o.drawn)%uint64(len(o.best))]
}

// sent tells the oracle that a request went to a worker.
func (o *oracle) sent(w int, p *engine.Prepared) {
	if o.ahead != nil {
		add(o.ahead[w], o.sim.clock(), p)
	}
}

// firstToken is when the first token of p comes if it is sent to worker w now
// and nothing is sent after it.
func (o *oracle) firstToken(w int, p *engine.Prepared) time.Duration {
	if o.ahead == nil {
		return newFork(o.sim).firstToken(w, p)
	}
	return soonest(o.ahead[w], o.sim.clock(), p).Sub(epoch)
}

// add and soonest are Ahead's Add and FirstToken for requests that are known to
// fit.
func add(a *engine.Ahead, now time.Time, p *engine.Prepared) {
	if err := a.Add(now, p); err != nil {
		panic("BUG: an engine refuses a request that it prepared: " + err.Error())
	}
}

func soonest(a *engine.Ahead, now time.Time, p *engine.Prepared) time.Time {
	t, err := a.FirstToken(now, p)
	if err != nil {
		panic("BUG: an engine refuses a request that it prepared: " + err.Error())
	}
	return t
}
