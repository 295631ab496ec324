// Package chargeback turns ledger rows into money: a price table with validity
// dates and discounts (Prices), the statement of a month that finance bills from
// (Statement), corrections (Correct), the view of what GPUs cost (ShareGPUs), and
// the tenants' metrics (TenantMetrics).
//
// Money is integer micro-units (millionths) of a currency; prices are micro-units
// for a million tokens, or for a million microseconds of one GPU. Rounding is
// stated once, by Cost: the cost of one meter of one request is quantity × price,
// less the payer's discount, rounded half up to a whole micro-unit. Everything
// later is a sum of those integers, so sums agree to the unit however they are
// grouped.
package chargeback
