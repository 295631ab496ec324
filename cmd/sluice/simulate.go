package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/sluicegate/sluice/scoring/simulate"
)

const simulateLong = `Route a load over a simulated fleet in virtual time, one routing strategy against another.

The load is a trace (--trace FILE, in Mooncake's format: one JSON object a line with timestamp in ms,
input_length, output_length and hash_ids, one per 512 prompt tokens) or synthetic (--workload NAME):

  shared-prefix  prompts begin with one of --prefixes prefixes of --prefix-tokens tokens
  mixed          half of the prompts begin with one of 2 prefixes of 3,000 tokens, 30 % with one of 8 of
                 2,000, 20 % with one of 40 of 1,000; --buckets changes that
  multi-turn     conversations that begin with --prefix-tokens common tokens and grow by --turns turns, the
                 next one --think after the answer
  independent    prompts that share nothing

Requests arrive in a Poisson process of --rate a second, or --streams of them are under way at any time.
A trace has times of its own, which --rate-scale divides.

A worker is the engine of the simulated workers that 'sluice demo' starts: steps with a token budget, a
block cache with eviction, cache events. The router is the live one and learns of the workers only what it
would learn of real ones. Strategies: ttft (the live default), random, round-robin, least-loaded,
prefix-only, and oracle, which sees the workers' true state and takes the least true TTFT. On demand there is
oracle-foresight, which also knows the next arrivals; it is ten times slower.

Equal flags give equal results.`

const simulateExample = `  sluice simulate --workload mixed --workers 4 --rate 30
  sluice simulate --trace conversation_trace.jsonl --rate-scale 2 --strategy ttft,oracle --plot ttft.svg
  sluice simulate --workload shared-prefix --streams 32 --slow 0=4 --format json`

func newSimulateCommand() *cobra.Command {
	var f simulateFlags
	cmd := &cobra.Command{
		Use:     "simulate [--trace FILE | --workload NAME]",
		Short:   "Route a load over a simulated fleet in virtual time, strategy against strategy",
		Long:    simulateLong,
		Example: simulateExample,
		Args:    cobra.NoArgs,
		RunE: command(func(cmd *cobra.Command, _ []string) error {
			f.given = cmd.Flags().Changed
			return runSimulate(cmd.OutOrStdout(), &f)
		}),
	}
	f.register(cmd.Flags())
	return cmd
}

// runSimulate writes the report to out, and the plot to its file.
func runSimulate(out io.Writer, f *simulateFlags) error {
	if err := f.check(); err != nil {
		return err
	}
	strategies, err := f.chosen()
	if err != nil {
		return err
	}
	cfg, err := f.config()
	if err != nil {
		return err
	}
	plan, err := f.plan(cfg)
	if err != nil {
		return err
	}
	var plot *os.File
	if f.plot != "" {
		// A file that can't be written should not be found out after minutes.
		if plot, err = os.Create(f.plot); err != nil {
			return fmt.Errorf("cannot write the plot: %w", err)
		}
		defer plot.Close()
	}
	report := simulate.Report{
		Workload: plan.Name, Requests: len(plan.Requests), Workers: cfg.Workers, Seed: cfg.Seed,
		Objective: float64(cfg.Objective) / float64(time.Millisecond),
	}
	if report.Results, err = runAll(cfg, plan, strategies); err != nil {
		return f.explain(err)
	}
	if plot != nil {
		if err := errors.Join(report.WriteSVG(plot), plot.Close()); err != nil {
			return fmt.Errorf("cannot write the plot: %w", err)
		}
	}
	if f.format == "json" {
		return report.WriteJSON(out)
	}
	return report.WriteTable(out)
}

// runAll runs the strategies, as many at once as there are processors. Runs share nothing that they change,
// so the results do not depend on it.
func runAll(cfg *simulate.Config, plan *simulate.Plan, strategies []simulate.Strategy) ([]*simulate.Result, error) {
	results := make([]*simulate.Result, len(strategies))
	errs := make([]error, len(strategies))
	slots := make(chan struct{}, runtime.GOMAXPROCS(0))
	var all sync.WaitGroup
	for i, s := range strategies {
		slots <- struct{}{}
		all.Go(func() {
			defer func() { <-slots }()
			results[i], errs[i] = simulate.Run(cfg, plan, s)
		})
	}
	all.Wait()
	for _, err := range errs {
		if err != nil {
			return nil, err // all fail alike: of the configuration or the plan
		}
	}
	return results, nil
}

// explain says what to change about a load that does not fit.
func (f *simulateFlags) explain(err error) error {
	long, ok := errors.AsType[*simulate.TooLongError](err)
	if !ok {
		return err
	}
	what := "--workload " + f.workload
	if f.trace != "" {
		what = f.trace
	}
	return fmt.Errorf("%s: request %d needs %d tokens of cache, and a worker has %d: raise --cache-blocks, or choose a larger --profile (%s)",
		what, long.Request, long.Tokens, long.Limit, strings.Join(profileNames(), ", "))
}
