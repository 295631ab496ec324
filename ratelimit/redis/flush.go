package redis

import (
	"context"
	"math"
	"strconv"
	"time"

	"github.com/sluicegate/sluice/ratelimit"
)

const (
	never   = ratelimit.Never
	maxWait = 366 * 24 * time.Hour // longer ones are said to be that

	// reportsAtOnce and callsAtOnce bound what one run of the script does, during
	// which the store serves nobody else.
	reportsAtOnce = 64
	callsAtOnce   = 1024
	// heartbeat is how often the store hears of a replica that has nothing to tell.
	heartbeat = 250 * time.Millisecond
	// idleAfter is when a lease that nobody uses goes back.
	idleAfter = 3 * time.Second
)

// item is the report of one counter.
type item struct {
	counter                                        *counter
	batch                                          *batch
	kind                                           kind
	limit, window, asOf                            int64
	taken, spent, beyond, debt, back, more, force  int64
	seen                                           bool
	level, age                                     int64
	settles                                        []settlement
	args                                           []string // as they were told
	granted, avail, entry, rest, index, sent, turn int64
}

// chunk is one report under way. It is sent again, as it is, until the outcome is
// known.
type chunk struct {
	session *session
	seq     uint64
	items   []*item
	args    []string
	keys    []string
}

// flusher is what Run keeps between reports.
type flusher struct {
	pending *chunk
	next    int    // the shard to begin with
	scan    int    // the shard to look for idle counters in
	round   uint64 // numbers the flushes
	leaving bool
	epoch   string // of the last session
}

// flush reports until nothing is left to tell, or an error.
func (l *Limiter) flush(ctx context.Context) error {
	for first := true; ; first = false {
		s, f := l.session.Load(), &l.flusher
		if s == nil {
			return errSession
		}
		if f.pending == nil {
			f.pending = l.build(s, first)
		}
		if f.pending == nil {
			return nil
		}
		if err := l.send(ctx, f.pending); err != nil {
			return err
		}
		f.pending = nil
	}
}

// flushTimeout bounds one report.
func (l *Limiter) flushTimeout() time.Duration { return max(500*time.Millisecond, 5*l.cfg.Timeout) }

func (l *Limiter) send(ctx context.Context, c *chunk) error {
	ctx, cancel := context.WithTimeout(ctx, l.flushTimeout())
	defer cancel()
	sent, began := l.mono(), time.Now()
	text, err := c.session.eval(ctx, "flush", c.keys, c.args...)
	if err != nil {
		return err
	}
	w := words{text: text}
	if w.next() != "ok" {
		return answerError(text)
	}
	took := time.Since(began)
	near, turn := w.int(), w.int()
	for _, it := range c.items {
		it.granted, it.avail, it.entry, it.rest = w.int(), w.int(), w.int(), w.int()
		it.sent, it.turn = sent, turn
	}
	if err := w.end(); err != nil {
		return err
	}
	l.near.Store(near)
	l.heardAt.Store(sent)
	now := l.mono()
	l.health.reported(took, l.cfg.Timeout)
	for _, it := range c.items {
		l.applied(c.session, it, now)
	}
	return nil
}

// applied follows the store's answer to one report.
func (l *Limiter) applied(s *session, it *item, now int64) {
	c := it.counter
	sh := l.shardFor(c)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	if c.session != s.number {
		return
	}
	period := int64(0)
	if c.kind.calendar() {
		period = it.entry
		c.rollOver(period)
	}
	later := c.later
	c.flight, c.later = nil, sight{}
	if period < c.period { // told in a period that is over
		c.free += it.beyond
		return
	}
	c.free += it.granted
	if period > it.asOf {
		c.free += it.beyond
	} else {
		c.free += it.debt
	}
	c.see(sight{it.turn, it.avail, it.rest, it.sent}, now)
	c.see(later, now)
	l.recall(c)
	if it.batch != nil {
		it.batch.entry, it.batch.known = it.entry, true
	}
}

