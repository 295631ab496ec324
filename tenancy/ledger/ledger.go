package ledger

import (
	"context"
	"errors"
	"iter"
	"log/slog"
	"time"

	"github.com/sluicegate/sluice/tenancy"
)

// Errors a caller may branch on.
var (
	// ErrClosed: the ledger was closed before the row was taken.
	ErrClosed = errors.New("ledger is closed")
	// ErrConflict: a different row with the same id is stored already.
	ErrConflict = errors.New("a different row with this id exists")
	// ErrFull: the disk or quota is full.
	ErrFull = errors.New("no space left for the ledger")
	// ErrLocked: another process holds the ledger.
	ErrLocked = errors.New("ledger is in use by another process")
)

// Options tune a Ledger. The zero value means the defaults.
type Options struct {
	// Queue is how many rows may wait for the writer; Record blocks beyond it.
	// Default 4096.
	Queue int
	// MaxBatch is how many rows one transaction takes at most. Default 1024.
	MaxBatch int
	// Log receives recoveries and failed commits; nil discards them.
	Log *slog.Logger
	// Now is the time a recovery is stamped with; nil means time.Now.
	Now func() time.Time
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
type Ledger struct{}

// Open opens or creates the ledger at path, brings its schema up to date,
// turns what a crash left in flight into rows with outcome lost, and starts the
// writer. Only one process may have it open; others read with OpenReader.
func Open(path string, opts Options) (*Ledger, error) { panic("BUG: not reached") }

// Begin notes that a request is about to be sent to a worker. The note survives
// the death of the process. It does not wait for the disk.
// Every Begin must be followed by one Record with the same ID.
func (l *Ledger) Begin(ctx context.Context, in *tenancy.Intent) error { panic("BUG: not reached") }

// Record stores a row and returns once it is durable. It is idempotent by
// Row.ID: the same row again is no error, a different one is ErrConflict. The
// row is copied. When ctx ends first the row may still become durable, and
// Record may be called again to find out.
func (l *Ledger) Record(ctx context.Context, row *tenancy.Row) error { panic("BUG: not reached") }

// Rows yields the rows that ended in [from, to), by end time. It reads a
// consistent state as of the call, without blocking the writer. The row is the
// caller's to keep. An error ends the sequence.
func (l *Ledger) Rows(ctx context.Context, from, to time.Time) iter.Seq2[*tenancy.Row, error] {
	panic("BUG: not reached")
}

// Totals sums the rows that ended in [from, to), one entry for each currency,
// ordered by it.
func (l *Ledger) Totals(ctx context.Context, from, to time.Time) ([]tenancy.Totals, error) {
	panic("BUG: not reached")
}

// Stats returns current figures.
func (l *Ledger) Stats() Stats { panic("BUG: not reached") }

// Close stores everything queued, then stops the writer. Later calls of Record
// fail with ErrClosed.
func (l *Ledger) Close() error { panic("BUG: not reached") }

// Reader reads a ledger that another process may be writing.
type Reader struct{}

// OpenReader opens an existing ledger read-only.
func OpenReader(path string) (*Reader, error) { panic("BUG: not reached") }

// Rows is as Ledger.Rows.
func (r *Reader) Rows(ctx context.Context, from, to time.Time) iter.Seq2[*tenancy.Row, error] {
	panic("BUG: not reached")
}

// Totals is as Ledger.Totals.
func (r *Reader) Totals(ctx context.Context, from, to time.Time) ([]tenancy.Totals, error) {
	panic("BUG: not reached")
}

// Snapshot freezes the ledger as it is now: Rows and Totals of the result see
// the same rows however many are added meanwhile. Close it soon.
func (r *Reader) Snapshot(ctx context.Context) (*Snapshot, error) { panic("BUG: not reached") }

// Close releases the file.
func (r *Reader) Close() error { panic("BUG: not reached") }

// Snapshot is a frozen view of a ledger. Not for concurrent use.
type Snapshot struct{}

// Rows is as Ledger.Rows.
func (s *Snapshot) Rows(ctx context.Context, from, to time.Time) iter.Seq2[*tenancy.Row, error] {
	panic("BUG: not reached")
}

// Totals is as Ledger.Totals.
func (s *Snapshot) Totals(ctx context.Context, from, to time.Time) ([]tenancy.Totals, error) {
	panic("BUG: not reached")
}

// Close ends the view.
func (s *Snapshot) Close() error { panic("BUG: not reached") }
