package scoring

import (
	"errors"
	"slices"
	"testing"
	"time"
)

// TestOfferHolds has the worker that holds a prompt busy: the request waits for it
// within no bound, leaves no load behind, and is given to it within a larger one.
func TestOfferHolds(t *testing.T) {
	f, ids := testFleet(t, 2)
	shared := prompt(1, 40_000)
	holds(f, ids[0], 0, shared)
	cold := prompt(2, 6000)
	first, err := f.Pick(epoch, &Request{Model: "m", Pools: []string{"p"}, Tokens: cold, Only: ids[0]})
	if err != nil {
		t.Fatal(err)
	}
	p, err := f.Prepare(epoch, &Request{Model: "m", Pools: []string{"p"}, Tokens: shared})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Release()
	r, why, err := f.Offer(epoch, p, Terms{Bound: 100 * time.Millisecond})
	if r != nil || err != nil {
		t.Fatalf("an offer within 100 ms is taken: %v, %v", r, err)
	}
	if why.Best != ids[0] || why.Wait < 500*time.Millisecond || why.TTFT < why.Wait {
		t.Errorf("refused with %+v, want worker %d and a wait of some 0.75 s", why, ids[0])
	}
	if n := f.Stats().InFlight; n != 1 {
		t.Errorf("%d requests in flight after a refusal, want 1", n)
	}
	if wait, _ := f.Wait(epoch, "p", "m", 0); wait != 0 {
		t.Errorf("the wait is %v beside an idle worker", wait)
	}
	first.Done(epoch, Completed)
	if r, _, err = f.Offer(epoch, p, Terms{}); r == nil || err != nil || r.Worker().ID != ids[0] {
		t.Fatalf("the idle worker does not take the offer: %v, %v", r, err)
	}
	r.Done(epoch, Completed)
}

// offer offers a request that is prepared for it alone.
func offer(t testing.TB, f *Fleet, now time.Time, req *Request, terms Terms) (*Reservation, Refusal) {
	t.Helper()
	if req.Pools == nil {
		req.Pools = []string{"p"}
	}
	req.Model = "m"
	p, err := f.Prepare(now, req)
	if err != nil {
		t.Fatal(err)
	}
	defer p.Release()
	r, no, err := f.Offer(now, p, terms)
	if err != nil || (r == nil) == (no.Best == 0) {
		t.Fatalf("Offer = %v, %+v, %v", r, no, err)
	}
	return r, no
}

// TestOfferLeavesNoTrace refuses a request many times and then lets it go.
func TestOfferLeavesNoTrace(t *testing.T) {
	f, ids := testFleet(t, 1)
	pick(t, f, epoch, &Request{Estimate: 10_000})
	before, shot := f.Stats(), f.Snapshot(epoch)
	p, err := f.Prepare(epoch, &Request{Model: "m", Pools: []string{"p"}, Tokens: prompt(1, 100)})
	if err != nil {
		t.Fatal(err)
	}
	for range 20 {
		if r, no, err := f.Offer(epoch, p, Terms{Bound: time.Millisecond}); r != nil || err != nil || no.Best != ids[0] {
			t.Fatalf("Offer = %v, %+v, %v", r, no, err)
		}
	}
	p.Release()
	if after := f.Stats(); after != before {
		t.Errorf("refused offers change the totals from %+v to %+v", before, after)
	}
	if now := f.Snapshot(epoch)[0]; now.InFlight != shot[0].InFlight || now.Ahead != shot[0].Ahead || now.Picks != shot[0].Picks {
		t.Errorf("refused offers change the worker from %+v to %+v", shot[0], now)
	}
	if n := len(f.Predictions()); n != 1 {
		t.Errorf("%d predictions are kept, want that of the one pick", n)
	}
}

