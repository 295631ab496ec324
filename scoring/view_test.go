package scoring

import (
	"encoding/binary"
	"math/rand/v2"
	"testing"
)

func intHash(n uint64) EngineHash {
	return EngineHash(binary.BigEndian.AppendUint64(nil, n))
}

// stored makes a BlockStored event of blocks of two tokens each.
func stored(parent EngineHash, hashes []EngineHash, tokens ...uint32) Event {
	return Event{
		Kind: BlockStored, Parent: parent, Hashes: hashes, Tokens: tokens,
		BlockSize: 2, Usable: len(hashes),
	}
}

func removed(hashes ...EngineHash) Event { return Event{Kind: BlockRemoved, Hashes: hashes} }

// testView returns a view with a column of its own in a new index.
func testView(capacity int) *view {
	cfg := DefaultConfig()
	x := new(index)
	v := newView(x, "m", 0, x.newColumn(), &cfg)
	if capacity > 0 {
		v.setCapacity(2, capacity)
	}
	return v
}

// matched is how many blocks of the prompt the view holds.
func (v *view) matched(root Key, tokens ...uint32) int {
	return int(v.depth(AppendKeys(nil, root, tokens, 2)).all)
}

func (v *view) depth(keys []Key) depth {
	var w walk
	w.reset(len(v.idx.taken))
	w.cols[v.col/64] |= 1 << (v.col % 64)
	v.idx.match(keys, &w)
	return w.depths[v.col]
}

