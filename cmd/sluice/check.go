package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/sluicegate/sluice/policy"
	"github.com/sluicegate/sluice/tenancy/chargeback"
)

// checkFlags are what `check` was asked for.
type checkFlags struct {
	config, format string
	cost           bool
}

func newCheckCommand(now func() time.Time) *cobra.Command {
	var f checkFlags
	cmd := &cobra.Command{
		Use:   "check [-c FILE] [POLICY-DIR]",
		Short: "Find everything that can be wrong before a deploy",
		Long: "Load the configuration, the tenants, the prices and the policies as `serve` would, without listening or\n" +
			"calling a worker. Errors and warnings are printed as file:line:column: path: text, those of policies with\n" +
			"the line and a caret. A folder on the command line stands in for policy.dir. Without a configuration the\n" +
			"folder's policies are checked by themselves: the pools and classes that they name are taken to exist, and\n" +
			"claims of tokens are unknown. The exit code is 1 when there is an error.",
		Example: "  sluice check -c sluice.yaml\n  sluice check --cost policies",
		Args:    cobra.MaximumNArgs(1),
		RunE: command(func(cmd *cobra.Command, args []string) error {
			if f.format != "text" && f.format != "json" {
				return &usageError{fmt.Sprintf("--format %q is not known, should be text or json", clip(f.format))}
			}
			if f.config == "" && len(args) == 0 {
				return &usageError{"nothing to check: name a configuration with --config, a folder of policies, or both"}
			}
			c := checker{checkFlags: f, out: cmd.OutOrStdout(), now: now()}
			if f.config == "" {
				c.policiesAlone(args[0])
			} else {
				c.run(args)
			}
			return c.finish()
		}),
	}
	cmd.Flags().StringVarP(&f.config, "config", "c", "", "configuration file")
	cmd.Flags().BoolVar(&f.cost, "cost", false, "print what each expression of the policies can cost at most")
	cmd.Flags().StringVar(&f.format, "format", "text", "text or json")
	return cmd
}

// checker runs `sluice check`. It prints what it finds as it finds it, or keeps it for a report in JSON.
type checker struct {
	checkFlags
	out    io.Writer
	now    time.Time
	quotes excerpts
	report checkReport
}

// checkReport is what `check --format json` prints. It grows by fields only.
type checkReport struct {
	OK       bool      `json:"ok"`
	Errors   []finding `json:"errors"`
	Warnings []finding `json:"warnings"`
	// Revision of the policies, empty when they do not load.
	Revision  string         `json:"revision,omitempty"`
	Estimates []costFinding  `json:"estimates,omitempty"`
	Cost      *costSums      `json:"cost,omitempty"`
	Fleet     map[string]int `json:"fleet,omitempty"`
	Series    *seriesBound   `json:"series,omitempty"`
	// Queue is where requests wait for workers.
	Queue *queueReport `json:"queue,omitempty"`
	// Connections are those of clients.
	Connections *connectionBound `json:"connections,omitempty"`
}

// finding is an error or a warning. Line and column count from 1 and are left out where there is no place.
type finding struct {
	File   string `json:"file,omitempty"`
	Line   int    `json:"line,omitempty"`
	Column int    `json:"column,omitempty"`
	Path   string `json:"path,omitempty"`
	Text   string `json:"text"`
	Kind   string `json:"kind,omitempty"` // of a warning about policies
}

type costFinding struct {
	File   string `json:"file"`
	Line   int    `json:"line"`
	Column int    `json:"column"`
	Path   string `json:"path"`
	Units  int64  `json:"units"`
}

type costSums struct {
	Enforced   int64 `json:"enforced"`
	Rehearsals int64 `json:"rehearsals"`
	Limit      int64 `json:"limit"`
}

type seriesBound struct {
	Gateway int `json:"gateway"`
	Tenants int `json:"tenants"`
}

func (c *checker) run(policyDir []string) {
	cfg, warnings, err := LoadConfig(c.config)
	for _, w := range warnings {
		c.warn(w)
	}
	if err != nil {
		c.fail(err)
		return
	}
	if len(policyDir) > 0 {
		cfg.Policy.Dir = policyDir[0]
	}
	docs, err := loadDocuments(cfg, c.now)
	if err != nil {
		c.fail(err)
		return
	}
	c.policyWarnings(cfg.Policy.Dir, docs.policies)
	c.names(cfg, docs)
	c.tokenizers(cfg)
	c.summary(cfg, docs)
}

// policiesAlone checks a folder of policies without a configuration.
func (c *checker) policiesAlone(dir string) {
	set, err := (&policyLoader{}).load(dir)
	if err != nil {
		c.fail(err)
		return
	}
	c.policyWarnings(dir, set)
	c.print("no configuration: pools and classes are taken as the policies name them\n")
	c.policies(dir, set)
}

