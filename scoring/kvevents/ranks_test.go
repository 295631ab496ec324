package kvevents

import (
	"testing"
	"time"

	"github.com/sluicegate/sluice/scoring"
)

// rankStep publishes one batch as the engine of a data-parallel rank does.
func (p *publisher) rankStep(rank int, events ...any) {
	p.t.Helper()
	p.mu.Lock()
	ts := p.started + float64(p.seq)
	p.mu.Unlock()
	p.payload(false, pack(p.t, list{ts, events, rank}))
}

// chainEvent stores blocks of two tokens, each the child of the one before; a
// block's hash is the number of its tokens.
func chainEvent(parent any, hashes ...int) any {
	var ids, tokens list
	for _, h := range hashes {
		ids, tokens = append(ids, h), append(tokens, h, h)
	}
	return list{"BlockStored", ids, parent, tokens, 2}
}

// TestRanksOverSockets has a worker of two data-parallel ranks, each with a
// publisher of its own: what one stores, loses or clears is its own, and a prompt
// matches what the better one holds.
func TestRanksOverSockets(t *testing.T) {
	cfg := scoring.DefaultConfig()
	cfg.BlockSize = 2
	f := scoring.NewFleet(cfg)
	id, err := f.Add(time.Now(), scoring.WorkerSpec{Name: "w", Pool: "p", Models: []string{"m"}})
	if err != nil {
		t.Fatal(err)
	}
	f.SetReady(time.Now(), id, true, "")
	cached := func() int {
		r, err := f.Pick(time.Now(), &scoring.Request{Model: "m", Pools: []string{"p"}, Tokens: []uint32{1, 1, 2, 2, 3, 3, 9}})
		if err != nil {
			t.Fatal(err)
		}
		r.Done(time.Now(), scoring.NotSent)
		return r.Cached()
	}
	follow := func(rank int, p *publisher) (*Subscriber, func()) {
		return run(t, Source{Worker: id, Rank: rank, Name: "w", Endpoint: p.endpoint, Replay: p.replayAt}, f, testOptions())
	}

	first, second := startPublisher(t, "", "", false), startPublisher(t, "", "", false)
	first.rankStep(0, chainEvent(nil, 1, 2))
	second.rankStep(1, chainEvent(nil, 1, 2, 3))
	subFirst, stopFirst := follow(0, first)
	subSecond, stopSecond := follow(1, second)
	// The second rank's blocks alone would match as well.
	eventually(t, "the first rank's blocks are known", func() bool { return subFirst.Stats().Next == 1 })
	eventually(t, "the second rank's three blocks match", func() bool { return cached() == 6 })

	second.rankStep(1, removeEvent(3))
	eventually(t, "two blocks match on either", func() bool { return cached() == 4 })
	second.rankStep(1, removeEvent(2))
	eventually(t, "the second rank's removal is applied", func() bool { return subSecond.Stats().Next == 3 })
	if n := cached(); n != 4 {
		t.Errorf("%d tokens match after the second rank's removals, want the first rank's 4", n)
	}

	first.rankStep(0, list{"AllBlocksCleared"})
	eventually(t, "the second rank's one block is left", func() bool { return cached() == 2 })

	// Another process takes the second rank's place, with an empty cache.
	second.stop()
	again := startPublisher(t, second.endpoint, second.replayAt, false)
	again.rankStep(1, chainEvent(nil, 7))
	eventually(t, "nothing of the ended process is left", func() bool { return cached() == 0 })
	again.rankStep(1, chainEvent(nil, 1))
	eventually(t, "the new process is followed", func() bool { return cached() == 2 })

	for _, sub := range []*Subscriber{subFirst, subSecond} {
		sub.says(t, func(st Stats) bool { return st.OtherRank == 0 && st.BadBatches == 0 && st.View == scoring.ViewLive })
	}
	stopFirst()
	stopSecond()
	checkGoroutines(t)
}
