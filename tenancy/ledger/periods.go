package ledger

import (
	"context"
	"database/sql"
	"fmt"
	"time"

	"github.com/sluicegate/sluice/tenancy"
)

// A row belongs to the month of its end. Once that is closed nothing of it changes
// any more: a row that comes later is booked in the first month after it that is
// open. The database refuses whatever would change a closed month, whoever tries.

// closedMonths are the numbers of the months that are closed.
type closedMonths map[int64]bool

// monthNumber is how the database names a month: 202603 is March of 2026.
func monthNumber(t time.Time) int64 {
	t = t.UTC()
	return int64(t.Year())*100 + int64(t.Month())
}

// monthOf is the inverse of monthNumber.
func monthOf(number int64) time.Time {
	return time.Date(int(number/100), time.Month(number%100), 1, 0, 0, 0, 0, time.UTC)
}

// book returns the month of a row that ended at an instant, as the column period
// has it.
func (c closedMonths) book(end time.Time) int64 {
	month := tenancy.Month(end)
	if !c[monthNumber(month)] {
		return 0
	}
	for c[monthNumber(month)] {
		month = month.AddDate(0, 1, 0)
	}
	return monthNumber(month)
}

// has reports whether the month that a stored row is booked in is closed.
func (c closedMonths) has(row *tenancy.Row) bool { return c[monthNumber(row.Period)] }

// lateSuffix ends the id of a row that came when the request counted as lost in a
// month that has been closed.
const lateSuffix = "~late"

// reasonLate is the reason of such a row.
const reasonLate = "the request counted as lost when its month was closed"

// afterClose makes a correction of a row that can't take the place of a lost one.
func afterClose(row *tenancy.Row) *tenancy.Row {
	late := *row
	late.ID, late.CorrectionOf, late.Reason = row.ID+lateSuffix, row.ID, reasonLate
	return &late
}

// readClosed asks a database for its closed months.
func readClosed(ctx context.Context, db rowQuerier, d *dialect) (closedMonths, error) {
	return monthsOf(ctx, db, closedQuery(d))
}

func closedQuery(d *dialect) string { return "SELECT month FROM " + d.closed }

// monthsOf is a set of months by their numbers, which a query gives.
func monthsOf(ctx context.Context, db rowQuerier, query string) (closedMonths, error) {
	return monthsIn(db.QueryContext(ctx, query))
}

// monthsIn is a set of months by their numbers, from what a query has found.
func monthsIn(found *sql.Rows, err error) (closedMonths, error) {
	if err != nil {
		return nil, err
	}
	defer found.Close()
	months := make(closedMonths)
	for found.Next() {
		var month int64
		if err := found.Scan(&month); err != nil {
			return nil, err
		}
		months[month] = true
	}
	return months, found.Err()
}

// part is some of the rows of a time, as a condition with its arguments. Each part
// has an index.
type part struct {
	where string
	args  []any
}

// ended are the rows that belong to [from, to) because they ended then. The marks
// of the arguments begin at the n-th.
func (d *dialect) ended(from, to time.Time, n int) part {
	where := fmt.Sprintf("end_ns >= %s AND end_ns < %s", d.mark(n), d.mark(n+1))
	if d.schema >= withPeriods {
		where = "period = 0 AND " + where
	}
	return part{where, []any{dbNanos(from), dbNanos(to)}}
}

// late are the rows that are booked in a month that begins in [from, to) though
// they ended in another.
func (d *dialect) late(from, to time.Time, n int) part {
	where := fmt.Sprintf("period <> 0 AND period >= %s AND period < %s", d.mark(n), d.mark(n+1))
	return part{where, []any{nextMonth(from), nextMonth(to)}}
}

// booked are all rows that belong to [from, to), in parts for one statement.
func (d *dialect) booked(from, to time.Time) []part {
	parts := []part{d.ended(from, to, 1)}
	if d.schema >= withPeriods {
		parts = append(parts, d.late(from, to, 3))
	}
	return parts
}

// nextMonth is the number of the first month that begins at an instant or later.
func nextMonth(t time.Time) int64 {
	if month := tenancy.Month(t); month.Before(t) {
		return monthNumber(month.AddDate(0, 1, 0))
	}
	return monthNumber(t)
}
