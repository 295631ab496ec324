package main

import (
	"strconv"

	"github.com/sluicegate/sluice/policy"
	"github.com/sluicegate/sluice/ratelimit"
)

// localCounters bounds the counters of limits that are kept in this process while
// theirs can't be had.
const localCounters = 1 << 16

// LimitReached implements gateway.Meter.
func (m *metrics) LimitReached(l *policy.Limit, percent int64) {
	m.rules.limit(l.Rule, func(limit string) { m.limitThresholds.WithLabelValues(limit, strconv.FormatInt(percent, 10)).Inc() })
}

// StoreFailed implements gateway.Meter.
func (m *metrics) StoreFailed(state ratelimit.StoreState, how string) {
	m.storeFailures.WithLabelValues(string(state), how).Inc()
}
