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

// dialect is what the two databases want said differently, at one version of the
// schema.
type dialect struct {
	table       string
	archived    string             // the table of archived months; empty where there is none
	closed      string             // the table of closed months
	checkpoints string             // the table of what processes have counted
	budgets     string             // the table of what is used of budgets
	mark        func(i int) string // the i-th argument, from 1
	view        *sql.TxOptions     // of a transaction that sees one state
	lockRows    string             // ends a SELECT whose rows must not change before the transaction ends
	version     string             // asks for the version of the database's schema
	known       int                // the version that this program writes
	schema      int                // the version that the database has
}

var sqliteDialect = &dialect{
	table: "requests", archived: "archived_months", closed: "closed_months", checkpoints: "usage_checkpoints", budgets: "budgets",
	mark: func(int) string { return "?" }, view: &sql.TxOptions{ReadOnly: true},
	version: "SELECT coalesce(max(version), 0) FROM migrations",
	known:   schemaNow, schema: schemaNow,
}

// Versions of the schema, which both databases count alike.
const (
	withArchived = 2 // months can be archived
	withPeriods  = 3 // rows have the columns of periods and corrections; months can be closed; processes note what they have counted; charges on budgets are added up

	schemaNow = withPeriods
)

// withoutArchived reads what is there, and asks for nothing else.
func (d *dialect) withoutArchived() *dialect {
	plain := *d
	plain.archived = ""
	return &plain
}

// at is the dialect of a database whose schema has a version.
func (d *dialect) at(version int) *dialect {
	old := *d
	if old.schema = version; version < withArchived {
		old.archived = ""
	}
	return &old
}

// schema returns the version of the database's schema.
func (r *Reader) schema(ctx context.Context) (version int, err error) {
	err = r.db.QueryRowContext(ctx, r.dialect.version).Scan(&version)
	return version, err
}

// fit makes the reader one for the version of the schema that the database has:
// a gateway of this version may not have been started with it yet. Columns that
// it lacks read as empty.
func (r *Reader) fit(ctx context.Context) error {
	version, err := r.schema(ctx)
	if err != nil {
		return err
	}
	if version < 1 || version > r.dialect.known {
		return fmt.Errorf("its schema is version %d, this program reads up to version %d", version, r.dialect.known)
	}
	r.dialect = r.dialect.at(version)
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
		// Each part has an index that orders it, so that nothing has to be sorted.
		var selects []string
		var args []any
		for _, p := range d.booked(from, to) {
			selects = append(selects, "SELECT "+selected(d.schema)+" FROM "+d.table+" WHERE "+p.where)
			args = append(args, p.args...)
		}
		rows, err := db.QueryContext(ctx, strings.Join(selects, " UNION ALL ")+" ORDER BY end_ns, id", args...)
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

// sums are the columns of Totals behind the currency and the number of rows.
func (d *dialect) sums() string {
	list := []string{
		"input_tokens", "cached_tokens", "output_tokens", "reasoning_tokens", "input_cost", "cached_cost", "output_cost",
		"0", "0", "0", "0",
	}
	if d.schema >= withPeriods {
		apart := fmt.Sprintf("CASE WHEN flags & %d <> 0 THEN reasoning_tokens ELSE 0 END", tenancy.FlagReasoningApart)
		list = append(list[:7], "reasoning_cost", "gpu_cost", "gpu_us", apart)
	}
	for i, c := range list {
		list[i] = "CAST(sum(" + c + ") AS BIGINT)"
	}
	return strings.Join(list, ", ")
}

func queryTotals(ctx context.Context, db rowQuerier, d *dialect, from, to time.Time) ([]tenancy.Totals, error) {
	var conditions []string
	var args []any
	for _, p := range d.booked(from, to) {
		conditions = append(conditions, "("+p.where+")")
		args = append(args, p.args...)
	}
	rows, err := db.QueryContext(ctx, "SELECT currency, count(*), "+d.sums()+" FROM "+d.table+
		" WHERE "+strings.Join(conditions, " OR ")+" GROUP BY currency ORDER BY currency", args...)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	var out []tenancy.Totals
	for rows.Next() {
		var t tenancy.Totals
		var gpu int64
		if err := rows.Scan(&t.Currency, &t.Rows,
			&t.InputTokens, &t.CachedTokens, &t.OutputTokens, &t.ReasoningTokens,
			&t.Costs.Input, &t.Costs.CachedInput, &t.Costs.Output, &t.Costs.Reasoning, &t.Costs.GPU, &gpu, &t.ReasoningApart); err != nil {
			return nil, err
		}
		t.GPUTime = time.Duration(gpu) * time.Microsecond
		out = append(out, t)
	}
	return out, rows.Err()
}
