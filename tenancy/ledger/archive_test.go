package ledger

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/sluicegate/sluice/tenancy"
)

var (
	february = time.Date(2026, 2, 1, 0, 0, 0, 0, time.UTC)
	march    = time.Date(2026, 3, 1, 0, 0, 0, 0, time.UTC)
	april    = time.Date(2026, 4, 1, 0, 0, 0, 0, time.UTC)
	june     = time.Date(2026, 6, 1, 0, 0, 0, 0, time.UTC)
)

// An archived month is a ledger of its own with the same rows; the others stay,
// and nobody takes the month for empty.
func TestArchive(t *testing.T) {
	for _, kind := range []string{"sqlite", "postgres"} {
		t.Run(kind, func(t *testing.T) {
			path, dir := tempPath(t), t.TempDir()
			var l *Ledger
			var move func(month, now time.Time) (Archived, error)
			if kind == "sqlite" {
				l = mustOpen(t, path, Options{})
				move = func(month, now time.Time) (Archived, error) { return Archive(t.Context(), path, dir, month, now) }
			} else {
				dsn := database(t)
				l = mustOpenPostgres(t, path, dsn, Options{})
				move = func(month, now time.Time) (Archived, error) {
					return ArchivePostgres(t.Context(), dsn, dir, month, now)
				}
			}
			store := func(row *tenancy.Row) {
				t.Helper()
				if err := l.Record(t.Context(), row); err != nil {
					t.Fatal(err)
				}
			}
			var rows []*tenancy.Row
			for i := range 1200 {
				rows = append(rows, fullRow(fmt.Sprint("r", i)))
			}
			if _, err := l.store.commit(t.Context(), rows); err != nil {
				t.Fatal(err)
			}
			for i, end := range []time.Time{march.Add(-1), april} {
				row := fullRow(fmt.Sprint("other", i))
				row.Duration, row.Start = time.Hour, end.Add(-time.Hour)
				store(row)
			}
			before, err := l.Totals(t.Context(), march, april)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := move(march, april.AddDate(0, 0, 6)); err == nil || !strings.Contains(err.Error(), "try again on 2026-04-08") {
				t.Errorf("a month that is just over: %v", err)
			}
			a, err := move(march.Add(50*time.Hour), june)
			if err != nil || a.Rows != 1200 || a.Moved != 1200 || !a.Month.Equal(march) || len(a.SHA256) != 64 {
				t.Fatalf("got %+v, %v", a, err)
			}
			kept, err := OpenReader(a.File)
			if err != nil {
				t.Fatal(err)
			}
			defer kept.Close()
			if after, err := kept.Totals(t.Context(), march, april); err != nil || len(after) != 1 || after[0] != before[0] {
				t.Errorf("totals %+v, %v; were %+v", after, err, before)
			}
			if side, _ := filepath.Glob(a.File + "-*"); len(side) != 1 { // the lock
				t.Errorf("beside the file: %v", side)
			}
			for _, whole := range [][2]time.Time{{march, april}, {february, june}, {april.Add(-1), april}} {
				if _, err := l.Totals(t.Context(), whole[0], whole[1]); !errors.Is(err, ErrArchived) || !strings.Contains(err.Error(), a.File) {
					t.Errorf("totals from %v: %v", whole[0], err)
				}
				for _, err := range l.Rows(context.Background(), whole[0], whole[1]) {
					if !errors.Is(err, ErrArchived) {
						t.Errorf("rows from %v: %v", whole[0], err)
					}
				}
			}
			for _, month := range []time.Time{february, april} {
				if totals, err := l.Totals(t.Context(), month, month.AddDate(0, 1, 0)); err != nil || len(totals) != 1 || totals[0].Rows != 1 {
					t.Errorf("%v: %+v, %v", month, totals, err)
				}
			}
			// What comes later follows; a row that is there otherwise does not.
			store(fullRow("late"))
			if a, err = move(march, june); err != nil || a.Rows != 1201 || a.Moved != 1 {
				t.Errorf("again: %+v, %v", a, err)
			}
			other := fullRow("r7")
			other.OutputTokens++
			store(other)
			if _, err = move(march, june); !errors.Is(err, ErrConflict) {
				t.Errorf("another row of the same id: %v", err)
			}
			if there, err := readRows(t.Context(), l.reader.db, "SELECT "+columnNames()+" FROM "+l.reader.dialect.table+" WHERE id = 'r7'"); err != nil || len(there) != 1 {
				t.Errorf("it was removed: %v, %v", there, err)
			}
		})
	}
}

// An intent of an archived month does not come back as a lost request.
func TestArchivedRequestsAreNotLost(t *testing.T) {
	path := tempPath(t)
	l := mustOpen(t, path, Options{})
	for _, id := range []string{"done", "open"} {
		if err := l.Begin(t.Context(), intent(id)); err != nil {
			t.Fatal(err)
		}
	}
	if err := l.Record(t.Context(), fullRow("done")); err != nil {
		t.Fatal(err)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := Archive(t.Context(), path, t.TempDir(), march, june); err != nil {
		t.Fatal(err)
	}
	l = mustOpen(t, path, Options{})
	if n := l.Stats().Recovered; n != 0 {
		t.Errorf("recovered %d", n)
	}
}

// A month is read in one piece, or not at all, while it is being archived.
func TestRemovalNeedsTheSameRow(t *testing.T) {
	path := tempPath(t)
	l := mustOpen(t, path, Options{})
	if err := l.Record(t.Context(), fullRow("r")); err != nil {
		t.Fatal(err)
	}
	empty := tempPath(t)
	if err := mustOpen(t, empty, Options{}).Close(); err != nil {
		t.Fatal(err)
	}
	kept, err := OpenReader(empty)
	if err != nil {
		t.Fatal(err)
	}
	defer kept.Close()
	db, err := openDB(path, "rw", "busy_timeout(5000)")
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	src := &Reader{path: path, db: db, dialect: sqliteDialect}
	if n, err := removeKept(t.Context(), src, kept, march, april); err == nil || n != 0 {
		t.Errorf("removed %d: %v", n, err)
	}
	if n := len(collect(t, l)); n != 1 {
		t.Errorf("%d rows are left", n)
	}
}
