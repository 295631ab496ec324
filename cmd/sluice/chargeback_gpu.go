package main

import (
	"context"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/sluicegate/sluice/tenancy/chargeback"
	"github.com/sluicegate/sluice/tenancy/ledger"
)

// gpuFlags are what `chargeback gpu` was asked for.
type gpuFlags struct{ config, ledger, period, idle, format, output string }

func newGPUCommand(now func() time.Time) *cobra.Command {
	var f gpuFlags
	cmd := &cobra.Command{
		Use:   "gpu --period YYYY-MM -c FILE",
		Short: "Share what the pools' GPUs cost in a month among those who used them",
		Long: "Share what each pool cost in a month (UTC), by pools[].hourlyCost, among tenants, teams and models in proportion\n" +
			"to the GPU time of the requests that ended in it. What nobody used is a line of its own, or shared in the same\n" +
			"proportion. The lines sum to the cost of the hours exactly. The ledger may be in use by a running gateway; a month\n" +
			"that is not over costs the hours up to now.\n\n" +
			"GPU time is what the gateway measured: the equal parts of the time for which a worker had requests in hand. It\n" +
			"is not what the GPU's own counters say.",
		Example: "  sluice chargeback gpu -c sluice.yaml --period 2026-11 --idle spread -o gpus.csv",
		Args:    cobra.NoArgs,
		RunE: command(func(cmd *cobra.Command, _ []string) error {
			return f.run(cmd.Context(), now(), cmd.OutOrStdout(), cmd.ErrOrStderr())
		}),
	}
	flags := cmd.Flags()
	flags.StringVarP(&f.config, "config", "c", "", "configuration file with the pools' costs and the ledger")
	flags.StringVar(&f.ledger, "ledger", "", "another ledger than the configuration's, such as an archived month")
	flags.StringVar(&f.period, "period", "", "month, as in 2026-11")
	flags.StringVar(&f.idle, "idle", "separate", "idle time: separate (a line of its own) or spread (over those who worked)")
	flags.StringVar(&f.format, "format", "csv", "csv, or json with one object a line")
	flags.StringVarP(&f.output, "output", "o", "", "file to write, replaced whole; default: standard output")
	markRequired(cmd, "config")
	markRequired(cmd, "period")
	return cmd
}

func (f *gpuFlags) run(ctx context.Context, now time.Time, stdout, stderr io.Writer) error {
	if _, _, err := periodOf(f.period); err != nil {
		return err
	}
	for _, of := range []struct {
		flag, value string
		allowed     []string
	}{{"idle", f.idle, []string{"separate", "spread"}}, {"format", f.format, []string{"csv", "json"}}} {
		if !slices.Contains(of.allowed, of.value) {
			return &usageError{fmt.Sprintf("--%s %q is not known, should be %s or %s", of.flag, clip(of.value), of.allowed[0], of.allowed[1])}
		}
	}
	cfg, _, err := LoadConfig(f.config)
	if err != nil {
		return err
	}
	reader, err := f.open(ctx, cfg)
	if err != nil {
		return err
	}
	defer reader.Close()
	rows, err := reader.Snapshot(ctx)
	if err != nil {
		return err
	}
	defer rows.Close()
	idle := chargeback.IdleSeparate
	if f.idle == "spread" {
		idle = chargeback.IdleSpread
	}
	report, err := chargeback.ShareGPUs(ctx, rows, f.period, gpuPools(cfg), idle, now)
	if err != nil {
		return err
	}
	write := report.WriteCSV
	if f.format == "json" {
		write = report.WriteJSON
	}
	if f.output == "" {
		err = write(stdout) // in one piece
	} else {
		err = replaceFile(f.output, write)
	}
	if err != nil {
		return err
	}
	writeGPUSums(stderr, report)
	return nil
}

func (f *gpuFlags) open(ctx context.Context, cfg *Config) (*ledger.Reader, error) {
	if f.ledger != "" {
		return fileReader(ctx, f.ledger)
	}
	return booksReader(ctx, &cfg.Ledger)
}

// writeGPUSums says what was shared, and what to know of it.
func writeGPUSums(w io.Writer, r *chargeback.GPUReport) {
	for _, s := range r.Sums {
		if s.Currency == "" {
			fmt.Fprintf(w, "%s: pool %s: %s GPU hours while it had no hourlyCost; they cost nothing.\n", r.Period, s.Pool, hours(s.Work))
			continue
		}
		fmt.Fprintf(w, "%s: pool %s: %s %s for %s GPU hours, %s of them worked.\n",
			r.Period, s.Pool, formatMicro(s.Cost), s.Currency, hours(s.Capacity), hours(s.Work))
		if s.Work > s.Capacity {
			fmt.Fprintf(w, "%s: pool %s: more work than GPUs were paid for: hourlyCost has fewer GPUs than there are, or several gateways have measured the same workers. The cost is shared in proportion.\n",
				r.Period, s.Pool)
		}
	}
	if len(r.Sums) == 0 {
		fmt.Fprintf(w, "%s: no pool has an hourlyCost, and no request has GPU time.\n", r.Period)
	}
	if r.LeftOut > 0 {
		fmt.Fprintf(w, "%s: %s left out: corrections, and requests that ended in an earlier month.\n", r.Period, count(int(r.LeftOut), "row"))
	}
	if r.Unmeasured > 0 {
		fmt.Fprintf(w, "%s: %s without GPU time: from before it was measured.\n", r.Period, count(int(r.Unmeasured), "request"))
	}
	if month, err := time.Parse("2006-01", r.Period); err == nil && r.Until.Before(month.AddDate(0, 1, 0)) {
		fmt.Fprintf(w, "%s: the month is not over: its cost is that of the hours up to %s.\n", r.Period, r.Until.UTC().Format(time.RFC3339))
	}
}

// hours writes a time in hours with three places.
func hours(t chargeback.GPUMicros) string { return fmt.Sprintf("%.3f", t.Hours()) }
