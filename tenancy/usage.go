package tenancy

import "time"

// Usage is what the rows of one tenant, model and currency sum to.
type Usage struct {
	Tenant, Model string
	Totals
}

// Checkpoint is what one process has counted of the rows that it made and that
// ended in one month: the sums of exactly those rows of the process that the
// ledger has up to a place, so that the two can be compared at any later time.
// Rows that another process has stored for it, because it died before, are none
// of them.
type Checkpoint struct {
	// Gateway and Process are those of the rows.
	Gateway, Process string
	// Month is the first instant, in UTC, of the month in which the rows ended.
	Month time.Time
	// Seq is the place in the ledger. The ledger fills it in, as it does Gateway
	// and Process.
	Seq int64
	// At is when it was taken.
	At time.Time
	// Usage is sorted by tenant, model and currency.
	Usage []Usage
}

// Counted says how far the rows of a process that it has counted are in the
// ledger.
type Counted struct {
	// Seq is the highest place of one in the ledger, 0 if there is none.
	Seq int64
	// Waiting rows are durable and counted, but not in the database yet: while
	// there are any, what is counted is more than the database has.
	Waiting int64
}
