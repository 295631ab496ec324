package chargeback

import (
	"errors"
	"fmt"
	"math"
	"math/bits"
	"os"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/sluicegate/sluice/tenancy"
	"github.com/sluicegate/sluice/tenancy/strictyaml"
)

// ErrNoPrice means that the table has no price for a model at a time.
var ErrNoPrice = errors.New("no price for this model at this time")

// perTokens is how many tokens a price is for.
const perTokens = 1_000_000

// maxPrice is a million units of a currency for a million tokens: far above any
// price, and low enough that the cost of no real request overflows.
const maxPrice = 1_000_000_000_000

// Price is one row of a price table.
type Price struct {
	// Model is the model's name after alias resolution.
	Model string
	// Currency is the ISO 4217 code.
	Currency string
	// Prices are micro-units per million tokens.
	tenancy.Prices
	// ValidFrom is the first instant the price holds, zero for always so far;
	// ValidTo the first at which it no longer does, zero for open.
	ValidFrom, ValidTo time.Time
}

// holds reports whether the price is valid at an instant.
func (p *Price) holds(at time.Time) bool {
	return !at.Before(p.ValidFrom) && (p.ValidTo.IsZero() || at.Before(p.ValidTo))
}

// Prices is a price table: immutable, safe for concurrent use. A nil table has
// no prices. The file is strict YAML:
//
//	currency: USD              # for entries without their own
//	prices:
//	  - model: qwen            # after alias resolution
//	    input: 150000          # micro-units a million tokens: 0.15 USD
//	    cachedInput: 15000     # left out: as input
//	    output: 600000         # reasoning included
//	    currency: USD
//	    validFrom: 2026-01-01  # left out: always so far; a date means its start in UTC
//	    validTo: 2026-07-01    # left out: open; the price no longer holds then
//
// Validities of one model must not overlap.
type Prices struct {
	byModel map[string][]Price // by start of validity
}

// LoadPrices reads a price table file. The error lists every problem found as
// file:line:col: message.
func LoadPrices(path string) (*Prices, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("cannot read the price table: %w", err)
	}
	return ParsePrices(path, text)
}

// Price returns what a model costs at an instant. A request is priced at its
// start, the price it was admitted under.
func (p *Prices) Price(model string, at time.Time) (Price, bool) {
	if p == nil {
		return Price{}, false
	}
	for _, price := range p.byModel[model] {
		if price.holds(at) {
			return price, true
		}
	}
	return Price{}, false
}

// Cost fills in Currency, Prices and Costs of a row from its model, start and
// tokens. Without a price it clears them, sets FlagUnpriced and returns
// ErrNoPrice. With FlagCachedUnknown all input is charged in full: no part of it
// counts as cached.
func (p *Prices) Cost(row *tenancy.Row) error {
	row.Currency, row.Prices, row.Costs = "", tenancy.Prices{}, tenancy.Costs{}
	price, ok := p.Price(row.Model, row.Start)
	if !ok {
		row.Flags |= tenancy.FlagUnpriced
		return ErrNoPrice
	}
	row.Flags &^= tenancy.FlagUnpriced
	if row.Flags.Has(tenancy.FlagCachedUnknown) {
		row.CachedTokens = 0
	}
	row.Currency, row.Prices = price.Currency, price.Prices
	meters := row.Meters()
	row.Costs = tenancy.Costs{
		Input:       costOf(meters[0].Quantity, price.Input),
		CachedInput: costOf(meters[1].Quantity, price.CachedInput),
		Output:      costOf(meters[2].Quantity, price.Output),
	}
	return nil
}

// All lists the table, by model and start of validity.
func (p *Prices) All() []Price {
	if p == nil {
		return nil
	}
	var out []Price
	for _, prices := range p.byModel {
		out = append(out, prices...)
	}
	slices.SortFunc(out, func(a, b Price) int {
		if c := strings.Compare(a.Model, b.Model); c != 0 {
			return c
		}
		return a.ValidFrom.Compare(b.ValidFrom)
	})
	return out
}

// costOf is tokens × price / 1,000,000 micro-units, rounded half up: the one
// rounding there is. A product beyond 64 bits, which no request can make, stays
// at the largest amount.
func costOf(tokens, price int64) int64 {
	if tokens <= 0 || price <= 0 {
		return 0
	}
	hi, lo := bits.Mul64(uint64(tokens), uint64(price))
	lo, carry := bits.Add64(lo, perTokens/2, 0)
	hi += carry
	if hi >= perTokens {
		return math.MaxInt64
	}
	cost, _ := bits.Div64(hi, lo, perTokens)
	return int64(min(cost, math.MaxInt64))
}

