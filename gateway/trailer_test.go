package gateway

import (
	"context"
	"fmt"
	"testing"

	"github.com/sluicegate/sluice/gateway/gatewaytest"
	"github.com/sluicegate/sluice/policy"
)

// TestTrailersAreNoHeaders: what stands behind a body was not there when a proxy
// looked through the headers, so policies and labels have nothing of it.
func TestTrailersAreNoHeaders(t *testing.T) {
	for _, announce := range []string{"", "Trailer: X-Team, X-Session-Id, X-Label\r\n"} {
		worker := gatewaytest.NewWorker(t, gatewaytest.Chat("a"))
		r := newRig(t, []string{worker.URL()}, withState(func(st *State) { st.PolicyHeaders = []string{"x-team"} }))
		var seen policy.Input
		r.decider.set(func(_ context.Context, in *policy.Input) *policy.Decision {
			seen = *in
			return allow(in)
		})
		c := r.dial()
		body := fmt.Sprintf("%x\r\n%s\r\n0\r\nX-Team: gold\r\nX-Session-Id: s\r\n\r\n", len(chatBody), chatBody)
		err := c.Write("POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nAuthorization: Bearer " + goodKey +
			"\r\nTransfer-Encoding: chunked\r\n" + announce + "\r\n" + body)
		if err != nil {
			t.Fatal(err)
		}
		resp, text := c.Answer()
		if resp.StatusCode != 200 {
			t.Fatalf("got %d %s", resp.StatusCode, text)
		}
		r.idle()
		if len(seen.Request.Headers) > 0 || seen.Request.SessionID != nil {
			t.Errorf("%q: policies see %v, %v", announce, seen.Request.Headers, seen.Request.SessionID)
		}
	}
}
