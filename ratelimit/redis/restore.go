package redis

import (
	"time"

	"github.com/sluicegate/sluice/ratelimit"
)

// Restore makes known what has certainly been used of calendar windows, by whatever
// keeps a record of that: where the store turns out to have counted less, since it
// has lost its data while nobody remembered, it is told. Each call replaces what the
// one before has made known. Amounts of one counter and period are added up.
func (l *Limiter) Restore(used []ratelimit.Used) {
	next := &recorded{amounts: make(map[recordKey]int64, len(used))}
	for _, u := range used {
		if u.Amount > 0 {
			k := recordKey{u.Counter, u.Period.Unix()}
			next.amounts[k] = add(next.amounts[k], u.Amount)
		}
	}
	l.recorded.Store(next)
}

// recorded does not change.
type recorded struct{ amounts map[recordKey]int64 }

type recordKey struct {
	id     ratelimit.CounterID
	period int64 // Unix seconds of its beginning
}

// periodStart is when a period of the script's numbering begins.
func (c *counter) periodStart() int64 {
	if c.kind == kindDay {
		return c.period * 24 * 60 * 60
	}
	return time.Date(1970, time.January+time.Month(c.period), 1, 0, 0, 0, 0, time.UTC).Unix()
}

// recall compares a calendar counter, as the store has just shown it, with the
// record. The counter's shard is locked.
func (l *Limiter) recall(c *counter) {
	e := l.recorded.Load()
	if e == nil || !c.kind.calendar() || e == c.recalled && c.recalledAt == c.period {
		return
	}
	c.recalled, c.recalledAt = e, c.period
	id := (&ratelimit.Claim{Counter: c.id.name, Unit: c.id.unit, Window: c.id.window}).ID()
	if used := e.amounts[recordKey{id, c.periodStart()}]; used > c.limit-c.avail {
		c.recordedUse, c.lost = used, true
		l.shardFor(c).queue(c)
		l.kick()
	}
}
