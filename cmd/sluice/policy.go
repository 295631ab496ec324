package main

import (
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/sluicegate/sluice/policy"
	"github.com/sluicegate/sluice/policy/policytest"
)

func newPolicyCommand(now func() time.Time) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "policy",
		Short: "Tools for policy authors",
		Args:  cobra.NoArgs,
		RunE:  func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newPolicyTestCommand(), newPolicyExplainCommand(now), newPolicyReplayCommand(now), newPolicyEnvCommand())
	return cmd
}

// policyTestFlags are what `policy test` was asked for.
type policyTestFlags struct {
	run, format, coverage string
	verbose               bool
	minCoverage           float64
}

func newPolicyTestCommand() *cobra.Command {
	var f policyTestFlags
	cmd := &cobra.Command{
		Use:   "test PATH…",
		Short: "Run the PolicyTest documents of files and folders",
		Long: "Run the PolicyTest documents of files and folders, the latter recursively. Each test is run again with\n" +
			"the bindings in other orders. The exit code is 1 when a test fails, or when the tests have seen less of\n" +
			"the rules than --min-coverage asks for.",
		Example: "  sluice policy test --coverage --min-coverage 100 policies",
		Args:    cobra.MinimumNArgs(1),
		RunE: command(func(cmd *cobra.Command, args []string) error {
			opts, err := f.options()
			if err != nil {
				return err
			}
			root, paths, err := policyPaths(args)
			if err != nil {
				return err
			}
			result, err := policytest.Run(os.DirFS(root), paths, opts)
			if err != nil {
				return locatedIn(root, err)
			}
			r := policyReport{out: cmd.OutOrStdout(), root: root, result: result, policyTestFlags: f}
			return r.write()
		}),
	}
	flags := cmd.Flags()
	flags.StringVar(&f.run, "run", "", "only tests whose suite/test matches this regular expression")
	flags.StringVar(&f.coverage, "coverage", "", "list the outcomes that no test has seen: of expressions, or with =operands also of what && || ?: join")
	flags.Lookup("coverage").NoOptDefVal = "expressions"
	flags.Float64Var(&f.minCoverage, "min-coverage", 0, "fail below this share of outcomes seen, in per cent")
	flags.BoolVarP(&f.verbose, "verbose", "v", false, "list tests that pass, too")
	flags.StringVar(&f.format, "format", "text", "text or junit")
	return cmd
}

func (f *policyTestFlags) options() (policytest.Options, error) {
	var opts policytest.Options
	if f.format != "text" && f.format != "junit" {
		return opts, &usageError{fmt.Sprintf("--format %q is not known, should be text or junit", clip(f.format))}
	}
	if !(f.minCoverage >= 0 && f.minCoverage <= 100) {
		return opts, &usageError{fmt.Sprintf("--min-coverage is %g, should be between 0 and 100", f.minCoverage)}
	}
	if f.coverage != "" && f.coverage != "expressions" && f.coverage != "operands" {
		return opts, &usageError{fmt.Sprintf("--coverage=%q is not known, should be expressions or operands", clip(f.coverage))}
	}
	opts.Operands = f.coverage == "operands"
	if f.run == "" {
		return opts, nil
	}
	re, err := regexp.Compile(f.run)
	if err != nil {
		return opts, &usageError{fmt.Sprintf("--run is not a regular expression: %v", err)}
	}
	opts.Run = re
	return opts, nil
}

// policyPaths returns a folder that holds all of paths, and the paths as they are named inside it. It is
// the working directory where it can be, so that messages name files as the user did.
func policyPaths(paths []string) (root string, inside []string, err error) {
	for _, p := range paths {
		if _, err := os.Stat(p); err != nil {
			return "", nil, fmt.Errorf("cannot read the policies: %w", err)
		}
	}
	root = "."
	if !slices.ContainsFunc(paths, func(p string) bool { return !filepath.IsLocal(p) }) {
		for _, p := range paths {
			inside = append(inside, filepath.ToSlash(filepath.Clean(p)))
		}
		return root, inside, nil
	}
	root = string(filepath.Separator)
	for _, p := range paths {
		abs, err := filepath.Abs(p)
		if err != nil {
			return "", nil, fmt.Errorf("cannot read the policies: %w", err)
		}
		rel, err := filepath.Rel(root, abs)
		if err != nil {
			return "", nil, fmt.Errorf("cannot read the policies: %w", err)
		}
		inside = append(inside, filepath.ToSlash(rel))
	}
	return root, inside, nil
}

// locatedIn makes the file names of load errors start where root does.
func locatedIn(root string, err error) error {
	var out []error
	for _, part := range joined(err) {
		le, ok := errors.AsType[*policy.LoadError](part)
		if !ok {
			out = append(out, part)
			continue
		}
		located := make([]policy.Error, len(le.Errors))
		for i, e := range le.Errors {
			located[i] = inFolder(root, e)
		}
		out = append(out, &policy.LoadError{Errors: located})
	}
	if len(out) == 1 {
		return out[0]
	}
	return errors.Join(out...)
}

