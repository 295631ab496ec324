package qostest

import (
	"cmp"
	"slices"
	"time"

	"github.com/sluicegate/sluice/gateway/qos"
)

// Dirty says that room may have come.
func (q *Reference) Dirty(id qos.PoolID) { q.pools[id].dirty = true }

// shares says whether a pool has entries that may go to others, too.
func (q *Reference) shares(id int) bool {
	return slices.ContainsFunc(q.in(qos.PoolID(id), -1), func(i *item) bool { return len(i.Pools) > 1 })
}

// gather returns the pools that are in a look.
func (q *Reference) gather(now time.Time) map[*pool]bool {
	in, shared := make(map[*pool]bool), false
	for id, p := range q.pools {
		in[p] = p.dirty || p.behind && !now.Before(p.tried.Add(p.pace))
		shared = shared || in[p] && q.shares(id)
	}
	for id, p := range q.pools {
		in[p] = in[p] || shared && q.shares(id)
	}
	return in
}

func (p *pool) sooner(look time.Time) {
	if !look.IsZero() && (p.look.IsZero() || look.Before(p.look)) {
		p.look = look
	}
}

// Next returns when to pump.
func (q *Reference) Next() (time.Time, bool) {
	var all []time.Time
	for _, i := range q.items {
		all = append(all, i.Until)
	}
	for id, p := range q.pools {
		if len(q.in(qos.PoolID(id), -1)) == 0 {
			continue
		}
		if p.dirty {
			all = append(all, p.tried.Add(time.Millisecond))
		}
		if p.behind {
			all = append(all, p.tried.Add(p.pace))
		}
		if !p.look.IsZero() {
			all = append(all, p.look)
		}
	}
	if len(all) == 0 {
		return time.Time{}, false
	}
	return slices.MinFunc(all, time.Time.Compare), true
}

// Pump refuses whose time is over, and gives out room.
func (q *Reference) Pump(now time.Time, p qos.Placer, out []qos.Outcome) []qos.Outcome {
	for _, i := range slices.SortedFunc(slices.Values(q.items), func(a, b *item) int {
		return cmp.Or(a.Until.Compare(b.Until), cmp.Compare(a.seq, b.seq))
	}) {
		if !i.Until.After(now) {
			for _, id := range i.Pools {
				if !i.charged {
					q.bands[id][i.Class].flows[i.Tenant].strained = now
				}
			}
			q.remove(now, i, qos.Refused, i.charged, qos.AnyPool)
			out = append(out, qos.Outcome{
				Entry: i.Entry, State: qos.Refused, Reason: qos.ReasonWaited, Waited: max(0, now.Sub(i.since)),
			})
		}
	}
	q.looks++
	p.Begin()
	for id, pool := range q.pools {
		if !pool.look.IsZero() && !pool.look.After(now) {
			q.Dirty(qos.PoolID(id))
		}
	}
	in := q.gather(now)
	for id, pool := range q.pools {
		if in[pool] || pool.dirty {
			out = q.pump(now, qos.PoolID(id), p, out)
		}
	}
	return out
}

// resting returns what rests at a pool, the longest first.
func (q *Reference) resting(id qos.PoolID) []*item {
	rest := slices.DeleteFunc(q.in(id, -1), func(i *item) bool { _, rests := i.rests[id]; return !rests })
	slices.SortFunc(rest, func(a, b *item) int { return cmp.Compare(a.rests[id], b.rests[id]) })
	return rest
}

// rest sets an item aside. Of a tenant that is behind, all that rests counts for no more
// than it can be behind by.
func (q *Reference) rest(id qos.PoolID, i *item) {
	b := q.bands[id][i.Class]
	all := int64(0)
	for _, o := range q.in(id, i.Class) {
		if _, rests := o.rests[id]; rests && !o.charged && o.Tenant == i.Tenant {
			all += o.aside[id]
		}
	}
	i.aside[id] = i.Work
	if !i.charged && b.flows[i.Tenant].tag < b.floor && all >= 4*q.cfg.Slack {
		i.aside[id] = 0
	}
	q.rests++
	i.rests[id] = q.rests
}

func (q *Reference) rise(id qos.PoolID, rest []*item) {
	for _, i := range rest {
		delete(i.rests, id)
		if i.charged {
			continue
		}
		b := q.bands[id][i.Class]
		f := b.flows[i.Tenant]
		f.tag = max(f.tag, b.floor-4*float64(q.cfg.Slack)/f.weight)
	}
}

func (q *Reference) pump(now time.Time, id qos.PoolID, placer qos.Placer, out []qos.Outcome) []qos.Outcome {
	p := q.pools[id]
	happened := p.dirty
	p.dirty, p.behind, p.look, p.tried = false, false, time.Time{}, now
	if len(q.in(id, -1)) == 0 {
		return out
	}
	old, failed := q.resting(id), []*item(nil)
	rise := func(n int) {
		n = min(n, len(old))
		q.rise(id, old[:n])
		old = old[n:]
	}
	if happened {
		rise(q.cfg.Tries / 4)
	}
	granted := false
	for {
		wait, _ := placer.Wait(now, id, qos.Unbounded)
		i, bound, owed := q.next(now, id, wait)
		more := len(old) > 0 && wait <= q.cfg.Classes[0].Bound
		if len(failed) == q.cfg.Tries && (i != nil || more) {
			p.behind = true
			for _, i := range failed[q.cfg.Tries/2:] { // those rest on
				i.aside[id] = 0
			}
			failed = failed[:q.cfg.Tries/2]
			break
		}
		if i == nil && more {
			rise(q.cfg.Tries - len(failed))
			continue
		}
		if i == nil {
			q.watch(now, id, placer)
			break
		}
		placed, ok := q.offer(now, id, i, q.terms(now, id, i, bound, owed), placer)
		if ok {
			out = append(out, q.grant(now, id, i, owed, placed))
			granted = true
			p.dirty = p.dirty || len(failed) > 0
			rise(1)
			continue
		}
		q.rest(id, i)
		failed = append(failed, i)
	}
	switch {
	case !p.behind:
		p.pace = 0
	case granted:
		p.pace = max(time.Millisecond, p.pace/2)
	default:
		p.pace = min(max(time.Millisecond, 2*p.pace), 4*time.Millisecond)
	}
	q.rise(id, failed)
	return out
}

func (q *Reference) watch(now time.Time, id qos.PoolID, placer qos.Placer) {
	bound := time.Duration(0)
	if len(q.resting(id)) > 0 {
		bound = q.cfg.Classes[0].Bound
	}
	if i, of, _ := q.next(now, id, 0); i != nil {
		bound = max(bound, of)
	}
	if bound > 0 {
		_, look := placer.Wait(now, id, bound)
		p := q.pools[id]
		p.sooner(look)
	}
}
