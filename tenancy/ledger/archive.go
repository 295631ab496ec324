package ledger

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/stdlib"

	"github.com/sluicegate/sluice/tenancy"
)

// ErrArchived: rows of the period are no longer in the database.
var ErrArchived = errors.New("the month is archived")

// Archived is a month whose rows are in a file of their own.
type Archived struct {
	// Month is the first instant of it.
	Month time.Time
	// File is a ledger that OpenReader opens; SHA256 is of its bytes.
	File, SHA256 string
	// Rows are in the file, Moved of them from this call.
	Rows, Moved int64
}

// archiveAge is for how long a month must be over: rows that wait in a spool
// and requests that are found lost come late.
const archiveAge = 7 * 24 * time.Hour

// archiveBatch is how many rows are copied, or compared and removed, at a time:
// few enough that the gateway's own transactions fit between.
const archiveBatch = 500

// Archive moves the rows of the month that begins at month (UTC) out of the ledger
// at path into a ledger file of their own in dir, while a gateway may be writing.
// A row is removed only when the file, closed and opened again, has the same.
// Called again after a failure, or for rows that came later, it goes on where it
// is. From the first removal on, reading the month in the database is ErrArchived.
func Archive(ctx context.Context, path, dir string, month, now time.Time) (Archived, error) {
	if _, err := readMode(path); err != nil {
		return Archived{}, fmt.Errorf("cannot archive: %w", err)
	}
	db, err := openDB(path, "rw", "busy_timeout(5000)", "synchronous(FULL)")
	if err != nil {
		return Archived{}, fmt.Errorf("cannot archive: %w", err)
	}
	defer db.Close()
	return archive(ctx, &Reader{path: path, db: db, dialect: sqliteDialect}, dir, month, now)
}

// ArchivePostgres is as Archive, of the ledger in a PostgreSQL database.
func ArchivePostgres(ctx context.Context, dsn, dir string, month, now time.Time) (Archived, error) {
	cfg, err := parsePostgres(dsn)
	if err != nil {
		return Archived{}, fmt.Errorf("cannot archive: %w", err)
	}
	db := stdlib.OpenDB(*cfg.ConnConfig)
	defer db.Close()
	return archive(ctx, &Reader{path: "in PostgreSQL", db: db, dialect: postgresDialect}, dir, month, now)
}

func archive(ctx context.Context, src *Reader, dir string, month, now time.Time) (a Archived, err error) {
	month = time.Date(month.Year(), month.Month(), 1, 0, 0, 0, 0, time.UTC)
	end := month.AddDate(0, 1, 0)
	defer func() {
		if err != nil {
			err = fmt.Errorf("cannot archive %s: %w", month.Format("2006-01"), explain(err))
		}
	}()
	if now.Before(end.Add(archiveAge)) {
		return a, fmt.Errorf("it must be over for %d days, since rows come late; try again on %s",
			archiveAge/(24*time.Hour), end.Add(archiveAge).Format(time.DateOnly))
	}
	version, err := src.schema(ctx)
	if err != nil {
		return a, err
	}
	if version != src.dialect.known {
		return a, fmt.Errorf("the ledger's schema is version %d, this program writes version %d: start the gateway of this version once", version, src.dialect.known)
	}
	a = Archived{Month: month, File: filepath.Join(dir, "ledger-"+month.Format("2006-01")+".db")}
	if a.File, err = filepath.Abs(a.File); err != nil {
		return a, err
	}
	lock, err := lockFile(a.File)
	if err != nil {
		return a, err
	}
	defer lock.Close()
	if err := copyRows(ctx, src, a.File, month, end); err != nil {
		return a, err
	}
	if err := copyClosing(ctx, src, a.File, month); err != nil {
		return a, err
	}
	kept, err := OpenReader(a.File)
	if err != nil {
		return a, err
	}
	defer kept.Close()
	if err := kept.db.QueryRowContext(ctx, "SELECT count(*) FROM requests").Scan(&a.Rows); err != nil {
		return a, err
	}
	if a.SHA256, err = digest(a.File); err != nil {
		return a, err
	}
	if err := src.noteArchived(ctx, &a, now); err != nil {
		return a, err
	}
	for {
		n, err := removeKept(ctx, src, kept, month, end)
		a.Moved += n
		if err != nil || n == 0 {
			return a, err
		}
	}
}

// copyRows stores the rows of a time in a ledger file.
func copyRows(ctx context.Context, src *Reader, file string, from, to time.Time) (err error) {
	w, err := openWriter(file, 5*time.Second)
	if err != nil {
		return err
	}
	defer func() {
		if w != nil {
			err = errors.Join(err, w.close())
		}
	}()
	w.booked = true
	var batch []*tenancy.Row
	flush := func() error {
		if len(batch) == 0 {
			return nil
		}
		results, err := w.commit(ctx, batch)
		if err != nil {
			return err
		}
		for i, res := range results {
			if res == conflicting {
				return fmt.Errorf("%s has another row %s: %w", file, batch[i].ID, ErrConflict)
			}
		}
		batch = batch[:0]
		return nil
	}
	for row, err := range rowsFrom(ctx, src.db, src.dialect.withoutArchived(), src.path, from, to) {
		if err != nil {
			return err
		}
		if batch = append(batch, row); len(batch) == archiveBatch {
			if err := flush(); err != nil {
				return err
			}
		}
	}
	if err := flush(); err != nil {
		return err
	}
	// One file, which can be copied as it is.
	if _, err := w.conn.ExecContext(ctx, "PRAGMA wal_checkpoint(TRUNCATE)"); err != nil {
		return err
	}
	if _, err := w.conn.ExecContext(ctx, "PRAGMA journal_mode = DELETE"); err != nil {
		return err
	}
	err, w = w.close(), nil
	return err
}

