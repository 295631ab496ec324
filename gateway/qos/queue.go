package qos

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"time"
)

// Queue is the queue of requests that wait for a worker. Make one with [New].
type Queue struct {
	cfg     Config
	classes []class
	pools   []pool
	ranked  []ClassID // most urgent first
	entries []*Entry  // in the order in which they came
	seq     int64
	bytes   int64
}

type class struct {
	Class
	gone  bool
	stats ClassStats
}

type pool struct {
	name  string
	dirty bool
	tried time.Time // when it was last pumped
	look  time.Time
	bands []band // by ClassID
}

// band is a class in a pool.
type band struct {
	floor                  float64 // where a tenant begins
	credit                 float64
	largest                int64 // entry placed
	flows                  map[string]*flow
	placed, contended, got int64
}

// flow is a tenant in a band.
type flow struct {
	weight float64
	tag    float64   // work had, over weight
	at     time.Time // when that was
}

// wait is what a Queue keeps in an Entry.
type entryState struct {
	state   State
	seq     int64
	since   time.Time // of the wait
	late    bool
	charged bool
	pool    PoolID         // where it was charged
	resting [MaxPools]bool // by index in Pools: tried in vain
}

// New returns a queue for the pools of these names, whose ids are 0 and up. The
// classes' ids are 0 and up, too.
func New(cfg Config, pools []string) (*Queue, error) {
	q := &Queue{}
	if err := q.Reconfigure(cfg, pools); err != nil {
		return nil, err
	}
	return q, nil
}

// Reconfigure changes how the queue works. Classes and pools that are known
// keep their ids, new ones get the next. Entries of a class or for a pool that
// is gone stay: such a class keeps its numbers and is less urgent than all that
// are configured. If there is an error nothing has changed.
func (q *Queue) Reconfigure(cfg Config, pools []string) error {
	if err := cfg.Validate(); err != nil {
		return fmt.Errorf("cannot configure the queue: %w", err)
	}
	for i := range q.classes {
		q.classes[i].gone = true
	}
	q.cfg, q.ranked = cfg, q.ranked[:0]
	for _, c := range cfg.Classes {
		id, ok := q.Class(c.Name)
		if !ok {
			id = ClassID(len(q.classes))
			q.classes = append(q.classes, class{})
		}
		q.classes[id].Class, q.classes[id].gone = c, false
		q.ranked = append(q.ranked, id)
	}
	for id := range q.classes {
		if q.classes[id].gone {
			q.ranked = append(q.ranked, ClassID(id))
		}
	}
	for _, name := range pools {
		if _, ok := q.Pool(name); !ok {
			q.pools = append(q.pools, pool{name: name})
		}
	}
	for i := range q.pools {
		p := &q.pools[i]
		p.dirty = true
		for len(p.bands) < len(q.classes) {
			p.bands = append(p.bands, band{flows: make(map[string]*flow)})
		}
	}
	return nil
}

// Class returns the id of the class of this name, if there ever was one.
func (q *Queue) Class(name string) (ClassID, bool) {
	i := slices.IndexFunc(q.classes, func(c class) bool { return c.Name == name })
	return ClassID(i), i >= 0
}

// Pool returns the id of the pool of this name, if there ever was one.
func (q *Queue) Pool(name string) (PoolID, bool) {
	i := slices.IndexFunc(q.pools, func(p pool) bool { return p.name == name })
	return PoolID(i), i >= 0
}

// Settings returns the numbers of a class. An unknown id is a mistake of the caller.
func (q *Queue) Settings(id ClassID) Class { return q.classes[id].Class }

// Waiting returns how many entries wait.
func (q *Queue) Waiting() int { return len(q.entries) }

// Open returns the terms on which a request of a class may go to a worker of one
// of these pools past the queue, while nobody waits; see Passed.
func (q *Queue) Open(_ time.Time, class ClassID, _ []PoolID) Terms {
	return Terms{Pool: AnyPool, Bound: q.classes[class].Bound}
}

