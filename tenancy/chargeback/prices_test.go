package chargeback

import (
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/sluicegate/sluice/tenancy"
)

func date(y int, m time.Month, d int) time.Time { return time.Date(y, m, d, 0, 0, 0, 0, time.UTC) }

const sampleTable = `# platform prices
currency: USD
prices:
  - { model: qwen, input: 150000, cachedInput: 15000, output: 600000, validTo: 2026-07-01 }
  - model: qwen
    input: 200_000
    output: 700000
    validFrom: 2026-07-01
  - { model: free, input: 0, output: 0 }
  - { model: mist, currency: EUR, input: 1, output: 2, validFrom: "2026-03-01T12:00:00+01:00", validTo: 2026-03-02 }
  - { model: "thinker-*", input: 100000, output: 400000, reasoning: 300000, gpuSecond: 2500 }
discounts:
  - { team: search, model: qwen, millionths: 100000 }
  - { tenant: acme, millionths: 125000, validFrom: 2026-03-01 }
`

func table(t testing.TB, text string) *Prices {
	t.Helper()
	p, err := ParsePrices("p.yaml", []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func TestPriceByDate(t *testing.T) {
	p := table(t, sampleTable)
	f := func(model string, at time.Time, want *tenancy.Prices) {
		t.Helper()
		got, ok := p.Price(model, at)
		if ok != (want != nil) || ok && got.Prices != *want {
			t.Errorf("%s at %v: %+v, %v; want %v", model, at, got, ok, want)
		}
	}
	first := &tenancy.Prices{Input: 150_000, CachedInput: 15_000, Output: 600_000, Reasoning: 600_000}
	second := &tenancy.Prices{Input: 200_000, CachedInput: 200_000, Output: 700_000, Reasoning: 700_000}
	f("qwen", date(1999, 1, 1), first)
	f("qwen", date(2026, 7, 1).Add(-1), first)
	f("qwen", date(2026, 7, 1), second)
	f("qwen", date(2099, 1, 1), second)
	f("free", date(2026, 1, 1), &tenancy.Prices{})
	f("mist", date(2026, 3, 1).Add(11*time.Hour-1), nil)
	f("mist", date(2026, 3, 1).Add(11*time.Hour), &tenancy.Prices{Input: 1, CachedInput: 1, Output: 2, Reasoning: 2})
	f("mist", date(2026, 3, 2), nil)
	f("Qwen", date(2026, 1, 1), nil)
	all := p.All()
	if len(all) != 5 || all[0].Model != "free" || all[1].Model != "mist" || all[1].Currency != "EUR" || all[3].ValidFrom != date(2026, 7, 1) {
		t.Errorf("table %+v", all)
	}
	if _, ok := (*Prices)(nil).Price("qwen", date(2026, 1, 1)); ok || (*Prices)(nil).All() != nil {
		t.Error("a missing table has prices")
	}
}

func TestPriceByGlob(t *testing.T) {
	p := table(t, `currency: USD
prices:
  - { model: "*", input: 1, output: 1 }
  - { model: "qwen*", input: 2, output: 2 }
  - { model: "qwen3*", input: 3, output: 3, validTo: 2026-02-01 }
  - { model: "*wen3-9b", input: 4, output: 4 }
  - { model: qwen3-8b, input: 5, output: 5, validFrom: 2026-01-01, validTo: 2026-02-01 }
  - { model: "org/*", input: 6, output: 6 }
`)
	for _, c := range []struct {
		model string
		at    time.Time
		want  int64
	}{
		{"other", date(2026, 1, 1), 1},
		{"a/b/c", date(2026, 1, 1), 1},
		{"qwen2", date(2026, 1, 1), 2},
		{"qwen3-4b", date(2026, 1, 1), 3},
		{"qwen3-4b", date(2026, 2, 1), 2},
		{"qwen3-8b", date(2026, 1, 1), 5},
		{"qwen3-8b", date(2025, 1, 1), 3},
		{"qwen3-8b", date(2026, 2, 1), 2},
		{"qwen3-9b", date(2026, 1, 1), 4},
		{"org/qwen3", date(2026, 1, 1), 6},
		{"org/qwen3/x", date(2026, 1, 1), 1},
	} {
		if got, ok := p.Price(c.model, c.at); !ok || got.Input != c.want {
			t.Errorf("%s at %s: %d, %v, want %d", c.model, c.at.Format(time.DateOnly), got.Input, ok, c.want)
		}
	}
}

func TestDiscounts(t *testing.T) {
	p := table(t, `currency: USD
prices: [{ model: m, input: 1, output: 1 }]
discounts:
  - { team: search, millionths: 1 }
  - { team: search, model: "qwen*", millionths: 2 }
  - { tenant: acme, model: "qwen*", millionths: 3, validFrom: 2026-01-01, validTo: 2026-02-01 }
  - { tenant: acme, model: qwen3, millionths: 4, validFrom: 2026-01-01 }
  - { tenant: gratis, millionths: 1000000 }
`)
	for _, c := range []struct {
		tenant, team, model string
		at                  time.Time
		want                int64
	}{
		{"acme", "search", "qwen3", date(2026, 1, 1), 4},
		{"acme", "search", "qwen2", date(2026, 1, 1), 3},
		{"acme", "search", "qwen2", date(2026, 2, 1), 2},
		{"acme", "search", "other", date(2026, 1, 1), 1},
		{"acme", "", "other", date(2026, 1, 1), 0},
		{"x", "search", "qwen3", date(2026, 1, 1), 2},
		{"", "", "qwen3", date(2026, 1, 1), 0},
		{"gratis", "search", "qwen3", date(2026, 1, 1), 1_000_000},
	} {
		if got := p.Discount(c.tenant, c.team, c.model, c.at); got != c.want {
			t.Errorf("%+v: %d", c, got)
		}
	}
	if got := (*Prices)(nil).Discount("acme", "search", "qwen3", march); got != 0 || (*Prices)(nil).Discounts() != nil {
		t.Errorf("a missing table gives a discount of %d", got)
	}
	for _, c := range [][2]time.Time{{date(2025, 1, 1), date(2026, 1, 1)}, {date(2026, 1, 1), date(2026, 2, 1)}, {date(2026, 2, 1), {}}} {
		if got := p.Next(c[0]); !got.Equal(c[1]) {
			t.Errorf("after %v comes %v, want %v", c[0], got, c[1])
		}
	}
}

func TestCost(t *testing.T) {
	p := table(t, sampleTable)
	row := &tenancy.Row{Model: "qwen", Start: date(2026, 3, 10), InputTokens: 900, CachedTokens: 600, OutputTokens: 250, ReasoningTokens: 50}
	if err := p.Cost(row); err != nil {
		t.Fatal(err)
	}
	// 300 × 0.15 = 45, 600 × 0.015 = 9, 200 and 50 × 0.6 = 120 and 30 micro-units.
	if want := (tenancy.Costs{Input: 45, CachedInput: 9, Output: 120, Reasoning: 30}); row.Costs != want || row.Currency != "USD" || row.Prices.Output != 600_000 || row.Discount != 0 {
		t.Errorf("costs %+v in %q at %+v", row.Costs, row.Currency, row.Prices)
	}
	row.Flags |= tenancy.FlagCachedUnknown
	if err := p.Cost(row); err != nil || row.Costs != (tenancy.Costs{Input: 135, Output: 120, Reasoning: 30}) || row.CachedTokens != 0 {
		t.Errorf("cached unknown: %+v, %v", row, err)
	}
	row.Tenant = "acme"
	if err := p.Cost(row); err != nil || row.Discount != 125_000 || row.Costs != (tenancy.Costs{Input: 118, Output: 105, Reasoning: 26}) || row.Prices.Input != 150_000 {
		t.Errorf("at a discount: %+v, %v", row, err)
	}
	row.Model, row.GPUTime = "thinker-9b", 4*time.Second
	if err := p.Cost(row); err != nil || row.Costs != (tenancy.Costs{Input: 79, Output: 70, Reasoning: 13, GPU: 8750}) {
		t.Errorf("with GPU time: %+v, %v", row, err)
	}
	row.Model = "dear"
	if err := p.Cost(row); !errors.Is(err, ErrNoPrice) || row.Costs != (tenancy.Costs{}) || row.Currency != "" || row.Discount != 0 || !row.Flags.Has(tenancy.FlagUnpriced|tenancy.FlagReasoningApart) {
		t.Errorf("no price: %+v, %v", row, err)
	}
	row.Model = "free"
	if err := p.Cost(row); err != nil || row.Currency != "USD" || row.Flags.Has(tenancy.FlagUnpriced) {
		t.Errorf("free: %+v, %v", row, err)
	}
}

func TestBadTables(t *testing.T) {
	f := func(text string, want ...string) {
		t.Helper()
		_, err := ParsePrices("p.yaml", []byte(text))
		if err == nil {
			t.Errorf("loaded:\n%s", text)
			return
		}
		for i := range want {
			want[i] = "p.yaml:" + want[i]
		}
		if got := strings.Split(err.Error(), "\n"); !reflect.DeepEqual(got, want) {
			t.Errorf("of\n%s\ngot  %q\nwant %q", text, got, want)
		}
	}
	f("", "1:1: the file is empty; it should hold a `prices:` list")
	f("\xff", "1:1: the file is not UTF-8 text")
	f("[]", "1:1: the file should be a mapping, not a list")
	f("currency: USD\n", "1:1: the file has no `prices:` list")
	f("currency: usd\nprices: []\n", "1:11: currency should be a code of three capital letters, like USD")
	f("prices: {}\n", "1:9: prices should be a list, not a mapping")
	f("prices: [\n", "1:9: not valid YAML: sequence end token ']' not found")
	f("prices: []\n---\nprices: []\n", "3:1: a second document; put all prices under one `prices:` list")
	f("prices: []\nprices: []\n", "2:1: key \"prices\" appears twice in the file, first in line 1")
	f("prices:\n  - x\n", "2:5: a price should be a mapping, not text")
	f("prices:\n  - model: a\n", "2:5: a price has no input; write 0 if it is free", "2:5: a price has no output; write 0 if it is free",
		"2:5: a price has no currency, and the file names none for all")
	one := func(fields string) string {
		return "currency: USD\nprices:\n  - { model: a, input: 1, output: 1" + fields + " }\n"
	}
	f(one(", cached_input: 1"), "3:38: unknown key \"cached_input\" in a price; known keys are cachedInput, currency, gpuSecond, input, model, output, reasoning, validFrom, validTo")
	f(one(", cachedInput: 0.5"), "3:51: cachedInput should be a whole number of micro-units, not a number with a fraction")
	f(one(", cachedInput: -1"), "3:51: cachedInput should not be negative")
	f(one(", cachedInput: '1'"), "3:51: cachedInput should be a whole number of micro-units, not text")
	f(one(", cachedInput: 1000000000001"), "3:51: cachedInput should be at most 1000000000000 micro-units")
	f(one(", validFrom: soon"), "3:49: validFrom should be a date like 2026-07-01 or a time like 2026-07-01T12:00:00Z")
	f(one(", validFrom: 2026-02-01, validTo: 2026-02-01"), "3:5: validTo should be after validFrom")
	f("currency: USD\nprices:\n  - { model: '', input: 1, output: 1 }\n", "3:5: a price's model is empty; name the model")
	f("currency: USD\nprices:\n  - { model: 7, input: 1, output: 1 }\n", "3:14: model should be text, not a number")
	overlap := one("") + "  - { model: b, input: 1, output: 1 }\n  - { model: a, input: 1, output: 1, validFrom: 2026-01-01 }\n"
	f(overlap, "5:5: this price of \"a\" overlaps the one in line 3; end that with validTo, or begin this later")
	f("currency: USD\nprices:\n  - { model: 'q*', input: 1, output: 1 }\n  - { model: '*q', input: 1, output: 1 }\n",
		"4:5: this price of \"*q\" overlaps the one of \"q*\" in line 3; end that with validTo, or begin this later")
	f("currency: USD\nprices:\n  - { model: 'q[a]', input: 1, output: 1 }\n",
		"3:14: a price's model: only * and ? stand for other characters; write the name without brackets and backslashes")
	f(one(", gpuSecond: 0.5"), "3:49: gpuSecond should be a whole number of micro-units, not a number with a fraction")
	discount := func(text string) string { return one("") + "discounts:\n" + text }
	f(discount("  - { tenant: a }\n"), "5:5: a discount has no millionths; 125000 are 12.5 per cent")
	f(discount("  - { tenant: a, team: b, millionths: 1 }\n"), "5:5: a discount should name a tenant or a team, one of the two")
	f(discount("  - { millionths: 1 }\n"), "5:5: a discount should name a tenant or a team, one of the two")
	f(discount("  - { tenant: a, millionths: 12.5 }\n"), "5:30: millionths should be a whole number of millionths, not a number with a fraction")
	f(discount("  - { tenant: a, millionths: 1000001 }\n"), "5:30: millionths should be at most 1000000 millionths")
	f(discount("  - { tenant: a, millionths: 1, validFrom: 2026-02-01, validTo: 2026-01-01 }\n"), "5:5: validTo should be after validFrom")
	f(discount("  - { tenant: a, percent: 1 }\n"), "5:18: unknown key \"percent\" in a discount; known keys are millionths, model, team, tenant, validFrom, validTo")
	f(discount("  - { tenant: a, millionths: 1 }\n  - { tenant: b, millionths: 1 }\n  - { tenant: a, millionths: 2, model: '*' }\n"),
		"7:5: this discount on \"*\" overlaps the one in line 5; end that with validTo, or begin this later")
	f("x: 1\nprices:\n"+strings.Repeat("  - 1\n", 60), manyProblems()...)
}

func manyProblems() []string {
	want := []string{"1:1: unknown key \"x\" in the file; known keys are currency, discounts, prices"}
	for i := range 49 {
		want = append(want, strings.Replace("N:5: a price should be a mapping, not a number", "N", strconv.Itoa(i+3), 1))
	}
	return append(want, " 11 more problems")
}

func TestLoadPrices(t *testing.T) {
	path := filepath.Join(t.TempDir(), "prices.yaml")
	if _, err := LoadPrices(path); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("missing file: %v", err)
	}
	if err := os.WriteFile(path, []byte(sampleTable), 0o600); err != nil {
		t.Fatal(err)
	}
	if p, err := LoadPrices(path); err != nil || len(p.All()) != 5 {
		t.Errorf("%v, %v", p, err)
	}
}

func FuzzPrices(f *testing.F) {
	f.Add([]byte(sampleTable))
	f.Add([]byte("currency: USD\nprices: []\ndiscounts: [ { team: a, model: 'q?*', millionths: 7 } ]"))
	f.Add([]byte("currency: USD\nprices: [ { model: a, input: 1, output: 18446744073709551615 } ]"))
	f.Fuzz(func(t *testing.T, text []byte) {
		p, err := ParsePrices("p.yaml", text)
		if err != nil {
			for line := range strings.Lines(err.Error()) {
				if !strings.HasPrefix(line, "p.yaml:") {
					t.Fatalf("a problem without its file: %q", line)
				}
			}
			return
		}
		for _, price := range p.All() {
			got, ok := p.Price(price.Model, price.ValidFrom)
			if glob(price.Model).plain() && (!ok || got != price) {
				t.Fatalf("price %+v is not found at its own start: %+v", price, got)
			}
			if price.Input < 0 || price.Input > maxPrice || price.Currency == "" {
				t.Fatalf("unusable price %+v", price)
			}
		}
	})
}
