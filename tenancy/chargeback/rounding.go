package chargeback

import (
	"math"
	"math/bits"

	"github.com/sluicegate/sluice/tenancy"
)

// perMillion is how many tokens, or microseconds of one GPU, a price is for, and
// how many parts a discount is of.
const perMillion = 1_000_000

// Cost is what one meter of one request costs, in micro-units: quantity × price ×
// (1,000,000 − discount) / 10^12, rounded half up to a whole micro-unit. This is
// the one rounding there is; everything later is a sum. discount is in millionths.
// An amount beyond 64 bits, which no request can make, stays at the largest.
func Cost(quantity, price, discount int64) int64 {
	if quantity <= 0 || price <= 0 || discount >= tenancy.FullDiscount {
		return 0
	}
	// The product has up to 147 bits: three words, the top one first.
	hi, lo := bits.Mul64(uint64(quantity), uint64(price))
	parts := uint64(tenancy.FullDiscount - max(discount, 0))
	top, mid := bits.Mul64(hi, parts)
	carried, low := bits.Mul64(lo, parts)
	const whole = perMillion * perMillion
	low, carry := bits.Add64(low, whole/2, 0)
	mid, carry = bits.Add64(mid, carried, carry)
	if top += carry; top > 0 || mid >= whole {
		return math.MaxInt64
	}
	cost, _ := bits.Div64(mid, low, whole)
	return int64(min(cost, math.MaxInt64))
}

// costs are what the meters of a row cost at its prices and discount.
func costs(row *tenancy.Row) tenancy.Costs {
	var out [5]int64
	for i, m := range row.Meters() {
		out[i] = Cost(m.Quantity, m.Price, row.Discount)
	}
	return tenancy.Costs{Input: out[0], CachedInput: out[1], Output: out[2], Reasoning: out[3], GPU: out[4]}
}
