package ledger

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io/fs"
	"iter"
	"strings"
	"syscall"
	"time"

	"github.com/sluicegate/sluice/tenancy"
)

// Reader reads a ledger that another process may be writing. Safe for
// concurrent use.
type Reader struct {
	path    string
	db      *sql.DB
	dialect *dialect
}

// dialect is what the two databases want said differently.
type dialect struct {
	table    string
	archived string             // the table of archived months; empty where there is none
	mark     func(i int) string // the i-th argument, from 1
	view     *sql.TxOptions     // of a transaction that sees one state
	lockRows string             // ends a SELECT whose rows must not change before the transaction ends
	versions func() int         // of the schema, that this program knows
	version  string             // asks for that of the database
}

var sqliteDialect = &dialect{
	table: "requests", archived: "archived_months", mark: func(int) string { return "?" }, view: &sql.TxOptions{ReadOnly: true},
	versions: func() int { return len(migrations) },
	version:  "SELECT coalesce(max(version), 0) FROM migrations",
}

// withArchived is the version of the schema from which on months can be archived.
const withArchived = 2

// withoutArchived reads what is there, and asks for nothing else.
func (d *dialect) withoutArchived() *dialect {
	plain := *d
	plain.archived = ""
	return &plain
}

// schema returns the version of the database's schema.
func (r *Reader) schema(ctx context.Context) (version int, err error) {
	err = r.db.QueryRowContext(ctx, r.dialect.version).Scan(&version)
	return version, err
}

// fit makes the reader one for the version of the schema that the database has:
// a gateway of this version may not have been started with it yet.
func (r *Reader) fit(ctx context.Context) error {
	version, err := r.schema(ctx)
	switch known := r.dialect.versions(); {
	case err != nil:
		return err
	case version < 1 || version > known:
		return fmt.Errorf("its schema is version %d, this program reads up to version %d", version, known)
	case version < withArchived:
		r.dialect = r.dialect.withoutArchived()
	}
	return nil
}

// OpenReader opens an existing ledger for reading alone.
func OpenReader(path string) (*Reader, error) {
	r, err := openReader(path)
	if err != nil {
		return nil, fmt.Errorf("cannot open the ledger: %w", err)
	}
	return r, nil
}

func openReader(path string) (_ *Reader, err error) {
	mode, err := readMode(path)
	if err != nil {
		return nil, err
	}
	db, err := openDB(path, mode, "query_only(1)", "busy_timeout(5000)")
	if err != nil {
		return nil, err
	}
	r := &Reader{path: path, db: db, dialect: sqliteDialect}
	defer func() {
		if err != nil {
			db.Close()
			err = fmt.Errorf("%s: %w", path, explain(err))
		}
	}()
	version, err := schemaVersion(context.Background(), db)
	if err != nil {
		return nil, err
	}
	if version == 0 {
		return nil, errors.New("its schema is version 0: the gateway brings it up to date at its start")
	}
	return r, r.fit(context.Background())
}

// readMode is rw, under which SQLite can use the write-ahead log whether or not
// a writer is there, or ro for users who may not write the file. query_only
// keeps both from changing a row.
//
// It asks without opening the file: closing any descriptor of it would give up
// the locks that SQLite holds on it in this process.
func readMode(path string) (string, error) {
	const readAndWrite = 4 | 2
	err := syscall.Access(path, readAndWrite)
	switch {
	case err == nil:
		return "rw", nil
	case errors.Is(err, fs.ErrPermission), errors.Is(err, syscall.EROFS):
		return "ro", nil
	case errors.Is(err, fs.ErrNotExist):
		return "", fmt.Errorf("%s does not exist: the gateway makes it at its first start (%w)", path, err)
	}
	return "", fmt.Errorf("%s: %w", path, err)
}

// Rows is as Ledger.Rows.
func (r *Reader) Rows(ctx context.Context, from, to time.Time) iter.Seq2[*tenancy.Row, error] {
	return rowsFrom(ctx, r.db, r.dialect, r.path, from, to)
}

// Totals is as Ledger.Totals.
func (r *Reader) Totals(ctx context.Context, from, to time.Time) ([]tenancy.Totals, error) {
	return totalsFrom(ctx, r.db, r.dialect, r.path, from, to)
}

