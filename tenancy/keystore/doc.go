// Package keystore keeps API keys in a database: an SQLite file of its own, or a
// PostgreSQL database that several gateways share. A key is there as it is in a
// tenants file, with the digest of its secret alone. Tenants stay in the tenants
// file; a key names one.
//
// Every change of a key takes the next number of one counter, in the transaction
// that makes it, and the row of the counter is locked until that transaction ends.
// So numbers become visible in their order, and a reader that asks for what is
// above the number it knows misses nothing. Revoked keys stay, with when, by whom
// and why.
package keystore
