// Command sluice is an admission and routing gateway for LLM platforms on vLLM.
//
// The subcommands are one file each; app.go is the only place where the gateway's parts are built and
// joined, and config.go the only one that knows the format of the configuration file.
package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"
	_ "time/tzdata" // policies name time zones, and a container may have none

	"github.com/spf13/cobra"

	"github.com/sluicegate/sluice/policy"
)

// Exit codes of every subcommand.
const (
	exitOK     = 0
	exitFailed = 1 // what was asked for did not work or did not hold
	exitUsage  = 2 // the command line is not understood
	exitFound  = 3 // what was asked about holds: a denial that was explained, a change that a replay has found
)

func main() {
	os.Exit(execute(context.Background(), time.Now, os.Args[1:], os.Stdin, os.Stdout, os.Stderr))
}

// execute runs one command line and returns its exit code. Results go to stdout, everything meant for a
// person beside them to stderr. now is the clock of commands that only look at files; `serve` and `demo`
// live in real time.
func execute(ctx context.Context, now func() time.Time, args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	root := newRootCommand(now)
	root.SetArgs(args)
	root.SetIn(stdin)
	root.SetOut(stdout)
	root.SetErr(stderr)
	cmd, err := root.ExecuteContextC(ctx)
	if err == nil {
		return exitOK
	}
	if f, ok := errors.AsType[*failure](err); ok {
		f.report(stderr)
		return cmp.Or(f.code, exitFailed)
	}
	fmt.Fprintf(stderr, "sluice: %v\nRun '%s --help' for usage.\n", err, cmd.CommandPath())
	return exitUsage
}

// failure is an error of a command that was understood. Every other error is one of usage.
type failure struct {
	err  error // nil: the command has already said what failed
	code int   // 0 stands for exitFailed
}

func (f *failure) Error() string { return fmt.Sprint(f.err) }
func (f *failure) Unwrap() error { return f.err }

// report writes why to w. Faults of files, one a line, start with the file's name as editors and CI systems
// expect, so they stand alone.
func (f *failure) report(w io.Writer) {
	if f.err == nil {
		return
	}
	text := f.err.Error()
	_, inConfig := errors.AsType[*ConfigError](f.err)
	_, inPolicies := errors.AsType[*policy.LoadError](f.err)
	if n := lines(f.err); inConfig || inPolicies || n > 1 {
		writeFaults(w, f.err)
		fmt.Fprintf(w, "sluice: %s\n", count(n, "error"))
		return
	}
	fmt.Fprintf(w, "sluice: %s\n", text)
}

// count writes a number and its noun, as in "1 error" or "3 errors".
func count(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}

// errReported fails a command that has already written why.
var errReported = &failure{}

// errFound ends a command with the code exitFound.
var errFound = &failure{code: exitFound}

// command turns a command's work into cobra's RunE: its errors are failures, not errors of usage.
func command(work func(cmd *cobra.Command, args []string) error) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, args []string) error {
		err := work(cmd, args)
		if err == nil {
			return nil
		}
		if usage, ok := errors.AsType[*usageError](err); ok {
			return usage
		}
		if f, ok := errors.AsType[*failure](err); ok {
			return f
		}
		return &failure{err: err}
	}
}

// usageError is an error of usage that only the command itself can find.
type usageError struct{ text string }

func (e *usageError) Error() string { return e.text }

func newRootCommand(now func() time.Time) *cobra.Command {
	root := &cobra.Command{
		Use:           "sluice",
		Short:         "Admission and routing gateway for LLM platforms on vLLM",
		SilenceErrors: true,
		SilenceUsage:  true,
		RunE:          func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	root.CompletionOptions.HiddenDefaultCmd = true
	root.AddCommand(
		newServeCommand(),
		newCheckCommand(now),
		newPolicyCommand(now),
		newKeysCommand(now),
		newChargebackCommand(now),
		newLedgerCommand(now),
		newTokensCommand(),
		newDemoCommand(),
		newSimworkerCommand(),
		newSimulateCommand(),
		newVersionCommand(),
	)
	return root
}
