package gateway

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/sluicegate/sluice/policy"
	"github.com/sluicegate/sluice/ratelimit"
)

// noteUsed tells the decision how far its limits are used, and the log and the
// metrics of those that have come up to a threshold.
func (ex *exchange) noteUsed(now time.Time) {
	for _, r := range ex.reserved {
		if r.local {
			continue // a part of the limit, of which nothing follows for the whole
		}
		for i, index := range r.indices {
			l := &ex.limits[index]
			if len(l.WarnAt) == 0 {
				continue
			}
			v := r.lease.View(i)
			percent, crossed := ex.decision.NoteUsed(index, v.Limit-v.Remaining, v.Limit)
			if crossed && ex.g.crossings.first(crossing{l.Counter, percent}, now, now.Add(crossingLasts(l, v))) {
				ex.limitReached(l, percent)
			}
		}
	}
}

// limitReached says that a threshold was reached. The key is left out: it can hold
// what a client has written.
func (ex *exchange) limitReached(l *policy.Limit, percent int64) {
	ex.g.parts.Meter.LimitReached(l, percent)
	ex.g.log.LogAttrs(context.Background(), slog.LevelWarn, "a limit is used up to a threshold",
		slog.String("rule", l.Rule), slog.String("binding", l.Binding), slog.String("tenant", ex.principal.Tenant.ID),
		slog.Int64("percent", percent), slog.String("unit", string(l.Unit)), slog.Int64("limit", l.Limit), slog.String("decision_id", ex.decisionID))
}

// crossingLasts is how long a crossing counts as known: to the end of a calendar
// period, or a window of a bucket, which goes up and down.
func crossingLasts(l *policy.Limit, v ratelimit.View) time.Duration {
	if l.Window.Calendar != "" {
		return v.Reset
	}
	return l.Window.Duration
}

// crossing is one counter's coming up to one of its thresholds.
type crossing struct {
	counter string
	percent int64
}

// maxCrossings bounds the crossings that are known.
const maxCrossings = 4096

// crossings knows which crossings were told of, so that a counter whose estimates
// come and go around a threshold is not told of again and again.
type crossings struct {
	mu    sync.Mutex // protects known
	known map[crossing]time.Time
}

// first reports whether a crossing is news, and notes it until then. What there is
// no room for is told of again.
func (c *crossings) first(k crossing, now, until time.Time) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if old, ok := c.known[k]; ok && now.Before(old) {
		return false
	}
	if c.known == nil {
		c.known = make(map[crossing]time.Time)
	}
	if len(c.known) >= maxCrossings {
		for k, until := range c.known {
			if !now.Before(until) {
				delete(c.known, k)
			}
		}
	}
	if len(c.known) < maxCrossings {
		c.known[k] = until
	}
	return true
}

// storeWatch remembers what was last said of the limits' store.
type storeWatch struct {
	mu   sync.Mutex // protects last
	last map[ratelimit.StoreState]time.Time
}

// storeQuiet is how long the same state of the store is not logged again.
const storeQuiet = time.Minute

// news reports whether a state is to be logged.
func (w *storeWatch) news(state ratelimit.StoreState, now time.Time) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if last, ok := w.last[state]; ok && now.Sub(last) < storeQuiet {
		return false
	}
	if w.last == nil {
		w.last = make(map[ratelimit.StoreState]time.Time)
	}
	w.last[state] = now
	return true
}

// storeFailed counts a limit whose counter could not be had, and says so now and
// then.
func (g *Gateway) storeFailed(state ratelimit.StoreState, how string) {
	g.parts.Meter.StoreFailed(state, how)
	if g.store.news(state, time.Now()) {
		g.log.LogAttrs(context.Background(), slog.LevelWarn, "counters of limits can't be had; each limit's onStoreError decides",
			slog.String("state", string(state)), slog.String("decision", how))
	}
}
