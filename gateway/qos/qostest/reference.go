package qostest

import (
	"cmp"
	"maps"
	"math"
	"slices"
	"time"

	"github.com/sluicegate/sluice/gateway/qos"
)

// Reference is a queue that does what [qos.Queue] does, but for forecasts and changes of
// its configuration, by looking at all entries each time. It has no heaps, nothing that is
// kept up to date, and forgets nothing.
type Reference struct {
	cfg   qos.Config
	items []*item // that wait
	known map[*qos.Entry]*item
	bands []map[qos.ClassID]*band
	pools []*pool
	seq   int64
	rests int64
	looks int64
}

type item struct {
	*qos.Entry
	state   qos.State
	charged bool
	pool    qos.PoolID
	seq     int64
	since   time.Time
	late    bool
	// promised says that its tenant was overloaded at one of its pools when it came: where
	// it misses its deadline it has a second one.
	promised bool
	second   bool
	rests    map[qos.PoolID]int64 // since which number; absent: it does not
	aside    map[qos.PoolID]int64 // what it counts for while it rests
	held     int64                // the look in which it held for a worker, at the pool best
	best     qos.PoolID
}

type pool struct {
	dirty       bool
	behind      bool
	pace        time.Duration
	tried, look time.Time
	step        int64 // the last work that was not owed, or a larger one since
}

type band struct {
	floor, credit float64
	flows         map[string]*flow
	arrivals      []arrival
}

type arrival struct {
	at             time.Time
	requests, room float64
}

type flow struct {
	weight, tag float64
	at          time.Time
	since       int64
	strained    time.Time // an entry waited in vain last
}

// NewReference returns a reference for as many pools.
func NewReference(cfg qos.Config, pools int) *Reference {
	q := &Reference{cfg: cfg, known: make(map[*qos.Entry]*item)}
	for range pools {
		q.pools = append(q.pools, &pool{dirty: true})
		bands := make(map[qos.ClassID]*band)
		for c := range cfg.Classes {
			bands[qos.ClassID(c)] = &band{flows: make(map[string]*flow)}
		}
		q.bands = append(q.bands, bands)
	}
	return q
}

// Waiting counts what waits.
func (q *Reference) Waiting() int { return len(q.items) }

// in returns what waits at a pool of a class (-1: any).
func (q *Reference) in(p qos.PoolID, c qos.ClassID) []*item {
	var in []*item
	for _, i := range q.items {
		if slices.Contains(i.Pools, p) && (c < 0 || i.Class == c) {
			in = append(in, i)
		}
	}
	return in
}

// of returns what waits of a tenant and is not tried again.
func (q *Reference) of(p qos.PoolID, c qos.ClassID, tenant string) []*item {
	return slices.DeleteFunc(q.in(p, c), func(i *item) bool { return i.charged || i.Tenant != tenant })
}

