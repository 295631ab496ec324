package simulate

import (
	"cmp"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/sluicegate/sluice/scoring"
	"github.com/sluicegate/sluice/scoring/simworker/engine"
)

// TestAgendaIsInOrder: by time, then by kind, then as added.
func TestAgendaIsInOrder(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 1))
	var a agenda
	var want []event
	for i := range 2000 {
		at, kind := time.Duration(rng.IntN(50)), eventKind(rng.IntN(4))
		a.add(at, kind, i)
		want = append(want, event{at: at, kind: kind, seq: uint64(i + 1), index: i})
	}
	slices.SortFunc(want, func(x, y event) int {
		return cmp.Or(cmp.Compare(x.at, y.at), cmp.Compare(x.kind, y.kind), cmp.Compare(x.seq, y.seq))
	})
	for i, w := range want {
		if got := a.next(); got != w {
			t.Fatalf("event %d is %+v, want %+v", i, got, w)
		}
	}
	if len(a.heap) != 0 {
		t.Errorf("%d events are left", len(a.heap))
	}
}

// TestCores has two steps share one core, in which 5 of each are fixed.
func TestCores(t *testing.T) {
	c := cores{limit: 1}
	if _, _, _, ok := c.next(); ok {
		t.Error("a step ends and none is under way")
	}
	next := func(at time.Duration, worker int, ends bool) {
		t.Helper()
		if a, w, e, ok := c.next(); a != at || w != worker || e != ends || !ok {
			t.Fatalf("at %d worker %d is next (ends: %v), want at %d worker %d (ends: %v)", a, w, e, at, worker, ends)
		}
	}
	c.enter(5, 0, 5, 25)
	next(10, 0, false)
	c.advance(10) // 20 to compute
	next(30, 0, true)
	c.enter(15, 1, 5, 35) // 15 left of the first one
	next(20, 1, false)
	c.advance(20) // 10 left, at half speed
	next(40, 0, true)
	c.leave(40, 0) // 20 left of the second one, alone
	if c.busy(0) || !c.busy(1) {
		t.Error("busy is wrong")
	}
	next(60, 1, true)
	c.leave(60, 1)

	c.limit = 2
	c.enter(70, 0, 1, 20)
	c.enter(70, 1, 1, 20)
	next(71, 0, false)
	c.advance(71)
	next(90, 0, true)
}

// TestTranslate gives the router the engine's own events, and compares what it
// knows with what the engine holds.
func TestTranslate(t *testing.T) {
	cfg := DefaultConfig()
	cfg.Workers, cfg.Engine.Blocks, cfg.EventDelay = 1, 300, 0
	p := Prefixed{
		Name: "p", Requests: 400, Buckets: []Bucket{{1, 4, 1000}}, FreshMin: 1, FreshMax: 600, OutputMin: 1, OutputMax: 40,
	}.Plan(Arrivals{Rate: 5}, 1)
	m, err := newSim(&cfg, p, Strategy{})
	if err != nil {
		t.Fatal(err)
	}
	m.start()
	for m.left > 0 {
		m.step()
	}
	for len(m.agenda.heap) > 0 && m.agenda.heap[0].kind == eventsArrive {
		m.step()
	}
	ev := m.fleet.Stats().Events
	if ev.Malformed+ev.HeldBack+ev.UnknownStored+ev.Unusable+ev.Ignored+ev.Evicted != 0 || ev.Removed == 0 {
		t.Errorf("the router counts %+v", ev)
	}
	// Twins of one block count once for the router.
	held, known := m.nodes[0].eng.Stats().BlocksCached, m.fleet.Stats().Blocks
	if known > held || known < held*9/10 {
		t.Errorf("the router knows %d blocks, the engine holds %d", known, held)
	}
}

// TestTranslateMergesRemovals: removals in a row become one event, and stores
// keep their own hashes, tokens and parent.
func TestTranslateMergesRemovals(t *testing.T) {
	hash := func(b byte) engine.Hash { return engine.Hash{31: b} }
	name := func(b byte) scoring.EngineHash {
		return scoring.EngineHash([]byte{0, 0, 0, 0, 0, 0, 0, b})
	}
	parent := hash(9)
	var n node
	got := n.translate([]engine.Event{
		{Kind: engine.Removed, Hashes: []engine.Hash{hash(1)}},
		{Kind: engine.Removed, Hashes: []engine.Hash{hash(2)}},
		{Kind: engine.Stored, Hashes: []engine.Hash{hash(3), hash(4)}, Parent: &parent, Tokens: []uint32{1, 2}, Salt: "s"},
		{Kind: engine.Removed, Hashes: []engine.Hash{hash(5)}},
		{Kind: engine.Cleared},
		{Kind: engine.Stored, Hashes: []engine.Hash{hash(6)}, Tokens: []uint32{3}, Salt: "s", LoRA: "l"},
	}, 1)
	if len(got) != 5 {
		t.Fatalf("%d events: %+v", len(got), got)
	}
	f := func(i int, kind scoring.EventKind, parent scoring.EngineHash, salt string, hashes ...scoring.EngineHash) {
		t.Helper()
		e := got[i]
		if e.Kind != kind || e.Parent != parent || e.Salt != salt || !slices.Equal(e.Hashes, hashes) {
			t.Errorf("event %d is %+v", i, e)
		}
		if kind == scoring.BlockStored && (e.Usable != len(hashes) || e.BlockSize != 1 || len(e.Tokens) != len(hashes)) {
			t.Errorf("event %d is %+v", i, e)
		}
	}
	f(0, scoring.BlockRemoved, "", "", name(1), name(2))
	f(1, scoring.BlockStored, name(9), "", name(3), name(4))
	f(2, scoring.BlockRemoved, "", "", name(5))
	f(3, scoring.AllBlocksCleared, "", "")
	f(4, scoring.BlockStored, "", "s", name(6))
}
