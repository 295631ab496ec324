package engine

import (
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// TestPriorityOrdersTheQueue: a lower priority is taken earlier, equal ones in
// the order of arrival; without the option all are.
func TestPriorityOrdersTheQueue(t *testing.T) {
	for _, priority := range []bool{false, true} {
		cfg := testConfig()
		cfg.MaxSeqs, cfg.Priority = 1, priority
		r := newRun(t, cfg)
		ids := []ID{r.add(Request{Prompt: prompt(1, 20), MaxTokens: 3, Priority: 100})}
		r.step() // the first runs, and is not preempted for any that waits
		for i, p := range []int64{5, 0, 5, -1, 0} {
			r.now = r.now.Add(time.Millisecond)
			ids = append(ids, r.add(Request{Prompt: prompt(i+2, 20), MaxTokens: 2, Priority: p}))
		}
		r.drain()
		order := slices.Clone(ids)
		slices.SortFunc(order, func(a, b ID) int { return r.ended[a].FirstToken.Compare(r.ended[b].FirstToken) })
		want := ids
		if priority {
			want = []ID{ids[0], ids[4], ids[2], ids[5], ids[1], ids[3]}
		}
		if !slices.Equal(order, want) {
			t.Errorf("priority %v: taken in the order %v, want %v", priority, order, want)
		}
	}
}

// TestPriorityChoosesWhoIsPreempted: when blocks run out the least urgent request
// loses its own, also one that the step had been given tokens for.
func TestPriorityChoosesWhoIsPreempted(t *testing.T) {
	for _, c := range []struct {
		priority bool
		victim   int
	}{{false, 2}, {true, 0}} {
		cfg := testConfig()
		cfg.Priority = c.priority
		cfg.Blocks, cfg.MaxModelLen = 14, 320 // 13 usable; each ends with 6
		r := newRun(t, cfg)
		var ids []ID
		for i, p := range []int64{9, 1, 1} {
			ids = append(ids, r.add(Request{Prompt: prompt(i+1, 100), MaxTokens: 92, Priority: p}))
		}
		r.drain()
		for i, id := range ids {
			if lost := r.ended[id].Preemptions > 0; lost != (i == c.victim) {
				t.Errorf("priority %v: request %d is preempted: %v", c.priority, i, lost)
			}
			if n := len(r.tokens[id]); n != 92 {
				t.Errorf("priority %v: request %d drew %d tokens, want 92", c.priority, i, n)
			}
		}
	}
}

// TestPriorityPreemptsTheOldest: where the oldest running request is the least
// urgent and finds no block, it gives way to the others and the engine goes on
// with them at once.
func TestPriorityPreemptsTheOldest(t *testing.T) {
	cfg := testConfig()
	cfg.Priority = true
	cfg.Blocks, cfg.MaxModelLen = 11, 320 // 10 usable; each holds 4 and needs 7 at its end
	r := newRun(t, cfg)
	late := r.add(Request{Prompt: prompt(1, 100), MaxTokens: 100, Priority: 1})
	r.step()
	urgent := r.add(Request{Prompt: prompt(2, 90), MaxTokens: 100})
	r.drain()
	if n := r.ended[late].Preemptions; n == 0 {
		t.Fatal("the less urgent request was never preempted")
	}
	if n := r.ended[urgent].Preemptions; n != 0 {
		t.Errorf("the urgent request was preempted %d times, want 0", n)
	}
	for _, id := range []ID{late, urgent} {
		if n := len(r.tokens[id]); n != 100 {
			t.Errorf("request %d drew %d tokens, want 100", id, n)
		}
	}
}

// TestPriorityKeepsTheBudget: no step computes more than its budget, or more for
// a request than it has, though requests lose their place in the midst of it.
func TestPriorityKeepsTheBudget(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		cfg := testConfig()
		cfg.BlockSize, cfg.MaxModelLen, cfg.Priority = 4, 60, true
		cfg.Blocks = rapid.IntRange(17, 40).Draw(rt, "blocks")
		cfg.BatchTokens = rapid.IntRange(1, 60).Draw(rt, "batch tokens")
		r := newRun(t, cfg)
		for i := range rapid.IntRange(2, 8).Draw(rt, "requests") {
			r.add(Request{
				Prompt: prompt(i+1, rapid.IntRange(1, 30).Draw(rt, "prompt")), MaxTokens: rapid.IntRange(1, 30).Draw(rt, "answer"),
				Priority: rapid.Int64Range(0, 3).Draw(rt, "priority"),
			})
		}
		for r.step() {
			last := r.steps[len(r.steps)-1]
			if n := last.Prefill + last.Decode; n > cfg.BatchTokens {
				rt.Fatalf("a step computes %d tokens, its budget is %d", n, cfg.BatchTokens)
			}
			if !slices.IsSortedFunc(r.e.waiting, func(a, b *sequence) int {
				if a.before(b) {
					return -1
				}
				return 1
			}) {
				rt.Fatal("requests wait out of order")
			}
		}
		if s := r.e.Stats(); !r.e.Idle() || s.BlocksHeld != 0 {
			rt.Fatalf("requests or blocks are left: %+v", s)
		}
	})
}

func TestPriorityIsNotToldAhead(t *testing.T) {
	cfg := testConfig()
	cfg.Priority = true
	if _, err := NewAhead(cfg); err == nil {
		t.Error("an engine with priorities is told ahead")
	}
}
