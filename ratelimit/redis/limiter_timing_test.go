package redis

import (
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/sluicegate/sluice/ratelimit"
)

// BenchmarkLease is a decision that the leases have, with its settlement.
func BenchmarkLease(b *testing.B) {
	w := newWorld(b, shared(b))
	w.real = true
	r := w.replica()
	claims := manyClaims("bench")
	lease(w, r, claims)
	amounts := []int64{1, 610, 1}
	before := r.Stats()
	b.ReportAllocs()
	for b.Loop() {
		res, failures := r.Reserve(background, time.Time{}, claims)
		if len(failures) > 0 {
			b.Fatalf("refused: %+v", failures)
		}
		res.Settle(time.Time{}, amounts)
	}
	after := r.Stats()
	b.ReportMetric(100*float64(after.ByLease-before.ByLease)/float64(after.Reserved-before.Reserved), "%lease")
}

// BenchmarkStore is a decision for which the store is asked, alone and by many at
// once.
func BenchmarkStore(b *testing.B) {
	for _, workers := range []int{1, 32} {
		b.Run(itoa(int64(workers)), func(b *testing.B) {
			w := newWorld(b, shared(b))
			w.real = true
			r := w.replica()
			var mu sync.Mutex
			var trips []time.Duration
			var wg sync.WaitGroup
			for i := range workers {
				wg.Go(func() {
					mine := make([]time.Duration, 0, b.N/workers+1)
					for k := range b.N/workers + 1 { // a counter of its own has no lease
						claim := bucket(itoa(int64(k*workers+i)), time.Hour, 1000, 20)
						began := time.Now()
						res, failures := r.reserve(claim)
						mine = append(mine, time.Since(began))
						if len(failures) > 0 {
							b.Errorf("refused: %+v", failures)
							return
						}
						res.Cancel(time.Time{})
					}
					mu.Lock()
					defer mu.Unlock()
					trips = append(trips, mine...)
				})
			}
			wg.Wait()
			slices.Sort(trips)
			b.ReportMetric(float64(len(trips))/b.Elapsed().Seconds(), "decisions/s")
			b.ReportMetric(float64(trips[len(trips)/2].Microseconds()), "µs-p50")
			b.ReportMetric(float64(trips[len(trips)*99/100].Microseconds()), "µs-p99")
			st := r.Stats()
			b.ReportMetric(100*float64(st.ByStore)/float64(st.Reserved), "%store")
		})
	}
}

// BenchmarkTwoReplicas is what two replicas decide together with a tenant each of
// them serves.
func BenchmarkTwoReplicas(b *testing.B) {
	w := newWorld(b, shared(b))
	w.real = true
	rs := []*replica{w.replica(), w.replica()}
	const workers = 16
	b.ResetTimer()
	var wg sync.WaitGroup
	for i := range workers {
		wg.Go(func() {
			claims := manyClaims(itoa(int64(i / 2 % 4)))
			for range b.N/workers + 1 {
				if res, failures := rs[i%2].Reserve(background, time.Time{}, claims); len(failures) == 0 {
					res.Settle(time.Time{}, []int64{1, 610, 1})
				}
			}
		})
	}
	wg.Wait()
	a, c := rs[0].Stats(), rs[1].Stats()
	b.ReportMetric(float64(a.Reserved+c.Reserved)/b.Elapsed().Seconds(), "decisions/s")
	b.ReportMetric(100*float64(a.ByLease+c.ByLease)/float64(a.Reserved+a.Refused+c.Reserved+c.Refused), "%lease")
}

func manyClaims(name string) []ratelimit.Claim {
	return []ratelimit.Claim{
		month(name+"cost", 1<<40, 900), bucket(name+"tokens", time.Minute, 1<<40, 700), slot(name, 1<<20),
	}
}

// lease has the replica lease plenty.
func lease(w *world, r *replica, claims []ratelimit.Claim) {
	for i := range claims {
		big := claims[i]
		big.Amount *= 1000
		for range 4 {
			w.must(r, big).Settle(time.Time{}, []int64{0})
		}
	}
}
