package scoring

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

var epoch = time.Unix(1_800_000_000, 0)

// testFleet returns a fleet with n ready workers with live views in pool "p"
// that serve "m" in blocks of 2 tokens.
func testFleet(t testing.TB, n int) (*Fleet, []WorkerID) {
	t.Helper()
	f := NewFleet(DefaultConfig())
	return f, addWorkers(t, f, n)
}

func addWorkers(t testing.TB, f *Fleet, n int) (ids []WorkerID) {
	t.Helper()
	for i := range n {
		id, err := f.Add(epoch, WorkerSpec{Name: fmt.Sprintf("w%d", i), Pool: "p", Address: "a", Models: []string{"m"}})
		if err != nil {
			t.Fatal(err)
		}
		f.SetReady(epoch, id, true, "")
		f.SetView(id, 0, ViewLive)
		f.SetCapacity(id, 2, 1<<16)
		ids = append(ids, id)
	}
	return ids
}

func pick(t testing.TB, f *Fleet, now time.Time, req *Request) *Reservation {
	t.Helper()
	if req.Model == "" {
		req.Model = "m"
	}
	if req.Pools == nil {
		req.Pools = []string{"p"}
	}
	r, err := f.Pick(now, req)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// holds makes a worker's view hold a prompt in blocks of 2 tokens.
func holds(f *Fleet, id WorkerID, rank int, tokens []uint32, more ...func(*Event)) {
	var hashes []EngineHash
	for i := range len(tokens) / 2 {
		hashes = append(hashes, intHash(uint64(tokens[0])<<32|uint64(i)))
	}
	ev := stored("", hashes, tokens[:2*len(hashes)]...)
	for _, m := range more {
		m(&ev)
	}
	f.ApplyEvents(epoch, id, rank, []Event{ev})
}

func TestAdd(t *testing.T) {
	f := NewFleet(DefaultConfig())
	ok := func(spec WorkerSpec) WorkerID {
		t.Helper()
		id, err := f.Add(epoch, spec)
		if err != nil {
			t.Fatal(err)
		}
		return id
	}
	bad := func(spec WorkerSpec, want string) {
		t.Helper()
		if _, err := f.Add(epoch, spec); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("Add(%+v) = %v, want an error with %q", spec, err, want)
		}
	}
	first := ok(WorkerSpec{Name: "a", Models: []string{"m"}})
	bad(WorkerSpec{Models: []string{"m"}}, "has no name")
	bad(WorkerSpec{Name: "b"}, "at least one model")
	bad(WorkerSpec{Name: "b", Models: []string{""}}, "no empty name")
	bad(WorkerSpec{Name: "a", Models: []string{"m"}}, "the name is taken by worker 1")
	f.Remove(first)
	if again := ok(WorkerSpec{Name: "a", Models: []string{"m"}}); again == first {
		t.Errorf("id %d was used twice", again)
	}
}

func TestConfigValidate(t *testing.T) {
	cfg := DefaultConfig()
	if err := cfg.Validate(); err != nil {
		t.Fatalf("the default configuration: %v", err)
	}
	bad := func(want string, set func(*Config)) {
		t.Helper()
		cfg := DefaultConfig()
		set(&cfg)
		if err := cfg.Validate(); err == nil || err.Error() != want {
			t.Errorf("got %v, want %s", err, want)
		}
	}
	bad("scoring: BlockSize is 0; it must be between 1 and 16384", func(c *Config) { c.BlockSize = 0 })
	bad("scoring: SpeculativeTTL is 1s; it must be between 2s and 5s", func(c *Config) { c.SpeculativeTTL = time.Second })
	bad("scoring: Prior.PerKilo is 0s; it must be between 500µs and 20s", func(c *Config) { c.Prior.PerKilo = 0 })
	bad("scoring: DiskCost is 1.5; it must be between 0 and 1", func(c *Config) { c.DiskCost = 1.5 })
	defer func() {
		if r := fmt.Sprint(recover()); !strings.HasPrefix(r, "BUG: ") {
			t.Errorf("NewFleet with a zero Config: %s", r)
		}
	}()
	NewFleet(Config{})
}

