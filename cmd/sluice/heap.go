package main

import (
	"context"
	"os"
	"runtime"
	"runtime/debug"
	rtmetrics "runtime/metrics"
	"sync/atomic"
)

const (
	// heapFloor is what the heap may always grow to before it is collected. What a
	// gateway keeps is a few MB while few streams are open, and with the runtime's own
	// rule, twice that, it would be collected several times a second, each time for
	// longer than a request takes.
	heapFloor = 64 << 20
	// heapGrowth is how far it may grow beyond what it keeps, in percent of that, where
	// that is more. The runtime's own is 100.
	heapGrowth = 50
)

// heapPercent is GOGC for a heap that keeps so many bytes.
func heapPercent(live uint64) int {
	if live == 0 {
		live = 1
	}
	const most = 2000 // for the first moments, when next to nothing is kept
	return int(min(max((max(heapFloor, live)-live)*100/live, heapGrowth), most))
}

// heapRoom lets the heap grow to a floor at least, and less than the runtime does
// beyond it. An operator's own GOGC stays as it is, and a limit of memory, which the
// runtime keeps to first.
type heapRoom struct {
	collected chan struct{} // holds one, sent by the runtime after each collection
	ended     atomic.Bool
}

func newHeapRoom() *heapRoom { return &heapRoom{collected: make(chan struct{}, 1)} }

// Run ends with ctx, and leaves things as they were.
func (h *heapRoom) Run(ctx context.Context) error {
	if os.Getenv("GOGC") != "" {
		return nil
	}
	is := heapPercent(heapLive())
	defer debug.SetGCPercent(debug.SetGCPercent(is))
	defer h.ended.Store(true)
	h.mark()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-h.collected:
		}
		// Setting it stops the program for a moment, so small changes are let be.
		if should := heapPercent(heapLive()); should < is-is/10 || should > is+is/10 {
			debug.SetGCPercent(should)
			is = should
		}
	}
}

// mark leaves something behind that the next collection finds unused.
func (h *heapRoom) mark() {
	type garbage struct{ room *heapRoom }
	runtime.SetFinalizer(&garbage{h}, func(g *garbage) {
		select {
		case g.room.collected <- struct{}{}:
		default:
		}
		if !g.room.ended.Load() {
			g.room.mark()
		}
	})
}

// heapLive is what the last collection found in use.
func heapLive() uint64 {
	s := []rtmetrics.Sample{{Name: "/gc/heap/live:bytes"}}
	rtmetrics.Read(s)
	return s[0].Value.Uint64()
}
