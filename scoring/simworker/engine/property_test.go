package engine

import (
	"testing"

	"pgregory.net/rapid"
)

// TestPoolAgreesWithItsEvents runs random requests, aborts and resets, and
// checks after each step that the pool is consistent and that whoever applies
// the events in order knows exactly which blocks are cached.
func TestPoolAgreesWithItsEvents(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		cfg := testConfig()
		cfg.BlockSize = rapid.IntRange(1, 5).Draw(rt, "block size")
		cfg.MaxModelLen = rapid.IntRange(2, 40).Draw(rt, "max model len")
		cfg.Blocks = 1 + (cfg.MaxModelLen+cfg.BlockSize-1)/cfg.BlockSize + rapid.IntRange(0, 30).Draw(rt, "spare blocks")
		cfg.MaxSeqs = rapid.IntRange(1, 5).Draw(rt, "max seqs")
		cfg.BatchTokens = rapid.IntRange(1, 50).Draw(rt, "batch tokens")
		cfg.Priority = rapid.Bool().Draw(rt, "priority")
		cfg.OutputTokens = rapid.IntRange(0, 8).Draw(rt, "output tokens")
		r := newRun(t, cfg)
		view := map[Hash]int{}
		var ids []ID
		added := 0

		rt.Repeat(map[string]func(*rapid.T){
			"add": func(rt *rapid.T) {
				n := rapid.IntRange(1, cfg.MaxModelLen-1).Draw(rt, "prompt")
				ids = append(ids, r.add(Request{
					Prompt:    prompt(rapid.IntRange(1, 3).Draw(rt, "tag"), n),
					MaxTokens: rapid.IntRange(1, 20).Draw(rt, "max tokens"),
					Priority:  rapid.Int64Range(-1, 1).Draw(rt, "request's priority"),
					Salt:      rapid.SampledFrom([]string{"", "s"}).Draw(rt, "salt"),
				}))
				added++
			},
			"abort": func(rt *rapid.T) {
				if len(ids) > 0 {
					r.e.Finish(r.now, rapid.SampledFrom(ids).Draw(rt, "id"), Abort)
				}
			},
			"reset": func(*rapid.T) { r.e.Reset() },
			"step": func(rt *rapid.T) {
				r.events = nil
				r.step()
				for _, batch := range r.events {
					apply(rt, view, batch)
				}
			},
			"": func(rt *rapid.T) { checkPool(rt, r.e, view) },
		})
		r.events = nil
		r.drain()
		for _, batch := range r.events {
			apply(rt, view, batch)
		}
		checkPool(rt, r.e, view)
		s := r.e.Stats()
		if got := s.Finished[Stop] + s.Finished[Length] + s.Finished[Abort]; int(got) != added || s.BlocksHeld != 0 {
			rt.Fatalf("%d of %d requests ended, %d blocks held", got, added, s.BlocksHeld)
		}
	})
}

// apply keeps a count of each block's copies.
func apply(rt *rapid.T, view map[Hash]int, events []Event) {
	for _, ev := range events {
		switch ev.Kind {
		case Cleared:
			clear(view)
		case Removed:
			if view[ev.Hashes[0]]--; view[ev.Hashes[0]] < 0 {
				rt.Fatal("a block is removed that was not stored")
			}
		case Stored:
			if ev.Parent != nil && view[*ev.Parent] == 0 {
				rt.Fatal("a block is stored under a parent that is not there")
			}
			for _, h := range ev.Hashes {
				view[h]++
			}
		}
	}
}

func checkPool(rt *rapid.T, e *Engine, view map[Hash]int) {
	p := e.pool
	free := map[int32]bool{}
	for i, prev := p.front, int32(none); i != none; i = p.blocks[i].next {
		if free[i] || p.blocks[i].prev != prev || p.blocks[i].refs != 0 {
			rt.Fatalf("free list is broken at block %d", i)
		}
		free[i], prev = true, i
	}
	if len(free) != p.free {
		rt.Fatalf("%d blocks on the free list, %d counted", len(free), p.free)
	}
	refs := map[int32]int32{}
	for _, s := range e.running {
		for _, b := range s.blocks {
			refs[b]++
		}
	}
	named := map[Hash]int{}
	for i := range p.blocks {
		if p.blocks[i].refs != refs[int32(i)] || free[int32(i)] != (refs[int32(i)] == 0) {
			rt.Fatalf("block %d has %d references, %d are held", i, p.blocks[i].refs, refs[int32(i)])
		}
		if p.blocks[i].hasHash {
			named[p.blocks[i].hash]++
		}
	}
	if len(p.events) > 0 {
		return // not handed out yet; the view is behind
	}
	for h, n := range named {
		if view[h] != n {
			rt.Fatalf("%d copies of a block, %d by the events", n, view[h])
		}
	}
	for h, n := range view {
		if named[h] != n {
			rt.Fatalf("%d copies by the events, %d in the pool", n, named[h])
		}
	}
}
