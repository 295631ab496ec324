package gateway

import (
	"strings"
	"testing"
	"time"

	"github.com/sluicegate/sluice/gateway/gatewaytest"
	"github.com/sluicegate/sluice/tenancy"
)

// A stream of a revoked caller ends with an error event, the worker is freed, and
// what was generated is charged; one of another caller goes on.
func TestCutEndsAStream(t *testing.T) {
	worker := gatewaytest.NewWorker(t, gatewaytest.StallAfter(gatewaytest.RoleEvent, gatewaytest.ContentEvent("a", "")))
	r := newRig(t, []string{worker.URL()})
	client := r.chat(streamBody)
	events := gatewaytest.NewEventReader(client.Head().Body)
	for range 2 {
		if _, err := events.Next(); err != nil {
			t.Fatal(err)
		}
	}
	if n := r.g.Cut(func(p *tenancy.Principal) bool { return p.KeyID == "other" }); n != 0 {
		t.Errorf("%d requests of another key were cut", n)
	}
	if n := r.g.Cut(func(p *tenancy.Principal) bool { return p.KeyID == "test" }); n != 1 {
		t.Errorf("%d requests were cut", n)
	}
	rest, err := events.All()
	if err != nil || len(rest) != 1 || !strings.Contains(rest[0].Data, `"code":"invalid_api_key"`) {
		t.Fatalf("got %v %v", rest, err)
	}
	if row := r.row(); row.InputTokens == 0 || row.OutputTokens != 1 || row.ErrorCode != "invalid_api_key" || row.Outcome != tenancy.OutcomeRejected {
		t.Errorf("row %+v", row)
	}
	select {
	case <-worker.Seen()[0].Left:
	case <-time.After(patience):
		t.Error("the worker still has the request")
	}
	if r.health.failures != 0 {
		t.Error("the worker is blamed")
	}
	if n := r.g.Cut(func(*tenancy.Principal) bool { return true }); n != 0 {
		t.Errorf("%d requests were cut when none ran", n)
	}
}

// Before the answer has begun the caller gets what it would get now.
func TestCutBeforeAnAnswer(t *testing.T) {
	for name, body := range map[string]string{"stream": streamBody, "unary": chatBody} {
		t.Run(name, func(t *testing.T) {
			worker := gatewaytest.NewWorker(t, gatewaytest.Stall())
			r := newRig(t, []string{worker.URL()})
			client := r.chat(body)
			worker.Next(t)
			eventually(t, "the request is cut", func() bool {
				return r.g.Cut(func(*tenancy.Principal) bool { return true }) == 1
			})
			resp, answer := client.Answer()
			wantError(t, resp, answer, 401, "invalid_api_key")
			r.row()
			// The gateway serves on.
			again := r.dial()
			again.Send("GET", "/v1/models", "", "Authorization: Bearer "+goodKey)
			if resp, _ := again.Answer(); resp.StatusCode != 200 {
				t.Errorf("the next request got %d", resp.StatusCode)
			}
		})
	}
}
