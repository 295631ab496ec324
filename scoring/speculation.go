package scoring

import (
	"container/list"
	"slices"
	"time"
)

// speculation keeps the blocks that recent picks are about to put into their
// worker's cache, so that a burst of equal prompts lands together without
// waiting for the first one's events. Guarded by Fleet.mu; look-ups go through
// index.soon without it.
type speculation struct {
	idx *index
	ttl time.Duration
	// limit bounds keys, which counts the keys of all entries.
	limit, keys int
	// entries holds *expectation, oldest first. One that is renewed becomes
	// the newest, so the oldest is also the first to expire.
	entries list.List
	// more counts, for a block that several entries expect in one view, the
	// entries beyond the first.
	more map[expected]int
	// added counts the entries ever made: a look-up that saw the same number
	// has missed none.
	added uint64
}

type expected struct {
	key Key
	col int
}

// expectation is what one pick expects: that col will hold keys.
type expectation struct {
	keys []Key
	col  int
	// by is the request that brings them.
	by *Reservation
	// until is when the worker's own events must have told; from then on the
	// expectation counts for nothing, unless the prefill is still to come.
	until time.Time
	elem  *list.Element
}

// add makes an entry. It returns nil when there is nothing to expect.
func (s *speculation) add(now time.Time, by *Reservation, keys []Key, col int) *expectation {
	if len(keys) == 0 || len(keys) > s.limit {
		return nil
	}
	for s.keys+len(keys) > s.limit {
		s.drop(s.entries.Front().Value.(*expectation))
	}
	e := &expectation{keys: slices.Clone(keys), col: col, by: by, until: now.Add(s.ttl)}
	for _, k := range keys {
		if !s.idx.soon.set(k, col) {
			s.more[expected{k, col}]++
		}
	}
	e.elem = s.entries.PushBack(e)
	s.keys += len(keys)
	s.added++
	return e
}

// drop removes an entry; dropping nil or a second time does nothing.
func (s *speculation) drop(e *expectation) {
	if e == nil || e.elem == nil {
		return
	}
	for _, k := range e.keys {
		at := expected{k, e.col}
		if n := s.more[at]; n == 0 {
			s.idx.soon.clear(k, e.col)
		} else if n == 1 {
			delete(s.more, at)
		} else {
			s.more[at] = n - 1
		}
	}
	s.keys -= len(e.keys)
	s.entries.Remove(e.elem)
	e.elem, e.keys, e.by = nil, nil, nil
}

// expire drops what is due. Blocks whose prefill has not ended are as likely to
// come as before, so their entry goes on.
func (s *speculation) expire(now time.Time) {
	for s.entries.Len() > 0 {
		e := s.entries.Front().Value.(*expectation)
		if now.Before(e.until) {
			return
		}
		if e.by.phase == prefilling {
			e.until = now.Add(s.ttl)
			s.entries.MoveToBack(e.elem)
		} else {
			s.drop(e)
		}
	}
}

// dropColumn drops the entries of one view.
func (s *speculation) dropColumn(col int) {
	for e := s.entries.Front(); e != nil; {
		next := e.Next()
		if x := e.Value.(*expectation); x.col == col {
			s.drop(x)
		}
		e = next
	}
}
