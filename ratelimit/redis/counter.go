package redis

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"hash/maphash"
	"math"
	"math/bits"
	"sync"
	"time"

	"github.com/sluicegate/sluice/ratelimit"
)

// kind is what a counter is, in the script's words.
type kind string

const (
	kindBucket kind = "bucket"
	kindDay    kind = "day"
	kindMonth  kind = "month"
	kindSlots  kind = "slots"
)

func (k kind) calendar() bool { return k == kindDay || k == kindMonth }

// most bounds limits, amounts and their sums: the script's numbers are exact
// below 2^53. A larger limit is one that nobody reaches.
const most = int64(1) << 50

// identity is a counter's, as claims name it.
type identity struct {
	name   string
	unit   ratelimit.Unit
	window ratelimit.Window
}

// batch is what the reservations of a counter between two reports have in common:
// the entry of the store that holds what they may give back.
type batch struct {
	session uint64
	period  int64
	told    bool  // its reservations are reported, or the report is under way
	entry   int64 // once the report is answered
	known   bool  // entry is
}

// settlement is the end of reservations of one batch, or without one of what was
// charged at once. given of what comes back has been put to the lease already.
type settlement struct {
	batch               *batch // nil for none
	amount, back, given int64
	whole               int64 // what would come back if nothing had been refilled
	at                  int64 // when the oldest of it was taken
}

// counter is this replica's part of one counter. Its shard's mutex protects it.
//
// free is what may be used here: leased at the store, less what was used since the
// last report. It is below zero while the replica owes the store more than it has
// leased.
type counter struct {
	id     identity
	key    string
	kind   kind
	limit  int64
	window int64 // milliseconds, buckets only

	session uint64
	free    int64
	inUse   int64 // slots
	open    int   // holds
	asks    int   // requests that wait for the store
	waits   int   // requests that wait for a report, to ask again

	// What the next report tells: amounts of open and of ended reservations taken
	// from the lease, what is beyond reservations, leased amounts to be given back,
	// slots in use that the store must be told of whether or not there is room.
	taken, spent, beyond, back, force int64
	settles                           []settlement
	batch                             *batch // of reservations not reported yet
	flight                            *item  // the report under way

	// The counter as the store has last shown it.
	known     bool
	turn      int64 // of the run of the script that has shown it
	later     sight // perhaps newer, see glimpse
	avail     int64
	seenAt    int64 // nanoseconds of the process
	period    int64
	periodEnd int64 // nanoseconds of the process
	lost      bool  // the store is to be told of it, since it has lost its own
	remind    bool  // the store is to be told that it is in use

	// Of a calendar window: the record it was last compared with, in which period,
	// and what that had if the store had less.
	recalled    *recorded
	recalledAt  int64
	recordedUse int64

	takes  int64 // since the last report
	demand int64 // in a while between reports, decaying
	usedAt int64
	round  uint64 // of the flush that has looked at it last
	asking bool   // a request asks for more than it needs

	// A request for refusedNeed was refused; until refusedUntil it would be again.
	refusedUntil, refusedNeed int64
	refusedWait               time.Duration

	queued bool // in shard.dirty
}

// shards is how many parts the counters are spread over: bits of a set.
const shards = 64

type shard struct {
	mu       sync.Mutex // protects everything below, and the counters in it
	counters map[identity]*counter
	list     []*counter
	cursor   int
	dirty    []*counter // to be reported
	// overflows counts claims refused because no more counters may be held.
	overflows uint64
}

// storeKey names a counter in the store: its kind, and a digest of its identity, so
// that nothing a client chose stands in a key.
func storeKey(prefix string, id identity) string {
	h := sha256.New()
	for _, s := range []string{id.name, string(id.unit), id.window.Calendar} {
		h.Write(binary.LittleEndian.AppendUint64(nil, uint64(len(s))))
		h.Write([]byte(s))
	}
	h.Write(binary.LittleEndian.AppendUint64(nil, uint64(id.window.Duration)))
	return "{" + prefix + "}:c:" + string(kindOf(id)) + ":" + hex.EncodeToString(h.Sum(nil)[:16])
}

