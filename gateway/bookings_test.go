package gateway

import (
	"testing"
	"time"

	"github.com/sluicegate/sluice/gateway/gatewaytest"
	"github.com/sluicegate/sluice/ratelimit"
	"github.com/sluicegate/sluice/tenancy"
)

// TestRowsKnowTheirBudgets: a row has what each limit by day or month was charged,
// and a limiter that is told of it goes on where the other one was.
func TestRowsKnowTheirBudgets(t *testing.T) {
	worker := gatewaytest.NewWorker(t, gatewaytest.Chat("a", "b", "c"))
	r := newRig(t, []string{worker.URL()})
	limits := r.limitsOf(t, bound("p", "Deny", `
  limits:
    - { name: month, unit: tokens, window: month, limit: 1000, key: [tenant.id], estimate: 100 }
    - { name: day, unit: output_tokens, window: day, limit: 1000, key: [] }
    - { name: minute, unit: tokens, window: 1m, limit: 1000, key: [] }
    - { name: slots, unit: concurrency, limit: 5, key: [] }
`)+bound("w", "Warn", "  limits:\n    - { name: l, unit: requests, window: month, limit: 10, key: [] }\n"))
	if resp, body := r.chat(chatBody).Answer(); resp.StatusCode != 200 {
		t.Fatalf("got %d %s", resp.StatusCode, body)
	}
	row := r.row()
	want := map[string]int64{"tokens month": 13, "output_tokens day": 3, "requests month": 1}
	var used []ratelimit.Used
	for _, c := range row.Charges {
		if got := want[c.Unit+" "+c.Window]; got != c.Amount || !c.Period.Equal(ratelimit.PeriodStart(c.Window, time.Now())) {
			t.Errorf("charge %+v, want %d in this period", c, got)
		}
		delete(want, c.Unit+" "+c.Window)
		used = append(used, ratelimit.Used{Counter: c.Counter, Period: c.Period, Amount: c.Amount})
	}
	if len(want) > 0 {
		t.Errorf("the row has no charges for %v", want)
	}
	fresh := ratelimit.New(ratelimit.Config{})
	fresh.Restore(used)
	for i, l := range limits() {
		c := r.g.claim(&l, "acme")
		before, after := r.available(l), fresh.Peek(time.Now(), []ratelimit.Claim{c})[0].Remaining
		if l.Window.Calendar != "" && before != after {
			t.Errorf("limit %d has %d left, and %d after a restart", i, before, after)
		}
	}
}

// TestRefusedRowsHaveNoCharges: what nobody was charged is in no budget.
func TestRefusedRowsHaveNoCharges(t *testing.T) {
	r := newRig(t, nil)
	r.limitsOf(t, bound("p", "Deny", "  limits:\n    - { name: l, unit: tokens, window: month, limit: 1000, key: [], estimate: 50 }\n"))
	resp, body := r.chat(chatBody).Answer()
	wantError(t, resp, body, 503, "unavailable")
	if row := r.row(); len(row.Charges) != 0 || row.Outcome == tenancy.OutcomeCompleted {
		t.Errorf("row %+v", row)
	}
}