// Admit takes an arrival in. It appends to out what became of entries by that:
// of others that were taken out for it, and last of e itself, if that is known
// already: it was granted at once, or refused. Otherwise e waits.
func (q *Queue) Admit(now time.Time, e *Entry, p Placer, out []Outcome) []Outcome {
	c := &q.classes[e.Class]
	e.state = entryState{since: now}
	c.stats.Arrived++
	if reason := q.refuses(e); reason != ReasonNone {
		return q.refuse(now, e, reason, out)
	}
	q.insert(now, e)
	p.Begin()
	for i, id := range e.Pools {
		if next, _, _ := q.next(now, id, 0); next == e {
			wait, _ := p.Wait(now, id, q.widest(id))
			if _, bound, _ := q.next(now, id, wait); bound < wait {
				continue
			}
			if out, ok := q.try(now, id, e, p, out); ok {
				return out
			}
			e.state.resting[i] = false
			continue
		}
		q.pools[id].dirty = true
	}
	return out
}

// refuses says whether the queue has no room for e.
func (q *Queue) refuses(e *Entry) Reason {
	own, ownBytes, inClass := 1, e.Bytes, 1
	for _, o := range q.entries {
		if o.Tenant == e.Tenant {
			own, ownBytes = own+1, ownBytes+o.Bytes
		}
		if o.Class == e.Class {
			inClass++
		}
	}
	limit := q.classes[e.Class].MaxQueue
	if limit == 0 {
		limit = q.cfg.MaxEntries
	}
	others, othersBytes := len(q.entries)+1-own, q.bytes+e.Bytes-ownBytes
	switch share := q.cfg.MaxTenantShare; {
	case inClass > limit, len(q.entries) >= q.cfg.MaxEntries, q.bytes+e.Bytes > q.cfg.MaxBytes:
		return ReasonFull
	case float64(own) > max(1, share*float64(q.cfg.MaxEntries-others)),
		own > 1 && float64(ownBytes) > share*float64(q.cfg.MaxBytes-othersBytes):
		return ReasonTenantFull
	}
	return ReasonNone
}

func (q *Queue) insert(now time.Time, e *Entry) {
	for _, id := range e.Pools {
		b := &q.pools[id].bands[e.Class]
		f := b.flow(e.Tenant)
		if !q.backlogged(id, e.Class, e.Tenant) {
			f.tag, f.at = b.begin(now, f, q.cfg.Memory), now
		}
		f.weight = weight(e.Weight)
	}
	q.seq++
	e.state.state, e.state.seq = Waiting, q.seq
	q.entries = append(q.entries, e)
	q.bytes += e.Bytes
}

func weight(w float64) float64 {
	if w == 0 {
		return 1
	}
	return min(max(w, 0.01), 100)
}

func (b *band) flow(tenant string) *flow {
	f := b.flows[tenant]
	if f == nil {
		f = &flow{tag: b.floor, weight: 1}
		b.flows[tenant] = f
	}
	return f
}

// begin returns the tag of a flow that has had nothing waiting: what it is ahead
// by fades.
func (b *band) begin(now time.Time, f *flow, memory time.Duration) float64 {
	passed := max(0, now.Sub(f.at).Seconds()/memory.Seconds())
	return b.floor + max(0, f.tag-b.floor)*math.Exp(-passed)
}

// waiting returns the entries of a class (-1: all) and tenant ("": all) at a pool.
func (q *Queue) waiting(id PoolID, c ClassID, tenant string) []*Entry {
	var found []*Entry
	for _, e := range q.entries {
		if slices.Contains(e.Pools, id) && (c < 0 || e.Class == c) && (tenant == "" || e.Tenant == tenant) {
			found = append(found, e)
		}
	}
	return found
}

func (q *Queue) backlogged(id PoolID, c ClassID, tenant string) bool {
	return slices.ContainsFunc(q.entries, func(e *Entry) bool {
		return e.Class == c && e.Tenant == tenant && slices.Contains(e.Pools, id)
	})
}

func (e *Entry) rests(id PoolID) bool { return e.state.resting[slices.Index(e.Pools, id)] }

