package gateway

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluicegate/sluice/gateway/qos"
	"github.com/sluicegate/sluice/policy"
	"github.com/sluicegate/sluice/scoring"
	"github.com/sluicegate/sluice/tenancy"
)

// bareGateway is a gateway without a network.
func bareGateway(fleet Router, st *State) *Gateway {
	g := &Gateway{
		cfg: DefaultConfig(), parts: Parts{Router: fleet}, log: slog.New(slog.DiscardHandler),
		memory: newMemoryBudget(1 << 30), retries: newRetryBudget(0.2),
	}
	g.lengths.init()
	g.answers.init()
	g.state.Store(st)
	g.turns = startTurns(fleet, st, g.log)
	return g
}

// asks is a request that asks for turns as one that came over the network does.
func (g *Gateway) asks(class, tenant string, pick scoring.Request) *exchange {
	ex := &exchange{
		g: g, st: g.State(), route: routeChat, start: time.Now(), pools: pick.Pools, pick: pick, phase: tenancy.PhaseQueue,
		principal: &tenancy.Principal{Tenant: &tenancy.Tenant{ID: tenant}}, model: &Model{Name: pick.Model},
		decision: &policy.Decision{Class: class, N: 1}, req: acquireRequest(),
	}
	ex.ctx, ex.cancel = context.WithCancel(context.Background())
	return ex
}

// left gives back what is left of a request.
func (ex *exchange) left() {
	ex.leaveQueue()
	ex.settleTurn(&charge{}, &tenancy.Row{})
	ex.dropTurn()
	ex.cancel()
}

// TestTurnsUnderStress has 2,000 requests at a time wait for 64 workers that answer,
// end and fail at random times, in virtual time. Each one gets its turn or leaves;
// nothing waits beside room that nobody told of, and each is counted once.
func TestTurnsUnderStress(t *testing.T) {
	const clients, each, workers = 2000, 4, 64
	for seed := range uint64(1) {
		synctest.Test(t, func(t *testing.T) {
			fleet := scoring.NewFleet(scoring.DefaultConfig())
			ids := make([]scoring.WorkerID, workers)
			for i := range ids {
				id, err := fleet.Add(time.Now(), scoring.WorkerSpec{Name: fmt.Sprint(i), Pool: string(rune('a' + i%3)), Models: []string{"m"}})
				if err != nil {
					t.Fatal(err)
				}
				fleet.SetReady(time.Now(), id, true, "")
				ids[i] = id
			}
			st := &State{
				Pools: map[string]Pool{"a": {}, "b": {}, "c": {}},
				Queue: queueConfig(func(c *qos.Config) { c.Classes[1].Share, c.Classes[2].Share = 0.2, 0.2 }),
			}
			g := bareGateway(fleet, st)
			var granted, left, retried atomic.Int64
			var ways endings
			var all sync.WaitGroup
			for i := range clients {
				all.Go(func() {
					rng := rand.New(rand.NewPCG(seed, uint64(i)))
					for range each {
						ways.add(playTurn(t, g, rng, &granted, &left, &retried))
					}
				})
			}
			done := make(chan struct{})
			var flips sync.WaitGroup
			flips.Go(func() { flipWorkers(fleet, ids, rand.New(rand.NewPCG(seed, 1<<40)), done) })
			all.Wait()
			close(done)
			flips.Wait()
			var s QueueState
			g.QueueState(&s)
			if s.Waiting != 0 || s.Bytes != 0 || g.turns.waiting.Load() != 0 || len(g.turns.members) != 0 {
				t.Errorf("the queue is left with %d requests", s.Waiting)
			}
			if n := granted.Load() + left.Load(); n != clients*each {
				t.Errorf("%d requests have come to an end, want %d", n, clients*each)
			}
			ways.check(t, &s, clients*each)
			if s.LateWakeups != 0 {
				t.Errorf("%d late wake-ups", s.LateWakeups)
			}
			for _, w := range fleet.Snapshot(time.Now()) {
				if w.InFlight != 0 {
					t.Errorf("worker %s is left with %d requests", w.Worker.Name, w.InFlight)
				}
			}
			waited := int64(0)
			for _, c := range s.Classes {
				waited += c.Granted
			}
			if waited < clients {
				t.Errorf("only %d requests have waited", waited)
			}
			t.Logf("%d granted, %d of them after a wait, %d left, %d tried again", granted.Load(), waited, left.Load(), retried.Load())
			g.turns.stop()
		})
	}
}