func kindOf(id identity) kind {
	switch {
	case id.unit == ratelimit.UnitConcurrency:
		return kindSlots
	case id.window.Calendar == ratelimit.CalendarDay:
		return kindDay
	case id.window.Calendar == ratelimit.CalendarMonth:
		return kindMonth
	}
	return kindBucket
}

// check finds claims that can only come from a bug of the caller.
func check(c *ratelimit.Claim) error {
	switch {
	case c.Counter == "":
		return fmt.Errorf("a claim has no counter")
	case c.Limit < 0:
		return fmt.Errorf("claim on a %s limit has the negative limit %d", c.Unit, c.Limit)
	case c.Amount < 0:
		return fmt.Errorf("claim on a %s limit has the negative amount %d", c.Unit, c.Amount)
	}
	w := c.Window
	switch {
	case c.Unit == ratelimit.UnitConcurrency && w == (ratelimit.Window{}):
		return nil
	case c.Unit == ratelimit.UnitConcurrency:
		return fmt.Errorf("a concurrency claim has the window %s", w)
	case w.Calendar == "" && w.Duration > 0 && w.Duration <= maxWindow:
		return nil
	case w.Duration == 0 && (w.Calendar == ratelimit.CalendarDay || w.Calendar == ratelimit.CalendarMonth):
		return nil
	}
	return fmt.Errorf("claim on a %s limit has the unusable window {%v %q}", c.Unit, w.Duration, w.Calendar)
}

// maxWindow keeps the script's products below 2^53: ms in a day, squared, are 2^52.7.
const maxWindow = 24 * time.Hour

func (l *Limiter) shardOf(name string) int {
	return int(maphash.String(l.seed, name) % shards)
}

// lockFor locks the shards of all claims in ascending order, each once.
func (l *Limiter) lockFor(claims []ratelimit.Claim) uint64 {
	var set uint64
	for i := range claims {
		set |= 1 << l.shardOf(claims[i].Counter)
	}
	l.lock(set)
	return set
}

func (l *Limiter) lock(set uint64) {
	for rest := set; rest != 0; rest &= rest - 1 {
		l.shards[bits.TrailingZeros64(rest)].mu.Lock()
	}
}

func (l *Limiter) unlock(set uint64) {
	for rest := set; rest != 0; rest &= rest - 1 {
		l.shards[bits.TrailingZeros64(rest)].mu.Unlock()
	}
}

// getLocked returns the counter of a claim, under its limit; nil if there is none
// and no room for one.
func (l *Limiter) getLocked(c *ratelimit.Claim, now int64) *counter {
	s := &l.shards[l.shardOf(c.Counter)]
	id := identity{c.Counter, c.Unit, c.Window}
	limit := min(c.Limit, most)
	k := s.counters[id]
	if k == nil {
		if len(s.list) >= l.room && !s.makeRoomLocked(now) {
			s.overflows++
			return nil
		}
		k = &counter{id: id, kind: kindOf(id), key: storeKey(l.cfg.Prefix, id), limit: limit, usedAt: now, session: l.sessions.Load()}
		if k.kind == kindBucket {
			k.window = int64((id.window.Duration + time.Millisecond - 1) / time.Millisecond)
		}
		s.counters[id] = k
		s.list = append(s.list, k)
	}
	if limit != k.limit {
		k.setLimit(limit)
		s.queue(k)
	}
	return k
}

// setLimit puts another limit in force. A lower one cuts what is leased.
func (c *counter) setLimit(limit int64) {
	most := limit
	if c.kind != kindBucket && c.known {
		c.avail += limit - c.limit
		most = max(0, c.avail+c.free+c.back)
	}
	c.limit = limit
	c.refusedUntil = 0
	if c.free > most {
		c.back += c.free - most
		c.free = most
	}
}

