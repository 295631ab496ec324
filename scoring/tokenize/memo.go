//go:build cgo && !notokenizers

package tokenize

import (
	"hash/maphash"
	"strings"
	"sync"
	"sync/atomic"
)

// entryOverhead is what an entry costs besides its text and ids: the struct, the
// slot in the ring and the slot in the map.
const entryOverhead = 160

// memo remembers the ids of texts within a bound of bytes. It is exact: a text
// is compared with the one that was stored, never with a digest alone. When it
// is full it drops what was not used since the hand of its clock last passed.
// The nil memo remembers nothing.
type memo struct {
	seed   maphash.Seed
	shards []memoShard

	hits, misses, evictions atomic.Uint64
}

// memoShard is a part of the memo with a lock of its own.
type memoShard struct {
	// mu protects everything below, and the used marks of the entries.
	mu    sync.Mutex
	byKey map[uint64]*memoEntry
	ring  []*memoEntry
	hand  int
	bytes int64
	limit int64
}

// memoEntry is immutable but for its place and its mark.
type memoEntry struct {
	key  uint64
	text string
	ids  []uint32
	// framed tells that ids include what the tokenizer adds around a text.
	framed bool

	slot int
	used bool
}

func (e *memoEntry) size() int64 {
	return int64(len(e.text)+4*len(e.ids)) + entryOverhead
}

// newMemo returns a memo of at most limit bytes. Shards are at least 16 MiB, so
// that long prompts fit; there are at most 32 of them.
func newMemo(limit int64) *memo {
	n := min(max(limit>>24, 1), 32)
	m := &memo{seed: maphash.MakeSeed(), shards: make([]memoShard, n)}
	for i := range m.shards {
		m.shards[i].limit = limit / n
		m.shards[i].byKey = make(map[uint64]*memoEntry)
	}
	return m
}

// get returns the ids of text; the caller must not change them.
func (m *memo) get(text string, framed bool) ([]uint32, bool) {
	if m == nil {
		return nil, false
	}
	ids, ok := m.peek(text, framed)
	if ok {
		m.hits.Add(1)
	} else {
		m.misses.Add(1)
	}
	return ids, ok
}

// peek is get for a look-up that is not counted.
func (m *memo) peek(text string, framed bool) ([]uint32, bool) {
	if m == nil {
		return nil, false
	}
	key, s := m.locate(text, framed)
	s.mu.Lock()
	e := s.byKey[key]
	if e != nil {
		e.used = true
	}
	s.mu.Unlock()
	// Entries do not change, so that a long comparison needs no lock.
	if e == nil || e.framed != framed || e.text != text {
		return nil, false
	}
	return e.ids, true
}

// put remembers the ids of text. The text is copied; the ids are kept.
func (m *memo) put(text string, framed bool, ids []uint32) {
	if m == nil {
		return
	}
	key, s := m.locate(text, framed)
	e := &memoEntry{key: key, text: strings.Clone(text), ids: ids, framed: framed}
	if e.size() > s.limit {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if old := s.byKey[key]; old != nil {
		s.removeLocked(old)
	}
	for s.bytes+e.size() > s.limit {
		s.evictLocked()
		m.evictions.Add(1)
	}
	e.slot = len(s.ring)
	s.ring = append(s.ring, e)
	s.byKey[key] = e
	s.bytes += e.size()
}

// locate returns the key of a text and the shard it belongs to.
func (m *memo) locate(text string, framed bool) (uint64, *memoShard) {
	key := maphash.String(m.seed, text)
	if framed {
		key = ^key
	}
	return key, &m.shards[(key>>32)%uint64(len(m.shards))]
}

// evictLocked moves the hand to the next unused entry and drops it. It requires
// that mu is held and the shard is not empty.
func (s *memoShard) evictLocked() {
	for {
		if s.hand >= len(s.ring) {
			s.hand = 0
		}
		e := s.ring[s.hand]
		if !e.used {
			s.removeLocked(e)
			return
		}
		e.used = false
		s.hand++
	}
}

// removeLocked drops an entry; the last of the ring takes its place.
func (s *memoShard) removeLocked(e *memoEntry) {
	last := len(s.ring) - 1
	s.ring[e.slot] = s.ring[last]
	s.ring[e.slot].slot = e.slot
	s.ring[last] = nil
	s.ring = s.ring[:last]
	delete(s.byKey, e.key)
	s.bytes -= e.size()
}

// addStats adds the memo's counters to st.
func (m *memo) addStats(st *Stats) {
	if m == nil {
		return
	}
	st.Hits, st.Misses, st.Evictions = m.hits.Load(), m.misses.Load(), m.evictions.Load()
	for i := range m.shards {
		s := &m.shards[i]
		s.mu.Lock()
		st.CacheBytes += s.bytes
		st.CacheEntries += len(s.ring)
		s.mu.Unlock()
	}
}
