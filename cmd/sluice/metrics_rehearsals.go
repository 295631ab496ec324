package main

import (
	"strings"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/sluicegate/sluice/policy"
)

// registerRehearsals registers what is counted of bindings that only audit and of declared labels.
func (m *metrics) registerRehearsals(reg prometheus.Registerer) {
	m.rehearsalsSkipped = prometheus.NewCounter(prometheus.CounterOpts{
		Name: "sluice_policy_rehearsals_skipped_total", Help: "Requests whose bindings that only audit were not judged, for want of room.",
	})
	m.labelsIgnored = prometheus.NewCounter(prometheus.CounterOpts{
		Name: "sluice_content_labels_ignored_total", Help: "Requests with a label header from a caller who is not trusted to declare labels.",
	})
	reg.MustRegister(m.rehearsalsSkipped, m.labelsIgnored)
}

// LabelIgnored implements gateway.Meter.
func (m *metrics) LabelIgnored() { m.labelsIgnored.Inc() }

// RehearsalSkipped implements gateway.Meter.
func (m *metrics) RehearsalSkipped() { m.rehearsalsSkipped.Inc() }

// Rehearsed implements gateway.Meter.
func (m *metrics) Rehearsed(_ string, o policy.RehearsalOutcome) {
	for _, r := range o.WouldDeny {
		p, rule, _ := strings.Cut(r.Rule, "/")
		m.decisions.WithLabelValues(p, rule, "would_deny").Inc()
	}
	for _, e := range o.Errors {
		p, _, _ := strings.Cut(e.Rule, "/")
		m.policyErrors.WithLabelValues(p, string(e.ErrorKind)).Inc()
	}
}
