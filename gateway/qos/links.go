package qos

import "time"

// entryState is what the queue keeps of an entry.
type entryState struct {
	state   State
	charged bool
	// promised says that it was let in by what its target allows.
	promised bool
	pool     PoolID // where it was charged
	seq      int64
	since    time.Time // it waits
	// forecast is of the first token, from arrival, when it came.
	forecast time.Duration
	expires  int // its place in Queue.expiry
	age      int // and in class.ages
	// held is the last of Queue.looks in which it held for a worker, at the pool best.
	held  int64
	best  PoolID
	links []link // by index in Pools

	group        *group // if it may be taken out for others
	older, newer *Entry // there
}

// link is an entry's place at one of its pools.
type link struct {
	band *band
	flow *flow // nil: it is tried again
	at   int   // where it is in what it is in
	// rests says that it is in pool.resting: it was looked at in vain.
	rests bool
	aside int64 // what it counts for meanwhile
	// late says that it misses its deadline whatever happens; second that it does and
	// has a second one.
	late, second bool
}

// ref is an entry at its pool of this index.
type ref struct {
	entry *Entry
	index int
}

func (r ref) link() *link { return &r.entry.state.links[r.index] }

// moved notes where it is.
func (r ref) moved(to int) { r.link().at = to }

// due is the deadline that counts for the order.
func (r ref) due() time.Time {
	if e := r.entry; r.link().second {
		return e.Deadline.Add(e.Deadline.Sub(e.Arrived))
	}
	return r.entry.Deadline
}

// timely are entries that can meet their deadlines: the earliest first.
type timely struct{ ref }

func (a timely) before(b timely) bool {
	if d := a.due().Compare(b.due()); d != 0 {
		return d < 0
	}
	return a.entry.state.seq < b.entry.state.seq
}

// ordered are entries in the order in which they came.
type ordered struct{ ref }

func (a ordered) before(b ordered) bool { return a.entry.state.seq < b.entry.state.seq }

// expiring are entries by when their time is over.
type expiring struct{ *Entry }

func (a expiring) before(b expiring) bool {
	if d := a.Until.Compare(b.Until); d != 0 {
		return d < 0
	}
	return a.state.seq < b.state.seq
}

func (a expiring) moved(to int) { a.state.expires = to }

// aged puts entries in the order in which they came.
type aged struct{ *Entry }

func (a aged) before(b aged) bool { return a.Arrived.Before(b.Arrived) }
func (a aged) moved(to int)       { a.state.age = to }

// cost is what an entry will be charged, as far as is known.
func (e *Entry) cost() int64 {
	if e.state.charged {
		return 0
	}
	return e.Work
}

// part is what an entry counts for at each of its pools.
func (e *Entry) part() float64 { return float64(e.Work) / float64(len(e.Pools)) }

// resting is a line of entries that were looked at in vain. Those that leave it
// leave holes.
type resting struct {
	line  []ref
	front int // before it are holes only
	holes int // all of them
}

func (l *resting) len() int { return len(l.line) - l.holes }

func (l *resting) push(r ref) {
	r.moved(len(l.line))
	l.line = append(l.line, r)
}

// oldest returns who rests longest. There must be one.
func (l *resting) oldest() ref { return l.line[l.front] }

func (l *resting) remove(r ref) {
	l.line[r.link().at] = ref{}
	l.holes++
	for l.front < len(l.line) && l.line[l.front].entry == nil {
		l.front++
	}
	if l.holes > leastCap && l.holes > len(l.line)/2 || l.holes == len(l.line) {
		l.close()
	}
}

// close takes the holes out.
func (l *resting) close() {
	kept := l.line[:0]
	for _, r := range l.line {
		if r.entry != nil {
			r.moved(len(kept))
			kept = append(kept, r)
		}
	}
	clear(l.line[len(kept):])
	l.line, l.front, l.holes = shrunk(kept), 0, 0
}
