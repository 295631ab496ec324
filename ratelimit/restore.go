package ratelimit

import (
	"crypto/sha256"
	"encoding/binary"
	"sync/atomic"
	"time"
)

// CounterID stands for a counter of a calendar window where its name is too long,
// or holds too much, to be kept: it tells nothing of it.
type CounterID [16]byte

// ID is the identity of the claim's counter, whatever the period.
func (c *Claim) ID() CounterID { return idOf(c.Counter, c.Unit, c.Window) }

func idOf(name string, unit Unit, window Window) CounterID {
	var room [512]byte
	text := room[:0]
	for _, part := range [...]string{string(unit), window.String(), name} {
		text = binary.AppendUvarint(text, uint64(len(part)))
		text = append(text, part...)
	}
	sum := sha256.Sum256(text)
	return CounterID(sum[:16])
}

// Used is what was used of a calendar window's counter in one period.
type Used struct {
	Counter CounterID
	// Period is the beginning of the period, as of a Booking.
	Period time.Time
	Amount int64
}

// Restore makes known what others have used of calendar windows: this limiter's
// predecessors, and those that run beside it. It counts beside what is used here.
// Each call replaces all that the one before has made known, and holds from then
// on; nothing waits for it. Amounts of one counter and period are added up.
func (l *Limiter) Restore(used []Used) {
	next := &elsewhere{amounts: make(map[usedKey]int64, len(used))}
	for _, u := range used {
		if u.Amount > 0 {
			k := usedKey{u.Counter, u.Period.Unix()}
			next.amounts[k] = addSat(next.amounts[k], u.Amount)
		}
	}
	l.elsewhere.Store(next)
}

// elsewhere is what others have used. It does not change.
type elsewhere struct{ amounts map[usedKey]int64 }

type usedKey struct {
	id     CounterID
	period int64 // Unix seconds
}

// lookElsewhere brings the counter of a calendar window up to what is known of
// others. The shard's lock is held.
func (c *counter) lookElsewhere(known *atomic.Pointer[elsewhere]) {
	e := known.Load()
	if c.kind != kindCalendar || e == c.asOf {
		return
	}
	c.asOf, c.others = e, 0
	if len(e.amounts) > 0 {
		c.others = e.amounts[usedKey{idOf(c.key.name, c.key.unit, c.key.window), c.key.period}]
	}
}
