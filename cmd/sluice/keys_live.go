package main

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/sluicegate/sluice/tenancy/authn"
)

// close gives back what all generations have in common.
func (l *lasting) close() error {
	if l.closeKeys == nil {
		return nil
	}
	return l.closeKeys()
}

// collectKeys tells how the keys are.
func (c *stateCollector) collectKeys(ch chan<- prometheus.Metric) {
	s := c.keys.Stats(time.Now())
	for state, n := range map[string]int{"active": s.Active, "expiring": s.Expiring, "expired": s.Expired, "revoked": s.Revoked, "asleep": s.Asleep} {
		gauge(ch, descKeys, float64(n), state)
	}
	for i, source := range authn.SourceNames {
		gauge(ch, descKeysFailing, oneIf(s.Failing[i]), source)
		counter(ch, descKeysFails, float64(s.Failures[i]), source)
	}
	gauge(ch, descKeysStale, s.Stale.Seconds())
}
