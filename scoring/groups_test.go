package scoring

import "testing"

// A block in two stores below the device stays until it has left both.
func TestViewStoresApart(t *testing.T) {
	a := intHash(1)
	in := func(kind EventKind, t Tier) Event { return Event{Kind: kind, Hashes: []EngineHash{a}, Tier: t} }
	v := testView(0)
	v.apply([]Event{
		stored("", []EngineHash{a}, 1, 2), in(BlockStored, TierFile), in(BlockStored, TierObject),
		in(BlockRemoved, TierGPU), in(BlockRemoved, TierFile),
	})
	keys := AppendKeys(nil, Root("m", "", ""), []uint32{1, 2}, 2)
	if got, want := v.depth(keys), (depth{real: 1, all: 1, disk: 1}); got != want {
		t.Errorf("depth = %+v, want %+v", got, want)
	}
	if s := v.snapshot(); s.Disk != 1 || s.GPU != 0 {
		t.Errorf("the view counts %+v, want one block on disk", s)
	}
	v.apply([]Event{in(BlockRemoved, TierObject)})
	if got := v.matched(Root("m", "", ""), 1, 2); got != 0 {
		t.Errorf("%d blocks match after the last removal", got)
	}
}

// The engine takes a block from its cache only if all groups of full attention
// hold it.
func TestViewGroups(t *testing.T) {
	in := func(ev Event, group int, full bool) Event {
		ev.Group, ev.FullAttention = group, full
		return ev
	}
	h := func(n uint64) EngineHash { return intHash(n) }
	chain := func(first uint64) Event {
		return stored("", []EngineHash{h(first), h(first + 1), h(first + 2)}, 1, 2, 3, 4, 5, 6)
	}
	// The same text in blocks of three tokens.
	wide := Event{Kind: BlockStored, Hashes: []EngineHash{h(50), h(51)}, Tokens: []uint32{1, 2, 3, 4, 5, 6}, BlockSize: 3, Usable: 2}
	gone := func(group int, n uint64) Event { return in(removed(h(n)), group, false) }
	f := func(name string, want int, evs ...Event) {
		t.Helper()
		v := testView(0)
		v.apply(evs)
		if got := v.matched(Root("m", "", ""), 1, 2, 3, 4, 5, 6); got != want {
			t.Errorf("%s: %d blocks match, want %d", name, got, want)
		}
		v.close()
		for i := range v.idx.tiers {
			if n := v.idx.tiers[i].keys.Load(); n != 0 {
				t.Errorf("%s: %d keys left in tier %d", name, n, i)
			}
		}
	}
	f("one group", 3, in(chain(1), 0, true))
	f("both", 3, in(chain(1), 0, true), in(chain(11), 1, true))
	f("the second one lacks the last block", 2, in(chain(1), 0, true), in(chain(11), 1, true), gone(1, 13))
	f("the first one lacks the root", 0, in(chain(1), 0, true), in(chain(11), 1, true), gone(0, 1))
	f("stored again", 3, in(chain(1), 0, true), in(chain(11), 1, true), gone(1, 13),
		in(stored(h(12), []EngineHash{h(13)}, 5, 6), 1, true))
	f("another text in the second one", 0, in(chain(1), 0, true), in(stored("", []EngineHash{h(11)}, 7, 8), 1, true))
	f("three", 1, in(chain(1), 0, true), in(chain(11), 1, true), in(stored("", []EngineHash{h(21)}, 1, 2), 2, true))
	f("a clear forgets the groups", 3, in(chain(1), 0, true), in(chain(11), 1, true),
		Event{Kind: AllBlocksCleared}, in(chain(1), 0, true))
	f("two blocks of one text in a group", 3, in(chain(1), 0, true), in(chain(11), 1, true), in(chain(31), 1, true),
		gone(1, 11), gone(1, 12), gone(1, 13))
	f("kinds that are not named", 3, in(chain(1), 0, false), in(stored("", []EngineHash{h(11)}, 1, 2), 1, false))
	f("named later", 1, in(chain(1), 0, false), in(stored("", []EngineHash{h(11)}, 1, 2), 1, true))
	f("other block sizes don't wait for each other", 3, in(chain(1), 0, true), in(wide, 1, true))
	cpu := chain(11)
	cpu.Tier = TierCPU
	f("another tier has groups of its own", 3, in(chain(1), 0, true), in(cpu, 1, true))
}
