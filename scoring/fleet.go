package scoring

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// ErrNoWorker says that no worker in the permitted pools serves the model.
var ErrNoWorker = errors.New("no worker in the permitted pools serves the model")

// ErrNotReady says that workers serve the model, but none can take the request:
// all are not ready or excluded.
var ErrNotReady = errors.New("no worker that serves the model is ready")

// TooLong says that no worker of the permitted pools that serves the model has room for a
// request of this Length, ready or not, by what they say themselves.
type TooLong struct {
	// Longest is the most tokens that one of them has room for.
	Longest int
}

func (e *TooLong) Error() string {
	return fmt.Sprintf("the longest context of the workers that serve the model is %d tokens", e.Longest)
}

// Fleet is the set of workers and everything known of them. Make it with
// [NewFleet].
//
// Locks are taken in the order Fleet.mu, view.mu, shard.mu. The work that grows
// with a prompt (hashing, look-up) or with a cache (applying events, clearing a
// view) is done without Fleet.mu.
type Fleet struct {
	cfg Config
	idx index
	// scratch holds *scratch, prepared *Prepared.
	scratch, prepared sync.Pool
	// room is who is told of room; see OnRoom.
	room atomic.Pointer[func(pool string)]

	// mu protects all that follows, the load and the prediction of every
	// worker, and the allocation of the index's columns.
	mu       sync.Mutex
	rng      *rand.Rand
	lastID   WorkerID
	workers  []*worker // in the order they were added
	byID     map[WorkerID]*worker
	pools    map[string]*pool
	soon     speculation
	ring     predictions
	errors   recentErrors
	inFlight int
	stats    Stats
}

// NewFleet returns an empty fleet. It panics if cfg does not validate, so call
// [Config.Validate] on a configuration that comes from outside.
func NewFleet(cfg Config) *Fleet {
	if err := cfg.Validate(); err != nil {
		panic("BUG: NewFleet with an invalid configuration: " + err.Error())
	}
	f := &Fleet{
		cfg:   cfg,
		rng:   rand.New(rand.NewPCG(cfg.Seed, 0x5167)),
		byID:  make(map[WorkerID]*worker),
		pools: make(map[string]*pool),
		ring:  predictions{records: make([]PredictionRecord, cfg.Predictions)},
	}
	f.soon = speculation{
		idx: &f.idx, ttl: cfg.SpeculativeTTL, limit: cfg.SpeculativeKeys,
		more: make(map[expected]int),
	}
	f.scratch.New = func() any { return new(scratch) }
	f.prepared.New = func() any { return new(Prepared) }
	return f
}

