package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/sluicegate/sluice/tenancy/ledger"
)

func newLedgerCommand(now func() time.Time) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "ledger",
		Short: "Keep the ledger small, and whole",
		Args:  cobra.NoArgs,
		RunE:  func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newArchiveCommand(now), newRefusedCommand())
	return cmd
}

// archiveFlags are what `ledger archive` was asked for.
type archiveFlags struct{ config, ledger, period, to string }

func newArchiveCommand(now func() time.Time) *cobra.Command {
	var f archiveFlags
	cmd := &cobra.Command{
		Use:   "archive --period YYYY-MM --to FOLDER (--ledger FILE | -c FILE)",
		Short: "Move a month's rows out of the ledger into a file of their own",
		Long: "Move the rows of a month (UTC, by the end of each request) into the SQLite file ledger-YYYY-MM.db, which is a\n" +
			"ledger like any other: `chargeback export --ledger` reads it. The gateway may be running. A row is removed only\n" +
			"when the file, closed and opened again, has the same one. After a failure, or when rows of the month have come\n" +
			"later, the command is given again. The month must be over for seven days.\n\n" +
			"From the first removal on the month can't be read in the ledger any more: whoever asks is told the file.",
		Example: "  sluice ledger archive -c sluice.yaml --period 2025-11 --to /archive",
		Args:    cobra.NoArgs,
		RunE: command(func(cmd *cobra.Command, _ []string) error {
			return f.archive(cmd.Context(), now(), cmd.OutOrStdout())
		}),
	}
	flags := cmd.Flags()
	flags.StringVarP(&f.config, "config", "c", "", "configuration file to take the ledger from")
	flags.StringVar(&f.ledger, "ledger", "", "the ledger, an SQLite file")
	flags.StringVar(&f.period, "period", "", "month, as in 2025-11")
	flags.StringVar(&f.to, "to", "", "folder of the archive; it must exist")
	markRequired(cmd, "period")
	markRequired(cmd, "to")
	cmd.MarkFlagsOneRequired("config", "ledger")
	cmd.MarkFlagsMutuallyExclusive("config", "ledger")
	return cmd
}

func (f *archiveFlags) archive(ctx context.Context, now time.Time, stdout io.Writer) error {
	month, _, err := periodOf(f.period)
	if err != nil {
		return err
	}
	if st, err := os.Stat(f.to); err != nil || !st.IsDir() {
		return fmt.Errorf("cannot archive to %s: the folder does not exist; make it first", f.to)
	}
	a, err := f.move(ctx, month, now)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(stdout, "%s: %d rows moved, %d are in %s\nsha256 %s\n", f.period, a.Moved, a.Rows, a.File, a.SHA256)
	return err
}

func (f *archiveFlags) move(ctx context.Context, month, now time.Time) (ledger.Archived, error) {
	if f.ledger != "" {
		return ledger.Archive(ctx, f.ledger, f.to, month, now)
	}
	cfg, _, err := LoadConfig(f.config)
	if err != nil {
		return ledger.Archived{}, err
	}
	if cfg.Ledger.PostgresFile == "" {
		return ledger.Archive(ctx, cfg.Ledger.Path, f.to, month, now)
	}
	dsn, err := readSecretText(cfg.Ledger.PostgresFile)
	if err != nil {
		return ledger.Archived{}, fmt.Errorf("cannot read ledger.postgresFile: %w", err)
	}
	return ledger.ArchivePostgres(ctx, dsn, f.to, month, now)
}
