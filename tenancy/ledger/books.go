package ledger

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/stdlib"

	"github.com/sluicegate/sluice/tenancy"
)

// Closing is how a month was closed.
type Closing struct {
	// Month is its first instant, in UTC.
	Month time.Time
	// At is when it was closed and By who did it.
	At time.Time
	By string
	// Meta is what the bytes of its exports depend on beside the rows.
	Meta string
	// Rows is how many rows it has; CSV and JSON are the SHA-256 of its exports.
	Rows      int64
	CSV, JSON string
}

// Sealed reports whether the closing is complete. Until then the month takes no
// rows, and its sums are being written down.
func (c *Closing) Sealed() bool { return c.CSV != "" }

// Books is a ledger opened to close months and to correct rows, while a gateway may
// be writing it. Safe for concurrent use.
type Books struct{ *Reader }

// OpenBooks opens the ledger in a file.
func OpenBooks(path string) (*Books, error) {
	mode, err := readMode(path)
	if err == nil && mode != "rw" {
		err = fmt.Errorf("%s can't be written by this user", path)
	}
	if err != nil {
		return nil, fmt.Errorf("cannot open the ledger: %w", err)
	}
	// A gateway under load leaves the lock free for moments alone.
	db, err := openDB(path, mode, "busy_timeout(30000)", "synchronous(FULL)")
	if err != nil {
		return nil, fmt.Errorf("cannot open the ledger: %w", explain(err))
	}
	return openBooks(&Reader{path: path, db: db, dialect: sqliteDialect})
}

// OpenPostgresBooks opens the ledger in a PostgreSQL database.
func OpenPostgresBooks(dsn string) (*Books, error) {
	cfg, err := parsePostgres(dsn)
	if err != nil {
		return nil, fmt.Errorf("cannot open the ledger: %w", err)
	}
	return openBooks(&Reader{path: "in PostgreSQL", db: stdlib.OpenDB(*cfg.ConnConfig), dialect: postgresDialect})
}

func openBooks(r *Reader) (*Books, error) {
	ctx, cancel := context.WithTimeout(context.Background(), postgresTimeout)
	defer cancel()
	version, err := r.schema(ctx)
	if err == nil && version != r.dialect.known {
		err = fmt.Errorf("its schema is version %d, this program writes version %d: start the gateway of this version once", version, r.dialect.known)
	}
	if err != nil {
		r.db.Close()
		return nil, fmt.Errorf("cannot open the ledger: %s: %w", r.path, explain(err))
	}
	return &Books{r}, nil
}

const closingColumns = "month, closed_ns, closed_by, meta, row_count, csv_sha256, json_sha256"

// Closing returns how a month was closed; nil if it is not.
func (s *Snapshot) Closing(ctx context.Context, month time.Time) (*Closing, error) {
	return closingOf(ctx, s.tx, s.dialect, month)
}

func closingOf(ctx context.Context, db rowQuerier, d *dialect, month time.Time) (*Closing, error) {
	if d.schema < withPeriods {
		return nil, nil
	}
	found, err := db.QueryContext(ctx, "SELECT "+closingColumns+" FROM "+d.closed+" WHERE month = "+d.mark(1), monthNumber(month))
	if err != nil {
		return nil, fmt.Errorf("cannot read the closed months: %w", explain(err))
	}
	defer found.Close()
	if !found.Next() {
		return nil, found.Err()
	}
	var c Closing
	var number, at int64
	if err := found.Scan(&number, &at, &c.By, &c.Meta, &c.Rows, &c.CSV, &c.JSON); err != nil {
		return nil, err
	}
	c.Month, c.At = monthOf(number), time.Unix(0, at).UTC()
	return &c, nil
}

