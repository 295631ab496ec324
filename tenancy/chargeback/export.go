package chargeback

import (
	"context"
	"io"
	"iter"
	"time"

	"github.com/sluicegate/sluice/tenancy"
)

// Source is where an export reads from; ledger.Ledger, Reader and Snapshot are
// sources. While rows are being added, use a Snapshot: the export compares
// Rows with Totals.
type Source interface {
	// Rows yields the rows that ended in [from, to).
	Rows(ctx context.Context, from, to time.Time) iter.Seq2[*tenancy.Row, error]
	// Totals sums the same rows by currency, computed independently of Rows.
	Totals(ctx context.Context, from, to time.Time) ([]tenancy.Totals, error)
}

// Export writes the charges of a period (YYYY-MM, UTC, by the rows' end time)
// as CSV in FOCUS columns: one line for each (tenant, team, model, pool, class,
// meter, unit price) with a quantity. The bytes depend on the rows alone. Nothing
// is written unless the lines' sums equal the source's totals to the unit.
func Export(ctx context.Context, rows Source, period string, w io.Writer) error {
	panic("BUG: not reached")
}
