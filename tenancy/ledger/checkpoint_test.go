package ledger

import (
	"fmt"
	"os"
	"testing"

	"github.com/sluicegate/sluice/tenancy"
)

// The write-ahead log is copied beside the commits and begins anew: it does not
// grow with the rows, and all of them are in the database in the end.
func TestLogIsCopiedBesideCommits(t *testing.T) {
	path := tempPath(t)
	l := mustOpen(t, path, Options{})
	w := l.store.(*writer)
	logSize := func() int64 {
		info, err := os.Stat(path + "-wal")
		if err != nil {
			t.Fatal(err)
		}
		return info.Size()
	}
	const batch = 250
	n, copies := 0, 0
	for copies < 3 {
		rows := make([]*tenancy.Row, batch)
		for i := range rows {
			n++
			rows[i] = fullRow(fmt.Sprintf("%06d", n))
		}
		if _, err := w.commit(t.Context(), rows); err != nil {
			t.Fatal(err)
		}
		if w.log.kicked { // while it copies, nothing is added, so that what it leaves is known
			eventually(t, "the log to be copied", w.log.copied.Load)
			copies++
		}
		if n > 100_000 {
			t.Fatal("the log is never copied")
		}
	}
	if size := logSize(); size > 4*logPages*4096 {
		t.Errorf("after %d rows the log has %d bytes", n, size)
	}
	if got := len(collect(t, l)); got != n {
		t.Errorf("%d rows, want %d", got, n)
	}
}

// Where copying fails the log grows, and rows are committed all the same.
func TestLogThatIsNotCopied(t *testing.T) {
	l := mustOpen(t, tempPath(t), Options{})
	w := l.store.(*writer)
	if err := w.log.db.Close(); err != nil {
		t.Fatal(err)
	}
	w.log.pages = logPages
	for i := range 20 {
		if _, err := w.commit(t.Context(), []*tenancy.Row{fullRow(fmt.Sprint(i))}); err != nil {
			t.Fatal(err)
		}
	}
	w.log.pages = logPagesMost // then the writer does it
	if _, err := w.commit(t.Context(), []*tenancy.Row{fullRow("last")}); err != nil {
		t.Fatal(err)
	}
	if w.log.pages > logPages {
		t.Errorf("%d pages are still to be copied", w.log.pages)
	}
	if got := len(collect(t, l)); got != 21 {
		t.Errorf("%d rows, want 21", got)
	}
}
