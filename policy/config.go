package policy

import (
	"fmt"
	"maps"
	"slices"
)

// Config is what a policy set is compiled against: the names that documents
// may use and the defaults that hold where no policy says otherwise. A Set
// keeps a copy; later changes to a Config have no effect on it.
type Config struct {
	// AllowEmpty admits a directory without a single policy. Without it such a
	// directory is refused, since a wrong path would otherwise admit everything.
	AllowEmpty bool
	// Classes are the QoS classes, the highest first. Empty means critical,
	// interactive, standard, batch.
	Classes []string
	// DefaultClass holds where no effect names a class. Empty means standard.
	DefaultClass string
	// DefaultIsolation is none, tenant or principal. Empty means tenant.
	DefaultIsolation string
	// DefaultMaxTokens stands in for a max_tokens that the client left out, for
	// models without a default of their own. Zero means 4096.
	DefaultMaxTokens int64
	// Pools are all pools of the gateway. A pool named by an effect but missing
	// here is a load error.
	Pools []Pool
	// Claims declares the variables principal.claims.<name>, by type: string,
	// int, double, bool, or list(T) of one of them.
	Claims map[string]string
	// Prices by model, for the unit cost. A model that is missing makes a cost
	// limit fail as an evaluation error: it is never free.
	Prices map[string]Price
	// Discount is what a payer is spared of a model's price, in millionths, beside
	// what the price says; nil: nothing. It must always say the same.
	Discount func(tenant, team, model string) int64
	// Models holds per-model defaults. A model need not be listed.
	Models map[string]Model
	// Labels are the labels that addLabels may name. Nil admits every
	// well-formed label.
	Labels []string
	// Tenants are all tenants, against which selectors are reviewed. Nil means
	// unknown.
	Tenants []TenantInfo
	// KeepSource keeps what an explanation needs beside the compiled programs:
	// texts, syntax trees and environments. A gateway leaves it unset.
	KeepSource bool
	// AnyNames takes the pools, pool labels, classes and labels that documents
	// name as known. It serves tools that look at policies apart from a gateway's
	// configuration: such a set judges no pools, and a class that is not in
	// Classes ranks below those that are.
	AnyNames bool
	// Headers are the lower-case names that request.headers can hold. Nil means
	// unknown, so that no warning is given for reading others.
	Headers []string
}

// Pool is a pool of workers as policies see it.
type Pool struct {
	Name string
	// Models that the pool serves, by their exact name.
	Models []string
	// Labels are matched by requirePoolLabels.
	Labels map[string]string
	// Salted lists the operations ("*" for all) for which the pool's engines are
	// known to honour cache_salt, or to cache no prefixes. For any other operation
	// that puts a prompt through an engine the pool is not permitted when the
	// request's cache is isolated.
	Salted []string
}

// TenantInfo is a tenant as selectors see it.
type TenantInfo struct {
	ID, Team, Tier string
	Labels         map[string]string
}

// Price of a model in micro-units of a currency for one million tokens.
type Price struct {
	Input, CachedInput, Output int64
	// Reasoning is for reasoning tokens where ReasoningApart is set; they are
	// output like any other where it is not.
	Reasoning      int64
	ReasoningApart bool
	// Currency is the ISO 4217 code. Limits add up no two of them.
	Currency string
	// Discount is what the payer is spared, in millionths.
	Discount int64
}

// Model holds the defaults of one model.
type Model struct {
	// DefaultMaxTokens stands in for a max_tokens that the client left out.
	// Zero means Config.DefaultMaxTokens.
	DefaultMaxTokens int64
}