// TestOfferBound compares what is open by a worker's wait: anything while it is within
// one step, of what needn't keep room for others within what is left of the step under way
// and one more, and beyond that what has the bound for it. Nothing closes a worker that is
// idle but its own word.
func TestOfferBound(t *testing.T) {
	cfg := DefaultConfig()
	cfg.BatchTokens = 1000 // 125 ms and a base of 30
	for _, c := range []struct {
		name  string
		ahead int
		bound time.Duration
		do    func(f *Fleet, id WorkerID)
		open  bool
	}{
		{"idle", 0, 0, nil, true},
		{"within two steps", 2400, 0, nil, true},
		{"beyond two steps", 2600, 0, nil, false},
		{"within the bound", 2600, 350 * time.Millisecond, nil, true},
		{"beyond the bound", 2600, 250 * time.Millisecond, nil, false},
		{"unbounded", 1 << 20, Unbounded, nil, true},
		{"idle and believed to be slow", 0, 0, func(f *Fleet, id WorkerID) { f.byID[id].predictor.logSpeed = 2 }, true},
		{"idle with others' requests running", 0, 0, func(f *Fleet, id WorkerID) {
			f.ObserveLoad(epoch, id, Load{Running: 500})
			f.ObserveLoad(epoch, id, Load{Running: 500})
		}, true},
		{"others' requests waiting", 0, time.Second, func(f *Fleet, id WorkerID) {
			pick(t, f, epoch.Add(-time.Minute), &Request{Estimate: 5000}).Done(epoch, Completed)
			f.ObserveLoad(epoch, id, Load{Waiting: 20})
			f.ObserveLoad(epoch, id, Load{Waiting: 20})
		}, false},
		{"idle and saturated", 0, time.Minute, func(f *Fleet, id WorkerID) { f.Saturated(epoch, id) }, false},
		{"no sequence free", 0, time.Second, func(f *Fleet, id WorkerID) {
			for range f.cfg.MaxSeqs + 200 {
				pick(t, f, epoch, &Request{Estimate: 1}).FirstToken(epoch)
			}
		}, false},
		{"no space in the cache", 0, 250 * time.Millisecond, func(f *Fleet, id WorkerID) {
			f.SetCapacity(id, 2, 100)
			pick(t, f, epoch, &Request{Estimate: 200}).FirstToken(epoch)
		}, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := NewFleet(cfg)
			ids := addWorkers(t, f, 1)
			if c.ahead > 0 {
				pick(t, f, epoch, &Request{Estimate: c.ahead})
			}
			if c.do != nil {
				c.do(f, ids[0])
			}
			r, no := offer(t, f, epoch, &Request{Estimate: 50}, Terms{Bound: c.bound})
			if open := r != nil; open != c.open {
				t.Errorf("open: %v, want %v; %+v", open, c.open, no)
			}
		})
	}
}

// TestOfferByHeld has a worker that holds a prompt, busy, beside an idle one. Work that
// is set aside for the former makes the latter the better one, and does not close it.
func TestOfferByHeld(t *testing.T) {
	f, ids := testFleet(t, 2)
	shared := prompt(1, 10_000)
	holds(f, ids[0], 0, shared)
	pick(t, f, epoch, &Request{Estimate: 5000, Only: ids[0]})
	var held Held
	waits := 0
	for ; waits < 100; waits++ {
		r, no := offer(t, f, epoch, &Request{Tokens: shared}, Terms{Bound: 100 * time.Millisecond, Held: &held})
		if r != nil {
			if r.Worker().ID != ids[1] {
				t.Errorf("it went to the busy worker")
			}
			break
		}
		if no.Best != ids[0] {
			t.Fatalf("it waits for worker %d: %+v", no.Best, no)
		}
		held.Add(no.Best, no.Work+500, 0)
	}
	if waits == 0 || waits > 20 {
		t.Errorf("after %d that wait for the busy worker the next one goes to the idle one, want 1 to 20", waits)
	}
	held.Reset()
	held.Add(ids[0], 200, 0)
	if r, no := offer(t, f, epoch, &Request{Tokens: shared}, Terms{Bound: time.Second, Held: &held}); r == nil || r.Worker().ID != ids[0] {
		t.Errorf("work that is set aside counts against the bound: %+v", no)
	}
}

