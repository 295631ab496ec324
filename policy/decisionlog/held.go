package decisionlog

import (
	"container/list"
	"sync"
)

// held are decision records that sampling leaves out and that a rehearsal may
// still call for: a binding that only audits is matched after the verdict, and
// a decision it matches is kept whatever the sampling. Safe for concurrent use.
type held struct {
	maxRecords, maxBytes int

	mu    sync.Mutex // protects the rest
	byID  map[string]*list.Element
	order *list.List // of *heldRecord, oldest first
	bytes int
}

type heldRecord struct {
	id   string
	line []byte
	// kept says that the line was written: the settlement is too.
	kept bool
}

func newHeld(records int, bytes int64) *held {
	return &held{maxRecords: records, maxBytes: int(bytes), byID: map[string]*list.Element{}, order: list.New()}
}

// put holds a copy of a line. It returns the lines of the oldest records where
// there is no more room for them: they are written rather than lost.
func (h *held) put(id string, line []byte) (crowdedOut [][]byte) {
	r := &heldRecord{id: id, line: append([]byte(nil), line...)}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.removeLocked(h.byID[id])
	h.byID[id] = h.order.PushBack(r)
	h.bytes += len(r.line)
	for h.order.Len() > h.maxRecords || h.bytes > h.maxBytes && h.order.Len() > 1 {
		old := h.removeLocked(h.order.Front())
		if !old.kept {
			crowdedOut = append(crowdedOut, old.line)
		}
	}
	return crowdedOut
}

// keep returns the line of a held record, which from now on counts as written.
// It is nil for a record that is not held.
func (h *held) keep(id string) []byte {
	h.mu.Lock()
	defer h.mu.Unlock()
	e := h.byID[id]
	if e == nil {
		return nil
	}
	r := e.Value.(*heldRecord)
	line := r.line
	r.line, r.kept = nil, true
	h.bytes -= len(line)
	return line
}

// settle forgets a record. was says that there was one, kept that it was
// written.
func (h *held) settle(id string) (was, kept bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	r := h.removeLocked(h.byID[id])
	if r == nil {
		return false, false
	}
	return true, r.kept
}

func (h *held) removeLocked(e *list.Element) *heldRecord {
	if e == nil {
		return nil
	}
	r := h.order.Remove(e).(*heldRecord)
	delete(h.byID, r.id)
	h.bytes -= len(r.line)
	return r
}

func (h *held) len() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.order.Len()
}
