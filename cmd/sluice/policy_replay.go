package main

import (
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/sluicegate/sluice/policy"
	"github.com/sluicegate/sluice/policy/replay"
)

// replayFlags are what `policy replay` was asked for.
type replayFlags struct {
	logs                                []string
	config, candidate, baseline, format string
	allowIndeterminate                  bool
}

func newPolicyReplayCommand(now func() time.Time) *cobra.Command {
	var f replayFlags
	cmd := &cobra.Command{
		Use:   "replay --log FILE --candidate DIR [--baseline DIR] [-c FILE]",
		Short: "Say what other policies would have changed in a decision log",
		Long: "Judge the decisions of a log anew by a candidate set of policies and print, by tenant and rule, what\n" +
			"changes against a baseline set, or against what the log says: requests refused or admitted, other pools,\n" +
			"classes, caps, isolation, labels or limits. Where the candidate needs what the log lacks or hides, the\n" +
			"outcome is indeterminate. Counters are not replayed.\n\n" +
			"Without a configuration, pools are not compared, and without a baseline only verdicts are. The exit code\n" +
			"is 0 when nothing changes, 3 when something does or is indeterminate, and 1 when a line cannot be read.",
		Example: "  sluice policy replay -c sluice.yaml --log decisions.jsonl --candidate new-policies",
		Args:    cobra.NoArgs,
		RunE: command(func(cmd *cobra.Command, _ []string) error {
			if err := f.check(); err != nil {
				return err
			}
			report, err := f.run(cmd.Context(), cmd.InOrStdin(), now())
			if err != nil {
				return err
			}
			return f.print(cmd.OutOrStdout(), report)
		}),
	}
	flags := cmd.Flags()
	flags.StringArrayVar(&f.logs, "log", nil, "decision log, as JSON lines; .gz is unpacked, - is standard input; may be given several times")
	flags.StringVar(&f.candidate, "candidate", "", "folder with the policies to try")
	flags.StringVar(&f.baseline, "baseline", "", "folder with the policies to compare with; without it, what the log says")
	flags.StringVarP(&f.config, "config", "c", "", "configuration file of the gateway")
	flags.StringVar(&f.format, "format", "text", "text or json")
	flags.BoolVar(&f.allowIndeterminate, "allow-indeterminate", false, "exit with 0 when nothing changes but what is indeterminate")
	return cmd
}

func (f *replayFlags) check() error {
	switch {
	case len(f.logs) == 0:
		return &usageError{"--log is missing: name the decision log"}
	case f.candidate == "":
		return &usageError{"--candidate is missing: name the folder with the policies to try"}
	case f.format != "text" && f.format != "json":
		return &usageError{fmt.Sprintf("--format %q is not known, should be text or json", clip(f.format))}
	}
	return nil
}

func (f *replayFlags) run(ctx context.Context, stdin io.Reader, now time.Time) (*replay.Report, error) {
	loader, err := newPolicyLoader(f.config, now)
	if err != nil {
		return nil, err
	}
	candidate, err := loader.load(f.candidate)
	if err != nil {
		return nil, err
	}
	var baseline *policy.Set
	if f.baseline != "" {
		if baseline, err = loader.load(f.baseline); err != nil {
			return nil, err
		}
	}
	var logs []replay.Log
	for _, name := range f.logs {
		logs = append(logs, replay.Log{Name: name, Open: func() (io.ReadCloser, error) { return openLog(name, stdin) }})
	}
	return replay.Run(ctx, logs, baseline, candidate, replay.Options{Apart: f.config == ""})
}

// openLog opens a file of a decision log.
func openLog(name string, stdin io.Reader) (io.ReadCloser, error) {
	if name == "-" {
		return io.NopCloser(stdin), nil
	}
	file, err := os.Open(name)
	if err != nil || !strings.HasSuffix(name, ".gz") {
		return file, err
	}
	unpacked, err := gzip.NewReader(file)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("%s: %w", name, err), file.Close())
	}
	return &unpackedFile{unpacked, file}, nil
}

