package ledger

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/sluicegate/sluice/tenancy"
)

// keeper brings rows from the intake to the database. It gives none up: what the
// database does not take in time goes to the spool, and what the spool can't
// take either is held in memory and offered to both again, without end.
//
// One goroutine runs it. A second one commits, one transaction at a time, so
// that a database that does not answer can't hold up the spool.
type keeper struct {
	l *Ledger

	jobs    chan *job
	results chan *job // holds one

	busy  *job      // being committed
	began time.Time // when that was begun
	held  []*entry  // neither stored nor spooled
	// failing is what the database said last, nil while it works.
	failing error
	since   time.Time
	pause   time.Duration
	retry   *time.Timer
	closing bool
	planned bool // the next transaction, by retry, while the database works

	notes           *time.Timer // for what is counted
	noteDue         bool        // as soon as the database has all rows
	unnoted, noting int         // rows that were counted since the last note, and that the one under way has
}

// job is one transaction.
type job struct {
	rows    []*tenancy.Row
	entries []*entry // whose rows these are; nil if they come from the spool
	fates   []fate
	err     error
	took    time.Duration
	// checkpoints are noted in place of rows.
	checkpoints []tenancy.Checkpoint
}

// maxPause is between two attempts at a database that fails.
const maxPause = 5 * time.Second

func newKeeper(l *Ledger) *keeper {
	k := &keeper{l: l, jobs: make(chan *job), results: make(chan *job, 1), retry: time.NewTimer(0), pause: l.opts.Retry}
	k.retry.Stop()
	k.notes = time.NewTimer(l.opts.NoteEvery)
	return k
}

// run ends when the intake is closed and all its rows are durable, or can't be
// made so any more.
func (k *keeper) run() {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		k.commits(ctx)
	}()
	if k.l.spool.rows.Load() > 0 {
		k.again()
	}
	for k.step() {
	}
	k.lastNote()
	cancel()
	close(k.jobs)
	<-done
	for _, e := range k.held {
		e.answer(errors.Join(ErrClosed, k.failing))
	}
}

// commits is the goroutine that writes to the database.
func (k *keeper) commits(ctx context.Context) {
	for j := range k.jobs {
		start := time.Now()
		if j.checkpoints != nil {
			j.err = k.l.store.checkpoint(ctx, j.checkpoints)
		} else {
			j.fates, j.err = k.l.commit(ctx, j.rows)
		}
		j.took = time.Since(start)
		k.results <- j
	}
}

// step does the next thing there is to do; false at the end.
func (k *keeper) step() bool {
	var ready <-chan struct{}
	if len(k.held) == 0 && !k.closing {
		ready = k.l.intake.ready
	}
	select {
	case <-ready:
		batch, done := k.l.intake.take(k.l.opts.MaxBatch)
		switch {
		case done:
			k.closing = true
			if k.ahead() && k.busy == nil {
				k.again()
			}
		case len(batch) == 0:
		case k.ahead():
			k.spoolFirst(batch)
		case k.settled():
			k.store(batch)
		default:
			k.spill(batch)
		}
		k.l.intake.placed()
	case j := <-k.results:
		k.finish(j)
	case <-k.retry.C:
		k.planned = false
		k.again()
	case <-k.notes.C:
		k.note()
	case <-k.l.hurry:
		k.last()
		return false
	}
	return !k.closing || len(k.held) > 0 || !k.settled() && k.failing == nil
}

// settled reports whether the next rows go straight to the database.
func (k *keeper) settled() bool {
	return k.busy == nil && len(k.held) == 0 && k.l.spool.rows.Load() == 0
}

// ahead reports whether rows go to the spool first.
func (k *keeper) ahead() bool { return k.l.opts.CommitEvery > 0 }

// spoolFirst makes rows durable in the spool, for the database to get them later.
// Where the spool does not take them the database may.
func (k *keeper) spoolFirst(batch []*entry) {
	rows := make([]*tenancy.Row, len(batch))
	for i, e := range batch {
		rows[i] = &e.row
	}
	switch err := k.l.spool.append(rows); {
	case err == nil:
		k.durable(batch, rows)
		k.plan()
	case k.settled():
		k.store(batch)
	default:
		k.spill(batch)
	}
}

// plan arranges the next transaction, unless one is under way or its time is fixed.
func (k *keeper) plan() {
	if k.busy != nil && k.failing == nil && time.Since(k.began) > k.l.opts.Patience {
		k.failed(errSlow)
	}
	if k.busy != nil || k.planned || k.failing != nil {
		return
	}
	k.planned = true
	k.retry.Reset(k.l.opts.CommitEvery)
}

// store commits rows that have just come, and spools them if that fails or
// takes long.
func (k *keeper) store(batch []*entry) {
	rows := make([]*tenancy.Row, len(batch))
	for i, e := range batch {
		rows[i] = &e.row
	}
	k.start(&job{rows: rows, entries: batch})
	if !k.await() {
		k.spill(batch)
	}
}

func (k *keeper) start(j *job) {
	k.busy, k.began = j, time.Now()
	k.jobs <- j
}

// await gives the transaction its time, and reports whether it has succeeded.
func (k *keeper) await() bool {
	patience := time.NewTimer(k.l.opts.Patience)
	defer patience.Stop()
	select {
	case j := <-k.results:
		k.finish(j)
		return j.err == nil
	case <-patience.C:
		k.failed(errSlow)
		return false
	}
}

// errSlow: the database has not answered in time; it may yet.
var errSlow = errors.New("the database does not answer in time")

