package chargeback

import (
	"bytes"
	"context"
	"encoding/csv"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"iter"
	"math/big"
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

// in reports whether a row belongs to [from, to).
func in(row *tenancy.Row, from, to time.Time) bool {
	at := row.End()
	if row.Late() {
		at = row.Period
	}
	return !at.Before(from) && at.Before(to)
}

func (b *books) Rows(_ context.Context, from, to time.Time) iter.Seq2[*tenancy.Row, error] {
	return func(yield func(*tenancy.Row, error) bool) {
		for _, row := range b.rows {
			if in(row, from, to) && !yield(row, nil) {
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
		if !in(row, from, to) {
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
	row := func(tenant, team, model string, start time.Time, in, cached, out int64, flags tenancy.Flags, more ...func(*tenancy.Row)) *tenancy.Row {
		r := &tenancy.Row{
			ID: fmt.Sprint(tenant, model, start, in), Tenant: tenant, Team: team, Model: model, Pool: "a", Class: "interactive",
			Outcome: tenancy.OutcomeCompleted, Start: start, Duration: time.Second,
			InputTokens: in, CachedTokens: cached, OutputTokens: out, Flags: flags,
		}
		for _, edit := range more {
			edit(r)
		}
		_ = p.Cost(r) // an unpriced model is one of the samples
		return r
	}
	late := func(r *tenancy.Row) *tenancy.Row { r.Period = march; return r }
	less := int64(150)
	fix, err := Correct(row("acme", "search", "qwen", march, 900, 600, 250, 0), nil, Change{OutputTokens: &less, Reason: "ticket 812", Author: "j.doe"})
	if err != nil {
		t.Fatal(err)
	}
	return []*tenancy.Row{
		row("acme", "search", "qwen", march, 900, 600, 250, 0),
		row("acme", "search", "qwen", march.Add(time.Hour), 7, 0, 3, tenancy.FlagCachedUnknown),
		row("acme", "ads, \"quoted\"", "qwen", march.Add(2*time.Hour), 1000, 0, 0, 0),
		row("globex", "=cmd|' /C calc'!A0", "mist", march.Add(12*time.Hour), 5_000_000, 1_000_000, 2_500_000, 0),
		row("globex", "@team", "dear", march.Add(48*time.Hour), 10, 0, 5, 0),
		row("globex", "", "qwen", date(2026, 3, 31).Add(24*time.Hour-time.Second), 1, 0, 1, 0), // ends in April
		row("globex", "", "qwen", march.Add(-time.Second), 2, 0, 2, 0),                         // ends in March
		row("acme", "search", "thinker-7b", march.Add(3*time.Hour), 40, 0, 100, 0, func(r *tenancy.Row) { r.ReasoningTokens, r.GPUTime = 60, 1_250_000_400 }),
		late(row("acme", "search", "qwen", march.Add(-time.Hour), 100, 10, 20, 0)),
		fix,
		{ID: "denied", Tenant: "acme", Outcome: tenancy.OutcomeDenied, Start: march, Status: 403},
	}
}

var terms = Terms{
	Format: FormatNow, BillingAccountID: "cc-4711", BillingAccountName: "Platform, \"shared\"", Currency: "USD",
	Provider: "Platform team", Publisher: "Sluice", InvoiceIssuer: "Platform team",
}

func statement(t testing.TB, b Source, period string) *Statement {
	t.Helper()
	s, err := NewStatement(context.Background(), b, period, terms, PeriodClosed)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func export(t testing.TB, b Source, period string) string {
	t.Helper()
	text, err := statement(t, b, period).CSV()
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// rewrite makes the golden files anew.
var rewrite = flag.Bool("rewrite", false, "write the golden files")

// The files are the format's contract with finance: a difference here is a change
// for them, and needs another number of the format.
func TestExportGolden(t *testing.T) {
	s := statement(t, &books{rows: sampleRows(t)}, "2026-03")
	for file, render := range map[string]func() ([]byte, error){
		"testdata/export-2026-03.csv": s.CSV, "testdata/export-2026-03.jsonl": s.JSON, "testdata/export-2026-03-spreadsheet.csv": s.Spreadsheet,
	} {
		got, err := render()
		if err != nil {
			t.Fatal(err)
		}
		if *rewrite {
			if err := os.WriteFile(file, got, 0o644); err != nil {
				t.Fatal(err)
			}
		}
		want, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(got, want) {
			t.Errorf("export differs from %s:\n%s", file, got)
		}
	}
	if s.Rows != 10 {
		t.Errorf("%d rows", s.Rows)
	}
}

// Both formats say the same, field by field, in the same order.
func TestFormatsAreOne(t *testing.T) {
	s := statement(t, &books{rows: sampleRows(t)}, "2026-03")
	text, err := s.CSV()
	if err != nil {
		t.Fatal(err)
	}
	asJSON, err := s.JSON()
	if err != nil {
		t.Fatal(err)
	}
	fromCSV, err := readCSV(text)
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSuffix(string(asJSON), "\n"), "\n")
	if len(lines) != len(fromCSV) {
		t.Fatalf("%d lines of JSON, %d of CSV", len(lines), len(fromCSV))
	}
	for i, l := range lines {
		at := 0
		for _, name := range header {
			next := strings.Index(l[at:], string(quoted(name))+":")
			if next < 0 {
				t.Fatalf("line %d lacks %s, or has it elsewhere", i, name)
			}
			at += next
		}
		var fields map[string]json.RawMessage
		if err := json.Unmarshal([]byte(l), &fields); err != nil || len(fields) != len(header) {
			t.Fatalf("line %d: %d fields, %v", i, len(fields), err)
		}
		for name, raw := range fields {
			var text string
			switch {
			case string(raw) == "null":
			case json.Unmarshal(raw, &text) == nil:
			default:
				text = string(raw)
			}
			if text != fromCSV[i][name] {
				t.Errorf("line %d, %s: JSON has %q, CSV %q", i, name, text, fromCSV[i][name])
			}
		}
	}
}

// What FOCUS wants of every line.
func TestLinesAreFocus(t *testing.T) {
	records, err := readCSV([]byte(export(t, &books{rows: sampleRows(t)}, "2026-03")))
	if err != nil {
		t.Fatal(err)
	}
	rat := func(s string) *big.Rat {
		r, ok := new(big.Rat).SetString(s)
		if !ok {
			t.Fatalf("%q is no number", s)
		}
		return r
	}
	mandatory := strings.Fields(`BilledCost BillingAccountId BillingAccountName BillingCurrency BillingPeriodEnd BillingPeriodStart
		ChargeCategory ChargeClass ChargeDescription ChargePeriodEnd ChargePeriodStart ContractedCost EffectiveCost InvoiceIssuerName
		ListCost PricingQuantity PricingUnit ProviderName PublisherName ServiceCategory ServiceName`)
	for _, name := range mandatory {
		if !slices.Contains(header, name) {
			t.Errorf("there is no column %s", name)
		}
	}
	corrections := 0
	for _, rec := range records {
		for _, name := range append(mandatory, "SkuId", "SkuPriceId", "ListUnitPrice", "ContractedUnitPrice", "ConsumedQuantity", "ConsumedUnit", "PricingCategory") {
			if rec[name] == "" && name != "ChargeClass" {
				t.Errorf("%s is null in %v", name, rec)
			}
		}
		if got := new(big.Rat).Mul(rat(rec["ListUnitPrice"]), rat(rec["PricingQuantity"])); got.Cmp(rat(rec["ListCost"])) != 0 {
			t.Errorf("ListCost %s is not %s × %s", rec["ListCost"], rec["ListUnitPrice"], rec["PricingQuantity"])
		}
		if got := new(big.Rat).Mul(rat(rec["ContractedUnitPrice"]), rat(rec["PricingQuantity"])); got.Cmp(rat(rec["ContractedCost"])) != 0 {
			t.Errorf("ContractedCost %s is not %s × %s", rec["ContractedCost"], rec["ContractedUnitPrice"], rec["PricingQuantity"])
		}
		if late := rec["ChargePeriodStart"] != rec["BillingPeriodStart"]; late != (rec["ChargeClass"] == "Correction") {
			t.Errorf("class %q of a charge of %s billed in %s", rec["ChargeClass"], rec["ChargePeriodStart"], rec["BillingPeriodStart"])
		}
		if rec["ChargeClass"] != "" {
			corrections++
		}
		for _, name := range []string{"Tags", "SkuPriceDetails"} {
			if !json.Valid([]byte(rec[name])) {
				t.Errorf("%s is no JSON: %s", name, rec[name])
			}
		}
	}
	if corrections == 0 {
		t.Error("no sample is a correction")
	}
}

func TestCurrencyOfUnpricedUsage(t *testing.T) {
	unpriced := &tenancy.Row{ID: "u", Tenant: "t", Outcome: tenancy.OutcomeCompleted, Start: march, InputTokens: 1}
	priced := func(currency string) *tenancy.Row {
		return &tenancy.Row{ID: currency, Tenant: "t", Outcome: tenancy.OutcomeCompleted, Start: march, InputTokens: 1, Currency: currency}
	}
	for _, c := range []struct {
		given, want string
		rows        []*tenancy.Row
	}{
		{"CHF", "CHF", []*tenancy.Row{unpriced, priced("EUR")}},
		{"", "EUR", []*tenancy.Row{unpriced, priced("EUR")}},
		{"", "XXX", []*tenancy.Row{unpriced, priced("EUR"), priced("USD")}},
		{"", "XXX", []*tenancy.Row{unpriced}},
	} {
		mine := terms
		mine.Currency = c.given
		s, err := NewStatement(t.Context(), &books{rows: c.rows}, "2026-03", mine, PeriodOpen)
		if err != nil {
			t.Fatal(err)
		}
		text, err := s.CSV()
		if err != nil {
			t.Fatal(err)
		}
		records, err := readCSV(text)
		if err != nil {
			t.Fatal(err)
		}
		if rec := records[0]; rec["BillingCurrency"] != c.want || rec["x_Unpriced"] != "true" || rec["x_PeriodState"] != "Open" {
			t.Errorf("given %q: %v", c.given, rec)
		}
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
	s := statement(t, &books{}, "2026-03")
	if got, want := export(t, &books{}, "2026-03"), strings.Join(header, ",")+"\n"; got != want {
		t.Errorf("got %q", got)
	}
	if got, err := s.JSON(); err != nil || len(got) != 0 {
		t.Errorf("JSON %q, %v", got, err)
	}
}

// Names are what they are; for a spreadsheet none begins like a formula.
func TestExportForASpreadsheet(t *testing.T) {
	for _, bad := range []string{"=1+1", "+1", "-1", "@x", "\t=1", "\r=1", "\n=1", "＝1", "＠x"} {
		row := &tenancy.Row{
			ID: "r", Tenant: bad, Team: bad, Model: bad, Pool: bad, Class: bad, Reason: bad, Outcome: tenancy.OutcomeCompleted,
			Start: march, InputTokens: 1,
		}
		s := statement(t, &books{rows: []*tenancy.Row{row}}, "2026-03")
		text, err := s.Spreadsheet()
		if err != nil {
			t.Fatal(err)
		}
		records, err := csv.NewReader(bytes.NewReader(text)).ReadAll()
		if err != nil {
			t.Fatal(err)
		}
		for i, value := range records[1] {
			if cell(value) != value {
				t.Errorf("column %s of %q begins like a formula", header[i], value)
			}
		}
		plain, err := readCSV([]byte(export(t, &books{rows: []*tenancy.Row{row}}, "2026-03")))
		if err != nil {
			t.Fatal(err)
		}
		if got := plain[0]["SubAccountId"]; got != bad {
			t.Errorf("the id %q is exported as %q", bad, got)
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
		err := Export(t.Context(), b, period, terms, PeriodClosed, &buf)
		if err == nil || !strings.Contains(err.Error(), want) || is != nil && !errors.Is(err, is) {
			t.Errorf("%s: %v, want %q", name, err, want)
		}
		if buf.Len() != 0 {
			t.Errorf("%s: something was written", name)
		}
		if s, err := NewStatement(t.Context(), b, period, terms, PeriodClosed); err == nil {
			if text, err := s.JSON(); err == nil {
				t.Errorf("%s: as JSON it is %s", name, text)
			}
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
		"input tokens":     func(t *tenancy.Totals) { t.InputTokens++ },
		"cached tokens":    func(t *tenancy.Totals) { t.CachedTokens-- },
		"output tokens":    func(t *tenancy.Totals) { t.OutputTokens++ },
		"reasoning tokens": func(t *tenancy.Totals) { t.ReasoningApart++ },
		"GPU time":         func(t *tenancy.Totals) { t.GPUTime += time.Microsecond },
		"input cost":       func(t *tenancy.Totals) { t.Costs.Input++ },
		"cached cost":      func(t *tenancy.Totals) { t.Costs.CachedInput++ },
		"output cost":      func(t *tenancy.Totals) { t.Costs.Output-- },
		"reasoning cost":   func(t *tenancy.Totals) { t.Costs.Reasoning++ },
		"GPU cost":         func(t *tenancy.Totals) { t.Costs.GPU++ },
		"rows":             func(t *tenancy.Totals) { t.Rows++ },
		"currency":         func(t *tenancy.Totals) { t.Currency = "XXX" },
	} {
		f(name, &books{rows: rows, wrong: change(edit)}, "2026-03", "does not equal", ErrUnequal)
	}
	f("missing currency", &books{rows: rows, wrong: func(ts []tenancy.Totals) []tenancy.Totals { return ts[1:] }}, "2026-03", "currency that the totals lack", ErrUnequal)
	huge := &tenancy.Row{ID: "h", Tenant: "t", Outcome: tenancy.OutcomeCompleted, Start: march, InputTokens: 1 << 62}
	f("overflow", &books{rows: []*tenancy.Row{huge, huge}}, "2026-03", "passes 64 bits", nil)
	old := terms
	old.Format = 7
	if _, err := NewStatement(t.Context(), &books{}, "2026-03", old, PeriodClosed); err == nil || !strings.Contains(err.Error(), "format 7") {
		t.Errorf("another format: %v", err)
	}
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
				GPUTime:      time.Duration(rapid.Int64Range(0, 1<<40).Draw(t, "gpu")),
			}
			row.ReasoningTokens = rapid.Int64Range(0, row.OutputTokens).Draw(t, "reasoning")
			if rapid.Bool().Draw(t, "late") {
				row.Period = march
			}
			_ = p.Cost(row)                  // some have no price
			if rapid.Bool().Draw(t, "old") { // of a program that knew three meters
				row.Flags &^= tenancy.FlagReasoningApart
				row.Prices.Reasoning, row.Costs.Output, row.Costs.Reasoning = 0, Cost(row.OutputTokens, row.Prices.Output, row.Discount), 0
			}
			rows = append(rows, row)
			zero := int64(0)
			if fix, err := Correct(row, nil, Change{OutputTokens: &zero, ReasoningTokens: &zero, Reason: "r", Author: "a"}); err == nil {
				fix.Period = row.Period
				rows = append(rows, fix)
			}
		}
		b := &books{rows: rows}
		st, err := NewStatement(context.Background(), b, "2026-03", terms, PeriodClosed)
		if err != nil {
			t.Fatal(err)
		}
		text, err := st.CSV()
		if err != nil {
			t.Fatal(err)
		}
		if _, err := st.JSON(); err != nil {
			t.Fatal(err)
		}
		records, err := readCSV(text)
		if err != nil {
			t.Fatal(err)
		}
		got := make(map[string]int64)
		for _, rec := range records {
			cost, err := parseDecimal(rec["BilledCost"])
			if err != nil {
				t.Fatal(err)
			}
			currency := rec["BillingCurrency"]
			if rec["x_Unpriced"] == "true" {
				currency = ""
			}
			got[currency] += cost
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
	for micro, want := range map[int64]string{0: "0.000000", 1: "0.000001", -1: "-0.000001", -1_500_000: "-1.500000", 999_999: "0.999999", 1_000_000: "1.000000", 9_223_372_036_854_775_807: "9223372036854.775807"} {
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

func TestProduct(t *testing.T) {
	for _, c := range []struct {
		places  int
		factors []int64
		want    string
	}{
		{12, []int64{150_000_000_000}, "0.150000"},
		{12, []int64{1}, "0.000000000001"},
		{12, []int64{-15, 10}, "-0.00000000015"},
		{18, []int64{1 << 62, 1 << 59}, "2658455991569831745.807614120560689152"},
		{6, []int64{0}, "0.000000"},
	} {
		if got := product(c.places, c.factors...); got != c.want {
			t.Errorf("product(%d, %v) is %s, want %s", c.places, c.factors, got, c.want)
		}
	}
}
