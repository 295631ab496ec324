package gateway

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluicegate/sluice/gateway/openai"
	"github.com/sluicegate/sluice/gateway/qos"
	"github.com/sluicegate/sluice/gateway/qos/placing"
	"github.com/sluicegate/sluice/gateway/wire"
	"github.com/sluicegate/sluice/scoring"
	"github.com/sluicegate/sluice/tenancy"
)

// TestAbsurdUsageIsNotSettled: what a worker says of an answer's length can't be more than
// the model is able to. Otherwise one absurd number would keep a tenant from the workers
// for good, or turn the sums of the queue over.
func TestAbsurdUsageIsNotSettled(t *testing.T) {
	const context, prompt = 4096, 1000
	for _, c := range []struct {
		input, output string
		work          int64
	}{
		{"1000", "50", prompt + placing.OutputCost*50},
		{"1000", "4096", prompt + placing.OutputCost*context},
		{"1000", "4097", prompt},
		{"4097", "50", prompt},
		{"1000", "-50", prompt},
		{"-1000", "50", prompt},
		{"1000", "1000000000000000000", prompt},
		{"1000", "9223372036854775807", prompt},
		{"1000", "18446744073709551617", prompt},
		{"1000", "1e18", prompt},
		{"1000", "1e400", prompt},
		{"1000", `"NaN"`, prompt},
		{"1000", "null", prompt},
	} {
		synctest.Test(t, func(t *testing.T) {
			g, _ := queueOfOne(t)
			defer g.turns.stop()
			ex := g.asks("standard", "acme", scoring.Request{Model: "m", Pools: []string{"a"}, Estimate: prompt})
			defer ex.left()
			ex.model.ContextLength = context
			if _, rej := ex.takeTurn(time.Time{}); rej != nil {
				t.Fatal(rej, rej.cause)
			}
			ex.dispatched = time.Now()
			body := fmt.Sprintf(`{"usage":{"prompt_tokens":%s,"completion_tokens":%s}}`, c.input, c.output)
			usage, err := openai.Codec{}.ReadUsage(wire.Chat, []byte(body))
			if err != nil {
				usage = wire.Usage{} // as for any answer whose usage can't be read
			}
			charged := ex.finalCharge(usage)
			ex.settleTurn(&charged, &tenancy.Row{Flags: tenancy.FlagCachedUnknown})
			ex.res.Done(time.Now(), scoring.Completed)
			var s qos.Stats
			g.turns.mu.Lock()
			g.turns.queue.Stats(time.Now(), &s)
			g.turns.mu.Unlock()
			if got := s.Bands[1].Placed; got != c.work {
				t.Errorf("usage of %s and %s: its work is %d, want %d", c.input, c.output, got, c.work)
			}
		})
	}
}