// Admit takes an arrival in.
func (q *Reference) Admit(now time.Time, e *qos.Entry, p qos.Placer, out []qos.Outcome) []qos.Outcome {
	i := &item{Entry: e, since: now, rests: make(map[qos.PoolID]int64), aside: make(map[qos.PoolID]int64)}
	q.known[e] = i
	own, others, _ := q.holds(e)
	for c := int(e.Class) + 1; c < len(q.cfg.Classes); c++ {
		exposed, _ := q.exposed(qos.ClassID(c))
		for _, v := range exposed {
			if v.Tenant != e.Tenant {
				others = holds{others.entries - 1, others.bytes - v.Bytes}
			}
		}
	}
	if share := q.cfg.MaxTenantShare; own.entries > 0 &&
		(float64(own.entries+1) > share*float64(q.cfg.MaxEntries-others.entries) ||
			float64(own.bytes+e.Bytes) > share*float64(q.cfg.MaxBytes-others.bytes)) {
		i.state = qos.Refused
		return append(out, qos.Outcome{Entry: e, State: qos.Refused, Reason: qos.ReasonTenantFull})
	}
	if q.full(e) {
		victims := q.victims(e)
		if victims == nil {
			i.state = qos.Refused
			return append(out, qos.Outcome{Entry: e, State: qos.Refused, Reason: qos.ReasonFull})
		}
		for _, v := range victims {
			q.remove(now, v, qos.Refused, v.charged, qos.AnyPool)
			out = append(out, qos.Outcome{
				Entry: v.Entry, State: qos.Refused, Reason: qos.ReasonPreempted, Waited: max(0, now.Sub(v.since)),
			})
		}
	}
	for _, id := range e.Pools {
		b := q.bands[id][e.Class]
		part := 1 / float64(len(e.Pools))
		b.arrivals = append(b.arrivals, arrival{now, part, part * float64(e.Room)})
	}
	q.seq++
	i.seq = q.seq
	for _, id := range e.Pools {
		f := q.bands[id][e.Class].flows[e.Tenant]
		wait := q.cfg.Classes[e.Class].MaxWait
		i.promised = i.promised || f != nil && !f.strained.IsZero() && now.Sub(f.strained) < wait
	}
	q.insert(now, i)
	q.looks++
	p.Begin()
	best := qos.AnyPool
	for _, id := range e.Pools {
		wait, _ := p.Wait(now, id, qos.Unbounded)
		next, bound, owed := q.next(now, id, wait)
		if next == nil {
			q.watch(now, id, p)
			continue
		}
		if next != i {
			q.Dirty(id)
			continue
		}
		if best != qos.AnyPool && best != id {
			continue
		}
		placed, ok := q.offer(now, id, i, q.terms(now, id, i, bound, owed), p)
		if ok {
			out = append(out, q.grant(now, id, i, owed, placed))
			q.pools[id].dirty = true
			return out
		}
		best = placed.Pool
		if len(q.in(id, -1)) > 1 {
			q.Dirty(id)
		}
	}
	return out
}

func (q *Reference) terms(now time.Time, id qos.PoolID, i *item, bound time.Duration, owed bool) qos.Terms {
	terms := qos.Terms{Pool: id, Bound: bound}
	if owed {
		return terms
	}
	for c := qos.ClassID(0); c < i.Class; c++ {
		var requests, room float64
		for _, a := range q.bands[id][c].arrivals {
			left := math.Exp(-now.Sub(a.at).Seconds() / 10)
			requests += a.requests * left
			room += a.room * left
		}
		target := q.cfg.Classes[c].Target.Seconds() / 10
		terms.Keep.Requests += requests * target
		terms.Keep.Tokens += room * target
	}
	return terms
}

func (q *Reference) offer(now time.Time, id qos.PoolID, i *item, t qos.Terms, p qos.Placer) (qos.Placement, bool) {
	if i.held == q.looks && i.best != id {
		return qos.Placement{Pool: i.best}, false
	}
	placed, ok := p.Place(now, i.Entry, t)
	if !ok && placed.Pool == id {
		i.held, i.best = q.looks, id
	}
	if !ok {
		q.pools[id].sooner(placed.Look)
		if t.Keep != (qos.Keep{}) {
			q.pools[id].sooner(now.Add(50 * time.Millisecond))
		}
	}
	return placed, ok
}

func fade(passed, life time.Duration) float64 {
	if n := passed.Seconds() / life.Seconds(); n <= 4 {
		return math.Exp(-max(0, n))
	}
	return 0
}

func (q *Reference) insert(now time.Time, i *item) {
	for _, id := range i.Pools {
		if !i.charged && len(q.of(id, i.Class, i.Tenant)) == 0 {
			f := q.idle(now, id, i.Entry)
			q.seq++
			f.since = q.seq
		}
	}
	i.state = qos.Waiting
	q.items = append(q.items, i)
}

// idle returns the flow of an entry with nothing waiting, as it is now.
func (q *Reference) idle(now time.Time, id qos.PoolID, e *qos.Entry) *flow {
	b := q.bands[id][e.Class]
	f := b.flows[e.Tenant]
	if f == nil {
		f = &flow{at: now}
		b.flows[e.Tenant] = f
	}
	f.tag = b.floor + max(0, f.tag-b.floor)*fade(now.Sub(f.at), q.cfg.Memory)
	f.at, f.weight = now, weight(e)
	return f
}

func weight(e *qos.Entry) float64 {
	if e.Weight <= 0 {
		return 1
	}
	return min(max(e.Weight, 0.01), 100)
}

func (i *item) cost() float64 {
	if i.charged {
		return 0
	}
	return float64(i.Work)
}