func TestViewEvents(t *testing.T) {
	a, b, c := intHash(1), intHash(1<<63), EngineHash("a digest of more than eight bytes")
	f := func(name string, evs []Event, want ApplyStats, blocks int) {
		t.Helper()
		v := testView(0)
		if got := v.apply(evs); got != want {
			t.Errorf("%s: apply = %+v, want %+v", name, got, want)
		}
		if got := v.matched(Root("m", "", ""), 1, 2, 3, 4, 5, 6); got != blocks {
			t.Errorf("%s: %d blocks match, want %d", name, got, blocks)
		}
	}
	chainOf3 := stored("", []EngineHash{a, b, c}, 1, 2, 3, 4, 5, 6)

	f("store", []Event{chainOf3}, ApplyStats{Stored: 3}, 3)
	f("store in pieces", []Event{
		stored("", []EngineHash{a}, 1, 2), stored(a, []EngineHash{b, c}, 3, 4, 5, 6),
	}, ApplyStats{Stored: 3}, 3)
	f("three stores and one removal leave nothing", []Event{
		chainOf3, chainOf3, chainOf3, removed(a, b, c),
	}, ApplyStats{Stored: 3, Repeated: 6, Removed: 3}, 0)
	f("removal before the store that caused it", []Event{
		chainOf3, removed(c), stored(b, []EngineHash{intHash(4)}, 7, 8),
	}, ApplyStats{Stored: 4, Removed: 1}, 2)
	f("clear before the store that follows", []Event{
		chainOf3, {Kind: AllBlocksCleared}, stored("", []EngineHash{a}, 1, 2),
	}, ApplyStats{Stored: 4, Cleared: 1}, 1)
	f("removal of an unknown hash", []Event{removed(a)}, ApplyStats{UnknownRemoved: 1}, 0)
	f("children wait for their parent", []Event{
		stored(b, []EngineHash{c}, 5, 6), stored(a, []EngineHash{b}, 3, 4),
		stored("", []EngineHash{a}, 1, 2),
	}, ApplyStats{HeldBack: 2, Stored: 3}, 3)
	f("removed while waiting, still a link", []Event{
		stored(a, []EngineHash{b, c}, 3, 4, 5, 6), removed(b), stored("", []EngineHash{a}, 1, 2),
	}, ApplyStats{HeldBack: 2, Removed: 1, Stored: 2}, 1)
	f("a clear drops what waits", []Event{
		stored(a, []EngineHash{b}, 3, 4), {Kind: AllBlocksCleared}, stored("", []EngineHash{a}, 1, 2),
	}, ApplyStats{HeldBack: 1, Cleared: 1, Stored: 1}, 1)
	f("blocks from the first unusable one are known and not matched", []Event{
		{Kind: BlockStored, Hashes: []EngineHash{a, b}, Tokens: []uint32{1, 2, 3, 4}, BlockSize: 2, Usable: 1},
		stored(b, []EngineHash{c}, 5, 6),
	}, ApplyStats{Stored: 3, Unusable: 2}, 1)
	f("a middle block missing ends the match", []Event{chainOf3, removed(b)},
		ApplyStats{Stored: 3, Removed: 1}, 1)
	f("tokens that don't fit the hashes", []Event{
		stored("", []EngineHash{a, b}, 1, 2, 3), stored("", []EngineHash{a}, 1, 2),
	}, ApplyStats{Malformed: 1, Stored: 1}, 1)
	f("a known block behind unknown ones doesn't wait with them", []Event{
		chainOf3, removed(a, b), stored(a, []EngineHash{b, c}, 3, 4, 5, 6), removed(c),
		stored("", []EngineHash{a}, 1, 2),
	}, ApplyStats{Stored: 5, Repeated: 1, Removed: 3, HeldBack: 1}, 2)
	f("no block size", []Event{{Kind: BlockStored, Hashes: []EngineHash{a}, Tokens: []uint32{1, 2}, Usable: 1}},
		ApplyStats{Malformed: 1}, 0)
	f("unknown kind, unknown tier", []Event{{}, {Kind: BlockStored, Tier: tiers}}, ApplyStats{Malformed: 2}, 0)
	f("no hashes", []Event{{Kind: BlockStored}, {Kind: BlockRemoved}}, ApplyStats{}, 0)
	f("offload of an unknown block", []Event{{Kind: BlockStored, Hashes: []EngineHash{a}, Tier: TierCPU}},
		ApplyStats{UnknownStored: 1}, 0)
	f("groups have hashes of their own", []Event{
		chainOf3, {Kind: BlockRemoved, Hashes: []EngineHash{a}, Group: 1},
	}, ApplyStats{Stored: 3, UnknownRemoved: 1}, 3)
	other := stored("", []EngineHash{c}, 1, 2)
	other.Group = 1
	f("a block stays until the last group drops it", []Event{
		chainOf3, other, removed(a),
	}, ApplyStats{Stored: 4, Removed: 1}, 3)
	f("and then goes", []Event{
		chainOf3, other, removed(a), {Kind: BlockRemoved, Hashes: []EngineHash{c}, Group: 1},
	}, ApplyStats{Stored: 4, Removed: 2}, 0)
}

func TestViewTiers(t *testing.T) {
	a, b, c := intHash(1), intHash(2), intHash(3)
	in := func(t Tier, hashes ...EngineHash) Event {
		return Event{Kind: BlockStored, Hashes: hashes, Tier: t}
	}
	v := testView(0)
	v.apply([]Event{
		stored("", []EngineHash{a, b, c}, 1, 2, 3, 4, 5, 6),
		in(TierCPU, b, c), in(TierDisk, c), removed(b, c),
		{Kind: BlockRemoved, Hashes: []EngineHash{c}, Tier: TierCPU},
	})
	keys := AppendKeys(nil, Root("m", "", ""), []uint32{1, 2, 3, 4, 5, 6}, 2)
	if got, want := v.depth(keys), (depth{real: 3, all: 3, cpu: 1, disk: 1}); got != want {
		t.Errorf("depth = %+v, want %+v", got, want)
	}
	st := v.apply([]Event{
		{Kind: BlockRemoved, Hashes: []EngineHash{b}, Tier: TierDisk},
		{Kind: BlockRemoved, Hashes: []EngineHash{b}, Tier: TierCPU},
	})
	if want := (ApplyStats{Removed: 1, UnknownRemoved: 1}); st != want {
		t.Errorf("apply = %+v, want %+v", st, want)
	}
	if got, want := v.depth(keys), (depth{real: 1, all: 1}); got != want {
		t.Errorf("depth after removal = %+v, want %+v", got, want)
	}
}

