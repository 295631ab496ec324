package ledger

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sluicegate/sluice/tenancy"
)

// Options tune a Ledger. The zero value means the defaults.
type Options struct {
	// Queue is how many rows may wait for the writer; Record blocks beyond it.
	// Default 4096.
	Queue int
	// MaxBatch is how many rows one transaction takes at most. Default 1024.
	MaxBatch int
	// BusyTimeout is how long the writer waits for another process, such as a
	// maintenance tool, that has locked the database. Default 5 s.
	BusyTimeout time.Duration
	// Log receives recoveries and failed commits; nil discards them.
	Log *slog.Logger
}

func (o Options) withDefaults() Options {
	if o.Queue <= 0 {
		o.Queue = 4096
	}
	if o.MaxBatch <= 0 {
		o.MaxBatch = 1024
	}
	if o.BusyTimeout <= 0 {
		o.BusyTimeout = 5 * time.Second
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	return o
}

// Stats are totals since Open and what is pending.
type Stats struct {
	// Rows were made durable, in Batches commits; Duplicates were stored before.
	Rows, Batches, Duplicates uint64
	// Failed rows could not be stored.
	Failed uint64
	// Recovered is how many lost requests Open found.
	Recovered int
	// Queued rows wait for the writer; OpenIntents requests are in flight.
	Queued, OpenIntents int
	// LastCommit is how long the last commit took.
	LastCommit time.Duration
}

// Ledger is the one writer of a ledger file. Safe for concurrent use.
type Ledger struct {
	path    string
	opts    Options
	lock    *os.File // holds the file lock until Close
	writer  *writer
	reader  *Reader
	intents *journal

	recovered int

	// closing protects closed and the sending side of queue: senders hold it
	// for reading, so that Close can't close the queue under them.
	closing sync.RWMutex
	closed  bool
	queue   chan *entry
	stopped chan struct{} // closed when the writer goroutine has ended

	rows, batches, duplicates, failed atomic.Uint64
	lastCommit                        atomic.Int64
}

// entry is one row on its way to the disk. result takes exactly one value.
type entry struct {
	row    tenancy.Row
	result chan error
}

// Open opens or creates the ledger at path, brings its schema up to date,
// turns what a crash left in flight into rows with outcome lost, and starts the
// writer. Only one process may have it open (ErrLocked); others read with
// OpenReader. Beside the database lie its -wal and -shm files, a -lock file and
// the -intents-* files.
func Open(path string, opts Options) (_ *Ledger, err error) {
	opts = opts.withDefaults()
	l := &Ledger{path: path, opts: opts, queue: make(chan *entry, opts.Queue), stopped: make(chan struct{})}
	defer func() {
		if err != nil {
			l.release()
			err = fmt.Errorf("cannot open the ledger: %w", err)
		}
	}()
	if l.lock, err = lockFile(path); err != nil {
		return nil, err
	}
	if l.writer, err = openWriter(path, opts.BusyTimeout); err != nil {
		return nil, err
	}
	if err = l.recover(); err != nil {
		return nil, err
	}
	if l.intents, err = newJournal(path); err != nil {
		return nil, err
	}
	if l.reader, err = openReader(path); err != nil {
		return nil, err
	}
	go l.write()
	return l, nil
}

// release gives back whatever Open has acquired so far.
func (l *Ledger) release() error {
	var errs []error
	if l.reader != nil {
		errs = append(errs, l.reader.Close())
	}
	if l.intents != nil {
		errs = append(errs, l.intents.close())
	}
	if l.writer != nil {
		errs = append(errs, l.writer.close())
	}
	if l.lock != nil {
		errs = append(errs, l.lock.Close())
	}
	return errors.Join(errs...)
}

// Begin notes that a request is about to be sent to a worker. The note survives
// the death of the process, though not of the machine; it does not wait for the
// disk. Every Begin must be followed by one Record with the same ID.
func (l *Ledger) Begin(_ context.Context, in *tenancy.Intent) error {
	if in.ID == "" || in.Start.IsZero() {
		return errors.New("cannot announce a request without id and start")
	}
	l.closing.RLock()
	defer l.closing.RUnlock()
	if l.closed {
		return ErrClosed
	}
	if err := l.intents.begin(in); err != nil {
		return fmt.Errorf("cannot announce request %s in %s: %w", in.ID, l.path, explain(err))
	}
	return nil
}

// Record stores a row and returns once it is durable. It is idempotent by
// Row.ID: the same row again is no error, a different one is ErrConflict. The
// row is copied. When ctx ends first the row may still become durable, and
// Record may be called again to find out.
func (l *Ledger) Record(ctx context.Context, row *tenancy.Row) error {
	if err := row.Check(); err != nil {
		return fmt.Errorf("cannot record a request: %w", err)
	}
	e := &entry{row: *row, result: make(chan error, 1)}
	e.row.Labels = append([]string(nil), row.Labels...)
	if err := l.enqueue(ctx, e); err != nil {
		return fmt.Errorf("cannot record request %s: %w", row.ID, err)
	}
	select {
	case err := <-e.result:
		if err != nil {
			return fmt.Errorf("cannot record request %s in %s: %w", row.ID, l.path, err)
		}
		return nil
	case <-ctx.Done():
		return fmt.Errorf("cannot say whether request %s is recorded: %w", row.ID, ctx.Err())
	}
}

func (l *Ledger) enqueue(ctx context.Context, e *entry) error {
	l.closing.RLock()
	defer l.closing.RUnlock()
	if l.closed {
		return ErrClosed
	}
	select {
	case l.queue <- e:
		return nil
	default:
	}
	select {
	case l.queue <- e:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("the queue of %d rows stayed full: %w", cap(l.queue), ctx.Err())
	}
}

// Rows yields the rows that ended in [from, to), by end time and id. It reads
// one consistent state, without blocking the writer. The row is the caller's to
// keep. An error ends the sequence.
func (l *Ledger) Rows(ctx context.Context, from, to time.Time) iter.Seq2[*tenancy.Row, error] {
	return l.reader.Rows(ctx, from, to)
}

// Totals sums the rows that ended in [from, to), one entry for each currency,
// ordered by it.
func (l *Ledger) Totals(ctx context.Context, from, to time.Time) ([]tenancy.Totals, error) {
	return l.reader.Totals(ctx, from, to)
}

// Snapshot is as Reader.Snapshot.
func (l *Ledger) Snapshot(ctx context.Context) (*Snapshot, error) { return l.reader.Snapshot(ctx) }

// Stats returns current figures.
func (l *Ledger) Stats() Stats {
	return Stats{
		Rows:        l.rows.Load(),
		Batches:     l.batches.Load(),
		Duplicates:  l.duplicates.Load(),
		Failed:      l.failed.Load(),
		Recovered:   l.recovered,
		Queued:      len(l.queue),
		OpenIntents: l.intents.open(),
		LastCommit:  time.Duration(l.lastCommit.Load()),
	}
}

// Close stores everything queued, stops the writer and closes the files. Calls
// of Begin and Record that come later fail with ErrClosed. A second Close does
// nothing.
func (l *Ledger) Close() error {
	l.closing.Lock()
	if l.closed {
		l.closing.Unlock()
		return nil
	}
	l.closed = true
	close(l.queue)
	l.closing.Unlock()
	<-l.stopped
	if err := l.release(); err != nil {
		return fmt.Errorf("cannot close the ledger: %w", err)
	}
	return nil
}

// write is the writer goroutine: it takes what has queued up, commits it as one
// transaction and answers, until the queue is closed and empty.
func (l *Ledger) write() {
	defer close(l.stopped)
	batch := make([]*entry, 0, l.opts.MaxBatch)
	for e := range l.queue {
		batch = l.fill(append(batch[:0], e))
		start := time.Now()
		results, err := l.writer.commit(batch)
		l.lastCommit.Store(int64(time.Since(start)))
		if err != nil {
			err = explain(err)
			l.failed.Add(uint64(len(batch)))
			l.opts.Log.Error("ledger commit failed", "path", l.path, "rows", len(batch), "error", err)
			for _, e := range batch {
				e.result <- err
			}
			continue
		}
		l.batches.Add(1)
		for i, e := range batch {
			l.answer(e, results[i])
		}
	}
}

// fill adds what waits in the queue right now, up to the batch's capacity.
func (l *Ledger) fill(batch []*entry) []*entry {
	for len(batch) < l.opts.MaxBatch {
		select {
		case e, ok := <-l.queue:
			if !ok {
				return batch
			}
			batch = append(batch, e)
		default:
			return batch
		}
	}
	return batch
}

// answer reports the fate of one row of a committed batch. Its intent is done
// with in any case but a conflict: then the id has a row, but not this one.
func (l *Ledger) answer(e *entry, res result) {
	switch res {
	case stored:
		l.rows.Add(1)
		l.intents.end(e.row.ID)
		e.result <- nil
	case repeated:
		l.duplicates.Add(1)
		l.intents.end(e.row.ID)
		e.result <- nil
	case conflicting:
		l.failed.Add(1)
		e.result <- ErrConflict
	}
}

// recover turns the intents of a process that died into rows.
func (l *Ledger) recover() error {
	old, err := readJournals(l.path)
	if err != nil {
		return err
	}
	if len(old.intents) > 0 {
		batch := make([]*entry, len(old.intents))
		for i := range old.intents {
			batch[i] = &entry{row: lostRow(&old.intents[i])}
		}
		results, err := l.writer.commit(batch)
		if err != nil {
			return fmt.Errorf("cannot note the requests that were in flight: %w", explain(err))
		}
		for _, res := range results {
			if res == stored {
				l.recovered++
			}
		}
		if l.recovered > 0 {
			l.opts.Log.Warn("requests were in flight when the gateway stopped; they are marked as lost", "path", l.path, "requests", l.recovered)
		}
	}
	return old.remove()
}

// lostRow is the row of a request whose end nobody saw. It charges nothing:
// what the worker did is not known.
func lostRow(in *tenancy.Intent) tenancy.Row {
	return tenancy.Row{
		ID: in.ID, RequestID: in.RequestID, DecisionID: in.DecisionID, PolicyRevision: in.PolicyRevision,
		Tenant: in.Tenant, Team: in.Team, Principal: in.Principal, KeyID: in.KeyID,
		Operation: in.Operation, Dialect: in.Dialect,
		Model: in.Model, RequestedModel: in.RequestedModel, Pool: in.Pool, Class: in.Class,
		Flags: in.Flags | tenancy.FlagRecovered, Start: in.Start,
		Outcome: tenancy.OutcomeLost, Phase: tenancy.PhasePrefill,
	}
}

// dbNanos is an instant as the database keeps it. Instants beyond the reach of
// 64 bits, the zero time among them, become the nearest one within.
func dbNanos(t time.Time) int64 {
	const reach = 292 // years from 1970
	switch y := t.Year(); {
	case y <= 1970-reach:
		return -1 << 63
	case y >= 1970+reach:
		return 1<<63 - 1
	}
	return t.UnixNano()
}
