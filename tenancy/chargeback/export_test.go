package chargeback

import (
	"bytes"
	"context"
	"encoding/csv"
	"errors"
	"fmt"
	"iter"
	"math/rand/v2"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/sluicegate/sluice/tenancy"
)

// books is a ledger in memory. Its totals are summed apart from its rows, and
// can be made wrong.
type books struct {
	rows  []*tenancy.Row
	err   error
	wrong func([]tenancy.Totals) []tenancy.Totals
}

func (b *books) Rows(_ context.Context, from, to time.Time) iter.Seq2[*tenancy.Row, error] {
	return func(yield func(*tenancy.Row, error) bool) {
		for _, row := range b.rows {
			if end := row.End(); !end.Before(from) && end.Before(to) && !yield(row, nil) {
				return
			}
		}
		if b.err != nil {
			yield(nil, b.err)
		}
	}
}

func (b *books) Totals(_ context.Context, from, to time.Time) ([]tenancy.Totals, error) {
	byCurrency := make(map[string]*tenancy.Totals)
	for _, row := range b.rows {
		if end := row.End(); end.Before(from) || !end.Before(to) {
			continue
		}
		if byCurrency[row.Currency] == nil {
			byCurrency[row.Currency] = &tenancy.Totals{Currency: row.Currency}
		}
		byCurrency[row.Currency].Add(row)
	}
	var out []tenancy.Totals
	for _, t := range byCurrency {
		out = append(out, *t)
	}
	slices.SortFunc(out, func(a, b tenancy.Totals) int { return strings.Compare(a.Currency, b.Currency) })
	if b.wrong != nil {
		out = b.wrong(out)
	}
	return out, nil
}

var march = date(2026, 3, 1)

func sampleRows(t testing.TB) []*tenancy.Row {
	t.Helper()
	p := table(t, sampleTable)
	row := func(tenant, team, model string, start time.Time, in, cached, out int64, flags tenancy.Flags) *tenancy.Row {
		r := &tenancy.Row{
			ID: fmt.Sprint(tenant, model, start, in), Tenant: tenant, Team: team, Model: model, Pool: "a", Class: "interactive",
			Outcome: tenancy.OutcomeCompleted, Start: start, Duration: time.Second,
			InputTokens: in, CachedTokens: cached, OutputTokens: out, Flags: flags,
		}
		_ = p.Cost(r) // an unpriced model is one of the samples
		return r
	}
	return []*tenancy.Row{
		row("acme", "search", "qwen", march, 900, 600, 250, 0),
		row("acme", "search", "qwen", march.Add(time.Hour), 7, 0, 3, tenancy.FlagCachedUnknown),
		row("acme", "ads, \"quoted\"", "qwen", march.Add(2*time.Hour), 1000, 0, 0, 0),
		row("globex", "=cmd|' /C calc'!A0", "mist", march.Add(12*time.Hour), 5_000_000, 1_000_000, 2_500_000, 0),
		row("globex", "@team", "dear", march.Add(48*time.Hour), 10, 0, 5, 0),
		row("globex", "", "qwen", date(2026, 3, 31).Add(24*time.Hour-time.Second), 1, 0, 1, 0), // ends in April
		row("globex", "", "qwen", march.Add(-time.Second), 2, 0, 2, 0),                         // ends in March
		{ID: "denied", Tenant: "acme", Outcome: tenancy.OutcomeDenied, Start: march, Status: 403},
	}
}

func export(t testing.TB, b Source, period string) string {
	t.Helper()
	var buf bytes.Buffer
	if err := Export(context.Background(), b, period, &buf); err != nil {
		t.Fatal(err)
	}
	return buf.String()
}

// The file is the format's contract with finance: a difference here is a change
// for them.
func TestExportGolden(t *testing.T) {
	got := export(t, &books{rows: sampleRows(t)}, "2026-03")
	want, err := os.ReadFile("testdata/export-2026-03.csv")
	if err != nil {
		t.Fatal(err)
	}
	if got != string(want) {
		t.Errorf("export differs from testdata/export-2026-03.csv:\n%s", got)
	}
}

func TestExportDependsOnTheRowsAlone(t *testing.T) {
	rows := sampleRows(t)
	want := export(t, &books{rows: rows}, "2026-03")
	rng := rand.New(rand.NewPCG(3, 4))
	for range 20 {
		rng.Shuffle(len(rows), func(i, j int) { rows[i], rows[j] = rows[j], rows[i] })
		if got := export(t, &books{rows: rows}, "2026-03"); got != want {
			t.Fatal("another order of rows gives other bytes")
		}
	}
}

func TestExportOfNothing(t *testing.T) {
	if got, want := export(t, &books{}, "2026-03"), strings.Join(header, ",")+"\n"; got != want {
		t.Errorf("got %q", got)
	}
}

func TestExportIsSafeInASpreadsheet(t *testing.T) {
	for _, bad := range []string{"=1+1", "+1", "-1", "@x", "\t=1", "\r=1", "\n=1", "＝1", "＠x"} {
		row := &tenancy.Row{
			ID: "r", Tenant: bad, Team: bad, Model: bad, Pool: bad, Class: bad, Outcome: tenancy.OutcomeCompleted,
			Start: march, InputTokens: 1,
		}
		text := export(t, &books{rows: []*tenancy.Row{row}}, "2026-03")
		records, err := csv.NewReader(strings.NewReader(text)).ReadAll()
		if err != nil {
			t.Fatal(err)
		}
		for i, value := range records[1] {
			if cell(value) != value {
				t.Errorf("column %s of %q begins like a formula", header[i], value)
			}
		}
	}
	if cell("plain") != "plain" || cell("") != "" || cell("ünder") != "ünder" {
		t.Error("plain text was changed")
	}
}

