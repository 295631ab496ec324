package decisionlog

import (
	"strconv"
	"sync"
)

// kind is the type of a record.
type kind int

const (
	decisionKind kind = iota
	shadowKind
	settlementKind
	kinds
)

// queue holds the lines that wait for the writer, as the bytes to write. Safe
// for concurrent use; one goroutine takes.
type queue struct {
	maxRecords, maxBytes int
	// wake has a value while there is something to take.
	wake chan struct{}

	mu sync.Mutex // protects the rest
	// pending are whole lines, counts how many of each kind.
	pending []byte
	counts  [kinds]int
	// records and bytes include what was taken and is not written yet.
	records, bytes           int
	takenRecords, takenBytes int
	// lost is how many records were refused since the last one that was not.
	lost    uint64
	dropped [kinds]uint64
	closed  bool
}

func newQueue(records int, bytes int64) *queue {
	return &queue{maxRecords: records, maxBytes: int(bytes), wake: make(chan struct{}, 1)}
}

// put adds a line, which ends in a brace and a line break, or counts it as
// lost. The first line after a loss says how many were lost.
func (q *queue) put(k kind, line []byte) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.closed || q.records >= q.maxRecords || q.bytes+len(line) > q.maxBytes && q.records > 0 {
		q.lost++
		q.dropped[k]++
		return false
	}
	before := len(q.pending)
	if q.lost > 0 {
		q.pending = append(q.pending, line[:len(line)-len("}\n")]...)
		q.pending = append(q.pending, `,"dropped":`...)
		q.pending = strconv.AppendUint(q.pending, q.lost, 10)
		q.pending = append(q.pending, "}\n"...)
		q.lost = 0
	} else {
		q.pending = append(q.pending, line...)
	}
	q.counts[k]++
	q.records++
	q.bytes += len(q.pending) - before
	select {
	case q.wake <- struct{}{}:
	default:
	}
	return true
}

// lose counts a record that could not be encoded.
func (q *queue) lose(k kind) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.lost++
	q.dropped[k]++
}

// take hands over all waiting lines in exchange for an empty buffer. They count
// as waiting until written is called.
func (q *queue) take(spare []byte) ([]byte, [kinds]int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	lines, counts := q.pending, q.counts
	q.pending, q.counts = spare[:0], [kinds]int{}
	q.takenRecords, q.takenBytes = q.records, q.bytes
	return lines, counts
}

// written forgets what was taken.
func (q *queue) written() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.records -= q.takenRecords
	q.bytes -= q.takenBytes
	q.takenRecords, q.takenBytes = 0, 0
}

// drop counts records that were taken as lost. written is called for them as
// well.
func (q *queue) drop(counts [kinds]int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for k, n := range counts {
		q.dropped[k] += uint64(n)
		q.lost += uint64(n)
	}
}

// close makes every later put a loss.
func (q *queue) close() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.closed = true
}

// holds says whether so many records and bytes wait.
func (q *queue) holds(records int, bytes int64) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.records >= records || int64(q.bytes) >= bytes
}

// state is for statistics.
func (q *queue) state() (records, bytes int, dropped [kinds]uint64) {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.records, q.bytes, q.dropped
}
