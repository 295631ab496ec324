package ledger

import (
	"errors"
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/sluicegate/sluice/tenancy"
	"github.com/sluicegate/sluice/tenancy/ledger/ledgertest"
)

// closeBySQL closes a month behind the ledger's back.
func closeBySQL(t *testing.T, exec func(string) error, table string, month time.Time) {
	t.Helper()
	text := fmt.Sprintf("INSERT INTO %s (month, from_ns, to_ns, closed_ns, closed_by, meta, row_count, csv_sha256, json_sha256) VALUES (%d, %d, %d, 0, 'test', '', 0, 'x', 'y')",
		table, monthNumber(month), month.UnixNano(), month.AddDate(0, 1, 0).UnixNano())
	if err := exec(text); err != nil {
		t.Fatal(err)
	}
}

// eachDatabase runs a test with both databases, which exec reaches from outside.
func eachDatabase(t *testing.T, test func(t *testing.T, reopen func() *Ledger, exec func(string) error)) {
	t.Run("sqlite", func(t *testing.T) {
		path := tempPath(t)
		test(t, func() *Ledger { return mustOpen(t, path, Options{}) }, func(text string) error {
			db, err := openDB(path, "rw", "busy_timeout(5000)")
			if err != nil {
				return err
			}
			_, err = db.Exec(text)
			return errors.Join(err, db.Close())
		})
	})
	t.Run("postgres", func(t *testing.T) {
		dsn, path := database(t), tempPath(t)
		test(t, func() *Ledger { return mustOpenPostgres(t, path, dsn, Options{}) }, func(text string) error {
			return ledgertest.Exec(dsn, text)
		})
	})
}

func endsAt(id string, end time.Time) *tenancy.Row {
	row := fullRow(id)
	row.Duration, row.Start = time.Second, end.Add(-time.Second)
	return row
}

// periodsOf are the months that rows are booked in, by id.
func periodsOf(t *testing.T, l *Ledger) map[string]string {
	t.Helper()
	got := make(map[string]string)
	for _, row := range allRows(t, l) {
		got[row.ID] = row.Period.Format("2006-01")
	}
	return got
}

// A row that comes when its month is closed is booked in the first open month
// after it, whoever closed the month and however late the gateway learns of it;
// what has been stored before is no news.
func TestLateRowsAreBookedInAnOpenMonth(t *testing.T) {
	eachDatabase(t, func(t *testing.T, reopen func() *Ledger, exec func(string) error) {
		l := reopen()
		record := func(rows ...*tenancy.Row) {
			t.Helper()
			for _, row := range rows {
				if err := l.Record(t.Context(), row); err != nil {
					t.Fatal(err)
				}
			}
		}
		table := l.reader.dialect.closed
		record(endsAt("feb", february), endsAt("mar", march))
		closeBySQL(t, exec, table, february)
		record(endsAt("feb late", march.Add(-1)), endsAt("feb", february))
		closeBySQL(t, exec, table, march)
		closeBySQL(t, exec, table, june)
		record(endsAt("feb later", february), endsAt("mar late", april.Add(-1)), endsAt("apr", april), endsAt("jun", june), endsAt("mar", march))
		want := map[string]string{
			"feb": "2026-02", "feb late": "2026-03", "feb later": "2026-04",
			"mar": "2026-03", "mar late": "2026-04", "apr": "2026-04", "jun": "2026-07",
		}
		if got := periodsOf(t, l); !reflect.DeepEqual(got, want) {
			t.Errorf("booked in %v, want %v", got, want)
		}
		if st := l.Stats(); st.Failed != 0 || st.Duplicates != 2 || st.Failing {
			t.Errorf("stats %+v", st)
		}
		// Rows and totals of a month are those that are booked in it.
		for month, n := range map[time.Time]int64{february: 1, march: 2, april: 3, june: 0, june.AddDate(0, 1, 0): 1} {
			totals, err := l.Totals(t.Context(), month, month.AddDate(0, 1, 0))
			if err != nil {
				t.Fatal(err)
			}
			var rows, summed int64
			for _, err := range l.Rows(t.Context(), month, month.AddDate(0, 1, 0)) {
				if err != nil {
					t.Fatal(err)
				}
				rows++
			}
			for _, total := range totals {
				summed += total.Rows
			}
			if rows != n || summed != n {
				t.Errorf("%s has %d rows, summed %d, want %d", month.Format("2006-01"), rows, summed, n)
			}
		}
	})
}

// The row of a request that was taken for lost stands in the place of the lost one,
// or, where the month of that is closed, beside it as a correction, once.
func TestRowsOfLostRequestsAfterTheClose(t *testing.T) {
	eachDatabase(t, func(t *testing.T, reopen func() *Ledger, exec func(string) error) {
		l := reopen()
		in := intent("r")
		if err := l.Begin(t.Context(), in); err != nil {
			t.Fatal(err)
		}
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
		l = reopen()
		closeBySQL(t, exec, l.reader.dialect.closed, march)
		for range 2 {
			if err := l.Record(t.Context(), fullRow("r")); err != nil {
				t.Fatal(err)
			}
		}
		rows := allRows(t, l)
		if len(rows) != 2 || rows[0].Outcome != tenancy.OutcomeLost || !rows[0].Period.Equal(march) {
			t.Fatalf("rows %s", showRows(rows))
		}
		want := asStored(fullRow("r"))[0]
		want.ID, want.CorrectionOf, want.Reason, want.Period = "r~late", "r", reasonLate, april
		if !reflect.DeepEqual(rows[1], want) {
			t.Errorf("correction %+v, want %+v", *rows[1], *want)
		}
		other := fullRow("r")
		other.OutputTokens++
		if err := l.Record(t.Context(), other); !errors.Is(err, ErrConflict) {
			t.Errorf("a different row: %v", err)
		}
	})
}

