package chargeback

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/sluicegate/sluice/tenancy"
)

// Books are what an export and the metrics are compared with; ledger.Snapshot is
// one.
type Books interface {
	Source
	// Usage sums the rows that belong to [from, to), apart from Rows.
	Usage(ctx context.Context, from, to time.Time) ([]tenancy.Usage, error)
	// Checkpoints are what processes say they have counted of the rows that ended in
	// a month, Counted what the ledger has of those rows.
	Checkpoints(ctx context.Context, month time.Time) ([]tenancy.Checkpoint, error)
	Counted(ctx context.Context, month time.Time) (map[string][]tenancy.Usage, error)
	// Uncounted counts the rows that ended in a month and that nobody says to have
	// counted.
	Uncounted(ctx context.Context, month time.Time) (corrections, recovered, later int64, err error)
}

// MeterRequests stands among the meters for the number of rows.
const MeterRequests = "requests"

// Difference is one figure that an export or a process's metrics have otherwise
// than the ledger.
type Difference struct {
	// Process is empty for the export.
	Process                        string
	Tenant, Model, Meter, Currency string
	// Cost says that the figure is micro-units of the currency; else it is what the
	// meter counts.
	Cost        bool
	Got, Ledger int64
}

// String names the difference in one line.
func (d Difference) String() string {
	side := "export"
	if d.Process != "" {
		side = "metrics of process " + d.Process
	}
	unit := "tokens"
	switch {
	case d.Cost:
		unit = "micro-units"
	case d.Meter == MeterRequests:
		unit = "rows"
	case d.Meter == tenancy.MeterGPU:
		unit = "microseconds"
	}
	return fmt.Sprintf("%s: tenant %q, model %q, %s, %s: %d %s, the ledger has %d (%+d)",
		side, d.Tenant, d.Model, d.Meter, cmp.Or(d.Currency, "no price"), d.Got, unit, d.Ledger, d.Got-d.Ledger)
}

// Reconciliation is what Reconcile has found.
type Reconciliation struct {
	Period string
	// Rows of the ledger belong to the month; Counted of those that ended in it are
	// in the checkpoints of Processes.
	Rows, Counted, Processes int64
	// Rows that ended in the month and are in no checkpoint: Corrections were made
	// later, Recovered ones stored for a process that had died, or put back by hand,
	// and Later ones came after the last checkpoint of their process, or of one that
	// notes none.
	Corrections, Recovered, Later int64
	// Differences are none if all agree.
	Differences []Difference
}

// Reconcile compares an export of a month (YYYY-MM), and what the gateways'
// metrics have counted, with the ledger, by tenant, model, meter and currency. text
// is the export, CSV or JSON.
//
// The ledger's side is summed by the database. The metrics' side are the
// checkpoints that each process notes of what it has counted: each stands for the
// rows of the process up to a place in the ledger, and is compared with exactly
// those, whatever became of the process.
func Reconcile(ctx context.Context, books Books, period string, text []byte) (*Reconciliation, error) {
	from, to, err := parsePeriod(period)
	if err != nil {
		return nil, err
	}
	r := &Reconciliation{Period: period}
	if err := r.reconcile(ctx, books, from, to, text); err != nil {
		return nil, fmt.Errorf("cannot reconcile %s: %w", period, err)
	}
	return r, nil
}

func (r *Reconciliation) reconcile(ctx context.Context, books Books, from, to time.Time, text []byte) error {
	ledger, err := books.Usage(ctx, from, to)
	if err != nil {
		return err
	}
	for i := range ledger {
		r.Rows += ledger[i].Rows
	}
	exported, err := readExport(text, from)
	if err != nil {
		return fmt.Errorf("the export can't be read: %w", err)
	}
	sums := figuresOf(ledger)
	for key := range sums {
		if key.meter == MeterRequests {
			delete(sums, key) // a row is in as many lines as it has meters
		}
	}
	r.compare("", exported, sums)
	noted, err := books.Checkpoints(ctx, from)
	if err != nil {
		return err
	}
	counted, err := books.Counted(ctx, from)
	if err != nil {
		return err
	}
	r.Processes = int64(len(noted))
	for i := range noted {
		c := &noted[i]
		for j := range c.Usage {
			r.Counted += c.Usage[j].Rows
		}
		r.compare(c.Process, figuresOf(c.Usage), figuresOf(counted[c.Process]))
	}
	r.Corrections, r.Recovered, r.Later, err = books.Uncounted(ctx, from)
	return err
}