// policyReport writes the outcome of a run.
type policyReport struct {
	policyTestFlags
	out    io.Writer
	root   string
	result *policytest.Result
}

func (r *policyReport) write() error {
	failed := 0
	for i := range r.result.Tests {
		if len(r.result.Tests[i].Failures) > 0 {
			failed++
		}
	}
	if r.format == "junit" {
		if err := r.junit(failed); err != nil {
			return fmt.Errorf("cannot write the report: %w", err)
		}
	} else {
		r.text(failed)
	}
	if failed > 0 || r.result.Coverage.Percent() < r.minCoverage {
		return errReported
	}
	return nil
}

func (r *policyReport) text(failed int) {
	for i := range r.result.Tests {
		t := &r.result.Tests[i]
		switch {
		case len(t.Failures) > 0:
			fmt.Fprintf(r.out, "FAIL %s/%s (%s)\n", t.Suite, t.Name, r.place(t.At))
			for _, text := range t.Failures {
				fmt.Fprintf(r.out, "     %s\n", text)
			}
		case r.verbose:
			fmt.Fprintf(r.out, "ok   %s/%s\n", t.Suite, t.Name)
		}
	}
	for _, w := range r.result.Warnings {
		fmt.Fprintf(r.out, "warning: %s (%s)\n", inFolder(r.root, w.Error).Error(), w.Kind)
	}
	fmt.Fprintf(r.out, "%s, %d failed\n", count(len(r.result.Tests), "test"), failed)
	if r.coverage == "" && r.minCoverage == 0 {
		return
	}
	c := r.result.Coverage
	missing := c.Missing()
	fmt.Fprintf(r.out, "coverage %.1f %% (%d of %d outcomes)\n", c.Percent(), len(c.Items)-len(missing), len(c.Items))
	if r.coverage != "" {
		for _, m := range missing {
			what := strings.TrimSpace(m.Rule + " " + m.Field)
			if m.Operand != "" {
				what += ": " + m.Operand
			}
			fmt.Fprintf(r.out, "  %s: %s %s never %s\n", r.place(m.At), m.Kind, what, m.Outcome)
		}
	}
	if c.Percent() < r.minCoverage {
		fmt.Fprintf(r.out, "FAIL coverage is below %g %%\n", r.minCoverage)
	}
}

func (r *policyReport) place(at policy.Error) string {
	at = inFolder(r.root, at)
	return fmt.Sprintf("%s:%d:%d", at.File, at.Line, at.Col)
}

type junitSuites struct {
	XMLName xml.Name     `xml:"testsuites"`
	Tests   int          `xml:"tests,attr"`
	Failed  int          `xml:"failures,attr"`
	Suites  []junitSuite `xml:"testsuite"`
}

type junitSuite struct {
	Name   string      `xml:"name,attr"`
	Tests  int         `xml:"tests,attr"`
	Failed int         `xml:"failures,attr"`
	Cases  []junitCase `xml:"testcase"`
}

type junitCase struct {
	Name    string        `xml:"name,attr"`
	Class   string        `xml:"classname,attr"`
	File    string        `xml:"file,attr,omitempty"`
	Line    int           `xml:"line,attr,omitempty"`
	Failure *junitFailure `xml:"failure"`
}

type junitFailure struct {
	Message string `xml:"message,attr"`
	Text    string `xml:",chardata"`
}

// junit writes the report in the XML that CI systems read. Coverage below the minimum is a failed test of
// its own, so that it is seen where the others are.
func (r *policyReport) junit(failed int) error {
	doc := junitSuites{Tests: len(r.result.Tests), Failed: failed}
	add := func(suite string, c junitCase) {
		i := slices.IndexFunc(doc.Suites, func(s junitSuite) bool { return s.Name == suite })
		if i < 0 {
			i = len(doc.Suites)
			doc.Suites = append(doc.Suites, junitSuite{Name: suite})
		}
		s := &doc.Suites[i]
		s.Tests++
		if c.Failure != nil {
			s.Failed++
		}
		s.Cases = append(s.Cases, c)
	}
	for i := range r.result.Tests {
		t := &r.result.Tests[i]
		c := junitCase{Name: t.Name, Class: t.Suite, File: inFolder(r.root, t.At).File, Line: t.At.Line}
		if len(t.Failures) > 0 {
			c.Failure = &junitFailure{Message: t.Failures[0], Text: strings.Join(t.Failures, "\n")}
		}
		add(t.Suite, c)
	}
	if percent := r.result.Coverage.Percent(); percent < r.minCoverage {
		doc.Tests++
		doc.Failed++
		text := fmt.Sprintf("coverage is %.1f %%, should be at least %g %%", percent, r.minCoverage)
		add("coverage", junitCase{Name: "min-coverage", Class: "coverage", Failure: &junitFailure{Message: text}})
	}
	data, err := xml.MarshalIndent(doc, "", "  ")
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(r.out, "%s%s\n", xml.Header, data)
	return err
}
