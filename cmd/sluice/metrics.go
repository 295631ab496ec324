package main

import (
	"runtime"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"github.com/sluicegate/sluice/gateway"
	"github.com/sluicegate/sluice/policy"
	"github.com/sluicegate/sluice/tenancy"
	"github.com/sluicegate/sluice/tenancy/chargeback"
)

// Buckets of the latency histograms, in seconds.
var (
	ttftBuckets     = []float64{.01, .02, .05, .1, .2, .35, .5, .75, 1, 1.5, 2, 3, 5, 8, 12, 20, 30, 60, 120, 300}
	durationBuckets = []float64{.005, .01, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600}
	tokenBuckets    = []float64{.002, .005, .01, .02, .03, .05, .075, .1, .15, .25, .5, 1}
	overheadBuckets = []float64{.00005, .0001, .0002, .0003, .0005, .001, .002, .005, .01, .05, .1, .5}
	bodyBuckets     = prometheus.ExponentialBuckets(256, 4, 10)
)

// metrics holds every series that requests move. It implements gateway.Meter.
// Label values are configured names and words of fixed lists: nothing that a
// client chooses can make a series.
type metrics struct {
	tenants *chargeback.TenantMetrics // the ledger tells it of rows
	workers *workerNames
	rules   ruleNames

	requests, framing, auth, disconnects, streamErrors, malformed *prometheus.CounterVec
	usageUnknown, decisions, policyErrors, limitRejections        *prometheus.CounterVec
	attempts, retries, retriesDenied, tokens, ledgerErrors        *prometheus.CounterVec
	limitThresholds, storeFailures, ruleErrors                    *prometheus.CounterVec
	handshakes                                                    *prometheus.CounterVec
	skipped, labelsIgnored                                        prometheus.Counter
	duration, bodyBytes, ttft, upstreamTTFT, perToken, overhead   *prometheus.HistogramVec
	policySeconds, policyCost, predictionError                    prometheus.Histogram
	configInfo                                                    *prometheus.GaugeVec
	classes                                                       classMetrics
}

// newMetrics registers the series on reg.
func newMetrics(reg prometheus.Registerer, tenants *chargeback.TenantMetrics, workers *workerNames) *metrics {
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		c := prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, labels)
		reg.MustRegister(c)
		return c
	}
	single := func(name, help string) prometheus.Counter {
		c := prometheus.NewCounter(prometheus.CounterOpts{Name: name, Help: help})
		reg.MustRegister(c)
		return c
	}
	histogram := func(name, help string, buckets []float64, labels ...string) *prometheus.HistogramVec {
		h := prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: name, Help: help, Buckets: buckets}, labels)
		reg.MustRegister(h)
		return h
	}
	plain := func(name, help string, buckets []float64) prometheus.Histogram {
		h := prometheus.NewHistogram(prometheus.HistogramOpts{Name: name, Help: help, Buckets: buckets})
		reg.MustRegister(h)
		return h
	}
	m := &metrics{
		tenants:         tenants,
		workers:         workers,
		requests:        counter("sluice_http_requests_total", "Requests by route, method, status (499: the client left) and dialect.", "route", "method", "status", "dialect"),
		framing:         counter("sluice_http_framing_rejections_total", "Requests that could not be read.", "reason"),
		handshakes:      counter("sluice_tls_handshake_errors_total", "Connections on which TLS was never spoken.", "reason"),
		auth:            counter("sluice_auth_failures_total", "Requests without one valid credential.", "reason"),
		disconnects:     counter("sluice_client_disconnects_total", "Clients that left before their answer was whole.", "phase"),
		streamErrors:    counter("sluice_stream_errors_total", "Streams that ended with an error event.", "route", "code"),
		malformed:       counter("sluice_sse_malformed_total", "Events from workers that were no JSON, passed on as they were.", "route"),
		usageUnknown:    counter("sluice_usage_unknown_total", "Charged requests whose tokens the worker did not report.", "model", "reason"),
		decisions:       counter("sluice_policy_decisions_total", "Outcomes of policy rules: deny, warn, would_deny; and allow for whole requests.", "policy", "rule", "decision"),
		policyErrors:    counter("sluice_policy_errors_total", "Expressions that failed.", "policy", "reason"),
		limitRejections: counter("sluice_ratelimit_rejections_total", "Limits that refused a request.", "limit", "unit"),
		ruleErrors:      counter("sluice_policy_rule_errors_total", "Expressions that failed, by the rule that they are of and the kind of the error.", "policy", "rule", "kind"),
		limitThresholds: counter("sluice_ratelimit_thresholds_total", "Counters whose use came up to a threshold of their limit's warnAt, in per cent.", "limit", "percent"),
		storeFailures:   counter("sluice_ratelimit_store_failures_total", "Limits whose counter could not be had, by why (overflow, down, slow) and what was done.", "state", "decision"),
		attempts:        counter("sluice_upstream_attempts_total", "Requests sent to workers, by status (0: none came).", "pool", "worker", "status"),
		retries:         counter("sluice_upstream_retries_total", "Requests sent on to another worker.", "pool", "reason"),
		retriesDenied:   counter("sluice_upstream_retries_denied_total", "Failures of a pool that stood because too many of its requests had been sent on.", "pool"),
		tokens:          counter("sluice_route_prompts_total", "Routed prompts by how much of their token ids was known: known, beginning, estimated.", "tokens"),
		ledgerErrors:    counter("sluice_ledger_errors_total", "Requests whose row could not be made durable.", "reason"),
		skipped:         single("sluice_policy_rehearsals_skipped_total", "Requests whose bindings that only audit were not judged, for want of room."),
		labelsIgnored:   single("sluice_content_labels_ignored_total", "Requests with a label header from a caller who is not trusted to declare labels."),
		duration:        histogram("sluice_http_request_duration_seconds", "Time from the first check to the end.", durationBuckets, "route"),
		bodyBytes:       histogram("sluice_http_request_body_bytes", "Size of request bodies.", bodyBuckets, "route"),
		ttft:            histogram("sluice_ttft_seconds", "Time from the first check to the first token's flush.", ttftBuckets, "model", "pool", "class"),
		upstreamTTFT:    histogram("sluice_ttft_upstream_seconds", "Time from dispatch to the first token.", ttftBuckets, "model", "pool", "class"),
		perToken:        histogram("sluice_time_per_output_token_seconds", "Mean time of each output token after the first.", tokenBuckets, "model", "pool", "class"),
		overhead:        histogram("sluice_overhead_seconds", "Time spent in the gateway before the worker was asked.", overheadBuckets, "phase"),
		classes:         newClassMetrics(counter, histogram),
		policySeconds:   plain("sluice_policy_eval_seconds", "Time to decide a request, lazy work included.", overheadBuckets),
		policyCost:      plain("sluice_policy_eval_cost", "CEL cost units of a decision.", prometheus.ExponentialBuckets(1, 4, 9)),
		predictionError: plain("sluice_route_prediction_error_ratio", "Predicted over actual time to first token.", []float64{.1, .25, .5, .65, .8, .9, 1, 1.1, 1.25, 1.5, 2, 4, 10}),
	}
	info := prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "sluice_build_info", Help: "Always 1."}, []string{"version", "go_version"})
	policies := prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "sluice_config_info", Help: "Always 1; the revision of the policies in force."}, []string{"digest"})
	reg.MustRegister(info, policies, tenants, collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	workers.onGone(func(name string) { m.attempts.DeletePartialMatch(prometheus.Labels{"worker": name}) })
	info.WithLabelValues(buildVersion(), runtime.Version()).Set(1)
	m.configInfo = policies
	return m
}