// figureKey is what figures are compared by.
type figureKey struct{ tenant, model, meter, currency string }

func (a figureKey) compare(b figureKey) int {
	return cmp.Or(strings.Compare(a.tenant, b.tenant), strings.Compare(a.model, b.model),
		strings.Compare(a.currency, b.currency), strings.Compare(a.meter, b.meter))
}

type figure struct{ quantity, cost int64 }

// figuresOf splits sums by meter. Every token is in one meter.
func figuresOf(list []tenancy.Usage) map[figureKey]figure {
	sums := make(map[figureKey]figure)
	for i := range list {
		u := &list[i]
		for meter, f := range map[string]figure{
			MeterRequests:            {u.Rows, 0},
			tenancy.MeterInput:       {u.InputTokens - u.CachedTokens, u.Costs.Input},
			tenancy.MeterCachedInput: {u.CachedTokens, u.Costs.CachedInput},
			tenancy.MeterOutput:      {u.OutputTokens - u.ReasoningApart, u.Costs.Output},
			tenancy.MeterReasoning:   {u.ReasoningApart, u.Costs.Reasoning},
			tenancy.MeterGPU:         {u.GPUTime.Microseconds(), u.Costs.GPU},
		} {
			add(sums, figureKey{u.Tenant, u.Model, meter, u.Currency}, f)
		}
	}
	return sums
}

func add(sums map[figureKey]figure, key figureKey, f figure) {
	s := sums[key]
	sums[key] = figure{s.quantity + f.quantity, s.cost + f.cost}
}

// compare notes each figure that is not the ledger's.
func (r *Reconciliation) compare(process string, got, ledger map[figureKey]figure) {
	keys := make([]figureKey, 0, len(got)+len(ledger))
	for key := range got {
		keys = append(keys, key)
	}
	for key := range ledger {
		if _, both := got[key]; !both {
			keys = append(keys, key)
		}
	}
	slices.SortFunc(keys, figureKey.compare)
	for _, key := range keys {
		g, l := got[key], ledger[key]
		d := Difference{Process: process, Tenant: key.tenant, Model: key.model, Meter: key.meter, Currency: key.currency}
		if g.quantity != l.quantity {
			d.Got, d.Ledger = g.quantity, l.quantity
			r.Differences = append(r.Differences, d)
		}
		if g.cost != l.cost {
			d.Cost, d.Got, d.Ledger = true, g.cost, l.cost
			r.Differences = append(r.Differences, d)
		}
	}
}

// readExport sums the lines of an export, which must be of the month that begins
// at from. Nothing at all is what JSON is of a month without charges.
func readExport(text []byte, from time.Time) (map[figureKey]figure, error) {
	read := readCSV
	if start := bytes.TrimLeft(text, " \t\r\n"); len(start) == 0 || start[0] == '{' {
		read = readJSON
	}
	records, err := read(text)
	if err != nil {
		return nil, err
	}
	sums := make(map[figureKey]figure)
	for i, rec := range records {
		fail := func(err error) error { return fmt.Errorf("line %d of the charges: %w", i+1, err) }
		if got, want := rec["BillingPeriodStart"], from.Format(time.RFC3339); got != want {
			return nil, fail(fmt.Errorf("its BillingPeriodStart is %q, should be %s: it is the export of another month, or none", clipped(got), want))
		}
		meter := rec["SkuMeter"]
		if meterTexts[meter] == "" {
			return nil, fail(fmt.Errorf("its SkuMeter is %q, which is none of ours", clipped(meter)))
		}
		quantity, err := parseQuantity(meter, rec["ConsumedQuantity"])
		if err != nil {
			return nil, fail(fmt.Errorf("its ConsumedQuantity: %w", err))
		}
		cost, err := parseDecimal(rec["BilledCost"])
		if err != nil {
			return nil, fail(fmt.Errorf("its BilledCost: %w", err))
		}
		currency := rec["BillingCurrency"]
		if unpriced, err := strconv.ParseBool(rec["x_Unpriced"]); err == nil && unpriced {
			currency = ""
		}
		add(sums, figureKey{rec["SubAccountId"], rec["x_Model"], meter, currency}, figure{quantity, cost})
	}
	return sums, nil
}

// clipped keeps what a file holds from filling a message.
func clipped(s string) string {
	const most = 40
	if len(s) <= most {
		return s
	}
	return strings.ToValidUTF8(s[:most], "") + "…"
}
