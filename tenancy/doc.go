// Package tenancy holds the words that identity, ledger and chargeback share:
// who calls (Tenant, Principal) and what one request was and cost (Row).
//
// It is plain data with small pure helpers and imports nothing of ours. Where
// a credential becomes a Principal is tenancy/authn; where a Row is kept is
// tenancy/ledger; where rows become an invoice is tenancy/chargeback.
package tenancy
