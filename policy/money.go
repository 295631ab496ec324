package policy

import (
	"fmt"
	"math/bits"
	"slices"
	"strings"
)

// Money is in micro-units of one currency. A meter's cost is its tokens at the
// model's price less the payer's discount, rounded once, half up; a request's is
// the sum of its meters. Charges are worked out by the same rule where requests
// are booked, and tests of both go by one table.

// fullDiscount is the discount that makes everything free, in millionths.
const fullDiscount = 1_000_000

// Discounted is the price with another discount, in millionths.
func (p Price) Discounted(discount int64) Price {
	p.Discount = discount
	return p
}

// cost prices tokens. cached tokens are part of input, reasoning ones of output.
func (p Price) cost(input, cached, output, reasoning int64) (int64, error) {
	if !p.ReasoningApart {
		reasoning = 0
	}
	total := int64(0)
	for _, m := range [...]struct{ tokens, price int64 }{
		{input - cached, p.Input}, {cached, p.CachedInput}, {output - reasoning, p.Output}, {reasoning, p.Reasoning},
	} {
		units, ok := meterCost(m.tokens, m.price, p.Discount)
		if !ok {
			return 0, &evalError{kind: ErrorValue, text: "the cost overflows"}
		}
		var err error
		if total, err = addInt(total, units); err != nil {
			return 0, &evalError{kind: ErrorValue, text: "the cost overflows"}
		}
	}
	return total, nil
}

// mostCost prices what may be used at most: output that may turn out to be
// reasoning counts as the dearer of the two, in one meter, so that what is charged
// for the same tokens exceeds it by no more than the rounding of one meter.
func (p Price) mostCost(input, output int64) (int64, error) {
	if p.ReasoningApart {
		p.Output = max(p.Output, p.Reasoning)
	}
	return p.cost(input, 0, output, 0)
}

// meterCost is tokens × price × (1 - discount), in micro-units, rounded half up.
// ok is false where that is no amount.
func meterCost(tokens, price, discount int64) (units int64, ok bool) {
	if tokens < 0 || price < 0 || discount < 0 || discount > fullDiscount {
		return 0, false
	}
	hi, lo := bits.Mul64(uint64(tokens), uint64(price))
	// (hi, lo) × share, where share has 20 bits.
	share := uint64(fullDiscount - discount)
	over, hi2 := bits.Mul64(hi, share)
	carry, lo := bits.Mul64(lo, share)
	hi, c := bits.Add64(hi2, carry, 0)
	const perTokens = 1_000_000 * fullDiscount
	lo, half := bits.Add64(lo, perTokens/2, 0)
	hi, c2 := bits.Add64(hi, 0, half)
	if over+c+c2 > 0 || hi >= perTokens {
		return 0, false
	}
	u, _ := bits.Div64(hi, lo, perTokens)
	return int64(u), u <= 1<<63-1
}

// Cost prices a usage by the table, in micro-units. ok is false where the price
// or the usage gives none.
func (p Price) Cost(u Usage) (units int64, ok bool) {
	if u.CachedInputTokens > u.InputTokens || u.ReasoningTokens > u.OutputTokens {
		return 0, false
	}
	units, err := p.cost(u.InputTokens, u.CachedInputTokens, u.OutputTokens, u.ReasoningTokens)
	return units, err == nil
}

// price is what the request's payer pays for its model.
func (e *evaluation) price() (Price, bool) {
	cfg, r, t := e.set.cfg, &e.in.Request, &e.in.Tenant
	p, ok := cfg.Prices[r.Model]
	if ok && cfg.Discount != nil {
		p.Discount = cfg.Discount(t.ID, t.Team, r.Model)
	}
	return p, ok
}

// otherCurrency reports whether a limit adds up another currency than that of the
// request's model. A model without a price has none, and is for the estimate to
// refuse.
func (e *evaluation) otherCurrency(l *limit) bool {
	if l.doc.currency == "" {
		return false
	}
	p, ok := e.price()
	return ok && p.Currency != l.doc.currency
}

// currenciesOf lists the currencies of the models that a binding is for, sorted.
func (c *Config) currenciesOf(bd *binding) []string {
	var out []string
	for model, p := range c.Prices {
		match := func(pattern string) bool { return globMatch(pattern, model) }
		if len(bd.selector.models) == 0 || slices.ContainsFunc(bd.selector.models, match) {
			out = append(out, p.Currency)
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// currencyOf is the currency that a limit adds up, or empty where none is known.
// Sums of two currencies are none: it reports an error for them.
func (c *Config) currencyOf(bd *binding, l *limit) (string, error) {
	if l.doc.unit != Cost {
		return "", nil
	}
	if l.doc.currency != "" {
		return l.doc.currency, nil
	}
	all := c.currenciesOf(bd)
	switch len(all) {
	case 0:
		return "", nil
	case 1:
		return all[0], nil
	}
	return "", fmt.Errorf("the limit would add up amounts in %s, since models that the binding %s is for have prices in each: give it a currency, and make one such limit for each currency",
		strings.Join(all, " and "), bd.name)
}

// checkCurrencies refuses limits that would add up amounts of two currencies, and
// warns of those whose currency no price has.
func (b *builder) checkCurrencies(bd *binding) {
	for i := range bd.policy.limits {
		l := &bd.policy.limits[i]
		if _, err := b.cfg.currencyOf(bd, l); err != nil {
			l.doc.at.errorf(b.p, "%v", err)
		}
	}
}

// reviewCurrencies warns of limits in a currency that no price has.
func (b *builder) reviewCurrencies(bd *binding) {
	all := b.cfg.currenciesOf(bd)
	for i := range bd.policy.limits {
		if l := &bd.policy.limits[i]; l.doc.currency != "" && len(all) > 0 && !slices.Contains(all, l.doc.currency) {
			b.warn(WarnCurrency, l.doc.at.place(), "no model that the binding %s is for has a price in %s, but in %s: the limit never applies",
				bd.name, l.doc.currency, strings.Join(all, " and "))
		}
	}
}
