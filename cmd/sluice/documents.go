package main

import (
	"errors"
	"fmt"
	"log/slog"
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
	cacheKey  []byte   // nil without a key file
	scanner   *scanner // nil without detectors
}

// loadDocuments loads the tenants, the prices, the policies and the cache isolation key, in that order, as
// of now, and builds the detectors of content labels. It goes on after a failure, so that the error lists
// what is wrong in all of them, one line each.
func loadDocuments(cfg *Config, now time.Time) (*documents, error) {
	return loadDocumentsAfter(cfg, &documents{}, now, nil)
}

// loadDocumentsAfter is loadDocuments for a gateway in which old is in force: what has not changed of the
// detectors stays. They tell log, which may be nil, when they fail.
func loadDocumentsAfter(cfg *Config, old *documents, now time.Time, log *slog.Logger) (*documents, error) {
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
	if d.policies, err = loadPolicies(cfg, &d, now); err != nil {
		errs = append(errs, err)
	}
	if err = d.loadKey(cfg); err != nil {
		errs = append(errs, err)
	}
	if err = d.saidOfSalts(cfg); err != nil {
		errs = append(errs, err)
	}
	if d.scanner, err = newScanner(&cfg.Labels, old.scanner, log); err != nil {
		errs = append(errs, err)
	}
	if len(errs) > 0 {
		return nil, errors.Join(errs...)
	}
	return &d, nil
}

// loadKey reads the cache isolation key. Policies that isolate need one, whatever the default is: without a
// key a salt could be computed from a tenant's name, which stands in the workers' cache events.
func (d *documents) loadKey(cfg *Config) (err error) {
	if cfg.CacheIsolation.KeyFile == "" {
		if d.policies != nil && d.policies.Isolates() {
			return fmt.Errorf("%s: cacheIsolation.keyFile is missing from the configuration, should be a file of %d random bytes or more, as these policies isolate caches; for example: openssl rand -out cache.key %d",
				cfg.Policy.Dir, minKeyBytes, minKeyBytes)
		}
		return nil
	}
	if d.cacheKey, err = readKey(cfg.CacheIsolation.KeyFile); err != nil {
		return fmt.Errorf("cannot read cacheIsolation.keyFile: %w", err)
	}
	return nil
}

// loadPolicies compiles the configuration's policies. Names of files in errors start from the working
// directory, as they do for every other file.
func loadPolicies(cfg *Config, d *documents, now time.Time) (*policy.Set, error) {
	pc := policyConfig(cfg, d.prices, now)
	if d.directory != nil {
		pc.Tenants = []policy.TenantInfo{} // not nil: they are known
		for _, t := range d.directory.Tenants() {
			pc.Tenants = append(pc.Tenants, policy.TenantInfo{ID: t.ID, Team: t.Team, Tier: t.Tier, Labels: t.Labels})
		}
	}
	set, err := policy.Load(pc, os.DirFS(cfg.Policy.Dir))
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
	pc.Discount = func(tenant, team, model string) int64 { return prices.Discount(tenant, team, model, now) }
	for i := range cfg.Models {
		m := &cfg.Models[i]
		pc.Models[m.Name] = policy.Model{DefaultMaxTokens: m.DefaultMaxTokens}
		if prices == nil {
			continue
		}
		if p, ok := prices.Price(m.Name, now); ok {
			pc.Prices[m.Name] = policyPrice(p)
		}
	}
	for i := range cfg.Pools {
		p := &cfg.Pools[i]
		pc.Pools = append(pc.Pools, policy.Pool{Name: p.Name, Models: slices.Concat(p.Models, p.Adapters), Labels: p.Labels, Salted: p.CacheSalt})
	}
	return pc
}

// policyPrice is a price of the table as policies know it. GPU time has none there: nobody knows beforehand
// how much a request will take.
func policyPrice(p chargeback.Price) policy.Price {
	return policy.Price{
		Input: p.Input, CachedInput: p.CachedInput, Output: p.Output, Reasoning: p.Reasoning, ReasoningApart: true, Currency: p.Currency,
	}
}

// textUnscanned warns of policies that ask for a scan that there is not.
const textUnscanned = "no detector is configured, but policies read what detectors find: content.scan_status is always unavailable, and only declared labels count"

// unscanned reports whether policies read what detectors find although there are none.
func unscanned(cfg *Config, docs *documents) bool {
	return docs.policies.ReadsContent() && !cfg.Labels.scans()
}

// lines counts the lines of an error's text: loaders report one fault a line.
func lines(err error) int {
	if err == nil {
		return 0
	}
	return strings.Count(err.Error(), "\n") + 1
}
