package main

import (
	"context"
	"sync"
	"time"

	"github.com/sluicegate/sluice/deploy/bench/internal/rig"
)

// drainTime is how long the last requests of a run may take.
const drainTime = 30 * time.Second

// openLoop sends requests when they are due, whatever became of those before,
// and returns all outcomes in order. at is called once at the given time.
func openLoop(ctx context.Context, s *rig.Sender, key string, requests []request, at time.Duration, call func()) []rig.Outcome {
	if len(requests) == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, requests[len(requests)-1].at+drainTime)
	defer cancel()
	outcomes := make([]rig.Outcome, len(requests))
	start := time.Now()
	mark := time.AfterFunc(at, call)
	defer mark.Stop()
	var wg sync.WaitGroup
	timer := time.NewTimer(0)
	defer timer.Stop()
	for i := range requests {
		due := start.Add(requests[i].at)
		if wait := time.Until(due); wait > 0 {
			timer.Reset(wait)
			select {
			case <-timer.C:
			case <-ctx.Done():
			}
		}
		wg.Go(func() { outcomes[i] = s.Send(ctx, requests[i].body, key, requests[i].at, due) })
	}
	wg.Wait()
	return outcomes
}

// closedLoop keeps each sender busy with streams of its own requests, in
// order, from the beginning again when they are used up, for warm and then
// measured time. It returns finished requests a second of the measured time.
func closedLoop(ctx context.Context, senders []*rig.Sender, shares [][]request, streams int, warm, measured time.Duration) (float64, error) {
	ctx, cancel := context.WithTimeout(ctx, warm+measured)
	defer cancel()
	start := time.Now()
	var mu sync.Mutex
	finished := 0
	var failed error
	var wg sync.WaitGroup
	for i, s := range senders {
		next := 0
		for range streams {
			wg.Go(func() {
				for ctx.Err() == nil {
					mu.Lock()
					r := &shares[i][next%len(shares[i])]
					next++
					mu.Unlock()
					o := s.Send(ctx, r.body, "", r.at, time.Now())
					mu.Lock()
					switch since := time.Since(start); {
					case ctx.Err() != nil:
					case o.Err != nil && failed == nil:
						failed = o.Err
						cancel()
					case since > warm:
						finished++
					}
					mu.Unlock()
				}
			})
		}
	}
	wg.Wait()
	return float64(finished) / measured.Seconds(), failed
}