// next returns what is first at a pool, its bound and whether it is owed.
func (q *Reference) next(now time.Time, id qos.PoolID, wait time.Duration) (*item, time.Duration, bool) {
	if wait == qos.Unbounded {
		return nil, 0, false
	}
	var owed, first *item
	most := -1.0
	for c, class := range q.cfg.Classes {
		i := q.first(now, id, qos.ClassID(c))
		if i == nil {
			continue
		}
		credit := q.bands[id][qos.ClassID(c)].credit
		if class.Share > 0 && credit >= i.cost() && credit/class.Share > most {
			owed, most = i, credit/class.Share
		}
		if first == nil && class.Bound >= wait {
			first = i
		}
	}
	if largest := q.cfg.Classes[0].Bound; owed != nil && largest >= wait {
		return owed, largest, true
	}
	if first == nil {
		return nil, 0, false
	}
	return first, q.cfg.Classes[first.Class].Bound, false
}

// first returns what is first of a class at a pool.
func (q *Reference) first(now time.Time, id qos.PoolID, c qos.ClassID) *item {
	tenants := make(map[string][]*item) // what does not rest
	aside := make(map[string]int64)
	var again []*item
	for _, i := range q.in(id, c) {
		switch _, rests := i.rests[id]; {
		case rests && !i.charged:
			aside[i.Tenant] += i.aside[id]
		case rests:
		case i.charged:
			again = append(again, i)
		default:
			misses := i.Deadline.Add(-i.Own).Before(now)
			i.late = i.late || misses && !i.promised
			i.second = i.second || misses && i.promised
			tenants[i.Tenant] = append(tenants[i.Tenant], i)
		}
	}
	if len(again) > 0 {
		return slices.MinFunc(again, func(a, b *item) int { return cmp.Compare(a.seq, b.seq) })
	}
	if len(tenants) == 0 {
		return nil
	}
	flows := q.bands[id][c].flows
	key := func(tenant string) float64 {
		return flows[tenant].tag + float64(aside[tenant])/flows[tenant].weight
	}
	order := slices.SortedFunc(maps.Keys(tenants), func(a, b string) int {
		return cmp.Or(cmp.Compare(key(a), key(b)), cmp.Compare(flows[a].since, flows[b].since))
	})
	var level []*item
	for _, tenant := range order[:min(16, len(order))] {
		if key(tenant) <= key(order[0])+float64(q.cfg.Slack)/flows[tenant].weight {
			level = append(level, tenants[tenant]...)
		}
	}
	return slices.MinFunc(level, sooner)
}

// sooner orders what is level: by deadline, and after that what misses it in any
// case, as it came.
func sooner(a, b *item) int {
	switch {
	case a.late && b.late:
		return cmp.Compare(a.seq, b.seq)
	case a.late:
		return 1
	case b.late:
		return -1
	}
	return cmp.Or(a.due().Compare(b.due()), cmp.Compare(a.seq, b.seq))
}

// due is the deadline that counts.
func (i *item) due() time.Time {
	if i.second {
		return i.Deadline.Add(i.Deadline.Sub(i.Arrived))
	}
	return i.Deadline
}

func (q *Reference) grant(now time.Time, id qos.PoolID, i *item, owed bool, placed qos.Placement) qos.Outcome {
	o := qos.Outcome{Entry: i.Entry, State: qos.Granted, Pool: id, Waited: max(0, now.Sub(i.since))}
	if !i.charged {
		o.Work = placed.Work
		if o.Work == 0 {
			o.Work = i.Work
		}
		b := q.bands[id][i.Class]
		f := b.flows[i.Tenant]
		b.floor = max(b.floor, f.tag-float64(q.cfg.Slack)/f.weight)
		if !owed {
			q.pools[id].step = 0
		}
		q.charge(id, i.Class, f, o.Work)
		i.charged, i.pool = true, id
		q.remove(now, i, qos.Granted, false, id)
		q.pools[id].dirty = q.pools[id].dirty || q.shares(int(id))
		return o
	}
	q.remove(now, i, qos.Granted, true, id)
	q.pools[id].dirty = q.pools[id].dirty || q.shares(int(id))
	return o
}

