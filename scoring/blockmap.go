package scoring

import (
	"encoding/binary"
	"math/bits"

	"github.com/zeebo/xxh3"
)

// tierSet is the set of tiers a block is in, as bits; see Tier.
type tierSet uint8

const (
	tiers = 5

	// opaque marks a block whose key no request can reproduce: it is known, so
	// that its children are known too, and never indexed.
	opaque tierSet = 1 << 6
	// occupied marks a slot in use, so that a block may be in no tier for the
	// moment between its insertion and its first tier.
	occupied tierSet = 1 << 7
)

func (s tierSet) has(t Tier) bool { return s&(1<<t) != 0 }

// placed is the tiers alone.
func (s tierSet) placed() tierSet { return s & (1<<tiers - 1) }

// foldHash turns an engine's hash into 8 bytes: as it is when it has 8, hashed
// otherwise. Within one rank's cache (millions of blocks at most) two hashes
// that fold together are a matter of one in millions of years.
func foldHash(h EngineHash) uint64 {
	if len(h) == 8 {
		return binary.BigEndian.Uint64([]byte(h))
	}
	return xxh3.HashString(string(h))
}

// blockMap maps the engine's hashes of one (worker, rank, group) to our keys.
// It is an open-addressing table of 17 bytes a slot, filled to 7/8, grown by a
// quarter: an ordinary map takes twice that. Not safe for concurrent use.
type blockMap struct {
	meta  []tierSet
	slots []blockSlot
	n     int
}

type blockSlot struct {
	hash uint64
	key  Key
}

// home spreads h, which may be a small integer, over the slots.
func (m *blockMap) home(h uint64) int {
	hi, _ := bits.Mul64(h*0x9e3779b97f4a7c15, uint64(len(m.slots)))
	return int(hi)
}

// find returns h's slot, or the free slot where it belongs and false. The map
// must have slots.
func (m *blockMap) find(h uint64) (int, bool) {
	for i := m.home(h); ; {
		if m.meta[i] == 0 {
			return i, false
		}
		if m.slots[i].hash == h {
			return i, true
		}
		if i++; i == len(m.slots) {
			i = 0
		}
	}
}

// lookup returns h's key and tiers; ok is false when h is unknown.
func (m *blockMap) lookup(h uint64) (k Key, s tierSet, ok bool) {
	if m.n == 0 {
		return 0, 0, false
	}
	i, ok := m.find(h)
	if !ok {
		return 0, 0, false
	}
	return m.slots[i].key, m.meta[i] &^ occupied, true
}

// has reports whether h is known.
func (m *blockMap) has(h uint64) bool {
	_, _, ok := m.lookup(h)
	return ok
}

// put sets h's key and tiers.
func (m *blockMap) put(h uint64, k Key, s tierSet) {
	if (m.n+1)*8 > len(m.slots)*7 {
		m.resize(max(minSlots, (m.n+1)*10/7))
	}
	i, ok := m.find(h)
	if !ok {
		m.n++
	}
	m.meta[i], m.slots[i] = s|occupied, blockSlot{h, k}
}

// remove forgets h, which must be known, and closes the gap it leaves.
func (m *blockMap) remove(h uint64) {
	i, ok := m.find(h)
	if !ok {
		panic("BUG: blockMap.remove of an unknown hash")
	}
	m.n--
	size := len(m.slots)
	for j := i; ; {
		if j++; j == size {
			j = 0
		}
		if m.meta[j] == 0 {
			break
		}
		// The block at j may move back to i unless its home lies cyclically
		// after i, in (i, j].
		home := m.home(m.slots[j].hash)
		if (j-home+size)%size >= (j-i+size)%size {
			m.meta[i], m.slots[i] = m.meta[j], m.slots[j]
			i = j
		}
	}
	m.meta[i], m.slots[i] = 0, blockSlot{}
}

func (m *blockMap) resize(size int) {
	old := *m
	m.meta, m.slots = make([]tierSet, size), make([]blockSlot, size)
	for i, s := range old.meta {
		if s != 0 {
			j, _ := m.find(old.slots[i].hash)
			m.meta[j], m.slots[j] = s, old.slots[i]
		}
	}
}

// bytes is the memory of the slots.
func (m *blockMap) bytes() int { return 17 * len(m.slots) }