func TestViewTierOfWaitingBlock(t *testing.T) {
	a, b := intHash(1), intHash(2)
	v := testView(0)
	v.apply([]Event{
		stored(a, []EngineHash{b}, 3, 4),
		{Kind: BlockStored, Hashes: []EngineHash{b}, Tier: TierCPU},
		removed(b),
		stored("", []EngineHash{a}, 1, 2),
	})
	keys := AppendKeys(nil, Root("m", "", ""), []uint32{1, 2, 3, 4}, 2)
	if got, want := v.depth(keys), (depth{real: 2, all: 2, cpu: 1}); got != want {
		t.Errorf("depth = %+v, want %+v", got, want)
	}
}

func TestViewIsolation(t *testing.T) {
	v := testView(0)
	salted := stored("", []EngineHash{intHash(1)}, 1, 2)
	salted.Salt = "tenant-a"
	adapted := stored("", []EngineHash{intHash(2)}, 1, 2)
	adapted.LoRA = "poet"
	v.apply([]Event{salted, adapted})
	for _, c := range []struct {
		model, lora, salt string
		want              int
	}{
		{"m", "", "", 0}, {"m", "", "tenant-a", 1}, {"m", "", "tenant-b", 0},
		{"m", "poet", "", 1}, {"m", "poet", "tenant-a", 0}, {"n", "", "tenant-a", 0},
	} {
		if got := v.matched(Root(c.model, c.lora, c.salt), 1, 2); got != c.want {
			t.Errorf("model %q LoRA %q salt %q: %d blocks match, want %d", c.model, c.lora, c.salt, got, c.want)
		}
	}
}

func TestViewCapacity(t *testing.T) {
	v := testView(8)
	for i := range uint32(100) {
		st := v.apply([]Event{stored("", []EngineHash{intHash(uint64(i))}, i, i)})
		if i >= 8 && st.Evicted != 1 {
			t.Fatalf("store %d evicted %d blocks, want 1", i, st.Evicted)
		}
	}
	if s := v.snapshot(); s.GPU != 8 || v.idx.keys() != 8 {
		t.Errorf("view holds %d blocks, index %d keys, want 8", s.GPU, v.idx.keys())
	}
	if st := v.apply([]Event{
		stored("", []EngineHash{intHash(200)}, 200, 200), removed(v.anyHash()),
	}); st.Evicted != 0 {
		t.Errorf("a batch whose removal follows its store evicted %d", st.Evicted)
	}
	if st := v.setCapacity(2, 3); st.Evicted != 5 || v.idx.keys() != 3 {
		t.Errorf("a lower capacity evicted %d and left %d, want 5 and 3", st.Evicted, v.idx.keys())
	}
}

// anyHash is the engine's name of a block that the view holds.
func (v *view) anyHash() EngineHash {
	for i, s := range v.groups[0].blocks.meta {
		if s != 0 {
			return intHash(v.groups[0].blocks.slots[i].hash)
		}
	}
	return ""
}

// TestViewEvictsEvenly: blocks that leave next to each other leave no room for
// those that come anywhere, which then have to be searched for.
func TestViewEvictsEvenly(t *testing.T) {
	const capacity = 10_000
	v := testView(capacity)
	rnd := rand.New(rand.NewPCG(1, 2))
	for range 5 * capacity {
		if st := v.apply([]Event{stored("", []EngineHash{intHash(rnd.Uint64())}, rnd.Uint32(), rnd.Uint32())}); st.Stored != 1 {
			t.Fatalf("got %+v", st)
		}
	}
	run, longest := 0, 0
	for _, s := range v.groups[0].blocks.meta {
		if run++; s == 0 {
			run = 0
		}
		longest = max(longest, run)
	}
	if v.blocks[TierGPU] != capacity || longest > capacity/10 {
		t.Errorf("%d blocks, up to %d of them in a row", v.blocks[TierGPU], longest)
	}
}

