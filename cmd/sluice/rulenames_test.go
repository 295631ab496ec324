package main

import (
	"strings"
	"testing"
	"testing/fstest"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/sluicegate/sluice/policy"
	"github.com/sluicegate/sluice/tenancy/chargeback"
)

// TestErrorsAreCountedByRuleAndKind: an expression that fails is counted under its
// rule and what it died of, and under no name that is not in force.
func TestErrorsAreCountedByRuleAndKind(t *testing.T) {
	set, err := policy.LoadFiles(policy.Config{AllowEmpty: true}, fstest.MapFS{"p.yaml": {Data: []byte(dailyBudget)}}, []string{"p.yaml"})
	if err != nil {
		t.Fatal(err)
	}
	tenants, err := chargeback.NewTenantMetrics(chargeback.MetricsConfig{})
	if err != nil {
		t.Fatal(err)
	}
	m := newMetrics(prometheus.NewRegistry(), tenants, newWorkerNames())
	m.rules.set(set, func(string, string) {})
	m.Rehearsed("t", policy.RehearsalOutcome{Errors: []policy.RuleRef{
		{Rule: "daily/three", ErrorKind: policy.ErrorValue}, {Rule: "daily/three", ErrorKind: policy.ErrorValue},
		{Rule: "daily/three", ErrorKind: policy.ErrorCost}, {Rule: "gone/rule", ErrorKind: policy.ErrorValue},
	}})
	want := `
# HELP sluice_policy_rule_errors_total Expressions that failed, by the rule that they are of and the kind of the error.
# TYPE sluice_policy_rule_errors_total counter
sluice_policy_rule_errors_total{kind="cost",policy="daily",rule="three"} 1
sluice_policy_rule_errors_total{kind="value",policy="daily",rule="three"} 2
sluice_policy_rule_errors_total{kind="value",policy="other",rule="other"} 1
`
	if err := testutil.CollectAndCompare(m.ruleErrors, strings.NewReader(want)); err != nil {
		t.Error(err)
	}
	m.LimitReached(&policy.Limit{Rule: "daily/three"}, 60)
	m.StoreFailed("overflow", "Deny")
	if n := testutil.ToFloat64(m.limitThresholds.WithLabelValues("daily/three", "60")); n != 1 {
		t.Errorf("%g thresholds are counted", n)
	}
	if n := testutil.ToFloat64(m.storeFailures.WithLabelValues("overflow", "Deny")); n != 1 {
		t.Errorf("%g failures are counted", n)
	}
}
