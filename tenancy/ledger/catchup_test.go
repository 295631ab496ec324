package ledger

import (
	"context"
	"errors"
	"fmt"
	"os"
	"testing"
	"time"
)

// readAll returns the ids that a reader finds who has waited for the spool.
func readAll(t *testing.T, path string) map[string]bool {
	t.Helper()
	r, err := OpenReader(path)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if err := r.CatchUp(t.Context(), path); err != nil {
		t.Fatal(err)
	}
	ids := make(map[string]bool)
	for row, err := range r.Rows(t.Context(), time.Time{}, time.Now().AddDate(1, 0, 0)) {
		if err != nil {
			t.Fatal(err)
		}
		ids[row.ID] = true
	}
	return ids
}

// Whoever reads after an answer finds its row, although the database gets it later.
func TestCatchUpBesideAGateway(t *testing.T) {
	path := tempPath(t)
	l := mustOpen(t, path, Options{CommitEvery: 100 * time.Millisecond})
	for i := range 5 {
		id := fmt.Sprint(i)
		if err := serve(t, l, id); err != nil {
			t.Fatal(err)
		}
		if !readAll(t, path)[id] {
			t.Errorf("row %s was acknowledged and is not read", id)
		}
	}
}

// What a gateway that died has left is read, and stored once.
func TestCatchUpAfterAKill(t *testing.T) {
	path := tempPath(t)
	l := mustOpen(t, path, Options{CommitEvery: time.Hour})
	for i := range 20 {
		if err := serve(t, l, fmt.Sprint(i)); err != nil {
			t.Fatal(err)
		}
	}
	left := copyLedger(t, path)
	if ids := readAll(t, left); len(ids) != 20 {
		t.Errorf("%d rows are read, want 20", len(ids))
	}
	l = mustOpen(t, left, Options{})
	if n := len(collect(t, l)); n != 20 || l.Stats().Recovered != 0 {
		t.Errorf("%d rows after the next start, %d of them recovered, want 20 and 0", n, l.Stats().Recovered)
	}
}

// A reader of a gateway that can't store its rows gives up, and Pending tells.
func TestCatchUpInAnOutage(t *testing.T) {
	path := tempPath(t)
	l := mustOpen(t, path, Options{CommitEvery: time.Hour})
	if err := serve(t, l, "a"); err != nil {
		t.Fatal(err)
	}
	r, err := OpenReader(path)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := r.CatchUp(ctx, path); err != nil && !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	if p, err := r.Pending(t.Context(), path, time.Now().AddDate(0, 0, 1)); err != nil || p.SpoolRows != 1 {
		t.Errorf("pending is %+v, %v, want 1 row", p, err)
	}
}

// A damaged spool is the gateway's to tell, so a reader leaves it as it is.
func TestCatchUpWithADamagedSpool(t *testing.T) {
	path := tempPath(t)
	l := mustOpen(t, path, Options{CommitEvery: time.Hour})
	if err := serve(t, l, "a"); err != nil {
		t.Fatal(err)
	}
	left := copyLedger(t, path)
	names, err := spoolFiles(left).files()
	if err != nil || len(names) != 1 {
		t.Fatalf("spool files %v, %v", names, err)
	}
	appendTo(t, names[0], "torn")
	before, err := os.ReadFile(names[0])
	if err != nil {
		t.Fatal(err)
	}
	r, err := OpenReader(left)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	storeLeft(t.Context(), left)
	if after, err := os.ReadFile(names[0]); err != nil || string(after) != string(before) {
		t.Errorf("the file has changed: %v", err)
	}
	if _, err := os.Stat(names[0] + ".damaged"); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the file was set aside: %v", err)
	}
}
