package scoring

import (
	"testing"
	"time"

	"pgregory.net/rapid"
)

// exact makes s predict with what its engines really take, which do not scatter.
func exact(cfg Config) *simulation {
	e := newSimEngine(0)
	cfg.Prior = Coefficients{
		Base: seconds(e.stepTime) + 6*time.Millisecond, PerKilo: seconds(1000 * e.tokenTime),
		PerSeq: seconds(e.seqTime), Attention: seconds(e.pairTime),
	}
	cfg.BatchTokens = e.budget
	s := newSimulation(cfg, 1)
	s.noise = 0
	return s
}

// TestWaitIsNotAboveTheTruth lets requests queue before an engine and compares what
// the fleet said that each of them would wait with how much later its first token
// came than from an idle engine. It may be above it by as much as one step computes
// of requests behind the head, which nobody reports, and the way of a report;
// altogether it is below.
func TestWaitIsNotAboveTheTruth(t *testing.T) {
	for _, c := range []struct {
		name          string
		rate          float64
		least, output int
		slots         int
	}{
		{"seldom a queue", 8, 16, 4, 64},
		{"long queues", 16, 16, 4, 64},
		{"larger than a step", 3, 1500, 4, 64},
		{"long answers", 6, 16, 60, 64},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := exact(DefaultConfig())
			e := s.engines[0]
			e.slots = c.slots
			w := s.fleet.workers[0]
			said := map[*simRequest]float64{}
			choose := s.pick
			s.pick = func(r *simRequest) *Reservation {
				s.fleet.mu.Lock()
				w.predictor = predictor{} // what it takes is known, and not learned
				w.predictor.start(newPool(s.fleet.cfg.Prior.vector()))
				var l line
				s.fleet.meet(s.now, w, 0, 0, &l)
				said[r] = max(l.prefill, l.slot)
				s.fleet.mu.Unlock()
				return choose(r)
			}
			at := time.Duration(0)
			for i := range 300 {
				at += seconds(s.rng.ExpFloat64() / c.rate)
				s.submit(at, &simRequest{tokens: prompt(uint64(i+1), c.least+s.rng.IntN(1000)), output: c.output})
			}
			s.run()
			waited, told := 0.0, 0.0
			for i, r := range s.all {
				n := float64(len(r.tokens))
				steps := float64((len(r.tokens) + e.budget - 1) / e.budget)
				alone := 0.006 + steps*e.stepTime + n*e.tokenTime + attentionPairs(n, 0)*e.pairTime
				really := r.ttft.Seconds() - alone
				waited, told = waited+really, told+said[r]
				step := 0.006 + e.stepTime + e.tokenTime*float64(e.budget) + e.pairTime*attentionPairs(float64(e.budget), n)
				if said[r] > really+step {
					t.Errorf("request %d of %v tokens: a wait of %.4f s was told, it was %.4f s", i, n, said[r], really)
				}
			}
			if told < 0.6*waited || told > waited {
				t.Errorf("%.1f s of waiting were told, %.1f s it was", told, waited)
			}
		})
	}
}

// TestWaitIsTheLeast has workers with more and more to do, in both orders, beside one
// that can take nothing: whatever the bound, the wait told is the least.
func TestWaitIsTheLeast(t *testing.T) {
	for _, ahead := range [][]int{{12000, 9000, 6000}, {6000, 9000, 12000}} {
		f, ids := testFleet(t, 4)
		f.SetReady(epoch, ids[3], false, "down")
		for i, n := range ahead {
			pick(t, f, epoch, &Request{Estimate: n, Only: ids[i]})
		}
		want, _ := f.Wait(epoch, "p", "m", 0)
		if want < 600*time.Millisecond || want > 1000*time.Millisecond {
			t.Errorf("%v: the wait is %v, want that for 6,000 tokens", ahead, want)
		}
		for _, bound := range []time.Duration{time.Millisecond, 600 * time.Millisecond, 10 * time.Second, Unbounded} {
			if wait, look := f.Wait(epoch, "p", "m", bound); wait != want || (wait > bound) == look.IsZero() {
				t.Errorf("%v: against a bound of %v the wait is %v, to be looked at again at %v; want %v", ahead, bound, wait, look, want)
			}
		}
	}
	f, ids := testFleet(t, 1)
	if wait, _ := f.Wait(epoch, "q", "", 0); wait != Unbounded {
		t.Errorf("the wait of a pool that there is none of is %v", wait)
	}
	f.SetReady(epoch, ids[0], false, "down")
	if wait, look := f.Wait(epoch, "p", "", 0); wait != Unbounded || !look.IsZero() {
		t.Errorf("the wait of a pool of which no worker is ready is %v, to be looked at at %v", wait, look)
	}
}

