package ledger

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/sluicegate/sluice/tenancy"
)

// eventually waits for something that other goroutines bring about.
func eventually(t testing.TB, what string, done func() bool) {
	t.Helper()
	deadline := time.Now().Add(30 * time.Second)
	for !done() {
		if time.Now().After(deadline) {
			t.Fatalf("waited in vain for %s", what)
		}
		time.Sleep(time.Millisecond)
	}
}

// hold locks a database against writing, as a tool might, and returns what gives
// it back.
func hold(t testing.TB, path string) (release func()) {
	t.Helper()
	tool, err := openDB(path, "rw", "busy_timeout(5000)")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { tool.Close() })
	tool.SetMaxOpenConns(1)
	execSQL(t, tool, "BEGIN IMMEDIATE")
	return func() { execSQL(t, tool, "ROLLBACK") }
}

func execSQL(t testing.TB, db *sql.DB, text string) {
	t.Helper()
	if _, err := db.Exec(text); err != nil {
		t.Fatal(err)
	}
}

// impatient gives up on a locked database at once.
func impatient() Options { return Options{BusyTimeout: time.Millisecond, Retry: time.Millisecond} }

func serve(t testing.TB, l *Ledger, id string) error {
	t.Helper()
	if err := l.Begin(t.Context(), intent(id)); err != nil {
		t.Fatal(err)
	}
	return l.Record(t.Context(), fullRow(id))
}

// A full disk keeps rows from the database; the spool has them until there is
// space again.
func TestFullDisk(t *testing.T) {
	l := mustOpen(t, tempPath(t), Options{Retry: time.Millisecond})
	if err := serve(t, l, "before"); err != nil {
		t.Fatal(err)
	}
	conn := l.store.(*writer).conn
	var pages int
	if err := conn.QueryRowContext(t.Context(), "PRAGMA page_count").Scan(&pages); err != nil {
		t.Fatal(err)
	}
	limit := func(n int) {
		if _, err := conn.ExecContext(t.Context(), fmt.Sprintf("PRAGMA max_page_count = %d", n)); err != nil {
			t.Fatal(err)
		}
	}
	limit(pages)
	for i := range 200 {
		if err := serve(t, l, fmt.Sprint("r", i)); err != nil {
			t.Fatal(err)
		}
	}
	st := l.Stats()
	if st.Spooled == 0 || !st.Failing || st.OpenIntents != 0 || st.Failed != 0 {
		t.Errorf("stats on a full disk: %+v", st)
	}
	limit(1 << 30)
	eventually(t, "the spool to be empty", func() bool { return !l.Stats().Failing })
	if got := len(collect(t, l)); got != 201 {
		t.Errorf("%d rows, want 201", got)
	}
	if names, err := spoolFiles(l.path).files(); err != nil || len(names) != 0 {
		t.Errorf("spool files left: %v, %v", names, err)
	}
}

// A database that somebody holds does not hold up a request, and does not lose
// its row.
func TestLockedDatabase(t *testing.T) {
	path := tempPath(t)
	l := mustOpen(t, path, impatient())
	release := hold(t, path)
	for i := range 20 {
		if err := serve(t, l, fmt.Sprint(i)); err != nil {
			t.Fatal(err)
		}
	}
	if st := l.Stats(); st.Spooled != 20 || st.SpoolRows != 20 || st.OpenIntents != 0 {
		t.Errorf("stats %+v", st)
	}
	if n := len(collect(t, l)); n != 0 {
		t.Errorf("%d rows came past the lock", n)
	}
	release()
	eventually(t, "the spool to be empty", func() bool { return !l.Stats().Failing })
	if n := len(collect(t, l)); n != 20 {
		t.Errorf("%d rows, want 20", n)
	}
	if err := serve(t, l, "after"); err != nil {
		t.Error(err)
	}
	if st := l.Stats(); st.Rows != 21 || st.Spooled != 20 || st.SpoolRows != 0 || st.SpoolBytes != 0 {
		t.Errorf("stats %+v", st)
	}
}

