package chargeback

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/sluicegate/sluice/tenancy"
	"github.com/sluicegate/sluice/tenancy/plainfile"
)

// ErrNoPrice means that the table has no price for a model at a time.
var ErrNoPrice = errors.New("no price for this model at this time")

// maxPrice is a million units of a currency for a million tokens or a second: far
// above any price, and low enough that the cost of no real request overflows.
const maxPrice = 1_000_000_000_000

// Price is one row of a price table.
type Price struct {
	// Model is the model's name after alias resolution, or a glob of such names.
	Model string
	// Currency is the ISO 4217 code.
	Currency string
	// Prices are of the list.
	tenancy.Prices
	// ValidFrom is the first instant the price holds, zero for always so far;
	// ValidTo the first at which it no longer does, zero for open.
	ValidFrom, ValidTo time.Time
}

// span is a time in which something holds.
func (p *Price) span() span { return span{p.ValidFrom, p.ValidTo} }

type span struct{ from, to time.Time }

// holds reports whether an instant is in the span.
func (s span) holds(at time.Time) bool {
	return !at.Before(s.from) && (s.to.IsZero() || at.Before(s.to))
}

// meets reports whether two spans have an instant in common.
func (s span) meets(o span) bool { return s.holds(o.from) || o.holds(s.from) }

// Discount is what one payer is spared of the list's prices.
type Discount struct {
	// Tenant or Team is the payer; the other is empty.
	Tenant, Team string
	// Model is a name or a glob.
	Model string
	// Millionths is how much: 125000 are 12.5 per cent.
	Millionths int64
	// ValidFrom and ValidTo are as a Price's.
	ValidFrom, ValidTo time.Time
}

func (d *Discount) span() span { return span{d.ValidFrom, d.ValidTo} }

// rank is lower for a tenant's own.
func (d *Discount) rank() int {
	if d.Tenant != "" {
		return 0
	}
	return 1
}

// Prices is a price table: immutable, safe for concurrent use. A nil table has
// no prices. The file is strict YAML:
//
//	currency: USD              # for entries without their own
//	prices:
//	  - model: qwen            # after alias resolution; a glob: qwen-*
//	    input: 150000          # micro-units a million tokens: 0.15 USD
//	    cachedInput: 15000     # left out: as input
//	    output: 600000
//	    reasoning: 600000      # left out: as output
//	    gpuSecond: 0           # micro-units a second of one GPU; left out: 0
//	    currency: USD
//	    validFrom: 2026-01-01  # left out: always so far; a date means its start in UTC
//	    validTo: 2026-07-01    # left out: open; the price no longer holds then
//	discounts:
//	  - tenant: acme           # or team
//	    model: qwen-*          # left out: every model
//	    millionths: 125000     # 12.5 per cent
//	    validFrom: 2026-01-01
//
// Of the prices that match a model and hold, a name comes before globs, and among
// globs the one with the most letters; two of the same rank that could match one
// model at one time are an error. Of the discounts, the tenant's come before the
// team's, and then as with prices: one applies, they do not add up.
type Prices struct {
	byModel   map[string][]Price // names, by start of validity
	globs     []Price            // heaviest first
	discounts []Discount         // in order of precedence
}

// maxPricesBytes bounds a price table, against the wrong file being named.
const maxPricesBytes = 16 << 20

// LoadPrices reads a price table file. The error lists every problem found as
// file:line:col: message.
func LoadPrices(path string) (*Prices, error) {
	text, err := plainfile.Read(path, maxPricesBytes)
	if err != nil {
		return nil, fmt.Errorf("cannot read the price table: %w", err)
	}
	return ParsePrices(path, text)
}

// Price returns what a model costs at an instant by the list. A request is priced
// at its start, the price it was admitted under.
func (p *Prices) Price(model string, at time.Time) (Price, bool) {
	if p == nil {
		return Price{}, false
	}
	for _, price := range p.byModel[model] {
		if price.span().holds(at) {
			return price, true
		}
	}
	for i := range p.globs {
		if price := &p.globs[i]; price.span().holds(at) && glob(price.Model).matches(model) {
			return *price, true
		}
	}
	return Price{}, false
}

// Discount returns what a payer is spared of a model's prices at an instant, in
// millionths.
func (p *Prices) Discount(tenant, team, model string, at time.Time) int64 {
	if p == nil {
		return 0
	}
	for i := range p.discounts {
		d := &p.discounts[i]
		payer := d.Tenant != "" && d.Tenant == tenant || d.Team != "" && d.Team == team
		if payer && d.span().holds(at) && glob(d.Model).matches(model) {
			return d.Millionths
		}
	}
	return 0
}

// Cost fills in Currency, Prices, Discount and Costs of a row from its payer,
// model, start, tokens and GPU time. Without a price it clears them, sets
// FlagUnpriced and returns ErrNoPrice. With FlagCachedUnknown all input is charged
// in full: no part of it counts as cached. Reasoning is a meter of its own from
// here on.
func (p *Prices) Cost(row *tenancy.Row) error {
	row.Currency, row.Prices, row.Discount, row.Costs = "", tenancy.Prices{}, 0, tenancy.Costs{}
	row.Flags |= tenancy.FlagReasoningApart
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
	row.Discount = p.Discount(row.Tenant, row.Team, row.Model, row.Start)
	row.Costs = costs(row)
	return nil
}

// All lists the prices, by model and start of validity.
func (p *Prices) All() []Price {
	if p == nil {
		return nil
	}
	out := slices.Clone(p.globs)
	for _, prices := range p.byModel {
		out = append(out, prices...)
	}
	slices.SortFunc(out, func(a, b Price) int {
		return cmp.Or(strings.Compare(a.Model, b.Model), a.ValidFrom.Compare(b.ValidFrom))
	})
	return out
}

// Discounts lists the discounts, those first that come before others.
func (p *Prices) Discounts() []Discount {
	if p == nil {
		return nil
	}
	return slices.Clone(p.discounts)
}

// Next is the first instant after now at which some price or discount begins or
// ends to hold; zero if there is none.
func (p *Prices) Next(now time.Time) (next time.Time) {
	var spans []span
	for _, price := range p.All() {
		spans = append(spans, price.span())
	}
	for _, d := range p.Discounts() {
		spans = append(spans, d.span())
	}
	for _, s := range spans {
		for _, at := range [...]time.Time{s.from, s.to} {
			if at.After(now) && (next.IsZero() || at.Before(next)) {
				next = at
			}
		}
	}
	return next
}
