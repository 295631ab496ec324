package main

import (
	"cmp"
	"context"
	"crypto/rand"
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
	cmd.AddCommand(newExportCommand(now), newCloseCommand(now), newCorrectCommand(), newGPUCommand(now), newReconcileCommand())
	return cmd
}

// booksFlags say which ledger a command is about, and on what terms.
type booksFlags struct {
	config, ledger string

	keeps   LedgerConfig // of the configuration, if one was given
	charges ChargebackConfig
	table   string // of prices, of the configuration
}

func (f *booksFlags) add(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.StringVarP(&f.config, "config", "c", "", "configuration file to take the ledger and the rest from")
	flags.StringVar(&f.ledger, "ledger", "", "the ledger, an SQLite file")
	cmd.MarkFlagsOneRequired("config", "ledger")
}

// load takes what was not given from the configuration.
func (f *booksFlags) load() error {
	f.charges = defaultChargeback()
	if f.config == "" {
		return nil
	}
	cfg, _, err := LoadConfig(f.config)
	if err != nil {
		return err
	}
	f.keeps, f.charges, f.table = cfg.Ledger, cfg.Chargeback, cfg.Prices.File
	return nil
}

// open opens the ledger that was asked for: a file, or else that of the configuration.
func (f *booksFlags) open(ctx context.Context) (*ledger.Reader, error) {
	if f.ledger != "" {
		return fileReader(ctx, f.ledger)
	}
	return booksReader(ctx, &f.keeps)
}

// books opens it to be changed.
func (f *booksFlags) books() (*ledger.Books, error) {
	switch {
	case f.ledger != "":
		return ledger.OpenBooks(f.ledger)
	case f.keeps.PostgresFile == "":
		return ledger.OpenBooks(f.keeps.Path)
	}
	dsn, err := readSecretText(f.keeps.PostgresFile)
	if err != nil {
		return nil, fmt.Errorf("cannot read ledger.postgresFile: %w", err)
	}
	return ledger.OpenPostgresBooks(dsn)
}

// ledgerPath is what the files beside the ledger are named after.
func (f *booksFlags) ledgerPath() string { return cmp.Or(f.ledger, f.keeps.Path) }

// exportFlags are what `chargeback export` was asked for.
type exportFlags struct {
	booksFlags
	prices, period, format, output string
	unfinished, spreadsheet        bool
}

