package main

import (
	"fmt"
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/sluicegate/sluice/gateway"
	"github.com/sluicegate/sluice/ratelimit"
	"github.com/sluicegate/sluice/ratelimit/redis"
)

// open returns the limiter that shares its counters, nil if nothing is shared. The store is looked for once
// it runs: a gateway starts without it.
func (c *RedisConfig) open(log *slog.Logger) (*redis.Limiter, error) {
	if !c.Enabled() {
		return nil, nil
	}
	rc, err := c.limiter()
	if err != nil {
		return nil, err
	}
	rc.Log = log
	l, err := redis.New(rc)
	if err != nil {
		return nil, fmt.Errorf("cannot use store.redis: %w", err)
	}
	return l, nil
}

// limits is where requests reserve.
func (a *app) limits() gateway.Limiter {
	if a.shared != nil {
		return a.shared
	}
	return a.limiter
}

// storeDetails says what is amiss with the shared store of limits.
func (a *app) storeDetails() []string {
	if a.shared == nil {
		return nil
	}
	switch a.shared.Stats().State {
	case redis.StateDown:
		return []string{"limit_store_down"}
	case redis.StateSlow:
		return []string{"limit_store_slow"}
	}
	return nil
}

func countIf(b bool) int {
	if b {
		return 1
	}
	return 0
}

// collectStore tells of the shared store, and adds its counters to those of this process.
func (c *stateCollector) collectStore(ch chan<- prometheus.Metric, own *ratelimit.Stats) {
	st := c.shared.Stats()
	own.Counters += st.Counters
	own.OpenLeases += st.OpenReservations
	for _, s := range []redis.State{redis.StateUp, redis.StateSlow, redis.StateDown} {
		gauge(ch, descStoreState, oneIf(st.State == s), string(s))
	}
	gauge(ch, descStorePeers, float64(st.Replicas))
	counter(ch, descStoreBy, float64(st.ByLease), "lease")
	counter(ch, descStoreBy, float64(st.ByStore), "store")
	counter(ch, descStoreBy, float64(st.ByMemory), "memory")
	counter(ch, descStoreLosses, float64(st.Losses))
	buckets := make(map[float64]uint64, len(st.Trips.Bounds))
	for i, b := range st.Trips.Bounds {
		buckets[b.Seconds()] = st.Trips.Counts[i]
	}
	ch <- prometheus.MustNewConstHistogram(descStoreTrip, st.Trips.Count, st.Trips.Sum.Seconds(), buckets)
}

// limitsPage is GET /debug/limits: where limits are counted, and how that goes.
type limitsPage struct {
	Store        string `json:"store"` // memory or redis
	Counters     int    `json:"counters"`
	Reservations int    `json:"open_reservations"`
	Reserved     uint64 `json:"reserved"`
	Refused      uint64 `json:"refused"`
	// What follows is of a shared store.
	Redis *redisPage `json:"redis,omitempty"`
}

// redisPage is the shared store of limits as this gateway sees it.
type redisPage struct {
	State     string     `json:"state"`
	Since     *time.Time `json:"not_up_since,omitempty"`
	Error     string     `json:"error,omitempty"`
	Replicas  int        `json:"replicas"`
	ByLease   uint64     `json:"decided_by_lease"`
	ByStore   uint64     `json:"decided_by_store"`
	ByMemory  uint64     `json:"refused_from_memory"`
	Untold    int        `json:"counters_to_report"`
	Losses    uint64     `json:"losses"`
	Overflows uint64     `json:"overflows"`
	Trips     uint64     `json:"round_trips"`
	MeanTrip  millis     `json:"mean_round_trip_ms"`
}

func (a *app) debugLimits() any {
	if a.shared == nil {
		st := a.limiter.Stats()
		return limitsPage{Store: "memory", Counters: st.Counters, Reservations: st.OpenLeases, Reserved: st.Reserved, Refused: st.Refused}
	}
	st := a.shared.Stats()
	p := redisPage{
		State: string(st.State), Error: st.Error, Replicas: st.Replicas, ByLease: st.ByLease, ByStore: st.ByStore, ByMemory: st.ByMemory,
		Untold: st.Untold, Losses: st.Losses, Overflows: st.Overflows, Trips: st.Trips.Count,
	}
	if !st.Since.IsZero() {
		p.Since = &st.Since
	}
	if st.Trips.Count > 0 {
		p.MeanTrip = inMillis(st.Trips.Sum / time.Duration(st.Trips.Count))
	}
	return limitsPage{
		Store: "redis", Counters: st.Counters, Reservations: st.OpenReservations, Reserved: st.Reserved, Refused: st.Refused, Redis: &p,
	}
}
