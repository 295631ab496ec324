package scoring

import "math/bits"

// index says which views hold which block. A view (one rank of one worker) is a
// column; a block's value is the set of its columns, apart for each tier, and
// apart again for what picks expect to be there soon.
//
// Look-ups take no lock. The allocation of columns is guarded by Fleet.mu.
type index struct {
	tiers [tiers]table
	// soon holds the blocks of recent picks; see speculation.
	soon table

	// taken is the set of columns in use; nothing else may be in a table.
	taken []uint64
}

// newColumn takes the lowest free column. Columns are reused, so whoever frees
// one must have cleared it from every table.
func (x *index) newColumn() int {
	for w, set := range x.taken {
		if set != ^uint64(0) {
			b := bits.TrailingZeros64(^set)
			x.taken[w] |= 1 << b
			return 64*w + b
		}
	}
	x.taken = append(x.taken, 1)
	return 64 * (len(x.taken) - 1)
}

func (x *index) freeColumn(col int) {
	x.taken[col/64] &^= 1 << (col % 64)
}

// holds reports whether the block is, or is expected to be, in a view.
func (x *index) holds(k Key, col int) bool {
	if x.soon.has(k, col) {
		return true
	}
	for t := range x.tiers {
		if x.tiers[t].has(k, col) {
			return true
		}
	}
	return false
}

// depth is how far one column matches a chain of keys, in blocks.
type depth struct {
	// real counts the leading blocks that the view holds, all those it holds or
	// is expected to hold.
	real, all int32
	// cpu and disk count the blocks within all that must come from there.
	cpu, disk int32
}

// walk is the scratch of a look-up. Its slices are as long as the fleet has
// words of columns (sets) or columns (depths).
type walk struct {
	cols   []uint64
	alive  []uint64
	proven []uint64
	hit    []uint64
	slow   []uint64
	depths []depth
}

// reset makes w ready for a fleet with the given words of columns.
func (w *walk) reset(words int) {
	if len(w.cols) != words {
		sets := make([]uint64, 5*words)
		w.cols, sets = sets[:words], sets[words:]
		w.alive, sets = sets[:words], sets[words:]
		w.proven, sets = sets[:words], sets[words:]
		w.hit, w.slow = sets[:words], sets[words:]
		w.depths = make([]depth, 64*words)
	}
	clear(w.cols)
}

// match finds how far each column in w.cols matches the chain, into w.depths.
// It stops at the first block that no column holds. Every block is looked at:
// presence is nearly monotone along a chain, but a search that skips would
// claim blocks behind a gap, and linear probes of independent slots overlap in
// the memory system, which is what their cost is made of.
func (x *index) match(keys []Key, w *walk) {
	copy(w.alive, w.cols)
	copy(w.proven, w.cols)
	for i, set := range w.cols {
		for ; set != 0; set &= set - 1 {
			w.depths[64*i+bits.TrailingZeros64(set)] = depth{}
		}
	}
	device := &x.tiers[TierGPU]
	for i, k := range keys {
		clear(w.hit)
		device.union(k, w.hit)
		missing := uint64(0)
		for j, a := range w.alive {
			missing |= a &^ w.hit[j]
		}
		if missing != 0 && !x.missed(w, k, int32(i)) {
			return
		}
	}
	end := int32(len(keys))
	settle(w.proven, w.depths, func(d *depth) { d.real = end })
	settle(w.alive, w.depths, func(d *depth) { d.all = end })
}

// missed handles a block that not every live column has on its device: it looks
// in the slower tiers and among the expected blocks, and settles the columns
// that have it nowhere. It reports whether any column is left.
func (x *index) missed(w *walk, k Key, i int32) bool {
	for t := TierCPU; t < tiers; t++ {
		if x.tiers[t].keys.Load() == 0 {
			continue
		}
		clear(w.slow)
		x.tiers[t].union(k, w.slow)
		for j := range w.slow {
			w.slow[j] &= w.alive[j] &^ w.hit[j]
			w.hit[j] |= w.slow[j]
		}
		settle(w.slow, w.depths, func(d *depth) {
			if t == TierCPU {
				d.cpu++
			} else {
				d.disk++
			}
		})
	}
	for j, h := range w.hit {
		w.slow[j] = w.proven[j] &^ h
		w.proven[j] &= h
	}
	settle(w.slow, w.depths, func(d *depth) { d.real = i })

	if x.soon.keys.Load() != 0 {
		x.soon.union(k, w.hit)
	}
	left := uint64(0)
	for j, h := range w.hit {
		w.slow[j] = w.alive[j] &^ h
		w.alive[j] &= h
		left |= w.alive[j]
	}
	settle(w.slow, w.depths, func(d *depth) { d.all = i })
	return left != 0
}

// settle calls f with the depth of every column in set.
func settle(set []uint64, depths []depth, f func(*depth)) {
	for j, s := range set {
		for ; s != 0; s &= s - 1 {
			f(&depths[64*j+bits.TrailingZeros64(s)])
		}
	}
}

// keys counts the (block, tier) pairs that at least one view holds.
func (x *index) keys() int {
	n := 0
	for t := range x.tiers {
		n += int(x.tiers[t].keys.Load())
	}
	return n
}

// bytes is the memory of the tables.
func (x *index) bytes() int {
	n := x.soon.bytes()
	for t := range x.tiers {
		n += x.tiers[t].bytes()
	}
	return n
}
