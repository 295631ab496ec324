package policy

import (
	"bufio"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// TestRounding: a meter's cost is what the table of the ledger says.
func TestRounding(t *testing.T) {
	file, err := os.Open("../tenancy/chargeback/testdata/rounding.txt")
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	rows := 0
	for lines := bufio.NewScanner(file); lines.Scan(); {
		if strings.HasPrefix(lines.Text(), "#") {
			continue
		}
		var tokens, price, discount, want int64
		if _, err := fmt.Sscan(lines.Text(), &tokens, &price, &discount, &want); err != nil {
			t.Fatalf("%q: %v", lines.Text(), err)
		}
		rows++
		if got, ok := meterCost(tokens, price, discount); !ok || got != want {
			t.Errorf("%d tokens at %d less %d: %d %t, want %d", tokens, price, discount, got, ok, want)
		}
	}
	if rows < 20 {
		t.Errorf("the table has %d rows", rows)
	}
	for _, bad := range [][3]int64{{-1, 1, 0}, {1, -1, 0}, {1, 1, -1}, {1, 1, 1_000_001}, {1 << 62, 1 << 62, 0}, {1 << 62, 1 << 62, 999_999}, {1 << 62, 4_000_000, 0}} {
		if got, ok := meterCost(bad[0], bad[1], bad[2]); ok {
			t.Errorf("%v costs %d", bad, got)
		}
	}
}

// A charge for what was estimated exceeds the estimate by no more than what
// rounding each meter makes.
func TestPropertyChargesStayWithinEstimates(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		price := rapid.Int64Range(0, 5_000_000)
		p := Price{
			Input: price.Draw(t, "input"), Output: price.Draw(t, "output"), Reasoning: price.Draw(t, "reasoning"),
			ReasoningApart: rapid.Bool().Draw(t, "apart"), Discount: rapid.Int64Range(0, fullDiscount).Draw(t, "discount"),
		}
		p.CachedInput = rapid.Int64Range(0, p.Input).Draw(t, "cached price")
		u := Usage{InputTokens: rapid.Int64Range(0, 200_000).Draw(t, "in"), OutputTokens: rapid.Int64Range(0, 200_000).Draw(t, "out")}
		u.CachedInputTokens = rapid.Int64Range(0, u.InputTokens).Draw(t, "cached")
		u.ReasoningTokens = rapid.Int64Range(0, u.OutputTokens).Draw(t, "thought")
		most, err := p.mostCost(u.InputTokens, u.OutputTokens)
		charge, ok := p.Cost(u)
		if err != nil || !ok || charge > most+2 {
			t.Fatalf("%d (%t) are charged, %d (%v) were estimated", charge, ok, most, err)
		}
	})
}

func TestDiscountsAndReasoningInEstimates(t *testing.T) {
	f := func(edit func(*Config), want int64) {
		t.Helper()
		cfg := testConfig()
		edit(&cfg)
		d := mustLoad(t, cfg, limitText("{ name: l, unit: cost, window: day, limit: 1000000, key: [] }", "Deny")).Decide(t.Context(), testInput())
		if len(d.Limits) != 1 || d.Limits[0].Estimate != want {
			t.Errorf("%+v, errors %+v; want an estimate of %d", d.Limits, d.Errors, want)
		}
	}
	f(func(*Config) {}, 780) // 900 × 0.2 + 1000 × 0.6
	f(func(c *Config) {
		c.Discount = func(tenant, team, model string) int64 {
			if tenant+team+model != "t1searchm" {
				t.Errorf("asked for the discount of %s %s %s", tenant, team, model)
			}
			return 500_000
		}
	}, 390)
	f(func(c *Config) {
		c.Prices["m"] = Price{Input: 200_000, Output: 600_000, Reasoning: 900_000, ReasoningApart: true}
	}, 1080)
	f(func(c *Config) { c.Prices["m"] = Price{Input: 200_000, Output: 600_000, Reasoning: 900_000} }, 780)
}

// twoCurrencies has models in two currencies and one without a price.
func twoCurrencies() Config {
	cfg := testConfig()
	cfg.Pools[0].Models = append(cfg.Pools[0].Models, "unpriced")
	cfg.Prices = map[string]Price{"m": {Output: 1_000_000, Currency: "USD"}, "big": {Output: 1_000_000, Currency: "EUR"}, "big2": {Output: 1, Currency: "EUR"}}
	return cfg
}

// TestCurrencies: amounts of two currencies are never added up.
func TestCurrencies(t *testing.T) {
	cost := func(more string) string {
		return "{ name: l, unit: cost, window: day, limit: 1000000, key: []" + more + " }"
	}
	_, err := load(twoCurrencies(), limitText(cost(""), "Deny"))
	if err == nil || !strings.Contains(err.Error(), "amounts in EUR and USD") || !strings.Contains(err.Error(), "the binding p-b is for") {
		t.Errorf("one counter for two currencies: %v", err)
	}
	for _, models := range []string{`["m"]`, `["big*"]`, `["none"]`} {
		text := strings.Replace(limitText(cost(""), "Deny"), "policyName: p,", "policyName: p, selector: { models: "+models+" },", 1)
		if _, err := load(twoCurrencies(), text); err != nil {
			t.Errorf("models %s have one currency or none: %v", models, err)
		}
	}
	if _, err := load(twoCurrencies(), limitText("{ name: l, unit: tokens, window: day, limit: 1000000, key: [] }", "Deny")); err != nil {
		t.Errorf("a limit in tokens: %v", err)
	}

	s := mustLoad(t, twoCurrencies(), limitText(cost(", currency: USD"), "Deny"))
	applied := func(model string) (counters []string, d *Decision) {
		in := testInput()
		in.Request.Model = model
		d = s.Decide(t.Context(), in)
		for _, l := range d.Limits {
			counters = append(counters, l.Counter)
		}
		return counters, d
	}
	usd, _ := applied("m")
	eur, d := applied("big")
	if len(usd) != 1 || len(eur) != 0 || !d.Allow {
		t.Errorf("the limit in USD applies to the model in USD %d times and to the one in EUR %d times, %+v", len(usd), len(eur), d.Errors)
	}
	if _, d := applied("unpriced"); d.Allow || d.Reason != PolicyError {
		t.Errorf("a model without a price: %+v", d)
	}

	// Another currency is another counter, whether it was written or follows.
	same := strings.Replace(limitText(cost(""), "Deny"), "policyName: p,", `policyName: p, selector: { models: ["m"] },`, 1)
	cfg := twoCurrencies()
	s = mustLoad(t, cfg, same)
	if got, _ := applied("m"); !slices.Equal(got, usd) {
		t.Errorf("the same currency has the counters %q and %q", got, usd)
	}
	cfg.Prices["m"] = Price{Output: 1_000_000, Currency: "EUR"}
	s = mustLoad(t, cfg, same)
	if got, _ := applied("m"); slices.Equal(got, usd) {
		t.Error("a counter goes on in another currency")
	}

	s = mustLoad(t, twoCurrencies(), limitText(cost(", currency: CHF"), "Deny"))
	if w := s.Warnings(); len(w) != 1 || w[0].Kind != WarnCurrency || !strings.Contains(w[0].Text, "never applies") {
		t.Errorf("a currency that no price has: %+v", w)
	}
}
