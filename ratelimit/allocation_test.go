//go:build !race

package ratelimit

import "testing"

// A request allocates its lease and nothing else.
func TestReserveAllocatesTheLeaseAlone(t *testing.T) {
	l := New(Config{})
	claims := requestClaims(0)
	amounts := []int64{610, 1, 1, 300}
	got := testing.AllocsPerRun(1000, func() {
		le, _ := l.Reserve(ctx, start, claims)
		le.Settle(start, amounts)
	})
	if got > 1 {
		t.Errorf("%v allocations a request, want 1", got)
	}
}
