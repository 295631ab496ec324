package gateway

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"github.com/sluicegate/sluice/gateway/gatewaytest"
	"github.com/sluicegate/sluice/policy"
)

// slowScan is a Classifier that takes a while.
type slowScan time.Duration

// Classify implements Classifier.
func (s slowScan) Classify(ctx context.Context, _ *ClassifyRequest) policy.Content {
	timer := time.NewTimer(time.Duration(s))
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
	return policy.Content{ScanStatus: "complete"}
}

// BenchmarkAnswer is the time of a whole answer over loopback: without policies, with
// a binding that has the body scanned for 10 ms and only audits, and with the same
// binding in force.
func BenchmarkAnswer(b *testing.B) {
	none := bound("none", "Deny", "  validations:\n    - { name: v, expression: \"true\" }\n")
	for _, c := range []struct{ name, policies string }{
		{"unread", none},
		{"audited", none + bound("scan", "Audit", scanning)},
		{"enforced", none + bound("scan", "Deny", scanning)},
	} {
		b.Run(c.name, func(b *testing.B) {
			worker := gatewaytest.NewWorker(b, gatewaytest.Chat("a"))
			r := newRig(b, []string{worker.URL()}, withPolicies(b, c.policies), withState(func(st *State) { st.Classifier = slowScan(10 * time.Millisecond) }),
				withParts(func(p *Parts) {
					p.Log = slog.New(slog.DiscardHandler)
				}))
			conn := r.dial()
			b.ReportAllocs()
			for b.Loop() {
				conn.Send("POST", "/v1/chat/completions", chatBody, "Authorization: Bearer "+goodKey)
				if resp, text := conn.Answer(); resp.StatusCode != 200 {
					b.Fatalf("got %d %s", resp.StatusCode, text)
				}
			}
			b.ReportMetric(float64(r.meter.skipped.Load())/float64(b.N), "skipped/op")
		})
	}
}

func BenchmarkDecisionID(b *testing.B) {
	now := time.Now()
	b.ReportAllocs()
	for b.Loop() {
		newDecisionID(now)
	}
}
