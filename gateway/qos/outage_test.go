package qos_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/sluicegate/sluice/gateway/qos"
)

// TestOutageIsNoRate: the time in which none of a pool's workers may take work says nothing
// of how fast they take it. It would be taken for a slow pool, and clients be refused when
// the workers are back.
func TestOutageIsNoRate(t *testing.T) {
	w := newWorld(t, 2, poolRate/2, nil, "a")
	refused := 0
	w.outcome = func(o qos.Outcome) {
		if o.State == qos.Refused {
			refused++
		}
	}
	n := 0
	w.every(100*time.Millisecond, time.Minute, func() {
		n++
		w.admit(w.entry("batch", fmt.Sprint(n%4), 4000))
	})
	closed := func(is bool) func() {
		return func() {
			for _, worker := range w.fleet.Workers {
				worker.Closed = is
			}
			w.q.Dirty(0)
		}
	}
	w.at(15*time.Second, closed(true))
	w.at(4*time.Minute, closed(false))
	// At first nothing is known any more of before the outage.
	for _, c := range []struct {
		after time.Duration
		least float64
	}{{time.Second, 0}, {4 * time.Second, poolRate / 2}} {
		w.run(4*time.Minute + c.after)
		var s qos.Stats
		w.q.Stats(w.now, &s)
		t.Logf("%.0f tokens a second, %d wait, %d of %d refused", s.Pools[0].Rate, s.Waiting, refused, n)
		if rate := s.Pools[0].Rate; rate < c.least || rate > 2*poolRate || rate > 0 && rate < poolRate/2 {
			t.Errorf("%v after it the pool takes %.0f tokens a second, not %d", c.after, rate, poolRate)
		}
	}
	if refused > 0 {
		t.Errorf("%d of %d were refused", refused, n)
	}
}
