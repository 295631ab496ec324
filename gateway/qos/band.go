package qos

import "time"

// pool is what waits for one pool.
type pool struct {
	id      PoolID
	name    string
	dirty   bool
	looked  bool          // it is in the look that is going on
	behind  bool          // there are some that the last pump had no time for
	tried   time.Time     // when it was last pumped
	look    time.Time     // when to pump although nothing happens
	pace    time.Duration // after which those have their turn that were behind
	bands   []*band       // by ClassID
	waiting int
	shared  int // of those that wait: with other pools
	resting resting
	rate    rate
	// step is the work of the last placement that was not owed, or of a larger one since:
	// what a class earned by that it has not been able to use yet.
	step int64
}

// sooner notes when to look at the pool.
func (p *pool) sooner(look time.Time) {
	if !look.IsZero() && (p.look.IsZero() || look.Before(p.look)) {
		p.look = look
	}
}

// band is one class in one pool.
type band struct {
	pool  *pool
	class ClassID
	flows map[string]*flow
	ready heap[*flow]   // those that have entries which do not rest
	again heap[ordered] // entries that are tried again come first
	lines []*flow       // those that have something waiting or were told to come again

	waiting int
	work    float64
	weights float64 // of the flows that have something waiting
	active  int     // these flows
	// floor is where a flow begins: what those have had that are being served.
	floor float64
	// credit is the work that the class's share has earned, less what it got. It is 0
	// when nothing waits; see cut.
	credit float64
	sizes  tally

	placed, contended, got int64
	arrivals               meter
	refusedAt              time.Time // by forecast, last; zero: never
}

// choices is among how many of the flows that have had least the earliest
// deadline is looked for.
const choices = 16

// first returns the entry that is first of those that don't rest, if there is one.
func (b *band) first(now time.Time, slack int64) (ref, bool) {
	if len(b.again) > 0 {
		return b.again[0].ref, true
	}
	if len(b.ready) == 0 {
		return ref{}, false
	}
	// The flows that have had least are found from the top of the heap down.
	var open [choices + 1]int
	n := 1
	least := b.ready[0].key()
	var first ref
	for range choices {
		if n == 0 {
			break
		}
		at := 0
		for i := 1; i < n; i++ {
			if b.ready[open[i]].before(b.ready[open[at]]) {
				at = i
			}
		}
		i := open[at]
		n--
		open[at] = open[n]
		f := b.ready[i]
		if f.key() <= least+float64(slack)/f.weight {
			if r := f.first(now); first.entry == nil || r.sooner(first) {
				first = r
			}
		}
		for child := 2*i + 1; child <= 2*i+2 && child < len(b.ready) && n < len(open); child++ {
			open[n] = child
			n++
		}
	}
	return first, true
}

// sooner says whether r comes before o, of flows that are level: by deadline,
// those that miss it in any case after all others, in the order in which they came.
func (r ref) sooner(o ref) bool {
	late, than := r.link().late, o.link().late
	switch {
	case late != than:
		return than
	case late:
		return ordered{r}.before(ordered{o})
	}
	return timely{r}.before(timely{o})
}

// owed says whether the class has earned what this entry of it costs.
func (b *band) owed(share float64, r ref) bool {
	return share > 0 && b.credit >= float64(r.entry.cost())
}

// cut bounds what is saved, or a class that could not use its credit for long would have
// the workers for itself afterwards. A few of the largest that wait now can be saved,
// since those may rest when their turn comes, and what was earned by the last step: a
// class of small entries may have had no turn since.
func (b *band) cut(share float64) {
	most := 2 * float64(b.sizes.most())
	b.credit = min(max(b.credit, -most), most+share*float64(b.pool.step))
}

// enter links an entry to the band.
func (q *Queue) enter(now time.Time, b *band, r ref) {
	e := r.entry
	*r.link() = link{band: b}
	b.waiting++
	b.pool.waiting++
	if len(e.Pools) > 1 {
		b.pool.shared++
	}
	b.work += e.part()
	b.sizes.add(e.Work)
	if e.state.charged {
		b.again.push(ordered{r})
		return
	}
	f := q.flow(b, e.Tenant)
	if f.waiting == 0 {
		f.tag = b.floor + f.ahead(now, q.cfg.Memory)
		f.weight = weight(e.Weight)
		q.wake(f)
		q.seq++
		f.since = q.seq
		b.active++
		b.weights += f.weight
	}
	r.link().flow = f
	f.waiting++
	f.work += e.part()
	f.queued()
	f.put(r)
}

// leave takes an entry out of its band.
func (q *Queue) leave(now time.Time, r ref) {
	l, e := r.link(), r.entry
	b, f := l.band, l.flow
	switch {
	case l.rests:
		b.pool.resting.remove(r)
		if f != nil {
			f.aside -= l.aside
		}
	case f == nil:
		b.again.remove(l.at)
	default:
		f.take(r)
	}
	b.pool.waiting--
	if len(e.Pools) > 1 {
		b.pool.shared--
	}
	if b.pool.waiting == 0 {
		b.pool.rate.pause()
	}
	b.work -= e.part()
	if l.late {
		f.missed -= e.part()
	}
	b.sizes.remove(e.Work)
	if b.waiting--; b.waiting == 0 {
		b.work, b.credit = 0, 0
	}
	b.cut(q.classes[b.class].Share)
	if f == nil {
		return
	}
	f.work -= e.part()
	if f.waiting--; f.waiting > 0 {
		f.settle()
		return
	}
	f.queued()
	f.work, f.missed, f.at = 0, 0, now
	f.rate.pause()
	b.weights -= f.weight
	if b.active--; b.active == 0 {
		b.weights = 0
	}
	q.sleep(f)
}

// rest sets an entry aside that was looked at in vain. What that counts for is bounded
// where its tenant is behind: one that waits for much room at a time has ever more that
// rests, and would come after all others for it, who take the room bit by bit.
func (r ref) rest(slack int64) {
	l := r.link()
	if f := l.flow; f != nil {
		l.aside = r.entry.Work
		if f.tag < l.band.floor && f.aside >= behind*slack {
			l.aside = 0
		}
		f.aside += l.aside
		f.take(r)
	} else {
		l.band.again.remove(l.at)
	}
	l.rests = true
	l.band.pool.resting.push(r)
}

// settle lets an entry that goes on resting count for nothing any more.
func (r ref) settle() {
	if l := r.link(); l.flow != nil {
		l.flow.aside -= l.aside
		l.aside = 0
		l.flow.settle()
	}
}

// rise lets an entry be looked at again. What its tenant falls behind by meanwhile is
// bounded, or it would have the workers for itself afterwards.
func (r ref) rise(slack int64) {
	l := r.link()
	l.band.pool.resting.remove(r)
	l.rests = false
	f := l.flow
	if f == nil {
		l.band.again.push(ordered{r})
		return
	}
	f.aside -= l.aside
	f.tag = max(f.tag, l.band.floor-behind*float64(slack)/f.weight)
	f.put(r)
}

// behind is how many times the slack a tenant can be behind for what it waited
// for in vain.
const behind = 4
