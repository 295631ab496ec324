package gateway

import (
	"context"
	"testing"
	"time"

	"github.com/sluicegate/sluice/gateway/gatewaytest"
	"github.com/sluicegate/sluice/gateway/qos"
	"github.com/sluicegate/sluice/scoring"
)

// TestTurnOfWhoLeft has a worker reserved for a request just before its client is seen
// to have left: whichever of the two the request hears first, it gives the worker back.
func TestTurnOfWhoLeft(t *testing.T) {
	worker := gatewaytest.NewWorker(t, gatewaytest.Chat("a"))
	r := queueRig(t, []string{worker.URL()}, queueConfig())
	for range 50 {
		res, err := r.fleet.Pick(time.Now(), &scoring.Request{Model: "m", Pools: []string{"p"}, Estimate: 1})
		if err != nil {
			t.Fatal(err)
		}
		ex := &exchange{g: r.g, st: r.g.State()}
		ex.ctx, ex.cancel = context.WithCancel(context.Background())
		ex.turn = turn{
			ex: ex, waits: true, since: time.Now(), ready: make(chan struct{}, 1),
			res: res, outcome: qos.Outcome{State: qos.Granted},
		}
		ex.turn.ready <- struct{}{}
		ex.gone.Store(true)
		ex.cancel()
		if late, rej := ex.awaitTurn(time.Time{}); late || rej == nil || ex.res != nil {
			t.Fatalf("a request whose client left goes on: %v, %v, %v", late, rej, ex.res)
		}
		if n := r.fleet.Stats().InFlight; n != 0 {
			t.Fatalf("%d requests are left at the worker of a client that left", n)
		}
	}
}