// Freeze begins to close a month: from its return on the month takes no row, and
// those that it has don't change. It returns the closing that there is, which is
// another one if somebody has begun before.
func (b *Books) Freeze(ctx context.Context, c Closing) (*Closing, error) {
	d := b.dialect
	c.Month = tenancy.Month(c.Month)
	if c.By == "" {
		return nil, errors.New("cannot close a month without the name of who does it")
	}
	var there *Closing
	err := b.change(ctx, func(tx *sql.Tx) (err error) {
		if err := notArchived(ctx, tx, d, c.Month, c.Month.AddDate(0, 1, 0)); err != nil {
			return err
		}
		if d == postgresDialect {
			// Waits for all who are adding rows, and they for this to end.
			if _, err := tx.ExecContext(ctx, "SET LOCAL lock_timeout = '30s'; LOCK TABLE "+d.table+" IN SHARE ROW EXCLUSIVE MODE"); err != nil {
				return err
			}
		}
		_, err = tx.ExecContext(ctx, fmt.Sprintf("INSERT INTO %s (%s, from_ns, to_ns) VALUES (%s) ON CONFLICT (month) DO NOTHING", d.closed, closingColumns, marks(d, 9)),
			monthNumber(c.Month), dbNanos(c.At), c.By, c.Meta, 0, "", "", dbNanos(c.Month), dbNanos(c.Month.AddDate(0, 1, 0)))
		if err == nil {
			there, err = closingOf(ctx, tx, d, c.Month)
		}
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("cannot close %s: %w", c.Month.Format("2006-01"), err)
	}
	return there, nil
}

// Seal completes a closing with the number of rows and the sums over the exports.
// Nothing of it changes from then on. It is an error if the month was thawed and
// frozen again meanwhile.
func (b *Books) Seal(ctx context.Context, c Closing) error {
	d := b.dialect
	return b.change(ctx, func(tx *sql.Tx) error {
		res, err := tx.ExecContext(ctx, fmt.Sprintf("UPDATE %s SET row_count = %s, csv_sha256 = %s, json_sha256 = %s WHERE month = %s AND closed_ns = %s AND csv_sha256 = ''",
			d.closed, d.mark(1), d.mark(2), d.mark(3), d.mark(4), d.mark(5)), c.Rows, c.CSV, c.JSON, monthNumber(c.Month), dbNanos(c.At))
		return one(res, err, "the month was closed meanwhile, or is not being closed")
	})
}

// Thaw ends a closing that was begun and can't be completed: the month is open
// again.
func (b *Books) Thaw(ctx context.Context, month time.Time) error {
	d := b.dialect
	return b.change(ctx, func(tx *sql.Tx) error {
		res, err := tx.ExecContext(ctx, "DELETE FROM "+d.closed+" WHERE csv_sha256 = '' AND month = "+d.mark(1), monthNumber(month))
		return one(res, err, "the month is closed, or is not being closed")
	})
}

func one(res sql.Result, err error, otherwise string) error {
	if err != nil {
		return err
	}
	if n, err := res.RowsAffected(); err != nil || n != 1 {
		return errors.Join(err, errors.New(otherwise))
	}
	return nil
}

func marks(d *dialect, n int) string {
	list := make([]string, n)
	for i := range list {
		list[i] = d.mark(i + 1)
	}
	return strings.Join(list, ", ")
}

// change does something in one transaction.
func (b *Books) change(ctx context.Context, do func(tx *sql.Tx) error) error {
	tx, err := b.db.BeginTx(ctx, nil)
	if err != nil {
		return explain(err)
	}
	defer tx.Rollback() //nolint:errcheck // after Commit it has nothing to do
	if err := do(tx); err != nil {
		return explain(err)
	}
	return explain(tx.Commit())
}

// ErrNoRow: the ledger has no such row.
var ErrNoRow = errors.New("no row has this id")

// Row returns a row by its id and the rows that correct it, in the order in which
// they came. A row of an archived month is in its file.
func (b *Books) Row(ctx context.Context, id string) (row *tenancy.Row, corrections []*tenancy.Row, err error) {
	d := b.dialect
	found, err := readRows(ctx, b.db, fmt.Sprintf("SELECT %s FROM %s WHERE id = %s OR correction_of <> '' AND correction_of = %s ORDER BY seq",
		columnNames(), d.table, d.mark(1), d.mark(2)), id, id)
	if err != nil {
		return nil, nil, fmt.Errorf("cannot read row %s: %w", id, explain(err))
	}
	for _, r := range found {
		if r.ID == id {
			row = r
		} else {
			corrections = append(corrections, r)
		}
	}
	if row == nil {
		return nil, nil, fmt.Errorf("cannot read row %s: %w", id, ErrNoRow)
	}
	return row, corrections, nil
}

// Correct stores a correction, booked in the month of the row that it corrects or,
// where that is closed, in the first open one after it, and returns it as stored.
// An id that is taken is ErrConflict: somebody else has corrected the row meanwhile.
func (b *Books) Correct(ctx context.Context, row *tenancy.Row) (*tenancy.Row, error) {
	err := row.Check()
	if err == nil && (row.CorrectionOf == "" || row.Reason == "" || row.Author == "") {
		err = fmt.Errorf("row %s names no other row, reason or author", row.ID)
	}
	if err != nil {
		return nil, fmt.Errorf("cannot correct: %w", err)
	}
	stored := *row
	cleanTexts(&stored)
	d := b.dialect
	err = b.change(ctx, func(tx *sql.Tx) error {
		if d == postgresDialect {
			// As any other who adds rows: nobody closes a month meanwhile.
			if _, err := tx.ExecContext(ctx, "LOCK TABLE "+d.table+" IN ROW EXCLUSIVE MODE"); err != nil {
				return err
			}
		}
		closed, err := readClosed(ctx, tx, d)
		if err != nil {
			return err
		}
		month := closed.book(stored.End())
		stored.Period = tenancy.Month(stored.End())
		if month != 0 {
			stored.Period = monthOf(month)
		}
		res, err := tx.ExecContext(ctx, fmt.Sprintf("INSERT INTO %s (%s) VALUES (%s) ON CONFLICT (id) DO NOTHING", d.table, columnNames(), marks(d, len(columns)+1)),
			appendValues(nil, &stored, month)...)
		if err != nil {
			return err
		}
		if n, err := res.RowsAffected(); err != nil || n != 1 {
			return errors.Join(err, ErrConflict)
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("cannot correct row %s: %w", row.CorrectionOf, err)
	}
	return &stored, nil
}

// copyClosing gives an archive the closing of its month.
func copyClosing(ctx context.Context, src *Reader, file string, month time.Time) error {
	c, err := closingOf(ctx, src.db, src.dialect, month)
	if err != nil || c == nil {
		return err
	}
	if !c.Sealed() {
		return errors.New("the month is being closed; wait for that to end")
	}
	b, err := OpenBooks(file)
	if err != nil {
		return err
	}
	defer b.Close()
	there, err := b.Freeze(ctx, *c)
	if err != nil || there.Sealed() {
		return err
	}
	return b.Seal(ctx, *c)
}
