package main

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	osuser "os/user"
	"time"

	"github.com/spf13/cobra"

	"github.com/sluicegate/sluice/tenancy"
	"github.com/sluicegate/sluice/tenancy/chargeback"
	"github.com/sluicegate/sluice/tenancy/ledger"
)

// closeFlags are what `chargeback close` was asked for.
type closeFlags struct {
	booksFlags
	period, by string
}

func newCloseCommand(now func() time.Time) *cobra.Command {
	var f closeFlags
	cmd := &cobra.Command{
		Use:   "close --period YYYY-MM (--ledger FILE | -c FILE)",
		Short: "Close a month: its charges don't change any more",
		Long: "Close a month (UTC) for good. From then on the database refuses whatever would change a row of it, and an\n" +
			"export is the same to the byte, which the SHA-256 that is kept with the closing proves. A row that comes\n" +
			"later is booked in the first month after it that is open, as a correction.\n\n" +
			"The month must be over for chargeback.settleDelay, 24 hours by default. It is not closed while rows of it wait\n" +
			"in the spool beside the ledger, or while requests that began in it are in flight. With PostgreSQL that is known\n" +
			"of the gateway whose files lie at ledger.path alone: see to it that the others have stored their rows.",
		Example: "  sluice chargeback close -c sluice.yaml --period 2026-11 --by j.doe",
		Args:    cobra.NoArgs,
		RunE: command(func(cmd *cobra.Command, _ []string) error {
			return f.close(cmd.Context(), now(), cmd.OutOrStdout())
		}),
	}
	flags := cmd.Flags()
	f.add(cmd)
	flags.StringVar(&f.period, "period", "", "month, as in 2026-11")
	flags.StringVar(&f.by, "by", "", "who closes it; default: the user of the system")
	markRequired(cmd, "period")
	return cmd
}

func (f *closeFlags) close(ctx context.Context, now time.Time, stdout io.Writer) error {
	from, to, err := periodOf(f.period)
	if err != nil {
		return err
	}
	if err := f.load(); err != nil {
		return err
	}
	if earliest := to.Add(f.charges.SettleDelay); now.Before(earliest) {
		return fmt.Errorf("cannot close %s before %s: rows come late, and chargeback.settleDelay is %s", f.period, earliest.Format(time.RFC3339), f.charges.SettleDelay)
	}
	by, err := whoever(f.by)
	if err != nil {
		return err
	}
	books, err := f.books()
	if err != nil {
		return err
	}
	defer books.Close()
	if err := f.settled(ctx, books, to); err != nil {
		return err
	}
	meta, err := json.Marshal(f.charges.terms())
	if err != nil {
		return err
	}
	closing, err := books.Freeze(ctx, ledger.Closing{Month: from, At: now, By: by, Meta: string(meta)})
	if err != nil {
		return err
	}
	if closing.Sealed() {
		_, err := fmt.Fprintf(stdout, "%s: was closed on %s by %s\n", f.period, closing.At.Format(time.RFC3339), closing.By)
		return err
	}
	totals, err := seal(ctx, books, closing, f.period)
	if err != nil {
		if thawed := books.Thaw(context.WithoutCancel(ctx), from); thawed != nil {
			err = errors.Join(err, fmt.Errorf("the month takes no rows meanwhile; close it again: %w", thawed))
		}
		return err
	}
	writeTotals(stdout, f.period, totals)
	f.writeRefused(stdout, f.period, from, to)
	_, err = fmt.Fprintf(stdout, "%s: closed by %s, %s\nsha256 of the CSV  %s\nsha256 of the JSON %s\n", f.period, closing.By, count(int(closing.Rows), "row"), closing.CSV, closing.JSON)
	return err
}

// settled returns an error while something may yet become a row of the time before to.
func (f *closeFlags) settled(ctx context.Context, books *ledger.Books, to time.Time) error {
	if err := books.CatchUp(ctx, f.ledgerPath()); err != nil {
		return err
	}
	p, err := books.Pending(ctx, f.ledgerPath(), to)
	switch {
	case err != nil:
		return err
	case p.SpoolRows > 0:
		return fmt.Errorf("cannot close %s: %s in the spool beside %s; the gateway stores them once the database takes rows", f.period, waits(p.SpoolRows), f.ledgerPath())
	case p.Open > 0:
		return fmt.Errorf("cannot close %s: %s in flight since %s by the files beside %s; if the gateway has died, start it once", f.period, count(p.Open, "request"), p.Oldest.UTC().Format(time.RFC3339), f.ledgerPath())
	}
	return nil
}

func waits(rows int) string {
	if rows == 1 {
		return "1 row waits"
	}
	return fmt.Sprintf("%d rows wait", rows)
}

// seal writes down what the closed month comes to.
func seal(ctx context.Context, books *ledger.Books, c *ledger.Closing, period string) ([]tenancy.Totals, error) {
	rows, err := books.Snapshot(ctx)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	s, err := closedStatement(ctx, rows, c, period)
	if err != nil {
		return nil, err
	}
	c.Rows = s.Rows
	if c.CSV, c.JSON, err = digests(s); err != nil {
		return nil, err
	}
	totals, err := rows.Totals(ctx, c.Month, c.Month.AddDate(0, 1, 0))
	if err != nil {
		return nil, err
	}
	if err := rows.Close(); err != nil {
		return nil, err
	}
	return totals, books.Seal(ctx, *c)
}

// closedStatement is the statement of a month on the terms of its closing.
func closedStatement(ctx context.Context, rows chargeback.Source, c *ledger.Closing, period string) (*chargeback.Statement, error) {
	var terms chargeback.Terms
	if err := json.Unmarshal([]byte(c.Meta), &terms); err != nil {
		return nil, fmt.Errorf("cannot read on what terms %s was closed: %w", period, err)
	}
	return chargeback.NewStatement(ctx, rows, period, terms, chargeback.PeriodClosed)
}

func digests(s *chargeback.Statement) (csv, json string, err error) {
	for _, f := range []struct {
		render func() ([]byte, error)
		into   *string
	}{{s.CSV, &csv}, {s.JSON, &json}} {
		text, err := f.render()
		if err != nil {
			return "", "", err
		}
		sum := sha256.Sum256(text)
		*f.into = hex.EncodeToString(sum[:])
	}
	return csv, json, nil
}

// asClosed returns an error unless a statement is the one that a month was closed with.
func asClosed(s *chargeback.Statement, c *ledger.Closing, period string) error {
	csv, json, err := digests(s)
	if err != nil {
		return err
	}
	if csv != c.CSV || json != c.JSON || s.Rows != c.Rows {
		return fmt.Errorf("the ledger of %s is not the one that was closed on %s by %s: it has %d rows and gives a CSV of sha256 %s, it had %d and %s; restore it from a copy",
			period, c.At.Format(time.RFC3339), c.By, s.Rows, csv, c.Rows, c.CSV)
	}
	return nil
}

// whoever is a given name, or that of the system's user.
func whoever(given string) (string, error) {
	if given != "" {
		return clip(given), nil
	}
	u, err := osuser.Current()
	if err != nil {
		return "", &usageError{"give --by: the name of the system's user is not known"}
	}
	return cmp.Or(u.Username, u.Uid), nil
}
