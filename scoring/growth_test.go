package scoring

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// TestPeakIsTheMost compares the peak with what is held at each token to come, over any
// order of requests that begin, get their first tokens late, end early or outlive what
// was expected of them.
func TestPeakIsTheMost(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		g := growth{gap: 1}
		now := epoch
		var live []*claim
		for range rapid.IntRange(0, 60).Draw(t, "steps") {
			switch what := rapid.IntRange(0, 3).Draw(t, "what"); {
			case what <= 1 || len(live) == 0:
				h := &claim{own: float64(rapid.IntRange(0, 500).Draw(t, "own"))}
				g.begin(h, now, rapid.IntRange(0, 80).Draw(t, "output"))
				live = append(live, h)
			case what == 2:
				g.again(live[rapid.IntRange(0, len(live)-1).Draw(t, "which")], now)
			default:
				i := rapid.IntRange(0, len(live)-1).Draw(t, "which")
				g.forward(now)
				g.drop(live[i])
				live = slices.Delete(live, i, i+1)
			}
			now = now.Add(time.Duration(rapid.IntRange(0, 20).Draw(t, "tokens")) * 4 * time.Second)
			if !slices.IsSortedFunc(g.claims, byEnd) || len(g.claims) != len(live) {
				t.Fatalf("%d claims for %d requests, or out of order", len(g.claims), len(live))
			}
		}
		own, output, waste := float64(rapid.IntRange(0, 500).Draw(t, "own")), rapid.IntRange(0, 120).Draw(t, "output"), 8.0
		last := float64(max(1, output))
		at := func(left float64) float64 { // held in so many tokens' time
			held := own + waste + left
			for _, h := range live {
				if h.end >= g.clock+left {
					held += h.own + waste + g.clock + left - h.start
				}
			}
			return held
		}
		want := at(last)
		for left := 0.0; left <= last; left += 0.5 { // ends lie at quarters at the finest
			want = max(want, at(left))
		}
		for _, h := range live {
			if left := h.end - g.clock; left <= last {
				want = max(want, at(left))
			}
		}
		if got := g.peak(own, output, waste, 1e9); got < want {
			t.Fatalf("at most %v tokens are expected, want %v", got, want)
		}
		g.known = false
		if got := g.peak(own, output, waste, 0); got > want || got < own {
			t.Fatalf("with no room %v tokens are expected, the most is %v", got, want)
		}
		g.most, g.known = 1e12, true // look at each end
		if got := g.peak(own, output, waste, 1e9); got != want {
			t.Fatalf("at most %v tokens are expected, want %v", got, want)
		}
	})
}

// TestSharedPromptsEndWithTheLast compares what is expected to be held with the distinct
// stretches of those that still run at each end, over any order of their coming and
// going: it is never less, and no more while those have left that were to end first.
func TestSharedPromptsEndWithTheLast(t *testing.T) {
	text := prompt(1, 5000)
	rapid.Check(t, func(t *rapid.T) {
		w := worker{capacity: 1 << 20, capacitySize: 16}
		var live []*claim
		inOrder := true
		for range rapid.IntRange(1, 30).Draw(t, "steps") {
			if len(live) > 0 && rapid.IntRange(0, 2).Draw(t, "leave") == 0 {
				i := rapid.IntRange(0, len(live)-1).Draw(t, "which")
				for k, h := range live { // of two that were to end together, none was to end first
					inOrder = inOrder && (k == i || h.end > live[i].end)
				}
				w.leave(live[i])
				live = slices.Delete(live, i, i+1)
				continue
			}
			n, h := rapid.IntRange(0, 5000).Draw(t, "prompt"), new(claim)
			w.enter(epoch, h, AppendKeys(nil, Root("m", "", ""), text[:n], 16), 16, n, rapid.IntRange(1, 500).Draw(t, "output"))
			live = append(live, h)
		}
		output := rapid.IntRange(1, 500).Draw(t, "output of the next")
		want := 0.0
		for end := 1; end <= output; end++ {
			held, seen := float64(8+end), map[Key]bool{}
			for _, h := range live {
				if h.end < float64(end) {
					continue
				}
				held += float64(h.loose + 8 + end)
				for _, k := range h.keys {
					if !seen[k] {
						held += 256
					}
					seen[k] = true
				}
			}
			want = max(want, held)
		}
		w.most, w.known = 1e12, false
		got := w.expects(0, output, 0, time.Second)
		w.known = false
		got = max(got, w.expects(0, output, 1e12, time.Second))
		if exact := w.peakAtEnds(output); exact < want || inOrder && exact != want {
			t.Fatalf("%v tokens are expected to be held, want %v", exact, want)
		}
		if got < want {
			t.Fatalf("%v tokens are said to be held at most, want %v", got, want)
		}
		for _, h := range live {
			w.leave(h)
		}
		if w.shared != 0 || len(w.claims) != 0 {
			t.Fatalf("%d shared tokens and %d claims are left", w.shared, len(w.claims))
		}
	})
}

