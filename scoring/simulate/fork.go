package simulate

import (
	"math"
	"slices"
	"time"

	"github.com/sluicegate/sluice/scoring/simworker/engine"
)

// never is later than everything.
const never = time.Duration(math.MaxInt64)

// fork is a copy of a fleet with shared cores that runs on without further
// requests.
type fork struct {
	engines []*engine.Engine
	fixed   []time.Duration // part of a step, by worker
	cores   cores
	now     time.Duration
}

func newFork(m *sim) *fork {
	f := &fork{now: m.now, cores: m.cores}
	f.cores.jobs = slices.Clone(m.cores.jobs)
	for _, n := range m.nodes {
		f.engines = append(f.engines, n.eng.Clone())
		f.fixed = append(f.fixed, n.fixed)
	}
	return f
}

// firstToken adds p to worker w, runs until its first token and returns when that
// comes.
func (f *fork) firstToken(w int, p *engine.Prepared) time.Duration {
	id, err := f.engines[w].AddPrepared(epoch.Add(f.now), p)
	if err != nil {
		panic("BUG: an engine refuses a request that it prepared: " + err.Error())
	}
	if !f.cores.busy(w) {
		f.begin(w)
	}
	for {
		at, next, ends, ok := f.cores.next()
		if !ok {
			panic("BUG: a request waits and no step is under way")
		}
		f.now = at
		if !ends {
			f.cores.advance(at)
			continue
		}
		f.cores.leave(at, next)
		for _, out := range f.engines[next].End(epoch.Add(at)).Outputs {
			if next == w && out.ID == id {
				return at
			}
		}
		f.begin(next)
	}
}

// begin starts a worker's next step, if there is anything to do.
func (f *fork) begin(w int) {
	if st, ok := f.engines[w].Begin(epoch.Add(f.now)); ok {
		f.cores.enter(f.now, w, f.fixed[w], st.Duration)
	}
}
