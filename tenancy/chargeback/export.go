package chargeback

import (
	"bytes"
	"cmp"
	"context"
	"encoding/csv"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/sluicegate/sluice/tenancy"
)

// Source is where an export reads from; ledger.Ledger, Reader and Snapshot are
// sources. While rows are being added, use a Snapshot: the export compares
// Rows with Totals.
type Source interface {
	// Rows yields the rows that ended in [from, to).
	Rows(ctx context.Context, from, to time.Time) iter.Seq2[*tenancy.Row, error]
	// Totals sums the same rows by currency, computed independently of Rows.
	Totals(ctx context.Context, from, to time.Time) ([]tenancy.Totals, error)
}

// ErrUnequal means that the sums of an export and of the ledger differ.
var ErrUnequal = errors.New("the export does not equal the ledger")

// Export writes the charges of a period (YYYY-MM, UTC, by the rows' end time)
// as CSV: one line for each tenant, team, model, pool, class, meter and unit
// price that has a quantity or a cost, in that order. Columns have their FOCUS
// 1.2 names where there is one; those of our own begin with x_. Costs are
// decimals with six places, exact to the micro-unit; the cost of a line is the
// sum of its requests' costs, each rounded as the package comment says, and may
// differ from quantity × unit price by those roundings.
//
// The bytes depend on the rows alone. Before anything is written to w, the sums
// over the finished lines, read back, are compared with the source's totals:
// unless tokens and costs agree to the unit, the error is ErrUnequal.
func Export(ctx context.Context, rows Source, period string, w io.Writer) error {
	from, to, err := parsePeriod(period)
	if err != nil {
		return err
	}
	lines, count, err := gather(ctx, rows, from, to)
	if err != nil {
		return fmt.Errorf("cannot export %s: %w", period, err)
	}
	text, err := format(lines, from, to)
	if err != nil {
		return fmt.Errorf("cannot export %s: %w", period, err)
	}
	totals, err := rows.Totals(ctx, from, to)
	if err != nil {
		return fmt.Errorf("cannot export %s: %w", period, err)
	}
	if err := verify(text, count, totals); err != nil {
		return fmt.Errorf("cannot export %s: %w", period, err)
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
	price                                             int64
}

func (a lineKey) compare(b lineKey) int {
	return cmp.Or(
		strings.Compare(a.tenant, b.tenant), strings.Compare(a.team, b.team),
		strings.Compare(a.model, b.model), strings.Compare(a.pool, b.pool),
		strings.Compare(a.class, b.class), strings.Compare(a.meter, b.meter),
		strings.Compare(a.currency, b.currency), cmp.Compare(a.price, b.price),
	)
}

type line struct {
	lineKey
	requests, tokens, cost int64
}

// gather sums the rows of a period into lines, in order, and counts the rows.
func gather(ctx context.Context, rows Source, from, to time.Time) ([]*line, int64, error) {
	byKey := make(map[lineKey]*line)
	var count int64
	for row, err := range rows.Rows(ctx, from, to) {
		if err != nil {
			return nil, 0, err
		}
		count++
		for _, m := range row.Meters() {
			if m.Quantity == 0 && m.Cost == 0 {
				continue
			}
			key := lineKey{row.Tenant, row.Team, row.Model, row.Pool, row.Class, m.Name, row.Currency, m.Price}
			l := byKey[key]
			if l == nil {
				l = &line{lineKey: key}
				byKey[key] = l
			}
			if l.tokens > math.MaxInt64-m.Quantity || l.cost > math.MaxInt64-m.Cost {
				return nil, 0, fmt.Errorf("the sum of %s of tenant %q passes 64 bits", m.Name, row.Tenant)
			}
			l.requests++
			l.tokens += m.Quantity
			l.cost += m.Cost
		}
	}
	lines := make([]*line, 0, len(byKey))
	for _, l := range byKey {
		lines = append(lines, l)
	}
	slices.SortFunc(lines, func(a, b *line) int { return a.compare(b.lineKey) })
	return lines, count, nil
}

// Columns of the export. The indices of those that verify reads have names.
var header = []string{
	"BillingPeriodStart", "BillingPeriodEnd", "ChargePeriodStart", "ChargePeriodEnd",
	"ChargeCategory", "ChargeFrequency", "ChargeDescription",
	"ServiceCategory", "ServiceName", "SubAccountId",
	"SkuId", "SkuMeter", "SkuPriceId",
	"ConsumedQuantity", "ConsumedUnit", "PricingQuantity", "PricingUnit",
	"ListUnitPrice", "ListCost", "BilledCost", "EffectiveCost", "BillingCurrency",
	"Tags", "x_Team", "x_Model", "x_Pool", "x_Class", "x_Requests",
}

var (
	colMeter    = slices.Index(header, "SkuMeter")
	colQuantity = slices.Index(header, "ConsumedQuantity")
	colCost     = slices.Index(header, "BilledCost")
	colCurrency = slices.Index(header, "BillingCurrency")
)

// format renders the lines as CSV with LF line ends.
func format(lines []*line, from, to time.Time) ([]byte, error) {
	var buf bytes.Buffer
	out := csv.NewWriter(&buf)
	if err := out.Write(header); err != nil {
		return nil, err
	}
	start, end := from.Format(time.RFC3339), to.Format(time.RFC3339)
	for _, l := range lines {
		tags, err := json.Marshal(map[string]string{"team": l.team, "pool": l.pool, "class": l.class})
		if err != nil {
			return nil, err
		}
		cost := decimal(l.cost)
		if err := out.Write([]string{
			start, end, start, end,
			"Usage", "Usage-Based", cell(description(l)),
			"AI and Machine Learning", "LLM inference", cell(l.tenant),
			cell(l.model), l.meter, cell(priceID(l)),
			strconv.FormatInt(l.tokens, 10), "Tokens", decimal(l.tokens), "1000000 Tokens",
			decimal(l.price), cost, cost, cost, l.currency,
			string(tags), cell(l.team), cell(l.model), cell(l.pool), cell(l.class), strconv.FormatInt(l.requests, 10),
		}); err != nil {
			return nil, err
		}
	}
	out.Flush()
	return buf.Bytes(), out.Error()
}

var meterTexts = map[string]string{
	tenancy.MeterInput:       "input tokens",
	tenancy.MeterCachedInput: "input tokens read from a cache",
	tenancy.MeterOutput:      "output tokens",
}

func description(l *line) string {
	text := l.model + ": " + meterTexts[l.meter]
	if l.currency == "" {
		text += ", without a price"
	}
	return text
}

func priceID(l *line) string {
	if l.currency == "" {
		return ""
	}
	return fmt.Sprintf("%s/%s/%s/%d", l.model, l.meter, l.currency, l.price)
}

// decimal is a count of millionths as a decimal with six places.
func decimal(micro int64) string {
	return fmt.Sprintf("%d.%06d", micro/1_000_000, micro%1_000_000)
}

// parseDecimal is the inverse of decimal.
func parseDecimal(s string) (int64, error) {
	whole, frac, ok := strings.Cut(s, ".")
	if !ok || len(frac) != 6 {
		return 0, fmt.Errorf("%q is no decimal with six places", s)
	}
	return strconv.ParseInt(whole+frac, 10, 64)
}

// cell keeps a spreadsheet from taking a name for a formula: text that begins
// like one gets an apostrophe in front.
func cell(s string) string {
	if s == "" {
		return s
	}
	if strings.ContainsAny(s[:1], "=+-@\t\r\n") || hasAnyPrefix(s, "＝", "＋", "－", "＠") {
		return "'" + s
	}
	return s
}

func hasAnyPrefix(s string, prefixes ...string) bool {
	return slices.ContainsFunc(prefixes, func(p string) bool { return strings.HasPrefix(s, p) })
}

// verify reads an export back and compares its sums with the ledger's.
func verify(text []byte, count int64, totals []tenancy.Totals) error {
	records, err := csv.NewReader(bytes.NewReader(text)).ReadAll()
	if err != nil {
		return err
	}
	sums := make(map[string]*tenancy.Totals)
	for _, rec := range records[1:] {
		tokens, err := strconv.ParseInt(rec[colQuantity], 10, 64)
		if err != nil {
			return err
		}
		cost, err := parseDecimal(rec[colCost])
		if err != nil {
			return err
		}
		t := sums[rec[colCurrency]]
		if t == nil {
			t = &tenancy.Totals{}
			sums[rec[colCurrency]] = t
		}
		switch rec[colMeter] {
		case tenancy.MeterInput:
			t.InputTokens += tokens
			t.Costs.Input += cost
		case tenancy.MeterCachedInput:
			t.InputTokens += tokens
			t.CachedTokens += tokens
			t.Costs.CachedInput += cost
		case tenancy.MeterOutput:
			t.OutputTokens += tokens
			t.Costs.Output += cost
		}
	}
	for _, want := range totals {
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

func equal(currency string, got, want *tenancy.Totals) error {
	for _, c := range []struct {
		what      string
		got, want int64
	}{
		{"input tokens", got.InputTokens, want.InputTokens},
		{"cached input tokens", got.CachedTokens, want.CachedTokens},
		{"output tokens", got.OutputTokens, want.OutputTokens},
		{"micro-units of input", got.Costs.Input, want.Costs.Input},
		{"micro-units of cached input", got.Costs.CachedInput, want.Costs.CachedInput},
		{"micro-units of output", got.Costs.Output, want.Costs.Output},
	} {
		if c.got != c.want {
			return fmt.Errorf("%w: %d %s in %q, the ledger has %d", ErrUnequal, c.got, c.what, currency, c.want)
		}
	}
	return nil
}