func TestPickErrors(t *testing.T) {
	f, ids := testFleet(t, 2)
	want := func(req Request, want error) {
		t.Helper()
		r, err := f.Pick(epoch, &req)
		if !errors.Is(err, want) {
			t.Errorf("Pick(%+v) = %v, want %v", req, err, want)
		}
		if r != nil {
			r.Done(epoch, NotSent)
		}
	}
	p := []string{"p"}
	want(Request{Model: "m", Pools: p}, nil)
	want(Request{Model: "other", Pools: p}, ErrNoWorker)
	want(Request{Model: "m", Pools: []string{"q"}}, ErrNoWorker)
	want(Request{Model: "m"}, ErrNoWorker)
	want(Request{Model: "m", Pools: p, Exclude: ids[:1]}, nil)
	want(Request{Model: "m", Pools: p, Exclude: ids}, ErrNotReady)
	f.SetReady(epoch, ids[0], false, "down")
	want(Request{Model: "m", Pools: p, Exclude: ids[1:]}, ErrNotReady)
	f.Remove(ids[1])
	want(Request{Model: "m", Pools: p}, ErrNotReady)
	f.Remove(ids[0])
	want(Request{Model: "m", Pools: p}, ErrNoWorker)
	if st := f.Stats(); st.Picks != 2 || st.NotReady != 3 || st.NoWorker != 4 {
		t.Errorf("stats count %d picks, %d not ready, %d no worker; want 2, 3, 4", st.Picks, st.NotReady, st.NoWorker)
	}
}

func TestRemoveForgets(t *testing.T) {
	f, ids := testFleet(t, 2)
	tokens := prompt(1, 400)
	holds(f, ids[0], 0, tokens)
	holds(f, ids[0], 3, tokens)
	r := pick(t, f, epoch, &Request{Tokens: tokens})
	if r.Worker().ID != ids[0] {
		t.Fatalf("picked worker %d, not the one that holds the prompt", r.Worker().ID)
	}
	f.Remove(ids[0])
	if st := f.Stats(); st.Keys != 0 || st.Blocks != 0 || st.Speculative != 0 || st.Workers != 1 {
		t.Errorf("after Remove: %+v", st)
	}
	// The same address comes back, gets the freed columns, and is cold.
	id, err := f.Add(epoch, WorkerSpec{Name: "w0", Pool: "p", Address: "a", Models: []string{"m"}})
	if err != nil {
		t.Fatal(err)
	}
	f.SetReady(epoch, id, true, "")
	f.SetView(id, 0, ViewLive)
	again := pick(t, f, epoch, &Request{Tokens: tokens, Exclude: ids})
	if again.Worker().ID != id || again.Cached() != 0 {
		t.Errorf("worker %d is credited with %d cached tokens, want worker %d with none", again.Worker().ID, again.Cached(), id)
	}
	again.Done(epoch, Completed)
	// Late reports of the old worker touch nothing.
	r.FirstToken(epoch.Add(time.Second))
	r.Done(epoch.Add(time.Second), Completed)
	f.SetReady(epoch, ids[0], true, "")
	f.SetCapacity(ids[0], 16, 10)
	f.ObserveLoad(epoch, ids[0], Load{Waiting: 9})
	f.SetView(ids[0], 0, ViewLive)
	f.ClearView(ids[0], 0)
	f.Remove(ids[0])
	if st := f.ApplyEvents(epoch, ids[0], 0, []Event{{Kind: AllBlocksCleared}}); st != (ApplyStats{Ignored: 1}) {
		t.Errorf("events of a removed worker: %+v", st)
	}
	if st := f.Stats(); st.InFlight != 0 || st.FirstTokens != 1 || st.Completed != 2 || st.Workers != 2 {
		t.Errorf("at the end: %+v", st)
	}
}

