package scoring

import (
	"math"
	"testing"
	"time"
)

func TestWorkAhead(t *testing.T) {
	const rate, batch = 1000, 1024
	at := func(ms int) time.Time { return epoch.Add(time.Duration(ms) * time.Millisecond) }
	queue := func(work ...int) *workload {
		l := new(workload)
		for _, n := range work {
			l.push(epoch, &Reservation{work: n})
		}
		return l
	}
	f := func(name string, l *workload, ms int, want float64) {
		t.Helper()
		if got, _, _ := l.ahead(at(ms), l.all(), 0, 1.0/rate, 0, batch, 1); math.Abs(got-want) > 1e-6 {
			t.Errorf("%s: %v tokens ahead, want %v", name, got, want)
		}
	}
	f("nothing", queue(), 1000, 0)
	f("just sent", queue(4000, 500), 0, 4500)
	f("half done", queue(4000, 500), 2000, 2500)
	f("due, the next waits in full", queue(4000, 500), 4000, 500)
	f("overdue by a second", queue(4000, 500), 5000, 1000)
	f("small ones share a step", queue(300, 300, 300), 600, 300)
	f("the clock went back", queue(4000), -50, 4000)

	l := queue(4000, 500)
	l.run(at(3000), l.head)
	f("the next came to the head", l, 3200, 300)
	l.end(at(3300), l.head, ClientGone)
	f("and left", l, 3300, 0)
	if l.running != 1 || l.prefilling != 0 || l.tokens != 0 {
		t.Errorf("%+v", l)
	}
}

// TestAttentionIsPartOfWhatIsAhead has a long prompt in the queue whose time is
// mostly attention: after half of it, half of the work is left.
func TestAttentionIsPartOfWhatIsAhead(t *testing.T) {
	l := new(workload)
	l.push(epoch, &Reservation{work: 1000, pairs: 9})
	for ms, want := range map[int][2]float64{0: {1000, 9}, 5000: {500, 4.5}, 10_000: {0, 0}, 12_000: {1000, 0}} {
		tokens, pairs, _ := l.ahead(epoch.Add(time.Duration(ms)*time.Millisecond), l.all(), 0, 0.001, 1, 1024, 1)
		if math.Abs(tokens-want[0]) > 1e-6 || math.Abs(pairs-want[1]) > 1e-6 {
			t.Errorf("after %d ms %v tokens and %v pairs are ahead, want %v", ms, tokens, pairs, want)
		}
	}
}

func TestUnaryPrefillEndsByPrediction(t *testing.T) {
	l := new(workload)
	a := &Reservation{work: 100, unary: true, picked: epoch, predicted: time.Second}
	b := &Reservation{work: 200, picked: epoch, predicted: time.Second}
	c := &Reservation{work: 300, unary: true, picked: epoch, predicted: time.Second}
	for _, r := range []*Reservation{a, b, c} {
		l.push(epoch, r)
	}
	l.advance(epoch.Add(999 * time.Millisecond))
	if l.prefilling != 3 {
		t.Errorf("%d prefill before it is due, want 3", l.prefilling)
	}
	l.advance(epoch.Add(time.Second))
	if a.phase != running || c.phase != prefilling || l.tokens != 500 {
		t.Errorf("phases %d, %d with %d tokens: want the first to run, the one behind a stream to wait", a.phase, c.phase, l.tokens)
	}
	for _, r := range []*Reservation{a, b, c} {
		l.end(epoch, r, Completed)
	}
	if l.inFlight() != 0 || l.tokens != 0 {
		t.Errorf("%+v", l)
	}
}

