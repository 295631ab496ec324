// Package ledger keeps one durable row for every request, in an SQLite file or in
// a PostgreSQL database that several gateways share.
//
// One writer commits whatever has queued up as one transaction, so that the cost
// of a disk flush is shared (group commit). Record returns when its row is on
// disk: in the database, or in the spool beside it while that takes no rows. Requests announced by Begin and not
// recorded when the process dies become rows with outcome lost at the next
// Open. docs/0008-ledger.md says what is durable when, and why.
package ledger