// peakAtEnds is what is expected without the short cut for when all fits.
func (w *worker) peakAtEnds(output int) float64 {
	w.look(float64(w.capacitySize) / 2)
	w.most = 1e12
	return float64(w.shared) + w.peak(0, output, float64(w.capacitySize)/2, 1e11)
}

// TestGrowthFitsTheRoom has one worker be offered more than it can hold, and all answers
// be as long as expected: its memory is never overcommitted, and well used.
func TestGrowthFitsTheRoom(t *testing.T) {
	const room, step = 20_000, 50 * time.Millisecond
	f, ids := testFleet(t, 1)
	f.SetCapacity(ids[0], 16, room/16)
	rng := rand.New(rand.NewPCG(7, 7))
	type request struct {
		res                    *Reservation
		prompt, output, tokens int
	}
	var running []*request
	next := &request{prompt: 500, output: 100}
	now, used, steps := epoch, 0, 0
	for range 4000 {
		now = now.Add(step)
		held := 0
		for _, r := range running {
			if r.tokens++; r.tokens == 1 {
				r.res.FirstToken(now)
			}
			held += (r.prompt + r.tokens + 15) / 16 * 16
		}
		if held > room {
			t.Fatalf("%v after the beginning %d tokens are held, there is room for %d", now.Sub(epoch), held, room)
		}
		if steps++; steps > 500 {
			used += held
		}
		running = slices.DeleteFunc(running, func(r *request) bool {
			if r.tokens < r.output {
				return false
			}
			r.res.Output(r.output)
			r.res.Done(now, Completed)
			return true
		})
		for {
			r, _ := offer(t, f, now, &Request{Estimate: next.prompt, Output: next.output}, Terms{Bound: time.Hour})
			if r == nil {
				break
			}
			next.res = r
			running = append(running, next)
			next = &request{prompt: 100 + rng.IntN(1500), output: 20 + rng.IntN(400)}
		}
	}
	if part := float64(used) / float64(steps-500) / room; part < 0.75 {
		t.Errorf("%.2f of the room is used on average", part)
	}
}

// TestRoomToGrowIsTold has a worker without room for another answer to grow: it stays
// closed as long as nothing is reported, and opens when one ends.
func TestRoomToGrowIsTold(t *testing.T) {
	f, ids := testFleet(t, 1)
	f.SetCapacity(ids[0], 16, 1000)
	var held []*Reservation
	for {
		r, no := offer(t, f, epoch, &Request{Estimate: 500, Output: 1000}, Terms{Bound: time.Hour})
		if r == nil {
			if !no.Look.IsZero() {
				t.Errorf("it is to be looked at again at %v, although only a report can make room", no.Look)
			}
			break
		}
		held = append(held, r)
	}
	if n := len(held); n < 9 || n > 11 {
		t.Fatalf("16,000 tokens have room for %d requests that grow from 500 tokens to 1,500", n)
	}
	told := 0
	f.OnRoom(func(string) { told++ })
	for _, r := range held {
		r.FirstToken(epoch.Add(time.Second))
	}
	for after := range 1000 {
		if r, _ := offer(t, f, epoch.Add(time.Second+time.Duration(after)*time.Second), &Request{Estimate: 500, Output: 1000}, Terms{Bound: time.Hour}); r != nil {
			t.Fatalf("%d s later it is open, and nobody was told", after)
		}
	}
	told = 0
	held[0].Done(epoch.Add(2*time.Second), Completed)
	if r, _ := offer(t, f, epoch.Add(2*time.Second), &Request{Estimate: 500, Output: 1000}, Terms{Bound: time.Hour}); r == nil || told != 1 {
		t.Errorf("after an end, told %d times, it is not open", told)
	}
}

// TestIdleWorkerTakesWhatIsTooLarge: one that has nothing to do is open to any request.
func TestIdleWorkerTakesWhatIsTooLarge(t *testing.T) {
	f, ids := testFleet(t, 1)
	f.SetCapacity(ids[0], 16, 100)
	if r, _ := offer(t, f, epoch, &Request{Estimate: 5000, Output: 1 << 20}, Terms{}); r == nil {
		t.Error("an idle worker does not take a request that is too large for it")
	}
}

// TestOthersGrowthIsForeign: of what a worker says that it holds, what its answers have
// grown to is known; the rest is of other senders and counts.
func TestOthersGrowthIsForeign(t *testing.T) {
	f, ids := testFleet(t, 1)
	f.SetCapacity(ids[0], 16, 1000)
	for range 4 {
		pick(t, f, epoch, &Request{Estimate: 1000, Output: 1000}).FirstToken(epoch)
	}
	w := f.workers[0]
	now := epoch.Add(10 * time.Second) // of 50 ms a token: each has 200
	f.ObserveLoad(now, ids[0], Load{Running: 4, KVUsage: 4800.0 / 16_000})
	if w.foreign > 1 {
		t.Errorf("%v tokens count as others', all are the answers' own", w.foreign)
	}
	f.ObserveLoad(now, ids[0], Load{Running: 6, KVUsage: 8800.0 / 16_000})
	if w.foreign < 3999 || w.foreign > 4001 {
		t.Errorf("%v tokens count as others', want 4,000", w.foreign)
	}
}

