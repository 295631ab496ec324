package scoring

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"time"
)

// ErrNoWorker says that no worker in the permitted pools serves the model.
var ErrNoWorker = errors.New("no worker in the permitted pools serves the model")

// ErrNotReady says that workers serve the model, but none can take the request:
// all are not ready or excluded.
var ErrNotReady = errors.New("no worker that serves the model is ready")

// Fleet is the set of workers and everything known of them. Make it with
// [NewFleet].
type Fleet struct {
	cfg Config

	// mu protects all that follows, and the load fields of every worker.
	mu      sync.Mutex
	rng     *rand.Rand
	lastID  WorkerID
	workers []*worker // in the order they were added
	stats   Stats
}

// worker is one member of a fleet. Its fields are guarded by Fleet.mu.
type worker struct {
	id       WorkerID
	spec     WorkerSpec
	ready    bool
	reason   string
	removed  bool
	inFlight int
	ahead    int
	load     Load
	loadAt   time.Time
	picks    int64
}

// NewFleet returns an empty fleet. It panics if cfg does not validate, so call
// [Config.Validate] on a configuration that comes from outside.
func NewFleet(cfg Config) *Fleet {
	if err := cfg.Validate(); err != nil {
		panic("BUG: NewFleet with an invalid configuration: " + err.Error())
	}
	return &Fleet{cfg: cfg, rng: rand.New(rand.NewPCG(cfg.Seed, 0))}
}

// Add makes a worker known. It starts not ready and with an empty view, even
// if a worker of the same name or address was there before.
func (f *Fleet) Add(now time.Time, spec WorkerSpec) (WorkerID, error) {
	if spec.Name == "" {
		return 0, errors.New("cannot add worker: it has no name")
	}
	if len(spec.Models) == 0 {
		return 0, fmt.Errorf("cannot add worker %q: it serves no model", spec.Name)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, w := range f.workers {
		if w.spec.Name == spec.Name {
			return 0, fmt.Errorf("cannot add worker %q: the name is taken", spec.Name)
		}
	}
	f.lastID++
	spec.Models = slices.Clone(spec.Models)
	spec.Adapters = slices.Clone(spec.Adapters)
	f.workers = append(f.workers, &worker{id: f.lastID, spec: spec, reason: "not checked yet"})
	return f.lastID, nil
}

// Remove forgets a worker: its view and its load go at once. Reservations on it
// stay safe to finish.
func (f *Fleet) Remove(id WorkerID) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for i, w := range f.workers {
		if w.id == id {
			w.removed = true
			f.workers = slices.Delete(f.workers, i, i+1)
			return
		}
	}
}

// SetReady says whether the worker may be picked, and why not.
func (f *Fleet) SetReady(now time.Time, id WorkerID, ready bool, reason string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if w := f.find(id); w != nil {
		w.ready, w.reason = ready, reason
	}
}

// SetCapacity says how many blocks of how many tokens each rank of the worker
// has on its device. It bounds the worker's view.
func (f *Fleet) SetCapacity(id WorkerID, blockSize, blocks int) {}

// ObserveLoad takes the worker's own account of its load as of now.
func (f *Fleet) ObserveLoad(now time.Time, id WorkerID, l Load) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if w := f.find(id); w != nil {
		w.load, w.loadAt = l, now
	}
}

// ApplyEvents applies a batch of cache events of one rank, in order.
func (f *Fleet) ApplyEvents(now time.Time, id WorkerID, rank int, evs []Event) ApplyStats {
	return ApplyStats{Ignored: len(evs)}
}

// ClearView empties the view of one rank.
func (f *Fleet) ClearView(id WorkerID, rank int) {}

// SetView says how far the view of one rank can be trusted.
func (f *Fleet) SetView(id WorkerID, rank int, s ViewState) {}

// Stats returns the fleet's totals.
func (f *Fleet) Stats() Stats {
	f.mu.Lock()
	defer f.mu.Unlock()
	st := f.stats
	st.Workers = len(f.workers)
	return st
}

// Snapshot returns the state of every worker, in the order they were added.
func (f *Fleet) Snapshot(now time.Time) []WorkerSnapshot {
	f.mu.Lock()
	defer f.mu.Unlock()
	out := make([]WorkerSnapshot, 0, len(f.workers))
	for _, w := range f.workers {
		out = append(out, WorkerSnapshot{
			Worker: w.info(), Models: slices.Clone(w.spec.Models),
			Ready: w.ready, Reason: w.reason, InFlight: w.inFlight, Ahead: w.ahead,
			Load: w.load, LoadObserved: w.loadAt, Picks: w.picks,
		})
	}
	return out
}

// Predictions returns the recent picks, oldest first.
func (f *Fleet) Predictions() []PredictionRecord { return nil }

func (f *Fleet) find(id WorkerID) *worker {
	for _, w := range f.workers {
		if w.id == id {
			return w
		}
	}
	return nil
}

func (w *worker) info() WorkerInfo {
	return WorkerInfo{ID: w.id, Name: w.spec.Name, Pool: w.spec.Pool, Address: w.spec.Address}
}

func (w *worker) serves(model string) bool {
	return slices.Contains(w.spec.Models, model) || slices.Contains(w.spec.Adapters, model)
}