func (c *checker) policyWarnings(dir string, set *policy.Set) {
	for _, w := range set.Warnings() {
		e := inFolder(dir, w.Error)
		c.report.Warnings = append(c.report.Warnings, finding{e.File, e.Line, e.Col, e.Path, e.Text, string(w.Kind)})
		if c.format == "text" {
			e.Text = fmt.Sprintf("warning: %s (%s)", e.Text, w.Kind)
			fmt.Fprintln(c.out, e.Error())
			c.quotes.write(c.out, e)
		}
	}
}

// names warns of names in one file that no other file knows.
func (c *checker) names(cfg *Config, docs *documents) {
	for i, id := range cfg.Metrics.Tenants {
		if docs.directory.Tenant(id) == nil {
			c.warn(Issue{File: c.config, Path: fmt.Sprintf("metrics.tenants[%d]", i), Text: fmt.Sprintf("no tenant %q in %s", id, cfg.Tenants.File)})
		}
	}
	for i := range cfg.Models {
		if name := cfg.Models[i].Name; !chargeback.FitsLabel(name) {
			c.warn(Issue{File: c.config, Path: fmt.Sprintf("models[%d].name", i), Text: fmt.Sprintf("%q can't be a label's value: it is longer than 128 bytes, or the word other; its requests are counted under other", clip(name))})
		}
	}
	for _, t := range docs.directory.Tenants() {
		if !slices.ContainsFunc(cfg.Models, func(m ModelConfig) bool { return t.AllowsModel(m.Name) }) {
			c.warn(Issue{File: cfg.Tenants.File, Text: fmt.Sprintf("tenant %q may use none of the configured models", t.ID)})
		}
	}
	c.revoked(cfg)
	c.mappings(cfg, docs)
	if unscanned(cfg, docs) {
		c.warn(Issue{File: c.config, Path: "labels", Text: textUnscanned})
	}
	c.salts(cfg)
	if docs.prices == nil {
		return
	}
	for _, d := range docs.prices.Discounts() {
		if d.Tenant != "" && docs.directory.Tenant(d.Tenant) == nil {
			c.warn(Issue{File: cfg.Prices.File, Text: fmt.Sprintf("a discount is for tenant %q, who is not in %s", clip(d.Tenant), cfg.Tenants.File)})
		}
	}
	for i := range cfg.Models {
		if name := cfg.Models[i].Name; !hasPrice(docs, name, c.now) {
			c.warn(Issue{File: cfg.Prices.File, Text: fmt.Sprintf("no price for model %q on %s: its requests cost nothing, and cost limits refuse them", name, c.now.UTC().Format(time.DateOnly))})
		}
	}
}

func hasPrice(docs *documents, model string, at time.Time) bool {
	_, ok := docs.prices.Price(model, at)
	return ok
}

func (c *checker) summary(cfg *Config, docs *documents) {
	workers := 0
	for i := range cfg.Pools {
		workers += len(cfg.Pools[i].Workers)
		if from := &cfg.Pools[i].WorkersFrom; from.Enabled() {
			c.print("pool %s: at most %s from %s\n", cfg.Pools[i].Name, count(from.MaxWorkers, "worker"), from.describe())
			workers += from.listed()
		}
	}
	tenants, keys := len(docs.directory.Tenants()), len(docs.directory.Keys())
	c.print("%s, %s, %s, %s, %s\n",
		count(tenants, "tenant"), count(keys, "key"), count(len(cfg.Models), "model"), count(len(cfg.Pools), "pool"), count(workers, "worker"))
	c.report.Fleet = map[string]int{"tenants": tenants, "keys": keys, "models": len(cfg.Models), "pools": len(cfg.Pools), "workers": workers}
	c.policies(cfg.Policy.Dir, docs.policies)
	own, ofTenants := ownSeries(cfg, docs.policies), metricsConfig(cfg, docs).SeriesBound()
	c.print("at most %d metric series: %d of the gateway, %d of tenants\n", own+ofTenants, own, ofTenants)
	c.report.Series = &seriesBound{own, ofTenants}
	c.queue(cfg)
	c.connections(&cfg.Limits)
}

// queueReport says whether requests wait for workers here, and what the classes promise, most urgent first.
type queueReport struct {
	On          bool          `json:"on"`
	MaxRequests int           `json:"max_requests,omitempty"`
	MaxBytes    int64         `json:"max_bytes,omitempty"`
	Classes     []queuedClass `json:"classes"`
}

type queuedClass struct {
	Name    string  `json:"name"`
	Target  millis  `json:"target_ms"`
	MaxWait millis  `json:"max_wait_ms"`
	Share   float64 `json:"share"`
}