func TestExportRefuses(t *testing.T) {
	rows := sampleRows(t)
	f := func(name string, b *books, period, want string, is error) {
		t.Helper()
		var buf bytes.Buffer
		err := Export(t.Context(), b, period, &buf)
		if err == nil || !strings.Contains(err.Error(), want) || is != nil && !errors.Is(err, is) {
			t.Errorf("%s: %v, want %q", name, err, want)
		}
		if buf.Len() != 0 {
			t.Errorf("%s: something was written", name)
		}
	}
	for _, period := range []string{"", "2026", "2026-13", "2026-3", "2026-03-01", "March"} {
		f("period", &books{}, period, "should be a month like 2026-03", nil)
	}
	f("failing ledger", &books{rows: rows, err: errors.New("disk on fire")}, "2026-03", "disk on fire", nil)
	change := func(edit func(*tenancy.Totals)) func([]tenancy.Totals) []tenancy.Totals {
		return func(ts []tenancy.Totals) []tenancy.Totals { edit(&ts[len(ts)-1]); return ts }
	}
	for name, edit := range map[string]func(*tenancy.Totals){
		"input tokens":  func(t *tenancy.Totals) { t.InputTokens++ },
		"cached tokens": func(t *tenancy.Totals) { t.CachedTokens-- },
		"output tokens": func(t *tenancy.Totals) { t.OutputTokens++ },
		"input cost":    func(t *tenancy.Totals) { t.Costs.Input++ },
		"cached cost":   func(t *tenancy.Totals) { t.Costs.CachedInput++ },
		"output cost":   func(t *tenancy.Totals) { t.Costs.Output-- },
		"rows":          func(t *tenancy.Totals) { t.Rows++ },
		"currency":      func(t *tenancy.Totals) { t.Currency = "XXX" },
	} {
		f(name, &books{rows: rows, wrong: change(edit)}, "2026-03", "does not equal", ErrUnequal)
	}
	f("missing currency", &books{rows: rows, wrong: func(ts []tenancy.Totals) []tenancy.Totals { return ts[1:] }}, "2026-03", "currency that the totals lack", ErrUnequal)
	huge := &tenancy.Row{ID: "h", Tenant: "t", Outcome: tenancy.OutcomeCompleted, Start: march, InputTokens: 1 << 62}
	f("overflow", &books{rows: []*tenancy.Row{huge, huge}}, "2026-03", "passes 64 bits", nil)
}

// However the rows are spread, the lines add up to them, to the micro-unit.
func TestPropertyExportAddsUp(t *testing.T) {
	p := table(t, sampleTable)
	rapid.Check(t, func(t *rapid.T) {
		var rows []*tenancy.Row
		for i := range rapid.IntRange(0, 40).Draw(t, "rows") {
			in := rapid.Int64Range(0, 5000).Draw(t, "input")
			row := &tenancy.Row{
				ID: fmt.Sprint(i), Outcome: tenancy.OutcomeCompleted,
				Tenant:       rapid.SampledFrom([]string{"a", "b"}).Draw(t, "tenant"),
				Model:        rapid.SampledFrom([]string{"qwen", "free", "mist", "dear"}).Draw(t, "model"),
				Start:        march.Add(time.Duration(rapid.Int64Range(-3600, 31*24*3600).Draw(t, "start")) * time.Second),
				Duration:     time.Duration(rapid.Int64Range(0, 7200).Draw(t, "duration")) * time.Second,
				InputTokens:  in,
				CachedTokens: rapid.Int64Range(0, in).Draw(t, "cached"),
				OutputTokens: rapid.Int64Range(0, 5000).Draw(t, "output"),
			}
			_ = p.Cost(row) // some have no price
			rows = append(rows, row)
		}
		b := &books{rows: rows}
		var buf bytes.Buffer
		if err := Export(context.Background(), b, "2026-03", &buf); err != nil {
			t.Fatal(err)
		}
		records, err := csv.NewReader(&buf).ReadAll()
		if err != nil {
			t.Fatal(err)
		}
		got := make(map[string]int64)
		for _, rec := range records[1:] {
			cost, err := parseDecimal(rec[colCost])
			if err != nil {
				t.Fatal(err)
			}
			got[rec[colCurrency]] += cost
		}
		want := make(map[string]int64)
		totals, _ := b.Totals(context.Background(), march, march.AddDate(0, 1, 0))
		for _, total := range totals {
			if total.Costs.Total() != 0 || got[total.Currency] != 0 {
				want[total.Currency] = total.Costs.Total()
			}
		}
		for c, v := range got {
			if v == 0 {
				delete(got, c)
			}
		}
		for c, v := range want {
			if v == 0 {
				delete(want, c)
			}
		}
		if !reflect.DeepEqual(got, want) {
			t.Fatalf("lines sum to %v, rows to %v", got, want)
		}
	})
}

func TestDecimal(t *testing.T) {
	for micro, want := range map[int64]string{0: "0.000000", 1: "0.000001", 999_999: "0.999999", 1_000_000: "1.000000", 9_223_372_036_854_775_807: "9223372036854.775807"} {
		if got := decimal(micro); got != want {
			t.Errorf("decimal(%d) is %s, want %s", micro, got, want)
		}
		if back, err := parseDecimal(want); err != nil || back != micro {
			t.Errorf("parseDecimal(%s) is %d, %v", want, back, err)
		}
	}
	for _, bad := range []string{"", "1", "1.5", "x.000000"} {
		if _, err := parseDecimal(bad); err == nil {
			t.Errorf("%q was read", bad)
		}
	}
}