// unpackedFile closes the file together with its reader.
type unpackedFile struct {
	*gzip.Reader
	file *os.File
}

func (u *unpackedFile) Close() error { return errors.Join(u.Reader.Close(), u.file.Close()) }

// replayOutput is what `policy replay --format json` prints. It grows by fields only.
type replayOutput struct {
	Baseline  string          `json:"baseline,omitempty"`
	Candidate string          `json:"candidate"`
	Lines     int             `json:"lines"`
	Decisions int             `json:"decisions"`
	Unchanged int             `json:"unchanged"`
	Changed   int             `json:"changed"`
	Undecided int             `json:"indeterminate"`
	Broken    int             `json:"broken"`
	Truncated int             `json:"truncated"`
	Revisions map[string]int  `json:"revisions"`
	Changes   []replay.Change `json:"changes"`
	Faults    []string        `json:"faults,omitempty"`
}

func (f *replayFlags) print(out io.Writer, r *replay.Report) error {
	var err error
	if f.format == "json" {
		o := replayOutput{
			Baseline: r.Baseline, Candidate: r.Candidate, Lines: r.Lines, Decisions: r.Decisions,
			Unchanged: r.Decisions - r.Changed - r.Undecided, Changed: r.Changed, Undecided: r.Undecided,
			Broken: r.Broken, Truncated: r.Truncated, Revisions: r.Revisions, Changes: r.Changes,
		}
		for _, fault := range r.Faults {
			o.Faults = append(o.Faults, faultText(fault))
		}
		err = writeJSON(out, &o)
	} else {
		err = f.text(out, r)
	}
	switch {
	case err != nil:
		return fmt.Errorf("cannot write the report: %w", err)
	case r.Broken > 0:
		return errReported
	case r.Decisions == 0:
		return errors.New("the log has no decision: check that it is a decision log")
	case r.Changed > 0 || r.Undecided > 0 && !f.allowIndeterminate:
		return errFound
	}
	return nil
}

func faultText(f replay.Fault) string { return fmt.Sprintf("%s:%d: %s", f.Log, f.Line, f.Text) }

func (f *replayFlags) text(out io.Writer, r *replay.Report) error {
	for _, fault := range r.Faults {
		fmt.Fprintln(out, faultText(fault))
	}
	if more := r.Broken - len(r.Faults); more > 0 {
		fmt.Fprintf(out, "and %s more that cannot be read\n", count(more, "line"))
	}
	if r.Truncated > 0 {
		fmt.Fprintf(out, "%s cut off at the end of a file\n", count(r.Truncated, "line"))
	}
	against := "what the log says"
	if r.Baseline != "" {
		against = r.Baseline
	}
	fmt.Fprintf(out, "%s judged by %s\nagainst %s\n", count(r.Decisions, "decision"), r.Candidate, against)
	if f.config == "" && f.baseline == "" {
		fmt.Fprintln(out, "no configuration and no baseline: only verdicts are compared")
	} else if f.config == "" {
		fmt.Fprintln(out, "no configuration: pools are not compared")
	}
	table := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	what := replay.What("")
	for _, c := range r.Changes {
		if c.What != what {
			what = c.What
			fmt.Fprintf(table, "\n%s\n", what)
			fmt.Fprintln(table, "  count\ttenant\trule\tfrom\tto\texample")
		}
		fmt.Fprintf(table, "  %d\t%s\t%s\t%s\t%s\t%s\n", c.Count, cell(c.Tenant), cell(c.Rule), cell(c.From), cell(c.To), cell(c.Example))
	}
	if err := table.Flush(); err != nil {
		return err
	}
	if len(r.Changes) > 0 {
		fmt.Fprintln(out)
	}
	_, err := fmt.Fprintf(out, "%d unchanged, %d changed, %d indeterminate\n", r.Decisions-r.Changed-r.Undecided, r.Changed, r.Undecided)
	return err
}

// cell is a text as a table may show it: without what could disturb a terminal, as a log may hold anything.
func cell(s string) string {
	if s == "" {
		return "-"
	}
	return shown([]rune(strings.ReplaceAll(s, "\t", " ")))
}
