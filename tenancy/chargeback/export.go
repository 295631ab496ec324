package chargeback

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/sluicegate/sluice/tenancy"
)

// Source is where an export reads from; ledger.Ledger, Reader and Snapshot are
// sources. While rows are being added, use a Snapshot: the export compares
// Rows with Totals.
type Source interface {
	// Rows yields the rows that belong to [from, to).
	Rows(ctx context.Context, from, to time.Time) iter.Seq2[*tenancy.Row, error]
	// Totals sums the same rows by currency, computed independently of Rows.
	Totals(ctx context.Context, from, to time.Time) ([]tenancy.Totals, error)
}

// ErrUnequal means that the sums of an export and of the ledger differ.
var ErrUnequal = errors.New("the export does not equal the ledger")

// PeriodState says how final a month is. It is in every line of an export.
type PeriodState string

// States of a month.
const (
	// PeriodOpen is a month that is not over.
	PeriodOpen PeriodState = "Open"
	// PeriodSettling is over, but late rows may still be booked in it.
	PeriodSettling PeriodState = "Settling"
	// PeriodClosed does not change any more.
	PeriodClosed PeriodState = "Closed"
)

// FormatNow is the format of exports that this program writes. The bytes of a
// format never change; another order, column or form of a number is a new one.
const FormatNow = 1

// Terms are what an export says beside the ledger's rows.
type Terms struct {
	// Format is FormatNow, or the one that a month was closed in.
	Format int `json:"format"`
	// BillingAccountID and BillingAccountName are whom the charges are billed to.
	BillingAccountID   string `json:"billingAccountId"`
	BillingAccountName string `json:"billingAccountName"`
	// Currency is that of usage without a price. Empty: the one of all other lines,
	// or XXX, the code of no currency, if they have none or several.
	Currency string `json:"currency"`
	// Provider makes the service available, Publisher has made it, InvoiceIssuer
	// bills for it. FOCUS takes charges of which the issuer is not the provider for
	// those of a marketplace, of which nothing is billed here.
	Provider      string `json:"provider"`
	Publisher     string `json:"publisher"`
	InvoiceIssuer string `json:"invoiceIssuer"`
}

// DefaultTerms are those of an export that nobody has said anything about.
func DefaultTerms() Terms {
	return Terms{
		Format: FormatNow, BillingAccountID: "sluice", BillingAccountName: "Sluice",
		Provider: "Sluice", Publisher: "Sluice", InvoiceIssuer: "Sluice",
	}
}

// Statement is the charges of a month: one line for each tenant, team, model,
// pool, class, meter, unit price, discount and month of usage that has a quantity
// or a cost, and for each reason of a correction, in that order.
type Statement struct {
	// Rows is how many rows of the ledger were summed.
	Rows int64

	terms    Terms
	state    PeriodState
	from, to time.Time
	currency string // of usage without a price
	lines    []*line
	totals   []tenancy.Totals
}

// NewStatement sums the rows that are booked in a month (YYYY-MM, UTC).
func NewStatement(ctx context.Context, rows Source, period string, terms Terms, state PeriodState) (*Statement, error) {
	from, to, err := parsePeriod(period)
	if err != nil {
		return nil, err
	}
	if terms.Format != FormatNow {
		return nil, fmt.Errorf("cannot export %s: it was closed in format %d of the export, and this program writes format %d: use the program that closed it", period, terms.Format, FormatNow)
	}
	s := &Statement{terms: terms, state: state, from: from, to: to}
	if err := s.gather(ctx, rows); err != nil {
		return nil, fmt.Errorf("cannot export %s: %w", period, err)
	}
	if s.totals, err = rows.Totals(ctx, from, to); err != nil {
		return nil, fmt.Errorf("cannot export %s: %w", period, err)
	}
	s.currency = cmp.Or(terms.Currency, soleCurrency(s.lines))
	return s, nil
}

