package main

import (
	"fmt"
	"slices"

	"github.com/sluicegate/sluice/gateway"
)

// gatewayConfig returns the numbers of the HTTP edge.
func gatewayConfig(cfg *Config) (gateway.Config, error) {
	l := &cfg.Limits
	gc := gateway.DefaultConfig()
	gc.BodyBytes, gc.HeaderBytes = int(l.BodyBytes), int(l.HeaderBytes)
	gc.HeaderRead, gc.BodyRead, gc.BodyIdle, gc.IdleConnection = l.HeaderRead, l.BodyRead, l.BodyIdle, l.IdleConnection
	gc.ClientWrite = l.ClientWrite
	gc.Connect, gc.FirstByteStream, gc.FirstByteUnary, gc.StreamIdle = l.ConnectTimeout, l.FirstByteStream, l.FirstByteUnary, l.StreamIdle
	gc.ResponseBytes, gc.EventBytes = int(l.ResponseBytes), int(l.EventBytes)
	capConnections(&gc, l, readOSLimits())
	gc.CORS = cfg.CORS.edge()
	gc.StoredResponses, gc.StoredFor = cfg.Responses.most(), cfg.Responses.Keep
	boundMemory(&gc, l, readOSLimits())
	gc.KeepAliveComment, gc.Retries, gc.RetryShare = l.KeepAliveComment, l.Retries, l.RetryShare
	for _, text := range cfg.TrustedProxies {
		p, err := parseNetwork(text)
		if err != nil {
			return gc, fmt.Errorf("cannot read trustedProxies: %w", err)
		}
		gc.TrustedProxies = append(gc.TrustedProxies, p)
	}
	return gc, nil
}

// gatewayModels returns the models as clients see them; created is the time their listing shows.
func gatewayModels(cfg *Config, created int64) []gateway.Model {
	list := make([]gateway.Model, len(cfg.Models))
	for i := range cfg.Models {
		m := &cfg.Models[i]
		list[i] = gateway.Model{
			Name: m.Name, Aliases: m.Aliases, Upstream: m.Upstream, Family: m.Family, ContextLength: int(m.ContextLength),
			DefaultMaxTokens: m.DefaultMaxTokens, BytesPerToken: m.BytesPerToken, Created: created,
		}
		if slices.ContainsFunc(cfg.Pools, func(p PoolConfig) bool { return slices.Contains(p.Adapters, m.Name) }) {
			list[i].LoRA = m.Upstream
		}
	}
	return list
}

// gatewayPools returns the pools with their workers' API keys.
func gatewayPools(cfg *Config) (map[string]gateway.Pool, error) {
	pools := make(map[string]gateway.Pool, len(cfg.Pools))
	for i := range cfg.Pools {
		p := &cfg.Pools[i]
		gp := gateway.Pool{GPUs: p.GPUs, Models: slices.Concat(p.Models, p.Adapters)}
		if p.APIKeyFile != "" {
			key, err := readSecretText(p.APIKeyFile)
			if err != nil {
				return nil, fmt.Errorf("cannot read pools[%d].apiKeyFile: %w", i, err)
			}
			gp.APIKey = key
		}
		pools[p.Name] = gp
	}
	return pools, nil
}
