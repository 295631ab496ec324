package tokenize

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

// TestPace: what is assumed gives way to what is seen, and what is seen to what is
// seen later; work is begun only if it fits before the deadline.
func TestPace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPace(1000, 100)
		near := func(want time.Duration) {
			t.Helper()
			if got := p.need(1000); got < want*9/10 || got > want*11/10 {
				t.Errorf("1000 bytes need %v, want about %v", got, want)
			}
		}
		near(time.Second)
		p.took(100_000, time.Second)
		near(10 * time.Millisecond)
		for range 100 {
			p.took(paceMemory/10, paceMemory/10*100*time.Microsecond)
		}
		near(100 * time.Millisecond)

		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		defer cancel()
		if err := p.within(ctx, 400); err != nil {
			t.Errorf("40 ms of work before a deadline in 50: %v", err)
		}
		if err := p.within(ctx, 600); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("60 ms of work before a deadline in 50: %v", err)
		}
		if err := p.within(t.Context(), 1<<40); err != nil {
			t.Errorf("without a deadline: %v", err)
		}
	})
}