// CSV renders the statement with LF line ends. Columns have their FOCUS 1.2 names;
// those of our own begin with x_. BilledCost and EffectiveCost are the ledger's
// sums, decimals with six places, exact to the micro-unit: of requests' costs, each
// rounded as the package comment says. ListCost and ContractedCost are quantity ×
// unit price, exact, and may differ from them by those roundings.
//
// The bytes depend on the rows, the terms and the state alone. The sums over the
// finished lines, read back, are compared with the source's totals: unless tokens,
// GPU time and costs agree to the unit, the error is ErrUnequal.
func (s *Statement) CSV() ([]byte, error) { return s.render(writeCSV, readCSV) }

// JSON is as CSV, as one object a line, with the same fields in the same order.
func (s *Statement) JSON() ([]byte, error) { return s.render(writeJSON, readJSON) }

// Spreadsheet is as CSV, but for texts that a spreadsheet would take for a formula:
// they get an apostrophe in front, and so do ids that begin like one.
func (s *Statement) Spreadsheet() ([]byte, error) { return s.render(writeSpreadsheet, readCSV) }

func (s *Statement) render(write func([][]value) ([]byte, error), read func([]byte) ([]map[string]string, error)) ([]byte, error) {
	records := make([][]value, len(s.lines))
	for i, l := range s.lines {
		records[i] = s.record(l)
	}
	text, err := write(records)
	if err == nil {
		err = s.verify(text, read)
	}
	if err != nil {
		return nil, fmt.Errorf("cannot export %s: %w", s.from.Format("2006-01"), err)
	}
	return text, nil
}

// Export writes a statement as CSV, or nothing.
func Export(ctx context.Context, rows Source, period string, terms Terms, state PeriodState, w io.Writer) error {
	s, err := NewStatement(ctx, rows, period, terms, state)
	if err != nil {
		return err
	}
	text, err := s.CSV()
	if err != nil {
		return err
	}
	if _, err := w.Write(text); err != nil {
		return fmt.Errorf("cannot write the export of %s: %w", period, err)
	}
	return nil
}

// parsePeriod returns the month's bounds, [from, to).
func parsePeriod(period string) (from, to time.Time, err error) {
	from, err = time.Parse("2006-01", period)
	if err != nil {
		return from, to, fmt.Errorf("cannot read the period %q: it should be a month like 2026-03", period)
	}
	return from, from.AddDate(0, 1, 0), nil
}

// lineKey is what a line of the export stands for.
type lineKey struct {
	tenant, team, model, pool, class, meter, currency string
	price, discount                                   int64
	used                                              time.Time // month of the usage
	reason                                            string    // of a correction
}

func (a lineKey) compare(b lineKey) int {
	return cmp.Or(
		strings.Compare(a.tenant, b.tenant), strings.Compare(a.team, b.team),
		strings.Compare(a.model, b.model), strings.Compare(a.pool, b.pool),
		strings.Compare(a.class, b.class), strings.Compare(a.meter, b.meter),
		strings.Compare(a.currency, b.currency), cmp.Compare(a.price, b.price), cmp.Compare(a.discount, b.discount),
		a.used.Compare(b.used), strings.Compare(a.reason, b.reason),
	)
}

type line struct {
	lineKey
	requests, quantity, cost int64
}

// gather sums the rows of the month into lines, in order.
func (s *Statement) gather(ctx context.Context, rows Source) error {
	byKey := make(map[lineKey]*line)
	for row, err := range rows.Rows(ctx, s.from, s.to) {
		if err != nil {
			return err
		}
		s.Rows++
		used := s.from
		if row.Late() {
			used = tenancy.Month(row.End())
		}
		reason := row.Reason
		if row.Author != "" {
			reason += " (" + row.Author + ")"
		}
		for _, m := range row.Meters() {
			if m.Quantity == 0 && m.Cost == 0 {
				continue
			}
			key := lineKey{row.Tenant, row.Team, row.Model, row.Pool, row.Class, m.Name, row.Currency, m.Price, row.Discount, used, reason}
			l := byKey[key]
			if l == nil {
				l = &line{lineKey: key}
				byKey[key] = l
			}
			if !addTo(&l.quantity, m.Quantity) || !addTo(&l.cost, m.Cost) {
				return fmt.Errorf("the sum of %s of tenant %q passes 64 bits", m.Name, row.Tenant)
			}
			l.requests++
		}
	}
	for _, l := range byKey {
		s.lines = append(s.lines, l)
	}
	slices.SortFunc(s.lines, func(a, b *line) int { return a.compare(b.lineKey) })
	return nil
}