func TestOthersLoad(t *testing.T) {
	const stale = 5 * time.Second
	f := func(name string, prefills, decodes int, seen []Load, age time.Duration, waiting, running float64) {
		t.Helper()
		l := new(workload)
		for i := range prefills + decodes {
			r := &Reservation{work: 100}
			l.push(epoch, r)
			if i < decodes {
				l.run(epoch, r)
			}
		}
		for _, s := range seen {
			l.observe(epoch, s, stale)
		}
		w, r := l.others(epoch.Add(age), stale)
		if math.Abs(w-waiting) > 1e-9 || math.Abs(r-running) > 1e-9 {
			t.Errorf("%s: %v waiting, %v running; want %v, %v", name, w, r, waiting, running)
		}
	}
	load := func(running, waiting int) Load { return Load{Running: running, Waiting: waiting} }
	f("never seen", 2, 2, nil, 0, 0, 0)
	f("all ours", 2, 3, []Load{load(4, 1)}, 0, 0, 0)
	f("fewer than ours: the count here is right", 5, 5, []Load{load(1, 0)}, 0, 0, 0)
	f("others run", 1, 1, []Load{load(6, 0)}, 0, 0, 4)
	f("others wait", 1, 1, []Load{load(2, 7)}, 0, 6, 1)
	f("one of ours was preempted", 0, 3, []Load{load(2, 1)}, 0, 1, 0)
	f("only what two observations show", 0, 0, []Load{load(9, 9), load(2, 3)}, 0, 3, 2)
	f("half as old as may be", 0, 0, []Load{load(4, 2)}, stale/2, 1, 2)
	f("stale", 0, 0, []Load{load(4, 2)}, stale, 0, 0)
	f("staler", 0, 0, []Load{load(4, 2)}, time.Hour, 0, 0)
}

func TestOthersLoadRepels(t *testing.T) {
	f, ids := testFleet(t, 2)
	f.ObserveLoad(epoch, ids[0], Load{Running: 10, Waiting: 20})
	for i := range 10 {
		r := pick(t, f, epoch, &Request{Tokens: prompt(uint64(i), 1000)})
		if i < 5 && r.Worker().ID != ids[1] {
			t.Errorf("request %d went to a worker that others keep busy", i)
		}
		r.Done(epoch, Completed)
	}
	later := epoch.Add(time.Minute)
	seen := map[WorkerID]bool{}
	for range 40 {
		r := pick(t, f, later, &Request{Estimate: 10})
		seen[r.Worker().ID] = true
		r.Done(later, Completed)
	}
	if len(seen) != 2 {
		t.Errorf("a minute later only %v get requests", seen)
	}
}

func TestSlotWait(t *testing.T) {
	l := &workload{running: 3, prefilling: 1, meanDecode: 2}
	for slots, want := range map[int]float64{8: 0, 5: 0, 4: 0.5, 2: 3} {
		if got := l.slotWait(l.prefilling, 0, slots); got != want {
			t.Errorf("%d slots: waits %v s, want %v", slots, got, want)
		}
	}
	if got := l.slotWait(l.prefilling, 1, 5); got != 0.4 {
		t.Errorf("with one of others': waits %v s, want 0.4", got)
	}
}

// TestStalledWorkerIsLeft has a worker stop answering: without one report of
// it, new requests go elsewhere.
func TestStalledWorkerIsLeft(t *testing.T) {
	f, ids := testFleet(t, 2)
	shared := prompt(1, 2001)
	holds(f, ids[0], 0, shared)
	stuck := pick(t, f, epoch, &Request{Tokens: shared})
	if stuck.Worker().ID != ids[0] {
		t.Fatal("the prefix was not followed")
	}
	if r := pick(t, f, epoch.Add(100*time.Millisecond), &Request{Tokens: shared}); r.Worker().ID != ids[0] {
		t.Error("the worker was left after 100 ms")
	} else {
		r.Done(epoch.Add(100*time.Millisecond), NotSent)
	}
	if r := pick(t, f, epoch.Add(3*time.Second), &Request{Tokens: shared}); r.Worker().ID != ids[1] {
		t.Error("a cached prompt still goes to a worker that said nothing for 3 s")
	}
}
