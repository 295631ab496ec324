package main

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"time"

	"github.com/spf13/cobra"

	"github.com/sluicegate/sluice/tenancy"
	"github.com/sluicegate/sluice/tenancy/chargeback"
	"github.com/sluicegate/sluice/tenancy/ledger"
)

func newChargebackCommand(now func() time.Time) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "chargeback",
		Short: "Charges out of the ledger, for finance",
		Args:  cobra.NoArgs,
		RunE:  func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newExportCommand(), newGPUCommand(now))
	return cmd
}

// exportFlags are what `chargeback export` was asked for.
type exportFlags struct {
	config, ledger, prices, period, output string

	books LedgerConfig // of the configuration, if one was given
}

func newExportCommand() *cobra.Command {
	var f exportFlags
	cmd := &cobra.Command{
		Use:   "export --period YYYY-MM (--ledger FILE | -c FILE)",
		Short: "Write the charges of a month as CSV that equals the ledger to the last unit",
		Long: "Write the charges of a month (UTC, by the end of each request) as CSV in FOCUS columns. Nothing is written\n" +
			"unless the lines' sums equal the ledger's own. The ledger may be in use by a running gateway.\n\n" +
			"Costs are those of the ledger: each request's, at the prices it was admitted under. With a price table,\n" +
			"requests charged at other prices than the table has now are counted, and nothing else changes.",
		Example: "  sluice chargeback export --ledger sluice.db --period 2026-11 -o november.csv",
		Args:    cobra.NoArgs,
		RunE: command(func(cmd *cobra.Command, _ []string) error {
			return export(cmd.Context(), f, cmd.OutOrStdout(), cmd.ErrOrStderr())
		}),
	}
	flags := cmd.Flags()
	flags.StringVarP(&f.config, "config", "c", "", "configuration file to take the ledger and the prices from")
	flags.StringVar(&f.ledger, "ledger", "", "the ledger")
	flags.StringVar(&f.prices, "prices", "", "price table to compare the ledger's prices with")
	flags.StringVar(&f.period, "period", "", "month, as in 2026-11")
	flags.StringVarP(&f.output, "output", "o", "", "file to write, replaced whole; default: standard output")
	markRequired(cmd, "period")
	cmd.MarkFlagsOneRequired("config", "ledger")
	return cmd
}

var periodPattern = regexp.MustCompile(`^\d{4}-(0[1-9]|1[0-2])$`)

// periodOf returns the instants between which the requests of a month end.
func periodOf(text string) (from, to time.Time, err error) {
	if !periodPattern.MatchString(text) {
		return from, to, &usageError{fmt.Sprintf("--period %q is not a month, should be as in 2026-11", clip(text))}
	}
	from, err = time.Parse("2006-01", text)
	return from, from.AddDate(0, 1, 0), err
}

func export(ctx context.Context, f exportFlags, stdout, stderr io.Writer) error {
	from, to, err := periodOf(f.period)
	if err != nil {
		return err
	}
	if err := f.complete(); err != nil {
		return err
	}
	var prices *chargeback.Prices
	if f.prices != "" {
		if prices, err = chargeback.LoadPrices(f.prices); err != nil {
			return err
		}
	}
	reader, err := f.open()
	if err != nil {
		return err
	}
	defer reader.Close()
	rows, err := reader.Snapshot(ctx)
	if err != nil {
		return err
	}
	defer rows.Close()

	write := func(w io.Writer) error { return chargeback.Export(ctx, rows, f.period, w) }
	if f.output == "" {
		err = writeWhole(stdout, write)
	} else {
		err = replaceFile(f.output, write)
	}
	if err != nil {
		return err
	}
	totals, err := rows.Totals(ctx, from, to)
	if err != nil {
		return err
	}
	writeTotals(stderr, f.period, totals)
	if prices == nil {
		return nil
	}
	compared, err := comparePrices(ctx, rows, prices, from, to)
	if err != nil {
		return err
	}
	fmt.Fprintf(stderr, "%s: %d requests charged at the prices of %s, %d at others, %d without a price in either.\n",
		f.period, compared.same, f.prices, compared.other, compared.unpriced)
	return nil
}