// Where neither the database nor the spool takes rows, new requests are refused
// and those at hand are kept until one of them does.
func TestNowhereToWrite(t *testing.T) {
	path := tempPath(t)
	opts := impatient()
	opts.Spool = -1
	l := mustOpen(t, path, opts)
	release := hold(t, path)
	for i := range 3 {
		if err := l.Begin(t.Context(), intent(fmt.Sprint(i))); err != nil {
			t.Fatal(err)
		}
	}
	results := make(chan error, 2)
	for i := range 2 {
		go func() { results <- l.Record(context.Background(), fullRow(fmt.Sprint(i))) }()
	}
	eventually(t, "rows to be held", func() bool { return l.Healthy() != nil })
	if err := l.Begin(t.Context(), intent("new")); err == nil || !strings.Contains(err.Error(), "can't be made durable") {
		t.Errorf("a new request was let in: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := l.Record(ctx, fullRow("2")); !errors.Is(err, tenancy.ErrPending) || !errors.Is(err, context.Canceled) {
		t.Errorf("a row that nobody waits for: %v", err)
	}
	if st := l.Stats(); st.OpenIntents != 3 {
		t.Errorf("stats %+v", st)
	}
	release()
	for range 2 {
		if err := <-results; err != nil {
			t.Error(err)
		}
	}
	eventually(t, "the ledger to be well", func() bool { st := l.Stats(); return l.Healthy() == nil && st.OpenIntents == 0 })
	if n := len(collect(t, l)); n != 3 {
		t.Errorf("%d rows, want 3", n)
	}
	if err := serve(t, l, "new"); err != nil {
		t.Error(err)
	}
}

// A spool that is nearly full takes no new requests, and has room for the rows
// of those in flight.
func TestSpoolIsBounded(t *testing.T) {
	path := tempPath(t)
	opts := impatient()
	opts.Spool = 64 << 10
	l := mustOpen(t, path, opts)
	release := hold(t, path)
	let := 0
	for ; l.Healthy() == nil; let++ {
		if let > 1000 {
			t.Fatal("the spool has no end")
		}
		if err := serve(t, l, fmt.Sprint(let)); err != nil {
			t.Fatal(err)
		}
	}
	if err := l.Begin(t.Context(), intent("new")); !errors.Is(err, errSpoolFull) {
		t.Errorf("a new request was let in: %v", err)
	}
	if st := l.Stats(); st.SpoolBytes > opts.Spool || st.Held != 0 || let < 20 {
		t.Errorf("%d requests were let in, stats %+v", let, st)
	}
	release()
	eventually(t, "the spool to be empty", func() bool { return l.Healthy() == nil && !l.Stats().Failing })
	if n := len(collect(t, l)); n != let {
		t.Errorf("%d rows, want %d", n, let)
	}
}

// One row that the database will not have does not keep the others from it, and
// is not lost either.
func TestOneBadRow(t *testing.T) {
	path := tempPath(t)
	l := mustOpen(t, path, Options{})
	if _, err := l.store.(*writer).conn.ExecContext(t.Context(),
		"CREATE TRIGGER t BEFORE INSERT ON requests WHEN NEW.tenant = 'bad' BEGIN SELECT RAISE(ABORT, 'no'); END"); err != nil {
		t.Fatal(err)
	}
	rows := make([]*tenancy.Row, 100)
	for i := range rows {
		rows[i] = fullRow(fmt.Sprint(i))
	}
	rows[37].Tenant, rows[90].Tenant = "bad", "bad"
	fates, err := l.commit(t.Context(), rows)
	if err != nil {
		t.Fatal(err)
	}
	for i, f := range fates {
		if bad := i == 37 || i == 90; (f.err != nil) != bad {
			t.Errorf("row %d: %+v", i, f)
		}
	}
	if n := len(collect(t, l)); n != 98 {
		t.Errorf("%d rows, want 98", n)
	}
	bad := fullRow("last")
	bad.Tenant = "bad"
	if err := l.Begin(t.Context(), intent("last")); err != nil {
		t.Fatal(err)
	}
	if err := l.Record(t.Context(), bad); err == nil || !strings.Contains(err.Error(), "refuses the row") {
		t.Errorf("got %v", err)
	}
	if st := l.Stats(); st.OpenIntents != 0 || st.Failed != 1 || st.Failing {
		t.Errorf("stats %+v", st)
	}
	if got := refusedRows(t, path); len(got) != 3 || got[0].ID != "37" || got[1].ID != "90" || !equalRows(got[2], bad) {
		t.Errorf("refused rows %+v", got)
	}
}

func refusedRows(t *testing.T, path string) (rows []*tenancy.Row) {
	t.Helper()
	text, err := os.ReadFile(path + "-refused")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		var r struct{ Row *tenancy.Row }
		if err := json.Unmarshal([]byte(line), &r); err != nil {
			t.Fatal(err)
		}
		rows = append(rows, r.Row)
	}
	return rows
}

