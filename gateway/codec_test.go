package gateway

import (
	"slices"
	"testing"

	"github.com/sluicegate/sluice/tenancy"
)

// TestRoutesAreWhole: a route that reaches a worker says all that is needed for it,
// and is named like its operation everywhere.
func TestRoutesAreWhole(t *testing.T) {
	for _, r := range allRoutes {
		if r.operation != "" && !slices.Contains(tenancy.Operations(), r.operation) {
			t.Errorf("%s: %s is no operation of principals' scopes", r.template, r.operation)
		}
		if r.op == 0 {
			if r.codec != nil || r.upstream != "" {
				t.Errorf("%s has a codec or a path at the worker without an operation", r.template)
			}
			continue
		}
		if r.op.String() != r.operation {
			t.Errorf("%s is %s to policies and %v to its codec", r.template, r.operation, r.op)
		}
		if r.codec == nil || r.upstream == "" {
			t.Errorf("%s lacks a codec or its path at the worker", r.template)
		}
		if r.streams && !r.generates {
			t.Errorf("%s streams what it doesn't generate", r.template)
		}
	}
}