// TestOfferKeeps has a pool of two workers keep room for others.
func TestOfferKeeps(t *testing.T) {
	for _, c := range []struct {
		name string
		keep Keep
		open bool
	}{
		{"nothing", Keep{}, true},
		{"sequences that are there", Keep{Requests: 8}, true},
		{"a part of a sequence", Keep{Requests: 8.5}, false},
		{"room that is there", Keep{Tokens: 1000}, true},
		{"room that is not", Keep{Tokens: 1400}, false},
	} {
		cfg := DefaultConfig()
		cfg.MaxSeqs = 10
		f := NewFleet(cfg)
		ids := addWorkers(t, f, 2)
		for _, id := range ids {
			f.SetCapacity(id, 2, 500)
			for range 5 {
				pick(t, f, epoch, &Request{Estimate: 50, Only: id}).FirstToken(epoch)
			}
		}
		r, no := offer(t, f, epoch, &Request{Estimate: 100}, Terms{Bound: time.Second, Keep: c.keep})
		if open := r != nil; open != c.open {
			t.Errorf("%s: open: %v, want %v; %+v", c.name, open, c.open, no)
		}
		if !c.open && !no.Look.IsZero() {
			t.Errorf("%s: to be looked at again at %v although room comes by an end alone", c.name, no.Look.Sub(epoch))
		}
	}
	f, _ := testFleet(t, 1)
	if r, no := offer(t, f, epoch, &Request{Estimate: 100}, Terms{Keep: Keep{Requests: 1e6, Tokens: 1e9}}); r == nil {
		t.Errorf("an idle worker keeps room for others: %+v", no)
	}
}

// TestKeepingCosts: a worker that holds the prompt and must keep its room for others
// is not waited for when computing the prompt elsewhere takes less than answers do.
func TestKeepingCosts(t *testing.T) {
	f, ids := testFleet(t, 2)
	for _, id := range ids {
		f.SetCapacity(id, 2, 5000)
	}
	shared := prompt(1, 3000)
	holds(f, ids[0], 0, shared)
	// An answer there takes 20 s, and requests hold 3,500 of its 10,000 tokens.
	past := epoch.Add(-20 * time.Second)
	r := pick(t, f, past, &Request{Estimate: 50, Unary: true, Only: ids[0]})
	r.FirstToken(past)
	r.Done(epoch, Completed)
	for range 5 {
		pick(t, f, epoch, &Request{Estimate: 700, Unary: true, Only: ids[0]}).FirstToken(epoch)
	}
	for _, c := range []struct {
		keep float64
		want WorkerID
	}{{0, ids[0]}, {2 * 3000, ids[0]}, {2 * 4000, ids[1]}} {
		r, no := offer(t, f, epoch, &Request{Tokens: shared}, Terms{Bound: time.Second, Keep: Keep{Tokens: c.keep}})
		if r == nil {
			t.Errorf("with %v tokens to be kept the request is held: %+v", c.keep, no)
			continue
		}
		if r.Worker().ID != c.want {
			t.Errorf("with %v tokens to be kept it goes to worker %v, want %v", c.keep, r.Worker().ID, c.want)
		}
		r.Done(epoch, NotSent)
	}
}

// TestOfferOfOnePool: the best worker is looked for in all pools, and taken in one.
func TestOfferOfOnePool(t *testing.T) {
	f, _ := testFleet(t, 1)
	far, err := f.Add(epoch, WorkerSpec{Name: "far", Pool: "q", Models: []string{"m"}})
	if err != nil {
		t.Fatal(err)
	}
	f.SetReady(epoch, far, true, "")
	f.SetView(far, 0, ViewLive)
	shared := prompt(1, 1000)
	holds(f, far, 0, shared)
	req := Request{Tokens: shared, Pools: []string{"p", "q"}}
	r, no := offer(t, f, epoch, &req, Terms{Pool: "p", Bound: time.Second})
	if r != nil || no.Best != far || no.Pool != "q" || !no.Open {
		t.Errorf("offered p alone: %v, %+v", r, no)
	}
	if r, no = offer(t, f, epoch, &req, Terms{Pool: "q", Bound: time.Second}); r == nil {
		t.Errorf("offered q: %+v", no)
	}
	f.Saturated(epoch, far)
	if _, no = offer(t, f, epoch, &Request{Tokens: shared, Pools: []string{"q"}}, Terms{Pool: "q"}); no.Open {
		t.Errorf("a closed worker is called open: %+v", no)
	}
}