// queue says whether requests wait, and of which classes.
func (c *checker) queue(cfg *Config) {
	queue := cfg.QoS.queue(cfg.Policy.Classes)
	report := &queueReport{On: cfg.QoS.Enabled, Classes: []queuedClass{}}
	var targets []string
	for i := range queue.Classes {
		class := &queue.Classes[i]
		report.Classes = append(report.Classes, queuedClass{class.Name, inMillis(class.Target), inMillis(class.MaxWait), class.Share})
		targets = append(targets, fmt.Sprintf("%s %s", class.Name, class.Target))
	}
	if report.On {
		report.MaxRequests, report.MaxBytes = queue.MaxEntries, queue.MaxBytes
		c.print("queue on: at most %s of %s wait; targets of %s\n", count(queue.MaxEntries, "request"), ByteSize(queue.MaxBytes), strings.Join(targets, ", "))
	} else {
		c.print("queue off, qos.enabled is false: requests go to workers at once; targets of %s\n", strings.Join(targets, ", "))
	}
	c.report.Queue = report
}

// policies says what there is to say about a set that loads.
func (c *checker) policies(dir string, set *policy.Set) {
	c.report.Revision = set.Revision()
	if c.cost {
		c.costs(dir, set)
	}
	c.print("policy revision %s\n", set.Revision())
}

// costs prints the estimates, which the load has held against the limits of one expression.
func (c *checker) costs(dir string, set *policy.Set) {
	for _, e := range set.Estimates() {
		at := inFolder(dir, e.At)
		c.report.Estimates = append(c.report.Estimates, costFinding{at.File, at.Line, at.Col, at.Path, e.Cost})
		at.Text = "at most " + count(int(e.Cost), "unit")
		c.print("%s\n", at.Error())
	}
	sums := set.EstimateSums()
	c.report.Cost = &costSums{sums.Enforced, sums.Rehearsals, sums.Limit}
	c.print("a request that all bindings match costs at most %d units of %d, and %d of %d in rehearsals\n", sums.Enforced, sums.Limit, sums.Rehearsals, sums.Limit)
}

// print writes to the report for people.
func (c *checker) print(format string, args ...any) {
	if c.format == "text" {
		fmt.Fprintf(c.out, format, args...)
	}
}

func (c *checker) warn(w Issue) {
	w.File = filepath.Clean(w.File)
	c.report.Warnings = append(c.report.Warnings, finding{File: w.File, Line: w.Line, Column: w.Column, Path: w.Path, Text: w.Text})
	w.Text = "warning: " + w.Text
	c.print("%s\n", w)
}

// fail prints an error of a load: those of several loaders joined, each with several faults.
func (c *checker) fail(err error) {
	for _, part := range joined(err) {
		c.report.Errors = append(c.report.Errors, findingsOf(part)...)
	}
	if c.format == "text" {
		writeFaults(c.out, err)
	}
}

func findingsOf(err error) []finding {
	var out []finding
	if e, ok := errors.AsType[*policy.LoadError](err); ok {
		for _, f := range e.Errors {
			out = append(out, finding{File: f.File, Line: f.Line, Column: f.Col, Path: f.Path, Text: f.Text})
		}
		return out
	}
	if e, ok := errors.AsType[*ConfigError](err); ok {
		for _, f := range e.Issues {
			out = append(out, finding{File: f.File, Line: f.Line, Column: f.Column, Path: f.Path, Text: f.Text})
		}
		return out
	}
	for line := range strings.Lines(err.Error()) {
		out = append(out, findingOf(strings.TrimSuffix(line, "\n")))
	}
	return out
}

// placePattern is the form of faults in the files that other packages read.
var placePattern = regexp.MustCompile(`^([^\s:]+):(\d+):(\d+): (.*)$`)

// findingOf reads a line of an error's text.
func findingOf(line string) finding {
	m := placePattern.FindStringSubmatch(line)
	if m == nil {
		return finding{Text: line}
	}
	row, errRow := strconv.Atoi(m[2])
	col, errCol := strconv.Atoi(m[3])
	if errors.Join(errRow, errCol) != nil {
		return finding{Text: line}
	}
	return finding{File: m[1], Line: row, Column: col, Text: m[4]}
}

// finish prints the verdict and returns the command's error.
func (c *checker) finish() error {
	r := &c.report
	r.OK = len(r.Errors) == 0
	warnings := count(len(r.Warnings), "warning")
	switch {
	case c.format == "json":
		r.Errors, r.Warnings = append([]finding{}, r.Errors...), append([]finding{}, r.Warnings...) // [] rather than null
		if err := writeJSON(c.out, r); err != nil {
			return fmt.Errorf("cannot write the report: %w", err)
		}
	case r.OK:
		c.print("ok, %s\n", warnings)
	default:
		c.print("%s, %s\n", count(len(r.Errors), "error"), warnings)
	}
	if !r.OK {
		return errReported
	}
	return nil
}

// writeJSON writes a report for programs, indented since people read it, too.
func writeJSON(w io.Writer, v any) error {
	e := json.NewEncoder(w)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	return e.Encode(v)
}