var currencyCode = regexp.MustCompile(`^[A-Z]{3}$`)

// priceDocument reads a price table.
type priceDocument struct {
	reader
	currency string
	table    *Prices
	nodes    map[string][]strictyaml.Node // parallel to table.byModel before sorting
}

// ParsePrices reads the text of a price table; name is for messages.
func ParsePrices(name string, text []byte) (*Prices, error) {
	d := &priceDocument{
		reader: newReader(name),
		table:  &Prices{byModel: make(map[string][]Price)},
		nodes:  make(map[string][]strictyaml.Node),
	}
	body, ok := d.Parse(text, "prices")
	if !ok {
		return nil, d.Err()
	}
	var list strictyaml.Node
	listed := false
	ok = d.Fields(body, "the file", map[string]func(strictyaml.Node){
		"currency": func(n strictyaml.Node) { d.currency = d.code(n) },
		"prices":   func(n strictyaml.Node) { list, listed = n, true },
	})
	switch {
	case listed:
		for _, item := range d.Items(list, "prices") {
			d.price(item)
		}
	case ok:
		d.Fail(body, "the file has no `prices:` list")
	}
	d.checkOverlaps()
	if err := d.Err(); err != nil {
		return nil, err
	}
	for _, prices := range d.table.byModel {
		slices.SortFunc(prices, func(a, b Price) int { return a.ValidFrom.Compare(b.ValidFrom) })
	}
	return d.table, nil
}

func (d *priceDocument) code(n strictyaml.Node) string {
	s := d.text(n, "currency")
	if s != "" && !currencyCode.MatchString(s) {
		d.Fail(n, "currency should be a code of three capital letters, like USD")
	}
	return s
}

func (d *priceDocument) price(n strictyaml.Node) {
	before := d.Problems()
	p := Price{Currency: d.currency}
	var has struct{ model, input, cached, output bool }
	ok := d.Fields(n, "a price", map[string]func(strictyaml.Node){
		"model":       func(n strictyaml.Node) { p.Model, has.model = d.text(n, "model"), true },
		"currency":    func(n strictyaml.Node) { p.Currency = d.code(n) },
		"input":       func(n strictyaml.Node) { p.Input, has.input = d.amount(n, "input", maxPrice), true },
		"cachedInput": func(n strictyaml.Node) { p.CachedInput, has.cached = d.amount(n, "cachedInput", maxPrice), true },
		"output":      func(n strictyaml.Node) { p.Output, has.output = d.amount(n, "output", maxPrice), true },
		"validFrom":   func(n strictyaml.Node) { p.ValidFrom = d.instant(n, "validFrom") },
		"validTo":     func(n strictyaml.Node) { p.ValidTo = d.instant(n, "validTo") },
	})
	if !ok {
		return
	}
	require := func(has bool, what string) {
		if !has {
			d.Fail(n, "a price has no %s", what)
		}
	}
	require(has.model, "model")
	if has.model && p.Model == "" && d.Problems() == before {
		d.Fail(n, "a price's model is empty; name the model")
	}
	require(has.input, "input; write 0 if it is free")
	require(has.output, "output; write 0 if it is free")
	require(p.Currency != "", "currency, and the file names none for all")
	if !has.cached {
		p.CachedInput = p.Input
	}
	if !p.ValidTo.IsZero() && !p.ValidFrom.Before(p.ValidTo) {
		d.Fail(n, "validTo should be after validFrom")
	}
	if d.Problems() > before {
		return
	}
	d.table.byModel[p.Model] = append(d.table.byModel[p.Model], p)
	d.nodes[p.Model] = append(d.nodes[p.Model], n)
}

// checkOverlaps reports prices of one model that hold at the same instant.
func (d *priceDocument) checkOverlaps() {
	for model, prices := range d.table.byModel {
		for i := range prices {
			for j := range i {
				if prices[i].holds(prices[j].ValidFrom) || prices[j].holds(prices[i].ValidFrom) {
					d.Fail(d.nodes[model][i], "this price of %q overlaps the one in line %d; end that with validTo, or begin this later",
						model, d.nodes[model][j].Line())
				}
			}
		}
	}
}
