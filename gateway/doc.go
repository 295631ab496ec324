// Package gateway is the HTTP edge of Sluice and the order of its steps:
//
//	identify -> scan -> decide -> reserve -> pick -> forward -> relay -> settle
//
// Ownership of a request passes once. Until a response's first whole event or
// body is at hand, the handler owns everything the request has acquired: the
// limit lease, the scorer's reservation, the worker connection, the watch on
// the client. From then on the relay owns it, and the server drains the relay
// on the same goroutine after the handler has returned. Whoever owns it calls
// exchange.finish, which gives everything back in one place, once, whatever
// happened: finish, client gone, worker gone, timeout, shutdown, panic.
//
// A client that leaves is noticed by the watcher, which only marks the
// exchange and closes its worker connection; the owner then wakes with an
// error and finishes. There is no goroutine for a request but its
// connection's own.
//
// Bindings that only audit are judged beside the requests, by the few goroutines
// of Gateway's rehearsals, which hold a request's body by a count of references and
// otherwise nothing of it. They begin with the first byte of the answer and may
// end long after it.
//
// What reloads together hangs from one State behind one atomic pointer; a
// request loads it once and keeps it. What remembers (limits, fleet, ledger,
// connections) sits on Gateway and outlives reloads.
package gateway