// next returns the most entitled entry of a pool that a worker with this wait is
// open for, the bound it is, and whether it is owed; or nil.
func (q *Queue) next(now time.Time, id PoolID, wait time.Duration) (*Entry, time.Duration, bool) {
	type head struct {
		entry *Entry
		bound time.Duration
		owed  float64
		rank  int
	}
	var heads []head
	for rank, c := range q.ranked {
		e := q.first(now, id, c)
		if e == nil {
			continue
		}
		h := head{entry: e, bound: q.classes[c].Bound, owed: -1, rank: rank}
		share, credit := q.classes[c].Share, q.pools[id].bands[c].credit
		if share > 0 && credit >= float64(e.Work) {
			h.owed, h.bound = credit/share, q.classes[q.ranked[0]].Bound
		}
		if h.bound >= wait {
			heads = append(heads, h)
		}
	}
	if len(heads) == 0 {
		return nil, 0, false
	}
	h := slices.MinFunc(heads, func(a, b head) int {
		return cmp.Or(cmp.Compare(b.owed, a.owed), cmp.Compare(a.rank, b.rank))
	})
	return h.entry, h.bound, h.owed >= 0
}

// widest is the largest bound under which any of those that wait at a pool would be
// placed.
func (q *Queue) widest(id PoolID) time.Duration {
	widest := time.Duration(0)
	for _, e := range q.waiting(id, -1, "") {
		_, bound, _ := q.terms(time.Time{}, id, e)
		widest = max(widest, bound)
	}
	return widest
}

// first returns the entry of a class that is first at a pool, or nil.
func (q *Queue) first(now time.Time, id PoolID, c ClassID) *Entry {
	type head struct {
		flow  *flow
		key   float64
		entry *Entry
	}
	b := &q.pools[id].bands[c]
	heads := make(map[string]*head)
	aside := make(map[string]int64)
	for _, e := range q.waiting(id, c, "") {
		e.state.late = e.state.late || e.Deadline.Add(-e.Own).Before(now)
		if e.rests(id) {
			aside[e.Tenant] += e.Work
			continue
		}
		if h := heads[e.Tenant]; h == nil || sooner(e, h.entry) {
			heads[e.Tenant] = &head{flow: b.flows[e.Tenant], entry: e}
		}
	}
	v := math.Inf(1)
	for tenant, h := range heads {
		h.key = h.flow.tag + float64(aside[tenant])/h.flow.weight
		v = min(v, h.key)
	}
	var first *Entry
	for _, h := range heads {
		if h.key <= v+float64(q.cfg.Slack)/h.flow.weight && (first == nil || sooner(h.entry, first)) {
			first = h.entry
		}
	}
	return first
}

// sooner says whether a comes before b, both of one class and level: by deadline, those
// that miss it in any case after all others and in the order in which they came.
func sooner(a, b *Entry) bool {
	if a.state.late != b.state.late {
		return b.state.late
	}
	if !a.state.late && !a.Deadline.Equal(b.Deadline) {
		return a.Deadline.Before(b.Deadline)
	}
	return a.state.seq < b.state.seq
}

// try offers an entry to a pool. If it isn't placed it rests there.
func (q *Queue) try(now time.Time, id PoolID, e *Entry, p Placer, out []Outcome) ([]Outcome, bool) {
	_, bound, _ := q.terms(now, id, e)
	placed, ok := p.Place(now, e, Terms{Pool: id, Bound: bound})
	if !ok {
		e.state.resting[slices.Index(e.Pools, id)] = true
		q.pools[id].sooner(placed.Look)
		return out, false
	}
	work := placed.Work
	if work == 0 {
		work = e.Work
	}
	if !e.state.charged {
		q.classes[e.Class].stats.Granted++
		q.charge(now, id, e.Class, e.Tenant, weight(e.Weight), work, true)
		e.state.charged, e.state.pool = true, id
	}
	q.remove(e, Granted)
	return append(out, Outcome{
		Entry: e, State: Granted, Pool: id, Work: work, Waited: max(0, now.Sub(e.state.since)),
	}), true
}

// terms returns on which bound e is offered to a pool.
func (q *Queue) terms(now time.Time, id PoolID, e *Entry) (*Entry, time.Duration, bool) {
	share, credit := q.classes[e.Class].Share, q.pools[id].bands[e.Class].credit
	if share > 0 && credit >= float64(e.Work) {
		return e, q.classes[q.ranked[0]].Bound, true
	}
	return e, q.classes[e.Class].Bound, false
}

