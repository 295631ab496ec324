package scoring

import (
	"errors"
	"slices"
	"sync"
	"testing"
	"time"
)

func TestPickPrefersThePrefix(t *testing.T) {
	f, ids := testFleet(t, 4)
	tokens := prompt(1, 3001)
	holds(f, ids[2], 0, tokens)
	for range 20 {
		r := pick(t, f, epoch, &Request{Tokens: tokens})
		if r.Worker().ID != ids[2] || r.Cached() != 3000 || r.Prompt() != 3001 {
			t.Fatalf("picked worker %d with %d of %d cached, want worker %d with 3000 of 3001",
				r.Worker().ID, r.Cached(), r.Prompt(), ids[2])
		}
		r.Done(epoch, NotSent)
	}
}

func TestPickSpills(t *testing.T) {
	f, ids := testFleet(t, 2)
	shared := prompt(1, 2000)
	holds(f, ids[0], 0, shared)
	// Each request brings 500 tokens of its own: 62 ms of work at the holder,
	// against 312 ms at the other.
	counts := map[WorkerID]int{}
	first := 0
	for i := range 40 {
		r := pick(t, f, epoch, &Request{Tokens: append(slices.Clone(shared), prompt(uint64(10+i), 500)...)})
		counts[r.Worker().ID]++
		if r.Worker().ID == ids[1] && first == 0 {
			first = i
		}
	}
	if first != 4 {
		t.Errorf("request %d is the first to leave the holder, want 4, when its queue costs more than the prefill", first)
	}
	if counts[ids[1]] < 15 {
		t.Errorf("picks %v, want the other to get its share once it expects the prefix too", counts)
	}
}

// TestHitIsCapped holds the pick to the engine's rule that at least one token
// of a prompt is computed, and that hits end at blocks.
func TestHitIsCapped(t *testing.T) {
	f, ids := testFleet(t, 1)
	tokens := prompt(1, 8)
	holds(f, ids[0], 0, tokens)
	for n, want := range []int{0, 0, 0, 2, 2, 4, 4, 6, 6} {
		r := pick(t, f, epoch, &Request{Tokens: tokens[:n]})
		if r.Cached() != want || r.work != n-want {
			t.Errorf("prompt of %d: %d cached, %d to do; want %d, %d", n, r.Cached(), r.work, want, n-want)
		}
		r.Done(epoch, NotSent)
	}
}

func TestPickIsolation(t *testing.T) {
	f := NewFleet(DefaultConfig())
	id, err := f.Add(epoch, WorkerSpec{Name: "w", Pool: "p", Models: []string{"base", "alias"}, Adapters: []string{"poet"}})
	if err != nil {
		t.Fatal(err)
	}
	f.SetReady(epoch, id, true, "")
	plain, salted, adapted := prompt(1, 101), prompt(2, 101), prompt(3, 101)
	holds(f, id, 0, plain)
	holds(f, id, 0, salted, func(ev *Event) { ev.Salt = "s" })
	holds(f, id, 0, adapted, func(ev *Event) { ev.LoRA = "poet" })
	for _, c := range []struct {
		req  Request
		want int
	}{
		{Request{Model: "base", Tokens: plain}, 100},
		{Request{Model: "alias", Tokens: plain}, 100},
		{Request{Model: "poet", Tokens: plain}, 0},
		{Request{Model: "base", Tokens: plain, Salt: "s"}, 0},
		{Request{Model: "base", Tokens: salted, Salt: "s"}, 100},
		{Request{Model: "base", Tokens: salted, Salt: "t"}, 0},
		{Request{Model: "base", Tokens: salted}, 0},
		{Request{Model: "poet", Tokens: adapted}, 100},
		{Request{Model: "base", LoRA: "poet", Tokens: adapted}, 100},
		{Request{Model: "base", Tokens: adapted}, 0},
	} {
		r := pick(t, f, epoch, &c.req)
		if r.Cached() != c.want {
			t.Errorf("model %q LoRA %q salt %q: %d cached, want %d", c.req.Model, c.req.LoRA, c.req.Salt, r.Cached(), c.want)
		}
		r.Done(epoch, NotSent)
	}
}

