package scoring

import (
	"math/bits"
	"sync"
	"sync/atomic"
)

const (
	// shardBits is how many leading bits of a key choose its shard. 64 shards
	// keep a rebuild short (a 64th of the table) and writers apart.
	shardBits  = 6
	shardShift = 64 - shardBits

	minSlots = 16
	// A shard is rebuilt when 4/5 of its slots are in use, into one that is
	// 16/25 full. The step is small because memory is what the table is
	// measured by; linear probing stays short at both ends.
	fillNum, fillDen   = 4, 5
	buildNum, buildDen = 25, 16
)

// table is a concurrent map from Key to a set of columns, built for one reader
// that asks for hundreds of keys in a row and must neither lock nor allocate.
//
// Writers hold their shard's mutex. Readers hold nothing: a slot's key is
// written once in the life of its cells and only its column bits change after
// that, so a reader sees a key's bits or none, never another key's. A slot
// whose bits are all zero is dead and is dropped when its shard is rebuilt.
type table struct {
	shards [1 << shardBits]shard
	// keys counts the keys with at least one column.
	keys atomic.Int64
}

type shard struct {
	// cells is what readers see. Only the holder of mu stores into it.
	cells atomic.Pointer[cells]

	// mu protects live, used and every write.
	mu sync.Mutex
	// live counts slots with a column, used those with a key.
	live, used int
}

// cells are slots of 1+words machine words: the key, then its columns.
type cells struct {
	slots uint64
	words int
	data  []atomic.Uint64
}

func newCells(slots uint64, words int) *cells {
	return &cells{slots: slots, words: words, data: make([]atomic.Uint64, int(slots)*(1+words))}
}

// home is the slot where the search for k starts. The bits that chose the shard
// are shifted out.
func (c *cells) home(k Key) uint64 {
	hi, _ := bits.Mul64(uint64(k)<<shardBits, c.slots)
	return hi
}

// find returns the position of k's slot in data, or that of the free slot where
// it belongs and false. There is always a free slot.
func (c *cells) find(k Key) (int, bool) {
	stride := 1 + c.words
	for i := int(c.home(k)) * stride; ; {
		switch Key(c.data[i].Load()) {
		case k:
			return i, true
		case 0:
			return i, false
		}
		if i += stride; i == len(c.data) {
			i = 0
		}
	}
}

// union adds k's columns to dst. Columns beyond dst are left out.
func (t *table) union(k Key, dst []uint64) {
	c := t.shards[k>>shardShift].cells.Load()
	if c == nil {
		return
	}
	i, ok := c.find(k)
	if !ok {
		return
	}
	set := c.data[i+1 : i+1+c.words]
	for w := range set {
		if w == len(dst) {
			return
		}
		dst[w] |= set[w].Load()
	}
}

// has reports whether col is among k's columns.
func (t *table) has(k Key, col int) bool {
	c := t.shards[k>>shardShift].cells.Load()
	if c == nil || col >= 64*c.words {
		return false
	}
	i, ok := c.find(k)
	return ok && c.data[i+1+col/64].Load()&(1<<(col%64)) != 0
}

// set adds col to k's columns and reports whether it was not there before.
func (t *table) set(k Key, col int) bool {
	s := &t.shards[k>>shardShift]
	s.mu.Lock()
	defer s.mu.Unlock()
	c := s.cells.Load()
	if c == nil || col >= 64*c.words {
		c = s.rebuildLocked(1 + col/64)
	}
	i, ok := c.find(k)
	if !ok && uint64(s.used+1)*fillDen > c.slots*fillNum {
		c = s.rebuildLocked(c.words)
		i, ok = c.find(k)
	}
	if !ok {
		s.used++
		c.data[i].Store(uint64(k))
	}
	dead := c.emptyAt(i)
	word, bit := &c.data[i+1+col/64], uint64(1)<<(col%64)
	old := word.Load()
	word.Store(old | bit)
	if dead {
		s.live++
		t.keys.Add(1)
	}
	return old&bit == 0
}

// clear takes col out of k's columns and reports whether it was there.
func (t *table) clear(k Key, col int) bool {
	s := &t.shards[k>>shardShift]
	s.mu.Lock()
	defer s.mu.Unlock()
	c := s.cells.Load()
	if c == nil || col >= 64*c.words {
		return false
	}
	i, ok := c.find(k)
	if !ok {
		return false
	}
	word, bit := &c.data[i+1+col/64], uint64(1)<<(col%64)
	old := word.Load()
	if old&bit == 0 {
		return false
	}
	word.Store(old &^ bit)
	if c.emptyAt(i) {
		s.live--
		t.keys.Add(-1)
	}
	return true
}

// emptyAt reports whether the slot at position i has no column.
func (c *cells) emptyAt(i int) bool {
	for w := 1; w <= c.words; w++ {
		if c.data[i+w].Load() != 0 {
			return false
		}
	}
	return true
}

// rebuildLocked copies the live slots into cells with room for one more key,
// publishes and returns them. It requires that s.mu is held.
func (s *shard) rebuildLocked(words int) *cells {
	old := s.cells.Load()
	c := newCells(max(minSlots, uint64(s.live+1)*buildNum/buildDen), words)
	if old != nil {
		stride := 1 + old.words
		for i := 0; i < len(old.data); i += stride {
			k := Key(old.data[i].Load())
			if k == 0 || old.emptyAt(i) {
				continue
			}
			j, _ := c.find(k)
			c.data[j].Store(uint64(k))
			for w := 1; w <= old.words; w++ {
				c.data[j+w].Store(old.data[i+w].Load())
			}
		}
	}
	s.used = s.live
	s.cells.Store(c)
	return c
}

// bytes is the memory of the cells.
func (t *table) bytes() int {
	n := 0
	for i := range t.shards {
		if c := t.shards[i].cells.Load(); c != nil {
			n += 8 * len(c.data)
		}
	}
	return n
}