// build makes a report of what is to be told; nil if that is nothing. always has one
// made if the store has not heard of this replica for a while.
func (l *Limiter) build(s *session, always bool) *chunk {
	f, now := &l.flusher, l.mono()
	floor, over, unknown := s.closed(callsAtOnce)
	ch := &chunk{session: s}
	if always {
		l.scanIdle(now)
	}
	for _, c := range unknown {
		for _, k := range c.counters {
			l.addItem(ch, k, now)
		}
	}
	for range shards {
		if len(ch.items) >= reportsAtOnce {
			break
		}
		l.collect(ch, &l.shards[f.next%shards], now)
		f.next++
	}
	due := now-l.heardAt.Load() >= int64(heartbeat) || l.health.state() != StateUp
	if len(ch.items) == 0 && len(over) == 0 && len(unknown) == 0 && !(always && due) {
		return nil
	}
	s.flushSeq++
	ch.seq = s.flushSeq
	ch.encode(floor, over, unknown)
	return ch
}

// collect adds the reports of a shard's counters, as far as there is room.
func (l *Limiter) collect(ch *chunk, s *shard, now int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	keep := s.dirty[:0]
	for i, c := range s.dirty {
		if len(ch.items) >= reportsAtOnce {
			keep = append(keep, s.dirty[i:]...)
			break
		}
		seen := c.round == l.flusher.round // once a flush
		c.round = l.flusher.round
		if c.flight == nil && !seen {
			if it := c.report(now, l.cfg.LeaseShare, l.near.Load(), l.flusher.leaving); it != nil {
				ch.add(it)
			}
		}
		if seen || c.flight != nil || c.asks > 0 || c.waits > 0 || c.free != 0 || c.demand > 0 || c.takes > 0 {
			keep = append(keep, c) // it will have to tell more
		} else {
			c.queued = false
		}
	}
	clear(s.dirty[len(keep):])
	s.dirty = keep
}

// addItem adds the report of one counter, whether or not it has any.
func (l *Limiter) addItem(ch *chunk, c *counter, now int64) {
	s := l.shardFor(c)
	s.mu.Lock()
	defer s.mu.Unlock()
	if c.flight == nil {
		it := c.seal(now)
		ch.add(it)
	}
}

// add is called with the counter's shard locked, and writes the report down as it is.
func (ch *chunk) add(it *item) {
	it.index = int64(len(ch.items) + 1)
	ch.items = append(ch.items, it)
	ch.keys = append(ch.keys, it.counter.key)
	it.counter.flight = it
	it.args = it.encode(make([]string, 0, 16+4*len(it.settles)))
}

// report makes the counter's report, nil if there is nothing to tell. It settles how
// much should be leased from now on.
func (c *counter) report(now int64, share float64, near int64, leaving bool) *item {
	c.demand = max(c.demand-(c.demand+31)/32, c.takes)
	c.takes = 0
	most := c.share(share, near)
	target := min(c.enough(0), most)
	if leaving || now-c.usedAt >= int64(idleAfter) {
		c.demand, target = 0, 0
	}
	owes := c.known && c.avail < 0
	if owes {
		target = 0
	}
	c.shrink(now)
	back, more := int64(0), int64(0)
	switch {
	case (c.asks > 0 || c.waits > 0) && !leaving && !owes: // what is under way can't be given to those who ask
	case c.free > min(2*target, most):
		back = c.free - target
	case c.free >= 0 && c.free < target/2 && c.known:
		more = target - c.free
	}
	nothing := c.taken|c.spent|c.beyond|c.back|c.force|back|more == 0 && len(c.settles) == 0 && !c.lost && !c.remind
	if nothing {
		return nil
	}
	it := c.seal(now)
	if back > 0 {
		c.refusedUntil = 0
	}
	c.free -= back
	it.back += back
	it.more = more
	return it
}

