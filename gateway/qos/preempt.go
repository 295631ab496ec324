package qos

import "time"

// group is what a tenant has waiting in a class that may be taken out for others,
// in the order in which it came.
type group struct {
	tenant      string
	first, last *Entry
	held        tenant
	work        int64
	at          int // its place in class.groups
}

// level is what the group holds, over its tenant's weight.
func (g *group) level() float64 { return float64(g.work) / weight(g.last.Weight) }

// before says that g has more than o, so that it has to give first.
func (g *group) before(o *group) bool {
	if a, b := g.level(), o.level(); a != b {
		return a > b
	}
	return g.last.state.seq > o.last.state.seq
}

func (g *group) moved(to int) { g.at = to }

// expose puts an entry among those that may be taken out, if it may be. One that is
// tried again may not.
func (q *Queue) expose(e *Entry) {
	c := &q.classes[e.Class]
	if e.state.charged || !e.Preemptible && !c.Preemptible {
		return
	}
	g := c.byTenant[e.Tenant]
	if g == nil {
		if n := len(q.spareGroups); n > 0 {
			g, q.spareGroups = q.spareGroups[n-1], q.spareGroups[:n-1]
		} else {
			g = new(group)
		}
		*g = group{tenant: e.Tenant, first: e, at: -1}
		c.byTenant[e.Tenant] = g
	} else {
		e.state.older, g.last.state.newer = g.last, e
	}
	g.last, e.state.group = e, g
	g.work += e.Work
	g.held.add(1, e.Bytes)
	c.exposed.add(1, e.Bytes)
	if g.at < 0 {
		c.groups.push(g)
	} else {
		c.groups.fix(g.at)
	}
}

// cover takes an entry from among those that may be taken out.
func (q *Queue) cover(e *Entry) {
	g, c := e.state.group, &q.classes[e.Class]
	if g == nil {
		return
	}
	older, newer := e.state.older, e.state.newer
	if older != nil {
		older.state.newer = newer
	} else {
		g.first = newer
	}
	if newer != nil {
		newer.state.older = older
	} else if older != nil {
		g.last = older
	}
	e.state.group, e.state.older, e.state.newer = nil, nil, nil
	g.work -= e.Work
	g.held.add(-1, -e.Bytes)
	c.exposed.add(-1, -e.Bytes)
	if g.first != nil {
		c.groups.fix(g.at)
		return
	}
	c.groups.remove(g.at)
	delete(c.byTenant, g.tenant)
	*g = group{}
	if len(q.spareGroups) < maxSpares {
		q.spareGroups = append(q.spareGroups, g)
	}
}

// makeRoom takes out what has to give way for e: what is less urgent, the least urgent
// and of it the last of the tenant that has most; else the last of a tenant of its
// own class that has more than e's. It reports false, and takes out none, if that
// does not make room.
func (q *Queue) makeRoom(now time.Time, e *Entry, out []Outcome) ([]Outcome, bool) {
	if c := &q.classes[e.Class]; c.MaxQueue == 0 || c.waiting < c.MaxQueue {
		var can tenant
		for _, id := range q.ranked[c.rank+1:] {
			can.add(q.classes[id].exposed.entries, q.classes[id].exposed.bytes)
		}
		if q.fits(e, can) {
			for rank := len(q.ranked) - 1; q.full(e); {
				groups := q.classes[q.ranked[rank]].groups
				if len(groups) == 0 {
					rank--
					continue
				}
				out = q.preempt(now, groups[0].last, out)
			}
			return out, true
		}
	}
	if v := q.peer(e); v != nil {
		return q.preempt(now, v, out), true
	}
	return out, false
}

// peer returns the entry of e's class that gives way for it, if there is one.
func (q *Queue) peer(e *Entry) *Entry {
	c := &q.classes[e.Class]
	if len(c.groups) == 0 || c.groups[0].tenant == e.Tenant {
		return nil
	}
	own := e.Work
	if g := c.byTenant[e.Tenant]; g != nil {
		own += g.work
	}
	w, v := weight(e.Weight), c.groups[0].last
	if c.groups[0].level() <= (float64(own)+float64(q.cfg.Slack))/w || !q.fits(e, tenant{1, v.Bytes}) ||
		c.MaxQueue > 0 && c.waiting > c.MaxQueue {
		return nil
	}
	return v
}

func (q *Queue) preempt(now time.Time, v *Entry, out []Outcome) []Outcome {
	q.remove(now, v, Refused, AnyPool)
	return q.refuse(now, v, ReasonPreempted, q.comeBack(now, v), out)
}
