package qos

import (
	"fmt"
	"maps"
	"math"
)

// Blind lets q never know the rates of pools, so that it forecasts nothing.
func (q *Queue) Blind() { q.enough = math.Inf(1) }

// Check returns an error if what the queue keeps does not agree with itself.
func (q *Queue) Check() error {
	type sums struct {
		waiting, active, resting int
		work, missed, weights    float64
	}
	bands := make(map[*band]sums)
	flows := make(map[*flow]sums)
	held := make(map[string]tenant)
	var all tenant
	exposed := 0
	for i, x := range q.expiry {
		e := x.Entry
		if c := &q.classes[e.Class]; c.ages[e.state.age].Entry != e || e.Arrived.Before(c.ages[0].Arrived) {
			return fmt.Errorf("entry %d of the expiries is not at its place among those of its class by age", i)
		}
		if e.state.state != Waiting || e.state.expires != i {
			return fmt.Errorf("entry %d of the expiries is %v, at %d", i, e.state.state, e.state.expires)
		}
		all.entries, all.bytes = all.entries+1, all.bytes+e.Bytes
		held[e.Tenant] = tenant{held[e.Tenant].entries + 1, held[e.Tenant].bytes + e.Bytes}
		if e.state.group != nil {
			exposed++
		}
		for j, id := range e.Pools {
			r := ref{e, j}
			l := r.link()
			if l.band != q.pools[id].bands[e.Class] {
				return fmt.Errorf("entry %d is in another band at its pool %d", i, j)
			}
			if !l.has(r) {
				return fmt.Errorf("entry %d is not where it is at its pool %d: %+v", i, j, *l)
			}
			b := bands[l.band]
			b.waiting++
			b.work += e.part()
			if l.rests {
				b.resting++
			}
			bands[l.band] = b
			if l.flow != nil {
				f := flows[l.flow]
				f.waiting++
				f.work += e.part()
				if l.late {
					f.missed += e.part()
				}
				if l.rests {
					f.resting += int(l.aside)
				}
				flows[l.flow] = f
			}
		}
	}
	if all.bytes != q.bytes || len(held) != len(q.tenants) {
		return fmt.Errorf("%d bytes of %d tenants, held are %d of %d", q.bytes, len(q.tenants), all.bytes, len(held))
	}
	for name, h := range held {
		if *q.tenants[name] != h {
			return fmt.Errorf("tenant %s holds %+v, by the queue %+v", name, h, *q.tenants[name])
		}
	}
	for i := range q.classes {
		exposed -= q.classes[i].exposed.entries
		var all tenant
		for _, g := range q.classes[i].groups {
			var of tenant
			for e := g.first; e != nil; e = e.state.newer {
				of.add(1, e.Bytes)
			}
			if of != g.held {
				return fmt.Errorf("tenant %s may give %+v of class %d, counted %+v", g.tenant, g.held, i, of)
			}
			all.add(of.entries, of.bytes)
		}
		if all != q.classes[i].exposed {
			return fmt.Errorf("class %d may give %+v, counted %+v", i, q.classes[i].exposed, all)
		}
		if len(q.classes[i].groups) != len(q.classes[i].byTenant) {
			return fmt.Errorf("class %d has %d groups, %d by tenant", i, len(q.classes[i].groups), len(q.classes[i].byTenant))
		}
	}
	if exposed != 0 {
		return fmt.Errorf("%d more entries may be taken out than the classes know", exposed)
	}
	known := 0
	for _, p := range q.pools {
		waiting, resting := 0, 0
		for _, b := range p.bands {
			s := bands[b]
			waiting += s.waiting
			resting += s.resting
			for tenant, f := range b.flows {
				known++
				fs := flows[f]
				if f.waiting != fs.waiting || f.aside != int64(fs.resting) || !near(f.work, fs.work) || !near(f.missed, fs.missed) ||
					f.idle != (f.waiting == 0) || f.tenant != tenant {
					return fmt.Errorf("flow %s is %+v, counted %+v", tenant, f, fs)
				}
				if f.waiting > 0 {
					s.active++
					s.weights += f.weight
				}
				if (f.ready >= 0) != (len(f.timely)+len(f.late) > 0) || f.ready >= 0 && b.ready[f.ready] != f {
					return fmt.Errorf("flow %s is ready at %d with %d and %d", tenant, f.ready, len(f.timely), len(f.late))
				}
				if (f.line >= 0) != (f.waiting > 0 || f.bookings > 0) || f.line >= 0 && b.lines[f.line] != f {
					return fmt.Errorf("flow %s is at %d of those that forecasts count, with %d that wait and %d told to come again", tenant, f.line, f.waiting, f.bookings)
				}
			}
			if b.waiting != s.waiting || b.active != s.active || !near(b.work, s.work) || !near(b.weights, s.weights) {
				return fmt.Errorf("band %d of pool %d is %+v, counted %+v", b.class, p.id, b, s)
			}
		}
		if p.waiting != waiting || p.resting.len() != resting {
			return fmt.Errorf("pool %d has %d, %d of them rest; counted %d and %d", p.id, p.waiting, p.resting.len(), waiting, resting)
		}
	}
	bookers := make(map[string]int)
	for key := range q.booked {
		bookers[key.flow.tenant]++
	}
	if !maps.Equal(bookers, q.bookers) {
		return fmt.Errorf("tenants have bookings %v, counted %v", q.bookers, bookers)
	}
	if q.flows != known || len(q.booked) != len(q.bookings) {
		return fmt.Errorf("%d flows and %d bookings, counted %d and %d", q.flows, len(q.booked), known, len(q.bookings))
	}
	return nil
}

func near(a, b float64) bool { return math.Abs(a-b) <= 1e-6*(1+math.Abs(a)) }

// has says whether r is where its link says.
func (l *link) has(r ref) bool {
	switch f := l.flow; {
	case l.rests:
		return l.band.pool.resting.line[l.at] == r
	case f == nil:
		return l.band.again[l.at].ref == r
	case l.late:
		return f.late[l.at].ref == r
	default:
		return f.timely[l.at].ref == r
	}
}
