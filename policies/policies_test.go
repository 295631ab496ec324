package policies

import (
	"context"
	"testing"

	"github.com/sluicegate/sluice/policy"
	"github.com/sluicegate/sluice/policy/policytest"
)

// TestPolicies runs the tests that stand beside the policies: all pass, and
// they see every outcome of every rule.
func TestPolicies(t *testing.T) {
	r, err := policytest.Run(FS, []string{"."}, policytest.Options{Orders: 10})
	if err != nil {
		t.Fatal(err)
	}
	for _, test := range r.Tests {
		for _, f := range test.Failures {
			t.Errorf("%s:%d: %s: %s", test.At.File, test.At.Line, test.Name, f)
		}
	}
	for _, m := range r.Coverage.Missing() {
		t.Errorf("%s:%d: no test shows %s %s %s", m.At.File, m.At.Line, m.Kind, m.Rule, m.Outcome)
	}
}

// TestLoadsAsOneSet: a gateway with the documented pools loads the whole
// directory, and its only warnings are the promotions that the set is meant to
// make.
func TestLoadsAsOneSet(t *testing.T) {
	set, err := policy.Load(policy.Config{Pools: []policy.Pool{{Name: "general", Models: []string{"m"}}, {Name: "restricted", Models: []string{"m"}}}}, FS)
	if err != nil {
		t.Fatal(err)
	}
	for _, w := range set.Warnings() {
		if w.Kind != policy.WarnRaise {
			t.Errorf("%s: %s", w.Kind, w.Error.Error())
		}
	}
	d := set.Decide(context.Background(), &policy.Input{
		Request: policy.RequestInput{Operation: "chat", Model: "m", N: 1},
		Tenant:  policy.TenantInput{ID: "acme", Tier: "gold"},
		Lazy:    content{},
	})
	if !d.Allow || len(d.Limits) != 3 || d.Class != "interactive" {
		t.Errorf("an ordinary request: %+v, errors %+v", d, d.Errors)
	}
}

// content is a gateway without detectors.
type content struct{}

func (content) InputTokens(context.Context) (int64, bool, error) { return 10, false, nil }

func (content) Content(context.Context) (policy.Content, error) {
	return policy.Content{ScanStatus: "unavailable"}, nil
}
