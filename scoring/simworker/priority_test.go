package simworker

import (
	"testing"
	"time"
)

// TestPriority: of two requests that wait, the one of the lower priority is served
// first although it came last; without the option the one that came first is.
func TestPriority(t *testing.T) {
	for _, on := range []bool{false, true} {
		w := startWorker(t, func(cfg *Config) {
			slowly(10 * time.Millisecond)(cfg)
			cfg.MaxSeqs, cfg.PriorityScheduling = 1, on
		})
		w.SetFault(Fault{Stall: -1})
		var streams []*liveStream
		for i, priority := range []string{"5", "-1"} {
			streams = append(streams, openStream(t, w, chatPath, chatBody("hello", `,"stream":true,"ignore_eos":true,"max_tokens":8000,"priority":`+priority)))
			waitUntil(t, w, "a request that waits", func(s Stats) bool { return s.Waiting == i+1 })
		}
		w.SetFault(Fault{})
		// One text takes longer than any wait here, so the other gets no token.
		first, second := streams[0], streams[1]
		if on {
			first, second = second, first
		}
		for range 3 { // the role, and text
			if _, err := first.event(); err != nil {
				t.Fatalf("priority scheduling %v: the request that is to be first: %v", on, err)
			}
		}
		if s := w.Stats(); s.Running != 1 || s.Waiting != 1 {
			t.Errorf("priority scheduling %v: %+v, want one request that runs and one that waits", on, s)
		}
		second.leave()
		first.leave()
		waitIdle(t, w)
	}
}
