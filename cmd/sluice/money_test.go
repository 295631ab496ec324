package main

import (
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/sluicegate/sluice/policy"
	"github.com/sluicegate/sluice/tenancy"
	"github.com/sluicegate/sluice/tenancy/chargeback"
)

// What a policy reads as usage.cost is what the ledger's row costs, GPU time aside: at the payer's discount,
// to the micro-unit.
func TestPropertyPoliciesPriceLikeTheLedger(t *testing.T) {
	now := time.Date(2026, 3, 10, 0, 0, 0, 0, time.UTC)
	prices, err := chargeback.ParsePrices("prices.yaml", []byte(`currency: EUR
prices:
  - { model: org/tiny, input: 123457, cachedInput: 11111, output: 777777, reasoning: 999999, gpuSecond: 5 }
  - { model: "oth*", input: 499999, output: 500001, validTo: 2026-03-11 }
discounts:
  - { tenant: acme, model: "*", millionths: 333333 }
  - { team: search, model: other, millionths: 125000, validFrom: 2026-03-10 }
  - { tenant: gratis, millionths: 1000000 }
`))
	if err != nil {
		t.Fatal(err)
	}
	cfg, _, err := LoadConfig("testdata/config/full.yaml")
	if err != nil {
		t.Fatal(err)
	}
	pc := policyConfig(cfg, prices, now)
	rapid.Check(t, func(t *rapid.T) {
		row := &tenancy.Row{
			Tenant: rapid.SampledFrom([]string{"acme", "globex", "gratis"}).Draw(t, "tenant"),
			Team:   rapid.SampledFrom([]string{"search", "ads", ""}).Draw(t, "team"),
			Model:  rapid.SampledFrom([]string{"org/tiny", "other"}).Draw(t, "model"), Start: now,
			InputTokens: rapid.Int64Range(0, 1<<30).Draw(t, "input"), OutputTokens: rapid.Int64Range(0, 1<<30).Draw(t, "output"),
		}
		row.CachedTokens = rapid.Int64Range(0, row.InputTokens).Draw(t, "cached")
		row.ReasoningTokens = rapid.Int64Range(0, row.OutputTokens).Draw(t, "reasoning")
		if err := prices.Cost(row); err != nil {
			t.Fatal(err)
		}
		price, ok := pc.Prices[row.Model]
		if !ok || price.Currency != row.Currency {
			t.Fatalf("policies have the price %+v (%v)", price, ok)
		}
		usage := policy.Usage{
			InputTokens: row.InputTokens, CachedInputTokens: row.CachedTokens, OutputTokens: row.OutputTokens, ReasoningTokens: row.ReasoningTokens,
		}
		got, ok := price.Discounted(pc.Discount(row.Tenant, row.Team, row.Model)).Cost(usage)
		if !ok || got != row.Costs.Total() {
			t.Fatalf("a policy reads %d (%v), the row costs %d: %+v", got, ok, row.Costs.Total(), row)
		}
	})
}

// Policies know the discounts of now, and are loaded anew when one ends.
func TestDiscountsReachPolicies(t *testing.T) {
	now := time.Date(2026, 3, 10, 0, 0, 0, 0, time.UTC)
	prices, err := chargeback.ParsePrices("prices.yaml", []byte("currency: EUR\nprices: [{ model: other, input: 1, output: 1 }]\ndiscounts: [{ tenant: acme, millionths: 7, validTo: 2026-04-01 }]\n"))
	if err != nil {
		t.Fatal(err)
	}
	cfg, _, err := LoadConfig("testdata/config/full.yaml")
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		at   time.Time
		want int64
	}{{now, 7}, {now.AddDate(0, 1, 0), 0}} {
		if got := policyConfig(cfg, prices, c.at).Discount("acme", "", "other"); got != c.want {
			t.Errorf("at %v: %d, want %d", c.at, got, c.want)
		}
	}
	if got := policyConfig(cfg, nil, now).Discount("acme", "", "other"); got != 0 {
		t.Errorf("without a table: %d", got)
	}
	if next := prices.Next(now); !next.Equal(time.Date(2026, 4, 1, 0, 0, 0, 0, time.UTC)) {
		t.Errorf("policies are not loaded anew when the discount ends, but at %v", next)
	}
}
