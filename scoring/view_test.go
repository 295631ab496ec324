package scoring

import (
	"encoding/binary"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"

	"pgregory.net/rapid"
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

// contents is the keys of a column.
func (t *table) contents(col int) map[Key]bool {
	out := map[Key]bool{}
	for i := range t.shards {
		c := t.shards[i].cells.Load()
		if c == nil || col >= 64*c.words {
			continue
		}
		for j := 0; j < len(c.data); j += 1 + c.words {
			if c.data[j+1+col/64].Load()&(1<<(col%64)) != 0 {
				out[Key(c.data[j].Load())] = true
			}
		}
	}
	return out
}

// modelBlock is a block of one group in the naive model. The model keeps every
// block it ever saw and follows links one by one.
type modelBlock struct {
	parent   *modelBlock
	children []*modelBlock
	hash     EngineHash
	token    uint32
	group    int
	lora     string
	salt     string
	unusable bool

	// key is what the block's chain amounts to; 0 when no request can have it.
	key Key
	// truth is where the engine has it, view where the view must have it.
	truth, view tierSet
	// placed says that the view knows the block's key, linked that it heard of
	// the block's place in a chain whose beginning it doesn't know.
	placed, linked bool
}

type model struct {
	blocks []*modelBlock
	hashes uint64
	// full says that the engine names its groups full attention, so that all of
	// them must hold a block. storing are those that stored since the last clear.
	full    bool
	storing [tiers]map[int]bool
}

// child returns the block with this text after parent, made on first use: one
// hash names one text.
func (m *model) child(parent *modelBlock, token uint32, group int, lora, salt string, unusable bool) *modelBlock {
	for _, b := range m.blocks {
		if b.parent == parent && b.token == token && b.group == group && b.lora == lora && b.salt == salt {
			return b
		}
	}
	m.hashes++
	b := &modelBlock{
		parent: parent, token: token, group: group, lora: lora, salt: salt, unusable: unusable,
		hash: intHash(m.hashes * 0x2545f4914f6cdd1d),
	}
	if m.hashes%3 == 0 {
		b.hash = EngineHash(fmt.Sprintf("digest %d", m.hashes))
	}
	above := Root("m", lora, salt)
	if parent != nil {
		parent.children = append(parent.children, b)
		above = parent.key
	}
	if above != 0 && !unusable {
		b.key = AppendKeys(nil, above, []uint32{token, token}, 2)[0]
	}
	m.blocks = append(m.blocks, b)
	return b
}

// tell is a store with tokens that reaches the view.
func (b *modelBlock) tell(t Tier) {
	b.view |= 1 << t
	if b.placed {
		return
	}
	if b.parent == nil || b.parent.placed {
		b.place()
	} else {
		b.linked = true
	}
}

// place makes the block's key known, and those of the blocks linked to it.
func (b *modelBlock) place() {
	b.placed, b.linked = true, false
	for _, c := range b.children {
		if c.linked {
			c.place()
		}
	}
	if b.view == 0 {
		b.placed = false
	}
}

// event is the store of a run of blocks, each the parent of the next.
func event(run []*modelBlock, tier Tier) Event {
	ev := Event{
		Kind: BlockStored, BlockSize: 2, Tier: tier, Group: run[0].group,
		Usable: len(run), LoRA: run[0].lora,
	}
	if p := run[0].parent; p != nil {
		ev.Parent = p.hash
	} else {
		ev.Salt = run[0].salt
	}
	for i, b := range run {
		ev.Hashes = append(ev.Hashes, b.hash)
		ev.Tokens = append(ev.Tokens, b.token, b.token)
		if b.unusable && ev.Usable > i {
			ev.Usable = i
		}
	}
	return ev
}

func (m *model) present(group int) []*modelBlock {
	var out []*modelBlock
	for _, b := range m.blocks {
		if b.group == group && b.truth != 0 {
			out = append(out, b)
		}
	}
	return out
}

func (m *model) check(t *rapid.T, v *view) {
	var want [tiers]map[Key]bool
	var blocks [tiers]int
	for i := range want {
		want[i] = map[Key]bool{}
		if m.storing[i] == nil {
			m.storing[i] = map[int]bool{}
		}
		holders := map[Key]map[int]bool{}
		for _, b := range m.blocks {
			if !b.placed || !b.view.has(Tier(i)) {
				continue
			}
			blocks[i]++
			m.storing[i][b.group] = true
			if b.key != 0 {
				if holders[b.key] == nil {
					holders[b.key] = map[int]bool{}
				}
				holders[b.key][b.group] = true
			}
		}
		for k, groups := range holders {
			if !m.full || len(groups) == len(m.storing[i]) {
				want[i][k] = true
			}
		}
		if got := v.idx.tiers[i].contents(v.col); !maps.Equal(got, want[i]) {
			t.Fatalf("tier %d holds %v, want %v", i, got, want[i])
		}
		if got := int(v.idx.tiers[i].keys.Load()); got != len(want[i]) {
			t.Fatalf("tier %d counts %d keys, want %d", i, got, len(want[i]))
		}
	}
	if v.blocks != blocks {
		t.Fatalf("view counts %v blocks, want %v", v.blocks, blocks)
	}
}

// TestViewEqualsModel plays any interleaving of stores (fresh, repeated, in
// another tier, of chains whose beginning the view missed), removals and clears.
func TestViewEqualsModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		v, m := testView(0), &model{full: rapid.Bool().Draw(t, "full attention")}
		ops := slices.Repeat([]func(*rapid.T, *view){
			m.store, m.store, m.store, m.offload, m.remove, m.remove, m.remove, m.repeat,
		}, 6)
		ops = append(ops, m.clear)
		for range rapid.SampledFrom([]int{10, 50, 200}).Draw(t, "steps") {
			rapid.SampledFrom(ops).Draw(t, "op")(t, v)
			m.check(t, v)
		}
		v.close()
		for i := range v.idx.tiers {
			if n := len(v.idx.tiers[i].contents(v.col)); n != 0 || v.idx.tiers[i].keys.Load() != 0 {
				t.Fatalf("after close, tier %d holds %d keys and counts %d", i, n, v.idx.tiers[i].keys.Load())
			}
		}
	})
}

