// Package chargeback turns ledger rows into money: a price table with validity
// dates (Prices), the export that finance bills from (Export), and the tenants'
// metrics (TenantMetrics).
//
// Money is integer micro-units (millionths) of a currency; prices are
// micro-units per million tokens. Rounding is stated once: the cost of one
// meter of one request is tokens × price / 1,000,000, rounded half up to a
// whole micro-unit. Everything later is a sum of those integers, so sums agree
// to the unit however they are grouped.
package chargeback
