package main

import (
	"fmt"
	"os"
	"time"

	"github.com/sluicegate/sluice/policy"
	"github.com/sluicegate/sluice/tenancy/chargeback"
)

// policyLoader compiles folders of policies for the tools that judge with them: against the configuration
// of a gateway, or apart from any.
type policyLoader struct {
	cfg    *Config // nil: apart
	prices *chargeback.Prices
	now    time.Time
	keep   bool // what an explanation needs
}

// newPolicyLoader reads the configuration, if one is named, and the prices that it names.
func newPolicyLoader(configFile string, now time.Time) (*policyLoader, error) {
	l := &policyLoader{now: now}
	if configFile == "" {
		return l, nil
	}
	var err error
	if l.cfg, _, err = LoadConfig(configFile); err != nil {
		return nil, err
	}
	if l.cfg.Prices.File != "" {
		if l.prices, err = chargeback.LoadPrices(l.cfg.Prices.File); err != nil {
			return nil, err
		}
	}
	return l, nil
}

// load compiles the policies of a folder.
func (l *policyLoader) load(dir string) (*policy.Set, error) {
	if _, err := os.Stat(dir); err != nil {
		return nil, fmt.Errorf("cannot read the policies: %w", err)
	}
	pc := policy.Config{AnyNames: true}
	if l.cfg != nil {
		pc = policyConfig(l.cfg, l.prices, l.now)
	}
	pc.KeepSource = l.keep
	set, err := policy.Load(pc, os.DirFS(dir))
	if err != nil {
		return nil, locatedIn(dir, err)
	}
	return set, nil
}
