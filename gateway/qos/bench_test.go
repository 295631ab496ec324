package qos

import (
	"fmt"
	"testing"
	"time"
)

// sizes are of queues: entries and the tenants that they are of.
var sizes = []struct{ entries, tenants int }{{10, 3}, {1000, 100}, {100_000, 100}, {100_000, 10_000}}

// full returns a queue of two pools with so many entries waiting, and others
// that can be admitted.
func full(t testing.TB, entries, tenants int) (*Queue, []*Entry, *slots) {
	q := newQueue(t, func(c *Config) {
		c.MaxEntries = 2 * entries
		for i := range c.Classes {
			c.Classes[i].Preemptible = i == 2
		}
	}, "a", "b")
	p := &slots{free: map[PoolID]int{}}
	names := make([]string, tenants)
	for i := range names {
		names[i] = fmt.Sprint("tenant", i)
	}
	var spare []*Entry
	for i := range entries + 64 {
		e := entry("", ClassID(i%3), names[i%tenants], 100+int64(i*7919%5000), 0, 1)
		e.Payload = nil
		e.Deadline = start.Add(time.Hour + time.Duration(i*7919%100_000)*time.Millisecond)
		if i >= entries {
			spare = append(spare, e)
			continue
		}
		q.Admit(start, e, p, nil)
	}
	if q.Waiting() != entries {
		t.Fatalf("%d of %d wait", q.Waiting(), entries)
	}
	return q, spare, p
}

func BenchmarkAdmitLeave(b *testing.B) {
	for _, size := range sizes {
		b.Run(fmt.Sprintf("entries=%d/tenants=%d", size.entries, size.tenants), func(b *testing.B) {
			q, spare, p := full(b, size.entries, size.tenants)
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				e := spare[i%len(spare)]
				q.Admit(start, e, p, nil)
				q.Leave(start, e)
			}
		})
	}
}

// BenchmarkPump admits an entry and places the one that is next.
func BenchmarkPump(b *testing.B) {
	for _, size := range sizes {
		b.Run(fmt.Sprintf("entries=%d/tenants=%d", size.entries, size.tenants), func(b *testing.B) {
			q, spare, p := full(b, size.entries, size.tenants)
			out := make([]Outcome, 0, 4)
			b.ReportAllocs()
			for b.Loop() {
				e := spare[len(spare)-1]
				q.Admit(start, e, p, nil)
				p.free[0], p.asks = 1, p.asks[:0]
				q.Dirty(0)
				out = q.Pump(start, p, out[:0])
				if len(out) != 1 {
					b.Fatalf("%d were placed", len(out))
				}
				spare[len(spare)-1] = out[0].Entry
			}
		})
	}
}

// BenchmarkPumpInVain looks at what no worker takes.
func BenchmarkPumpInVain(b *testing.B) {
	for _, size := range sizes {
		b.Run(fmt.Sprintf("entries=%d/tenants=%d", size.entries, size.tenants), func(b *testing.B) {
			q, _, _ := full(b, size.entries, size.tenants)
			p := &elsewhere{best: 7, closed: map[PoolID]bool{}}
			b.ReportAllocs()
			for b.Loop() {
				q.Dirty(0)
				q.Pump(start, p, nil)
			}
		})
	}
}

func BenchmarkPassed(b *testing.B) {
	q := newQueue(b, nil, "a")
	e := entry("", 0, "x", 100, 0)
	b.ReportAllocs()
	for b.Loop() {
		q.Open(start, 0, e.Pools)
		q.Passed(start, e, 0, 0)
	}
}

// TestAllocations holds calls to no allocation once there is memory for what waits.
func TestAllocations(t *testing.T) {
	q, spare, p := full(t, 1000, 100)
	out := make([]Outcome, 0, 4)
	check := func(what string, f func()) {
		t.Helper()
		f()
		if n := testing.AllocsPerRun(1000, f); n != 0 {
			t.Errorf("%s: %v allocations", what, n)
		}
	}
	e := spare[0]
	check("admit and leave", func() {
		q.Admit(start, e, p, nil)
		q.Leave(start, e)
	})
	check("admit and place", func() {
		q.Admit(start, e, p, nil)
		p.free[0], p.asks = 1, p.asks[:0]
		q.Dirty(0)
		out = q.Pump(start, p, out[:0])
		e = out[0].Entry
	})
	held := &elsewhere{best: 7, closed: map[PoolID]bool{}}
	check("pump in vain", func() {
		q.Dirty(0)
		q.Pump(start, held, nil)
	})
	passed := spare[1]
	check("pass and settle", func() {
		q.Passed(start, passed, 0, 0)
		q.Settle(start, passed, 5)
	})
	again := spare[2]
	q.Passed(start, again, 0, 0)
	check("try again", func() {
		q.Again(start, again)
		q.Leave(start, again)
		again.state.charged = true
	})
}
