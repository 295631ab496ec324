package qos

import (
	"fmt"
	"slices"
	"testing"
)

// TestTenantFullAfterPreemption fills a queue with requests of a preemptible class, of
// several tenants. A more urgent tenant has its part of the queue nevertheless: what it
// can take the place of is left to it.
func TestTenantFullAfterPreemption(t *testing.T) {
	for _, c := range []struct {
		name        string
		batch       bool // the class is preemptible
		own, tenant int  // entries of the urgent tenant in batch; how many urgent ones get in
	}{
		{"preemptible", true, 0, 20},
		// Own ones that could be taken out, too, count as held.
		{"preemptible and own", true, 5, 15},
		// 5 others hold 33 of 40, and half of what is left is more than three.
		{"not preemptible", false, 0, 3},
	} {
		for _, bytes := range []bool{false, true} {
			t.Run(fmt.Sprint(c.name, " by bytes ", bytes), func(t *testing.T) {
				q := newQueue(t, func(cfg *Config) {
					cfg.Classes[2].Preemptible = c.batch
					if cfg.MaxEntries = 40; bytes {
						cfg.MaxEntries, cfg.MaxBytes = 1000, 4000
					}
				}, "a")
				p := &slots{free: map[PoolID]int{}}
				admit := func(class ClassID, tenant string) []Outcome {
					e := entry(tenant, class, tenant, 10, 0)
					e.Bytes = 100
					return q.Admit(start, e, p, nil)
				}
				for range c.own {
					admit(2, "urgent")
				}
				for range 40 {
					for tenant := range 5 {
						admit(2, fmt.Sprint(tenant))
					}
				}
				in := 0
				for range 40 {
					out := admit(0, "urgent")
					if n := len(out); n == 0 || out[n-1].Entry.Tenant != "urgent" || out[n-1].Entry.Class == 2 {
						in++
					} else if reason := out[n-1].Reason; reason != ReasonTenantFull {
						t.Errorf("urgent requests are refused: %v", reason)
					}
				}
				if in != c.tenant {
					t.Errorf("%d urgent requests got in, want %d", in, c.tenant)
				}
				if err := q.Check(); err != nil {
					t.Error(err)
				}
			})
		}
	}
}

// TestPumpForgetsWhatItLookedAt: what a pump has looked at in vain is not kept in memory
// when it has ended.
func TestPumpForgetsWhatItLookedAt(t *testing.T) {
	q := newQueue(t, nil, "a", "b")
	p := &elsewhere{best: 1, closed: map[PoolID]bool{1: true}}
	var all []*Entry
	for i := range 40 {
		e := entry("e", 0, fmt.Sprint(i), 1, 0, 1)
		all = append(all, e)
		q.Admit(start, e, p, nil)
		q.Pump(start, p, nil)
	}
	for _, e := range all {
		q.Leave(start, e)
	}
	if i := slices.IndexFunc(q.failed[:cap(q.failed)], func(r ref) bool { return r.entry != nil }); i >= 0 {
		t.Errorf("the %d. of those that have left is kept", i)
	}
}
