package main

import (
	"bytes"
	"database/sql"
	"encoding/csv"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/sluicegate/sluice/tenancy"
	"github.com/sluicegate/sluice/tenancy/ledger"
)

// chargebackAt runs `sluice chargeback` at a time.
func chargebackAt(t *testing.T, now time.Time, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	var out, diag bytes.Buffer
	code = execute(t.Context(), func() time.Time { return now }, append([]string{"chargeback"}, args...), strings.NewReader(""), &out, &diag)
	return code, out.String(), diag.String()
}

// A closed month exports the same bytes for good: after late rows, after
// corrections, with another configuration, out of an archive. What came late is in
// the next month.
func TestClosedMonthIsTheSameForGood(t *testing.T) {
	t.Chdir(t.TempDir())
	makeLedger(t, "ledger.db")
	december := time.Date(2026, 12, 1, 0, 0, 0, 0, time.UTC)
	january := december.AddDate(0, 1, 0)
	must := func(now time.Time, args ...string) string {
		t.Helper()
		code, out, diag := chargebackAt(t, now, args...)
		if code != exitOK {
			t.Fatalf("%v: exit code %d: %s", args, code, diag)
		}
		return out
	}
	closing := []string{"close", "--ledger", "ledger.db", "--period", "2026-11", "--by", "j.doe"}
	if code, _, diag := chargebackAt(t, december.Add(23*time.Hour), closing...); code != exitFailed || !strings.Contains(diag, "before 2026-12-02T00:00:00Z") {
		t.Errorf("too early: %d %s", code, diag)
	}
	settling := must(december, "export", "--ledger", "ledger.db", "--period", "2026-11")
	out := must(january, closing...)
	if want := regexp.MustCompile(`(?s)2026-11: closed by j\.doe, 5 rows\nsha256 of the CSV  [0-9a-f]{64}\nsha256 of the JSON [0-9a-f]{64}\n$`); !want.MatchString(out) {
		t.Errorf("closing says %s", out)
	}
	forms := map[string][]string{"csv": nil, "json": {"--format", "json"}, "spreadsheet": {"--spreadsheet"}}
	export := func(file string, more ...string) map[string]string {
		t.Helper()
		got := make(map[string]string)
		for name, args := range forms {
			args = append([]string{"export", "--ledger", file, "--period", "2026-11"}, append(args, more...)...)
			got[name] = must(january, args...)
		}
		return got
	}
	want := export("ledger.db")
	if plain := strings.ReplaceAll(want["csv"], ",Closed\n", ",Settling\n"); plain != settling {
		t.Errorf("closing changed more than the state:\n%s\n%s", settling, plain)
	}
	if again := must(january.AddDate(0, 1, 0), closing...); again != "2026-11: was closed on 2027-01-01T00:00:00Z by j.doe\n" {
		t.Errorf("closing again says %q", again)
	}

	l, err := ledger.Open("ledger.db", ledger.Options{})
	if err != nil {
		t.Fatal(err)
	}
	late := &tenancy.Row{
		ID: "late", Tenant: "acme", Model: "tiny", Pool: "general", Class: "standard", Outcome: tenancy.OutcomeCompleted,
		Start: december.Add(-time.Hour), InputTokens: 10, Currency: "USD", Prices: tenancy.Prices{Input: 150_000}, Costs: tenancy.Costs{Input: 2},
	}
	if err := l.Record(t.Context(), late); err != nil {
		t.Fatal(err)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	must(january, "correct", "--ledger", "ledger.db", "--row", "r1", "--output-tokens", "200", "--reason", "ticket 7", "--by", "k.roe")
	if got := export("ledger.db"); fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("the closed month exports otherwise:\n%s", got["csv"])
	}
	records, err := csv.NewReader(strings.NewReader(must(january, "export", "--ledger", "ledger.db", "--period", "2026-12"))).ReadAll()
	if err != nil {
		t.Fatal(err)
	}
	var corrections []string
	column := make(map[string]int)
	for i, name := range records[0] {
		column[name] = i
	}
	for _, rec := range records[1:] {
		if rec[column["ChargeClass"]] == "Correction" {
			corrections = append(corrections, strings.Join([]string{
				rec[column["BillingPeriodStart"]][:7], rec[column["ChargePeriodStart"]][:7], rec[column["SkuMeter"]],
				rec[column["ConsumedQuantity"]], rec[column["BilledCost"]], rec[column["x_Reason"]],
			}, " "))
		}
	}
	if got := strings.Join(corrections, "\n"); got != "2026-12 2026-11 input 10 0.000002 \n2026-12 2026-11 output -50 -0.000030 ticket 7 (k.roe)" {
		t.Errorf("December's corrections:\n%s", got)
	}

	if err := os.Mkdir("archive", 0o700); err != nil {
		t.Fatal(err)
	}
	var diag bytes.Buffer
	if code := execute(t.Context(), func() time.Time { return january }, []string{"ledger", "archive", "--ledger", "ledger.db", "--period", "2026-11", "--to", "archive"}, strings.NewReader(""), &diag, &diag); code != exitOK {
		t.Fatal(diag.String())
	}
	archived := filepath.Join("archive", "ledger-2026-11.db")
	if got := export(archived); fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("the archive exports otherwise:\n%s", got["csv"])
	}

	// Somebody who takes the triggers away is found out.
	db, err := sql.Open("sqlite", archived)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := db.Exec("DROP TRIGGER requests_update_closed; UPDATE requests SET output_cost = output_cost + 1 WHERE id = 'r1'"); err != nil {
		t.Fatal(err)
	}
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	if code, out, diag := chargebackAt(t, january, "export", "--ledger", archived, "--period", "2026-11"); code != exitFailed || out != "" || !strings.Contains(diag, "is not the one that was closed on 2027-01-01T00:00:00Z by j.doe") {
		t.Errorf("a changed row: %d %s %s", code, out, diag)
	}
}

