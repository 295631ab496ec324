package main

import (
	"context"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/sluicegate/sluice/tenancy/ledger"
)

// refusedFlags are what `ledger refused` was asked for.
type refusedFlags struct {
	config, ledger string
	putBack        bool
}

func newRefusedCommand() *cobra.Command {
	var f refusedFlags
	cmd := &cobra.Command{
		Use:   "refused (--ledger FILE | -c FILE)",
		Short: "List the rows that the ledger's database would not have, or put them back",
		Long: "List the rows in the file -refused beside the ledger: when each was refused, whose it is, and why. With --put-back\n" +
			"they are offered to the database again, while the gateway may be running. A row that it takes leaves the file and\n" +
			"has the flag recovered; one that it still refuses stays, and the exit code is 1. A row that is there already, the\n" +
			"same, leaves the file, too, so that giving the command again is harmless.",
		Example: "  sluice ledger refused -c sluice.yaml --put-back",
		Args:    cobra.NoArgs,
		RunE: command(func(cmd *cobra.Command, _ []string) error {
			return f.run(cmd.Context(), cmd.OutOrStdout())
		}),
	}
	flags := cmd.Flags()
	flags.StringVarP(&f.config, "config", "c", "", "configuration file to take the ledger from")
	flags.StringVar(&f.ledger, "ledger", "", "the ledger, an SQLite file")
	flags.BoolVar(&f.putBack, "put-back", false, "offer the rows to the database again")
	cmd.MarkFlagsOneRequired("config", "ledger")
	cmd.MarkFlagsMutuallyExclusive("config", "ledger")
	return cmd
}

func (f *refusedFlags) run(ctx context.Context, stdout io.Writer) error {
	books := LedgerConfig{Path: f.ledger}
	if f.config != "" {
		cfg, _, err := LoadConfig(f.config)
		if err != nil {
			return err
		}
		books = cfg.Ledger
	}
	if !f.putBack {
		rows, err := ledger.Refused(books.Path)
		if err != nil {
			return err
		}
		listRefused(stdout, rows)
		fmt.Fprintf(stdout, "%s refused\n", count(len(rows), "row"))
		return nil
	}
	p, err := putBackRefused(ctx, &books)
	if err != nil {
		return err
	}
	listRefused(stdout, p.Left)
	fmt.Fprintf(stdout, "%s put back, %d there already, %d still refused\n", count(p.Stored, "row"), p.There, len(p.Left))
	if len(p.Left) > 0 {
		return errReported
	}
	return nil
}

func putBackRefused(ctx context.Context, c *LedgerConfig) (ledger.PutBack, error) {
	if c.PostgresFile == "" {
		return ledger.PutBackRefused(ctx, c.Path)
	}
	dsn, err := readSecretText(c.PostgresFile)
	if err != nil {
		return ledger.PutBack{}, fmt.Errorf("cannot read ledger.postgresFile: %w", err)
	}
	return ledger.PutBackRefusedPostgres(ctx, c.Path, dsn)
}

func listRefused(w io.Writer, rows []ledger.RefusedRow) {
	for i := range rows {
		r := &rows[i]
		fmt.Fprintf(w, "%s  %s  tenant %s, model %s, ended %s, %s %s: %s\n", r.At.UTC().Format(time.RFC3339), r.Row.ID, r.Row.Tenant, r.Row.Model,
			r.Row.End().UTC().Format(time.RFC3339), formatMicro(r.Row.Costs.Total()), r.Row.Currency, r.Error)
	}
}