func TestViewHoldsBackBounded(t *testing.T) {
	v := testView(0)
	v.held.limit = 10
	for i := range uint64(100) {
		st := v.apply([]Event{stored(intHash(1000+i), []EngineHash{intHash(2 * i), intHash(2*i + 1)}, 1, 2, 3, 4)})
		if i >= 5 && st.HeldDropped != 2 {
			t.Fatalf("event %d dropped %d, want 2", i, st.HeldDropped)
		}
	}
	if v.held.blocks != 10 || v.held.order.Len() != 5 || len(v.held.byHash) != 10 || len(v.held.byParent) != 5 {
		t.Errorf("held %d blocks in %d runs, %d hashes, %d parents; want 10, 5, 10, 5",
			v.held.blocks, v.held.order.Len(), len(v.held.byHash), len(v.held.byParent))
	}
	long := stored(intHash(1), make([]EngineHash, 11), make([]uint32, 22)...)
	if st := v.apply([]Event{long}); st.HeldDropped != 11 || v.held.blocks != 10 {
		t.Errorf("a run over the bound: %+v, %d held", st, v.held.blocks)
	}
}

// Requests are matched with the block size that most cached tokens are in.
func TestViewBlockSize(t *testing.T) {
	n := uint64(0)
	v := testView(0)
	f := func(want, size, blocks int, tier Tier) {
		t.Helper()
		for range blocks {
			n++
			v.apply([]Event{{
				Kind: BlockStored, Hashes: []EngineHash{intHash(n)}, Tokens: make([]uint32, size), BlockSize: size, Usable: 1, Tier: tier,
			}})
		}
		if got := int(v.size.Load()); got != want {
			t.Errorf("after %d blocks of %d tokens: size %d, want %d", blocks, size, got, want)
		}
	}
	f(256, 256, 1, TierCPU)
	f(16, 16, 1, TierGPU) // the device counts, once it has something
	f(16, 256, 9, TierCPU)
	f(528, 528, 2, TierGPU)
	f(528, 16, 40, TierGPU) // the tails of prompts
	f(528, 8, 1, TierGPU)
	f(16, 16, 40, TierGPU) // not only tails
	f(528, 528, 1, TierGPU)
	v.clear()
	if got := v.size.Load(); got != 528 {
		t.Errorf("size %d after a clear, want 528", got)
	}
	f(32, 32, 1, TierGPU)
	f(32, 64, 0, TierGPU)
	// A tie changes nothing, in whichever order.
	f(32, 16, 2, TierGPU)
	f(32, 32, 1, TierGPU)
	f(32, 16, 2, TierGPU)
}

func TestViewTrust(t *testing.T) {
	v := testView(4)
	f := func(s ViewState, want bool) {
		t.Helper()
		v.setState(s)
		if got := v.trusted.Load(); got != want {
			t.Errorf("state %s: trusted is %v, want %v", s, got, want)
		}
	}
	f(ViewNotReporting, false)
	f(ViewJoining, false)
	f(ViewLive, true)
	f(ViewRecovering, false)
	f(ViewPartial, false)
	for i := range uint32(4) {
		v.apply([]Event{stored("", []EngineHash{intHash(uint64(i))}, i, i)})
	}
	f(ViewPartial, true) // the whole cache was turned over since
	f(ViewRecovering, false)
}

// TestManyBlockSizesOfGroups has more block sizes than are kept apart: the ones
// beyond make no key wait for another group, so nothing is looked through.
func TestManyBlockSizesOfGroups(t *testing.T) {
	s := &sharing{}
	g := &group{bit: 1, full: true}
	for size := 1; size <= maxClasses; size++ {
		if !s.join(g, size) || s.join(g, size) {
			t.Fatalf("size %d: only the first block concerns others", size)
		}
	}
	if s.join(g, maxClasses+1) {
		t.Error("a size that is not kept apart is said to concern others' keys")
	}
}