// TestLuckIsDrawnOnce: a request that is offered again and again is spared a worker
// that has just become ready as often as one that is offered once; and not at all
// where nobody else is open.
func TestLuckIsDrawnOnce(t *testing.T) {
	f, ids := testFleet(t, 1)
	late := epoch.Add(time.Hour)
	fresh, err := f.Add(late, WorkerSpec{Name: "fresh", Pool: "p", Models: []string{"m"}})
	if err != nil {
		t.Fatal(err)
	}
	f.SetReady(late, fresh, true, "")
	f.SetView(fresh, 0, ViewLive)
	shared := prompt(1, 200)
	holds(f, fresh, 0, shared)
	const requests, offers = 1500, 3
	spared := 0
	for range requests {
		p, err := f.Prepare(late, &Request{Model: "m", Pools: []string{"p"}, Tokens: shared})
		if err != nil {
			t.Fatal(err)
		}
		first := WorkerID(0)
		for range offers {
			r, no, err := f.Offer(late, p, Terms{Bound: time.Second})
			if r == nil || err != nil {
				t.Fatalf("refused: %+v, %v", no, err)
			}
			if first == 0 {
				first = r.Worker().ID
			}
			if r.Worker().ID != first {
				t.Fatalf("a request goes to worker %d at first and to %d when it is offered again", first, r.Worker().ID)
			}
			r.Done(late, NotSent)
		}
		if first == ids[0] {
			spared++
		}
		p.Release()
	}
	if share := float64(spared) / requests; share < 0.87 || share > 0.93 {
		t.Errorf("%.3f of the requests are spared the new worker, want 0.9", share)
	}
	pick(t, f, late, &Request{Estimate: 20_000, Only: ids[0]})
	for range 50 {
		r, no := offer(t, f, late, &Request{Tokens: shared}, Terms{Bound: 100 * time.Millisecond})
		if r == nil || r.Worker().ID != fresh {
			t.Fatalf("it waits beside an idle worker: %+v", no)
		}
		r.Done(late, NotSent)
	}
}

// TestNobodyIsCountedOnce: a request that waits while no worker is ready is one that
// found none, however often it was offered.
func TestNobodyIsCountedOnce(t *testing.T) {
	f, ids := testFleet(t, 1)
	p, err := f.Prepare(epoch, &Request{Model: "m", Pools: []string{"p"}})
	if err != nil {
		t.Fatal(err)
	}
	f.SetReady(epoch, ids[0], false, "down")
	for range 5 {
		if _, _, err := f.Offer(epoch.Add(time.Second), p, Terms{}); !errors.Is(err, ErrNotReady) {
			t.Fatalf("Offer: %v", err)
		}
	}
	f.SetReady(epoch, ids[0], true, "")
	r, no, err := f.Offer(epoch.Add(2*time.Second), p, Terms{})
	if r == nil {
		t.Fatalf("the worker is back: %+v, %v", no, err)
	}
	p.Release()
	if st := f.Stats(); st.NotReady != 1 || st.Picks != 1 {
		t.Errorf("%d requests found nobody ready and %d a worker, want 1 and 1", st.NotReady, st.Picks)
	}
}

