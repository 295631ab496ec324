package scoring

import (
	"fmt"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// loadModel keeps account of every reservation of a fleet by itself.
type loadModel struct {
	fleet *Fleet
	now   time.Time
	added int
	live  map[WorkerID]bool
	all   []*openReservation
}

type openReservation struct {
	*Reservation
	first, done bool
}

// TestLoadReturnsToZero plays any interleaving of picks, first tokens, ends
// (each any number of times), removals and clears: the fleet's load is at every
// moment the sum over the open reservations, and zero at the end.
func TestLoadReturnsToZero(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := &loadModel{fleet: NewFleet(DefaultConfig()), now: epoch, live: map[WorkerID]bool{}}
		ops := []func(*rapid.T){
			m.add, m.pick, m.pick, m.pick, m.firstToken, m.end, m.remove, m.clear, m.observe, m.pass,
		}
		for range rapid.SampledFrom([]int{10, 50, 150}).Draw(t, "steps") {
			rapid.SampledFrom(ops).Draw(t, "op")(t)
			m.check(t)
		}
		for _, r := range m.all {
			r.Done(m.now, ClientGone)
			r.done = true
		}
		m.check(t)
		for _, r := range m.all {
			if w := r.worker; w.inFlight() != 0 || w.taken != 0 || len(w.used) != 0 || w.tokens != 0 || w.pairs != 0 || w.head != nil || w.tail != nil {
				t.Fatalf("worker %d keeps load: %+v", w.id, w.workload)
			}
		}
		f := m.fleet
		f.mu.Lock()
		f.soon.expire(m.now.Add(time.Minute))
		f.mu.Unlock()
		if f.soon.keys != 0 || f.soon.entries.Len() != 0 || len(f.soon.more) != 0 || f.idx.soon.keys.Load() != 0 {
			t.Fatalf("expectations left: %+v", f.soon)
		}
	})
}

func (m *loadModel) drawOpen(t *rapid.T) *openReservation {
	if len(m.all) == 0 {
		return nil
	}
	return m.all[rapid.IntRange(0, len(m.all)-1).Draw(t, "reservation")]
}

func (m *loadModel) drawWorker(t *rapid.T) WorkerID {
	return WorkerID(rapid.IntRange(1, max(1, m.added)).Draw(t, "worker"))
}

func (m *loadModel) add(t *rapid.T) {
	if len(m.live) == 4 {
		return
	}
	m.added++
	id, err := m.fleet.Add(m.now, WorkerSpec{Name: fmt.Sprint(m.added), Pool: "p", Models: []string{"m"}})
	if err != nil {
		t.Fatal(err)
	}
	m.fleet.SetReady(m.now, id, true, "")
	m.live[id] = true
}

func (m *loadModel) pick(t *rapid.T) {
	req := &Request{Model: "m", Pools: []string{"p"}, Estimate: 100, Unary: rapid.Bool().Draw(t, "unary")}
	if n := rapid.IntRange(0, 1500).Draw(t, "tokens"); n > 0 {
		req.Tokens = make([]uint32, n)
	}
	r, err := m.fleet.Pick(m.now, req)
	if (err == nil) != (len(m.live) > 0) {
		t.Fatalf("pick among %d workers: %v", len(m.live), err)
	}
	if err == nil {
		m.all = append(m.all, &openReservation{Reservation: r})
	}
}

func (m *loadModel) firstToken(t *rapid.T) {
	if r := m.drawOpen(t); r != nil {
		r.FirstToken(m.now)
		r.first = true
	}
}

func (m *loadModel) end(t *rapid.T) {
	if r := m.drawOpen(t); r != nil {
		r.Done(m.now, rapid.SampledFrom([]Outcome{Completed, ClientGone, WorkerFailed, NotSent}).Draw(t, "outcome"))
		r.done = true
	}
}

func (m *loadModel) remove(t *rapid.T) {
	if rapid.IntRange(0, 3).Draw(t, "really") == 0 {
		id := m.drawWorker(t)
		m.fleet.Remove(id)
		delete(m.live, id)
	}
}

func (m *loadModel) clear(t *rapid.T) { m.fleet.ClearView(m.drawWorker(t), 0) }

func (m *loadModel) observe(t *rapid.T) {
	m.fleet.ObserveLoad(m.now, m.drawWorker(t), Load{
		Running: rapid.IntRange(-1, 9).Draw(t, "running"), Waiting: rapid.IntRange(-1, 9).Draw(t, "waiting"),
	})
}

func (m *loadModel) pass(t *rapid.T) {
	m.now = m.now.Add(time.Duration(rapid.IntRange(0, 4000).Draw(t, "ms")) * time.Millisecond)
}

