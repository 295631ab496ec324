package ledger

import (
	"fmt"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/sluicegate/sluice/tenancy"
)

// spooled are the ids of the rows that the spool's files have.
func spooled(t testing.TB, path string) map[string]bool {
	t.Helper()
	names, err := spoolFiles(path).files()
	if err != nil {
		t.Fatal(err)
	}
	ids := make(map[string]bool)
	for _, name := range names {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		rows, end := parseRows(text, len(text))
		if end != len(text) {
			t.Errorf("%s can be read up to byte %d of %d", name, end, len(text))
		}
		for _, row := range rows {
			ids[row.ID] = true
		}
	}
	return ids
}

// With CommitEvery a row is in the spool when its request is told, and in the
// database with many others later; nothing is left in the spool by Close.
func TestSpoolFirst(t *testing.T) {
	path := tempPath(t)
	l := mustOpen(t, path, Options{CommitEvery: time.Hour})
	for i := range 20 {
		id := fmt.Sprint(i)
		if err := serve(t, l, id); err != nil {
			t.Fatal(err)
		}
		if !spooled(t, path)[id] {
			t.Fatalf("row %s is not in the spool", id)
		}
	}
	if n := len(collect(t, l)); n != 0 {
		t.Errorf("%d rows are in the database already", n)
	}
	if st := l.Stats(); st.SpoolRows != 20 || st.Spooled != 0 || st.Failing || st.OpenIntents != 0 || l.Healthy() != nil {
		t.Errorf("stats %+v, %v", st, l.Healthy())
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	if names, err := spoolFiles(path).files(); err != nil || len(names) != 0 {
		t.Errorf("spool files left: %v, %v", names, err)
	}
	l = mustOpen(t, path, Options{})
	if n := len(collect(t, l)); n != 20 {
		t.Errorf("%d rows, want 20", n)
	}
}

// Under load the database gets rows in few transactions, and every one of them.
func TestSpoolFirstUnderLoad(t *testing.T) {
	const clients, each = 32, 100
	path := tempPath(t)
	l := mustOpen(t, path, Options{CommitEvery: 5 * time.Millisecond, MaxBatch: 64})
	var group sync.WaitGroup
	for c := range clients {
		group.Go(func() {
			for i := range each {
				if err := serve(t, l, fmt.Sprint(c, "-", i)); err != nil {
					t.Error(err)
				}
			}
		})
	}
	group.Wait()
	eventually(t, "the database to have all", func() bool { return l.Stats().SpoolRows == 0 })
	if n := len(collect(t, l)); n != clients*each {
		t.Errorf("%d rows, want %d", n, clients*each)
	}
	if st := l.Stats(); st.Rows != clients*each || st.Duplicates != 0 || st.Failed != 0 || st.SpoolBytes != 0 || st.Failing {
		t.Errorf("stats %+v", st)
	}
	if names, err := spoolFiles(path).files(); err != nil || len(names) > 1 {
		t.Errorf("spool files: %v, %v", names, err)
	}
}

// An outage of the database changes nothing for requests, is told, and ends.
func TestSpoolFirstInAnOutage(t *testing.T) {
	path := tempPath(t)
	opts := impatient()
	opts.CommitEvery = time.Millisecond
	l := mustOpen(t, path, opts)
	release := hold(t, path)
	for i := range 20 {
		if err := serve(t, l, fmt.Sprint(i)); err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, "the outage to be told", func() bool { return l.Stats().Failing })
	if err := serve(t, l, "in it"); err != nil {
		t.Fatal(err)
	}
	release()
	eventually(t, "the database to have all", func() bool { st := l.Stats(); return st.SpoolRows == 0 && !st.Failing })
	if n := len(collect(t, l)); n != 21 {
		t.Errorf("%d rows, want 21", n)
	}
}

// A database that does not come back from a transaction is told of, too.
func TestSpoolFirstBeforeAStuckDatabase(t *testing.T) {
	stuck := make(chan struct{})
	l := mustOpen(t, tempPath(t), Options{
		CommitEvery: time.Millisecond, Patience: 10 * time.Millisecond,
		wrap: func(s store) store { return &stuckStore{s, stuck} },
	})
	n := 0
	eventually(t, "the outage to be told", func() bool {
		n++
		if err := serve(t, l, fmt.Sprint(n)); err != nil {
			t.Fatal(err)
		}
		return l.Stats().Failing
	})
	close(stuck)
	eventually(t, "the database to have all", func() bool { st := l.Stats(); return st.SpoolRows == 0 && !st.Failing })
	if got := len(collect(t, l)); got != n {
		t.Errorf("%d rows, want %d", got, n)
	}
}

// Where there is no spool, or it is broken, rows go to the database at once.
func TestSpoolFirstWithoutASpool(t *testing.T) {
	l := mustOpen(t, tempPath(t), Options{CommitEvery: time.Hour, Spool: -1})
	for i := range 5 {
		if err := serve(t, l, fmt.Sprint(i)); err != nil {
			t.Fatal(err)
		}
	}
	if n := len(collect(t, l)); n != 5 {
		t.Errorf("%d rows, want 5", n)
	}
}

// What is counted is noted although rows come all the time.
func TestSpoolFirstIsNoted(t *testing.T) {
	path := tempPath(t)
	c := &tally{}
	l := mustOpen(t, path, Options{CommitEvery: time.Millisecond, NoteEvery: 5 * time.Millisecond, Counter: c, Gateway: "gw-1"})
	n := 0
	eventually(t, "a note", func() bool {
		n++
		if err := serve(t, l, fmt.Sprint(n)); err != nil {
			t.Fatal(err)
		}
		noted, counted, _ := snapshot(t, l, march)
		if len(noted) == 0 {
			return false
		}
		// It stands for rows that the database has.
		if got := counted[noted[0].Process]; len(got) != 1 || got[0].Rows < noted[0].Usage[0].Rows {
			t.Errorf("the note says %+v, the database has %+v", noted[0].Usage, got)
		}
		return true
	})
}

// More rows than are remembered are read from the files.
func TestSpoolRemembersSome(t *testing.T) {
	damaged := 0
	s, _ := mustOpenSpool(t, tempPath(t), 1<<30, &damaged)
	s.keep = true
	var want []string
	add := func(n int) {
		rows := make([]*tenancy.Row, n)
		for i := range rows {
			rows[i] = fullRow(fmt.Sprint(len(want)))
			want = append(want, rows[i].ID)
		}
		if err := s.append(rows); err != nil {
			t.Fatal(err)
		}
	}
	var got []string
	for range 3 { // once with all remembered, once with more than that, and again
		for _, n := range []int{1, maxRecent / 2, 1} {
			add(n)
		}
		if rows, err := s.first(10); err != nil || len(rows) == 0 {
			t.Fatal(err)
		} else {
			for _, row := range rows {
				got = append(got, row.ID)
			}
			if err := s.stored(); err != nil {
				t.Fatal(err)
			}
		}
		add(maxRecent)
		got = append(got, drain(t, s, 1000)...)
	}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("%d rows came back, want %d in their order", len(got), len(want))
	}
	if damaged != 0 || s.rows.Load() != 0 || s.bytes.Load() != 0 {
		t.Errorf("%d damaged, %d rows and %d bytes left", damaged, s.rows.Load(), s.bytes.Load())
	}
}
