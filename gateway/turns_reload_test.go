package gateway

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluicegate/sluice/gateway/qos"
	"github.com/sluicegate/sluice/scoring"
)

// waiter is a request that waits for its turn.
type waiter struct {
	ex    *exchange
	since time.Time
	rej   *rejection
	took  time.Duration
	done  chan struct{}
}

// waits has a request ask for a turn that it doesn't get at once.
func (g *Gateway) waits(t *testing.T, pick scoring.Request) *waiter {
	t.Helper()
	pick.Estimate = longPrompt
	w := &waiter{ex: g.asks("standard", "acme", pick), since: time.Now(), done: make(chan struct{})}
	go func() {
		defer close(w.done)
		_, w.rej = w.ex.takeTurn(time.Time{})
		w.took = time.Since(w.since)
	}()
	synctest.Wait()
	if _, is := g.turns.members[&w.ex.turn]; !is {
		t.Fatal("the request doesn't wait")
	}
	return w
}

// end ends a request that has its turn.
func (w *waiter) end() {
	<-w.done
	if w.ex.res != nil {
		w.ex.res.Done(time.Now(), scoring.NotSent)
	}
	w.ex.left()
}

// TestNoWorkerIsLeft: a request that waits is told so when there is no worker any more
// that could take it, once it is clear that none comes back soon; and as long as there is
// one, however busy, it waits.
func TestNoWorkerIsLeft(t *testing.T) {
	type world struct {
		g     *Gateway
		fleet *scoring.Fleet
		ids   []scoring.WorkerID // m in a, m in b, other in a
	}
	ready := func(w *world, i int, ready bool) { w.fleet.SetReady(time.Now(), w.ids[i], ready, "test") }
	for _, c := range []struct {
		name  string
		pick  scoring.Request
		tried bool // a worker has failed it
		what  func(w *world)
		gone  bool
	}{
		{"nothing", scoring.Request{Pools: []string{"a"}}, false, func(*world) {}, false},
		{"not ready", scoring.Request{Pools: []string{"a"}}, false, func(w *world) { ready(w, 0, false) }, true},
		{"restarts", scoring.Request{Pools: []string{"a"}}, false, func(w *world) {
			ready(w, 0, false)
			time.Sleep(noWorkerRetry - lonelyEvery - time.Millisecond)
			ready(w, 0, true)
		}, false},
		{"removed", scoring.Request{Pools: []string{"a"}}, false, func(w *world) { w.fleet.Remove(w.ids[0]) }, true},
		{"its pool is removed", scoring.Request{Pools: []string{"a"}}, false, func(w *world) {
			st := *w.g.State()
			st.Pools = map[string]Pool{"b": {}}
			w.g.Swap(&st)
			w.fleet.Remove(w.ids[0])
			w.fleet.Remove(w.ids[2])
		}, true},
		{"there is another pool", scoring.Request{Pools: []string{"a", "b"}}, false, func(w *world) { ready(w, 0, false) }, false},
		{"the other pool goes, too", scoring.Request{Pools: []string{"a", "b"}}, false, func(w *world) { ready(w, 0, false); ready(w, 1, false) }, true},
		{"others' workers go", scoring.Request{Pools: []string{"a"}}, false, func(w *world) { ready(w, 1, false); ready(w, 2, false) }, false},
		{"the one that it needs", scoring.Request{Pools: []string{"a", "b"}, Only: 1}, false, func(w *world) { ready(w, 0, false) }, true},
		{"the one that has not failed it", scoring.Request{Pools: []string{"a", "b"}, Exclude: []scoring.WorkerID{2}}, true, func(w *world) { ready(w, 0, false) }, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := &world{fleet: scoring.NewFleet(scoring.DefaultConfig())}
				var plugs []*scoring.Reservation
				for _, spec := range []scoring.WorkerSpec{
					{Name: "1", Pool: "a", Models: []string{"m"}}, {Name: "2", Pool: "b", Models: []string{"m"}}, {Name: "3", Pool: "a", Models: []string{"other"}},
				} {
					id, err := w.fleet.Add(time.Now(), spec)
					if err != nil {
						t.Fatal(err)
					}
					w.ids = append(w.ids, id)
					w.fleet.SetReady(time.Now(), id, true, "")
					plug, err := w.fleet.Pick(time.Now(), &scoring.Request{Model: spec.Models[0], Pools: []string{spec.Pool}, Estimate: longPrompt})
					if err != nil {
						t.Fatal(err)
					}
					plugs = append(plugs, plug)
				}
				w.g = bareGateway(w.fleet, &State{Pools: map[string]Pool{"a": {}, "b": {}}, Queue: queueConfig()})
				defer w.g.turns.stop()
				c.pick.Model = "m"
				waits := w.g.waits(t, c.pick)
				if c.tried {
					waits.ex.turnTaken()
					waits.ex.attempts, waits.ex.tries.last = []Attempt{{}}, &rejection{}
				}
				c.what(w)
				time.Sleep(noWorkerRetry - lonelyEvery)
				synctest.Wait()
				select {
				case <-waits.done:
					t.Fatalf("it is over after %v: %v", waits.took, waits.rej)
				default:
				}
				time.Sleep(3 * lonelyEvery)
				synctest.Wait()
				select {
				case <-waits.done:
					if !c.gone {
						t.Fatalf("it is refused: %v", waits.rej)
					}
					status, reason := 503, "no_worker"
					if c.tried {
						status, reason = 502, ""
					}
					if waits.rej == nil || waits.rej.status != status || waits.ex.turn.reason != reason {
						t.Errorf("it ends with %+v for %q", waits.rej, waits.ex.turn.reason)
					}
				default:
					if c.gone {
						t.Error("it still waits")
					}
				}
				for _, plug := range plugs {
					plug.Done(time.Now(), scoring.NotSent)
				}
				waits.end()
				if n := w.g.turns.waiting.Load(); n != 0 {
					t.Errorf("%d requests wait at the end", n)
				}
			})
		})
	}
}

