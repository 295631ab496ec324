package ledger

import (
	"github.com/sluicegate/sluice/tenancy"
)

// Counter counts the rows of this process, such as for metrics. Its methods are
// called by one goroutine at a time.
type Counter interface {
	// Count is told of rows once each when they have become durable, before whoever
	// waits for them is. It is called without rows, too, when how far the database
	// has them has changed. It must not keep or change a row.
	Count(rows []*tenancy.Row, at tenancy.Counted)
	// Checkpoint returns all that was counted, by month of the rows' end. What it
	// no longer returns stays as it was returned last.
	Checkpoint() []tenancy.Checkpoint
}

// tell counts rows that have become durable.
func (k *keeper) tell(rows []*tenancy.Row) {
	if k.l.opts.Counter == nil {
		return
	}
	k.unnoted += len(rows)
	k.l.opts.Counter.Count(rows, tenancy.Counted{Seq: k.l.store.seq(), Waiting: k.l.spool.rows.Load()})
}

// note writes to the database what has been counted, if it has all of those rows:
// nothing is on its way, so what is counted is what it has of this process's rows
// up to the place where its rows end now.
func (k *keeper) note() {
	k.notes.Reset(k.l.opts.NoteEvery)
	if k.l.opts.Counter == nil || k.unnoted == 0 {
		return
	}
	// Where rows go to the spool first, it is hardly ever empty by itself.
	if k.noteDue = !k.settled() && k.ahead(); !k.settled() {
		return
	}
	list := k.l.opts.Counter.Checkpoint()
	for i := range list {
		list[i].Gateway, list[i].Process = k.l.opts.Gateway, k.l.process
	}
	k.noting = k.unnoted
	k.start(&job{checkpoints: list})
	k.await()
}

// lastNote is that of the end, unless there is no time for it.
func (k *keeper) lastNote() {
	select {
	case <-k.l.hurry:
	default:
		k.note()
	}
}

// noted takes the end of the transaction of a note.
func (k *keeper) noted(j *job) {
	k.busy = nil
	if j.err != nil {
		k.l.opts.Log.Warn("cannot note in the ledger what is counted; it is tried again", "path", k.l.path, "error", explain(j.err))
	} else {
		k.unnoted -= k.noting
	}
	switch {
	case !k.settled():
		k.again()
	case j.err == nil:
		k.recovered()
	}
}
