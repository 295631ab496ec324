package main

import (
	"errors"
	"fmt"
	"slices"
	"strings"
)

// prompted are the operations of the gateway's routes that put a prompt through an engine.
var prompted = []string{"chat", "completion", "responses", "messages", "embeddings"}

// promptedBy are those of them that a pool is known to offer before its workers have said so.
func (p *PoolConfig) promptedBy() []string {
	if p.Endpoints == nil {
		return prompted[:2]
	}
	return slices.DeleteFunc(slices.Clone(prompted), func(op string) bool { return !slices.Contains(p.Endpoints, op) })
}

// saidOfSalts returns an error at each pool of which nobody has said whether its engines keep caches apart,
// where the policies or their default isolate. The gateway cannot see it from outside: an engine that
// ignores the field answers as one that honours it.
func (d *documents) saidOfSalts(cfg *Config) error {
	if d.policies == nil || !d.policies.Isolates() {
		return nil
	}
	var errs []error
	for i := range cfg.Pools {
		if cfg.Pools[i].CacheSalt == nil {
			errs = append(errs, fmt.Errorf("pools[%d].cacheSalt is missing from the configuration, should list the operations for which the engines of pool %q keep caches apart by cache_salt, as caches are isolated here: "+
				`[chat, completion, responses, messages, embeddings] for vLLM, ["*"] for engines that cache no prefixes, [] for engines that share caches whatever the salt, which then get no isolated request`,
				i, clip(cfg.Pools[i].Name)))
		}
	}
	return errors.Join(errs...)
}

// withoutSalts lists the operations of a model that the default isolation refuses, since no pool that
// serves it keeps caches apart for them.
func withoutSalts(cfg *Config, model string) []string {
	if cfg.CacheIsolation.Default == "none" {
		return nil
	}
	return slices.DeleteFunc(slices.Clone(prompted), func(op string) bool {
		offered := false
		for i := range cfg.Pools {
			p := &cfg.Pools[i]
			if !p.serves(model) || !slices.Contains(p.promptedBy(), op) {
				continue
			}
			if slices.Contains(p.CacheSalt, op) || slices.Contains(p.CacheSalt, "*") {
				return true
			}
			offered = true
		}
		return !offered
	})
}

// salts warns of models that the default isolation takes out of use.
func (c *checker) salts(cfg *Config) {
	for i := range cfg.Models {
		name := cfg.Models[i].Name
		served := slices.ContainsFunc(cfg.Pools, func(p PoolConfig) bool { return p.serves(name) })
		if ops := withoutSalts(cfg, name); served && len(ops) > 0 {
			c.warn(Issue{File: c.config, Path: fmt.Sprintf("models[%d].name", i), Text: fmt.Sprintf(
				"no pool that serves %q has %s in its cacheSalt: with cacheIsolation.default %s such requests are refused, unless a policy says cacheIsolation: none",
				clip(name), strings.Join(ops, " or "), cfg.CacheIsolation.Default)})
		}
	}
}
