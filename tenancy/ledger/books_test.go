package ledger

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sluicegate/sluice/tenancy"
)

// eachBooks runs a test with both databases, opened by a gateway and, by books, for
// finance.
func eachBooks(t *testing.T, test func(t *testing.T, path string, reopen func() *Ledger, books func() *Books)) {
	mustBooks := func(t *testing.T, b *Books, err error) *Books {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { b.Close() })
		return b
	}
	t.Run("sqlite", func(t *testing.T) {
		path := tempPath(t)
		test(t, path, func() *Ledger { return mustOpen(t, path, Options{}) }, func() *Books {
			b, err := OpenBooks(path)
			return mustBooks(t, b, err)
		})
	})
	t.Run("postgres", func(t *testing.T) {
		dsn, path := database(t), tempPath(t)
		test(t, path, func() *Ledger { return mustOpenPostgres(t, path, dsn, Options{}) }, func() *Books {
			b, err := OpenPostgresBooks(dsn)
			return mustBooks(t, b, err)
		})
	})
}

func closingOn(t *testing.T, b *Books, month time.Time) *Closing {
	t.Helper()
	snap, err := b.Snapshot(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer snap.Close()
	c, err := snap.Closing(t.Context(), month)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// A month is frozen, then sealed, once; until it is sealed it can be thawed.
func TestClosingAMonth(t *testing.T) {
	eachBooks(t, func(t *testing.T, path string, reopen func() *Ledger, books func() *Books) {
		l, b := reopen(), books()
		record := func(row *tenancy.Row) {
			t.Helper()
			if err := l.Record(t.Context(), row); err != nil {
				t.Fatal(err)
			}
		}
		record(endsAt("mar", march))
		if c := closingOn(t, b, march); c != nil {
			t.Errorf("an open month has the closing %+v", c)
		}
		want := Closing{Month: march, At: april.Add(25 * time.Hour), By: "j.doe", Meta: `{"format":1}`}
		if _, err := b.Freeze(t.Context(), Closing{Month: march}); err == nil || !strings.Contains(err.Error(), "without the name") {
			t.Errorf("by nobody: %v", err)
		}
		got, err := b.Freeze(t.Context(), want)
		if err != nil || *got != want || got.Sealed() {
			t.Fatalf("frozen: %+v, %v", got, err)
		}
		other := want
		other.By = "somebody else"
		if got, err := b.Freeze(t.Context(), other); err != nil || *got != want {
			t.Errorf("a second time: %+v, %v", got, err)
		}
		record(endsAt("late", march))
		if err := b.Thaw(t.Context(), march); err != nil {
			t.Fatal(err)
		}
		if c := closingOn(t, b, march); c != nil {
			t.Errorf("thawed: %+v", c)
		}
		record(endsAt("in time", march))
		if _, err := b.Freeze(t.Context(), want); err != nil {
			t.Fatal(err)
		}
		want.Rows, want.CSV, want.JSON = 2, "aa", "bb"
		if err := b.Seal(t.Context(), want); err != nil {
			t.Fatal(err)
		}
		if got := closingOn(t, b, march); !reflect.DeepEqual(got, &want) {
			t.Errorf("sealed: %+v", got)
		}
		if err := b.Seal(t.Context(), want); err == nil || !strings.Contains(err.Error(), "closed meanwhile") {
			t.Errorf("sealed again: %v", err)
		}
		if err := b.Thaw(t.Context(), march); err == nil || !strings.Contains(err.Error(), "the month is closed") {
			t.Errorf("thawed when sealed: %v", err)
		}
		if got := periodsOf(t, l); !reflect.DeepEqual(got, map[string]string{"mar": "2026-03", "late": "2026-04", "in time": "2026-03"}) {
			t.Errorf("booked in %v", got)
		}
	})
}

// A correction belongs to the month of its row, or to the first one that is open.
func TestCorrections(t *testing.T) {
	eachBooks(t, func(t *testing.T, path string, reopen func() *Ledger, books func() *Books) {
		l, b := reopen(), books()
		if err := l.Record(t.Context(), endsAt("r", march)); err != nil {
			t.Fatal(err)
		}
		row, corrections, err := b.Row(t.Context(), "r")
		if err != nil || len(corrections) != 0 || row.ID != "r" {
			t.Fatalf("row %+v, %v, %v", row, corrections, err)
		}
		fix := *row
		fix.ID, fix.CorrectionOf, fix.Charges, fix.Gateway, fix.Process = "r~1", "r", nil, "", ""
		fix.OutputTokens, fix.Costs = -7, tenancy.Costs{Output: -3}
		first, err := b.Correct(t.Context(), &fix)
		if err != nil || !first.Period.Equal(march) {
			t.Fatalf("in an open month: %+v, %v", first, err)
		}
		if _, err := b.Correct(t.Context(), &fix); !errors.Is(err, ErrConflict) {
			t.Errorf("twice: %v", err)
		}
		if _, err := b.Freeze(t.Context(), Closing{Month: march, By: "x"}); err != nil {
			t.Fatal(err)
		}
		fix.ID = "r~2"
		second, err := b.Correct(t.Context(), &fix)
		if err != nil || !second.Period.Equal(april) || !second.Late() {
			t.Fatalf("in a closed month: %+v, %v", second, err)
		}
		_, corrections, err = b.Row(t.Context(), "r")
		if err != nil || !reflect.DeepEqual(corrections, []*tenancy.Row{first, second}) {
			t.Errorf("corrections %s (%v), want %s", showRows(corrections), err, showRows([]*tenancy.Row{first, second}))
		}
		if _, _, err := b.Row(t.Context(), "none"); !errors.Is(err, ErrNoRow) {
			t.Errorf("no row: %v", err)
		}
		fix.ID, fix.Reason = "r~3", ""
		if _, err := b.Correct(t.Context(), &fix); err == nil || !strings.Contains(err.Error(), "names no other row, reason or author") {
			t.Errorf("without a reason: %v", err)
		}
	})
}

// What waits beside the database is known to those who close a month.
func TestPending(t *testing.T) {
	eachBooks(t, func(t *testing.T, path string, reopen func() *Ledger, books func() *Books) {
		l := reopen()
		for _, id := range []string{"done", "open", "spooled", "later"} {
			in := intent(id)
			if id == "later" {
				in.Start = april
			}
			if err := l.Begin(t.Context(), in); err != nil {
				t.Fatal(err)
			}
		}
		if err := l.Record(t.Context(), fullRow("done")); err != nil {
			t.Fatal(err)
		}
		// A copy of the spool of an outage: one row that is in the database, too.
		other := filepath.Join(t.TempDir(), "x.db")
		s, _ := mustOpenSpool(t, other, 1<<20, new(int))
		if err := s.append([]*tenancy.Row{fullRow("done"), fullRow("spooled"), endsAt("april", april.Add(time.Hour))}); err != nil {
			t.Fatal(err)
		}
		text, err := os.ReadFile(spoolFiles(other).name(1))
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(spoolFiles(path).name(9), text, 0o600); err != nil {
			t.Fatal(err)
		}
		b := books()
		want := Pending{SpoolRows: 1, Open: 1, Oldest: noon}
		if got, err := b.Pending(t.Context(), path, april); err != nil || got != want {
			t.Errorf("pending %+v, %v, want %+v", got, err, want)
		}
		want.SpoolRows, want.Open = 2, 2
		if got, err := b.Pending(t.Context(), path, june); err != nil || got != want {
			t.Errorf("until June: %+v, %v, want %+v", got, err, want)
		}
		if got, err := b.Pending(t.Context(), path, march); err != nil || got != (Pending{}) {
			t.Errorf("before March: %+v, %v", got, err)
		}
		if err := os.Remove(spoolFiles(path).name(9)); err != nil {
			t.Fatal(err)
		}
	})
}

// The archive of a closed month is closed as well, and an archived month, which is
// no longer in the ledger, is not closed there.
func TestArchiveOfAClosedMonth(t *testing.T) {
	path, dir := tempPath(t), t.TempDir()
	l := mustOpen(t, path, Options{})
	for _, row := range []*tenancy.Row{endsAt("feb", february), endsAt("mar", march), endsAt("apr", april)} {
		if err := l.Record(t.Context(), row); err != nil {
			t.Fatal(err)
		}
	}
	b, err := OpenBooks(path)
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	want := Closing{Month: march, At: june, By: "j.doe", Meta: "m"}
	for _, month := range []time.Time{february, march} {
		want.Month = month
		if _, err := b.Freeze(t.Context(), want); err != nil {
			t.Fatal(err)
		}
	}
	if err := l.Record(t.Context(), endsAt("late", february)); err != nil {
		t.Fatal(err)
	}
	if _, err := Archive(t.Context(), path, dir, march, june); err == nil || !strings.Contains(err.Error(), "being closed") {
		t.Errorf("a month that is being closed: %v", err)
	}
	want.Rows, want.CSV, want.JSON = 1, "aa", "bb"
	if err := b.Seal(t.Context(), want); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		a, err := Archive(t.Context(), path, dir, march, june)
		if err != nil || a.Rows != 1 {
			t.Fatalf("archive %+v, %v", a, err)
		}
		kept, err := OpenBooks(a.File)
		if err != nil {
			t.Fatal(err)
		}
		if got := closingOn(t, kept, march); !reflect.DeepEqual(got, &want) {
			t.Errorf("the archive's closing is %+v, want %+v", got, want)
		}
		if err := kept.Close(); err != nil {
			t.Error(err)
		}
	}
	if err := b.Thaw(t.Context(), february); err != nil {
		t.Fatal(err)
	}
	if _, err := Archive(t.Context(), path, dir, february, june); err != nil {
		t.Fatal(err)
	}
	if _, err := b.Freeze(t.Context(), Closing{Month: february, By: "x"}); !errors.Is(err, ErrArchived) {
		t.Errorf("closing an archived month: %v", err)
	}
	var left []string
	for row, err := range l.Rows(t.Context(), april, june) {
		if err != nil {
			t.Fatal(err)
		}
		left = append(left, row.ID)
	}
	if !reflect.DeepEqual(left, []string{"late", "apr"}) {
		t.Errorf("what is left: %v", left)
	}
}

func TestOpenBooksRefuses(t *testing.T) {
	if _, err := OpenBooks(tempPath(t)); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("no file: %v", err)
	}
	if _, err := OpenBooks(oldLedger(t, 2)); err == nil || !strings.Contains(err.Error(), "start the gateway of this version once") {
		t.Errorf("an old schema: %v", err)
	}
	if _, err := OpenPostgresBooks("nonsense=1 secret"); err == nil || strings.Contains(err.Error(), "secret") {
		t.Errorf("a bad connection string: %v", err)
	}
}

