package scoring

import (
	"fmt"
	"maps"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

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
