package redis

import (
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sluicegate/sluice/ratelimit/redis/redistest"
)

// TestFailover has the master die under load. What its copy had not seen yet is told
// anew, or is what the note on this package says may be lost.
func TestFailover(t *testing.T) {
	g, err := redistest.NewGroup()
	need1(t, g, err)
	t.Cleanup(g.Stop)
	w := newWorld(t, g.Master)
	w.real = true
	w.cfg.Addresses, w.cfg.Sentinel = []string{g.Sentinel}, g.Name
	w.cfg.Timeout = time.Second
	rs := []*replica{w.replica(), w.replica()}
	const limit = 100_000
	var charged, served, since atomic.Int64
	var stop atomic.Bool
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			for !stop.Load() {
				res, failures := rs[i%2].reserve(month("m", limit, 5), slot("s", 6))
				if len(failures) > 0 {
					time.Sleep(time.Millisecond)
					continue
				}
				charged.Add(3)
				served.Add(1)
				since.Add(1)
				res.Settle(time.Time{}, []int64{3, 1})
				time.Sleep(time.Millisecond)
			}
		})
	}
	w.wait(func() bool { return served.Load() > 200 })
	g.Master.Kill()
	w.wait(func() bool { return rs[0].Stats().State != StateUp || rs[1].Stats().State != StateUp })
	w.wait(func() bool { return rs[0].Stats().State == StateUp && rs[1].Stats().State == StateUp })
	since.Store(0)
	w.wait(func() bool { return since.Load() > 200 })
	stop.Store(true)
	wg.Wait()
	for _, r := range rs {
		r.told(w)
	}
	rs[1].stop()
	left, want := w.left(rs[0], month("m", limit, 0)), limit-charged.Load()
	t.Logf("%d served, %d left, %d if nothing was lost; %d and %d sessions lost", served.Load(), left, want, rs[0].Stats().Losses, rs[1].Stats().Losses)
	if lease := int64(limit * w.cfg.LeaseShare); left < want-lease || left > want+lease {
		t.Errorf("%d are left, want %d or a lease more or less", left, want)
	}
	for range 6 {
		w.must(rs[0], slot("s", 6))
	}
	w.refused(rs[0], slot("s", 6))
}
