package gateway

import (
	"fmt"
	"testing"
	"time"

	"github.com/sluicegate/sluice/gateway/qos"
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

// BenchmarkQueueState is for how long the queue's lock is held to tell what waits: for
// metrics, for the page, and, to compare with, by a walk over all that waits.
func BenchmarkQueueState(b *testing.B) {
	const entries, tenants = 4096, 1000
	fleet := scoring.NewFleet(scoring.DefaultConfig()) // nobody there has room
	g := bareGateway(fleet, &State{Pools: map[string]Pool{"a": {}}, Queue: queueConfig()})
	g.turns.stop()
	pool, _ := g.turns.queue.Pool("a")
	now := time.Now()
	for i := range entries {
		tn := &turn{ex: &exchange{}, entry: qos.Entry{
			Class: qos.ClassID(i % 3), Tenant: fmt.Sprint("tenant ", i%tenants), Pools: []qos.PoolID{pool}, Work: 1000,
			Arrived: now, Deadline: now.Add(time.Minute), Until: now.Add(time.Hour),
		}}
		tn.entry.Payload = tn
		g.turns.queue.Admit(now, &tn.entry, &g.turns.placer, nil)
		g.turns.members[tn] = struct{}{}
	}
	var s QueueState
	if !g.QueueState(&s) || s.Waiting != entries || len(s.Tenants) != tenants || len(s.Flows) != MaxQueueFlows {
		b.Fatalf("%d wait, of %d tenants", s.Waiting, len(s.Tenants))
	}
	for name, look := range map[string]func(){
		"counts": func() { g.QueueCounts(&s) },
		"page":   func() { g.QueueState(&s) },
		"walk": func() {
			clear(s.Tenants)
			var oldest [3]time.Time
			for tn := range g.turns.members {
				s.Tenants[tn.entry.Tenant]++
				if at := &oldest[tn.entry.Class]; at.IsZero() || tn.entry.Arrived.Before(*at) {
					*at = tn.entry.Arrived
				}
			}
		},
	} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				look()
			}
		})
	}
}
