package ledger

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"os"
	"sync/atomic"
	"time"

	"github.com/sluicegate/sluice/tenancy"
)

// Options tune a Ledger. The zero value means the defaults.
type Options struct {
	// Queue is how many rows may wait for the database; Record blocks beyond it,
	// but for requests that were announced. Default 4096.
	Queue int
	// MaxBatch is how many rows one transaction takes at most. Default 1024.
	MaxBatch int
	// BusyTimeout is how long a transaction waits for another process, such as a
	// maintenance tool, that has locked the database. Default 5 s.
	BusyTimeout time.Duration
	// Patience is how long rows wait for a transaction before they go to the
	// spool instead. Default 1 s.
	Patience time.Duration
	// Retry is the pause after the first failed transaction; it doubles up to
	// five seconds. Default 100 ms.
	Retry time.Duration
	// Spool bounds the files, in bytes, that keep rows while the database can't
	// take them. Default 256 MiB; below zero, there are none.
	Spool int64
	// CommitEvery, above zero, has rows made durable in the spool first, with one
	// write and one flush, and the database gets them all together about so much
	// later: whoever waits for a row does not wait for a transaction. By default
	// rows go to the database at once.
	CommitEvery time.Duration
	// SyncIntents makes Begin wait for the disk, so that requests in flight leave
	// a trace after a loss of power too.
	SyncIntents bool
	// Gateway is the name of this replica, which rows keep.
	Gateway string
	// Counter counts the rows that become durable; nil for none. What it has counted
	// is noted in the database every NoteEvery, by default a minute, and by Close.
	Counter   Counter
	NoteEvery time.Duration
	// Log receives recoveries, outages and refused rows; nil discards them.
	Log *slog.Logger

	// wrap lets tests stand between the keeper and the database.
	wrap func(store) store
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
	if o.Patience <= 0 {
		o.Patience = time.Second
	}
	if o.Retry <= 0 {
		o.Retry = 100 * time.Millisecond
	}
	if o.Spool == 0 {
		o.Spool = 256 << 20
	}
	if o.NoteEvery <= 0 {
		o.NoteEvery = time.Minute
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	return o
}

// Stats are totals since Open and what is pending.
type Stats struct {
	// Gateway and Process name the replica and this run in the rows that it makes.
	Gateway, Process string
	// Rows came into the database, in Batches commits; Duplicates were there
	// before.
	Rows, Batches, Duplicates uint64
	// Spooled rows were made durable beside the database, since it did not take
	// them in time.
	Spooled uint64
	// Failed rows were refused for good and are in the file of refused rows.
	Failed uint64
	// Recovered is how many lost requests Open found.
	Recovered int
	// Queued rows wait for the database, SpoolRows of SpoolBytes for it to work
	// again, Held ones for any place at all; OpenIntents requests are in flight.
	Queued, SpoolRows, Held, OpenIntents int
	SpoolBytes                           int64
	// Failing says that the database does not take rows.
	Failing bool
	// LastCommit is how long the last commit took.
	LastCommit time.Duration
}

// Ledger is the one writer of a ledger file. Safe for concurrent use.
type Ledger struct {
	path    string
	opts    Options
	process string   // names this run in the rows
	lock    *os.File // holds the file lock until Close
	store   store
	away    bool // the database could not be reached when it was opened
	reader  *Reader
	intents *journal
	spool   *spool
	intake  *intake

	recovered int

	closed  atomic.Bool
	hurry   chan struct{} // closed when Close waits no more
	stopped chan struct{} // closed when the keeper has ended

	// sick is why rows can't be made durable, nil while they can.
	sick    atomic.Pointer[error]
	failing atomic.Bool
	held    atomic.Int64

	rows, batches, duplicates, spooled, failed atomic.Uint64
	lastCommit                                 atomic.Int64
}

// replayPatience is how long Open stores what is in the spool before it leaves
// the rest to be stored beside new rows.
const replayPatience = 10 * time.Second

// Open opens or creates the ledger at path, brings its schema up to date,
// turns what a crash left in flight into rows with outcome lost, and starts the
// writer. Only one process may have it open (ErrLocked); others read with
// OpenReader. Beside the database lie its -wal and -shm files, a -lock file, the
// -intents-* files, while the database is not to be written the -spool-* files,
// and -refused with the rows it will not have.
func Open(path string, opts Options) (*Ledger, error) {
	return open(path, opts, func(l *Ledger) error {
		w, err := openWriter(path, l.opts.BusyTimeout)
		if err != nil {
			return err
		}
		l.store = w
		if err := w.checkpointBeside(path); err != nil {
			return err
		}
		l.reader, err = openReader(path)
		return err
	})
}

func open(path string, opts Options, connect func(l *Ledger) error) (_ *Ledger, err error) {
	opts = opts.withDefaults()
	l := &Ledger{
		path: path, opts: opts, intake: newIntake(opts.Queue), process: rand.Text(),
		hurry: make(chan struct{}), stopped: make(chan struct{}),
	}
	defer func() {
		if err != nil {
			l.release()
			err = fmt.Errorf("cannot open the ledger: %w", err)
		}
	}()
	if l.lock, err = awaitLock(path); err != nil {
		return nil, err
	}
	if err = connect(l); err != nil {
		return nil, err
	}
	if opts.wrap != nil {
		l.store = opts.wrap(l.store)
	}
	var spooled map[string]bool
	if l.spool, spooled, err = openSpool(path, opts.Spool, l.damaged); err != nil {
		return nil, fmt.Errorf("cannot read the spool: %w", explain(err))
	}
	if err = l.recover(spooled); err != nil {
		return nil, err
	}
	l.spool.keep = opts.CommitEvery > 0
	if !l.away {
		ctx, cancel := context.WithTimeout(context.Background(), replayPatience)
		defer cancel()
		l.replay(ctx)
	}
	if l.intents, err = newJournal(path, opts.SyncIntents); err != nil {
		return nil, err
	}
	go func() {
		defer close(l.stopped)
		newKeeper(l).run()
	}()
	return l, nil
}

func (l *Ledger) damaged(name string, at int64) {
	l.opts.Log.Error("a file of the ledger's spool can't be read to its end; the whole of it is kept under another name",
		"file", name, "byte", at, "kept", name+".damaged")
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
	if l.spool != nil {
		errs = append(errs, l.spool.close())
	}
	if l.store != nil {
		errs = append(errs, l.store.close())
	}
	if l.lock != nil {
		errs = append(errs, l.lock.Close())
	}
	return errors.Join(errs...)
}

// Healthy returns nil while the row of a request that begins now can be made
// durable, or else what keeps it from that: neither the database nor the spool
// takes rows, or the database does not and the spool has no room for more than
// the requests in flight.
func (l *Ledger) Healthy() error {
	if err := l.sick.Load(); err != nil {
		return fmt.Errorf("rows can't be made durable in %s or beside it: %w", l.path, *err)
	}
	const rowRoom = 2048 // more than almost any row takes
	if used := l.spool.bytes.Load(); used > 0 && used+int64(l.intents.open()+1)*rowRoom > l.opts.Spool {
		return fmt.Errorf("%s does not take rows, and %w: %d bytes of %d are used", l.path, errSpoolFull, used, l.opts.Spool)
	}
	return nil
}

// Begin notes that a request is about to be sent to a worker, and refuses one
// whose row could not be made durable (see Healthy). The note survives the death
// of the process, and that of the machine where Options.SyncIntents is set; only
// then it waits for the disk. Every Begin must be followed by one Record with
// the same ID.
func (l *Ledger) Begin(_ context.Context, in *tenancy.Intent) error {
	if in.ID == "" || in.Start.IsZero() {
		return errors.New("cannot announce a request without id and start")
	}
	if l.closed.Load() {
		return ErrClosed
	}
	err := l.Healthy()
	if err == nil {
		stamped := *in
		stamped.Gateway, stamped.Process = l.opts.Gateway, l.process
		err = explain(l.intents.begin(&stamped))
	}
	if err != nil {
		return fmt.Errorf("cannot announce request %s in %s: %w", in.ID, l.path, err)
	}
	return nil
}

// Record stores a row and returns once it is durable: in the database, or in
// the spool where the database does not take it in time, or is to get it later
// (Options.CommitEvery). It is idempotent by
// Row.ID: the same row again is no error. A row that differs from the one that
// is stored is ErrConflict, but for one that takes the place of a lost request's.
// What is refused for good is kept in the file of refused rows.
//
// The row is copied. When ctx ends first, the error is tenancy.ErrPending if the
// row was taken: the ledger goes on to make it durable for as long as it is open.
func (l *Ledger) Record(ctx context.Context, row *tenancy.Row) error { return l.Hand(ctx, row)() }

// Hand is the first half of Record: it takes the row. The second half is what it
// returns, which waits until the row is durable, and is called once.
func (l *Ledger) Hand(ctx context.Context, row *tenancy.Row) (durable func() error) {
	e, err := l.hand(ctx, row)
	if err != nil {
		return func() error { return err }
	}
	return func() error {
		select {
		case err := <-e.result:
			if err != nil {
				return fmt.Errorf("cannot record request %s in %s: %w", e.row.ID, l.path, err)
			}
			return nil
		case <-ctx.Done():
			return fmt.Errorf("request %s: %w (%w)", e.row.ID, tenancy.ErrPending, ctx.Err())
		}
	}
}

// RecordLater is as Record, for the rows of requests that were refused: it
// returns when the row is taken, and waits for nothing but room among those that
// were, and not even for that while no place takes rows. A kill of the process
// can lose it.
func (l *Ledger) RecordLater(ctx context.Context, row *tenancy.Row) error {
	if l.sick.Load() != nil {
		var cancel context.CancelFunc
		ctx, cancel = context.WithCancel(ctx)
		cancel()
	}
	_, err := l.hand(ctx, row)
	return err
}

func (l *Ledger) hand(ctx context.Context, row *tenancy.Row) (*entry, error) {
	if err := row.Check(); err != nil {
		return nil, fmt.Errorf("cannot record a request: %w", err)
	}
	e := &entry{row: *row, result: make(chan error, 1)}
	e.row.Labels = append([]string(nil), row.Labels...)
	e.row.Charges = append([]tenancy.Charge(nil), row.Charges...)
	e.row.Gateway, e.row.Process = l.opts.Gateway, l.process
	cleanTexts(&e.row)
	if err := l.intake.put(ctx, e, l.intents.holds(row.ID)); err != nil {
		return nil, fmt.Errorf("cannot record request %s: %w", row.ID, err)
	}
	return e, nil
}

// Rows yields the rows that belong to [from, to), by end time and id: those that
// ended then, and those that are booked in a month which begins then, since the
// month of their end was closed before they came. It reads one consistent state,
// without blocking the writer. The row is the caller's to keep. An error ends the
// sequence.
func (l *Ledger) Rows(ctx context.Context, from, to time.Time) iter.Seq2[*tenancy.Row, error] {
	return l.reader.Rows(ctx, from, to)
}

// Totals sums the rows that belong to [from, to), one entry for each currency,
// ordered by it.
func (l *Ledger) Totals(ctx context.Context, from, to time.Time) ([]tenancy.Totals, error) {
	return l.reader.Totals(ctx, from, to)
}

// Snapshot is as Reader.Snapshot.
func (l *Ledger) Snapshot(ctx context.Context) (*Snapshot, error) { return l.reader.Snapshot(ctx) }

// Stats returns current figures.
func (l *Ledger) Stats() Stats {
	return Stats{
		Gateway:     l.opts.Gateway,
		Process:     l.process,
		Rows:        l.rows.Load(),
		Batches:     l.batches.Load(),
		Duplicates:  l.duplicates.Load(),
		Spooled:     l.spooled.Load(),
		Failed:      l.failed.Load(),
		Recovered:   l.recovered,
		Queued:      l.intake.len(),
		SpoolRows:   int(l.spool.rows.Load()),
		SpoolBytes:  l.spool.bytes.Load(),
		Held:        int(l.held.Load()),
		OpenIntents: l.intents.open(),
		Failing:     l.failing.Load(),
		LastCommit:  time.Duration(l.lastCommit.Load()),
	}
}

// closePatience is how long Close waits for the database.
const closePatience = 10 * time.Second

// Close makes everything durable that was taken, stops the writer and closes the
// files. Rows that the database does not take within ten seconds stay in the
// spool, for the next Open. Calls of Begin and Record that come later fail with
// ErrClosed. A second Close does nothing.
func (l *Ledger) Close() error {
	if l.closed.Swap(true) {
		return nil
	}
	l.intake.close()
	patience := time.AfterFunc(closePatience, func() { close(l.hurry) })
	<-l.stopped
	patience.Stop()
	if err := l.release(); err != nil {
		return fmt.Errorf("cannot close the ledger: %w", err)
	}
	return nil
}

// replay stores what the spool has from before, as far as that can be done soon;
// the keeper does the rest.
func (l *Ledger) replay(ctx context.Context) {
	for ctx.Err() == nil {
		rows, err := l.spool.first(l.opts.MaxBatch)
		if err != nil || len(rows) == 0 {
			return
		}
		fates, err := l.commit(ctx, rows)
		if err != nil {
			return
		}
		for _, f := range fates {
			l.count(f)
		}
		if l.spool.stored() != nil {
			return
		}
	}
}

// recover turns the intents of a process that died into rows, but for those
// whose rows are in the spool.
func (l *Ledger) recover(spooled map[string]bool) error {
	old, err := readJournals(l.path)
	if err != nil {
		return err
	}
	rows, err := l.lostRows(old.intents, spooled)
	if err != nil {
		return err
	}
	for len(rows) > 0 {
		n := min(len(rows), l.opts.MaxBatch)
		if l.away {
			if err := l.spool.append(rows[:n]); err != nil {
				return fmt.Errorf("cannot note the requests that were in flight: %w", explain(err))
			}
			l.recovered += n
			rows = rows[n:]
			continue
		}
		fates, err := l.commit(context.Background(), rows[:n])
		if err != nil {
			return fmt.Errorf("cannot note the requests that were in flight: %w", err)
		}
		for _, f := range fates {
			if f.result == stored {
				l.recovered++
			}
		}
		rows = rows[n:]
	}
	if l.recovered > 0 {
		l.opts.Log.Warn("requests were in flight when the gateway stopped; they are marked as lost", "path", l.path, "requests", l.recovered)
	}
	return old.remove()
}

// lostRows are the rows of intents, but for those whose rows are in the spool or
// in an archive: the journal may have them long after the end of the request.
func (l *Ledger) lostRows(intents []tenancy.Intent, spooled map[string]bool) ([]*tenancy.Row, error) {
	var rows []*tenancy.Row
	archived := 0
	for i := range intents {
		in := &intents[i]
		if spooled[in.ID] {
			continue
		}
		if !l.away {
			err := notArchived(context.Background(), l.reader.db, l.reader.dialect, in.Start, in.Start.Add(1))
			if errors.Is(err, ErrArchived) {
				archived++
				continue
			}
			if err != nil {
				return nil, err
			}
		}
		rows = append(rows, lostRow(in))
	}
	if archived > 0 {
		l.opts.Log.Warn("requests of archived months are in the journal; no rows are added for them", "path", l.path, "requests", archived)
	}
	return rows, nil
}

// lostRow is the row of a request whose end nobody saw. It charges nothing:
// what the worker did is not known.
func lostRow(in *tenancy.Intent) *tenancy.Row {
	row := &tenancy.Row{
		ID: in.ID, RequestID: in.RequestID, DecisionID: in.DecisionID, PolicyRevision: in.PolicyRevision,
		Gateway: in.Gateway, Process: in.Process,
		Tenant: in.Tenant, Team: in.Team, Principal: in.Principal, PrincipalKind: in.PrincipalKind, KeyID: in.KeyID,
		Operation: in.Operation, Dialect: in.Dialect,
		Model: in.Model, RequestedModel: in.RequestedModel, Pool: in.Pool, Class: in.Class,
		Flags: in.Flags | tenancy.FlagRecovered, Start: in.Start,
		Outcome: tenancy.OutcomeLost, Phase: tenancy.PhasePrefill,
	}
	cleanTexts(row)
	return row
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