// Add makes a worker known. It starts not ready, with an empty view and with
// what its pool has learned, even if a worker of the same name or address was
// there before. spec is copied.
func (f *Fleet) Add(now time.Time, spec WorkerSpec) (WorkerID, error) {
	if spec.Name == "" {
		return 0, errors.New("cannot add worker: it has no name")
	}
	if len(spec.Models) == 0 || slices.Contains(spec.Models, "") || slices.Contains(spec.Adapters, "") {
		return 0, fmt.Errorf("cannot add worker %q: it needs at least one model, and no empty name among them", spec.Name)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, w := range f.workers {
		if w.spec.Name == spec.Name && !w.retired {
			return 0, fmt.Errorf("cannot add worker %q: the name is taken by worker %d", spec.Name, w.id)
		}
	}
	p := f.pool(spec.Pool)
	f.lastID++
	spec.Models = slices.Clone(spec.Models)
	spec.Adapters = slices.Clone(spec.Adapters)
	w := &worker{id: f.lastID, spec: spec, reason: "not checked yet", added: now}
	w.meanDecode = firstDecode
	w.predictor.start(p)
	f.addView(w, 0)
	f.workers = append(f.workers, w)
	f.byID[w.id] = w
	return w.id, nil
}

// Remove forgets a worker: its view and its load go at once, and its id names
// nothing from then on. Reservations on it stay safe to finish.
func (f *Fleet) Remove(id WorkerID) {
	f.mu.Lock()
	w := f.byID[id]
	if w == nil {
		f.mu.Unlock()
		return
	}
	w.removed = true
	delete(f.byID, id)
	f.workers = slices.DeleteFunc(f.workers, func(o *worker) bool { return o == w })
	for _, v := range w.views {
		v.removed = true
		f.soon.dropColumn(v.col)
	}
	f.mu.Unlock()

	for _, v := range w.views {
		v.close()
	}

	f.mu.Lock()
	for _, v := range w.views {
		f.idx.freeColumn(v.col)
	}
	f.mu.Unlock()
	f.madeRoom(w.spec.Pool)
}

// SetReady says whether the worker may be picked, and why not. A worker that
// becomes ready again starts at its ordinary speed: what slowed it is over.
func (f *Fleet) SetReady(now time.Time, id WorkerID, ready bool, reason string) {
	f.change(id, func(w *worker) bool {
		if w.retired {
			return false
		}
		turned := ready != w.ready
		if ready && turned {
			w.predictor.logSpeed = 0
			w.readySince = now
		}
		w.ready, w.reason = ready, reason
		return turned
	})
}

// SetCapacity says how many blocks of how many tokens each rank of the worker
// has on its device. It bounds the worker's view; 0 blocks is unknown.
func (f *Fleet) SetCapacity(id WorkerID, blockSize, blocks int) {
	f.mu.Lock()
	w := f.byID[id]
	if w == nil {
		f.mu.Unlock()
		return
	}
	w.capacity, w.capacitySize = max(0, blocks), max(0, blockSize)
	w.known = false // what a request holds beyond its tokens is another part of a block
	views := slices.Clone(w.views)
	f.mu.Unlock()

	var st ApplyStats
	for _, v := range views {
		st.add(v.setCapacity(blockSize, blocks))
	}
	f.noteEvents(st)
	f.madeRoom(w.spec.Pool)
}

// ObserveLoad takes over the worker's own account of its load as of now, as a
// correction: what it shows beyond this process's own requests counts as work
// of others, with a weight that falls linearly to zero over Config.LoadStale.
// Values below zero count as zero, a KVUsage above 1 as 1.
func (f *Fleet) ObserveLoad(now time.Time, id WorkerID, l Load) {
	l.Running, l.Waiting, l.Ranks = max(0, l.Running), max(0, l.Waiting), min(max(0, l.Ranks), maxRanks)
	l.KVUsage = clamp(l.KVUsage, 0, 1)
	f.change(id, func(w *worker) bool {
		w.advance(now)
		w.workload.observe(now, l, f.cfg.LoadStale)
		if l.InterToken > 0 {
			w.interToken = l.InterToken.Seconds()
			w.gap = w.interToken
		}
		w.forward(now)
		w.occupancy.observe(now, l.KVUsage*w.room(), w.pending())
		return true
	})
}

// ApplyEvents applies a batch of cache events of one rank, in order. Events of
// a worker that is gone, or of a rank out of range, are ignored and counted so.
// evs is not retained.
func (f *Fleet) ApplyEvents(now time.Time, id WorkerID, rank int, evs []Event) ApplyStats {
	v := f.view(id, rank)
	if v == nil {
		st := ApplyStats{Ignored: len(evs)}
		f.noteEvents(st)
		return st
	}
	st := v.apply(evs)
	f.mu.Lock()
	if st.Cleared > 0 {
		f.forget(v)
	}
	f.stats.Events.add(st)
	f.mu.Unlock()
	if st.Cleared > 0 {
		f.madeRoom(v.pool)
	}
	return st
}

// ClearView empties the view of one rank, as when its engine restarted.
func (f *Fleet) ClearView(id WorkerID, rank int) {
	v := f.view(id, rank)
	if v == nil {
		return
	}
	v.clear()
	f.mu.Lock()
	f.forget(v)
	f.mu.Unlock()
	f.madeRoom(v.pool)
}

// forget drops what picks expect to be in a view that was cleared. A view that
// was closed meanwhile has given its column up. It requires that f.mu is held.
func (f *Fleet) forget(v *view) {
	if !v.removed {
		f.soon.dropColumn(v.col)
	}
}

// SetView says how far the view of one rank can be trusted. Without it, a view
// counts as not reporting.
func (f *Fleet) SetView(id WorkerID, rank int, s ViewState) {
	if v := f.view(id, rank); v != nil {
		v.setState(s)
		f.madeRoom(v.pool)
	}
}

// view returns the view of a rank, made on first use; nil when the worker is
// gone or the rank out of range.
func (f *Fleet) view(id WorkerID, rank int) *view {
	f.mu.Lock()
	defer f.mu.Unlock()
	w := f.byID[id]
	if w == nil || rank < 0 || rank >= maxRanks {
		return nil
	}
	for _, v := range w.views {
		if v.rank == rank {
			return v
		}
	}
	return f.addView(w, rank)
}

// addView gives a worker a view of a further rank. It requires that f.mu is
// held.
func (f *Fleet) addView(w *worker, rank int) *view {
	v := newView(&f.idx, w.spec.Models[0], rank, f.idx.newColumn(), &f.cfg)
	v.pool = w.spec.Pool
	if w.capacity > 0 {
		v.setCapacity(w.capacitySize, w.capacity)
	}
	// Picks read the old slice without the lock, so it is never written to.
	w.views = append(slices.Clip(w.views), v)
	return v
}

func (f *Fleet) noteEvents(st ApplyStats) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.stats.Events.add(st)
}
