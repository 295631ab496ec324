package scoring

import (
	"slices"
	"sync"
	"sync/atomic"
)

const (
	// maxGroups bounds the KV cache groups of one rank, maxRanks the ranks of
	// one worker: both come off the wire.
	maxGroups = 64
	maxRanks  = 256
	// maxSizes bounds the block sizes that are counted for one rank.
	maxSizes = 4
)

// view is the cache of one rank of one worker as its events tell it. It is one
// column of the index.
type view struct {
	idx   *index
	model string
	pool  string
	rank  int
	col   int
	// removed is guarded by Fleet.mu: col may belong to another view by now.
	removed bool
	// limit bounds each tier whose capacity is not known, in blocks.
	limit int

	// Pick reads these without mu. size is the block size that holds most
	// stored tokens, 0 while unknown. trusted says that nothing older is missing.
	// stored is how many blocks the device holds.
	size    atomic.Int32
	trusted atomic.Bool
	stored  atomic.Int64

	// mu protects all that follows.
	mu    sync.Mutex
	state ViewState
	// gone is set when the worker was removed; nothing may be stored after.
	gone bool
	// capacity is the blocks of the device, 0 while unknown.
	capacity int
	groups   []*group
	// storing is the groups that have stored in each tier, shared what each of
	// them holds; nil while it is one alone.
	storing [tiers]uint64
	shared  [tiers]*sharing
	// blocks counts what groups hold in each tier.
	blocks [tiers]int
	held   orphans
	sizes  [maxSizes]sizeCount
	// onDevice says that sizes counts blocks of the device, and those alone.
	onDevice bool
	// turned counts the blocks stored since the view became partial.
	turned int
}

// sizeCount counts the tokens in blocks of one size.
type sizeCount struct{ size, tokens int }

// place is where a block stands in its chain.
type place struct {
	key Key
	// opaque says that no request can reproduce key.
	opaque bool
}

// child is the place of the block after p.
func (p place) child(tokens []uint32, usable bool) place {
	if p.opaque || !usable {
		return place{opaque: true}
	}
	return place{key: chain(p.key, tokens)}
}

func (p place) set() tierSet {
	if p.opaque {
		return opaque
	}
	return 0
}

func newView(x *index, model string, rank, col int, cfg *Config) *view {
	return &view{
		idx: x, model: model, rank: rank, col: col, limit: cfg.MaxBlocks,
		held: orphans{limit: cfg.HeldBlocks},
	}
}

// apply applies a batch of events in order.
func (v *view) apply(evs []Event) ApplyStats {
	var st ApplyStats
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.gone {
		st.Ignored = len(evs)
		return st
	}
	for i := range evs {
		ev := &evs[i]
		if ev.Kind == AllBlocksCleared {
			v.clearLocked()
			st.Cleared++
			continue
		}
		if ev.Tier >= tiers || ev.Kind != BlockStored && ev.Kind != BlockRemoved {
			st.Malformed++
			continue
		}
		g := v.groupLocked(ev.Group)
		switch {
		case g == nil:
			st.Malformed++
		case ev.Kind == BlockRemoved:
			for _, h := range ev.Hashes {
				v.removeLocked(g, foldHash(h), ev.Tier, &st)
			}
		case len(ev.Tokens) == 0:
			v.storeKnownLocked(g, ev, &st)
		default:
			v.storeLocked(g, ev, &st)
		}
	}
	v.trimLocked(&st)
	v.stored.Store(int64(v.blocks[TierGPU]))
	return st
}

// groupLocked returns the group, made on first use; nil when there are too many.
func (v *view) groupLocked(id int) *group {
	for _, g := range v.groups {
		if g.id == id {
			return g
		}
	}
	if len(v.groups) == maxGroups {
		return nil
	}
	g := &group{id: id, bit: 1 << len(v.groups)}
	v.groups = append(v.groups, g)
	return g
}

