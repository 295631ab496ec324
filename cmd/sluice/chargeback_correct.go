package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/big"
	"time"

	"github.com/spf13/cobra"

	"github.com/sluicegate/sluice/tenancy/chargeback"
	"github.com/sluicegate/sluice/tenancy/ledger"
)

// correctFlags are what `chargeback correct` was asked for.
type correctFlags struct {
	booksFlags
	row, reason, by, gpu             string
	input, cached, output, reasoning int64
	void                             bool
}

func newCorrectCommand() *cobra.Command {
	var f correctFlags
	cmd := &cobra.Command{
		Use:   "correct --row ID --reason TEXT (--ledger FILE | -c FILE) (--void | --output-tokens N ...)",
		Short: "Correct what one request was charged",
		Long: "Say what a row of the ledger should have been. The row stays as it is: another one with the difference is\n" +
			"added, at the row's own prices and discount, in the month of the row or, where that is closed, in the first\n" +
			"open one after it. Exports show it as lines of their own, with the reason and who has given it.",
		Example: "  sluice chargeback correct -c sluice.yaml --row 01J9… --output-tokens 120 --reason 'ticket 812: counted twice'",
		Args:    cobra.NoArgs,
		RunE: command(func(cmd *cobra.Command, _ []string) error {
			change, err := f.change(cmd.Flags().Changed)
			if err != nil {
				return err
			}
			return f.correct(cmd.Context(), change, cmd.OutOrStdout())
		}),
	}
	f.add(cmd)
	flags := cmd.Flags()
	flags.StringVar(&f.row, "row", "", "id of the row")
	flags.StringVar(&f.reason, "reason", "", "why; it is in exports")
	flags.StringVar(&f.by, "by", "", "who corrects it; default: the user of the system")
	flags.Int64Var(&f.input, "input-tokens", 0, "what the row should have had, cached tokens included")
	flags.Int64Var(&f.cached, "cached-tokens", 0, "what of the input came from a worker's cache")
	flags.Int64Var(&f.output, "output-tokens", 0, "what the row should have had, reasoning included")
	flags.Int64Var(&f.reasoning, "reasoning-tokens", 0, "what of the output was reasoning")
	flags.StringVar(&f.gpu, "gpu-seconds", "", "what the row should have had, as in 1.25")
	flags.BoolVar(&f.void, "void", false, "the request should not have counted at all")
	markRequired(cmd, "row", "reason")
	cmd.MarkFlagsOneRequired(append([]string{"void"}, amountFlags...)...)
	for _, name := range amountFlags {
		cmd.MarkFlagsMutuallyExclusive("void", name)
	}
	return cmd
}

var amountFlags = []string{"input-tokens", "cached-tokens", "output-tokens", "reasoning-tokens", "gpu-seconds"}

// change is what the flags ask for; given tells which of them were.
func (f *correctFlags) change(given func(string) bool) (c chargeback.Change, err error) {
	c = chargeback.Change{Void: f.void, Reason: f.reason}
	for name, field := range map[string]struct {
		to   **int64
		from *int64
	}{
		"input-tokens": {&c.InputTokens, &f.input}, "cached-tokens": {&c.CachedTokens, &f.cached},
		"output-tokens": {&c.OutputTokens, &f.output}, "reasoning-tokens": {&c.ReasoningTokens, &f.reasoning},
	} {
		if given(name) {
			*field.to = field.from
		}
	}
	if given("gpu-seconds") {
		d, err := secondsOf(f.gpu)
		if err != nil {
			return c, err
		}
		c.GPUTime = &d
	}
	if c.Author, err = whoever(f.by); err != nil {
		return c, err
	}
	return c, nil
}

// secondsOf reads a decimal number of seconds, exactly.
func secondsOf(text string) (time.Duration, error) {
	r, ok := new(big.Rat).SetString(text)
	if ok {
		r.Mul(r, big.NewRat(1_000_000, 1))
	}
	if !ok || !r.IsInt() || !r.Num().IsInt64() || r.Num().Int64() > 1<<50 || r.Sign() < 0 {
		return 0, &usageError{fmt.Sprintf("--gpu-seconds %q should be a number of seconds with at most six decimals, as in 1.25", clip(text))}
	}
	return time.Duration(r.Num().Int64()) * time.Microsecond, nil
}

func (f *correctFlags) correct(ctx context.Context, change chargeback.Change, stdout io.Writer) error {
	if err := f.load(); err != nil {
		return err
	}
	books, err := f.books()
	if err != nil {
		return err
	}
	defer books.Close()
	row, earlier, err := books.Row(ctx, f.row)
	if errors.Is(err, ledger.ErrNoRow) {
		return fmt.Errorf("%w: take it from the ledger's column id, or from \"id\" in the log; rows of archived months can't be corrected", err)
	}
	if err != nil {
		return err
	}
	fix, err := chargeback.Correct(row, earlier, change)
	if err != nil {
		return fmt.Errorf("cannot correct row %s: %w", clip(f.row), err)
	}
	stored, err := books.Correct(ctx, fix)
	if err != nil {
		return err
	}
	cost := formatMicro(stored.Costs.Total()) + " " + stored.Currency
	if stored.Currency == "" {
		cost = "no price"
	}
	_, err = fmt.Fprintf(stdout, "row %s: corrected by row %s in %s: %+d input tokens, %+d output tokens: %s\n",
		row.ID, stored.ID, stored.Period.Format("2006-01"), stored.InputTokens, stored.OutputTokens, cost)
	return err
}
