package main

import (
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"time"

	"github.com/spf13/cobra"
)

func newCheckCommand(now func() time.Time) *cobra.Command {
	var configFile string
	cmd := &cobra.Command{
		Use:   "check -c FILE [POLICY-DIR]",
		Short: "Find everything that can be wrong before a deploy",
		Long: "Load the configuration, the tenants, the prices and the policies as `serve` would, without listening or\n" +
			"calling a worker. Errors and warnings are printed as file:line:column: path: text. A folder on the command\n" +
			"line stands in for policy.dir. The exit code is 1 when there is an error.",
		Args: cobra.MaximumNArgs(1),
		RunE: command(func(cmd *cobra.Command, args []string) error {
			c := checker{out: cmd.OutOrStdout(), now: now()}
			c.run(configFile, args)
			return c.finish()
		}),
	}
	addConfigFlag(cmd, &configFile)
	return cmd
}

// checker runs `sluice check` and counts what it prints.
type checker struct {
	out              io.Writer
	now              time.Time
	errors, warnings int
}

func (c *checker) run(configFile string, policyDir []string) {
	cfg, warnings, err := LoadConfig(configFile)
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
	for _, w := range docs.policies.Warnings() {
		e := inFolder(cfg.Policy.Dir, w.Error)
		c.warn(Issue{File: e.File, Line: e.Line, Column: e.Col, Path: e.Path, Text: fmt.Sprintf("%s (%s)", e.Text, w.Kind)})
	}
	c.names(configFile, cfg, docs)
	c.summary(cfg, docs)
}

// names warns of names in one file that no other file knows.
func (c *checker) names(configFile string, cfg *Config, docs *documents) {
	for i, id := range cfg.Metrics.Tenants {
		if docs.directory.Tenant(id) == nil {
			c.warn(Issue{File: configFile, Path: fmt.Sprintf("metrics.tenants[%d]", i), Text: fmt.Sprintf("no tenant %q in %s", id, cfg.Tenants.File)})
		}
	}
	for _, t := range docs.directory.Tenants() {
		if !slices.ContainsFunc(cfg.Models, func(m ModelConfig) bool { return t.AllowsModel(m.Name) }) {
			c.warn(Issue{File: cfg.Tenants.File, Text: fmt.Sprintf("tenant %q may use none of the configured models", t.ID)})
		}
	}
	if docs.prices == nil {
		return
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
			fmt.Fprintf(c.out, "pool %s: at most %s from %s\n", cfg.Pools[i].Name, count(from.MaxWorkers, "worker"), from.describe())
			workers += from.listed()
		}
	}
	fmt.Fprintf(c.out, "%s, %s, %s, %s, %s\n",
		count(len(docs.directory.Tenants()), "tenant"), count(len(docs.directory.Keys()), "key"),
		count(len(cfg.Models), "model"), count(len(cfg.Pools), "pool"), count(workers, "worker"))
	fmt.Fprintf(c.out, "policy revision %s\n", docs.policies.Revision())
	own, tenants := ownSeries(cfg, docs.policies), metricsConfig(cfg, docs).SeriesBound()
	fmt.Fprintf(c.out, "at most %d metric series: %d of the gateway, %d of tenants\n", own+tenants, own, tenants)
}

func (c *checker) warn(w Issue) {
	c.warnings++
	w.Text = "warning: " + w.Text
	w.File = filepath.Clean(w.File)
	fmt.Fprintln(c.out, w)
}

func (c *checker) fail(err error) {
	c.errors += lines(err)
	fmt.Fprintln(c.out, err)
}

// finish prints the verdict and returns the command's error.
func (c *checker) finish() error {
	if c.errors > 0 {
		fmt.Fprintf(c.out, "%s, %s\n", count(c.errors, "error"), count(c.warnings, "warning"))
		return errReported
	}
	fmt.Fprintf(c.out, "ok, %s\n", count(c.warnings, "warning"))
	return nil
}
