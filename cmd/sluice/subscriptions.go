package main

import (
	"context"
	"log/slog"
	"strconv"
	"sync"

	"github.com/sluicegate/sluice/scoring"
	"github.com/sluicegate/sluice/scoring/discovery"
	"github.com/sluicegate/sluice/scoring/kvevents"
)

// subscriptions runs one cache event subscriber for each source that the
// checker has found. It owns their goroutines: set waits for those it ends.
type subscriptions struct {
	sink kvevents.Sink
	log  *slog.Logger
	// doubt is told of a worker whose event connection broke: often the first
	// sign that it is gone.
	doubt func(scoring.WorkerID)

	// mu protects running.
	mu      sync.Mutex
	running map[scoring.WorkerID]*workerSources
}

// workerSources are the subscribers of one worker.
type workerSources struct {
	name   string
	subs   []*kvevents.Subscriber
	cancel context.CancelFunc
	done   sync.WaitGroup
}

func newSubscriptions(sink kvevents.Sink, log *slog.Logger) *subscriptions {
	return &subscriptions{sink: sink, log: log, running: make(map[scoring.WorkerID]*workerSources)}
}

// set replaces the subscriptions of a worker; it returns once the earlier ones
// have ended. Calls for one worker don't overlap.
func (s *subscriptions) set(w scoring.WorkerInfo, sources []discovery.EventSource) {
	s.mu.Lock()
	old := s.running[w.ID]
	delete(s.running, w.ID)
	s.mu.Unlock()
	if old != nil {
		old.cancel()
		old.done.Wait()
	}
	if len(sources) == 0 {
		return
	}
	ctx, cancel := context.WithCancel(context.Background())
	ws := &workerSources{name: w.Name, cancel: cancel}
	for _, src := range sources {
		opts := kvevents.DefaultOptions()
		opts.OnLost = func() { s.doubt(w.ID) }
		sub := kvevents.NewSubscriber(kvevents.Source{
			Worker: w.ID, Rank: src.Rank, Name: w.Name, Endpoint: src.Endpoint, Bind: src.Bind, From: src.From,
			Replay: src.Replay, Hint: src.Hint,
		}, s.sink, s.log, opts)
		ws.subs = append(ws.subs, sub)
		ws.done.Go(func() {
			if err := sub.Run(ctx); err != nil && ctx.Err() == nil {
				s.log.Error("cannot follow a worker's cache events", "worker", w.Name, "rank", src.Rank, "error", err)
			}
		})
	}
	s.mu.Lock()
	s.running[w.ID] = ws
	s.mu.Unlock()
}

// kvSource is what one subscription tells of itself.
type kvSource struct {
	worker, rank string
	source       kvevents.Source
	kvevents.Stats
}

// incidents counts what may have cost a part of the view, by what it was.
func (s *kvSource) incidents() map[string]uint64 {
	m := &s.Machine
	return map[string]uint64{
		"restart": m.Restarts, "truncated": m.Truncated, "hole": m.Holes, "overflow": m.Overflows, "gave_up": m.GaveUp, "refused": s.Refused,
	}
}

// stats lists all subscriptions.
func (s *subscriptions) stats() []kvSource {
	s.mu.Lock()
	defer s.mu.Unlock()
	var out []kvSource
	for _, ws := range s.running {
		for _, sub := range ws.subs {
			src := sub.Source()
			out = append(out, kvSource{worker: ws.name, rank: strconv.Itoa(src.Rank), source: src, Stats: sub.Stats()})
		}
	}
	return out
}

// joined counts the subscriptions whose view is live.
func (s *subscriptions) joined() int {
	n := 0
	for _, src := range s.stats() {
		if src.View == scoring.ViewLive || src.View == scoring.ViewPartial {
			n++
		}
	}
	return n
}
