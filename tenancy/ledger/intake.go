package ledger

import (
	"context"
	"fmt"
	"sync"

	"github.com/sluicegate/sluice/tenancy"
)

// entry is one row on its way to the disk.
type entry struct {
	row tenancy.Row
	// result takes one value, when the row is durable or never will be; answered
	// says that it has. Only the keeper answers.
	result   chan error
	answered bool
}

func (e *entry) answer(err error) {
	if !e.answered {
		e.answered = true
		e.result <- err
	}
}

// intake is where rows wait for the keeper. A row whose request was announced
// always finds room: there are no more of them than requests were let in. The
// others wait while limit rows are there.
type intake struct {
	limit int
	// ready has a value when there may be rows, or none are to come any more.
	ready chan struct{}

	mu     sync.Mutex // protects what follows
	rows   []*entry
	taken  int // rows that the keeper is at
	closed bool
	room   chan struct{} // closed when rows have been taken; nil if nobody waits
}

func newIntake(limit int) *intake { return &intake{limit: limit, ready: make(chan struct{}, 1)} }

// put hands a row over. It waits for room unless announced.
func (q *intake) put(ctx context.Context, e *entry, announced bool) error {
	for {
		room, err := q.tryPut(e, announced)
		if room == nil {
			return err
		}
		select {
		case <-room:
		case <-ctx.Done():
			return fmt.Errorf("the queue of %d rows stayed full: %w", q.limit, ctx.Err())
		}
	}
}

func (q *intake) tryPut(e *entry, announced bool) (room <-chan struct{}, err error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.closed {
		return nil, ErrClosed
	}
	if !announced && len(q.rows) >= q.limit {
		if q.room == nil {
			q.room = make(chan struct{})
		}
		return q.room, nil
	}
	q.rows = append(q.rows, e)
	q.signal()
	return nil, nil
}

func (q *intake) signal() {
	select {
	case q.ready <- struct{}{}:
	default:
	}
}

// take returns up to n rows without waiting; done says that none will come any
// more.
func (q *intake) take(n int) (batch []*entry, done bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	n = min(n, len(q.rows))
	batch = append(batch, q.rows[:n]...)
	left := copy(q.rows, q.rows[n:])
	clear(q.rows[left:])
	q.rows = q.rows[:left]
	q.taken = n
	if q.room != nil && n > 0 {
		close(q.room)
		q.room = nil
	}
	if left > 0 || q.closed {
		q.signal()
	}
	return batch, q.closed && len(batch) == 0
}

func (q *intake) close() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.closed = true
	if q.room != nil {
		close(q.room)
		q.room = nil
	}
	q.signal()
}

// placed tells that the rows which take returned are durable or held.
func (q *intake) placed() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.taken = 0
}

// len is how many rows wait, those among them that the keeper has just taken.
func (q *intake) len() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return len(q.rows) + q.taken
}