// A month that is closed while gateways add rows to it has, from the closing on,
// the rows that it has then; all others are in the next one, and none is missing.
func TestClosingUnderLoad(t *testing.T) {
	run := func(t *testing.T, gateways []*Ledger, b *Books) {
		const clients = 4
		var wg sync.WaitGroup
		var done atomic.Int64
		enough := make(chan struct{})
		for g, l := range gateways {
			for c := range clients {
				wg.Go(func() {
					for i := 0; ; i++ {
						select {
						case <-enough:
							return
						default:
						}
						if err := l.Record(t.Context(), endsAt(fmt.Sprintf("%d-%d-%d", g, c, i), march.Add(time.Duration(i%700)*time.Hour))); err != nil {
							t.Error(err)
							return
						}
						done.Add(1)
					}
				})
			}
		}
		until := func(n int64) {
			for done.Load() < n && !t.Failed() {
				runtime.Gosched()
			}
		}
		until(50)
		if _, err := b.Freeze(t.Context(), Closing{Month: march, By: "x"}); err != nil {
			t.Error(err)
		}
		rowsOf := func(month time.Time) (n int64) {
			totals, err := b.Totals(t.Context(), month, month.AddDate(0, 1, 0))
			if err != nil {
				t.Error(err)
			}
			for _, total := range totals {
				n += total.Rows
			}
			return n
		}
		closed := rowsOf(march)
		until(done.Load() + 50)
		close(enough)
		wg.Wait()
		total := done.Load()
		if after := rowsOf(march); after != closed || closed < 50 || closed > total-20 {
			t.Errorf("March has %d rows, had %d when it was closed, of %d", after, closed, total)
		}
		if late := rowsOf(april); late != total-closed {
			t.Errorf("April has %d rows, want %d", late, total-closed)
		}
		for _, l := range gateways {
			if st := l.Stats(); st.Failed != 0 || st.Spooled != 0 {
				t.Errorf("stats %+v", st)
			}
		}
	}
	t.Run("sqlite", func(t *testing.T) {
		path := tempPath(t)
		l := mustOpen(t, path, Options{Patience: time.Minute})
		b, err := OpenBooks(path)
		if err != nil {
			t.Fatal(err)
		}
		defer b.Close()
		run(t, []*Ledger{l}, b)
	})
	t.Run("postgres", func(t *testing.T) {
		dsn := database(t)
		gateways := []*Ledger{
			mustOpenPostgres(t, tempPath(t), dsn, Options{Patience: time.Minute}),
			mustOpenPostgres(t, tempPath(t), dsn, Options{Patience: time.Minute}),
		}
		b, err := OpenPostgresBooks(dsn)
		if err != nil {
			t.Fatal(err)
		}
		defer b.Close()
		run(t, gateways, b)
	})
}

