// Package policies holds the policies that ship with Sluice, as data: a small
// set to start from, each with its own tests. docs/policies.md explains them.
//
// The set expects the pools general and restricted, the QoS classes critical,
// interactive, standard and batch, and tenants of the tiers gold, silver and
// bronze. Copy the files and change names and numbers to your own.
package policies

import "embed"

// FS holds every document of the set: policies and bindings, which a gateway
// loads, and the PolicyTest documents beside them, which it ignores.
//
//go:embed *.yaml
var FS embed.FS