// storeLocked applies a store that carries tokens. A block the view has already
// keeps its key: the engine's hash names one text.
func (v *view) storeLocked(g *group, ev *Event, st *ApplyStats) {
	size := ev.BlockSize
	if size <= 0 || size > maxBlockSize || len(ev.Tokens) != size*len(ev.Hashes) {
		st.Malformed++
		return
	}
	g.full = g.full || ev.FullAttention
	g.size = max(g.size, size)
	var at place
	var parent uint64
	known := true
	if ev.Parent == "" {
		at.key = Root(v.model, ev.LoRA, ev.Salt)
	} else {
		parent = foldHash(ev.Parent)
		var s tierSet
		at.key, s, known = g.blocks.lookup(parent)
		at.opaque = s&opaque != 0
	}
	for i := 0; i < len(ev.Hashes); {
		hash := foldHash(ev.Hashes[i])
		if k, s, ok := g.blocks.lookup(hash); ok {
			at, known = place{k, s&opaque != 0}, true
			v.addLocked(g, hash, k, s, ev.Tier, size, st)
		} else if known {
			at = at.child(ev.Tokens[i*size:(i+1)*size], i < ev.Usable)
			v.insertLocked(g, hash, at, 1<<ev.Tier, size, st)
			v.adoptLocked(g, hash, at, st)
		} else {
			n := 1
			for i+n < len(ev.Hashes) && !g.blocks.has(foldHash(ev.Hashes[i+n])) {
				n++
			}
			v.held.add(g, parent, ev, i, n, st)
			i += n
			parent = foldHash(ev.Hashes[i-1])
			continue
		}
		parent = hash
		i++
	}
}

// storeKnownLocked applies a store without tokens: it repeats known blocks in a
// further tier.
func (v *view) storeKnownLocked(g *group, ev *Event, st *ApplyStats) {
	g.full = g.full || ev.FullAttention
	for _, h := range ev.Hashes {
		hash := foldHash(h)
		if k, s, ok := g.blocks.lookup(hash); ok {
			v.addLocked(g, hash, k, s, ev.Tier, g.size, st)
		} else if s := v.held.find(g, hash); s != nil {
			*s |= 1 << ev.Tier
		} else {
			st.UnknownStored++
		}
	}
}

// adoptLocked places the blocks that waited for hash, and those that waited for
// them in turn.
func (v *view) adoptLocked(g *group, hash uint64, at place, st *ApplyStats) {
	if v.held.blocks == 0 {
		return
	}
	type parent struct {
		hash uint64
		at   place
	}
	for todo := []parent{{hash, at}}; len(todo) > 0; {
		p := todo[len(todo)-1]
		todo = todo[:len(todo)-1]
		for _, o := range v.held.take(g, p.hash) {
			at := p.at
			for i, h := range o.hashes {
				at = at.child(o.tokens[i*o.size:(i+1)*o.size], i < o.usable)
				if o.tiers[i] != 0 {
					v.insertLocked(g, h, at, o.tiers[i], o.size, st)
				}
				todo = append(todo, parent{h, at})
			}
		}
	}
}

// insertLocked adds a block that the view may not have yet, in the given tiers.
func (v *view) insertLocked(g *group, hash uint64, at place, in tierSet, size int, st *ApplyStats) {
	v.held.forget(g, hash)
	v.countSizeLocked(size, in.has(TierGPU))
	if v.turned++; v.state == ViewPartial && v.capacity > 0 && v.turned >= v.capacity {
		v.trusted.Store(true)
	}
	for t := range Tier(tiers) {
		if in.has(t) {
			k, s, ok := g.blocks.lookup(hash)
			if !ok {
				k, s = at.key, at.set()
			}
			v.addLocked(g, hash, k, s, t, size, st)
		}
	}
}

// addLocked adds a block with the given key, state and size to a tier.
func (v *view) addLocked(g *group, hash uint64, k Key, s tierSet, t Tier, size int, st *ApplyStats) {
	if s.has(t) {
		st.Repeated++
		return
	}
	v.joinLocked(g, t, size)
	g.blocks.put(hash, k, s|1<<t)
	v.blocks[t]++
	st.Stored++
	if s&opaque != 0 {
		st.Unusable++
		return
	}
	v.holdLocked(g, k, t, size)
}

// removeLocked takes a block out of a tier.
func (v *view) removeLocked(g *group, hash uint64, t Tier, st *ApplyStats) {
	k, s, ok := g.blocks.lookup(hash)
	if ok && s.has(t) {
		v.dropLocked(g, hash, k, s, t)
		st.Removed++
		return
	}
	if held := v.held.find(g, hash); !ok && held != nil && held.has(t) {
		*held &^= 1 << t
		st.Removed++
		return
	}
	st.UnknownRemoved++
}

// dropLocked takes a block that is in the tier out of it.
func (v *view) dropLocked(g *group, hash uint64, k Key, s tierSet, t Tier) {
	if s &^= 1 << t; s.placed() == 0 {
		g.blocks.remove(hash)
	} else {
		g.blocks.put(hash, k, s)
	}
	v.blocks[t]--
	if s&opaque == 0 {
		v.releaseLocked(g, k, t)
	}
}

func (v *view) limitLocked(t Tier) int {
	if t == TierGPU && v.capacity > 0 {
		return v.capacity
	}
	return v.limit
}