// inForce follows a change of the generation; old is nil for the first one. What no longer has a name in the
// configuration loses its series.
func (m *metrics) inForce(old, fresh *generation) {
	if old != nil {
		if err := m.tenants.Reconfigure(fresh.metrics); err != nil {
			panic("BUG: a generation's metrics were not validated: " + err.Error())
		}
	}
	m.classes.inForce(fresh.cfg.Policy.Classes, m.dropClass)
	m.rules.set(fresh.docs.policies, func(policy, rule string) {
		if rule == "" {
			m.deleteAll(prometheus.Labels{"policy": policy}, m.decisions.MetricVec, m.policyErrors.MetricVec, m.ruleErrors.MetricVec)
			return
		}
		m.deleteAll(prometheus.Labels{"policy": policy, "rule": rule}, m.decisions.MetricVec, m.ruleErrors.MetricVec)
		m.deleteAll(prometheus.Labels{"limit": policy + "/" + rule}, m.limitRejections.MetricVec, m.limitThresholds.MetricVec)
	})
	m.configInfo.Reset()
	m.configInfo.WithLabelValues(fresh.docs.policies.Revision()).Set(1)
}

// dropClass ends the series of a class.
func (m *metrics) dropClass(class string) {
	m.deleteAll(prometheus.Labels{"class": class}, append(m.classes.vecs(), m.ttft.MetricVec, m.upstreamTTFT.MetricVec, m.perToken.MetricVec)...)
}

func (m *metrics) deleteAll(labels prometheus.Labels, of ...*prometheus.MetricVec) {
	for _, vec := range of {
		vec.DeletePartialMatch(labels)
	}
}

// AuthFailed implements gateway.Meter.
func (m *metrics) AuthFailed(reason string) { m.auth.WithLabelValues(reason).Inc() }

// Reserved implements gateway.Meter.
func (m *metrics) Reserved(tenant, model string, tokens int64) (release func()) {
	r := m.tenants.Reserve(tenant, model, tokens)
	return r.Release
}

// Unrecorded implements gateway.Meter.
func (m *metrics) Unrecorded() { m.ledgerErrors.WithLabelValues("record").Inc() }

// FramingRejected implements gateway.Meter.
func (m *metrics) FramingRejected(reason string) { m.framing.WithLabelValues(reason).Inc() }

// HandshakeFailed implements gateway.Meter.
func (m *metrics) HandshakeFailed(reason string) { m.handshakes.WithLabelValues(reason).Inc() }