// finish takes the end of a transaction.
func (k *keeper) finish(j *job) {
	if j.checkpoints != nil {
		k.noted(j)
		return
	}
	k.busy = nil
	k.l.lastCommit.Store(int64(j.took))
	if j.err != nil {
		k.failed(j.err)
		k.retry.Reset(k.pause)
		k.pause = min(2*k.pause, maxPause)
		return
	}
	k.l.batches.Add(1)
	k.pause = k.l.opts.Retry
	k.count(j)
	for i, f := range j.fates {
		if j.entries != nil && !j.entries[i].answered {
			k.l.intents.end(j.rows[i].ID)
			j.entries[i].answer(f.err)
		}
	}
	k.letGo()
	left := k.l.spool.rows.Load()
	switch {
	case k.settled():
		k.recovered()
		if k.noteDue {
			k.note()
		}
	case k.ahead() && len(k.held) == 0 && left < int64(k.l.opts.MaxBatch) && !k.closing && !k.noteDue:
		k.recovered() // what is left has just come
		k.plan()
	default:
		k.again()
	}
}

// count counts what a transaction has brought, before anybody is told of it.
func (k *keeper) count(j *job) {
	var fresh []*tenancy.Row
	for i, f := range j.fates {
		k.l.count(f)
		if j.entries != nil && !j.entries[i].answered && f.err == nil {
			fresh = append(fresh, j.rows[i])
		}
	}
	if j.entries == nil {
		if err := k.l.spool.stored(); err != nil {
			k.l.opts.Log.Error("cannot remove a file of the ledger's spool; its rows are stored", "path", k.l.path, "error", err)
		}
	}
	k.tell(fresh)
}

// letGo drops the held rows that have been answered.
func (k *keeper) letGo() {
	kept := k.held[:0]
	for _, e := range k.held {
		if !e.answered {
			kept = append(kept, e)
		}
	}
	clear(k.held[len(kept):])
	k.held = kept
	if len(k.held) == 0 {
		k.l.sick.Store(nil)
	}
	k.l.held.Store(int64(len(k.held)))
}

// again offers what waits: held rows to the spool, then the oldest rows to the
// database.
func (k *keeper) again() {
	if held := k.held; len(held) > 0 {
		k.held = nil
		k.spill(held)
	}
	if k.busy != nil || k.settled() {
		return
	}
	rows, err := k.l.spool.first(k.l.opts.MaxBatch)
	switch {
	case err != nil:
		k.failed(explain(err))
		k.retry.Reset(k.pause)
		k.pause = min(2*k.pause, maxPause)
		return
	case len(rows) == 0:
		k.start(heldJob(k.held[:min(len(k.held), k.l.opts.MaxBatch)]))
		return
	}
	k.start(&job{rows: rows})
	// The last of them are waited for: under load there would always be new
	// ones behind them.
	if last := int64(len(rows)) == k.l.spool.rows.Load() && len(k.held) == 0; last && (!k.ahead() || k.closing || k.noteDue || k.failing != nil) {
		k.await()
	}
}

func heldJob(held []*entry) *job {
	j := &job{entries: append([]*entry(nil), held...)}
	for _, e := range held {
		j.rows = append(j.rows, &e.row)
	}
	return j
}

// spill makes rows durable beside the database, or holds them.
func (k *keeper) spill(batch []*entry) {
	var left []*entry
	var rows []*tenancy.Row
	for _, e := range batch {
		if !e.answered {
			left, rows = append(left, e), append(rows, &e.row)
		}
	}
	if len(left) == 0 {
		k.letGo()
		return
	}
	if err := k.l.spool.append(rows); err != nil {
		err = explain(err)
		if k.l.sick.Swap(&err) == nil {
			k.l.opts.Log.Error("rows can't be made durable: neither the database nor the spool takes them; they are kept in memory and new requests are refused",
				"path", k.l.path, "rows", len(left), "database", k.failing, "spool", err)
		}
		k.held = append(k.held, left...)
		k.l.held.Store(int64(len(k.held)))
		if k.busy == nil {
			k.retry.Reset(k.pause)
		}
		return
	}
	k.l.spooled.Add(uint64(len(left)))
	k.durable(left, rows)
	k.letGo()
}

// durable tells whoever waits for rows that the spool has them.
func (k *keeper) durable(entries []*entry, rows []*tenancy.Row) {
	k.tell(rows)
	for _, e := range entries {
		k.l.intents.end(e.row.ID)
		e.answer(nil)
	}
}

// failed notes that the database does not take rows.
func (k *keeper) failed(err error) {
	if k.failing == nil {
		k.since = time.Now()
		k.l.opts.Log.Error("the ledger's database does not take rows; they go to the spool until it does",
			"path", k.l.path, "error", err)
	}
	k.failing = err
	k.l.failing.Store(true)
}

// recovered notes that it takes them again.
func (k *keeper) recovered() {
	if k.failing != nil {
		k.l.opts.Log.Info("the ledger's database takes rows again; none is left in the spool",
			"path", k.l.path, "after", time.Since(k.since))
	}
	k.failing = nil
	k.l.failing.Store(false)
}

// last does what can be done in no time at the end of the process: what is in
// the intake goes to the spool.
func (k *keeper) last() {
	for {
		batch, done := k.l.intake.take(k.l.opts.MaxBatch)
		if done {
			break
		}
		k.held = append(k.held, batch...)
	}
	held := k.held
	k.held = nil
	k.spill(held)
	if len(k.held) > 0 {
		k.l.opts.Log.Log(context.Background(), slog.LevelError, "rows are lost to the ledger: it is closed while neither the database nor the spool takes them",
			"path", k.l.path, "rows", len(k.held), "error", k.failing)
	}
}