// queue has the counter reported.
func (s *shard) queue(c *counter) {
	if !c.queued {
		c.queued = true
		s.dirty = append(s.dirty, c)
	}
}

// makeRoomLocked forgets a counter that nothing is known of that the store does not
// know too. It looks at a few.
func (s *shard) makeRoomLocked(now int64) bool {
	for range min(16, len(s.list)) {
		if s.cursor >= len(s.list) {
			s.cursor = 0
		}
		if s.list[s.cursor].idle(now, 0) {
			s.forgetLocked(s.cursor)
			return true
		}
		s.cursor++
	}
	return false
}

func (s *shard) forgetLocked(i int) {
	c := s.list[i]
	last := len(s.list) - 1
	s.list[i] = s.list[last]
	s.list[last] = nil
	s.list = s.list[:last]
	delete(s.counters, c.id)
}

// idle reports whether the counter can be forgotten: nothing is held of it, nothing
// leased and nothing to be told, for so long.
func (c *counter) idle(now int64, linger time.Duration) bool {
	return c.open == 0 && c.asks == 0 && c.waits == 0 && !c.queued && c.flight == nil && c.free == 0 && !c.lost &&
		c.back == 0 && c.force == 0 && now-c.usedAt >= int64(linger)
}

// rollOver begins another period of a calendar counter: what was leased and used in
// the old one is over with it, but what is owed is not.
func (c *counter) rollOver(period int64) {
	if period <= c.period {
		return
	}
	c.period = period
	c.taken, c.spent, c.back = 0, 0, 0
	c.settles, c.batch = nil, nil
	c.free = -c.beyond
	if c.flight != nil {
		c.free -= c.flight.beyond
	}
}

// void follows the loss of a session: what was leased is no longer ours. Where the
// store has forgotten all (lost), the counter as it was last seen had our leases
// taken off, so that only what is beyond them is owed; else the store gave the leases
// back, and all that it was not told of is owed.
func (c *counter) void(session uint64, lost bool) {
	if c.session == session {
		return
	}
	c.session = session
	if f := c.flight; f != nil {
		c.beyond = add(c.beyond, f.beyond)
		if !lost {
			c.beyond = add(c.beyond, f.taken+f.spent)
		}
		c.flight = nil
	}
	if !lost {
		c.beyond = add(c.beyond, c.taken+c.spent)
	}
	c.taken, c.spent, c.back = 0, 0, 0
	c.settles, c.batch = nil, nil
	c.free, c.force = -c.beyond, c.inUse
	c.refusedUntil, c.turn, c.later = 0, 0, sight{}
	c.recalled = nil
	c.lost = lost && c.known && c.kind != kindSlots
}

// sight is a counter as the store has shown it in one answer.
type sight struct {
	turn        int64 // of the run of the script
	avail, rest int64
	sent        int64 // when the question was
}

// see notes what the store has shown. An answer that was overtaken by another shows
// nothing new.
func (c *counter) see(s sight, now int64) {
	if s.turn <= c.turn {
		return
	}
	c.turn, c.known, c.avail, c.seenAt = s.turn, true, s.avail, now
	if s.avail >= c.refusedNeed {
		c.refusedUntil = 0
	}
	if c.kind.calendar() {
		c.periodEnd = s.sent + s.rest*int64(time.Millisecond)
	}
}

// glimpse notes what the store has shown to a request that was granted so much. While
// a report is under way it can't be told whether that was before or after: the sight
// is kept until it can.
func (c *counter) glimpse(s sight, granted, now int64) {
	if c.flight == nil || !c.known {
		c.see(s, now)
		return
	}
	c.avail -= granted
	if s.turn > c.later.turn {
		c.later = s
	}
}

