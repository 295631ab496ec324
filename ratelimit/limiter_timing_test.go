package ratelimit

import (
	"fmt"
	"testing"
	"time"
)

func requestClaims(tenant int) []Claim {
	key := fmt.Sprint(tenant)
	return []Claim{
		{Counter: "tpm" + key, Unit: UnitTokens, Window: Window{Duration: time.Minute}, Limit: 1 << 40, Amount: 1900},
		{Counter: "rpm" + key, Unit: UnitRequests, Window: Window{Duration: time.Minute}, Limit: 1 << 40, Amount: 1},
		{Counter: "streams" + key, Unit: UnitConcurrency, Limit: 1 << 40, Amount: 1},
		{Counter: "spend" + key, Unit: UnitCost, Window: Window{Calendar: CalendarMonth}, Limit: 1 << 50, Amount: 700},
	}
}

func BenchmarkReserveSettle(b *testing.B) {
	for _, tenants := range []int{1, 64} {
		b.Run(fmt.Sprint("tenants=", tenants), func(b *testing.B) {
			l := New(Config{})
			claims := make([][]Claim, tenants)
			for i := range claims {
				claims[i] = requestClaims(i)
			}
			amounts := []int64{610, 1, 1, 300}
			b.ReportAllocs()
			b.RunParallel(func(pb *testing.PB) {
				for i := 0; pb.Next(); i++ {
					le, failures := l.Reserve(ctx, time.Now(), claims[i%tenants])
					if le == nil {
						b.Errorf("refused: %+v", failures)
						return
					}
					le.Settle(time.Now(), amounts)
				}
			})
		})
	}
}