// Nobody changes what belongs to a closed month.
func TestClosedMonthsAreImmutable(t *testing.T) {
	eachDatabase(t, func(t *testing.T, reopen func() *Ledger, exec func(string) error) {
		l := reopen()
		d := l.reader.dialect
		for _, row := range []*tenancy.Row{endsAt("mar", march), endsAt("apr", april)} {
			if err := l.Record(t.Context(), row); err != nil {
				t.Fatal(err)
			}
		}
		closeBySQL(t, exec, d.closed, february)
		if err := l.Record(t.Context(), endsAt("feb", february)); err != nil { // booked in March
			t.Fatal(err)
		}
		closeBySQL(t, exec, d.closed, march)
		before := allRows(t, l)
		columns := strings.ReplaceAll(columnNames(), "id, request_id", "'copy', request_id")
		for _, text := range []string{
			"DELETE FROM " + d.table,
			"DELETE FROM " + d.table + " WHERE id = 'mar'",
			"DELETE FROM " + d.table + " WHERE id = 'feb'",
			"UPDATE " + d.table + " SET output_cost = output_cost + 1 WHERE id = 'mar'",
			"UPDATE " + d.table + " SET output_cost = output_cost + 1 WHERE id = 'feb'",
			"UPDATE " + d.table + " SET period = 202603 WHERE id = 'apr'",
			fmt.Sprintf("UPDATE %s SET end_ns = %d WHERE id = 'apr'", d.table, march.UnixNano()),
			"INSERT INTO " + d.table + " (" + columnNames() + ") SELECT " + columns + " FROM " + d.table + " WHERE id = 'mar'",
			"INSERT INTO " + d.table + " (" + columnNames() + ") SELECT " + columns + " FROM " + d.table + " WHERE id = 'feb'",
			"DELETE FROM " + d.closed,
			"UPDATE " + d.closed + " SET csv_sha256 = ''",
			"UPDATE " + d.closed + " SET row_count = 7",
		} {
			if err := exec(text); err == nil || !strings.Contains(err.Error(), "closed month") && !strings.Contains(err.Error(), "month is closed") {
				t.Errorf("%s: %v", text, err)
			}
		}
		if after := allRows(t, l); !reflect.DeepEqual(after, before) {
			t.Errorf("rows %s", showRows(after))
		}
		for _, text := range []string{
			"UPDATE " + d.table + " SET output_cost = output_cost + 1 WHERE id = 'apr'",
			"DELETE FROM " + d.table + " WHERE id = 'apr'",
		} {
			if err := exec(text); err != nil {
				t.Errorf("in an open month, %s: %v", text, err)
			}
		}
	})
}

func TestMonthNumbers(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		at := time.Unix(rapid.Int64Range(-60_000_000_000, 200_000_000_000).Draw(t, "seconds"), rapid.Int64Range(0, 999_999_999).Draw(t, "ns"))
		month := tenancy.Month(at)
		if at.Before(month) || !at.Before(month.AddDate(0, 1, 0)) || !monthOf(monthNumber(at)).Equal(month) {
			t.Fatalf("%v is in %v, %d", at, month, monthNumber(at))
		}
		if got := monthOf(nextMonth(at)); got.Before(at) || !got.AddDate(0, -1, 0).Before(at) {
			t.Fatalf("the first month from %v on is %v", at, got)
		}
	})
}

func TestCharges(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		word := rapid.StringMatching(`[a-z0-9]*`)
		var charges []tenancy.Charge
		for range rapid.IntRange(0, 5).Draw(t, "n") {
			c := tenancy.Charge{Unit: word.Draw(t, "unit"), Window: word.Draw(t, "window"), Amount: rapid.Int64().Draw(t, "amount")}
			copy(c.Counter[:], rapid.SliceOfN(rapid.Byte(), 16, 16).Draw(t, "counter"))
			c.Period = time.Unix(rapid.Int64Range(-1<<40, 1<<40).Draw(t, "period"), 0).UTC()
			charges = append(charges, c)
		}
		got, err := parseCharges(formatCharges(charges))
		if err != nil || !reflect.DeepEqual(got, charges) {
			t.Fatalf("%q reads as %+v (%v), want %+v", formatCharges(charges), got, err, charges)
		}
	})
	for _, bad := range []string{"x", "a/b/c/1/1", strings.Repeat("0", 32) + "/u/w/x/1", strings.Repeat("0", 32) + "/u/w/1/", strings.Repeat("g", 32) + "/u/w/1/1", " "} {
		if got, err := parseCharges(bad); err == nil {
			t.Errorf("%q reads as %+v", bad, got)
		}
	}
}

func FuzzCharges(f *testing.F) {
	f.Add("000102030405060708090a0b0c0d0e0f/cost/month/1772323200/41")
	f.Fuzz(func(t *testing.T, text string) {
		charges, err := parseCharges(text)
		if err != nil {
			return
		}
		again, err := parseCharges(formatCharges(charges))
		if err != nil || !reflect.DeepEqual(again, charges) {
			t.Fatalf("%q reads as %+v, then as %+v (%v)", text, charges, again, err)
		}
	})
}
