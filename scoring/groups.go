package scoring

// group is one KV cache group of a view. The engine's hashes mean something
// only in it.
type group struct {
	id int
	// bit is the group's own among the groups of its view.
	bit uint64
	// full says that an event called it a group of full attention, size is the
	// largest block it stored, in tokens.
	full bool
	size int
	// more counts, for a key that several blocks of the group share in a tier,
	// the blocks beyond the first.
	more   [tiers]map[Key]int
	blocks blockMap
	// evicted counts the searches for a block to evict.
	evicted uint64
}

// sharing says which groups hold what in one tier, where more than one stores.
//
// The engine takes a block from its cache only if every group of full attention
// has it, and evicts from each group apart. So a key is in the index while all
// the groups that are known to store blocks of its size hold it. Engines that
// number their groups without naming their kinds may mean anything by them
// (windows, state); there, one group is enough.
type sharing struct {
	holders map[Key]holding
	// classes holds the groups by block size: groups with blocks of different
	// sizes have no key in common, and don't wait for each other.
	classes []sizeClass
}

// holding is who holds a key, and how large its block is.
type holding struct {
	groups uint64
	size   int
}

// sizeClass is the groups of full attention that store blocks of one size.
type sizeClass struct {
	size int
	full uint64
}

// maxClasses bounds the block sizes of one tier whose groups are kept; partial
// blocks come in several. Of further sizes, one group is enough.
const maxClasses = 64

// whole reports whether a key held like this can be taken from the cache.
func (s *sharing) whole(h holding) bool {
	for i := range s.classes {
		if c := &s.classes[i]; c.size == h.size {
			return h.groups&c.full == c.full
		}
	}
	return true
}

// join notes that the group stores blocks of this size, and reports whether the
// keys of that size need one group more from now on.
func (s *sharing) join(g *group, size int) bool {
	if !g.full {
		return false
	}
	for i := range s.classes {
		if c := &s.classes[i]; c.size == size {
			grown := c.full&g.bit == 0
			c.full |= g.bit
			return grown
		}
	}
	if len(s.classes) == maxClasses {
		return false
	}
	s.classes = append(s.classes, sizeClass{size, g.bit})
	return true
}

// joinLocked notes that g stores a block of this size in a tier, and takes out
// of the index what it makes incomplete there.
func (v *view) joinLocked(g *group, t Tier, size int) {
	if v.storing[t]&^g.bit == 0 {
		v.storing[t] = g.bit
		return
	}
	if v.shared[t] == nil {
		v.shared[t] = v.shareLocked(t)
	}
	v.storing[t] |= g.bit
	s := v.shared[t]
	if !s.join(g, size) {
		return
	}
	for k, h := range s.holders {
		if h.size == size && !s.whole(h) {
			v.idx.tiers[t].clear(k, v.col)
		}
	}
}

// shareLocked begins to keep apart which groups hold what in a tier, of which
// one group has stored so far.
func (v *view) shareLocked(t Tier) *sharing {
	s := &sharing{holders: make(map[Key]holding)}
	for _, g := range v.groups {
		if g.bit != v.storing[t] {
			continue
		}
		s.join(g, g.size)
		for i, in := range g.blocks.meta {
			if in.has(t) && in&opaque == 0 {
				s.holders[g.blocks.slots[i].key] = holding{g.bit, g.size}
			}
		}
	}
	return s
}

// holdLocked notes that a block of g, of the given size, is in a tier.
func (v *view) holdLocked(g *group, k Key, t Tier, size int) {
	s := v.shared[t]
	if s == nil {
		if !v.idx.tiers[t].set(k, v.col) {
			g.repeat(t, k)
		}
		return
	}
	h := s.holders[k]
	if h.groups&g.bit != 0 {
		g.repeat(t, k)
		return
	}
	h.groups |= g.bit
	h.size = size
	s.holders[k] = h
	if s.whole(h) {
		v.idx.tiers[t].set(k, v.col)
	}
}

// releaseLocked notes that a block of g has left a tier.
func (v *view) releaseLocked(g *group, k Key, t Tier) {
	switch n := g.more[t][k]; n {
	case 0:
	case 1:
		delete(g.more[t], k)
		return
	default:
		g.more[t][k] = n - 1
		return
	}
	if s := v.shared[t]; s != nil {
		h := s.holders[k]
		if h.groups &^= g.bit; h.groups != 0 {
			s.holders[k] = h
			if s.whole(h) {
				return
			}
		} else {
			delete(s.holders, k)
		}
	}
	v.idx.tiers[t].clear(k, v.col)
}

// repeat counts one block more with a key that the group holds already.
func (g *group) repeat(t Tier, k Key) {
	if g.more[t] == nil {
		g.more[t] = make(map[Key]int)
	}
	g.more[t][k]++
}
