package ledger

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/sluicegate/sluice/tenancy"
)

// eachStore runs a test with both databases. reopen opens the same ledger again.
func eachStore(t *testing.T, test func(t *testing.T, reopen func() *Ledger)) {
	t.Run("sqlite", func(t *testing.T) {
		path := tempPath(t)
		test(t, func() *Ledger { return mustOpen(t, path, Options{}) })
	})
	t.Run("postgres", func(t *testing.T) {
		dsn, path := database(t), tempPath(t)
		test(t, func() *Ledger { return mustOpenPostgres(t, path, dsn, Options{}) })
	})
}

func mustOpenPostgres(t testing.TB, path, dsn string, opts Options) *Ledger {
	t.Helper()
	l, err := OpenPostgres(path, dsn, opts.patient())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	})
	return l
}

// Both databases give back what they were given, in the same order.
func TestStoresKeepRows(t *testing.T) {
	eachStore(t, func(t *testing.T, reopen func() *Ledger) {
		l := reopen()
		least := &tenancy.Row{ID: "least", Outcome: tenancy.OutcomeDenied, Start: noon.Add(-time.Hour)}
		odd := fullRow("odd")
		odd.RequestID, odd.Labels = "a\x00b\xffc", []string{"\xff"}
		kept := fullRow("odd")
		kept.RequestID, kept.Labels = "a\ufffdb\ufffdc", []string{"\ufffd"}
		euro := fullRow("Euro") // sorts before "full" by bytes
		euro.Currency = "EUR"
		for _, row := range []*tenancy.Row{fullRow("full"), odd, least, euro} {
			if err := l.Record(t.Context(), row); err != nil {
				t.Fatal(err)
			}
		}
		want := asStored(least, euro, fullRow("full"), kept)
		if got := collect(t, l); !reflect.DeepEqual(got, want) {
			t.Errorf("got %+v", got)
		}
		one, two := totalsOf(euro), totalsOf(fullRow("full"), kept)
		totals, err := l.Totals(t.Context(), noon, noon.Add(time.Hour))
		if err != nil || !reflect.DeepEqual(totals, []tenancy.Totals{one, two}) {
			t.Errorf("totals %+v, %v", totals, err)
		}
		snap, err := l.Snapshot(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if err := l.Record(t.Context(), fullRow("new")); err != nil {
			t.Fatal(err)
		}
		n := 0
		for _, err := range snap.Rows(t.Context(), time.Time{}, distantFuture) {
			if err != nil {
				t.Fatal(err)
			}
			n++
		}
		if n != 4 {
			t.Errorf("the snapshot has %d rows, want 4", n)
		}
		if err := snap.Close(); err != nil {
			t.Error(err)
		}
		if _, err := l.reader.db.Exec("DELETE FROM " + l.reader.dialect.table); err == nil {
			t.Error("a reader wrote")
		}
	})
}

// Rows are stored once whatever is offered, in one batch or in several.
func TestStoresAreIdempotent(t *testing.T) {
	eachStore(t, func(t *testing.T, reopen func() *Ledger) {
		l := reopen()
		if err := l.Begin(t.Context(), intent("lost")); err != nil {
			t.Fatal(err)
		}
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
		l = reopen()
		if n := l.Stats().Recovered; n != 1 {
			t.Errorf("recovered %d", n)
		}
		other := func(id string) *tenancy.Row {
			row := fullRow(id)
			row.OutputTokens++
			return row
		}
		rows := []*tenancy.Row{fullRow("a"), fullRow("b"), other("a"), fullRow("a"), fullRow("lost"), lostRow(intent("b")), other("lost")}
		want := []result{stored, stored, conflicting, repeated, stored, repeated, conflicting}
		for round := range 2 {
			got, err := l.store.commit(t.Context(), rows)
			if err != nil || !reflect.DeepEqual(got, want) {
				t.Errorf("round %d: %v (%v), want %v", round, got, err, want)
			}
			want = []result{repeated, repeated, conflicting, repeated, repeated, repeated, conflicting}
		}
		got := collect(t, l)
		if len(got) != 3 {
			t.Fatalf("%d rows, want 3", len(got))
		}
		for i, id := range []string{"a", "b", "lost"} {
			if !equalRows(got[i], fullRow(id)) {
				t.Errorf("row %+v", got[i])
			}
		}
	})
}

func TestPostgresRefusesOneBadRow(t *testing.T) {
	dsn := database(t)
	l := mustOpenPostgres(t, tempPath(t), dsn, Options{})
	pgExec(t, dsn, "ALTER TABLE sluice_requests ADD CHECK (tenant <> 'bad')")
	rows := rowsOf(0, 50)
	rows[17].Tenant = "bad"
	fates, err := l.commit(t.Context(), rows)
	if err != nil {
		t.Fatal(err)
	}
	for i, f := range fates {
		if (f.err != nil) != (i == 17) {
			t.Errorf("row %d: %+v", i, f)
		}
	}
	if n := len(collect(t, l)); n != 49 {
		t.Errorf("%d rows, want 49", n)
	}
	if got := refusedRows(t, l.path); len(got) != 1 || got[0].ID != "17" {
		t.Errorf("refused %+v", got)
	}
}

// Several gateways write to one database, start at once, and find their own
// requests lost and not those of others.
func TestPostgresIsShared(t *testing.T) {
	dsn := database(t)
	const gateways, each = 3, 200
	ledgers, paths := make([]*Ledger, gateways), make([]string, gateways)
	var wg sync.WaitGroup
	for g := range ledgers {
		paths[g] = tempPath(t)
		wg.Go(func() {
			l, err := OpenPostgres(paths[g], dsn, Options{})
			if err != nil {
				t.Error(err)
				return
			}
			ledgers[g] = l
			for i := range each {
				id := fmt.Sprintf("%d-%d", g, i)
				if err := l.Begin(context.Background(), intent(id)); err != nil {
					t.Error(err)
				}
				if i == 0 {
					continue // in flight
				}
				if err := l.Record(context.Background(), fullRow(id)); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	if t.Failed() {
		return
	}
	if err := ledgers[0].Close(); err != nil {
		t.Fatal(err)
	}
	again := mustOpenPostgres(t, paths[0], dsn, Options{})
	if n := again.Stats().Recovered; n != 1 {
		t.Errorf("recovered %d, want 1", n)
	}
	for g, l := range ledgers[1:] {
		if err := l.Record(t.Context(), fullRow(fmt.Sprintf("%d-0", g+1))); err != nil {
			t.Error(err)
		}
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	}
	r, err := OpenPostgresReader(dsn)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	totals, err := r.Totals(t.Context(), time.Time{}, distantFuture)
	if err != nil || len(totals) != 2 || totals[0].Rows != 1 || totals[1].Rows != gateways*each-1 {
		t.Errorf("totals %+v, %v", totals, err)
	}
}

// An outage of the server, and its crash, cost no row and no answer.
func TestPostgresOutage(t *testing.T) {
	server := postgresServer(t)
	dsn, path := database(t), tempPath(t)
	l := mustOpenPostgres(t, path, dsn, Options{Retry: time.Millisecond, Patience: time.Second})
	for i := range 10 {
		if err := serve(t, l, fmt.Sprint("before-", i)); err != nil {
			t.Fatal(err)
		}
	}
	server.Kill()
	for i := range 30 {
		if err := serve(t, l, fmt.Sprint("during-", i)); err != nil {
			t.Fatal(err)
		}
	}
	if err := l.Begin(t.Context(), intent("open")); err != nil {
		t.Fatal(err)
	}
	if st := l.Stats(); st.Spooled < 30 || !st.Failing {
		t.Errorf("stats %+v", st)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	// A gateway starts without it, and notes what was in flight.
	l = mustOpenPostgres(t, path, dsn, Options{Retry: time.Millisecond, Patience: time.Second})
	if err := serve(t, l, "started without"); err != nil {
		t.Fatal(err)
	}
	if err := server.Start(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the spool to be empty", func() bool { return !l.Stats().Failing })
	rows := collect(t, l)
	lost := 0
	for _, row := range rows {
		if row.Outcome == tenancy.OutcomeLost {
			lost++
		}
	}
	if len(rows) != 42 || lost != 1 {
		t.Errorf("%d rows, %d lost, want 42 and 1", len(rows), lost)
	}
}

// A table that somebody holds does not hold up a request.
func TestPostgresHeld(t *testing.T) {
	dsn := database(t)
	l := mustOpenPostgres(t, tempPath(t), dsn, Options{Patience: 10 * time.Millisecond, Retry: time.Millisecond})
	conn, err := pgx.Connect(t.Context(), dsn)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.Background())
	if _, err := conn.Exec(t.Context(), "BEGIN; LOCK TABLE sluice_requests"); err != nil {
		t.Fatal(err)
	}
	for i := range 10 {
		if err := serve(t, l, fmt.Sprint(i)); err != nil {
			t.Fatal(err)
		}
	}
	if st := l.Stats(); st.Spooled != 10 || !st.Failing {
		t.Errorf("stats %+v", st)
	}
	if _, err := conn.Exec(t.Context(), "ROLLBACK"); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the spool to be empty", func() bool { return !l.Stats().Failing })
	if n := len(collect(t, l)); n != 10 {
		t.Errorf("%d rows, want 10", n)
	}
}

func TestOpenPostgresRefuses(t *testing.T) {
	server := postgresServer(t)
	newer := database(t)
	if err := mustOpenPostgres(t, tempPath(t), newer, Options{}).Close(); err != nil {
		t.Fatal(err)
	}
	pgExec(t, newer, "INSERT INTO sluice_ledger_migrations VALUES (99)")
	for dsn, want := range map[string]string{
		"postgres://MARKED:MARKED@[/x": "can't be read",
		server.DSN("none"):             `database "none" does not exist`,
		newer:                          "use a newer program",
	} {
		l, err := OpenPostgres(tempPath(t), dsn, Options{})
		if err == nil {
			l.Close()
			t.Errorf("%s: opened", want)
		} else if !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "MARKED") {
			t.Errorf("got %v, want %q", err, want)
		}
	}
	if _, err := OpenPostgresReader(newer); err == nil || !strings.Contains(err.Error(), "version 99") {
		t.Errorf("reader: %v", err)
	}
	path := tempPath(t)
	dsn := database(t)
	mustOpenPostgres(t, path, dsn, Options{})
	if _, err := OpenPostgres(path, dsn, Options{}); !errors.Is(err, ErrLocked) {
		t.Errorf("two gateways in one folder: %v", err)
	}
}
