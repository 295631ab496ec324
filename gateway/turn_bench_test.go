package gateway

import (
	"fmt"
	"testing"
	"time"

	"github.com/sluicegate/sluice/scoring"
)

// BenchmarkTurn is what a request takes from asking for a worker to having one, and
// what it takes to end: without a queue, and past an empty one.
func BenchmarkTurn(b *testing.B) {
	for _, workers := range []int{1, 8, 64} {
		for _, queue := range []bool{false, true} {
			b.Run(fmt.Sprintf("workers=%d/queue=%v", workers, queue), func(b *testing.B) {
				fleet := scoring.NewFleet(scoring.DefaultConfig())
				for i := range workers {
					id, err := fleet.Add(time.Now(), scoring.WorkerSpec{Name: fmt.Sprint(i), Pool: "a", Models: []string{"m"}})
					if err != nil {
						b.Fatal(err)
					}
					fleet.SetReady(time.Now(), id, true, "")
				}
				st := &State{Pools: map[string]Pool{"a": {}}}
				if queue {
					st.Queue = queueConfig()
				}
				g := bareGateway(fleet, st)
				defer g.turns.stop()
				tokens := make([]uint32, 2000)
				b.ReportAllocs()
				for b.Loop() {
					ex := g.asks("standard", "tenant", scoring.Request{Model: "m", Pools: []string{"a"}, Tokens: tokens})
					if _, rej := ex.takeTurn(time.Time{}); rej != nil {
						b.Fatal(rej)
					}
					ex.res.FirstToken(time.Now())
					ex.res.Done(time.Now(), scoring.Completed)
					ex.left()
				}
			})
		}
	}
}
