package gateway

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sluicegate/sluice/gateway/gatewaytest"
	"github.com/sluicegate/sluice/policy"
	"github.com/sluicegate/sluice/tenancy"
)

// TestLabelClaim: labels of the configured claim are added to the others, whatever
// form the claim has; one that is no label, or no text, refuses its bearer, and the
// answer tells neither the claim nor its value.
func TestLabelClaim(t *testing.T) {
	for _, c := range []struct {
		name   string
		claim  string // the configured one
		value  any
		status int
		labels []string
	}{
		{"a list", "labels", []any{"secret", "pii", "secret"}, 200, []string{"eu", "pii", "secret"}},
		{"a list of an identifier", "labels", []string{"pii"}, 200, []string{"eu", "pii"}},
		{"a text", "labels", " pii  secret ", 200, []string{"eu", "pii", "secret"}},
		{"an empty list", "labels", []any{}, 200, []string{"eu"}},
		{"an empty text", "labels", "", 200, []string{"eu"}},
		{"null", "labels", nil, 200, []string{"eu"}},
		{"another claim", "marks", []any{"Not A Label"}, 200, []string{"eu"}},
		{"none configured", "", []any{"Not A Label"}, 200, []string{"eu"}},
		{"malformed in a list", "labels", []any{"pii", "Hidden Word"}, 403, nil},
		{"malformed in a text", "labels", "pii Hidden_Word", 403, nil},
		{"an empty label", "labels", []any{""}, 403, nil},
		{"a number in a list", "labels", []any{"pii", 7.0}, 403, nil},
		{"a number", "labels", 7.0, 403, nil},
		{"too many", "labels", strings.Fields(strings.ReplaceAll(labelList(65), ",", " ")), 403, nil},
		{"an object", "labels", map[string]any{"Hidden": "Word"}, 403, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			worker := gatewaytest.NewWorker(t, gatewaytest.Chat("a"))
			r := newRig(t, []string{worker.URL()}, withState(func(st *State) {
				st.LabelClaim = c.claim
				known := st.Identifier.(identifierFunc)
				st.Identifier = identifierFunc(func(cred []byte, now time.Time) (*tenancy.Principal, error) {
					p, err := known(cred, now)
					if err == nil {
						p.Claims = map[string]any{"labels": c.value}
					}
					return p, err
				})
			}))
			r.tenant.ContentLabels = []string{"eu"}
			var labels []string
			r.decider.set(func(_ context.Context, in *policy.Input) *policy.Decision {
				labels = in.DeclaredLabels
				return allow(in)
			})
			resp, body := r.chat(chatBody).Answer()
			if resp.StatusCode != c.status || !slices.Equal(labels, c.labels) {
				t.Fatalf("got %d %s and the labels %v, want %d and %v", resp.StatusCode, body, labels, c.status, c.labels)
			}
			row := r.row()
			if c.status == 200 {
				return
			}
			wantError(t, resp, body, 403, "policy_denied")
			if row.Outcome != tenancy.OutcomeDenied || strings.Contains(body, "Hidden") || strings.Contains(body, "labels\"") || len(worker.Seen()) > 0 {
				t.Errorf("outcome %s, answer %s", row.Outcome, body)
			}
		})
	}
}

// TestUntrustedLabelsAreCounted: a header that has no effect is seen by somebody.
func TestUntrustedLabelsAreCounted(t *testing.T) {
	worker := gatewaytest.NewWorker(t, gatewaytest.Chat("a"))
	for _, c := range []struct {
		name    string
		trusted []string
		header  []string
		ignored int64
	}{
		{"trusted", []string{"key:test"}, []string{"X-Sluice-Content-Labels: pii"}, 0},
		{"not trusted", []string{"key:other"}, []string{"X-Sluice-Content-Labels: pii", "X-Sluice-Content-Labels: b"}, 1},
		{"not trusted, malformed", nil, []string{"X-Sluice-Content-Labels: Not A Label"}, 1},
		{"no header", nil, nil, 0},
	} {
		r := newRig(t, []string{worker.URL()}, withState(func(st *State) { st.LabelPrincipals = c.trusted }))
		if resp, body := r.chat(chatBody, c.header...).Answer(); resp.StatusCode != 200 {
			t.Fatalf("%s: got %d %s", c.name, resp.StatusCode, body)
		}
		r.row()
		if n := r.meter.ignored.Load(); n != c.ignored {
			t.Errorf("%s: %d requests with ignored labels were counted, want %d", c.name, n, c.ignored)
		}
	}
}
