package ratelimit

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"
)

// Requests with overlapping sets of counters in any order neither wait for each
// other forever nor lose an amount.
func TestParallelRequestsBalance(t *testing.T) {
	const workers, rounds, names = 16, 400, 12
	l := New(Config{})
	var wg sync.WaitGroup
	var spent [names]int64
	var mu sync.Mutex
	for w := range workers {
		wg.Go(func() {
			rng := rand.New(rand.NewPCG(uint64(w), 7))
			for range rounds {
				var claims []Claim
				var which []int
				for _, i := range rng.Perm(names)[:1+rng.IntN(6)] {
					claims = append(claims, calendar(fmt.Sprint("c", i), CalendarDay, 1<<40, 50), slots(fmt.Sprint("s", i), workers))
					which = append(which, i)
				}
				noon := date(2026, 3, 10, 12)
				le, failures := l.Reserve(ctx, noon, claims)
				if le == nil {
					t.Errorf("refused: %+v", failures)
					return
				}
				amounts := make([]int64, len(claims))
				for i := range which {
					amounts[2*i] = rng.Int64N(100)
				}
				cancel := rng.IntN(4) == 0
				// Two ends of one request race; one of them counts.
				var ends sync.WaitGroup
				ends.Go(func() {
					if cancel {
						le.Cancel(noon)
					} else {
						le.Settle(noon, amounts)
					}
				})
				if cancel {
					le.Cancel(noon)
				} else {
					le.Settle(noon, amounts)
					mu.Lock()
					for i, n := range which {
						spent[n] += amounts[2*i]
					}
					mu.Unlock()
				}
				ends.Wait()
			}
		})
	}
	wg.Wait()
	noon := date(2026, 3, 10, 12)
	for i := range names {
		v := l.Peek(noon, []Claim{calendar(fmt.Sprint("c", i), CalendarDay, 1<<40, 0), slots(fmt.Sprint("s", i), workers)})
		if got := 1<<40 - v[0].Remaining; got != spent[i] {
			t.Errorf("counter %d holds %d, want %d", i, got, spent[i])
		}
		if v[1].Remaining != workers {
			t.Errorf("counter %d: %d of %d slots free", i, v[1].Remaining, workers)
		}
	}
	if st := l.Stats(); st.OpenLeases != 0 || st.Reserved != workers*rounds || st.Settled+st.Cancelled != st.Reserved {
		t.Errorf("stats %+v", st)
	}
}

// With real clocks on many goroutines a bucket stays within its promise.
func TestParallelBucketPromise(t *testing.T) {
	const limit = 1000
	window := 50 * time.Millisecond
	l := New(Config{})
	claim := Claim{Counter: "a", Unit: UnitRequests, Window: Window{Duration: window}, Limit: limit, Amount: 1}
	begin := time.Now()
	var wg sync.WaitGroup
	counts := make([]int64, 8)
	for w := range counts {
		wg.Go(func() {
			for range 20_000 {
				if le, _ := l.Reserve(ctx, time.Now(), []Claim{claim}); le != nil {
					counts[w]++
					le.Settle(time.Now(), nil)
				}
			}
		})
	}
	wg.Wait()
	elapsed := time.Since(begin)
	var admitted int64
	for _, n := range counts {
		admitted += n
	}
	if most := limit + int64(float64(limit)*float64(elapsed)/float64(window)); admitted > most {
		t.Errorf("%d admitted in %v, at most %d may be", admitted, elapsed, most)
	}
	if admitted < limit {
		t.Errorf("only %d admitted", admitted)
	}
}