func (p *pool) sooner(look time.Time) {
	if !look.IsZero() && (p.look.IsZero() || look.Before(p.look)) {
		p.look = look
	}
}

// charge notes work that went to a pool.
func (q *Queue) charge(now time.Time, id PoolID, c ClassID, tenant string, w float64, work int64, waited bool) {
	p := &q.pools[id]
	own := &p.bands[c]
	f := own.flow(tenant)
	if waited {
		own.floor = max(own.floor, f.tag-float64(q.cfg.Slack)/w)
	} else if !q.backlogged(id, c, tenant) {
		f.tag = own.begin(now, f, q.cfg.Memory)
	}
	f.tag, f.at, f.weight = max(f.tag, own.floor)+float64(work)/w, now, w
	own.placed += work
	own.largest = max(own.largest, work)
	for other := range p.bands {
		b, o := &p.bands[other], ClassID(other)
		if len(q.waiting(id, o, "")) == 0 {
			b.credit = 0
			continue
		}
		b.contended += work
		b.credit += q.classes[o].Share * float64(work)
		if o == c {
			b.credit -= float64(work)
			b.got += work
		}
		most := 2 * float64(max(b.largest, work))
		b.credit = min(max(b.credit, -most), most)
	}
}

func (q *Queue) remove(e *Entry, state State) {
	q.entries = slices.DeleteFunc(q.entries, func(o *Entry) bool { return o == e })
	q.bytes -= e.Bytes
	e.state.state = state
}

func (q *Queue) refuse(now time.Time, e *Entry, reason Reason, out []Outcome) []Outcome {
	e.state.state = Refused
	q.classes[e.Class].stats.Refused[reason]++
	return append(out, Outcome{Entry: e, State: Refused, Reason: reason, Waited: max(0, now.Sub(e.state.since))})
}

// Passed notes a request that went to a pool past the queue, on the terms of
// Open, and what it costs there (0: e.Work). e need not have been in the queue.
func (q *Queue) Passed(now time.Time, e *Entry, pool PoolID, work int64) {
	if work == 0 {
		work = e.Work
	}
	q.seq++
	e.state = entryState{state: Granted, seq: q.seq, pool: pool, charged: true}
	q.classes[e.Class].stats.Passed++
	q.charge(now, pool, e.Class, e.Tenant, weight(e.Weight), work, false)
}

// Leave takes e out, if it waits. It returns what e was until then: where that
// is Granted, the caller has to give back what the Placer committed.
func (q *Queue) Leave(_ time.Time, e *Entry) State {
	was := e.state.state
	if was == Waiting {
		q.remove(e, Left)
		if !e.state.charged {
			q.classes[e.Class].stats.Left++
		}
	}
	return was
}

// retryTime is the least time that a request has in which it is tried again.
const retryTime = 2 * time.Second

// Again lets e wait again, after a worker failed it to which it was granted, or
// to which it went past the queue (Passed). It keeps its place and is not
// charged again; Until is at least 2 s from now. It is not refused for want of
// room. A pump will place it.
func (q *Queue) Again(now time.Time, e *Entry) {
	seq := e.state.seq
	e.state = entryState{since: now, charged: e.state.charged, pool: e.state.pool}
	if least := now.Add(retryTime); e.Until.Before(least) {
		e.Until = least
	}
	q.insert(now, e)
	if seq != 0 {
		e.state.seq = seq
	}
	for _, id := range e.Pools {
		q.pools[id].dirty = true
	}
}

// Dirty says that room may have come at a pool.
func (q *Queue) Dirty(pool PoolID) { q.pools[pool].dirty = true }

// pause is the least time between two pumps of a pool with nothing new there.
const pause = time.Millisecond