func (q *Reference) charge(id qos.PoolID, c qos.ClassID, f *flow, work int64) {
	f.tag += float64(work) / f.weight
	q.pools[id].step = max(q.pools[id].step, work)
	for o, b := range q.bands[id] {
		if len(q.in(id, o)) == 0 {
			continue
		}
		b.credit += q.cfg.Classes[o].Share * float64(work)
		if o == c {
			b.credit -= float64(work)
		}
		q.cut(id, o)
	}
}

// cut bounds the credit of a class at a pool: by twice the power of two above the largest
// entry that waits, and by what was earned since the last placement that was not owed.
func (q *Reference) cut(id qos.PoolID, c qos.ClassID) {
	largest := int64(0)
	for _, i := range q.in(id, c) {
		largest = max(largest, i.Work)
	}
	most := 0.0
	if largest > 0 {
		most = math.Exp2(math.Floor(math.Log2(float64(largest))) + 2)
	}
	b := q.bands[id][c]
	b.credit = min(max(b.credit, -most), most+q.cfg.Classes[c].Share*float64(q.pools[id].step))
}

func (q *Reference) remove(now time.Time, i *item, state qos.State, again bool, at qos.PoolID) {
	q.items = slices.DeleteFunc(q.items, func(o *item) bool { return o == i })
	i.state = state
	clear(i.rests)
	for _, id := range i.Pools {
		q.pools[id].dirty = q.pools[id].dirty || at != qos.AnyPool && id != at
		b := q.bands[id][i.Class]
		if len(q.in(id, i.Class)) == 0 {
			b.credit = 0
		}
		q.cut(id, i.Class)
		if !again && len(q.of(id, i.Class, i.Tenant)) == 0 {
			b.flows[i.Tenant].at = now
		}
	}
}

// Leave takes e out.
func (q *Reference) Leave(now time.Time, e *qos.Entry) qos.State {
	i := q.known[e]
	if i == nil {
		return qos.Unknown
	}
	was := i.state
	if was == qos.Waiting {
		q.remove(now, i, qos.Left, i.charged, qos.AnyPool)
		for _, id := range e.Pools {
			q.pools[id].dirty = true
		}
	}
	return was
}

// Strand takes e out that no worker could take.
func (q *Reference) Strand(now time.Time, e *qos.Entry, out []qos.Outcome) []qos.Outcome {
	i := q.known[e]
	if i == nil || i.state != qos.Waiting {
		return out
	}
	q.remove(now, i, qos.Refused, i.charged, qos.AnyPool)
	return append(out, qos.Outcome{
		Entry: e, State: qos.Refused, Reason: qos.ReasonNoWorker, Waited: max(0, now.Sub(i.since)),
	})
}

// Again lets e wait again.
func (q *Reference) Again(now time.Time, e *qos.Entry) {
	i := q.known[e]
	i.since = now
	if least := now.Add(2 * time.Second); e.Until.Before(least) {
		e.Until = least
	}
	q.insert(now, i)
	for _, id := range e.Pools {
		q.pools[id].dirty = true
	}
}

// Passed notes what went past.
func (q *Reference) Passed(now time.Time, e *qos.Entry, id qos.PoolID, work int64) {
	if work == 0 {
		work = e.Work
	}
	q.seq++
	i := &item{
		Entry: e, state: qos.Granted, charged: true, pool: id, seq: q.seq,
		rests: make(map[qos.PoolID]int64), aside: make(map[qos.PoolID]int64),
	}
	q.known[e] = i
	for _, id := range e.Pools {
		b := q.bands[id][e.Class]
		part := 1 / float64(len(e.Pools))
		b.arrivals = append(b.arrivals, arrival{now, part, part * float64(e.Room)})
	}
	q.correct(now, i, work)
}

// Settle corrects a charge.
func (q *Reference) Settle(now time.Time, e *qos.Entry, off int64) {
	if i := q.known[e]; i != nil && i.charged {
		q.correct(now, i, off)
	}
}

func (q *Reference) correct(now time.Time, i *item, work int64) {
	f := q.bands[i.pool][i.Class].flows[i.Tenant]
	if len(q.of(i.pool, i.Class, i.Tenant)) == 0 {
		f = q.idle(now, i.pool, i.Entry)
	}
	q.charge(i.pool, i.Class, f, work)
}