func drawTier(t *rapid.T) Tier {
	return rapid.SampledFrom([]Tier{TierGPU, TierGPU, TierGPU, TierCPU, TierDisk, TierFile, TierObject}).Draw(t, "tier")
}

func drawGroup(t *rapid.T) int {
	return rapid.SampledFrom([]int{0, 0, 0, 7, 9}).Draw(t, "group")
}

// drawBlock returns any block the engine has, nil when there is none.
func (m *model) drawBlock(t *rapid.T, group int) *modelBlock {
	blocks := m.present(group)
	if len(blocks) == 0 {
		return nil
	}
	return blocks[rapid.IntRange(0, len(blocks)-1).Draw(t, "block")]
}

func (m *model) store(t *rapid.T, v *view) {
	group, tier := drawGroup(t), drawTier(t)
	var parent *modelBlock
	var lora, salt string
	if rapid.IntRange(0, 2).Draw(t, "root") > 0 {
		parent = m.drawBlock(t, group)
	}
	if parent != nil {
		lora, salt = parent.lora, parent.salt
	} else {
		lora = rapid.SampledFrom([]string{"", "", "poet"}).Draw(t, "lora")
		salt = rapid.SampledFrom([]string{"", "", "tenant-a"}).Draw(t, "salt")
	}
	missed := rapid.IntRange(0, 3).Draw(t, "missed") == 0
	var run []*modelBlock
	for range rapid.IntRange(1, 4).Draw(t, "blocks") {
		unusable := rapid.IntRange(0, 9).Draw(t, "unusable") == 0
		b := m.child(parent, rapid.Uint32Range(0, 2).Draw(t, "token"), group, lora, salt, unusable)
		b.truth |= 1 << tier
		if !missed {
			b.tell(tier)
		}
		run = append(run, b)
		parent = b
	}
	if !missed {
		m.apply(v, event(run, tier))
	}
}

func (m *model) apply(v *view, ev Event) {
	ev.FullAttention = m.full
	v.apply([]Event{ev})
}

// repeat announces a block again, with tokens.
func (m *model) repeat(t *rapid.T, v *view) {
	if b := m.drawBlock(t, drawGroup(t)); b != nil {
		tier := drawTier(t)
		b.truth |= 1 << tier
		b.tell(tier)
		m.apply(v, event([]*modelBlock{b}, tier))
	}
}

// offload announces a block in a tier, without tokens.
func (m *model) offload(t *rapid.T, v *view) {
	if b := m.drawBlock(t, drawGroup(t)); b != nil {
		tier := drawTier(t)
		b.truth |= 1 << tier
		if b.placed || b.linked {
			b.view |= 1 << tier
		}
		m.apply(v, Event{Kind: BlockStored, Hashes: []EngineHash{b.hash}, Tier: tier, Group: b.group})
	}
}

func (m *model) remove(t *rapid.T, v *view) {
	if b := m.drawBlock(t, drawGroup(t)); b != nil {
		tier := drawTier(t)
		b.truth &^= 1 << tier
		if b.view &^= 1 << tier; b.view == 0 {
			b.placed = false
		}
		v.apply([]Event{{Kind: BlockRemoved, Hashes: []EngineHash{b.hash}, Tier: tier, Group: b.group}})
	}
}

func (m *model) clear(_ *rapid.T, v *view) {
	for _, b := range m.blocks {
		b.truth, b.view, b.placed, b.linked = 0, 0, false, false
	}
	m.storing = [tiers]map[int]bool{}
	v.apply([]Event{{Kind: AllBlocksCleared}})
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
