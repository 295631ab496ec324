package ledger

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"strings"
	"sync/atomic"
	"time"

	"modernc.org/sqlite" // and the driver named "sqlite"
	sqlite3 "modernc.org/sqlite/lib"

	"github.com/sluicegate/sluice/tenancy"
)

// writer is the connection that writes. One goroutine uses it at a time.
type writer struct {
	db     *sql.DB
	conn   *sql.Conn
	begin  *sql.Stmt
	end    *sql.Stmt
	months *sql.Stmt // that are closed
	insert *sql.Stmt
	byID   *sql.Stmt
	update *sql.Stmt
	budget *sql.Stmt
	log    *checkpointer
	values []any
	// booked says that rows keep the months that they are booked in: they come from
	// another ledger.
	booked  bool
	closed  closedMonths // as of the transaction
	last    atomic.Int64 // the highest place of a row that was stored
	highest int64        // likewise, in the transaction
}

// openDB opens a pool for a file. The mode is SQLite's: rwc or ro.
func openDB(path, mode string, pragmas ...string) (*sql.DB, error) {
	q := url.Values{"mode": {mode}, "_txlock": {"immediate"}, "_pragma": pragmas}
	// PathEscape keeps '?', '#' and '%' of a path from being read as URI syntax.
	parts := strings.Split(path, "/")
	for i := range parts {
		parts[i] = url.PathEscape(parts[i])
	}
	return sql.Open("sqlite", "file:"+strings.Join(parts, "/")+"?"+q.Encode())
}

func openWriter(path string, busy time.Duration) (_ *writer, err error) {
	if err := createPrivate(path); err != nil {
		return nil, explain(err)
	}
	w := &writer{}
	defer func() {
		if err != nil {
			w.close()
			err = fmt.Errorf("%s: %w", path, explain(err))
		}
	}()
	// FULL flushes the write-ahead log at every commit: a row that Record has
	// acknowledged survives a loss of power.
	w.db, err = openDB(path, "rwc",
		fmt.Sprintf("busy_timeout(%d)", busy.Milliseconds()), "journal_mode(WAL)", "synchronous(FULL)")
	if err != nil {
		return nil, err
	}
	w.db.SetMaxOpenConns(1)
	ctx := context.Background()
	if w.conn, err = w.db.Conn(ctx); err != nil {
		return nil, err
	}
	if err = migrate(ctx, w.conn); err != nil {
		return nil, err
	}
	if err = w.prepare(ctx); err != nil {
		return nil, err
	}
	if _, err = w.conn.ExecContext(ctx, sqliteForget, forgotten()); err != nil {
		return nil, err
	}
	return w, nil
}

// checkpointBeside leaves checkpoints to a checkpointer: SQLite's own come in the
// middle of a commit.
func (w *writer) checkpointBeside(path string) error {
	if _, err := w.conn.ExecContext(context.Background(), "PRAGMA wal_autocheckpoint(0)"); err != nil {
		return err
	}
	var err error
	w.log, err = newCheckpointer(path)
	return err
}

// prepare has SQLite compile what every transaction needs.
func (w *writer) prepare(ctx context.Context) error {
	marks := strings.Repeat("?, ", len(columns)) + "?"
	for _, p := range []struct {
		stmt **sql.Stmt
		text string
	}{
		{&w.begin, "BEGIN IMMEDIATE"},
		{&w.end, "COMMIT"},
		{&w.months, closedQuery(sqliteDialect)},
		{&w.insert, "INSERT INTO requests (" + columnNames() + ") VALUES (" + marks + ") ON CONFLICT (id) DO NOTHING"},
		{&w.byID, "SELECT " + columnNames() + " FROM requests WHERE id = ?"},
		{&w.update, "UPDATE requests SET (" + columnNames() + ") = (" + marks + ") WHERE id = ?"},
		{&w.budget, sqliteAddBudget},
	} {
		var err error
		if *p.stmt, err = w.conn.PrepareContext(ctx, p.text); err != nil {
			return err
		}
	}
	return nil
}