// Next returns when to pump although nothing happens; false: there is no need.
func (q *Queue) Next() (time.Time, bool) {
	var next time.Time
	note := func(t time.Time) {
		if next.IsZero() || t.Before(next) {
			next = t
		}
	}
	for _, e := range q.entries {
		note(e.Until)
	}
	for i := range q.pools {
		p := &q.pools[i]
		if len(q.waiting(PoolID(i), -1, "")) == 0 {
			continue
		}
		if p.dirty {
			note(p.tried.Add(pause))
		}
		if !p.look.IsZero() {
			note(p.look)
		}
	}
	return next, !next.IsZero()
}

// Pump refuses whose time is over and gives out what room there is. It appends to out
// what became of entries.
func (q *Queue) Pump(now time.Time, p Placer, out []Outcome) []Outcome {
	for _, e := range slices.Clone(q.entries) {
		if !e.Until.After(now) {
			q.remove(e, Refused)
			out = q.refuse(now, e, ReasonWaited, out)
		}
	}
	p.Begin()
	for i := range q.pools {
		if due := q.pools[i].look; q.pools[i].dirty || !due.IsZero() && !due.After(now) {
			out = q.pump(now, PoolID(i), p, out)
		}
	}
	return out
}

func (q *Queue) pump(now time.Time, id PoolID, p Placer, out []Outcome) []Outcome {
	pool := &q.pools[id]
	pool.dirty, pool.look, pool.tried = false, time.Time{}, now
	var failed []*Entry
	more := false
	for {
		wait, look := p.Wait(now, id, q.widest(id))
		e, _, _ := q.next(now, id, wait)
		if e == nil {
			pool.sooner(look)
			break
		}
		if len(failed) == q.cfg.Tries {
			more = true
			break
		}
		var ok bool
		if out, ok = q.try(now, id, e, p, out); !ok {
			failed = append(failed, e)
		}
	}
	if more {
		// Those behind are tried next time, and the first again.
		pool.dirty = true
		failed = failed[:q.cfg.Tries/2]
	} else {
		failed = q.waiting(id, -1, "")
	}
	for _, e := range failed {
		e.state.resting[slices.Index(e.Pools, id)] = false
		b := &pool.bands[e.Class]
		f := b.flows[e.Tenant]
		f.tag = max(f.tag, b.floor-4*float64(q.cfg.Slack)/f.weight)
	}
	return out
}

// Settle corrects what e was charged by what it truly was: off is the true work
// less the charged. It has no effect on one that was never granted.
func (q *Queue) Settle(now time.Time, e *Entry, off int64) {
	if !e.state.charged {
		return
	}
	b := &q.pools[e.state.pool].bands[e.Class]
	f := b.flow(e.Tenant)
	if !q.backlogged(e.state.pool, e.Class, e.Tenant) {
		f.tag, f.at, f.weight = b.begin(now, f, q.cfg.Memory), now, weight(e.Weight)
	}
	f.tag += float64(off) / f.weight
}

// Stats fills dst, whose memory it uses again.
func (q *Queue) Stats(dst *Stats) {
	*dst = Stats{
		Waiting: len(q.entries), Bytes: q.bytes,
		Pools: dst.Pools[:0], Classes: dst.Classes[:0], Bands: dst.Bands[:0],
	}
	for i := range q.classes {
		c := &q.classes[i]
		s := c.stats
		s.ID, s.Name, s.Gone = ClassID(i), c.Name, c.gone
		for _, e := range q.entries {
			if e.Class == s.ID {
				s.Waiting++
				if s.Oldest.IsZero() || e.Arrived.Before(s.Oldest) {
					s.Oldest = e.Arrived
				}
			}
		}
		dst.Classes = append(dst.Classes, s)
	}
	for i := range q.pools {
		p := &q.pools[i]
		dst.Pools = append(dst.Pools, PoolStats{ID: PoolID(i), Name: p.name, Look: p.look})
		for c := range p.bands {
			b := &p.bands[c]
			s := BandStats{
				Pool: PoolID(i), Class: ClassID(c), Credit: b.credit,
				Placed: b.placed, Contended: b.contended, Got: b.got,
			}
			for _, e := range q.waiting(PoolID(i), ClassID(c), "") {
				s.Waiting++
				s.Work += e.Work
			}
			dst.Flows += len(b.flows)
			dst.Bands = append(dst.Bands, s)
		}
	}
}