// removeKept removes some rows of a time that the archive has just the same, and
// returns how many. A row that it has otherwise, or not at all, stays and is an
// error: the month is archived again.
func removeKept(ctx context.Context, src, kept *Reader, from, to time.Time) (int64, error) {
	tx, err := src.db.BeginTx(ctx, nil)
	if err != nil {
		return 0, err
	}
	defer tx.Rollback() //nolint:errcheck // after Commit it has nothing to do
	d := src.dialect
	var rows []*tenancy.Row
	for _, p := range []part{d.ended(from, to, 1), d.late(from, to, 1)} {
		rows, err = readRows(ctx, tx, fmt.Sprintf("SELECT %s FROM %s WHERE %s ORDER BY end_ns, id LIMIT %d%s",
			columnNames(), d.table, p.where, archiveBatch, d.lockRows), p.args...)
		if err != nil {
			return 0, err
		}
		if len(rows) > 0 {
			break
		}
	}
	if len(rows) == 0 {
		return 0, nil
	}
	ids, marks := make([]any, len(rows)), make([]string, len(rows))
	for i, row := range rows {
		ids[i], marks[i] = row.ID, d.mark(i+1)
	}
	there, err := readRows(ctx, kept.db, "SELECT "+columnNames()+" FROM requests WHERE id IN (?"+strings.Repeat(", ?", len(ids)-1)+")", ids...)
	if err != nil {
		return 0, err
	}
	same := make(map[string]*tenancy.Row, len(there))
	for _, row := range there {
		same[row.ID] = row
	}
	for _, row := range rows {
		if same[row.ID] == nil || !equalRows(row, same[row.ID]) || !row.Period.Equal(same[row.ID].Period) {
			return 0, fmt.Errorf("row %s has come or changed meanwhile; nothing of it is removed: archive the month again", row.ID)
		}
	}
	if _, err := tx.ExecContext(ctx, "DELETE FROM "+d.table+" WHERE id IN ("+strings.Join(marks, ", ")+")", ids...); err != nil {
		return 0, err
	}
	return int64(len(rows)), tx.Commit()
}

func readRows(ctx context.Context, db rowQuerier, query string, args ...any) ([]*tenancy.Row, error) {
	found, err := db.QueryContext(ctx, query, args...)
	if err != nil {
		return nil, err
	}
	defer found.Close()
	var rows []*tenancy.Row
	for found.Next() {
		row, err := scanRow(found.Scan)
		if err != nil {
			return nil, err
		}
		rows = append(rows, row)
	}
	return rows, found.Err()
}

// noteArchived makes readers of the month look for the file.
func (r *Reader) noteArchived(ctx context.Context, a *Archived, now time.Time) error {
	d := r.dialect
	_, err := r.db.ExecContext(ctx, fmt.Sprintf(`INSERT INTO %s (month_ns, file, row_count, sha256, archived_ns)
		VALUES (%s, %s, %s, %s, %s) ON CONFLICT (month_ns) DO UPDATE SET
		file = excluded.file, row_count = excluded.row_count, sha256 = excluded.sha256, archived_ns = excluded.archived_ns`,
		d.archived, d.mark(1), d.mark(2), d.mark(3), d.mark(4), d.mark(5)),
		dbNanos(a.Month), a.File, a.Rows, a.SHA256, dbNanos(now))
	return err
}

// notArchived returns ErrArchived where a month of a period has been archived,
// with the file that has it.
func notArchived(ctx context.Context, db rowQuerier, d *dialect, from, to time.Time) error {
	if d.archived == "" {
		return nil
	}
	found, err := db.QueryContext(ctx, fmt.Sprintf("SELECT month_ns, file FROM %s WHERE month_ns < %s ORDER BY month_ns", d.archived, d.mark(1)), dbNanos(to))
	if err != nil {
		return err
	}
	defer found.Close()
	for found.Next() {
		var ns int64
		var file string
		if err := found.Scan(&ns, &file); err != nil {
			return err
		}
		month := time.Unix(0, ns).UTC()
		if month.AddDate(0, 1, 0).After(from) {
			return fmt.Errorf("%w: the rows of %s are in %s", ErrArchived, month.Format("2006-01"), file)
		}
	}
	return found.Err()
}

func digest(file string) (string, error) {
	f, err := os.Open(file)
	if err != nil {
		return "", err
	}
	defer f.Close()
	h := sha256.New()
	if _, err := io.Copy(h, f); err != nil {
		return "", err
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}