// An archive of a closed month that was interrupted is gone on with: the file has
// the rows and the closing by then.
func TestArchiveOfAClosedMonthGoesOn(t *testing.T) {
	eachBooks(t, func(t *testing.T, path string, reopen func() *Ledger, books func() *Books) {
		l, b := reopen(), books()
		for _, row := range []*tenancy.Row{endsAt("one", march), endsAt("two", march)} {
			if err := l.Record(t.Context(), row); err != nil {
				t.Fatal(err)
			}
		}
		c := Closing{Month: march, At: june, By: "j.doe", Meta: "m"}
		if _, err := b.Freeze(t.Context(), c); err != nil {
			t.Fatal(err)
		}
		c.Rows, c.CSV, c.JSON = 2, "aa", "bb"
		if err := b.Seal(t.Context(), c); err != nil {
			t.Fatal(err)
		}
		dir := t.TempDir()
		file := filepath.Join(dir, "ledger-2026-03.db")
		if err := copyRows(t.Context(), b.Reader, file, march, april); err != nil {
			t.Fatal(err)
		}
		if err := copyClosing(t.Context(), b.Reader, file, march); err != nil {
			t.Fatal(err)
		}
		a, err := archive(t.Context(), b.Reader, dir, march, june)
		if err != nil || a.Rows != 2 || a.Moved != 2 {
			t.Errorf("archive %+v, %v", a, err)
		}
	})
}

// Who seals a month seals what was frozen then: if that was thawed and frozen again
// meanwhile, its sums may be of other rows.
func TestSealOfAnotherFreezing(t *testing.T) {
	eachBooks(t, func(t *testing.T, _ string, reopen func() *Ledger, books func() *Books) {
		reopen()
		b := books()
		mine, err := b.Freeze(t.Context(), Closing{Month: march, At: june, By: "j.doe"})
		if err != nil {
			t.Fatal(err)
		}
		if err := b.Thaw(t.Context(), march); err != nil {
			t.Fatal(err)
		}
		other, err := b.Freeze(t.Context(), Closing{Month: march, At: june.Add(time.Second), By: "somebody else"})
		if err != nil {
			t.Fatal(err)
		}
		mine.CSV, mine.JSON = "aa", "bb"
		if err := b.Seal(t.Context(), *mine); err == nil || !strings.Contains(err.Error(), "not being closed") {
			t.Errorf("sealed by who froze it before: %v", err)
		}
		other.CSV, other.JSON = "cc", "dd"
		if err := b.Seal(t.Context(), *other); err != nil {
			t.Error(err)
		}
	})
}