// endings counts how requests ended, by the words of QueueTurns and QueueReasons.
type endings struct {
	mu    sync.Mutex // protects count
	count map[string]int64
}

func (e *endings) add(ex *exchange) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.count == nil {
		e.count = make(map[string]int64)
	}
	e.count[ex.turn.way+ex.turn.reason]++ // of two it is one that nobody knows
}

// check: each of so many requests has ended in one known way, and those that the queue
// counts itself add up.
func (e *endings) check(t *testing.T, s *QueueState, all int64) {
	sum := int64(0)
	for _, way := range append(QueueTurns(), QueueReasons()...) {
		sum += e.count[way]
	}
	if sum != all {
		t.Errorf("%d of %d requests have ended in one way: %v", sum, all, e.count)
	}
	for i := range s.Classes {
		c := &s.Classes[i]
		ways := c.Granted + c.Left
		for _, n := range c.Refused {
			ways += n
		}
		if ways != c.Arrived {
			t.Errorf("of class %s %d came to the queue, and %d ended: %+v", c.Name, c.Arrived, ways, c)
		}
	}
}

// playTurn is one client's request.
func playTurn(t *testing.T, g *Gateway, rng *rand.Rand, granted, left, retried *atomic.Int64) *exchange {
	class := []string{"interactive", "standard", "batch"}[rng.IntN(3)]
	pools := [][]string{{"a"}, {"b"}, {"c"}, {"a", "b"}, {"a", "b", "c"}}[rng.IntN(5)]
	pick := scoring.Request{Model: "m", Pools: pools, Estimate: 200 + rng.IntN(6000)}
	if rng.IntN(3) == 0 { // one of a few prompts that caches hold
		pick.Tokens = make([]uint32, 2000)
		for i, first := 0, rng.Uint32N(5); i < len(pick.Tokens); i++ {
			pick.Tokens[i] = first
		}
	}
	ex := g.asks(class, fmt.Sprint("tenant ", rng.IntN(20)), pick)
	defer ex.endTurn()
	defer ex.left()
	if rng.IntN(10) == 0 {
		goes := ex.cut // the gateway shuts down
		if rng.IntN(2) == 0 {
			goes = ex.clientLeft
		}
		stop := time.AfterFunc(time.Duration(rng.IntN(100))*time.Millisecond, goes)
		defer stop.Stop()
	}
	for {
		_, rej := ex.takeTurn(time.Time{})
		if rej != nil {
			if !ex.over() && !errors.Is(rej, scoring.ErrNotReady) {
				t.Errorf("refused: %v, %v", rej, rej.cause)
			}
			left.Add(1)
			return ex
		}
		ex.turnTaken()
		time.Sleep(time.Duration(10+rng.IntN(300)) * time.Millisecond)
		if rng.IntN(50) == 0 && len(ex.pick.Exclude) < 3 { // the worker fails
			ex.tries.last = &rejection{}
			ex.pick.Exclude = append(ex.pick.Exclude, ex.res.Worker().ID)
			ex.endAttempt()
			retried.Add(1)
			continue
		}
		ex.res.FirstToken(time.Now())
		time.Sleep(time.Duration(rng.IntN(2000)) * time.Millisecond)
		ex.res.Done(time.Now(), scoring.Completed)
		granted.Add(1)
		return ex
	}
}

// flipWorkers takes workers out and brings them back, until done.
func flipWorkers(fleet *scoring.Fleet, ids []scoring.WorkerID, rng *rand.Rand, done <-chan struct{}) {
	for {
		id := ids[rng.IntN(len(ids))]
		fleet.SetReady(time.Now(), id, false, "test")
		select {
		case <-time.After(time.Duration(1+rng.IntN(200)) * time.Millisecond):
		case <-done:
			return
		}
		fleet.SetReady(time.Now(), id, true, "")
	}
}