func (m *loadModel) check(t *rapid.T) {
	inFlight, prefill := map[WorkerID]int{}, map[WorkerID]int{}
	total, expected := 0, 0
	for _, r := range m.all {
		if r.done {
			continue
		}
		total++
		inFlight[r.info.ID]++
		if r.phase == prefilling {
			prefill[r.info.ID] += r.work
		} else if !r.first && !r.unary {
			t.Fatal("a prefill ended that nobody reported")
		}
		if r.expects != nil && r.expects.elem != nil {
			expected += len(r.expects.keys)
		}
	}
	f := m.fleet
	for _, w := range f.workers {
		if w.inFlight() != inFlight[w.id] || w.tokens != prefill[w.id] || w.prefilling < 0 || w.running < 0 {
			t.Fatalf("worker %d counts %d in flight, %d tokens; want %d, %d",
				w.id, w.inFlight(), w.tokens, inFlight[w.id], prefill[w.id])
		}
	}
	if got := f.Stats().InFlight; got != total {
		t.Fatalf("fleet counts %d in flight, want %d", got, total)
	}
	if f.soon.keys < expected {
		t.Fatalf("%d blocks expected, want at least %d", f.soon.keys, expected)
	}
}

func TestReportsCountOnce(t *testing.T) {
	f, _ := testFleet(t, 1)
	at := func(ms int) time.Time { return epoch.Add(time.Duration(ms) * time.Millisecond) }
	r := pick(t, f, epoch, &Request{Estimate: 1000})
	r.FirstToken(at(200))
	r.FirstToken(at(900))
	r.Done(at(1000), Completed)
	r.Done(at(1000), WorkerFailed)
	r.FirstToken(at(2000))
	st := f.Stats()
	if st.FirstTokens != 1 || st.ActualSum != 200*time.Millisecond || st.Completed != 1 || st.WorkerFailed != 0 {
		t.Errorf("stats %+v", st)
	}
	rec := f.Predictions()
	if len(rec) != 1 || rec[0].Outcome != Completed || rec[0].Actual != 200*time.Millisecond || rec[0].Winner != r.Worker().ID {
		t.Errorf("records %+v", rec)
	}
}

func TestExpectations(t *testing.T) {
	tokens := prompt(1, 401)
	for _, c := range []struct {
		name  string
		first bool
		out   Outcome
		kept  bool
	}{
		{"completed", true, Completed, true},
		{"completed without a first token", false, Completed, true},
		{"client left after the prefill", true, ClientGone, true},
		{"client left before", false, ClientGone, false},
		{"worker failed before", false, WorkerFailed, false},
		{"not sent", false, NotSent, false},
	} {
		f, _ := testFleet(t, 1)
		r := pick(t, f, epoch, &Request{Tokens: tokens})
		if c.first {
			r.FirstToken(epoch)
		}
		r.Done(epoch, c.out)
		want := 0
		if c.kept {
			want = 400
		}
		if got := pick(t, f, epoch, &Request{Tokens: tokens}).Cached(); got != want {
			t.Errorf("%s: an equal prompt finds %d cached tokens, want %d", c.name, got, want)
		}
	}
}

func TestExpectationsEnd(t *testing.T) {
	tokens := prompt(1, 401)
	f, _ := testFleet(t, 1)
	cached := func(after time.Duration) int {
		r := pick(t, f, epoch.Add(after), &Request{Tokens: tokens})
		defer r.Done(epoch.Add(after), NotSent)
		return r.Cached()
	}
	r := pick(t, f, epoch, &Request{Tokens: tokens})
	if got := cached(10 * time.Second); got != 400 {
		t.Errorf("while the prefill waits, %d tokens are expected, want 400", got)
	}
	r.FirstToken(epoch.Add(11 * time.Second))
	if got := cached(12 * time.Second); got != 400 {
		t.Errorf("just after the prefill, %d tokens are expected, want 400", got)
	}
	if got := cached(14 * time.Second); got != 0 {
		t.Errorf("3 s after it, %d tokens are expected, want none", got)
	}
	r.Done(epoch.Add(20*time.Second), Completed)
}

func TestExpectationsAreBounded(t *testing.T) {
	cfg := DefaultConfig()
	cfg.SpeculativeKeys = 500
	x := new(index)
	s := speculation{idx: x, ttl: cfg.SpeculativeTTL, limit: 500, more: map[expected]int{}}
	by := &Reservation{phase: prefilling}
	var last *expectation
	for i := range 20 {
		last = s.add(epoch, by, AppendKeys(nil, Root("m", "", ""), prompt(uint64(i), 200), 1), 0)
		if s.keys > 500 || int(x.soon.keys.Load()) != s.keys {
			t.Fatalf("%d keys kept, %d in the table, want at most 500", s.keys, x.soon.keys.Load())
		}
	}
	if s.add(epoch, by, make([]Key, 501), 0) != nil {
		t.Error("an entry over the bound was kept")
	}
	s.drop(last)
	s.drop(last)
	if s.keys != 200 {
		t.Errorf("%d keys kept after dropping twice, want 200", s.keys)
	}
}
