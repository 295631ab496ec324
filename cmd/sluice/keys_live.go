package main

import (
	"context"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/sluicegate/sluice/tenancy"
	"github.com/sluicegate/sluice/tenancy/authn"
)

// close gives back what all generations have in common.
func (l *lasting) close() error {
	if l.closeKeys == nil {
		return nil
	}
	return l.closeKeys()
}

// cutEvery is the time between two looks for running requests of revoked credentials.
const cutEvery = 200 * time.Millisecond

// cutRevoked ends the running requests of credentials that are taken back, until ctx ends. After a change it looks
// twice, for the sake of requests that were being identified at the first look.
func (a *app) cutRevoked(ctx context.Context) error {
	look := time.NewTicker(cutEvery)
	defer look.Stop()
	keys := a.base.keys
	done := keys.Changed() // all that was looked for twice
	for again := done; ; {
		select {
		case <-ctx.Done():
			return nil
		case <-look.C:
		}
		now := keys.Changed()
		if now == done {
			continue
		}
		if n := a.gateway.Cut(func(p *tenancy.Principal) bool { return !keys.Stands(p) }); n > 0 {
			a.log.Warn("running requests of revoked credentials were cut", "requests", n)
		}
		if now == again {
			done = now
		}
		again = now
	}
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