// trimLocked drops blocks until no tier is over its capacity. A view that is
// has missed removals, so some of what it says is not true any more; which
// blocks is unknown, and dropping a true one costs a hit at worst. It is judged
// after a whole batch, so that the order of removals and stores within one does
// not matter.
func (v *view) trimLocked(st *ApplyStats) {
	for t := range Tier(tiers) {
		for v.blocks[t] > v.limitLocked(t) {
			v.evictLocked(t)
			st.Evicted++
		}
	}
}

// evictLocked drops one block from a tier that has some, of the largest group
// that has one there. Each search begins at
// another place of the table: blocks taken from one after another would leave
// their gap there, while new ones come everywhere and fill the rest beyond what
// can be searched.
func (v *view) evictLocked(t Tier) {
	groups := v.groups
	if len(groups) > 1 {
		groups = slices.SortedFunc(slices.Values(groups), func(a, b *group) int { return b.blocks.n - a.blocks.n })
	}
	for _, g := range groups {
		n := len(g.blocks.slots)
		if n == 0 {
			continue
		}
		g.evicted++
		at := g.blocks.home(g.evicted)
		for range n {
			s, b := g.blocks.meta[at]&^occupied, g.blocks.slots[at]
			if s.has(t) {
				v.dropLocked(g, b.hash, b.key, s, t)
				return
			}
			if at++; at == n {
				at = 0
			}
		}
	}
	panic("BUG: a tier counts blocks that no group holds")
}

// clearLocked empties the view.
func (v *view) clearLocked() {
	for _, g := range v.groups {
		for i, s := range g.blocks.meta {
			for t := range Tier(tiers) {
				if s.has(t) && s&opaque == 0 {
					v.idx.tiers[t].clear(g.blocks.slots[i].key, v.col)
				}
			}
		}
	}
	v.groups = nil
	v.storing, v.shared = [tiers]uint64{}, [tiers]*sharing{}
	v.blocks = [tiers]int{}
	v.stored.Store(0)
	v.held.reset()
	v.sizes, v.onDevice = [maxSizes]sizeCount{}, false
}

// countSizeLocked counts a stored block's size. Requests are matched with the
// one that most tokens are in: engines of several KV cache groups store the tail
// of a prompt in small blocks beside the large ones, as many as of these. Blocks
// below the device count only while it has none: a store may cut otherwise. The
// size outlives a clear.
func (v *view) countSizeLocked(size int, device bool) {
	if device && !v.onDevice {
		v.sizes, v.onDevice = [maxSizes]sizeCount{}, true
	} else if !device && v.onDevice {
		return
	}
	if i := slices.IndexFunc(v.sizes[:], func(s sizeCount) bool { return s.size == 0 || s.size == size }); i >= 0 {
		v.sizes[i].size = size
		v.sizes[i].tokens += size
	}
	most := v.sizes[0]
	for _, s := range v.sizes[1:] {
		// On a tie the size that requests are matched with already stays.
		if s.tokens > most.tokens || s.tokens == most.tokens && s.size == int(v.size.Load()) {
			most = s
		}
	}
	if most.size > 0 {
		v.size.Store(int32(most.size))
	}
}

// setState takes over what the subscription says of the view.
func (v *view) setState(s ViewState) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if s != v.state {
		v.turned = 0
		v.trusted.Store(s == ViewLive)
	}
	v.state = s
}

// setCapacity takes over the size of the device's cache, and drops what can't
// be true then.
func (v *view) setCapacity(size, blocks int) ApplyStats {
	var st ApplyStats
	v.mu.Lock()
	defer v.mu.Unlock()
	v.capacity = max(0, blocks)
	if v.sizes[0].tokens == 0 && size > 0 && size <= maxBlockSize {
		v.size.Store(int32(size))
	}
	v.trimLocked(&st)
	v.stored.Store(int64(v.blocks[TierGPU]))
	return st
}

// close empties the view for good. Its column is free afterwards.
func (v *view) close() {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.clearLocked()
	v.gone = true
}

func (v *view) clear() {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.clearLocked()
}

func (v *view) snapshot() ViewSnapshot {
	v.mu.Lock()
	defer v.mu.Unlock()
	return ViewSnapshot{
		Rank: v.rank, State: v.state, BlockSize: int(v.size.Load()), Capacity: v.capacity,
		GPU: v.blocks[TierGPU], CPU: v.blocks[TierCPU],
		Disk:   v.blocks[TierDisk] + v.blocks[TierFile] + v.blocks[TierObject],
		Groups: len(v.groups),
		Held:   v.held.blocks,
	}
}

// bytes is the memory of the blocks' maps.
func (v *view) bytes() int {
	v.mu.Lock()
	defer v.mu.Unlock()
	n := 0
	for _, g := range v.groups {
		n += g.blocks.bytes()
	}
	return n
}
