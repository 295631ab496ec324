package ledger

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/sluicegate/sluice/tenancy"
)

// The files testdata/schema-N.sql are ledgers that programs of the time wrote, as
// SQL: five rows, of which one was lost.

func oldDump(t *testing.T, version int) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("testdata", fmt.Sprintf("schema-%d.sql", version)))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// oldLedger is a file that an older program has left.
func oldLedger(t *testing.T, version int) string {
	t.Helper()
	path := tempPath(t)
	db, err := openDB(path, "rwc", "journal_mode(WAL)")
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	execSQL(t, db, oldDump(t, version))
	return path
}

// oldRows are the rows of the files.
func oldRows() []*tenancy.Row {
	row := func(id string) *tenancy.Row {
		r := fullRow(id)
		r.Flags &^= tenancy.FlagReasoningApart
		r.PrincipalKind, r.GPUTime, r.Discount, r.Charges = "", 0, 0, nil
		r.Prices.Reasoning, r.Prices.GPUSecond, r.Costs.Reasoning, r.Costs.GPU = 0, 0, 0, 0
		r.Gateway, r.Process, r.Reason, r.Author, r.Period = "", "", "", "", time.Time{}
		return r
	}
	euro, edge := row("euro"), row("edge")
	euro.Currency = "EUR"
	edge.Start, edge.Duration = march.Add(-time.Second), time.Second
	lost := lostRow(intent("lost"))
	lost.PrincipalKind = ""
	denied := &tenancy.Row{ID: "denied", Tenant: "acme", Outcome: tenancy.OutcomeDenied, Phase: tenancy.PhaseRead, Status: 403, Start: noon.Add(-time.Hour)}
	return asStored(edge, denied, lost, euro, row("full"))
}

