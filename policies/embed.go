// Package policies holds the policy library that ships with Sluice, as data: a
// folder for each policy, with its binding and its tests. docs/policy-library.md
// explains each.
//
// The folder starter is a set to begin with, which the demo runs and
// deploy/sluice.yaml names. It expects the pools general and restricted, the
// QoS classes critical, interactive, standard and batch, and tenants of the
// tiers gold, silver and bronze. Each of the other folders can be copied beside
// it: names and numbers stand in its binding.
package policies

import (
	"embed"
	"io/fs"
)

// FS holds every document of the library: policies and bindings, which a
// gateway loads, and PolicyTest documents, which it ignores.
//
//go:embed *.yaml */*.yaml
var FS embed.FS

// Starter holds the documents of the folder starter alone.
func Starter() fs.FS {
	sub, err := fs.Sub(FS, "starter")
	if err != nil {
		panic("BUG: policies: the starter set is not embedded: " + err.Error())
	}
	return sub
}