func TestSnapshot(t *testing.T) {
	f, ids := testFleet(t, 1)
	holds(f, ids[0], 1, prompt(1, 8))
	f.SetView(ids[0], 1, ViewPartial)
	f.ObserveLoad(epoch, ids[0], Load{Running: 3, Waiting: 2, KVUsage: 0.5})
	r := pick(t, f, epoch, &Request{Estimate: 1000})
	got := f.Snapshot(epoch)
	if len(got) != 1 {
		t.Fatalf("%d workers", len(got))
	}
	s := got[0]
	if s.Worker != r.Worker() || !s.Ready || s.InFlight != 1 || s.Prefilling != 1 || s.Ahead != 1000 || s.Picks != 1 {
		t.Errorf("snapshot %+v", s)
	}
	if s.Load != (Load{Running: 3, Waiting: 2, KVUsage: 0.5}) || !s.LoadObserved.Equal(epoch) || s.Coefficients != DefaultConfig().Prior || s.Speed != 1 {
		t.Errorf("snapshot %+v", s)
	}
	want := []ViewSnapshot{
		{Rank: 0, State: ViewLive, BlockSize: 2, Capacity: 1 << 16},
		{Rank: 1, State: ViewPartial, BlockSize: 2, Capacity: 1 << 16, GPU: 4, Groups: 1},
	}
	if !slices.Equal(s.Views, want) {
		t.Errorf("views %+v, want %+v", s.Views, want)
	}
	f.SetReady(epoch, ids[0], false, "health check failed")
	if s := f.Snapshot(epoch)[0]; s.Ready || s.Reason != "health check failed" {
		t.Errorf("snapshot %+v", s)
	}
}

func TestEventsOfUnknownRank(t *testing.T) {
	f, ids := testFleet(t, 1)
	for _, rank := range []int{-1, maxRanks} {
		if st := f.ApplyEvents(epoch, ids[0], rank, make([]Event, 3)); st != (ApplyStats{Ignored: 3}) {
			t.Errorf("rank %d: %+v", rank, st)
		}
	}
	if st := f.Stats(); st.Events.Ignored != 6 {
		t.Errorf("stats count %d ignored events, want 6", st.Events.Ignored)
	}
}

func TestClearForgetsExpectations(t *testing.T) {
	f, ids := testFleet(t, 1)
	for _, empty := range []func(){
		func() { f.ClearView(ids[0], 0) },
		func() { f.ApplyEvents(epoch, ids[0], 0, []Event{{Kind: AllBlocksCleared}}) },
	} {
		r := pick(t, f, epoch, &Request{Tokens: prompt(1, 400)})
		if st := f.Stats(); st.Speculative != 200 {
			t.Fatalf("%d blocks expected, want 200", st.Speculative)
		}
		empty()
		if st := f.Stats(); st.Speculative != 0 {
			t.Errorf("%d blocks expected after a clear", st.Speculative)
		}
		r.Done(epoch, Completed)
	}
}

// TestFleetInParallel has everything happen at once; the race detector and the
// final counts are what it is for.
func TestFleetInParallel(t *testing.T) {
	f, ids := testFleet(t, 4)
	var wg sync.WaitGroup
	for g := range 4 {
		wg.Go(func() {
			for i := range 200 {
				r, err := f.Pick(epoch, &Request{Model: "m", Pools: []string{"p"}, Tokens: prompt(uint64(i%20), 64)})
				if err != nil {
					t.Error(err)
					return
				}
				if i%3 > 0 {
					r.FirstToken(epoch.Add(time.Duration(i) * time.Millisecond))
				}
				r.Done(epoch.Add(time.Second), Outcome(1+i%4))
			}
		})
		wg.Go(func() {
			for i := range 200 {
				holds(f, ids[g], i%3, prompt(uint64(i%20), 64))
				if i%50 == 0 {
					f.ClearView(ids[g], i%3)
				}
				f.ObserveLoad(epoch, ids[g], Load{Running: i % 5})
			}
		})
	}
	wg.Go(func() {
		for i := range 50 {
			id, err := f.Add(epoch, WorkerSpec{Name: fmt.Sprintf("x%d", i), Pool: "p", Models: []string{"m"}})
			if err != nil {
				t.Error(err)
				return
			}
			f.SetReady(epoch, id, true, "")
			holds(f, id, 0, prompt(uint64(i%20), 64))
			f.Stats()
			f.Snapshot(epoch)
			f.Predictions()
			f.Remove(id)
		}
	})
	wg.Wait()
	for _, w := range f.Snapshot(epoch) {
		if w.InFlight != 0 || w.Ahead != 0 || w.Prefilling != 0 {
			t.Errorf("load left on %+v", w)
		}
	}
	for _, id := range ids {
		f.Remove(id)
	}
	if st := f.Stats(); st.Keys != 0 || st.Speculative != 0 || st.InFlight != 0 || st.Picks != 800 {
		t.Errorf("at the end: %+v", st)
	}
}
