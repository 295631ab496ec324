package qostest

import (
	"cmp"
	"slices"

	"github.com/sluicegate/sluice/gateway/qos"
)

type holds struct {
	entries int
	bytes   int64
}

func (h *holds) add(e *qos.Entry) { h.entries, h.bytes = h.entries+1, h.bytes+e.Bytes }

// holds returns what e's tenant, the others and e's class hold.
func (q *Reference) holds(e *qos.Entry) (own, others, class holds) {
	for _, i := range q.items {
		if i.Tenant == e.Tenant {
			own.add(i.Entry)
		} else {
			others.add(i.Entry)
		}
		if i.Class == e.Class {
			class.add(i.Entry)
		}
	}
	return own, others, class
}

func (q *Reference) full(e *qos.Entry) bool {
	own, others, class := q.holds(e)
	most := q.cfg.Classes[e.Class].MaxQueue
	return own.entries+others.entries+1 > q.cfg.MaxEntries || own.bytes+others.bytes+e.Bytes > q.cfg.MaxBytes ||
		most > 0 && class.entries+1 > most
}

// exposed returns what may be taken out of a class, the last of the tenant that has most first.
func (q *Reference) exposed(c qos.ClassID) (exposed []*item, level func(tenant string) float64) {
	work, last := make(map[string]int64), make(map[string]*item)
	for _, i := range q.items {
		if i.Class == c && !i.charged && (i.Preemptible || q.cfg.Classes[c].Preemptible) {
			exposed = append(exposed, i)
			work[i.Tenant] += i.Work
			if l := last[i.Tenant]; l == nil || l.seq < i.seq {
				last[i.Tenant] = i
			}
		}
	}
	level = func(tenant string) float64 { return float64(work[tenant]) / weight(last[tenant].Entry) }
	slices.SortFunc(exposed, func(a, b *item) int {
		return cmp.Or(cmp.Compare(level(b.Tenant), level(a.Tenant)),
			cmp.Compare(last[b.Tenant].seq, last[a.Tenant].seq), cmp.Compare(b.seq, a.seq))
	})
	return exposed, level
}

// victims returns what gives way for e; nil if that does not make room.
func (q *Reference) victims(e *qos.Entry) []*item {
	before := q.items
	defer func() { q.items = before }()
	without := func(v *item) {
		q.items = slices.DeleteFunc(slices.Clone(q.items), func(i *item) bool { return i == v })
	}
	var victims []*item
	for c := len(q.cfg.Classes) - 1; c > int(e.Class); c-- {
		for exposed, _ := q.exposed(qos.ClassID(c)); len(exposed) > 0 && q.full(e); exposed, _ = q.exposed(qos.ClassID(c)) {
			victims = append(victims, exposed[0])
			without(exposed[0])
		}
	}
	if !q.full(e) {
		return victims
	}
	q.items = before
	exposed, level := q.exposed(e.Class)
	if len(exposed) == 0 || exposed[0].Tenant == e.Tenant {
		return nil
	}
	own := e.Work
	for _, i := range exposed {
		if i.Tenant == e.Tenant {
			own += i.Work
		}
	}
	if level(exposed[0].Tenant) <= (float64(own)+float64(q.cfg.Slack))/weight(e) {
		return nil
	}
	if without(exposed[0]); q.full(e) {
		return nil
	}
	return exposed[:1]
}
