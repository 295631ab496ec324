package main

import (
	"fmt"
	"regexp"
	"time"

	"github.com/sluicegate/sluice/tenancy/chargeback"
)

// HourlyCostConfig is what a whole pool costs for a time, used or not.
type HourlyCostConfig struct {
	Amount    int64  `yaml:"amount"`    // micro-units for an hour
	Currency  string `yaml:"currency"`  // ISO 4217
	GPUs      int    `yaml:"gpus"`      // that are paid for
	ValidFrom string `yaml:"validFrom"` // a date or an instant; empty: always so far
	ValidTo   string `yaml:"validTo"`   // likewise, no longer part of it; empty: open
}

const (
	// maxGPUs is more than any pool has.
	maxGPUs = 1 << 20
	// maxHourlyCost is a million units of a currency, in micro-units.
	maxHourlyCost = 1_000_000_000_000
)

var currencyPattern = regexp.MustCompile(`^[A-Z]{3}$`)

// gpus checks what a pool's workers compute with and what that costs.
func (v *validator) gpus(at string, p *PoolConfig) {
	v.count(at+".gpus", int64(p.GPUs), 1, maxGPUs)
	rates := make([]chargeback.GPURate, len(p.HourlyCost))
	for i := range p.HourlyCost {
		c, at := &p.HourlyCost[i], fmt.Sprintf("%s.hourlyCost[%d]", at, i)
		v.count(at+".amount", c.Amount, 0, maxHourlyCost)
		v.matching(at+".currency", c.Currency, currencyPattern, "a code of three capital letters, like USD")
		v.count(at+".gpus", int64(c.GPUs), 1, maxGPUs)
		r := &rates[i]
		r.From, r.To = v.instant(at+".validFrom", c.ValidFrom), v.instant(at+".validTo", c.ValidTo)
		if !r.To.IsZero() && !r.From.Before(r.To) {
			v.errorf(at+".validTo", "should be after validFrom")
		}
		for j := range i {
			if rates[j].Overlaps(r) {
				v.errorf(at, "overlaps %s.hourlyCost[%d]; end that with validTo, or begin this later", at[:len(at)-len(fmt.Sprintf(".hourlyCost[%d]", i))], j)
			}
		}
	}
}

// instant reads a date, which means its start in UTC, or a time; the zero time is that of an empty text.
func (v *validator) instant(path, text string) time.Time {
	if text == "" {
		return time.Time{}
	}
	for _, layout := range []string{time.DateOnly, time.RFC3339} {
		if t, err := time.Parse(layout, text); err == nil {
			return t.UTC()
		}
	}
	v.errorf(path, "%q is no date, should be one like 2026-07-01 or a time like 2026-07-01T12:00:00Z", clip(text))
	return time.Time{}
}

// gpuPools are the pools with what they cost, of a configuration that is valid.
func gpuPools(cfg *Config) []chargeback.GPUPool {
	var of validator
	pools := make([]chargeback.GPUPool, len(cfg.Pools))
	for i := range cfg.Pools {
		p := &cfg.Pools[i]
		pools[i].Name = p.Name
		for _, c := range p.HourlyCost {
			pools[i].Rates = append(pools[i].Rates, chargeback.GPURate{
				From: of.instant("", c.ValidFrom), To: of.instant("", c.ValidTo), PerHour: c.Amount, Currency: c.Currency, GPUs: int64(c.GPUs),
			})
		}
	}
	return pools
}
