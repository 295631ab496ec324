package kvevents

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/go-zeromq/zmq4"
)

// received is one message on its way to the main loop.
type received struct {
	item Item
	// badMessage says that it could not be taken apart; item is empty then.
	badMessage bool
	// badBatch says that the payload was no batch; item has no events.
	badBatch bool
}

// replay is one request for past batches. Its goroutines end when it is
// stopped, or when the publisher has sent the end marker.
type replay struct {
	id     uint64
	ch     chan received // closed when the replay is over
	cancel context.CancelFunc
	wg     sync.WaitGroup
	err    error // set before ch is closed; nil means the end marker came
}

// startReplay asks endpoint for all batches from seq on.
func startReplay(ctx context.Context, endpoint string, id, from uint64, o Options, free *batchPool) *replay {
	ctx, cancel := context.WithCancel(ctx)
	r := &replay{id: id, ch: make(chan received, 64), cancel: cancel}
	q := newByteQueue(o.QueueBytes)
	r.wg.Go(func() { q.close(readReplay(ctx, endpoint, from, o.DialTimeout, q)) })
	r.wg.Go(func() {
		defer close(r.ch)
		r.err = decodeReplay(ctx, q, r.ch, free)
	})
	return r
}

// stop ends the replay and waits for its goroutines.
func (r *replay) stop(free *batchPool) {
	r.cancel()
	for m := range r.ch {
		free.put(m.item.Batch)
	}
	r.wg.Wait()
}

// errOver marks the end of a replay in the queue.
var errOver = errors.New("replay complete")

// readReplay reads as fast as the publisher sends, into a queue bounded in
// bytes. A ROUTER drops what doesn't fit between it and a slow reader, so
// decoding must not hold the reading up.
func readReplay(ctx context.Context, endpoint string, from uint64, timeout time.Duration, q *byteQueue) error {
	l, err := dialLink(ctx, endpoint, zmq4.Dealer, timeout)
	if err != nil {
		return fmt.Errorf("cannot connect to replay endpoint: %w", err)
	}
	defer l.close()
	stop := onDone(ctx, l.close)
	defer stop()
	var start [8]byte
	binary.BigEndian.PutUint64(start[:], from)
	// Without the empty frame the publisher doesn't answer.
	if err := l.send(timeout, nil, start[:]); err != nil {
		return fmt.Errorf("cannot ask for replay: %w", err)
	}
	return readReplies(ctx, l, q)
}

// readReplies reads what a publisher answers, up to its end marker: errOver. A
// reply that can't be taken apart is passed on as such.
func readReplies(ctx context.Context, l *link, q *byteQueue) error {
	for {
		frames, err := l.recv()
		if errors.Is(err, errOversize) {
			if !q.push(raw{bad: true}) {
				return ctx.Err()
			}
			continue
		}
		if err != nil {
			return fmt.Errorf("cannot read replay: %w", err)
		}
		m, err := ParseFrames(frames)
		switch {
		case err != nil:
			if !q.push(raw{bad: true}) {
				return ctx.Err()
			}
		case m.End:
			return errOver
		default:
			if !q.push(raw{seq: m.Seq, payload: append([]byte(nil), m.Payload...)}) {
				return ctx.Err()
			}
		}
	}
}

// decodeReplay turns queued messages into batches until the queue is closed.
// nil means that the end marker came.
func decodeReplay(ctx context.Context, q *byteQueue, ch chan<- received, free *batchPool) error {
	// Whatever ends the decoding must release a reader that waits for room.
	defer q.close(context.Canceled)
	stop := onDone(ctx, func() { q.close(ctx.Err()) })
	defer stop()
	for {
		m, err := q.pop()
		if errors.Is(err, errOver) {
			return nil
		}
		if err != nil {
			return err
		}
		r := received{badMessage: m.bad}
		if !m.bad {
			r = decodeMessage(m.seq, m.payload, free)
		}
		select {
		case ch <- r:
		case <-ctx.Done():
			free.put(r.item.Batch)
			return ctx.Err()
		}
	}
}

// decodeMessage decodes one payload into a batch of the pool. A payload that
// is no batch still counts as seen: asking for it again would not mend it.
func decodeMessage(seq uint64, payload []byte, free *batchPool) received {
	b := free.get()
	err := Decode(payload, b)
	return received{
		item:     Item{Seq: seq, TS: b.TS, Size: len(payload) + 128, Batch: b},
		badBatch: err != nil,
	}
}

// raw is one replayed message before it is decoded.
type raw struct {
	seq     uint64
	payload []byte
	bad     bool
}

// byteQueue is a queue bounded by the bytes it holds.
type byteQueue struct {
	mu    sync.Mutex // protects what follows
	cond  sync.Cond
	limit int
	bytes int
	items []raw
	head  int
	err   error
}

func newByteQueue(limit int) *byteQueue {
	q := &byteQueue{limit: limit}
	q.cond.L = &q.mu
	return q
}

// push waits for room and reports whether the queue is still open.
func (q *byteQueue) push(m raw) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	for q.err == nil && q.bytes >= q.limit {
		q.cond.Wait()
	}
	if q.err != nil {
		return false
	}
	q.items = append(q.items, m)
	q.bytes += len(m.payload) + 64
	q.cond.Broadcast()
	return true
}

// pop waits for a message. After close it returns the rest and then err.
func (q *byteQueue) pop() (raw, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for q.err == nil && q.head == len(q.items) {
		q.cond.Wait()
	}
	if q.head == len(q.items) {
		return raw{}, q.err
	}
	m := q.items[q.head]
	q.items[q.head] = raw{}
	q.head++
	if q.head == len(q.items) {
		q.items, q.head = q.items[:0], 0
	}
	q.bytes -= len(m.payload) + 64
	q.cond.Broadcast()
	return m, nil
}

// close ends the queue for a reason; only the first one counts.
func (q *byteQueue) close(err error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.err == nil {
		q.err = err
	}
	q.cond.Broadcast()
}

// batchPool keeps a few batches for reuse, so that a steady stream allocates
// little. It is bounded: after a burst the surplus is left to the collector.
type batchPool struct{ ch chan *Batch }

func newBatchPool(n int) *batchPool { return &batchPool{ch: make(chan *Batch, n)} }

func (p *batchPool) get() *Batch {
	select {
	case b := <-p.ch:
		return b
	default:
		return new(Batch)
	}
}

// put takes a batch back; nil is allowed.
func (p *batchPool) put(b *Batch) {
	if b == nil {
		return
	}
	select {
	case p.ch <- b:
	default:
	}
}
