// Package bodyscan is what the scans of request bodies have in common, whatever
// the dialect: the body's object and the keys that the gateway reads, their types,
// names that must occur once, and the refusals, which name a field and never
// quote the body.
package bodyscan
