package qos_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/sluicegate/sluice/gateway/qos"
	"github.com/sluicegate/sluice/gateway/qos/qostest"
	"pgregory.net/rapid"
)

// TestHotPrefix has many requests with one prefix, which one of eight workers has cached.
// Those that hold for it show to those behind, so that the others take their part.
func TestHotPrefix(t *testing.T) {
	w := newWorld(t, 8, 10_000, patient, "a")
	by := make(map[*qostest.Worker]int)
	var last time.Duration
	w.outcome = func(o qos.Outcome) {
		by[o.Entry.Payload.(*qostest.Request).Worker]++
		last = w.now.Sub(start)
	}
	for range 1000 {
		e := w.entry("plain", "x", 5000) // 50 ms with the cache, 500 ms without
		e.Payload = &qostest.Request{Near: 1}
		w.admit(e)
	}
	w.run(time.Minute)
	// A worker with the cache serves 20 a second, each of the others 2.
	if want := 1000.0 / 34; last.Seconds() > want*1.1 {
		t.Errorf("the last is placed after %v, all workers together would take %.1f s", last, want)
	}
	if len(by) != 8 {
		t.Errorf("%d of 8 workers got any", len(by))
	}
}

// TestPoolsDoNotBlockEachOther closes one pool for ever: what is placed in another one is the
// same as if nothing waited for the first.
func TestPoolsDoNotBlockEachOther(t *testing.T) {
	play := func(beside bool) (said []string) {
		w := newWorld(t, 1, 10_000, patient, "a", "b")
		w.fleet.Workers[0].Closed = true
		w.outcome = func(o qos.Outcome) {
			said = append(said, fmt.Sprint(o.Entry.Tenant, o.Entry.Work, o.State, w.now.Sub(start)))
		}
		rng := rand.New(rand.NewPCG(1, 1))
		w.every(70*time.Millisecond, 20*time.Second, func() {
			if beside {
				for _, class := range []string{"urgent", "batch"} {
					w.admit(w.entry(class, fmt.Sprint(w.now), 900, 0))
				}
			}
			class := []string{"urgent", "plain", "batch"}[rng.IntN(3)]
			w.admit(w.entry(class, fmt.Sprint(rng.IntN(3)), 1+rng.Int64N(1500), 1))
		})
		w.run(30 * time.Second)
		return said
	}
	alone, beside := play(false), play(true)
	if len(alone) < 250 || !slices.Equal(alone, beside) {
		t.Errorf("%d placed alone, %d beside what waits for another pool", len(alone), len(beside))
	}
}

// TestOwnHoldIsNoReason has an entry that may go to two pools hold for a busy worker of
// one, where its prompt is cached. What it holds there itself makes no worker of the
// other pool the best for it, in whichever order the pools are looked at.
func TestOwnHoldIsNoReason(t *testing.T) {
	for _, near := range []int{1, 2} {
		w := newWorld(t, 1, 10_000, patient, "a", "b")
		for _, worker := range w.fleet.Workers {
			worker.Slots = 1
		}
		only := func(work int64, answer time.Duration) *qos.Entry {
			e := w.entry("plain", "x", work, 0, 1)
			e.Payload = &qostest.Request{Only: near, Near: near, Answer: answer}
			return e
		}
		w.admit(only(10, 400*time.Millisecond))
		e := w.entry("plain", "x", 5000, 0, 1) // half a second without the cache, 50 ms with it
		e.Payload = &qostest.Request{Near: near}
		w.admit(e)
		var at qos.PoolID
		w.outcome = func(o qos.Outcome) { at = o.Pool }
		w.q.Dirty(0)
		w.run(time.Second)
		if at != qos.PoolID(near-1) || e.Payload.(*qostest.Request).Worker == nil {
			t.Errorf("cached in pool %d, it went to %d", near-1, at)
		}
	}
}

// TestNoLostWakeUp plays a fleet that tells of ends alone, and otherwise pumps when
// Next says so. Whenever nothing is due, nobody may be found who could be placed, at
// whichever of its pools.
func TestNoLostWakeUp(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := newWorld(&testing.T{}, rapid.IntRange(1, 3).Draw(t, "workers"), 10_000, patient, "a", "b", "c")
		classes := []string{"urgent", "plain", "batch"}
		if slots := rapid.IntRange(0, 5).Draw(t, "slots"); slots > 0 {
			classes = classes[:1] // what is kept for more urgent ones fades by itself
			for _, worker := range w.fleet.Workers {
				worker.Slots = slots
			}
		}
		rng := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 0))
		n, done := rapid.IntRange(1, 60).Draw(t, "entries"), 0
		w.outcome = func(qos.Outcome) { done++ }
		at := time.Duration(0)
		for range n {
			at += time.Duration(rng.ExpFloat64() * float64(60*time.Millisecond))
			w.at(at, func() {
				pools := [][]qos.PoolID{{0}, {1}, {2}, {0, 1}, {2, 0}, {1, 2, 0}}[rng.IntN(6)]
				e := w.entry(classes[rng.IntN(len(classes))], fmt.Sprint(rng.IntN(4)), 1+rng.Int64N(2500), pools...)
				r := &qostest.Request{Answer: time.Duration(rng.Int64N(int64(time.Second)))}
				switch rng.IntN(6) {
				case 0:
					r.Near = 1 + rng.IntN(len(w.fleet.Workers))
				case 1:
					r.Near = 1
				}
				e.Payload = r
				w.admit(e)
				if rng.IntN(8) == 0 {
					w.at(w.now.Sub(start)+time.Duration(rng.Int64N(int64(time.Second))), func() {
						if w.q.Leave(w.now, e) == qos.Waiting {
							done++
						}
					})
				}
			})
		}
		w.idle = func() {
			before := done
			for id := range qos.PoolID(3) {
				w.q.Dirty(id)
			}
			if w.take(w.q.Pump(w.now, w.fleet, nil)); done > before {
				t.Fatalf("%d could be placed at %v, and nothing told so", done-before, w.now.Sub(start))
			}
		}
		w.run(at + 10*time.Minute)
		if done != n || w.q.Waiting() != 0 {
			t.Fatalf("%d of %d placed, %d wait", done, n, w.q.Waiting())
		}
	})
}
