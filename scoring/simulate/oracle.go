package simulate

import (
	"math"
	"slices"
	"time"

	"github.com/sluicegate/sluice/scoring/simworker/engine"
)

// oracle chooses workers by what the simulation knows and a router can't: the
// engines' queues, caches and steps, and how long each answer under way is. It
// knows no request that has not arrived.
type oracle struct {
	sim  *sim
	kind oracleKind
	ties uint64
}

func newOracle(m *sim, kind oracleKind) *oracle { return &oracle{sim: m, kind: kind} }

// sent tells the oracle that a request went to a worker.
func (o *oracle) sent(int, *engine.Prepared) {}

// choose returns the worker on which the request's first token comes soonest.
func (o *oracle) choose(p *engine.Prepared) int {
	least := time.Duration(math.MaxInt64)
	var best []int
	for w := range o.sim.nodes {
		switch t := o.firstToken(w, p); {
		case t < least:
			least, best = t, append(best[:0], w)
		case t == least:
			best = append(best, w)
		}
	}
	o.ties++
	return best[mix(o.sim.cfg.Seed+o.ties)%uint64(len(best))]
}

// firstToken is when the first token of p comes if it is sent to worker w now
// and nothing is sent after it.
func (o *oracle) firstToken(w int, p *engine.Prepared) time.Duration {
	m := o.sim
	f := fork{now: m.now, cores: cores{limit: m.cores.limit, at: m.cores.at, jobs: slices.Clone(m.cores.jobs)}}
	f.engines = make([]*engine.Engine, len(m.nodes))
	f.ends = make([]time.Duration, len(m.nodes))
	for i, n := range m.nodes {
		f.ends[i] = never
		if i != w && m.cores.limit == 0 {
			continue // it has no influence
		}
		f.engines[i] = n.eng.Clone()
		if n.busy && m.cores.limit == 0 {
			f.ends[i] = n.stepEnds
		}
	}
	f.slow = make([]float64, len(m.nodes))
	for i, n := range m.nodes {
		f.slow[i] = n.slow
	}
	id, err := f.engines[w].AddPrepared(epoch.Add(m.now), p)
	if err != nil {
		panic("BUG: an engine refuses a request that it prepared: " + err.Error())
	}
	if !m.nodes[w].busy {
		f.begin(w)
	}
	return f.until(w, id)
}

// never is later than everything.
const never = time.Duration(math.MaxInt64)

// fork is a copy of the engines that runs on without further requests.
type fork struct {
	engines []*engine.Engine // nil for those without influence
	slow    []float64
	ends    []time.Duration // of the steps under way, without shared cores
	cores   cores
	now     time.Duration
}

func (f *fork) begin(w int) {
	st, ok := f.engines[w].Begin(epoch.Add(f.now))
	if !ok {
		return
	}
	d := stretch(st.Duration, f.slow[w])
	if f.cores.limit > 0 {
		f.cores.enter(w, d)
	} else {
		f.ends[w] = f.now + d
	}
}

// until runs on until worker w gives the first token of id, and returns when.
func (f *fork) until(w int, id engine.ID) time.Duration {
	for {
		at, next, ok := f.cores.next(f.now)
		if f.cores.limit == 0 {
			at, next, ok = f.ends[w], w, f.ends[w] != never
		}
		if !ok {
			panic("BUG: a request waits and no step is under way")
		}
		f.cores.advance(at)
		f.cores.leave(next)
		f.now, f.ends[next] = at, never
		for _, out := range f.engines[next].End(epoch.Add(at)).Outputs {
			if next == w && out.ID == id {
				return at
			}
		}
		f.begin(next)
	}
}