// seal moves what is to be told into a report.
func (c *counter) seal(now int64) *item {
	c.shrink(now)
	it := &item{
		counter: c, kind: c.kind, limit: c.limit, window: c.window, asOf: c.period,
		taken: c.taken, spent: c.spent, beyond: c.beyond, debt: max(0, -c.free), back: c.back, force: c.force, settles: c.settles, batch: c.batch,
	}
	if c.lost {
		it.seen, it.level, it.age = true, c.avail, (now-c.seenAt)/int64(time.Millisecond)
		if c.kind.calendar() {
			it.level, it.age = c.limit-c.avail, c.recordedUse
		}
	}
	if c.batch != nil {
		c.batch.told = true
	}
	if c.back > 0 || len(c.settles) > 0 {
		c.refusedUntil = 0 // the store is about to have more
	}
	c.taken, c.spent, c.beyond, c.back, c.force = 0, 0, 0, 0, 0
	c.settles, c.batch, c.lost, c.remind, c.recordedUse = nil, nil, false, false, 0
	return it
}

// scanIdle looks at a few shards for counters that have not been told of for long,
// so that the store does not forget what is held of them, and for those that can be
// forgotten.
func (l *Limiter) scanIdle(now int64) {
	f := &l.flusher
	for range 4 {
		s := &l.shards[f.scan%shards]
		f.scan++
		s.mu.Lock()
		for i := 0; i < len(s.list); i++ {
			c := s.list[i]
			switch {
			case c.idle(now, idleAfter) && (!c.kind.calendar() || now >= c.periodEnd):
				s.forgetLocked(i)
				i--
			case c.open > 0 && now-c.seenAt >= int64(l.cfg.DeadAfter/3) && c.flight == nil:
				c.remind = true
				s.queue(c)
			}
		}
		s.mu.Unlock()
	}
}

// encode writes the report in the script's order.
func (ch *chunk) encode(floor uint64, over []uint64, unknown []call) {
	a := append(make([]string, 0, 8+len(over)+16*len(ch.items)), random(), strconv.FormatUint(ch.seq, 10), strconv.FormatUint(floor, 10))
	a = append(a, strconv.Itoa(len(over)+len(unknown)))
	for _, n := range over {
		a = append(a, strconv.FormatUint(n, 10))
	}
	for _, c := range unknown {
		a = append(a, strconv.FormatUint(c.seq, 10))
	}
	a = append(a, strconv.Itoa(len(unknown)))
	for _, c := range unknown {
		a = append(a, strconv.FormatUint(c.seq, 10), strconv.Itoa(len(c.counters)))
		for _, k := range c.counters {
			a = append(a, itoa(ch.position(k)))
		}
	}
	for _, it := range ch.items {
		a = append(a, it.args...)
	}
	ch.args = a
}

// position is where the script finds a counter's report.
func (ch *chunk) position(c *counter) int64 {
	for _, it := range ch.items {
		if it.counter == c {
			return it.index
		}
	}
	return math.MaxInt32 // void by now: there is nothing to undo
}

func (it *item) encode(a []string) []string {
	seen := int64(0)
	if it.seen {
		seen = 1
	}
	a = append(a, string(it.kind))
	for _, v := range [...]int64{
		it.limit, it.window, it.asOf, it.taken, it.spent, it.beyond, it.debt, it.back, it.more, it.force, seen, it.level, it.age, int64(len(it.settles)),
	} {
		a = append(a, itoa(v))
	}
	for i := range it.settles {
		s := &it.settles[i]
		entry := int64(0)
		switch {
		case s.batch == nil && it.kind.calendar():
			entry = it.asOf
		case s.batch == nil:
		case it.kind.calendar():
			entry = s.batch.period
		default:
			entry = s.batch.entry
		}
		a = append(a, itoa(entry), itoa(s.amount), itoa(s.back), itoa(s.given))
	}
	return a
}