// clone returns a copy that shares nothing mutable with c, with the documented
// defaults filled in.
func (c Config) clone() Config {
	c.Classes = slices.Clone(c.Classes)
	if len(c.Classes) == 0 {
		c.Classes = []string{"critical", "interactive", "standard", "batch"}
	}
	if c.DefaultClass == "" {
		c.DefaultClass = "standard"
	}
	if c.DefaultIsolation == "" {
		c.DefaultIsolation = IsolationTenant
	}
	if c.DefaultMaxTokens == 0 {
		c.DefaultMaxTokens = 4096
	}
	c.Pools = slices.Clone(c.Pools)
	for i := range c.Pools {
		p := &c.Pools[i]
		p.Models = slices.Clone(p.Models)
		p.Labels = maps.Clone(p.Labels)
		p.Salted = slices.Clone(p.Salted)
	}
	c.Claims = maps.Clone(c.Claims)
	c.Prices = maps.Clone(c.Prices)
	c.Models = maps.Clone(c.Models)
	c.Labels = slices.Clone(c.Labels)
	c.Headers = slices.Clone(c.Headers)
	c.Tenants = slices.Clone(c.Tenants)
	for i := range c.Tenants {
		c.Tenants[i].Labels = maps.Clone(c.Tenants[i].Labels)
	}
	return c
}

// adopt makes the classes that policies name known, below all others, where
// every name counts as known.
func (c *Config) adopt(policies []*policyDoc) {
	if !c.AnyNames {
		return
	}
	var named []string
	for _, p := range policies {
		for i := range p.effects {
			if class := p.effects[i].class.text; isName(class) && !slices.Contains(c.Classes, class) {
				named = append(named, class)
			}
		}
	}
	slices.Sort(named)
	c.Classes = append(c.Classes, slices.Compact(named)...)
}

// validate reports what is wrong with the configuration itself. Faults have
// the path of the policy configuration and no file.
func (c *Config) validate(p *problems) {
	bad := func(path, format string, args ...any) {
		p.addAt("", 0, 0, path, fmt.Sprintf(format, args...))
	}
	seen := map[string]bool{}
	for _, name := range c.Classes {
		if !isName(name) || seen[name] {
			bad("policy.classes", "class %q is not allowed: give each class once, as 1 to 63 of a-z, 0-9 and -", cut(name, 80))
		}
		seen[name] = true
	}
	if !seen[c.DefaultClass] {
		bad("policy.defaultClass", "%q is no class%s", cut(c.DefaultClass, 80), didYouMean(c.DefaultClass, c.Classes))
	}
	if isolationRank(c.DefaultIsolation) < 0 {
		bad("policy.defaultIsolation", "%q is no scope: use none, tenant or principal", cut(c.DefaultIsolation, 80))
	}
	if c.DefaultMaxTokens < 1 {
		bad("policy.defaultMaxTokens", "%d is below 1", c.DefaultMaxTokens)
	}
	for name, m := range c.Models {
		if m.DefaultMaxTokens < 0 {
			bad("policy.models", "model %q: defaultMaxTokens %d is below 0", cut(name, 80), m.DefaultMaxTokens)
		}
	}
	for name, price := range c.Prices {
		if min(price.Input, price.CachedInput, price.Output, price.Reasoning) < 0 {
			bad("policy.prices", "model %q: a price is below 0", cut(name, 80))
		}
		if price.Discount < 0 || price.Discount > fullDiscount {
			bad("policy.prices", "model %q: the discount is outside 0 to %d millionths", cut(name, 80), fullDiscount)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(c.Claims)) {
		if _, err := claimVariable(name, c.Claims[name]); err != nil {
			bad("policy.claims", "%v", err)
		}
	}
	c.validatePools(bad)
}

func (c *Config) validatePools(bad func(path, format string, args ...any)) {
	seen := map[string]bool{}
	for _, pool := range c.Pools {
		switch {
		case pool.Name == "":
			bad("policy.pools", "a pool has no name")
		case seen[pool.Name]:
			bad("policy.pools", "the pool %q is given twice", cut(pool.Name, 80))
		}
		seen[pool.Name] = true
	}
}

// Operations lists the values of request.operation that this version knows. A
// gateway may have others.
func Operations() []string { return slices.Clone(operations) }