// TestLessThanBelievedIsRoom: prompts that share a beginning of less than a whole stretch
// look larger than they are; what the worker says that it holds corrects that.
func TestLessThanBelievedIsRoom(t *testing.T) {
	f, ids := testFleet(t, 1)
	f.SetCapacity(ids[0], 16, 1000)
	for range 30 {
		pick(t, f, epoch, &Request{Estimate: 500, Output: 20}).FirstToken(epoch)
	}
	pick(t, f, epoch, &Request{Estimate: 400, Output: 20}) // has not come there
	ask := &Request{Estimate: 500, Output: 20}
	if r, _ := offer(t, f, epoch, ask, Terms{Bound: time.Hour}); r != nil {
		t.Fatal("16,000 tokens have room for 15,900 and more")
	}
	f.ObserveLoad(epoch, ids[0], Load{Running: 30, KVUsage: 13_000.0 / 16_000})
	if got := f.workers[0].foreign; got < -2001 || got > -1999 {
		t.Errorf("13,000 tokens are held, 15,000 were believed to be: corrected by %v", got)
	}
	r, _ := offer(t, f, epoch, ask, Terms{Bound: time.Hour})
	if r == nil {
		t.Error("with 13,000 tokens held there is no room for 900")
	}
	f.ObserveLoad(epoch, ids[0], Load{}) // does not say
	if got := f.workers[0].foreign; got != 0 {
		t.Errorf("a worker that says nothing of its cache corrects by %v", got)
	}
}

// TestShortAnswersWaitAtTheWorker has a cache full of prompts. Where their answers are next
// to nothing a request that finds no space waits at the worker, within its bound, unless
// room is to be kept for more urgent ones; where they are long it doesn't go there.
func TestShortAnswersWaitAtTheWorker(t *testing.T) {
	for _, c := range []struct {
		name   string
		output int
		terms  Terms
		open   bool
	}{
		{"short answers", 8, Terms{Bound: time.Hour}, true},
		{"short answers, with room kept", 8, Terms{Bound: time.Hour, Keep: Keep{Requests: 0.1}}, false},
		{"long answers", 200, Terms{Bound: time.Hour}, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			f, ids := testFleet(t, 1)
			f.SetCapacity(ids[0], 16, 1000)
			for range 10 {
				pick(t, f, epoch, &Request{Estimate: 1580, Output: c.output}).FirstToken(epoch.Add(time.Second))
			}
			r, no := offer(t, f, epoch.Add(time.Second), &Request{Estimate: 8000, Output: c.output}, c.terms)
			if open := r != nil; open != c.open {
				t.Errorf("open: %v, want %v; %+v", open, c.open, no)
			}
		})
	}
}

// TestWaitBeforeTheFirstTokenIsNoLength has first tokens take longer than whole answers
// are expected to: these are no longer for that.
func TestWaitBeforeTheFirstTokenIsNoLength(t *testing.T) {
	f, ids := testFleet(t, 1)
	f.SetCapacity(ids[0], 16, 10_000)
	r := pick(t, f, epoch, &Request{Estimate: 1000, Output: 50})
	now := epoch
	for range 20 { // 400 tokens' time
		now = now.Add(time.Second)
		f.ObserveLoad(now, ids[0], Load{Waiting: 1})
	}
	r.FirstToken(now)
	if got := r.holds.end - r.holds.start; got != 50 {
		t.Errorf("an answer of 50 tokens whose first came late is expected to have %v", got)
	}
}

// TestGrowthStandsAnyPace has a worker say, or be seen to have, a pace that none has. What
// is in its hands is expected to end nevertheless, and each change is over at once.
func TestGrowthStandsAnyPace(t *testing.T) {
	f, ids := testFleet(t, 1)
	f.SetCapacity(ids[0], 16, 1000)
	w := f.workers[0]
	r := pick(t, f, epoch, &Request{Estimate: 10, Output: 10})
	r.FirstToken(epoch)
	r.Output(1<<31 - 1)
	stays := pick(t, f, epoch, &Request{Estimate: 10, Output: 10})
	stays.FirstToken(epoch)
	r.Done(epoch.Add(1), Completed)
	now := epoch.Add(1)
	for range 100 {
		now = now.Add(time.Second)
		f.ObserveLoad(now, ids[0], Load{Running: 1})
	}
	if most := 100.01 / leastGap; w.clock > most {
		t.Errorf("in 100 s an answer has had %v tokens, want at most %v", w.clock, most)
	}
	f.ObserveLoad(now, ids[0], Load{Running: 1, InterToken: 1})
	before := w.clock
	f.ObserveLoad(now.Add(time.Second), ids[0], Load{Running: 1, InterToken: 50 * time.Millisecond})
	if got, most := w.clock-before, 1.01/leastGap; got > most {
		t.Errorf("in 1 s an answer has had %v tokens, want at most %v", got, most)
	}
	stays.Done(now, Completed)
	pick(t, f, now, &Request{Estimate: 10, Output: 10}).FirstToken(now)
	if w.clock > 1 {
		t.Errorf("the clock begins at %v where nothing goes by it", w.clock)
	}
}
