package ledger

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"
)

func TestFullDisk(t *testing.T) {
	l := open(t, tempPath(t), Options{})
	if err := l.Record(t.Context(), fullRow("before")); err != nil {
		t.Fatal(err)
	}
	var pages int
	if err := l.writer.conn.QueryRowContext(t.Context(), "PRAGMA page_count").Scan(&pages); err != nil {
		t.Fatal(err)
	}
	limit := func(n int) {
		if _, err := l.writer.conn.ExecContext(t.Context(), fmt.Sprintf("PRAGMA max_page_count = %d", n)); err != nil {
			t.Fatal(err)
		}
	}
	limit(pages)
	var failed []string
	for i := range 200 {
		id := fmt.Sprint("r", i)
		if err := l.Begin(t.Context(), intent(id)); err != nil {
			t.Fatal(err)
		}
		if err := l.Record(t.Context(), fullRow(id)); err != nil {
			if !errors.Is(err, ErrFull) {
				t.Fatal(err)
			}
			failed = append(failed, id)
		}
	}
	if len(failed) == 0 {
		t.Fatal("nothing failed on a full disk")
	}
	if st := l.Stats(); st.OpenIntents != len(failed) || st.Failed != uint64(len(failed)) {
		t.Errorf("stats %+v, %d failed", st, len(failed))
	}
	limit(1 << 30)
	for _, id := range failed {
		if err := l.Record(t.Context(), fullRow(id)); err != nil {
			t.Fatalf("with space again: %v", err)
		}
	}
	if got := len(collect(t, l)); got != 201 {
		t.Errorf("%d rows, want 201", got)
	}
}

func TestLockedDatabase(t *testing.T) {
	path := tempPath(t)
	l := open(t, path, Options{BusyTimeout: time.Millisecond})
	tool, err := openDB(path, "rw")
	if err != nil {
		t.Fatal(err)
	}
	defer tool.Close()
	tool.SetMaxOpenConns(1)
	if _, err := tool.Exec("BEGIN IMMEDIATE"); err != nil {
		t.Fatal(err)
	}
	if err := l.Record(t.Context(), fullRow("r")); !errors.Is(err, ErrLocked) {
		t.Errorf("Record while a tool holds the database: %v", err)
	}
	if _, err := tool.Exec("ROLLBACK"); err != nil {
		t.Fatal(err)
	}
	if err := l.Record(t.Context(), fullRow("r")); err != nil {
		t.Errorf("Record afterwards: %v", err)
	}
}

func TestFullQueueHeedsContext(t *testing.T) {
	path := tempPath(t)
	l := open(t, path, Options{Queue: 1, MaxBatch: 1, BusyTimeout: time.Hour})
	tool, err := openDB(path, "rw")
	if err != nil {
		t.Fatal(err)
	}
	defer tool.Close()
	tool.SetMaxOpenConns(1)
	if _, err := tool.Exec("BEGIN IMMEDIATE"); err != nil {
		t.Fatal(err)
	}
	// One row waits for the lock in the writer, one in the queue, one before it.
	ctx, cancel := context.WithCancel(t.Context())
	results := make(chan error, 3)
	for i := range 3 {
		go func() { results <- l.Record(ctx, fullRow(fmt.Sprint(i))) }()
	}
	cancel()
	for range 3 {
		if err := <-results; !errors.Is(err, context.Canceled) {
			t.Errorf("Record ended with %v", err)
		}
	}
	if _, err := tool.Exec("ROLLBACK"); err != nil {
		t.Fatal(err)
	}
	// Whatever was taken is stored, and asking again tells so.
	for i := range 3 {
		if err := l.Record(t.Context(), fullRow(fmt.Sprint(i))); err != nil {
			t.Error(err)
		}
	}
	if got := len(collect(t, l)); got != 3 {
		t.Errorf("%d rows, want 3", got)
	}
}