// TestSaturated follows the pauses of a worker that refuses, until it answers.
func TestSaturated(t *testing.T) {
	f, ids := testFleet(t, 1)
	now := epoch
	pause := func() time.Duration {
		t.Helper()
		wait, look := f.Wait(now, "p", "m", time.Minute)
		if wait == 0 {
			return 0
		}
		if wait == Unbounded {
			t.Error("a worker that has no room is taken for one that is not ready")
		}
		return look.Sub(now)
	}
	for _, ms := range []time.Duration{250, 500, 1000, 2000, 4000, 5000, 5000} {
		f.Saturated(now, ids[0])
		f.Saturated(now.Add(time.Millisecond), ids[0]) // which was under way with the first
		if got := pause(); got != ms*time.Millisecond {
			t.Errorf("a pause of %v, want %v", got, ms*time.Millisecond)
		}
		now = now.Add(ms * time.Millisecond)
		if got := pause(); got != 0 {
			t.Errorf("a wait of %v when the pause is over", got)
		}
	}
	f.Saturated(now, ids[0])
	pick(t, f, now, &Request{Estimate: 1}).FirstToken(now)
	if got := pause(); got != 0 {
		t.Errorf("a wait of %v although the worker answered", got)
	}
	f.Saturated(now, ids[0])
	if got := pause(); got != shortSaturation {
		t.Errorf("a pause of %v after an answer, want %v", got, shortSaturation)
	}
	f.Saturated(now, 99) // who is gone
}

// TestPriorityGoesBefore has engines that schedule by priority: what is less urgent
// than a request is not ahead of it, but for the one that the engine has begun with.
func TestPriorityGoesBefore(t *testing.T) {
	for _, on := range []bool{false, true} {
		f, _ := testFleet(t, 1)
		f.SetPriorities("p", on)
		var reservations []*Reservation
		for _, p := range []int64{5, 9, 0, 9, 5} {
			reservations = append(reservations, pick(t, f, epoch, &Request{Estimate: 6000, Priority: p}))
		}
		wait := func(priority int64) time.Duration {
			_, no := offer(t, f, epoch, &Request{Estimate: 10, Priority: priority}, Terms{Bound: time.Millisecond})
			return no.Wait
		}
		one := wait(0) / 5
		if on {
			one = wait(0) / 2 // the head, and the one of its own
		}
		for priority, want := range map[int64]time.Duration{-1: 1, 0: 2, 5: 3, 9: 5} {
			if !on {
				want = 5
			}
			if got := wait(priority).Round(10 * time.Millisecond); got != (want * one).Round(10*time.Millisecond) {
				t.Errorf("on %v: one of priority %d waits %v, want %v", on, priority, got, want*one)
			}
		}
		w := f.workers[0]
		var order []int64
		for r := w.head; r != nil; r = r.next {
			order = append(order, r.priority)
		}
		want := []int64{5, 9, 0, 9, 5}
		if on {
			want = []int64{5, 0, 5, 9, 9}
		}
		if !slices.Equal(order, want) {
			t.Errorf("on %v: the queue is believed to be %v, want %v", on, order, want)
		}
		for _, r := range reservations {
			r.Done(epoch, Completed)
		}
		if len(w.levels) != 0 || w.tokens != 0 || w.head != nil || w.tail != nil {
			t.Errorf("on %v: there is something left of an empty queue: %+v, %d tokens", on, w.levels, w.tokens)
		}
	}
}

// TestOfferKeepsHeldRoom has small requests with next to no answer run while room is held
// for a large one: however little they grow, the next of them must not take that room.
func TestOfferKeepsHeldRoom(t *testing.T) {
	for _, output := range []int{1, 10, 200} {
		f, ids := testFleet(t, 1)
		f.SetCapacity(ids[0], 200, 16)
		small := &Request{Estimate: 300, Output: output}
		pick(t, f, epoch, &Request{Estimate: 300, Output: output}).FirstToken(epoch)
		var held Held
		terms := Terms{Bound: time.Minute, Held: &held}
		r, no := offer(t, f, epoch, &Request{Estimate: 2700, Output: 300}, terms)
		if r != nil || no.Room != 3000 {
			t.Fatalf("answers of %d: the large one meets %+v, want that it lacks room for 3000 tokens", output, no)
		}
		held.Add(no.Best, no.Work, no.Room)
		if r, _ := offer(t, f, epoch, small, terms); r != nil {
			t.Errorf("answers of %d: a small request takes room that is held for a large one", output)
		}
		held.Reset()
		if r, no := offer(t, f, epoch, small, terms); r == nil {
			t.Errorf("answers of %d: a small request meets %+v where nothing is held", output, no)
		}
	}
}