// TestQueueIsTakenAway: requests that wait when a reload takes the queue away still get
// their turns when there is room, and not by a look that nothing has told of; also if the
// queue comes back without their pool, or has a panic meanwhile.
func TestQueueIsTakenAway(t *testing.T) {
	for name, then := range map[string]func(g *Gateway, st *State){
		"":         func(*Gateway, *State) {},
		"and back": func(g *Gateway, st *State) { g.Swap(st) },
		"and back with less pools": func(g *Gateway, st *State) {
			less := *st
			less.Pools = map[string]Pool{"a": {}}
			g.Swap(&less)
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				g, fleet := queueOfOne(t)
				defer g.turns.stop()
				queued := *g.State()
				queued.Pools = map[string]Pool{"0": {}, "a": {}, "b": {}}
				g.Swap(&queued)
				plug, err := fleet.Pick(time.Now(), &scoring.Request{Model: "m", Pools: []string{"a"}, Estimate: longPrompt})
				if err != nil {
					t.Fatal(err)
				}
				waits := g.waits(t, scoring.Request{Model: "m", Pools: []string{"a", "b"}})
				none := queued
				none.Queue = qos.Config{}
				g.Swap(&none)
				then(g, &queued)
				time.Sleep(beltEvery / 2) // between two looks
				synctest.Wait()
				room := time.Now()
				plug.Done(room, scoring.NotSent)
				<-waits.done
				if took := time.Since(room); waits.rej != nil || took > 0 {
					t.Errorf("it got its turn %v after the room: %v", took, waits.rej)
				}
				waits.end()
				time.Sleep(time.Second)
				if n := g.turns.late.Load(); n != 0 {
					t.Errorf("%d late wake-ups", n)
				}
			})
		})
	}
}

// TestPanicWithoutAQueue: what a panic leaves has no more of a queue than the generation.
func TestPanicWithoutAQueue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g, fleet := queueOfOne(t)
		defer g.turns.stop()
		plug, err := fleet.Pick(time.Now(), &scoring.Request{Model: "m", Pools: []string{"a"}, Estimate: longPrompt})
		if err != nil {
			t.Fatal(err)
		}
		waits := g.waits(t, scoring.Request{Model: "m", Pools: []string{"a"}})
		st := *g.State()
		st.Queue = qos.Config{}
		g.Swap(&st)
		func() {
			g.turns.mu.Lock()
			defer g.turns.mu.Unlock()
			defer g.turns.survive()
			panic("BUG: of this test")
		}()
		<-waits.done
		if waits.rej == nil || waits.rej.status != 500 {
			t.Errorf("who has waited got %v", waits.rej)
		}
		waits.end()
		ex := g.asks("standard", "acme", scoring.Request{Model: "m", Pools: []string{"a"}, Estimate: longPrompt})
		defer ex.left()
		if _, rej := ex.takeTurn(time.Time{}); rej != nil || ex.turn.asked {
			t.Errorf("a request waits although there is no queue: %v", rej)
		}
		ex.res.Done(time.Now(), scoring.NotSent)
		plug.Done(time.Now(), scoring.NotSent)
	})
}

// TestRoomIsKeptWithoutTheLock: a request that finds the queue's lock taken leaves as
// much room for more urgent ones as the last that did not.
func TestRoomIsKeptWithoutTheLock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g, _ := queueOfOne(t)
		defer g.turns.stop()
		for range 20 {
			ex := g.asks("interactive", "acme", scoring.Request{Model: "m", Pools: []string{"a"}, Estimate: 100})
			if _, rej := ex.takeTurn(time.Time{}); rej != nil {
				t.Fatal(rej)
			}
			ex.res.Done(time.Now(), scoring.Completed)
			ex.left()
		}
		conf := g.turns.conf.Load()
		batch, urgent, pools := conf.class("batch"), conf.class("interactive"), []qos.PoolID{conf.pools["a"].id}
		want := g.turns.open(time.Now(), &batch, pools)
		if want.Keep.Requests <= 0 || want.Keep.Tokens <= 0 {
			t.Fatalf("there is nothing to be kept: %+v", want)
		}
		g.turns.open(time.Now(), &urgent, pools)
		g.turns.mu.Lock()
		defer g.turns.mu.Unlock()
		if got := g.turns.open(time.Now(), &batch, pools); got != want {
			t.Errorf("without the lock the terms are %+v, with it %+v", got, want)
		}
		if got := g.turns.open(time.Now(), &urgent, pools); got.Keep != (scoring.Keep{}) {
			t.Errorf("the most urgent class keeps %+v", got.Keep)
		}
	})
}