// TestLookIsInTime draws queues at workers and has nothing reported from then on: who
// looks whenever Wait says so sees at once when the wait has fallen to the bound, and
// looks seldom.
func TestLookIsInTime(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		cfg := DefaultConfig()
		cfg.BatchTokens, cfg.MaxSeqs = 256, 8
		ms := func(what string, most int) time.Duration {
			return time.Duration(rapid.IntRange(0, most).Draw(rt, what)) * time.Millisecond
		}
		build := func() (*Fleet, func()) {
			f := NewFleet(cfg)
			ids := addWorkers(t, f, 2)
			return f, func() { _ = ids }
		}
		type pickOf struct {
			at    time.Duration
			n     int
			unary bool
			only  WorkerID
		}
		var picks []pickOf
		for range rapid.IntRange(1, 12).Draw(rt, "picks") {
			picks = append(picks, pickOf{ms("at", 1000), rapid.IntRange(1, 8000).Draw(rt, "tokens"), rapid.Bool().Draw(rt, "unary"), WorkerID(rapid.IntRange(1, 2).Draw(rt, "worker"))})
		}
		load := Load{Running: rapid.IntRange(0, 12).Draw(rt, "running"), Waiting: rapid.IntRange(0, 20).Draw(rt, "waiting")}
		refuses := rapid.Bool().Draw(rt, "a worker refuses")
		prepare := func() *Fleet {
			f, _ := build()
			for _, p := range picks {
				pick(t, f, epoch.Add(p.at), &Request{Estimate: p.n, Unary: p.unary, Only: p.only})
			}
			f.ObserveLoad(epoch.Add(time.Second), 1, load)
			f.ObserveLoad(epoch.Add(time.Second), 1, load)
			if refuses {
				f.Saturated(epoch.Add(time.Second), 2)
			}
			return f
		}
		bound := ms("bound", 500)
		start := epoch.Add(time.Second)

		within := time.Time{}
		f := prepare()
		for now := start; now.Before(start.Add(20 * time.Second)); now = now.Add(time.Millisecond) {
			if wait, _ := f.Wait(now, "p", "m", bound); wait <= bound {
				within = now
				break
			}
		}
		f, now, looks := prepare(), start, 0
		for {
			wait, look := f.Wait(now, "p", "m", bound)
			if wait <= bound {
				break
			}
			if looks++; look.IsZero() || look.After(start.Add(20*time.Second)) {
				if !within.IsZero() {
					rt.Fatalf("at %v, after %d looks, the next is at %v: the wait is within the bound at %v", now.Sub(start), looks, look, within.Sub(start))
				}
				return
			}
			if !look.After(now) {
				rt.Fatalf("at %v it is to be looked at again at %v", now.Sub(start), look.Sub(start))
			}
			now = look
		}
		if within.IsZero() || now.Sub(within) > 2*time.Millisecond || looks > 60 {
			rt.Fatalf("after %d looks the wait is seen to be within the bound at %v; it was at %v", looks, now.Sub(start), within.Sub(start))
		}
	})
}

// TestStepsBeginFull gives a worker requests of half a step's work while it is at a step.
// It is given what the next step can take, whatever part of the one under way is over, and
// from who is to keep room for more urgent requests only what makes a whole step with what
// is left of it. A single long prompt is no step: it keeps the worker closed.
func TestStepsBeginFull(t *testing.T) {
	const half = 1024 // of the 2,048 tokens of a step
	for _, c := range []struct {
		name  string
		ahead int
		after float64 // part of the step that is over
		keep  Keep
		want  int // requests until it is closed; each is given while there is less than that
	}{
		{"at the beginning", 2 * half, 0, Keep{}, 3},
		{"in the middle", 2 * half, 0.5, Keep{}, 3},
		{"before the end", 2 * half, 0.95, Keep{}, 3},
		{"at the beginning, with room kept", 2 * half, 0, Keep{Requests: 0.1}, 1},
		{"in the middle, with room kept", 2 * half, 0.5, Keep{Requests: 0.1}, 2},
		{"before the end, with room kept", 2 * half, 0.95, Keep{Requests: 0.1}, 3},
		{"behind a long prompt", 20 * half, 0, Keep{}, 0},
		{"behind a long prompt, in the middle", 20 * half, 0.5, Keep{}, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			f, _ := testFleet(t, 1)
			first := pick(t, f, epoch, &Request{Estimate: c.ahead})
			l := f.byID[1].predictor
			perToken, _ := l.costs(1)
			now := epoch.Add(seconds(c.after * perToken * 2 * half))
			given := 0
			for ; given <= c.want; given++ {
				if r, _ := offer(t, f, now, &Request{Estimate: half}, Terms{Bound: time.Millisecond, Keep: c.keep}); r == nil {
					break
				}
			}
			if given != c.want {
				t.Errorf("%d requests are given, want %d", given, c.want)
			}
			first.Done(now, ClientGone)
		})
	}
}