// shrink takes back of the lease what refunds have put there that the store does not
// know of yet, and nobody has used, as the bucket refills: the store counts the
// reservation as open, and its refill takes from what may come back.
func (c *counter) shrink(now int64) {
	if c.kind != kindBucket || c.free <= 0 {
		return
	}
	for i := range c.settles {
		s := &c.settles[i]
		n := c.excess(s, now)
		s.given -= n
		if s.batch == nil {
			s.back -= n
		}
		c.free -= n
	}
	if c.flight == nil {
		return
	}
	for i := range c.flight.settles { // the store is being told of it as it is
		s := &c.flight.settles[i]
		n := c.excess(s, now)
		s.given -= n
		c.free -= n
		c.back += n
	}
}

// excess is how much of a refund in the lease is more than what would come back by
// now, as far as it is unused.
func (c *counter) excess(s *settlement, now int64) int64 {
	return max(0, min(s.given-max(0, s.whole-c.refilled(now-s.at)), c.free))
}

// usable is what may be taken now. A lease of a calendar window ends with its
// period, by a clock that began before the store's answer was made.
func (c *counter) usable(now int64, trusted bool) int64 {
	if c.free > 0 && (!trusted || c.kind.calendar() && now >= c.periodEnd) {
		return 0
	}
	return c.free
}

// spendable is how much of the lease may be used: what refunds have put there is not
// for those who come next while the counter as a whole owes.
func (c *counter) spendable(usable int64) int64 {
	if usable > 0 && c.known && c.avail < 0 {
		return max(0, usable+c.avail)
	}
	return usable
}

// take makes a hold of n of what is free.
func (c *counter) take(n, now int64) hold {
	c.open++
	c.usedAt = now
	c.takes += n
	c.free -= n
	h := hold{counter: c, amount: n, limit: c.limit, at: now}
	if c.kind == kindSlots {
		c.inUse += n
		return h
	}
	if c.batch == nil {
		c.batch = &batch{session: c.session, period: c.period}
	}
	h.batch = c.batch
	c.taken += n
	return h
}

// refilled is how much a bucket has refilled in a time, rounded down.
func (c *counter) refilled(elapsed int64) int64 {
	if c.kind != kindBucket || elapsed <= 0 {
		return 0
	}
	hi, lo := bits.Mul64(uint64(c.limit), uint64(elapsed))
	window := uint64(c.window) * uint64(time.Millisecond)
	if hi >= window {
		return most
	}
	q, _ := bits.Div64(hi, lo, window)
	return int64(min(q, uint64(most)))
}

// left is what the counter has to give as far as is known here, below zero while it
// owes.
func (c *counter) left(now int64) int64 {
	if !c.known {
		return c.limit
	}
	n := c.avail
	if c.kind.calendar() && now >= c.periodEnd {
		return c.limit + min(c.free, 0)
	}
	if c.kind == kindBucket {
		n = min(c.limit, n+c.refilled(now-c.seenAt)) + returning(c.settles)
	}
	if c.flight != nil {
		n += c.flight.back + returning(c.flight.settles)
	}
	return min(c.limit, n+c.free+c.back)
}

// returning is what settlements give back to the store.
func returning(settles []settlement) (n int64) {
	for i := range settles {
		n += settles[i].back - settles[i].given
	}
	return n
}

func (c *counter) view(now, limit int64) ratelimit.View {
	v := ratelimit.View{Limit: limit, Remaining: max(0, min(limit, c.left(now)))}
	switch {
	case c.kind == kindBucket && c.limit > 0:
		v.Reset = c.refillTime(c.limit - c.left(now))
	case c.kind.calendar():
		v.Reset = time.Duration(max(0, c.periodEnd-now))
	}
	return v
}

// refillTime is how long the bucket takes to refill n, rounded up.
func (c *counter) refillTime(n int64) time.Duration {
	if n <= 0 {
		return 0
	}
	t := math.Ceil(float64(n) * float64(c.window) / float64(c.limit) * float64(time.Millisecond))
	if t >= math.MaxInt64 {
		return ratelimit.Never - 1
	}
	return time.Duration(t)
}

func add(a, b int64) int64 { return max(-most, min(most, a+b)) }
