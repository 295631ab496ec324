package policytest

import (
	"errors"
	"fmt"
	"io/fs"
	"path"
	"regexp"
	"slices"

	"github.com/sluicegate/sluice/policy"
)

// Options choose what is run. The zero value runs everything.
type Options struct {
	// Run selects tests by a match in "suite/test".
	Run *regexp.Regexp
	// Orders is how many shuffled orders of the bindings each test is repeated
	// in. Zero means 3.
	Orders int
	// Operands makes the operands of && || ?: count for coverage, each seen true
	// and false.
	Operands bool
}

// Result is the outcome of a run.
type Result struct {
	Tests    []TestResult
	Coverage Coverage
	// Warnings of the loaded sets, without repeats.
	Warnings []policy.Warning
}

// Passed reports whether every test has passed.
func (r *Result) Passed() bool {
	return !slices.ContainsFunc(r.Tests, func(t TestResult) bool { return len(t.Failures) > 0 })
}

// TestResult is the outcome of one test. It has passed when there are no
// failures.
type TestResult struct {
	Suite, Name string
	// At is the test's place, without a text.
	At       policy.Error
	Failures []string
}

// Run runs the PolicyTest documents of the given files and directories of
// fsys; directories are searched recursively for *.yaml and *.yml. The error
// says that documents could not be loaded; it holds every *policy.LoadError.
// A run without a single test is an error, since a wrong path would otherwise
// pass.
func Run(fsys fs.FS, paths []string, opts Options) (*Result, error) {
	files, err := testFiles(fsys, paths)
	if err != nil {
		return nil, err
	}
	if opts.Orders == 0 {
		opts.Orders = 3
	}
	r := &runner{fsys: fsys, opts: opts, coverage: newCoverage()}
	var faults []error
	for _, file := range files {
		suites, err := policy.LoadTests(fsys, file)
		if err != nil {
			faults = append(faults, err)
			continue
		}
		for _, s := range suites {
			if err := r.suite(file, s); err != nil {
				faults = append(faults, err)
			}
		}
	}
	if len(faults) > 0 {
		return nil, errors.Join(faults...)
	}
	if len(r.result.Tests) == 0 {
		return nil, errors.New("no test was found: check the paths and the selection")
	}
	r.result.Coverage = r.coverage.report()
	return &r.result, nil
}

func testFiles(fsys fs.FS, paths []string) ([]string, error) {
	var out []string
	for _, p := range paths {
		files, err := policy.Files(fsys, path.Clean(p))
		if err != nil {
			return nil, fmt.Errorf("cannot read %s: %w", p, err)
		}
		out = append(out, files...)
	}
	slices.Sort(out)
	return slices.Compact(out), nil
}

type runner struct {
	fsys     fs.FS
	opts     Options
	coverage *coverage
	result   Result
}

// suite loads the policies of one document and runs its tests.
func (r *runner) suite(file string, s *policy.TestSuite) error {
	files := make([]string, len(s.Files))
	for i, f := range s.Files {
		files[i] = path.Join(path.Dir(file), f)
	}
	cfg := s.Config
	cfg.KeepSource = r.opts.Operands
	set, err := policy.LoadFiles(cfg, r.fsys, files)
	if err != nil {
		return err
	}
	for _, w := range set.Warnings() {
		if !slices.Contains(r.result.Warnings, w) {
			r.result.Warnings = append(r.result.Warnings, w)
		}
	}
	subject := newSubject(set)
	r.coverage.add(subject)
	for i := range s.Tests {
		c := &s.Tests[i]
		if r.opts.Run != nil && !r.opts.Run.MatchString(s.Name+"/"+c.Name) {
			continue
		}
		out := TestResult{Suite: s.Name, Name: c.Name, At: c.At}
		out.Failures = r.test(set, subject, s, c)
		r.result.Tests = append(r.result.Tests, out)
	}
	return nil
}

// test runs one test and returns its failures.
func (r *runner) test(set *policy.Set, subject *subject, s *policy.TestSuite, c *policy.TestCase) []string {
	if failures := unknownNames(subject.rules, s, c); len(failures) > 0 {
		return failures
	}
	run := execute(set, s, c)
	r.coverage.see(subject, run)
	failures := run.absent()
	failures = append(failures, compare(run, &c.Expect)...)
	return append(failures, orderFaults(r.opts.Orders, run.fingerprint(), func(seed uint64) string {
		return execute(set.Shuffled(seed), s, c).fingerprint()
	})...)
}

// orderFaults runs a test again with the bindings in other orders, and reports the
// first that gives another outcome.
func orderFaults(orders int, want string, again func(seed uint64) string) []string {
	for seed := range orders {
		if got := again(uint64(seed) + 1); got != want {
			return []string{fmt.Sprintf("the decision depends on the order of the bindings:\n  %s\n  %s", want, got)}
		}
	}
	return nil
}
