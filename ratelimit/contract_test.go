package ratelimit_test

import (
	"testing"
	"time"

	"github.com/sluicegate/sluice/ratelimit"
	"github.com/sluicegate/sluice/ratelimit/limitertest"
)

func TestContract(t *testing.T) {
	limitertest.Run(t, func(testing.TB) limitertest.Subject {
		now := time.Now()
		return limitertest.Subject{
			Limiter: ratelimit.New(ratelimit.Config{}),
			Now:     func() time.Time { return now },
			Advance: func(d time.Duration) { now = now.Add(d) },
		}
	})
}
