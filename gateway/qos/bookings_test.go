package qos

import (
	"testing"
	"time"
)

// TestBookingsAreShared floods the bookings from two tenants with requests that are all
// different, in all classes and pools. There is room for those of a third tenant, and
// when the flood is over it is all free again.
func TestBookingsAreShared(t *testing.T) {
	q := newQueue(t, func(c *Config) { c.Tries = 2 }, "a", "b", "c", "d", "e", "f")
	p := &slots{free: map[PoolID]int{}}
	key := uint64(0)
	refused := func(class ClassID, tenant string, pool PoolID) time.Duration {
		t.Helper()
		key++
		e := entry(tenant, class, tenant, 1000, pool)
		e.Key, e.Until = key, start.Add(time.Hour)
		out := q.Admit(start, e, p, nil)
		if len(out) != 1 || out[0].Reason != ReasonForecast {
			t.Fatalf("%v, not refused by forecast", names(out))
		}
		return out[0].RetryAfter
	}
	for _, tenant := range []string{"x", "y", "z"} {
		for class := range q.classes {
			for id := range q.pools {
				q.Admit(start, entry(tenant, ClassID(class), tenant, 100_000, PoolID(id)), p, nil)
			}
		}
	}
	for _, pool := range q.pools {
		pool.rate = rate{work: 1000, seconds: 10, at: start} // 1,000 s for what a tenant has waiting
	}
	for range 4000 {
		for class := range q.classes {
			for id := range q.pools {
				refused(ClassID(class), "x", PoolID(id))
				refused(ClassID(class), "y", PoolID(id))
			}
		}
	}
	before := len(q.bookings)
	first := refused(0, "z", 0)
	for range 99 {
		refused(0, "z", 0)
	}
	if last := refused(0, "z", 0); len(q.bookings) != before+101 || last < first+500*time.Second {
		t.Errorf("%d bookings, %d before 101 of another tenant; the first is told to come in %v, the last in %v",
			len(q.bookings), before, first, last)
	}
	if err := q.Check(); err != nil {
		t.Error(err)
	}
	q.expire(start.Add(100 * time.Hour))
	if len(q.bookings) != 0 || len(q.bookers) != 0 {
		t.Errorf("%d bookings of %d tenants are left", len(q.bookings), len(q.bookers))
	}
}