func newExportCommand(now func() time.Time) *cobra.Command {
	var f exportFlags
	cmd := &cobra.Command{
		Use:   "export --period YYYY-MM (--ledger FILE | -c FILE)",
		Short: "Write the charges of a month, in FOCUS columns, that equal the ledger to the last unit",
		Long: "Write the charges of a month (UTC, by the end of each request) in the columns of FOCUS 1.2, as CSV or JSON lines.\n" +
			"Nothing is written unless the lines' sums equal the ledger's own. The ledger may be in use by a running gateway.\n\n" +
			"A month that is not over is exported with --open alone; that of a closed one is the same to the byte, or an error.\n" +
			"Costs are those of the ledger: each request's, at the prices it was admitted under. With a price table,\n" +
			"requests charged at other prices than the table has now are counted, and nothing else changes.",
		Example: "  sluice chargeback export --ledger sluice.db --period 2026-11 -o november.csv",
		Args:    cobra.NoArgs,
		RunE: command(func(cmd *cobra.Command, _ []string) error {
			return f.export(cmd.Context(), now(), cmd.OutOrStdout(), cmd.ErrOrStderr())
		}),
	}
	f.add(cmd)
	flags := cmd.Flags()
	flags.StringVar(&f.prices, "prices", "", "price table to compare the ledger's prices with")
	flags.StringVar(&f.period, "period", "", "month, as in 2026-11")
	flags.StringVar(&f.format, "format", "csv", "csv or json")
	flags.StringVarP(&f.output, "output", "o", "", "file to write, replaced whole; default: standard output")
	flags.BoolVar(&f.unfinished, "open", false, "export a month that is not over; its lines say so")
	flags.BoolVar(&f.spreadsheet, "spreadsheet", false, "put an apostrophe before names that a spreadsheet would take for a formula")
	markRequired(cmd, "period")
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

// renderer is the form of the export that was asked for.
func (f *exportFlags) renderer() (func(*chargeback.Statement) ([]byte, error), error) {
	switch {
	case f.format == "json" && f.spreadsheet:
		return nil, &usageError{"--spreadsheet is for CSV"}
	case f.format == "json":
		return (*chargeback.Statement).JSON, nil
	case f.format != "csv":
		return nil, &usageError{fmt.Sprintf("--format %q is not known, should be csv or json", clip(f.format))}
	case f.spreadsheet:
		return (*chargeback.Statement).Spreadsheet, nil
	}
	return (*chargeback.Statement).CSV, nil
}

func (f *exportFlags) export(ctx context.Context, now time.Time, stdout, stderr io.Writer) error {
	from, to, err := periodOf(f.period)
	if err != nil {
		return err
	}
	render, err := f.renderer()
	if err != nil {
		return err
	}
	if err := f.load(); err != nil {
		return err
	}
	var prices *chargeback.Prices
	if file := cmp.Or(f.prices, f.table); file != "" {
		f.prices = file
		if prices, err = chargeback.LoadPrices(file); err != nil {
			return err
		}
	}
	reader, err := f.open(ctx)
	if err != nil {
		return err
	}
	defer reader.Close()
	rows, err := reader.Snapshot(ctx)
	if err != nil {
		return err
	}
	defer rows.Close()

	statement, closing, err := f.statement(ctx, rows, now)
	if err != nil {
		return err
	}
	text, err := render(statement)
	if err != nil {
		return err
	}
	write := func(w io.Writer) error {
		if _, err := w.Write(text); err != nil {
			return fmt.Errorf("cannot write the export: %w", err)
		}
		return nil
	}
	if f.output == "" {
		err = write(stdout)
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
	if len(totals) > 0 {
		fmt.Fprintf(stderr, "%s: the export equals the ledger.\n", f.period)
	}
	f.writeState(ctx, reader, closing, now, stderr)
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

// statement is what the month comes to; that of a closed one is as it was closed.
func (f *exportFlags) statement(ctx context.Context, rows *ledger.Snapshot, now time.Time) (*chargeback.Statement, *ledger.Closing, error) {
	from, to, err := periodOf(f.period)
	if err != nil {
		return nil, nil, err
	}
	closing, err := rows.Closing(ctx, from)
	if err != nil {
		return nil, nil, err
	}
	state := chargeback.PeriodSettling
	switch {
	case closing != nil && !closing.Sealed():
		return nil, nil, fmt.Errorf("cannot export %s: %s has begun to close it and it has no sums yet; if that has failed, give `sluice chargeback close` again", f.period, closing.By)
	case closing != nil:
		s, err := closedStatement(ctx, rows, closing, f.period)
		if err == nil {
			err = asClosed(s, closing, f.period)
		}
		return s, closing, err
	case now.Before(to) && !f.unfinished:
		return nil, nil, fmt.Errorf("cannot export %s: the month is not over, so its charges are not complete; with --open they are exported as they are, and every line says so", f.period)
	case now.Before(to):
		state = chargeback.PeriodOpen
	}
	s, err := chargeback.NewStatement(ctx, rows, f.period, f.charges.terms(), state)
	return s, nil, err
}

// writeState says how final the export is.
func (f *exportFlags) writeState(ctx context.Context, reader *ledger.Reader, closing *ledger.Closing, now time.Time, w io.Writer) {
	from, to, _ := periodOf(f.period)
	f.writeRefused(w, f.period, from, to)
	if closing != nil {
		fmt.Fprintf(w, "%s: closed on %s by %s, and the same since.\n", f.period, closing.At.Format(time.RFC3339), closing.By)
		return
	}
	if now.Before(to) {
		fmt.Fprintf(w, "%s: the month is not over; more charges will come.\n", f.period)
	} else {
		fmt.Fprintf(w, "%s: the month is not closed; late charges may yet come.\n", f.period)
	}
	p, err := reader.Pending(ctx, f.ledgerPath(), to)
	switch {
	case err != nil:
		fmt.Fprintf(w, "%s: what waits beside the ledger is not known: %v\n", f.period, err)
	case p.SpoolRows > 0:
		fmt.Fprintf(w, "%s: %s in the spool beside %s and not in the export.\n", f.period, waits(p.SpoolRows), f.ledgerPath())
	}
}

// writeRefused says how many rows that ended in [from, to) are kept beside the ledger, since its database
// would not have them: they are in no export.
func (f *booksFlags) writeRefused(w io.Writer, period string, from, to time.Time) {
	rows, err := ledger.Refused(f.ledgerPath())
	if err != nil {
		fmt.Fprintf(w, "%s: whether rows were refused is not known: %v\n", period, err)
		return
	}
	n := 0
	for i := range rows {
		if end := rows[i].Row.End(); !end.Before(from) && end.Before(to) {
			n++
		}
	}
	if n > 0 {
		fmt.Fprintf(w, "%s: %s in %s-refused and not in the export: see `sluice ledger refused`; what is put back after the month is closed is charged in the next open one.\n",
			period, countOf(n, "row is", "rows are"), f.ledgerPath())
	}
}

// replaceFile lets write fill a temporary file beside path and puts it in path's place, so that path
// holds the old content or the new one and never a part. Who may read the old one may read the new one,
// and nobody else.
func replaceFile(path string, write func(io.Writer) error) (err error) {
	tmp, err := createBeside(path)
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
	if err := errors.Join(tmp.Sync(), tmp.Close()); err != nil {
		return fmt.Errorf("cannot write %s: %w", path, err)
	}
	if err := os.Rename(tmp.Name(), path); err != nil {
		return fmt.Errorf("cannot write %s: %w", path, err)
	}
	return nil
}

// createBeside makes a file in the folder of path, with the permissions of the one at path, or else those
// that the umask leaves.
func createBeside(path string) (*os.File, error) {
	name := filepath.Join(filepath.Dir(path), "."+filepath.Base(path)+"."+rand.Text())
	f, err := os.OpenFile(name, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o666)
	if err != nil {
		return nil, err
	}
	if old, err := os.Stat(path); err == nil && old.Mode().IsRegular() {
		if err := f.Chmod(old.Mode().Perm()); err != nil {
			return nil, errors.Join(err, f.Close(), os.Remove(name))
		}
	}
	return f, nil
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
		if !row.Flags.Has(tenancy.FlagReasoningApart) { // of a time that knew three meters
			price.Reasoning, price.GPUSecond = row.Prices.Reasoning, row.Prices.GPUSecond
		}
		switch {
		case row.Currency == "" && !ok:
			n.unpriced++
		case ok && price.Currency == row.Currency && price.Prices == row.Prices && row.Discount == table.Discount(row.Tenant, row.Team, row.Model, row.Start):
			n.same++
		default:
			n.other++
		}
	}
	return n, nil
}