// The row of a request that was taken for lost takes that row's place; after
// that the first one stands.
func TestALostRowGivesWay(t *testing.T) {
	path := tempPath(t)
	l := mustOpen(t, path, Options{})
	if err := l.Begin(t.Context(), intent("r")); err != nil {
		t.Fatal(err)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	l = mustOpen(t, path, Options{})
	if rows := collect(t, l); len(rows) != 1 || rows[0].Outcome != tenancy.OutcomeLost {
		t.Fatalf("rows %+v", rows)
	}
	for range 2 {
		if err := l.Record(t.Context(), fullRow("r")); err != nil {
			t.Fatal(err)
		}
	}
	other := fullRow("r")
	other.OutputTokens++
	if err := l.Record(t.Context(), other); !errors.Is(err, ErrConflict) {
		t.Errorf("got %v", err)
	}
	if err := l.Record(t.Context(), lostRow(intent("r"))); err != nil {
		t.Errorf("a lost row after the real one: %v", err)
	}
	if rows := collect(t, l); len(rows) != 1 || !equalRows(rows[0], fullRow("r")) {
		t.Errorf("rows %+v", rows)
	}
	if got := refusedRows(t, path); len(got) != 1 || !equalRows(got[0], other) {
		t.Errorf("refused rows %+v", got)
	}
}

func TestFullQueueHeedsContext(t *testing.T) {
	path := tempPath(t)
	opts := impatient()
	opts.Queue, opts.Spool = 1, -1
	l := mustOpen(t, path, opts)
	release := hold(t, path)
	if err := l.RecordLater(t.Context(), fullRow("held")); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the row to be held", func() bool { return l.Stats().Held == 1 })
	if err := l.RecordLater(t.Context(), fullRow("queued")); err != nil {
		t.Fatal(err)
	}
	if err := l.RecordLater(t.Context(), fullRow("refused")); !errors.Is(err, context.Canceled) {
		t.Errorf("later, with a full queue and no place for rows: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := l.Record(ctx, fullRow("refused")); !errors.Is(err, context.Canceled) || errors.Is(err, tenancy.ErrPending) {
		t.Errorf("with a full queue: %v", err)
	}
	release()
	if err := l.Record(t.Context(), fullRow("refused")); err != nil {
		t.Error(err)
	}
	eventually(t, "all rows", func() bool { return len(collect(t, l)) == 3 })
}

// What is in the spool, or nowhere yet, when the ledger is closed in an outage is
// there at the next start.
func TestCloseInAnOutage(t *testing.T) {
	path := tempPath(t)
	l := mustOpen(t, path, impatient())
	release := hold(t, path)
	for i := range 5 {
		if err := serve(t, l, fmt.Sprint(i)); err != nil {
			t.Fatal(err)
		}
	}
	if err := l.RecordLater(t.Context(), fullRow("later")); err != nil {
		t.Fatal(err)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	release()
	l = mustOpen(t, path, Options{})
	if n := len(collect(t, l)); n != 6 || l.Stats().Recovered != 0 {
		t.Errorf("%d rows, stats %+v", n, l.Stats())
	}
}

// copyLedger copies a ledger's files as a kill would leave them.
func copyLedger(t *testing.T, path string) string {
	t.Helper()
	names, err := filepath.Glob(path + "*")
	if err != nil {
		t.Fatal(err)
	}
	to := tempPath(t)
	for _, name := range names {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(to+strings.TrimPrefix(name, path), text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return to
}

// A process killed in an outage has lost nothing that it has acknowledged, and
// does not take it for lost.
func TestKilledInAnOutage(t *testing.T) {
	path := tempPath(t)
	l := mustOpen(t, path, impatient())
	release := hold(t, path)
	for i := range 10 {
		if err := serve(t, l, fmt.Sprint(i)); err != nil {
			t.Fatal(err)
		}
	}
	if err := l.Begin(t.Context(), intent("open")); err != nil {
		t.Fatal(err)
	}
	crashed := copyLedger(t, path)
	release()
	after := mustOpen(t, crashed, Options{})
	rows := collect(t, after)
	lost := 0
	for _, row := range rows {
		if row.Outcome == tenancy.OutcomeLost {
			lost++
		}
	}
	if len(rows) != 11 || lost != 1 || after.Stats().Recovered != 1 {
		t.Errorf("%d rows, %d lost, stats %+v", len(rows), lost, after.Stats())
	}
	if err := l.Record(t.Context(), fullRow("open")); err != nil {
		t.Error(err)
	}
}

// stuckStore does not answer while its gate is held.
type stuckStore struct {
	store
	gate chan struct{}
}

func (s *stuckStore) commit(ctx context.Context, rows []*tenancy.Row) ([]result, error) {
	<-s.gate
	return s.store.commit(ctx, rows)
}

// A disk that does not answer holds up a request for no longer than the patience
// for it; the row that it stores late after all is there once.
func TestStuckDatabase(t *testing.T) {
	gate := make(chan struct{})
	opts := Options{Patience: time.Millisecond, wrap: func(s store) store { return &stuckStore{s, gate} }}
	l := mustOpen(t, tempPath(t), opts)
	for i := range 10 {
		if err := serve(t, l, fmt.Sprint(i)); err != nil {
			t.Fatal(err)
		}
	}
	if st := l.Stats(); st.Spooled != 10 || !st.Failing || st.OpenIntents != 0 {
		t.Errorf("stats %+v", st)
	}
	close(gate)
	eventually(t, "the spool to be empty", func() bool { return !l.Stats().Failing })
	if n, st := len(collect(t, l)), l.Stats(); n != 10 || st.Rows != 10 || st.SpoolRows != 0 {
		t.Errorf("%d rows, stats %+v", n, st)
	}
}

// A loss of power in the middle of an outage takes no more than what was not
// flushed: whatever a file has beyond its last flush may be gone or garbled.
func TestLossOfPowerInAnOutage(t *testing.T) {
	path := tempPath(t)
	opts := impatient()
	opts.SyncIntents = true
	l := mustOpen(t, path, opts)
	if err := serve(t, l, "in the database"); err != nil {
		t.Fatal(err)
	}
	release := hold(t, path)
	defer release()
	for i := range 10 {
		if err := serve(t, l, fmt.Sprint("in the spool ", i)); err != nil {
			t.Fatal(err)
		}
	}
	if err := l.Begin(t.Context(), intent("in flight")); err != nil {
		t.Fatal(err)
	}
	for _, tail := range []string{"", "\x00\x00\x00\x00\x00\x00\x00\x00", "\x20\x00\x00\x00garbage", strings.Repeat("\xff", 4096)} {
		crashed := copyLedger(t, path)
		for _, kind := range []numbered{spoolFiles(crashed), intentFiles(crashed)} {
			names, err := kind.files()
			if err != nil || len(names) == 0 {
				t.Fatalf("%s: %v, %v", kind.kind, names, err)
			}
			appendTo(t, names[len(names)-1], tail)
		}
		appendTo(t, crashed+"-wal", tail)
		after := mustOpen(t, crashed, Options{})
		lost, whole := 0, 0
		for _, row := range collect(t, after) {
			if row.Outcome == tenancy.OutcomeLost {
				lost++
			} else {
				whole++
			}
		}
		if lost != 1 || whole != 11 {
			t.Errorf("tail %q: %d lost, %d whole, want 1 and 11", tail[:min(8, len(tail))], lost, whole)
		}
	}
}

func appendTo(t *testing.T, name, text string) {
	t.Helper()
	f, err := os.OpenFile(name, os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	_, err = f.WriteString(text)
	if err := errors.Join(err, f.Close()); err != nil {
		t.Fatal(err)
	}
}
