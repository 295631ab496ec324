package redis

import (
	"cmp"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sluicegate/sluice/ratelimit"
)

// TestReplicasConserve: whatever several replicas do at once, in the end exactly what
// was charged is gone.
func TestReplicasConserve(t *testing.T) {
	w := newWorld(t, shared(t))
	if served := conserve(t, w, 60, func(*replica) {}); served < 500 {
		t.Errorf("%d requests were admitted", served)
	}
}

// TestReplicasConserveThroughFaults does so with questions and answers that are lost
// or late.
func TestReplicasConserveThroughFaults(t *testing.T) {
	w := newWorld(t, shared(t))
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	var mu sync.Mutex
	var all []*faulty
	w.wrap = func(c conn) conn {
		mu.Lock()
		defer mu.Unlock()
		f := &faulty{conn: c, rng: rand.New(rand.NewPCG(seed, uint64(len(all))))}
		all = append(all, f)
		return f
	}
	served := conserve(t, w, 1000, func(*replica) {
		mu.Lock()
		defer mu.Unlock()
		for _, f := range all {
			f.heal()
		}
	})
	if served < 100 {
		t.Errorf("%d requests were admitted", served)
	}
}

// conserve has four replicas reserve, use, settle and cancel, and compares what is
// left with what was charged. heal is called before the end.
func conserve(t *testing.T, w *world, rounds int, heal func(*replica)) (served int64) {
	const replicas, workers = 4, 8
	const limit, slots = 100_000, 20
	claims := []ratelimit.Claim{bucket("b", time.Hour, limit, 0), month("m", limit, 0), slot("s", slots)}
	var charged, inFlight, most, admitted atomic.Int64
	rs := make([]*replica, replicas)
	for i := range rs {
		rs[i] = w.replica()
	}
	var wg sync.WaitGroup
	for i := range replicas * workers {
		wg.Go(func() {
			rng := rand.New(rand.NewPCG(uint64(i), 5))
			r := rs[i%replicas]
			for range rounds {
				mine := slices.Clone(claims)
				mine[0].Amount, mine[1].Amount = rng.Int64N(60), rng.Int64N(60)
				res, failures := r.reserve(mine...)
				if len(failures) > 0 {
					time.Sleep(time.Duration(rng.Int64N(int64(2 * time.Millisecond))))
					continue
				}
				admitted.Add(1)
				if n := inFlight.Add(1); n > most.Load() {
					most.Store(n)
				}
				time.Sleep(time.Duration(rng.Int64N(int64(2 * time.Millisecond))))
				used := rng.Int64N(90)
				if rng.IntN(3) == 0 {
					res.Use(time.Time{}, []int64{used, used})
				}
				inFlight.Add(-1)
				if rng.IntN(5) == 0 {
					res.Cancel(time.Time{})
					continue
				}
				charged.Add(used)
				res.Settle(time.Time{}, []int64{used, used, 1})
			}
		})
	}
	wg.Wait()
	if most.Load() > slots {
		t.Errorf("%d were in flight, %d may be", most.Load(), slots)
	}
	for _, r := range rs {
		heal(r)
		w.wait(func() bool { return r.Stats().State == StateUp })
	}
	for _, r := range rs {
		r.told(w)
	}
	for _, r := range rs[1:] {
		r.stop()
	}
	r := rs[0]
	for _, c := range claims[:2] {
		if got, want := w.left(r, c), int64(limit)-charged.Load(); got != want {
			t.Errorf("%d are left of a %s, want %d: %d were charged", got, c.Unit, want, charged.Load())
		}
	}
	for range slots {
		w.must(r, slot("s", slots))
	}
	w.refused(r, slot("s", slots))
	st := r.Stats()
	t.Logf("%d admitted; one replica: %d by lease, %d by store, %d by memory", admitted.Load(), st.ByLease, st.ByStore, st.ByMemory)
	return admitted.Load()
}

// use is one reservation as its caller saw it.
type use struct {
	before, after, ended time.Duration // ended: after Settle
	amount, charge       int64
}

// TestReplicasKeepThePromise: reservations that are open and charges of any time t
// stay within limit × (1 + t/window), over all replicas, by the real clock.
func TestReplicasKeepThePromise(t *testing.T) {
	w := newWorld(t, shared(t))
	w.real = true
	const replicas, workers, limit = 4, 6, 600
	const window = time.Second
	began := time.Now()
	var mu sync.Mutex
	var uses []use
	var wg sync.WaitGroup
	for i := range replicas {
		r := w.replica()
		for j := range workers {
			wg.Go(func() {
				rng := rand.New(rand.NewPCG(uint64(i), uint64(j)))
				var mine []use
				for time.Since(began) < 1500*time.Millisecond {
					u := use{amount: 1 + rng.Int64N(20), before: time.Since(began)}
					res, failures := r.reserve(bucket("b", window, limit, u.amount))
					if len(failures) > 0 {
						time.Sleep(min(failures[0].Wait, time.Millisecond))
						continue
					}
					u.after = time.Since(began)
					time.Sleep(time.Duration(rng.Int64N(int64(30 * time.Millisecond))))
					u.charge = rng.Int64N(u.amount + 1)
					res.Settle(time.Time{}, []int64{u.charge})
					u.ended = time.Since(began)
					mine = append(mine, u)
				}
				mu.Lock()
				defer mu.Unlock()
				uses = append(uses, mine...)
			})
		}
	}
	wg.Wait()
	worst, total := excess(uses, limit, window), int64(0)
	for _, u := range uses {
		total += u.charge
	}
	t.Logf("%d admitted, %d charged in %v; the fullest stretch is %.1f from the bound", len(uses), total, time.Since(began), -worst)
	if worst > 1 {
		t.Errorf("a stretch of time has %.1f more than limit × (1 + t/window)", worst)
	}
	if total < limit {
		t.Errorf("%d were charged, of a limit of %d a second", total, limit)
	}
}

// excess is by how much the worst stretch of time exceeds the promise; a
// millisecond is what the store's clock can't see.
func excess(uses []use, limit int64, window time.Duration) float64 {
	worst := -float64(limit)
	byAfter := slices.Clone(uses)
	slices.SortFunc(byAfter, func(a, b use) int { return cmp.Compare(a.after, b.after) })
	byEnd := slices.Clone(uses)
	slices.SortFunc(byEnd, func(a, b use) int { return cmp.Compare(a.ended, b.ended) })
	for _, from := range uses {
		sum, ends := int64(0), 0
		for _, u := range byAfter {
			if u.before < from.before {
				continue
			}
			sum += u.amount
			for ; ends < len(byEnd) && byEnd[ends].ended <= u.after; ends++ {
				if e := byEnd[ends]; e.before >= from.before {
					sum -= e.amount - e.charge
				}
			}
			stretch := u.after - from.before + time.Millisecond
			worst = max(worst, float64(sum)-float64(limit)*(1+float64(stretch)/float64(window)))
		}
	}
	return worst
}
