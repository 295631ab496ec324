package decisionlog

import (
	"container/list"
	"sync"
)

// writtenPerRecord is how many more ids than records are remembered: an id is small, and forgetting one loses a
// settlement.
const writtenPerRecord = 8

// held are decision records that sampling leaves out and that a rehearsal may
// still call for: a binding that only audits is matched after the verdict, and
// a decision it matches is kept whatever the sampling. Once such a record is
// written its id stays here until the settlement, which is written as well. Safe
// for concurrent use.
type held struct {
	maxRecords, maxBytes int

	mu   sync.Mutex // protects the rest
	byID map[string]*list.Element
	// lines are records that wait, written those whose line was; both of
	// *heldRecord, oldest first.
	lines, written *list.List
	bytes          int
}

type heldRecord struct {
	id   string
	line []byte
	// kept says that the line was written: the settlement is too.
	kept bool
}

func newHeld(records int, bytes int64) *held {
	return &held{maxRecords: records, maxBytes: int(bytes), byID: map[string]*list.Element{}, lines: list.New(), written: list.New()}
}

// put holds a copy of a line. It returns the lines of the oldest records where
// there is no more room for them: they are written rather than lost, and count as
// written from now on.
func (h *held) put(id string, line []byte) (crowdedOut [][]byte) {
	r := &heldRecord{id: id, line: append([]byte(nil), line...)}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.removeLocked(h.byID[id])
	h.byID[id] = h.lines.PushBack(r)
	h.bytes += len(r.line)
	for h.lines.Len() > h.maxRecords || h.bytes > h.maxBytes && h.lines.Len() > 1 {
		crowdedOut = append(crowdedOut, h.writeLocked(h.lines.Front()))
	}
	return crowdedOut
}

// keep returns the line of a held record, which from now on counts as written.
// It is nil for a record that is not held, or that was written before.
func (h *held) keep(id string) []byte {
	h.mu.Lock()
	defer h.mu.Unlock()
	e := h.byID[id]
	if e == nil || e.Value.(*heldRecord).kept {
		return nil
	}
	return h.writeLocked(e)
}

// writeLocked turns a record that waits into one that was written, and returns
// its line. Of those that were written the oldest are forgotten beyond the bound.
func (h *held) writeLocked(e *list.Element) []byte {
	r := h.removeLocked(e)
	line := r.line
	r.line, r.kept = nil, true
	h.byID[r.id] = h.written.PushBack(r)
	if h.written.Len() > writtenPerRecord*h.maxRecords {
		h.removeLocked(h.written.Front())
	}
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
	r := e.Value.(*heldRecord)
	if r.kept {
		h.written.Remove(e)
	} else {
		h.lines.Remove(e)
	}
	delete(h.byID, r.id)
	h.bytes -= len(r.line)
	return r
}

// len counts the records that wait for a rehearsal.
func (h *held) len() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.lines.Len()
}