// createPrivate makes an empty file if there is none: rows name people and what
// they use, so the file is its owner's alone, and SQLite gives its side files
// the same permissions. A file that is there is not opened: closing it would
// give up the locks of whoever reads it in this process.
func createPrivate(path string) error {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_RDWR, 0o600)
	switch {
	case errors.Is(err, fs.ErrExist):
		return nil
	case err != nil:
		return err
	}
	return errors.Join(f.Close(), syncFolder(path))
}

// commit implements store.
func (w *writer) commit(ctx context.Context, rows []*tenancy.Row) ([]result, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	// A context that can end costs a goroutine for each statement, and these wait
	// for nothing but the lock and the disk.
	ctx = context.WithoutCancel(ctx)
	if _, err := w.begin.ExecContext(ctx); err != nil {
		return nil, err
	}
	// Nobody else writes now, so what is open stays so until the end of this.
	closed, err := monthsIn(w.months.QueryContext(ctx))
	if err != nil {
		w.rollback()
		return nil, err
	}
	w.closed = closed
	results := make([]result, len(rows))
	w.highest = w.last.Load()
	for i, row := range rows {
		res, err := w.store(ctx, row)
		if err != nil {
			w.rollback()
			return nil, err
		}
		results[i] = res
	}
	if err := w.noteCharges(ctx, rows, results); err != nil {
		w.rollback()
		return nil, err
	}
	if _, err := w.end.ExecContext(ctx); err != nil {
		w.rollback()
		return nil, err
	}
	w.last.Store(w.highest)
	if w.log != nil {
		w.log.grown(ctx, w.conn, len(rows))
	}
	return results, nil
}

// rollback ends a transaction that failed. SQLite may have ended it already,
// for instance when the disk is full, and then says so; that is no news.
func (w *writer) rollback() { _, _ = w.conn.ExecContext(context.Background(), "ROLLBACK") }

func (w *writer) store(ctx context.Context, row *tenancy.Row) (result, error) {
	w.values = appendValues(w.values[:0], row, w.month(row))
	if w.booked {
		// The month may be closed there: then even a row that it has can't be offered.
		if res, err := w.compare(ctx, row); !errors.Is(err, sql.ErrNoRows) {
			return res, err
		}
	}
	res, err := w.insert.ExecContext(ctx, w.values...)
	if err != nil {
		return 0, refusal(err)
	}
	if n, err := res.RowsAffected(); err != nil || n == 1 {
		if seq, seqErr := res.LastInsertId(); err == nil && seqErr == nil {
			w.highest = max(w.highest, seq)
		}
		return stored, err
	}
	return w.compare(ctx, row)
}

// compare decides on a row, whose columns are w.values, by the one that has its id;
// the error is sql.ErrNoRows if there is none.
func (w *writer) compare(ctx context.Context, row *tenancy.Row) (result, error) {
	there, err := scanRow(w.byID.QueryRowContext(ctx, row.ID).Scan)
	if err != nil {
		return 0, err
	}
	fate, replace := compare(there, row)
	switch {
	case replace && w.closed.has(there):
		return w.store(ctx, afterClose(row))
	case replace:
		_, err = w.update.ExecContext(ctx, append(w.values, row.ID)...)
	}
	return fate, refusal(err)
}

// month is the number of the month to book a row in, 0 for that of its end.
func (w *writer) month(row *tenancy.Row) int64 {
	switch {
	case !w.booked:
		return w.closed.book(row.End())
	case row.Late():
		return monthNumber(row.Period)
	}
	return 0
}

// refusal marks the errors of SQLite that are about the row.
func refusal(err error) error {
	var se *sqlite.Error
	if !errors.As(err, &se) {
		return err
	}
	switch se.Code() & 0xff {
	case sqlite3.SQLITE_CONSTRAINT, sqlite3.SQLITE_MISMATCH, sqlite3.SQLITE_TOOBIG, sqlite3.SQLITE_RANGE:
		return &rowError{err}
	}
	return err
}

func (w *writer) close() error {
	if w.log != nil {
		w.log.close()
	}
	for _, stmt := range []*sql.Stmt{w.begin, w.end, w.months, w.insert, w.byID, w.update, w.budget} {
		if stmt != nil {
			stmt.Close()
		}
	}
	if w.conn != nil {
		w.conn.Close()
	}
	if w.db != nil {
		return w.db.Close()
	}
	return nil
}
