package qos

import (
	"testing"
	"time"
)

// TestLooksInVainBecomeRarer has more waiting than a pump looks at, all for a worker that
// is not open, beside one that is. While nothing happens there are few looks; what happens
// is looked at as soon as ever.
func TestLooksInVainBecomeRarer(t *testing.T) {
	q, _, _ := full(t, 1000, 100)
	held := &elsewhere{best: 7, closed: map[PoolID]bool{1: true}}
	now := start
	step := func() {
		t.Helper()
		next, ok := q.Next()
		if !ok || !next.After(now) {
			t.Fatalf("at %v the next pump is due at %v, %v", now.Sub(start), next.Sub(start), ok)
		}
		now = next
		if out := q.Pump(now, held, nil); len(out) != 0 {
			t.Fatalf("placed %d", len(out))
		}
	}
	q.Dirty(0)
	q.Pump(now, held, nil)
	pumps := 0
	for ; now.Before(start.Add(time.Second)); pumps++ {
		step()
	}
	if least, most := int(time.Second/slowest), int(time.Second/slowest)+3; pumps < least || pumps > most {
		t.Errorf("%d pumps in a second in which nothing happens, want %d to %d", pumps, least, most)
	}
	q.Dirty(0)
	if next, _ := q.Next(); next.After(now.Add(pause)) {
		t.Errorf("what happens is looked at after %v, want %v at most", next.Sub(now), pause)
	}
	now = now.Add(pause)
	q.Pump(now, held, nil)
	if next, _ := q.Next(); next.Sub(now) != slowest {
		t.Errorf("after that those behind are looked at after %v, want %v", next.Sub(now), slowest)
	}
}
