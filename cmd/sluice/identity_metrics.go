package main

import "github.com/prometheus/client_golang/prometheus"

// collectIdentity tells how the keys of issuers are.
func (c *stateCollector) collectIdentity(ch chan<- prometheus.Metric) {
	for _, s := range c.identities.stats() {
		gauge(ch, descJWKSKeys, float64(s.Keys), s.issuer)
		counter(ch, descJWKSFetches, float64(s.Good), s.issuer, "success")
		counter(ch, descJWKSFetches, float64(s.Bad), s.issuer, "failure")
		fetched := 0.0
		if !s.Fetched.IsZero() {
			fetched = float64(s.Fetched.UnixMilli()) / 1000
		}
		gauge(ch, descJWKSFetched, fetched, s.issuer)
		gauge(ch, descJWKSFailing, oneIf(s.Failing), s.issuer)
	}
	if id := c.reloads.generation().identity; id.tokens != nil {
		gauge(ch, descRemembered, float64(id.tokens.Remembered()))
	}
	counter(ch, descNoProxy, float64(c.identities.ignored.Load()))
}
