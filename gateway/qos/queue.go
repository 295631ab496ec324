package qos

import (
	"fmt"
	"slices"
	"time"
)

// Queue is the queue of requests that wait for a worker. Make one with [New].
type Queue struct {
	cfg     Config
	classes []class
	pools   []*pool
	ranked  []ClassID // most urgent first
	seq     int64

	expiry  heap[expiring] // all entries
	bytes   int64
	tenants map[string]*tenant // that have entries

	flows          int
	oldest, newest *flow // of those with nothing waiting
	idle           int
	spareFlows     []*flow
	spareTenants   []*tenant
	spareGroups    []*group
	failed         []ref   // of a pump
	looks          int64   // counts those of a Placer's Begin
	enough         float64 // seconds of waiting that make a rate

	booked   map[bookingKey]*booking
	bookings heap[*booking] // by when they end
	bookers  map[string]int // how many each tenant has
}

// class is a class and what became of its entries.
type class struct {
	Class
	rank    int
	gone    bool
	waiting int
	ages    heap[aged] // all entries, those first that came first
	stats   ClassStats

	// What may be taken out for others: by tenant, those first that have most; and
	// what they hold together.
	groups   heap[*group]
	byTenant map[string]*group
	exposed  tenant
}

// tenant is what a tenant holds of the queue, or what others do.
type tenant struct {
	entries int
	bytes   int64
}

func (t *tenant) add(entries int, bytes int64) {
	t.entries += entries
	t.bytes += bytes
}

// New returns a queue for the pools of these names, whose ids are 0 and up. The
// classes' ids are 0 and up, too.
func New(cfg Config, pools []string) (*Queue, error) {
	q := &Queue{
		tenants: make(map[string]*tenant), booked: make(map[bookingKey]*booking), bookers: make(map[string]int),
		enough: 2,
	}
	if err := q.Reconfigure(cfg, pools); err != nil {
		return nil, err
	}
	return q, nil
}

// Reconfigure changes how the queue works. Classes and pools that are known
// keep their ids, new ones get the next. Entries of a class or for a pool that
// is gone stay: such a class keeps its numbers and is less urgent than all that
// are configured; see Strand for the pool. If there is an error nothing has changed.
func (q *Queue) Reconfigure(cfg Config, pools []string) error {
	if err := cfg.Validate(); err != nil {
		return fmt.Errorf("cannot configure the queue: %w", err)
	}
	for i := range q.classes {
		q.classes[i].gone = true
	}
	q.cfg, q.ranked = cfg, q.ranked[:0]
	q.cfg.Classes = nil // they are in q.classes
	for _, c := range cfg.Classes {
		id, ok := q.Class(c.Name)
		if !ok {
			id = ClassID(len(q.classes))
			q.classes = append(q.classes, class{byTenant: make(map[string]*group)})
		}
		q.classes[id].Class, q.classes[id].gone = c, false
		q.ranked = append(q.ranked, id)
	}
	for id := range q.classes {
		if q.classes[id].gone {
			q.ranked = append(q.ranked, ClassID(id))
		}
	}
	for rank, id := range q.ranked {
		q.classes[id].rank = rank
	}
	for _, name := range pools {
		if _, ok := q.Pool(name); !ok {
			q.pools = append(q.pools, &pool{id: PoolID(len(q.pools)), name: name})
		}
	}
	for _, p := range q.pools {
		p.dirty = true
		for len(p.bands) < len(q.classes) {
			p.bands = append(p.bands, &band{
				pool: p, class: ClassID(len(p.bands)), flows: make(map[string]*flow),
			})
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
	i := slices.IndexFunc(q.pools, func(p *pool) bool { return p.name == name })
	return PoolID(i), i >= 0
}

// Settings returns the numbers of a class.
func (q *Queue) Settings(id ClassID) Class { return q.classes[id].Class }

// Waiting returns how many entries wait.
func (q *Queue) Waiting() int { return len(q.expiry) }

// weight is the weight that counts.
func weight(w float64) float64 {
	if !(w > 0) {
		return 1
	}
	return min(max(w, 0.01), 100)
}

// flow returns a tenant's flow in a band.
func (q *Queue) flow(b *band, tenant string) *flow {
	f := b.flows[tenant]
	if f != nil {
		return f
	}
	if n := len(q.spareFlows); n > 0 {
		f, q.spareFlows = q.spareFlows[n-1], q.spareFlows[:n-1]
	} else {
		f = new(flow)
	}
	*f = flow{
		band: b, tenant: tenant, weight: 1, tag: b.floor, ready: -1, line: -1,
		timely: f.timely, late: f.late, shows: 1,
	}
	b.flows[tenant] = f
	q.flows++
	return f
}

// Limits of what is remembered of tenants that have nothing waiting.
const (
	maxIdle   = 1 << 16
	maxSpares = 1 << 10
)

// sleep puts a flow that has nothing waiting last in the line of those.
func (q *Queue) sleep(f *flow) {
	q.wake(f)
	f.idle, f.older = true, q.newest
	if q.newest != nil {
		q.newest.newer = f
	} else {
		q.oldest = f
	}
	q.newest = f
	q.idle++
}

// wake takes a flow out of the line of those that have nothing waiting.
func (q *Queue) wake(f *flow) {
	if !f.idle {
		return
	}
	if f.older != nil {
		f.older.newer = f.newer
	} else {
		q.oldest = f.newer
	}
	if f.newer != nil {
		f.newer.older = f.older
	} else {
		q.newest = f.older
	}
	f.idle, f.older, f.newer = false, nil, nil
	q.idle--
}

// forget drops the flows that have had nothing waiting for so long that nothing of
// them counts, a few at a time, and the oldest if there are too many.
func (q *Queue) forget(now time.Time) {
	for range 4 {
		f := q.oldest
		if f == nil || q.idle <= maxIdle && f.ahead(now, q.cfg.Memory) > 0 {
			return
		}
		if f.bookings > 0 || q.idle <= maxIdle && q.overloaded(now, f) {
			q.sleep(f) // its clients are expected, or what is known of it is needed
			continue
		}
		q.wake(f)
		delete(f.band.flows, f.tenant)
		q.flows--
		if len(q.spareFlows) < maxSpares {
			q.spareFlows = append(q.spareFlows, f)
		}
	}
}

// hold counts what an entry holds of the queue.
func (q *Queue) hold(e *Entry) {
	t := q.tenants[e.Tenant]
	if t == nil {
		if n := len(q.spareTenants); n > 0 {
			t, q.spareTenants = q.spareTenants[n-1], q.spareTenants[:n-1]
		} else {
			t = new(tenant)
		}
		q.tenants[e.Tenant] = t
	}
	t.add(1, e.Bytes)
	q.bytes += e.Bytes
	q.classes[e.Class].waiting++
	q.classes[e.Class].ages.push(aged{e})
	q.expose(e)
}

// free gives back what an entry held.
func (q *Queue) free(e *Entry) {
	q.cover(e)
	t := q.tenants[e.Tenant]
	t.add(-1, -e.Bytes)
	q.bytes -= e.Bytes
	q.classes[e.Class].waiting--
	q.classes[e.Class].ages.remove(e.state.age)
	if t.entries > 0 {
		return
	}
	delete(q.tenants, e.Tenant)
	if len(q.spareTenants) < maxSpares {
		q.spareTenants = append(q.spareTenants, t)
	}
}
