package scoring

import (
	"errors"
	"slices"
	"sync"
	"testing"
	"time"
)

// A retired worker gets nothing new, finishes what it has, and gives its name
// away at once.
func TestRetire(t *testing.T) {
	f, ids := testFleet(t, 1)
	prompt := []uint32{1, 2, 3, 4}
	holds(f, ids[0], 0, prompt)
	r := pick(t, f, epoch, &Request{Tokens: prompt})
	f.Retire(ids[0], "gone from the list")
	f.Retire(999, "")
	f.SetReady(epoch, ids[0], true, "") // a late word of its health check
	if _, err := f.Pick(epoch, &Request{Model: "m", Pools: []string{"p"}, Estimate: 1}); !errors.Is(err, ErrNoWorker) {
		t.Fatalf("pick beside a retired worker: %v", err)
	}
	if n := f.InFlight(ids[0]); n != 1 {
		t.Errorf("%d in flight", n)
	}
	s := f.Snapshot(epoch)[0]
	if !s.Retired || s.Ready || s.Reason != "gone from the list" || s.InFlight != 1 {
		t.Errorf("it is %+v", s)
	}
	if st := f.Stats(); st.Workers != 0 || st.ReadyWorkers != 0 || st.InFlight != 1 {
		t.Errorf("stats are %+v", st)
	}

	// Its successor has its name and nothing else.
	again := addWorkers(t, f, 1)[0]
	if again == ids[0] {
		t.Fatal("the id was used again")
	}
	next := pick(t, f, epoch, &Request{Tokens: prompt})
	if next.Worker().ID != again || next.Cached() != 0 {
		t.Errorf("picked %+v with %d tokens cached", next.Worker(), next.Cached())
	}
	r.FirstToken(epoch.Add(time.Second))
	r.Done(epoch.Add(2*time.Second), Completed)
	if n := f.InFlight(ids[0]); n != 0 {
		t.Errorf("%d in flight", n)
	}
	f.Remove(ids[0])
	if n := f.InFlight(ids[0]); n != 0 {
		t.Errorf("%d in flight on a worker that is gone", n)
	}
	next.Done(epoch, ClientGone)
	if all := f.Snapshot(epoch); len(all) != 1 || all[0].Worker.ID != again {
		t.Errorf("the fleet is %+v", all)
	}
}

// A worker on trial gets one request at a time, until nobody else is left.
func TestTrial(t *testing.T) {
	f, ids := testFleet(t, 2)
	f.SetTrial(ids[1], true)
	f.SetTrial(999, true)
	var held []*Reservation
	on := map[WorkerID]int{}
	for range 20 {
		r := pick(t, f, epoch, &Request{Estimate: 1000})
		held = append(held, r)
		on[r.Worker().ID]++
	}
	if on[ids[1]] != 1 || on[ids[0]] != 19 {
		t.Fatalf("picks by worker: %v", on)
	}
	if s := f.Snapshot(epoch)[1]; !s.Trial || !s.Ready {
		t.Errorf("it is %+v", s)
	}
	f.SetReady(epoch, ids[0], false, "down")
	for range 3 {
		held = append(held, pick(t, f, epoch, &Request{Estimate: 1000}))
	}
	if n := f.InFlight(ids[1]); n != 4 {
		t.Errorf("%d requests on the only worker", n)
	}
	if _, err := f.Pick(epoch, &Request{Model: "m", Pools: []string{"p"}, Exclude: ids}); !errors.Is(err, ErrNotReady) {
		t.Errorf("with all excluded: %v", err)
	}
	for _, r := range held {
		r.Done(epoch, Completed)
	}
	f.SetReady(epoch, ids[0], true, "")
	f.SetTrial(ids[1], false)
	clear(on)
	for range 20 {
		on[pick(t, f, epoch, &Request{Estimate: 1000}).Worker().ID]++
	}
	if on[ids[1]] < 5 {
		t.Errorf("picks by worker after the trial: %v", on)
	}
}

