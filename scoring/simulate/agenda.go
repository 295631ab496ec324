package simulate

import "time"

// event is something that happens at a moment of virtual time.
type event struct {
	at   time.Duration
	kind eventKind
	seq  uint64 // breaks ties
	// index is the request's or the worker's.
	index int
}

// eventKind is what happens. Of things that happen at the same moment those of
// a lower kind come first: a step that ends makes place for the next one before
// a request arrives, because a client needs a while to answer, and events that
// are due have been applied when a request is picked.
type eventKind uint8

const (
	stepEnds eventKind = iota
	eventsArrive
	loadRead
	requestArrives
)

func (e *event) before(o *event) bool {
	if e.at != o.at {
		return e.at < o.at
	}
	if e.kind != o.kind {
		return e.kind < o.kind
	}
	return e.seq < o.seq
}

// agenda is a binary heap of events, the next one first.
type agenda struct {
	heap []event
	seq  uint64
}

func (a *agenda) add(at time.Duration, kind eventKind, index int) {
	a.seq++
	a.heap = append(a.heap, event{at: at, kind: kind, seq: a.seq, index: index})
	for i := len(a.heap) - 1; i > 0; {
		up := (i - 1) / 2
		if !a.heap[i].before(&a.heap[up]) {
			return
		}
		a.heap[i], a.heap[up] = a.heap[up], a.heap[i]
		i = up
	}
}

// next takes the next event out. The agenda must not be empty.
func (a *agenda) next() event {
	first := a.heap[0]
	last := len(a.heap) - 1
	a.heap[0] = a.heap[last]
	a.heap = a.heap[:last]
	for i := 0; ; {
		least := i
		for child := 2*i + 1; child <= 2*i+2 && child < last; child++ {
			if a.heap[child].before(&a.heap[least]) {
				least = child
			}
		}
		if least == i {
			return first
		}
		a.heap[i], a.heap[least] = a.heap[least], a.heap[i]
		i = least
	}
}