// TestPickBlockSizes has workers with different block sizes hold one prompt.
func TestPickBlockSizes(t *testing.T) {
	f, ids := testFleet(t, 2)
	tokens := prompt(1, 101)
	holds(f, ids[0], 0, tokens)
	var hashes []EngineHash
	for i := range uint64(20) {
		hashes = append(hashes, intHash(i))
	}
	f.ApplyEvents(epoch, ids[1], 0, []Event{{
		Kind: BlockStored, Hashes: hashes, Tokens: tokens[:100], BlockSize: 5, Usable: 20,
	}})
	for i, want := range []int{100, 100} {
		r := pick(t, f, epoch, &Request{Tokens: tokens, Exclude: ids[1-i : 2-i]})
		if r.Worker().ID != ids[i] || r.Cached() != want {
			t.Errorf("worker %d: %d cached, want %d", i, r.Cached(), want)
		}
	}
}

func TestPickTakesTheBestRank(t *testing.T) {
	f, ids := testFleet(t, 2)
	tokens := prompt(1, 101)
	holds(f, ids[0], 0, tokens[:20])
	holds(f, ids[1], 2, tokens[:80])
	holds(f, ids[1], 1, tokens[:40])
	r := pick(t, f, epoch, &Request{Tokens: tokens})
	if r.Worker().ID != ids[1] || r.Cached() != 80 {
		t.Errorf("worker %d with %d cached, want worker %d with the 80 of its best rank", r.Worker().ID, r.Cached(), ids[1])
	}
	// What the pick expects goes on from that rank's blocks.
	if r := pick(t, f, epoch, &Request{Tokens: tokens, Exclude: ids[:1]}); r.Cached() != 100 {
		t.Errorf("an equal prompt finds %d cached, want 100", r.Cached())
	}
}

func TestPickSlowTiers(t *testing.T) {
	f, ids := testFleet(t, 3)
	tokens := prompt(1, 4001)
	for i, tier := range []Tier{TierDisk, TierCPU} {
		holds(f, ids[i], 0, tokens, func(ev *Event) { ev.Tier = tier })
	}
	work := func(exclude ...WorkerID) (WorkerID, int) {
		r := pick(t, f, epoch, &Request{Tokens: tokens, Exclude: exclude})
		defer r.Done(epoch, NotSent)
		return r.Worker().ID, r.work
	}
	if id, n := work(); id != ids[1] || n != 401 {
		t.Errorf("picked worker %d with work of %d tokens, want %d with 401: host memory costs a tenth", id, n, ids[1])
	}
	if id, n := work(ids[1]); id != ids[0] || n != 2001 {
		t.Errorf("picked worker %d with work of %d tokens, want %d with 2001: disk costs half", id, n, ids[0])
	}
}

func TestBurstSpreads(t *testing.T) {
	for _, workers := range []int{2, 4, 8} {
		f, _ := testFleet(t, workers)
		counts := map[WorkerID]int{}
		var mu sync.Mutex
		var wg sync.WaitGroup
		for i := range 64 {
			wg.Go(func() {
				r, err := f.Pick(epoch, &Request{Model: "m", Pools: []string{"p"}, Tokens: prompt(uint64(i), 1000)})
				if err != nil {
					t.Error(err)
					return
				}
				mu.Lock()
				defer mu.Unlock()
				counts[r.Worker().ID]++
			})
		}
		wg.Wait()
		for id, n := range counts {
			if mean := 64 / float64(workers); float64(n) > 1.3*mean || float64(n) < mean/1.3 {
				t.Errorf("%d workers: worker %d got %d of 64, more than 1.3x from the mean", workers, id, n)
			}
		}
		if len(counts) != workers {
			t.Errorf("%d workers: only %d got any", workers, len(counts))
		}
	}
}