// Observe implements gateway.Meter.
func (m *metrics) Observe(s *gateway.Summary) {
	row := s.Row
	m.requests.WithLabelValues(s.Route, s.Method, strconv.Itoa(row.Status), row.Dialect).Inc()
	if !s.Billable {
		return
	}
	m.duration.WithLabelValues(s.Route).Observe(row.Duration.Seconds())
	if s.BodyBytes > 0 {
		m.bodyBytes.WithLabelValues(s.Route).Observe(float64(s.BodyBytes))
	}
	if row.Outcome == tenancy.OutcomeClientAborted {
		m.disconnects.WithLabelValues(string(s.Phase)).Inc()
	}
	m.observePolicy(s)
	m.observeQueue(s)
	m.observeRouting(s)
}

func (m *metrics) observePolicy(s *gateway.Summary) {
	d := s.Decision
	if d == nil {
		return
	}
	m.policySeconds.Observe(d.Cost.Duration.Seconds())
	m.policyCost.Observe(float64(d.Cost.Units + d.Cost.ShadowUnits))
	m.countRules("deny", d.Denials)
	m.countRules("warn", d.Warnings)
	if d.Allow {
		m.decisions.WithLabelValues("", "", "allow").Inc()
	}
	m.countErrors(d.Errors)
	for _, l := range s.Refused {
		if l.Mode == policy.Enforced {
			m.rules.limit(l.Rule, func(limit string) { m.limitRejections.WithLabelValues(limit, string(l.Unit)).Inc() })
		}
	}
}

// Rehearsed implements gateway.Meter.
func (m *metrics) Rehearsed(_ string, o policy.RehearsalOutcome) {
	m.countRules("would_deny", o.WouldDeny)
	m.countErrors(o.Errors)
}

// RehearsalSkipped implements gateway.Meter.
func (m *metrics) RehearsalSkipped() { m.skipped.Inc() }

// LabelIgnored implements gateway.Meter.
func (m *metrics) LabelIgnored() { m.labelsIgnored.Inc() }

// countRules counts rules under what they decided.
func (m *metrics) countRules(outcome string, rules []policy.RuleRef) {
	for _, r := range rules {
		m.rules.with(r.Rule, func(policy, rule string) { m.decisions.WithLabelValues(policy, rule, outcome).Inc() })
	}
}

func (m *metrics) countErrors(errors []policy.RuleRef) {
	for _, e := range errors {
		m.rules.with(e.Rule, func(policy, rule string) {
			m.policyErrors.WithLabelValues(policy, string(e.ErrorKind)).Inc()
			m.ruleErrors.WithLabelValues(policy, rule, string(e.ErrorKind)).Inc()
		})
	}
}

func (m *metrics) observeRouting(s *gateway.Summary) {
	row := s.Row
	for i, a := range s.Attempts {
		m.workers.with(a.Worker, func(label string) { m.attempts.WithLabelValues(a.Pool, label, strconv.Itoa(a.Status)).Inc() })
		if i+1 < len(s.Attempts) {
			m.retries.WithLabelValues(a.Pool, a.Reason).Inc()
		}
	}
	if len(s.Attempts) == 0 {
		return
	}
	if s.RetryDenied {
		m.retriesDenied.WithLabelValues(s.Attempts[len(s.Attempts)-1].Pool).Inc()
	}
	m.overhead.WithLabelValues("request").Observe(s.Overhead.Seconds())
	m.tokens.WithLabelValues(knownTokens(s)).Inc()
	if s.Malformed > 0 {
		m.malformed.WithLabelValues(s.Route).Add(float64(s.Malformed))
	}
	if s.StreamError != "" {
		m.streamErrors.WithLabelValues(s.Route, s.StreamError).Inc()
	}
	if row.Flags.Has(tenancy.FlagEstimated) {
		reason := "missing"
		if row.Outcome != tenancy.OutcomeCompleted {
			reason = "aborted"
		}
		m.usageUnknown.WithLabelValues(row.Model, reason).Inc()
	}
	if s.UpstreamTTFT > 0 {
		m.predictionError.Observe(ratio(s.Predicted, s.UpstreamTTFT))
	}
	m.classes.names.with(row.Class, func(class string) { m.observeTimes(s, row.Model, row.Pool, class) })
}

func (m *metrics) observeTimes(s *gateway.Summary, labels ...string) {
	if s.Row.TTFT > 0 {
		m.ttft.WithLabelValues(labels...).Observe(s.Row.TTFT.Seconds())
	}
	if s.UpstreamTTFT > 0 {
		m.upstreamTTFT.WithLabelValues(labels...).Observe(s.UpstreamTTFT.Seconds())
	}
	if s.PerOutputToken > 0 {
		m.perToken.WithLabelValues(labels...).Observe(s.PerOutputToken.Seconds())
	}
}

// knownTokens says how much of a routed prompt's tokens was known.
func knownTokens(s *gateway.Summary) string {
	switch {
	case s.Tokens.Exact:
		return "known"
	case s.RoutedTokens > 0:
		return "beginning"
	}
	return "estimated"
}

func ratio(a, b time.Duration) float64 { return float64(a) / float64(b) }