// Snapshot freezes the ledger as it is now: Rows and Totals of the result see
// the same rows however many are added meanwhile. Close it soon: the writer's
// log can't be cut back while a snapshot needs it.
func (r *Reader) Snapshot(ctx context.Context) (*Snapshot, error) {
	tx, err := r.db.BeginTx(ctx, r.dialect.view)
	if err != nil {
		return nil, fmt.Errorf("cannot read the ledger %s: %w", r.path, explain(err))
	}
	// The state is fixed at the first read, not at BEGIN.
	var n int
	if err := tx.QueryRowContext(ctx, "SELECT count(*) FROM (SELECT 1 FROM "+r.dialect.table+" LIMIT 1) AS one").Scan(&n); err != nil {
		_ = tx.Rollback()
		return nil, fmt.Errorf("cannot read the ledger %s: %w", r.path, explain(err))
	}
	return &Snapshot{path: r.path, tx: tx, dialect: r.dialect}, nil
}

// Close releases the file. Snapshots are closed before it.
func (r *Reader) Close() error { return r.db.Close() }

// Snapshot is a frozen view of a ledger. Not for concurrent use.
type Snapshot struct {
	path    string
	tx      *sql.Tx
	dialect *dialect
}

// Rows is as Ledger.Rows.
func (s *Snapshot) Rows(ctx context.Context, from, to time.Time) iter.Seq2[*tenancy.Row, error] {
	return rowsFrom(ctx, s.tx, s.dialect, s.path, from, to)
}

// Totals is as Ledger.Totals.
func (s *Snapshot) Totals(ctx context.Context, from, to time.Time) ([]tenancy.Totals, error) {
	return totalsFrom(ctx, s.tx, s.dialect, s.path, from, to)
}

// Close ends the view.
func (s *Snapshot) Close() error {
	if err := s.tx.Rollback(); err != nil && !errors.Is(err, sql.ErrTxDone) {
		return err
	}
	return nil
}

// period is the condition on rows of a time, whose arguments are its ends.
func (d *dialect) period() string { return "end_ns >= " + d.mark(1) + " AND end_ns < " + d.mark(2) }

type rowQuerier interface {
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
}

func rowsFrom(ctx context.Context, db rowQuerier, d *dialect, path string, from, to time.Time) iter.Seq2[*tenancy.Row, error] {
	return func(yield func(*tenancy.Row, error) bool) {
		if err := notArchived(ctx, db, d, from, to); err != nil {
			yield(nil, fmt.Errorf("cannot read the ledger %s: %w", path, explain(err)))
			return
		}
		fail := func(err error) { yield(nil, fmt.Errorf("cannot read the ledger %s: %w", path, explain(err))) }
		rows, err := db.QueryContext(ctx,
			"SELECT "+columnNames()+" FROM "+d.table+" WHERE "+d.period()+" ORDER BY end_ns, id",
			dbNanos(from), dbNanos(to))
		if err != nil {
			fail(err)
			return
		}
		defer rows.Close()
		for rows.Next() {
			row, err := scanRow(rows.Scan)
			if err != nil {
				fail(err)
				return
			}
			if !yield(row, nil) {
				return
			}
		}
		if err := rows.Err(); err != nil {
			fail(err)
		}
	}
}

func totalsFrom(ctx context.Context, db rowQuerier, d *dialect, path string, from, to time.Time) ([]tenancy.Totals, error) {
	err := notArchived(ctx, db, d, from, to)
	var out []tenancy.Totals
	if err == nil {
		out, err = queryTotals(ctx, db, d, from, to)
	}
	if err != nil {
		return nil, fmt.Errorf("cannot sum the ledger %s: %w", path, explain(err))
	}
	return out, nil
}

func queryTotals(ctx context.Context, db rowQuerier, d *dialect, from, to time.Time) ([]tenancy.Totals, error) {
	sums := []string{"currency", "count(*)"}
	for _, c := range []string{
		"input_tokens", "cached_tokens", "output_tokens", "reasoning_tokens", "input_cost", "cached_cost", "output_cost",
	} {
		sums = append(sums, "CAST(sum("+c+") AS BIGINT)")
	}
	rows, err := db.QueryContext(ctx, "SELECT "+strings.Join(sums, ", ")+" FROM "+d.table+" WHERE "+d.period()+" GROUP BY currency ORDER BY currency",
		dbNanos(from), dbNanos(to))
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	var out []tenancy.Totals
	for rows.Next() {
		var t tenancy.Totals
		if err := rows.Scan(&t.Currency, &t.Rows,
			&t.InputTokens, &t.CachedTokens, &t.OutputTokens, &t.ReasoningTokens,
			&t.Costs.Input, &t.Costs.CachedInput, &t.Costs.Output); err != nil {
			return nil, err
		}
		out = append(out, t)
	}
	return out, rows.Err()
}