// TestEqualBurstLandsTogether sends equal prompts at once, before any event:
// they share the first one's prefill until its queue costs more.
func TestEqualBurstLandsTogether(t *testing.T) {
	f, _ := testFleet(t, 4)
	tokens := prompt(1, 3001)
	var mu sync.Mutex
	counts := map[WorkerID]int{}
	uncached := 0
	var wg sync.WaitGroup
	for range 16 {
		wg.Go(func() {
			r, err := f.Pick(epoch, &Request{Model: "m", Pools: []string{"p"}, Tokens: tokens})
			if err != nil {
				t.Error(err)
				return
			}
			mu.Lock()
			defer mu.Unlock()
			counts[r.Worker().ID]++
			if r.Cached() == 0 {
				uncached++
			}
		})
	}
	wg.Wait()
	// While the first computes 3,000 tokens, another worker can be done no
	// sooner; of the four, those that started their own are as good.
	if uncached > 4 {
		t.Errorf("%d of 16 equal prompts are computed, want at most one a worker", uncached)
	}
	f, ids := testFleet(t, 4)
	holds(f, ids[0], 0, prompt(9, 2))
	first := pick(t, f, epoch, &Request{Tokens: tokens})
	later := epoch.Add(300 * time.Millisecond)
	for i := range 8 {
		if r := pick(t, f, later, &Request{Tokens: tokens}); r.Worker() != first.Worker() || r.Cached() != 3000 {
			t.Errorf("prompt %d, while the first is nearly done: worker %d with %d cached", i, r.Worker().ID, r.Cached())
		}
	}
}

// TestFailedRequestOfABurst has the first of two equal prompts fail: the second
// still brings the blocks.
func TestFailedRequestOfABurst(t *testing.T) {
	f, ids := testFleet(t, 2)
	tokens := prompt(1, 401)
	a := pick(t, f, epoch, &Request{Tokens: tokens, Exclude: ids[1:]})
	b := pick(t, f, epoch, &Request{Tokens: tokens, Exclude: ids[1:]})
	a.Done(epoch, WorkerFailed)
	c := pick(t, f, epoch, &Request{Tokens: tokens, Exclude: ids[1:]})
	if c.Cached() != 400 {
		t.Errorf("%d cached, want the 400 that the second request brings", c.Cached())
	}
	b.Done(epoch, WorkerFailed)
	c.Done(epoch, WorkerFailed)
	if d := pick(t, f, epoch, &Request{Tokens: tokens, Exclude: ids[1:]}); d.Cached() != 0 {
		t.Errorf("%d cached after all failed, want none", d.Cached())
	}
}

// TestUnknownViewGetsItsShare has three live workers and one whose events are
// not received, and every request share one prefix that all of them hold.
func TestUnknownViewGetsItsShare(t *testing.T) {
	for _, state := range []ViewState{ViewNotReporting, ViewJoining, ViewPartial, ViewRecovering} {
		f, ids := testFleet(t, 4)
		shared := prompt(1, 2000)
		for _, id := range ids[:3] {
			holds(f, id, 0, shared)
		}
		f.SetView(ids[3], 0, state)
		counts := map[WorkerID]int{}
		for i := range 100 {
			now := epoch.Add(time.Duration(i) * 5 * time.Millisecond)
			r := pick(t, f, now, &Request{Tokens: append(slices.Clone(shared), prompt(uint64(10+i), 200)...)})
			counts[r.Worker().ID]++
		}
		if n := counts[ids[3]]; n < 15 || n > 35 {
			t.Errorf("a view that is %s: the worker gets %d of 100, want about 25 (%v)", state, n, counts)
		}
	}
}

func TestUnknownTokensRouteOnLoad(t *testing.T) {
	f, ids := testFleet(t, 2)
	holds(f, ids[0], 0, prompt(1, 1000))
	busy := pick(t, f, epoch, &Request{Tokens: prompt(1, 1001)})
	for i := range 5 {
		r := pick(t, f, epoch, &Request{Estimate: 1000})
		if i == 0 && r.Worker() == busy.Worker() || r.Cached() != 0 || r.Prompt() != 1000 {
			t.Errorf("picked worker %d with %d of %d cached", r.Worker().ID, r.Cached(), r.Prompt())
		}
		r.Done(epoch, Completed)
	}
	r := pick(t, f, epoch, &Request{Estimate: -5})
	if r.Prompt() != 0 {
		t.Errorf("a negative estimate gives a prompt of %d", r.Prompt())
	}
	if st := f.Stats(); st.UnknownTokens != 6 || st.Speculative != 0 {
		t.Errorf("stats %+v", st)
	}
}