// However many picks run at once, a worker on trial never has two requests.
func TestTrialInParallel(t *testing.T) {
	f, ids := testFleet(t, 2)
	f.SetTrial(ids[1], true)
	tokens := make([]uint32, 256)
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 200 {
				r, err := f.Pick(epoch, &Request{Model: "m", Pools: []string{"p"}, Tokens: tokens})
				if err != nil {
					t.Error(err)
					return
				}
				if n := f.InFlight(ids[1]); n > 1 {
					t.Errorf("%d requests on trial", n)
				}
				r.Done(epoch, Completed)
			}
		})
	}
	wg.Wait()
}

func TestSetAdapters(t *testing.T) {
	f, ids := testFleet(t, 2)
	names := []string{"tune"}
	f.SetAdapters(ids[1], names)
	f.SetAdapters(999, names)
	names[0] = "changed"
	for range 5 {
		r := pick(t, f, epoch, &Request{Model: "tune", LoRA: "tune-v1", Estimate: 10})
		if r.Worker().ID != ids[1] {
			t.Fatalf("picked worker %d, which has not loaded the adapter", r.Worker().ID)
		}
	}
	if s := f.Snapshot(epoch)[1]; !slices.Equal(s.Adapters, []string{"tune"}) {
		t.Errorf("it has %v", s.Adapters)
	}
	f.SetAdapters(ids[1], nil)
	if _, err := f.Pick(epoch, &Request{Model: "tune", Pools: []string{"p"}, Estimate: 10}); !errors.Is(err, ErrNoWorker) {
		t.Errorf("unloaded: %v", err)
	}
}

// TestContext: a request goes to workers that have room for its length, or that have not
// said how much they have, and one that none could ever take is told apart from one that has
// to come again.
func TestContext(t *testing.T) {
	f, ids := testFleet(t, 3)
	f.SetContext(ids[0], 1000)
	f.SetContext(ids[1], 4000)
	f.SetContext(ids[2], 2000)
	f.SetContext(999, 1)
	ask := func(length int) *Request {
		return &Request{Model: "m", Pools: []string{"p"}, Estimate: length, Length: length}
	}
	takes := func(length int, want ...WorkerID) {
		t.Helper()
		seen := make(map[WorkerID]bool)
		for range 10 * len(ids) {
			r, err := f.Pick(epoch, ask(length))
			if err != nil {
				t.Fatalf("%d tokens: %v", length, err)
			}
			seen[r.Worker().ID] = true // each takes its load, so that the next one is another
		}
		for _, id := range ids {
			if seen[id] != slices.Contains(want, id) {
				t.Errorf("%d tokens: at worker %d: %v", length, id, seen[id])
			}
		}
		if err := f.Serves(ask(length)); err != nil {
			t.Errorf("%d tokens: %v", length, err)
		}
	}
	refused := func(length int, want error) {
		t.Helper()
		_, picked := f.Pick(epoch, ask(length))
		for _, err := range []error{picked, f.Serves(ask(length))} {
			if longest, ok := errors.AsType[*TooLong](err); ok != (want == nil) || ok && longest.Longest != 4000 || !ok && !errors.Is(err, want) {
				t.Errorf("%d tokens: %v", length, err)
			}
		}
	}
	takes(0, ids...)
	takes(1000, ids...)
	takes(1001, ids[1], ids[2])
	takes(4000, ids[1])
	before := f.Stats()
	refused(4001, nil)
	if s := f.Stats(); s.TooLong != before.TooLong+1 || s.NoWorker != before.NoWorker || s.NotReady != before.NotReady {
		t.Errorf("counted as %+v, after %+v", s, before)
	}
	f.SetReady(epoch, ids[1], false, "restarts")
	refused(4000, ErrNotReady)
	refused(4001, nil)
	f.SetTrial(ids[2], true) // and has requests
	takes(2000, ids[2])
	f.SetContext(ids[1], 0) // the process that comes may have another
	refused(4001, ErrNotReady)
	f.SetReady(epoch, ids[1], true, "")
	takes(1<<40, ids[1])
}