// complete takes what was not given from the configuration.
func (f *exportFlags) complete() error {
	if f.config == "" {
		return nil
	}
	cfg, _, err := LoadConfig(f.config)
	if err != nil {
		return err
	}
	f.books, f.prices = cfg.Ledger, cmp.Or(f.prices, cfg.Prices.File)
	return nil
}

// open opens the ledger that was asked for: a file, or else that of the configuration.
func (f *exportFlags) open() (*ledger.Reader, error) {
	if f.ledger != "" {
		return ledger.OpenReader(f.ledger)
	}
	return booksReader(&f.books)
}

// writeWhole holds back what write makes until it is whole: half an export on standard output would look
// like a whole one.
func writeWhole(w io.Writer, write func(io.Writer) error) error {
	var buf bytes.Buffer
	if err := write(&buf); err != nil {
		return err
	}
	if _, err := buf.WriteTo(w); err != nil {
		return fmt.Errorf("cannot write the export: %w", err)
	}
	return nil
}

// replaceFile lets write fill a temporary file beside path and puts it in path's place, so that path
// holds the old content or the new one and never a part.
func replaceFile(path string, write func(io.Writer) error) (err error) {
	tmp, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+".*")
	if err != nil {
		if pe, ok := errors.AsType[*fs.PathError](err); ok {
			err = pe.Err // the temporary file's name would only puzzle
		}
		return fmt.Errorf("cannot write %s: %w", path, err)
	}
	defer func() {
		if err != nil {
			_ = os.Remove(tmp.Name())
		}
	}()
	if err := write(tmp); err != nil {
		_ = tmp.Close()
		return err
	}
	if err := errors.Join(tmp.Chmod(0o644), tmp.Sync(), tmp.Close()); err != nil {
		return fmt.Errorf("cannot write %s: %w", path, err)
	}
	if err := os.Rename(tmp.Name(), path); err != nil {
		return fmt.Errorf("cannot write %s: %w", path, err)
	}
	return nil
}

func writeTotals(w io.Writer, period string, totals []tenancy.Totals) {
	if len(totals) == 0 {
		fmt.Fprintf(w, "%s: no requests in the ledger.\n", period)
		return
	}
	for _, t := range totals {
		cost := formatMicro(t.Costs.Total()) + " " + t.Currency
		if t.Currency == "" {
			cost = "no price"
		}
		fmt.Fprintf(w, "%s: %s, %d input tokens (%d cached), %d output tokens: %s\n",
			period, count(int(t.Rows), "request"), t.InputTokens, t.CachedTokens, t.OutputTokens, cost)
	}
	fmt.Fprintf(w, "%s: the export equals the ledger.\n", period)
}

// formatMicro writes micro-units as a decimal number of units, exactly.
func formatMicro(micro int64) string {
	sign := ""
	if micro < 0 {
		sign, micro = "-", -micro
	}
	return fmt.Sprintf("%s%d.%06d", sign, micro/1_000_000, micro%1_000_000)
}

// priceCounts counts requests by whether their prices are those of a table.
type priceCounts struct{ same, other, unpriced int }

// comparePrices compares the prices of the requests that ended in [from, to) with a table's.
func comparePrices(ctx context.Context, rows chargeback.Source, table *chargeback.Prices, from, to time.Time) (priceCounts, error) {
	var n priceCounts
	for row, err := range rows.Rows(ctx, from, to) {
		if err != nil {
			return n, fmt.Errorf("cannot read the ledger: %w", err)
		}
		if row.InputTokens == 0 && row.OutputTokens == 0 {
			continue // nothing was charged at any price
		}
		price, ok := table.Price(row.Model, row.Start)
		switch {
		case row.Currency == "" && !ok:
			n.unpriced++
		case ok && price.Currency == row.Currency && price.Prices == row.Prices:
			n.same++
		default:
			n.other++
		}
	}
	return n, nil
}
