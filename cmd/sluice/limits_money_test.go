package main

import (
	"context"
	"testing"
	"testing/fstest"
	"time"

	"github.com/sluicegate/sluice/policy"
	"github.com/sluicegate/sluice/tenancy"
	"github.com/sluicegate/sluice/tenancy/chargeback"
)

const moneyPolicy = `apiVersion: sluice/v1alpha1
kind: AdmissionPolicy
metadata: { name: money }
spec:
  limits:
    - { name: month, unit: cost, limit: "100000000", window: month, key: ["tenant.id"] }
---
apiVersion: sluice/v1alpha1
kind: AdmissionPolicyBinding
metadata: { name: money }
spec: { policyName: money, actions: [Deny] }
`

type countedPrompt int64

func (n countedPrompt) InputTokens(context.Context) (int64, bool, error) { return int64(n), true, nil }
func (countedPrompt) Content(context.Context) (policy.Content, error)    { return policy.Content{}, nil }

// TestLimitsGoByTheBooksPrices: what a limit reserves for a payer is what the books
// would charge for the same tokens, discounts and reasoning included.
func TestLimitsGoByTheBooksPrices(t *testing.T) {
	prices, err := chargeback.ParsePrices("prices.yaml", []byte(`currency: USD
prices:
  - { model: m, input: 150000, cachedInput: 15000, output: 600000, reasoning: 700000 }
discounts:
  - { tenant: acme, millionths: 125000 }
`))
	if err != nil {
		t.Fatal(err)
	}
	now := time.Date(2026, 3, 10, 12, 0, 0, 0, time.UTC)
	cfg := &Config{Models: []ModelConfig{{Name: "m"}}, Pools: []PoolConfig{{Name: "p", Models: []string{"m"}, CacheSalt: []string{"chat"}}}}
	cfg.Policy.DefaultMaxTokens = 1000
	set, err := policy.LoadFiles(policyConfig(cfg, prices, now), fstest.MapFS{"p.yaml": {Data: []byte(moneyPolicy)}}, []string{"p.yaml"})
	if err != nil {
		t.Fatal(err)
	}
	for _, tenant := range []string{"acme", "globex"} {
		in := &policy.Input{Now: now, Lazy: countedPrompt(900), Tenant: policy.TenantInput{ID: tenant}}
		in.Request = policy.RequestInput{Operation: "chat", Model: "m", N: 1}
		d := set.Decide(t.Context(), in)
		row := &tenancy.Row{ID: "r", Tenant: tenant, Model: "m", Start: now, InputTokens: 900, OutputTokens: 1000, ReasoningTokens: 1000}
		if err := prices.Cost(row); err != nil {
			t.Fatal(err)
		}
		if len(d.Limits) != 1 || d.Limits[0].Estimate != row.Costs.Total() {
			t.Errorf("%s reserves %+v, and would be charged %d; errors %+v", tenant, d.Limits, row.Costs.Total(), d.Errors)
		}
	}
}