// A month is not closed while rows of it wait beside the ledger, or while a request
// of it has no end yet.
func TestCloseWaits(t *testing.T) {
	t.Chdir(t.TempDir())
	makeLedger(t, "ledger.db")
	january := time.Date(2027, 1, 1, 0, 0, 0, 0, time.UTC)
	l, err := ledger.Open("ledger.db", ledger.Options{})
	if err != nil {
		t.Fatal(err)
	}
	start := time.Date(2026, 11, 30, 23, 0, 0, 0, time.UTC)
	if err := l.Begin(t.Context(), &tenancy.Intent{ID: "open", Tenant: "acme", Start: start}); err != nil {
		t.Fatal(err)
	}
	closing := []string{"close", "--ledger", "ledger.db", "--period", "2026-11", "--by", "j.doe"}
	if code, _, diag := chargebackAt(t, january, closing...); code != exitFailed || !strings.Contains(diag, "1 request in flight since 2026-11-30T23:00:00Z") {
		t.Errorf("with a request in flight: %d %s", code, diag)
	}
	if err := l.Record(t.Context(), &tenancy.Row{ID: "open", Tenant: "acme", Outcome: tenancy.OutcomeCompleted, Start: start}); err != nil {
		t.Fatal(err)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}

	// The database is away for a moment: its row goes to the spool.
	db, err := sql.Open("sqlite", "ledger.db")
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	db.SetMaxOpenConns(1)
	if l, err = ledger.Open("ledger.db", ledger.Options{Patience: time.Millisecond, BusyTimeout: time.Millisecond, Retry: time.Hour}); err != nil {
		t.Fatal(err)
	}
	if _, err := db.Exec("BEGIN IMMEDIATE"); err != nil {
		t.Fatal(err)
	}
	if err := l.Record(t.Context(), &tenancy.Row{ID: "spooled", Tenant: "acme", Outcome: tenancy.OutcomeCompleted, Start: start, InputTokens: 1}); err != nil {
		t.Fatal(err)
	}
	if _, err := db.Exec("ROLLBACK"); err != nil {
		t.Fatal(err)
	}
	if code, _, diag := chargebackAt(t, january, closing...); code != exitFailed || !strings.Contains(diag, "1 row waits in the spool beside ledger.db") {
		t.Errorf("with a row in the spool: %d %s", code, diag)
	}
	if code, _, diag := chargebackAt(t, january, "export", "--ledger", "ledger.db", "--period", "2026-11"); code != exitOK || !strings.Contains(diag, "1 row waits in the spool beside ledger.db and not in the export") {
		t.Errorf("an export says %d %s", code, diag)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	if l, err = ledger.Open("ledger.db", ledger.Options{}); err != nil { // stores what was in the spool
		t.Fatal(err)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	if code, out, diag := chargebackAt(t, january, closing...); code != exitOK || !strings.Contains(out, "closed by j.doe, 7 rows") {
		t.Errorf("in the end: %d %s %s", code, out, diag)
	}
}

// Whoever exports or closes a month is told of rows that the database has refused:
// they are usage that is not charged.
func TestRefusedRowsAreTold(t *testing.T) {
	path := filepath.Join(t.TempDir(), "ledger.db")
	makeLedger(t, path)
	line := `{"At":"2026-12-01T00:00:00Z","Error":"no","Row":{"ID":"x","Tenant":"acme","Outcome":"completed","Start":"2026-%s-19T10:00:00Z","Duration":1}}` + "\n"
	if err := os.WriteFile(path+"-refused", fmt.Appendf(fmt.Appendf(nil, line, "11"), line, "10"), 0o600); err != nil {
		t.Fatal(err)
	}
	january := time.Date(2027, 1, 1, 0, 0, 0, 0, time.UTC)
	want := "2026-11: 1 row is in " + path + "-refused and not in the export"
	if code, _, said := chargebackAt(t, january, "export", "--ledger", path, "--period", "2026-11"); code != exitOK || !strings.Contains(said, want) {
		t.Errorf("export: %d %s", code, said)
	}
	if code, out, diag := chargebackAt(t, january, "close", "--ledger", path, "--period", "2026-11", "--by", "j.doe"); code != exitOK || !strings.Contains(out, want) {
		t.Errorf("close: %d %s%s", code, out, diag)
	}
}
