package redis

import (
	"testing"
	"time"

	"github.com/sluicegate/sluice/ratelimit/limitertest"
)

// TestContract holds the limiter to what the one in memory is held to.
func TestContract(t *testing.T) {
	limitertest.Run(t, func(t testing.TB) limitertest.Subject {
		w := newWorld(t, shared(t))
		r := w.replica()
		return limitertest.Subject{
			Limiter: r, Now: func() time.Time { return time.Time{} },
			Advance: func(d time.Duration) {
				r.told(w) // the store hears of things within FlushEvery
				w.advance(d)
			},
		}
	})
}