// addTo adds unless the sum passes 64 bits.
func addTo(sum *int64, n int64) bool {
	if n > 0 && *sum > math.MaxInt64-n || n < 0 && *sum < math.MinInt64-n {
		return false
	}
	*sum += n
	return true
}

// noCurrency is ISO 4217's code of no currency.
const noCurrency = "XXX"

func soleCurrency(lines []*line) string {
	sole := ""
	for _, l := range lines {
		if l.currency != "" && sole != "" && l.currency != sole {
			return noCurrency
		}
		sole = cmp.Or(sole, l.currency)
	}
	return cmp.Or(sole, noCurrency)
}

// verify reads an export back and compares its sums with the ledger's.
func (s *Statement) verify(text []byte, read func([]byte) ([]map[string]string, error)) error {
	records, err := read(text)
	if err != nil {
		return err
	}
	sums := make(map[string]*tenancy.Totals)
	for _, rec := range records {
		if err := addRecord(sums, rec); err != nil {
			return err
		}
	}
	count := s.Rows
	for _, want := range s.totals {
		count -= want.Rows
		got := sums[want.Currency]
		if got == nil {
			got = &tenancy.Totals{}
		}
		delete(sums, want.Currency)
		if err := equal(want.Currency, got, &want); err != nil {
			return err
		}
	}
	if len(sums) > 0 {
		return fmt.Errorf("%w: it has a currency that the totals lack", ErrUnequal)
	}
	if count != 0 {
		return fmt.Errorf("%w: the rows number %d more than the totals count; was a row added meanwhile? Use a snapshot", ErrUnequal, count)
	}
	return nil
}

// addRecord adds what one line says to the sums of its currency.
func addRecord(sums map[string]*tenancy.Totals, rec map[string]string) error {
	currency := rec["BillingCurrency"]
	if rec["x_Unpriced"] == "true" {
		currency = ""
	}
	t := sums[currency]
	if t == nil {
		t = &tenancy.Totals{}
		sums[currency] = t
	}
	cost, err := parseDecimal(rec["BilledCost"])
	if err != nil {
		return err
	}
	quantity, err := parseQuantity(rec["SkuMeter"], rec["ConsumedQuantity"])
	if err != nil {
		return err
	}
	switch rec["SkuMeter"] {
	case tenancy.MeterInput:
		t.InputTokens += quantity
		t.Costs.Input += cost
	case tenancy.MeterCachedInput:
		t.InputTokens += quantity
		t.CachedTokens += quantity
		t.Costs.CachedInput += cost
	case tenancy.MeterOutput:
		t.OutputTokens += quantity
		t.Costs.Output += cost
	case tenancy.MeterReasoning:
		t.OutputTokens += quantity
		t.ReasoningApart += quantity
		t.Costs.Reasoning += cost
	case tenancy.MeterGPU:
		t.GPUTime += time.Duration(quantity) * time.Microsecond
		t.Costs.GPU += cost
	}
	return nil
}

func equal(currency string, got, want *tenancy.Totals) error {
	for _, c := range []struct {
		what      string
		got, want int64
	}{
		{"input tokens", got.InputTokens, want.InputTokens},
		{"cached input tokens", got.CachedTokens, want.CachedTokens},
		{"output tokens", got.OutputTokens, want.OutputTokens},
		{"reasoning tokens apart", got.ReasoningApart, want.ReasoningApart},
		{"microseconds of GPU time", got.GPUTime.Microseconds(), want.GPUTime.Microseconds()},
		{"micro-units of input", got.Costs.Input, want.Costs.Input},
		{"micro-units of cached input", got.Costs.CachedInput, want.Costs.CachedInput},
		{"micro-units of output", got.Costs.Output, want.Costs.Output},
		{"micro-units of reasoning", got.Costs.Reasoning, want.Costs.Reasoning},
		{"micro-units of GPU time", got.Costs.GPU, want.Costs.GPU},
	} {
		if c.got != c.want {
			return fmt.Errorf("%w: %d %s in %q, the ledger has %d", ErrUnequal, c.got, c.what, currency, c.want)
		}
	}
	return nil
}
