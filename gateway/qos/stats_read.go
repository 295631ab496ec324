package qos

import "time"

// Stats fills dst, whose memory it uses again, with what is now. It takes a time that
// grows with the number of classes and pools, however many entries wait.
func (q *Queue) Stats(now time.Time, dst *Stats) {
	*dst = Stats{
		Waiting: len(q.expiry), Bytes: q.bytes, Flows: q.flows,
		Pools: dst.Pools[:0], Classes: dst.Classes[:0], Bands: dst.Bands[:0],
	}
	for i := range q.classes {
		c := &q.classes[i]
		s := c.stats
		s.ID, s.Name, s.Gone, s.Waiting = ClassID(i), c.Name, c.gone, c.waiting
		if len(c.ages) > 0 {
			s.Oldest = c.ages[0].Arrived
		}
		dst.Classes = append(dst.Classes, s)
	}
	for _, p := range q.pools {
		dst.Pools = append(dst.Pools, PoolStats{ID: p.id, Name: p.name, Rate: p.rate.value(now, q.enough), Look: p.look})
		for _, b := range p.bands {
			dst.Bands = append(dst.Bands, BandStats{
				Pool: p.id, Class: b.class, Waiting: b.waiting, Work: int64(b.work), Credit: b.credit,
				Placed: b.placed, Contended: b.contended, Got: b.got,
				Refusing: p.waiting > 0 && !b.refusedAt.IsZero() && now.Sub(b.refusedAt) <= recently,
			})
		}
	}
}

// Tenants sets in dst how many entries of each tenant wait, each entry once.
func (q *Queue) Tenants(dst map[string]int) {
	for name, t := range q.tenants {
		dst[name] = t.entries
	}
}

// Flows appends what is known of each tenant that has entries waiting.
func (q *Queue) Flows(dst []FlowStats) []FlowStats {
	for _, p := range q.pools {
		for _, b := range p.bands {
			for _, f := range b.flows {
				if f.waiting > 0 {
					dst = append(dst, FlowStats{
						Pool: p.id, Class: b.class, Tenant: f.tenant, Weight: f.weight,
						Waiting: f.waiting, Work: int64(f.work), Ahead: max(0, f.tag-b.floor),
					})
				}
			}
		}
	}
	return dst
}
