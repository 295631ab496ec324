//go:build !race

package redis

import (
	"testing"
	"time"
)

// TestLeaseServesWithoutAllocating: a decision that the leases have takes one
// allocation, the reservation itself.
func TestLeaseServesWithoutAllocating(t *testing.T) {
	w := newWorld(t, shared(t))
	r := w.replica()
	claims := manyClaims("a")
	lease(w, r, claims)
	amounts := []int64{1, 610, 1}
	before := r.Stats()
	got := testing.AllocsPerRun(200, func() {
		res, failures := r.Reserve(background, time.Time{}, claims)
		if len(failures) > 0 {
			t.Fatalf("refused: %+v", failures)
		}
		res.Settle(time.Time{}, amounts)
	})
	after := r.Stats()
	if after.ByStore != before.ByStore {
		t.Fatalf("the store was asked %d times", after.ByStore-before.ByStore)
	}
	if got > 1.5 { // and what the reports of the other goroutine take
		t.Errorf("%.1f allocations", got)
	}
}
