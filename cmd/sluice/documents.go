package main

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/sluicegate/sluice/policy"
	"github.com/sluicegate/sluice/tenancy/authn"
	"github.com/sluicegate/sluice/tenancy/chargeback"
)

// documents are the files that a configuration names, loaded: what `serve` works with and `check` reports
// on.
type documents struct {
	directory *authn.Directory
	prices    *chargeback.Prices // nil without a price table
	policies  *policy.Set
}

// loadDocuments loads the tenants, the prices and the policies, in that order, as of now. It goes on
// after a failure, so that the error lists what is wrong in all of them, one line each.
func loadDocuments(cfg *Config, now time.Time) (*documents, error) {
	var d documents
	var errs []error
	var err error
	if d.directory, err = authn.LoadFile(cfg.Tenants.File); err != nil {
		errs = append(errs, err)
	}
	if cfg.Prices.File != "" {
		if d.prices, err = chargeback.LoadPrices(cfg.Prices.File); err != nil {
			errs = append(errs, err)
		}
	}
	if d.policies, err = loadPolicies(cfg, d.prices, now); err != nil {
		errs = append(errs, err)
	}
	if len(errs) > 0 {
		return nil, errors.Join(errs...)
	}
	return &d, nil
}

// loadPolicies compiles the configuration's policies. Names of files in errors start from the working
// directory, as they do for every other file.
func loadPolicies(cfg *Config, prices *chargeback.Prices, now time.Time) (*policy.Set, error) {
	set, err := policy.Load(policyConfig(cfg, prices, now), os.DirFS(cfg.Policy.Dir))
	if err != nil {
		return nil, locatedIn(cfg.Policy.Dir, err)
	}
	return set, nil
}

// inFolder makes the name of an error's file start where dir does. Errors without a file name the folder.
func inFolder(dir string, e policy.Error) policy.Error {
	e.File = filepath.Join(dir, filepath.FromSlash(e.File))
	return e
}

// policyConfig is what policies are compiled against: the names they may use and the prices of now.
func policyConfig(cfg *Config, prices *chargeback.Prices, now time.Time) policy.Config {
	pc := policy.Config{
		AllowEmpty:       cfg.Policy.AllowEmpty,
		Classes:          cfg.Policy.Classes,
		DefaultClass:     cfg.Policy.DefaultClass,
		DefaultIsolation: cfg.CacheIsolation.Default,
		DefaultMaxTokens: cfg.Policy.DefaultMaxTokens,
		Claims:           cfg.Policy.Claims,
		Headers:          append([]string{}, cfg.Policy.Headers...), // not nil: none are allowed, rather than any
		Models:           make(map[string]policy.Model, len(cfg.Models)),
		Prices:           make(map[string]policy.Price, len(cfg.Models)),
	}
	for i := range cfg.Models {
		m := &cfg.Models[i]
		pc.Models[m.Name] = policy.Model{DefaultMaxTokens: m.DefaultMaxTokens}
		if prices == nil {
			continue
		}
		if p, ok := prices.Price(m.Name, now); ok {
			pc.Prices[m.Name] = policy.Price{Input: p.Input, CachedInput: p.CachedInput, Output: p.Output}
		}
	}
	for i := range cfg.Pools {
		p := &cfg.Pools[i]
		pc.Pools = append(pc.Pools, policy.Pool{Name: p.Name, Models: slices.Concat(p.Models, p.Adapters), Labels: p.Labels})
	}
	return pc
}

// lines counts the lines of an error's text: loaders report one fault a line.
func lines(err error) int {
	if err == nil {
		return 0
	}
	return strings.Count(err.Error(), "\n") + 1
}