func allRows(t *testing.T, r interface {
	Snapshot(context.Context) (*Snapshot, error)
}) (rows []*tenancy.Row) {
	t.Helper()
	snap, err := r.Snapshot(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer snap.Close()
	for row, err := range snap.Rows(t.Context(), time.Time{}, distantFuture) {
		if err != nil {
			t.Fatal(err)
		}
		row.Process, row.Gateway = "", ""
		rows = append(rows, row)
	}
	totals, err := snap.Totals(t.Context(), time.Time{}, distantFuture)
	if err != nil {
		t.Fatal(err)
	}
	sums := make(map[string]*tenancy.Totals)
	for _, row := range rows {
		if sums[row.Currency] == nil {
			sums[row.Currency] = &tenancy.Totals{Currency: row.Currency}
		}
		sums[row.Currency].Add(row)
	}
	for _, total := range totals {
		if total != *sums[total.Currency] {
			t.Errorf("SQL sums to %+v, the rows to %+v", total, *sums[total.Currency])
		}
	}
	if len(totals) != len(sums) {
		t.Errorf("%d currencies in SQL, %d in the rows", len(totals), len(sums))
	}
	return rows
}

func showRows(rows []*tenancy.Row) string {
	var b bytes.Buffer
	for _, row := range rows {
		fmt.Fprintf(&b, "\n%+v", *row)
	}
	return b.String()
}

// A ledger of an older schema is read without being changed, is not archived from,
// and is brought up to date by the gateway, whose rows then are beside the old ones.
func TestUpgrade(t *testing.T) {
	for version := 1; version < schemaNow; version++ {
		t.Run(fmt.Sprint(version), func(t *testing.T) {
			path := oldLedger(t, version)
			want := oldRows()
			r, err := OpenReader(path)
			if err != nil {
				t.Fatal(err)
			}
			if got := allRows(t, r); !reflect.DeepEqual(got, want) {
				t.Errorf("read as it is: %s\nwant %s", showRows(got), showRows(want))
			}
			if version, err := r.schema(t.Context()); err != nil || version == schemaNow {
				t.Errorf("reading changed the schema to %d (%v)", version, err)
			}
			if err := r.Close(); err != nil {
				t.Error(err)
			}
			if _, err := Archive(t.Context(), path, t.TempDir(), march, june); err == nil || !strings.Contains(err.Error(), "start the gateway of this version once") {
				t.Errorf("archive: %v", err)
			}
			l := mustOpen(t, path, Options{})
			if err := l.Record(t.Context(), fullRow("new")); err != nil {
				t.Fatal(err)
			}
			if err := l.Record(t.Context(), oldRows()[4]); err != nil {
				t.Errorf("an old row again: %v", err)
			}
			want = append(want, asStored(fullRow("new"))...)
			if got := allRows(t, l); !reflect.DeepEqual(got, want) {
				t.Errorf("brought up to date: %s\nwant %s", showRows(got), showRows(want))
			}
			if a, err := Archive(t.Context(), path, t.TempDir(), march, june); err != nil || a.Moved != 6 {
				t.Errorf("archive afterwards: %+v, %v", a, err)
			}
		})
	}
}

// The schema of a ledger that was brought up to date is that of a new one.
func TestUpgradedSchemaIsTheNewOne(t *testing.T) {
	objects := func(path string) map[string]string {
		db, err := openDB(path, "ro")
		if err != nil {
			t.Fatal(err)
		}
		defer db.Close()
		found, err := db.Query("SELECT name, coalesce(sql, '') FROM sqlite_schema")
		if err != nil {
			t.Fatal(err)
		}
		defer found.Close()
		all := make(map[string]string)
		for found.Next() {
			var name, text string
			if err := found.Scan(&name, &text); err != nil {
				t.Fatal(err)
			}
			all[name] = text
		}
		return all
	}
	fresh := tempPath(t)
	mustOpen(t, fresh, Options{})
	want := objects(fresh)
	for version := 1; version < schemaNow; version++ {
		path := oldLedger(t, version)
		mustOpen(t, path, Options{})
		if got := objects(path); !reflect.DeepEqual(got, want) {
			t.Errorf("from version %d: %v\nwant %v", version, got, want)
		}
	}
	if len(migrations) != schemaNow || len(postgresMigrations) != schemaNow {
		t.Errorf("%d and %d migrations lead to version %d", len(migrations), len(postgresMigrations), schemaNow)
	}
}

// As TestUpgrade, in PostgreSQL; an older gateway may go on beside the new one.
func TestPostgresUpgrade(t *testing.T) {
	for version := 1; version < schemaNow; version++ {
		t.Run(fmt.Sprint(version), func(t *testing.T) {
			dsn := database(t)
			conn, err := pgx.Connect(t.Context(), dsn)
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close(context.Background())
			exec := func(text string) {
				t.Helper()
				if _, err := conn.Exec(t.Context(), text); err != nil {
					t.Fatal(err)
				}
			}
			exec("CREATE TABLE sluice_ledger_migrations (version BIGINT PRIMARY KEY, applied_at TIMESTAMPTZ NOT NULL DEFAULT now())")
			for v := range version {
				exec(postgresMigrations[v])
				exec(fmt.Sprintf("INSERT INTO sluice_ledger_migrations (version) VALUES (%d)", v+1))
			}
			var insert string
			for line := range strings.Lines(oldDump(t, version)) {
				if rest, ok := strings.CutPrefix(line, "INSERT INTO requests (seq, "); ok {
					columns, values, _ := strings.Cut(rest, ") VALUES (")
					_, values, _ = strings.Cut(values, ", ")
					insert = "INSERT INTO sluice_requests (" + columns + ") VALUES (" + values
					exec(insert)
				}
			}
			want := oldRows()
			r, err := OpenPostgresReader(dsn)
			if err != nil {
				t.Fatal(err)
			}
			defer r.Close()
			if got := allRows(t, r); !reflect.DeepEqual(got, want) {
				t.Errorf("read as it is: %s\nwant %s", showRows(got), showRows(want))
			}
			l := mustOpenPostgres(t, tempPath(t), dsn, Options{})
			if err := l.Record(t.Context(), fullRow("new")); err != nil {
				t.Fatal(err)
			}
			want = append(want, asStored(fullRow("new"))...)
			if got := allRows(t, l); !reflect.DeepEqual(got, want) {
				t.Errorf("brought up to date: %s\nwant %s", showRows(got), showRows(want))
			}
			exec(strings.Replace(insert, "'lost'", "'older'", 1))
			if got := len(allRows(t, l)); got != 7 {
				t.Errorf("%d rows beside an older gateway", got)
			}
		})
	}
}
