package tokenize

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// TestGateLetsShortTextsGoFirst: three short ones to a long one, each kind in
// its order.
func TestGateLetsShortTextsGoFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewGate(1)
		if err := g.acquire(t.Context(), 1); err != nil {
			t.Fatal(err)
		}
		var mu sync.Mutex
		var order []int
		var wg sync.WaitGroup
		enter := func(name, n int) {
			wg.Go(func() {
				if err := g.acquire(t.Context(), n); err != nil {
					t.Error(err)
					return
				}
				mu.Lock()
				order = append(order, name)
				mu.Unlock()
				g.release()
			})
			synctest.Wait()
		}
		enter(100, longText)
		enter(101, longText)
		for i := range 8 {
			enter(i, longText-1)
		}
		if n := g.Waiting(); n != 10 {
			t.Fatalf("%d wait, want 10", n)
		}
		g.release()
		wg.Wait()
		if want := []int{0, 1, 2, 100, 3, 4, 5, 101, 6, 7}; !slices.Equal(order, want) {
			t.Errorf("the order is %v, want %v", order, want)
		}
		if g.free != 1 || g.Waiting() != 0 {
			t.Errorf("%d places are free and %d wait, want 1 and none", g.free, g.Waiting())
		}
	})
}

func TestGateForgetsWhoLeaves(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewGate(1)
		if err := g.acquire(t.Context(), 1); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		left := make(chan error, 1)
		go func() { left <- g.acquire(ctx, longText) }()
		synctest.Wait()
		cancel()
		if err := <-left; !errors.Is(err, context.Canceled) {
			t.Errorf("got %v, want that the context was cancelled", err)
		}
		if g.Waiting() != 0 {
			t.Errorf("%d still wait", g.Waiting())
		}
		g.release()
		if err := g.acquire(t.Context(), 1); err != nil {
			t.Errorf("the place is lost: %v", err)
		}
	})
}

// TestGateKeepsItsBound has many enter, some of whom give up meanwhile.
func TestGateKeepsItsBound(t *testing.T) {
	g := NewGate(3)
	var inside, most atomic.Int32
	var wg sync.WaitGroup
	for i := range 60 {
		wg.Go(func() {
			for j := range 50 {
				ctx, cancel := context.WithCancel(t.Context())
				if (i+j)%3 == 0 {
					ctx, cancel = context.WithTimeout(t.Context(), time.Duration(j)*time.Microsecond)
				}
				if g.acquire(ctx, (i+j)%2*longText) == nil {
					n := inside.Add(1)
					for m := most.Load(); n > m && !most.CompareAndSwap(m, n); m = most.Load() {
					}
					inside.Add(-1)
					g.release()
				}
				cancel()
			}
		})
	}
	wg.Wait()
	if most.Load() > 3 || g.free != 3 || g.Waiting() != 0 {
		t.Errorf("at most %d were inside, %d places are free and %d wait; want no more than 3, 3 and none", most.Load(), g.free, g.Waiting())
	}
}