func TestPredictionRecords(t *testing.T) {
	cfg := DefaultConfig()
	cfg.Predictions = 3
	f := NewFleet(cfg)
	for _, name := range []string{"a", "b"} {
		id, err := f.Add(epoch, WorkerSpec{Name: name, Pool: "p", Models: []string{"m"}})
		if err != nil {
			t.Fatal(err)
		}
		f.SetReady(epoch, id, true, "")
	}
	var rs []*Reservation
	for i := range 5 {
		rs = append(rs, pick(t, f, epoch, &Request{Tokens: prompt(uint64(i), 100*(i+1))}))
	}
	rs[0].FirstToken(epoch.Add(time.Second)) // its record is gone
	rs[0].Done(epoch.Add(time.Second), Completed)
	rs[4].FirstToken(epoch.Add(2 * time.Second))
	rs[4].Done(epoch.Add(3*time.Second), ClientGone)
	recs := f.Predictions()
	if len(recs) != 3 {
		t.Fatalf("%d records, want 3", len(recs))
	}
	for i, rec := range recs {
		r := rs[i+2]
		if rec.Prompt != r.Prompt() || rec.Winner != r.Worker().ID || len(rec.Candidates) != 2 || !rec.TokensKnown || rec.Model != "m" {
			t.Errorf("record %d: %+v", i, rec)
		}
		for _, c := range rec.Candidates {
			if c.Worker == rec.Winner && c.Total != r.Predicted() {
				t.Errorf("record %d says %v, the reservation %v", i, c.Total, r.Predicted())
			}
			if off := c.Base + c.Wait + c.Prefill - c.Total; off < -3 || off > 3 {
				t.Errorf("record %d: the parts of %+v don't sum to its total", i, c)
			}
			if c.P90 < c.Total {
				t.Errorf("record %d: P90 %v is below the median %v", i, c.P90, c.Total)
			}
		}
	}
	if recs[1].Outcome != 0 || recs[2].Outcome != ClientGone || recs[2].Actual != 2*time.Second {
		t.Errorf("outcomes: %+v", recs)
	}
	recs[0].Candidates[0].Worker = 99
	if f.Predictions()[0].Candidates[0].Worker == 99 {
		t.Error("Predictions gives out its own memory")
	}
}

// TestServes: who could take a request, however busy, is found without a trace.
func TestServes(t *testing.T) {
	f, ids := testFleet(t, 2)
	f.SetTrial(ids[1], true)
	pick(t, f, epoch, &Request{Estimate: 1, Only: ids[1]}) // so the one on trial is busy
	before := f.Stats()
	for _, c := range []struct {
		name string
		req  Request
		do   func()
		want error
	}{
		{"ready", Request{Model: "m", Pools: []string{"p"}}, nil, nil},
		{"busy on trial", Request{Model: "m", Pools: []string{"p"}, Only: ids[1]}, nil, nil},
		{"no pool", Request{Model: "m"}, nil, ErrNoWorker},
		{"another model", Request{Model: "n", Pools: []string{"p"}}, nil, ErrNoWorker},
		{"all failed it", Request{Model: "m", Pools: []string{"p"}, Exclude: ids}, nil, ErrNotReady},
		{"not ready", Request{Model: "m", Pools: []string{"p"}, Only: ids[0]}, func() { f.SetReady(epoch, ids[0], false, "") }, ErrNotReady},
		{"another is", Request{Model: "m", Pools: []string{"p"}}, nil, nil},
		{"retired", Request{Model: "m", Pools: []string{"p"}}, func() { f.Retire(ids[1], "") }, ErrNotReady},
		{"gone", Request{Model: "m", Pools: []string{"p"}}, func() { f.Remove(ids[0]) }, ErrNoWorker},
	} {
		if c.do != nil {
			c.do()
		}
		if err := f.Serves(&c.req); !errors.Is(err, c.want) {
			t.Errorf("%s: %v, want %v", c.name, err, c.want)
		}
	}
	if after := f.Stats(); after.NotReady != before.NotReady || after.NoWorker != before.NoWorker || after.Picks != before.Picks {
		t.Errorf("it is counted: %+v after %+v", after, before)
	}
}
