package gateway

import (
	"context"
	"io"
	"slices"
	"strings"
	"testing"

	"github.com/sluicegate/sluice/gateway/gatewaytest"
	"github.com/sluicegate/sluice/policy"
	"github.com/sluicegate/sluice/tenancy"
)

// limitsOf has the rig decide by policies, and returns the limits of the last
// decision.
func (r *rig) limitsOf(t testing.TB, text string) func() []policy.Limit {
	set := compile(t, text)
	var limits []policy.Limit
	r.decider.set(func(ctx context.Context, in *policy.Input) *policy.Decision {
		d := set.Decide(ctx, in)
		limits = slices.Clone(d.Limits)
		return d
	})
	return func() []policy.Limit { return limits }
}

// pieces are n events of output.
func pieces(n int) (events []string) {
	for range n {
		events = append(events, gatewaytest.ContentEvent("a", ""))
	}
	return events
}

// TestStreamIsChargedAsItRuns: what a stream has had beyond its reservation is
// missing to others while it runs, and what is charged in the end is what was used.
func TestStreamIsChargedAsItRuns(t *testing.T) {
	open := make(chan struct{})
	worker := gatewaytest.NewWorker(t, gatewaytest.Gate(open,
		append([]string{gatewaytest.RoleEvent}, pieces(30)...),
		[]string{gatewaytest.ContentEvent("b", "stop"), gatewaytest.UsageEvent(gatewaytest.Usage(10, 31)), gatewaytest.DoneEvent}))
	r := newRig(t, []string{worker.URL()})
	limits := r.limitsOf(t, bound("p", "Deny", `
  limits:
    - { name: out, unit: output_tokens, window: day, limit: 100, key: [] }
    - { name: many, unit: requests, window: day, limit: 100, key: [] }
`)+bound("w", "Warn", "  limits:\n    - { name: out, unit: output_tokens, window: 24h, limit: 100, key: [] }\n"))
	body := strings.Replace(streamBody, `"stream":true`, `"stream":true,"max_tokens":10`, 1)
	resp := r.chat(body).Head()
	text := make([]byte, 1)
	if _, err := io.ReadFull(resp.Body, text); err != nil {
		t.Fatal(err)
	}
	running := limits()
	if running[0].Estimate != 10 {
		t.Fatalf("the stream reserved %d", running[0].Estimate)
	}
	for _, i := range []int{0, 2} {
		eventually(t, "the stream's use to be taken", func() bool { return r.available(running[i]) < 90 })
	}
	if n := r.available(running[1]); n != 99 {
		t.Errorf("the limit in requests has %d left", n)
	}
	other, answer := r.chat(strings.Replace(chatBody, `{"model"`, `{"max_tokens":90,"model"`, 1)).Answer()
	wantError(t, other, answer, 429, "insufficient_quota")
	close(open)
	if _, err := io.ReadAll(resp.Body); err != nil {
		t.Fatal(err)
	}
	r.idle()
	for i, want := range []int64{69, 99, 69} {
		if n := r.available(running[i]); n != want {
			t.Errorf("limit %d has %d left, want %d", i, n, want)
		}
	}
}

// TestAbortedStreamIsChargedWhatItUsed: where a stream that was beyond its
// reservation ends early, the charge is what it had, once.
func TestAbortedStreamIsChargedWhatItUsed(t *testing.T) {
	worker := gatewaytest.NewWorker(t, gatewaytest.StallAfter(append([]string{gatewaytest.RoleEvent}, pieces(30)...)...))
	r := newRig(t, []string{worker.URL()})
	limits := r.limitsOf(t, bound("p", "Deny", "  limits:\n    - { name: out, unit: output_tokens, window: day, limit: 100, key: [], estimate: 5 }\n"))
	c := r.chat(streamBody)
	events := gatewaytest.NewEventReader(c.Head().Body)
	for range 31 {
		if _, err := events.Next(); err != nil {
			t.Fatal(err)
		}
	}
	c.Leave(gatewaytest.RST)
	r.idle()
	if n := r.available(limits()[0]); n != 70 {
		t.Errorf("%d are left, want 70", n)
	}
}

// TestAbortedStreamOfLargeEvents: a client that has many tokens put into an event pays
// for as many, up to what its request may generate.
func TestAbortedStreamOfLargeEvents(t *testing.T) {
	for _, c := range []struct {
		members string
		output  int64
	}{
		{`,"stream_interval":50`, 1 + 3*50},
		{`,"stream_interval":50,"max_tokens":120`, 120},
		{`,"stream_interval":50,"n":2,"max_tokens":120`, 2 + 2*50},
		{`,"stream_interval":1`, 4},
		{`,"stream_interval":null`, 4},
		{`,"stream_interval":2147483647,"max_tokens":7`, 7},
		{`,"stream_interval":2147483647,"max_tokens":3`, 4}, // as many as have come
	} {
		worker := gatewaytest.NewWorker(t, gatewaytest.StallAfter(append([]string{gatewaytest.RoleEvent}, pieces(4)...)...))
		r := newRig(t, []string{worker.URL()})
		client := r.chat(`{"model":"m","messages":[{"role":"user","content":"hi"}],"stream":true` + c.members + `}`)
		events := gatewaytest.NewEventReader(client.Head().Body)
		for range 5 {
			if _, err := events.Next(); err != nil {
				t.Fatal(err)
			}
		}
		client.Leave(gatewaytest.RST)
		if row := r.row(); row.OutputTokens != c.output || !row.Flags.Has(tenancy.FlagEstimated|tenancy.FlagAborted) {
			t.Errorf("%s: %d output tokens with flags %v, want %d, an estimate", c.members, row.OutputTokens, row.Flags, c.output)
		}
	}
}
