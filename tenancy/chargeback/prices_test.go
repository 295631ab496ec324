package chargeback

import (
	"errors"
	"fmt"
	"math"
	"math/big"
	"os"
	"path/filepath"
	"reflect"
	"strconv"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

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
	first := &tenancy.Prices{Input: 150_000, CachedInput: 15_000, Output: 600_000}
	second := &tenancy.Prices{Input: 200_000, CachedInput: 200_000, Output: 700_000}
	f("qwen", date(1999, 1, 1), first)
	f("qwen", date(2026, 7, 1).Add(-1), first)
	f("qwen", date(2026, 7, 1), second)
	f("qwen", date(2099, 1, 1), second)
	f("free", date(2026, 1, 1), &tenancy.Prices{})
	f("mist", date(2026, 3, 1).Add(11*time.Hour-1), nil)
	f("mist", date(2026, 3, 1).Add(11*time.Hour), &tenancy.Prices{Input: 1, CachedInput: 1, Output: 2})
	f("mist", date(2026, 3, 2), nil)
	f("Qwen", date(2026, 1, 1), nil)
	all := p.All()
	if len(all) != 4 || all[0].Model != "free" || all[1].Model != "mist" || all[1].Currency != "EUR" || all[3].ValidFrom != date(2026, 7, 1) {
		t.Errorf("table %+v", all)
	}
	if _, ok := (*Prices)(nil).Price("qwen", date(2026, 1, 1)); ok || (*Prices)(nil).All() != nil {
		t.Error("a missing table has prices")
	}
}

func TestCost(t *testing.T) {
	p := table(t, sampleTable)
	row := &tenancy.Row{Model: "qwen", Start: date(2026, 3, 10), InputTokens: 900, CachedTokens: 600, OutputTokens: 250}
	if err := p.Cost(row); err != nil {
		t.Fatal(err)
	}
	// 300 × 0.15 = 45, 600 × 0.015 = 9, 250 × 0.6 = 150 micro-units.
	if want := (tenancy.Costs{Input: 45, CachedInput: 9, Output: 150}); row.Costs != want || row.Currency != "USD" || row.Prices.Output != 600_000 {
		t.Errorf("costs %+v in %q at %+v", row.Costs, row.Currency, row.Prices)
	}
	row.Flags |= tenancy.FlagCachedUnknown
	if err := p.Cost(row); err != nil || row.Costs != (tenancy.Costs{Input: 135, Output: 150}) || row.CachedTokens != 0 {
		t.Errorf("cached unknown: %+v, %v", row, err)
	}
	row.Model = "dear"
	if err := p.Cost(row); !errors.Is(err, ErrNoPrice) || row.Costs != (tenancy.Costs{}) || row.Currency != "" || !row.Flags.Has(tenancy.FlagUnpriced) {
		t.Errorf("no price: %+v, %v", row, err)
	}
	row.Model = "free"
	if err := p.Cost(row); err != nil || row.Currency != "USD" || row.Flags.Has(tenancy.FlagUnpriced) {
		t.Errorf("free: %+v, %v", row, err)
	}
}

func TestCostRoundsHalfUp(t *testing.T) {
	f := func(tokens, price, want int64) {
		t.Helper()
		if got := costOf(tokens, price); got != want {
			t.Errorf("%d tokens at %d: %d, want %d", tokens, price, got, want)
		}
	}
	f(0, 150_000, 0)
	f(1, 150_000, 0)
	f(3, 150_000, 0)
	f(4, 150_000, 1)
	f(1, 499_999, 0)
	f(1, 500_000, 1)
	f(1, 1_499_999, 1)
	f(3, 500_000, 2)
	f(1_000_000, 150_000, 150_000)
	f(1<<40, maxPrice, 1<<40*1_000_000)
	f(math.MaxInt64, maxPrice, math.MaxInt64)
	f(math.MaxInt64, 1_000_001, math.MaxInt64)
	f(math.MaxInt64, 1_000_000, math.MaxInt64)
}

func TestPropertyCostIsExact(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		tokens := rapid.Int64Range(0, 1<<40).Draw(t, "tokens")
		price := rapid.Int64Range(0, maxPrice).Draw(t, "price")
		want := new(big.Int).Mul(big.NewInt(tokens), big.NewInt(price))
		want.Add(want, big.NewInt(500_000)).Div(want, big.NewInt(1_000_000))
		if got := costOf(tokens, price); !want.IsInt64() || got != want.Int64() {
			t.Fatalf("%d × %d: %d, want %s", tokens, price, got, want)
		}
	})
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
	f(one(", cached_input: 1"), "3:38: unknown key \"cached_input\" in a price; known keys are cachedInput, currency, input, model, output, validFrom, validTo")
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
	f("x: 1\nprices:\n"+strings.Repeat("  - 1\n", 60), manyProblems()...)
}

func manyProblems() []string {
	want := []string{"1:1: unknown key \"x\" in the file; known keys are currency, prices"}
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
	if p, err := LoadPrices(path); err != nil || len(p.All()) != 4 {
		t.Errorf("%v, %v", p, err)
	}
}

func FuzzPrices(f *testing.F) {
	f.Add([]byte(sampleTable))
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
			if !ok || got != price {
				t.Fatalf("price %+v is not found at its own start: %+v", price, got)
			}
			if price.Input < 0 || price.Input > maxPrice || price.Currency == "" {
				t.Fatalf("unusable price %+v", price)
			}
		}
	})
}

// TestRounding: a meter's cost is what the table says that policies go by too.
func TestRounding(t *testing.T) {
	text, err := os.ReadFile("testdata/rounding.txt")
	if err != nil {
		t.Fatal(err)
	}
	rows := 0
	for line := range strings.Lines(string(text)) {
		if strings.HasPrefix(line, "#") {
			continue
		}
		var tokens, price, discount, want int64
		if _, err := fmt.Sscan(line, &tokens, &price, &discount, &want); err != nil {
			t.Fatalf("%q: %v", line, err)
		}
		if discount != 0 {
			continue // the table of prices has none
		}
		rows++
		if got := costOf(tokens, price); got != want {
			t.Errorf("%d tokens at %d: %d, want %d", tokens, price, got, want)
		}
	}
	if rows < 15 {
		t.Errorf("%d rows of the table were looked at", rows)
	}
}
