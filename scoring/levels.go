package scoring

// queued is the part of a worker's queue that is before a request.
type queued struct {
	requests, tokens int
	pairs            float64
}

// level is what waits with one priority.
type level struct {
	priority int64
	queued
}

// all is the whole queue.
func (l *workload) all() queued { return queued{l.prefilling, l.tokens, l.pairs} }

// count adds r to its level by times.
func (l *workload) count(r *Reservation, times int) {
	i := 0
	for i < len(l.levels) && l.levels[i].priority != r.priority {
		i++
	}
	if i == len(l.levels) {
		l.levels = append(l.levels, level{priority: r.priority})
	}
	v := &l.levels[i]
	v.requests += times
	v.tokens += times * r.work
	if v.pairs += float64(times) * r.pairs; v.requests == 0 {
		last := len(l.levels) - 1
		l.levels[i] = l.levels[last]
		l.levels = l.levels[:last]
	}
}

// before is the part of w's queue that goes before a request of this priority which
// comes now. An engine that takes waiting requests by priority does not put off the
// one that it has begun with.
func (w *worker) before(priority int64) queued {
	if !w.predictor.pool.byPriority || w.head == nil {
		return w.all()
	}
	var q queued
	if w.head.priority > priority {
		q = queued{1, w.head.work, w.head.pairs}
	}
	for i := range w.levels {
		if v := &w.levels[i]; v.priority <= priority {
			q.requests += v.requests
			q.tokens += v.tokens
			q.pairs += v.pairs
		}
	}
	return q
}

// behind is the request of w's queue that r, which comes now, is taken after; nil if
// the queue is empty.
func (w *worker) behind(r *Reservation) *Reservation {
	last := w.tail
	if w.predictor.pool.byPriority {
		for last != w.head && last.priority > r.priority {
			last = last.prev
		}
	}
	return last
}

// SetPriorities says whether the pool's engines take waiting requests in the order
// of their priority (vLLM's scheduling policy "priority") and not in that in which
// they come. It concerns what is picked from then on.
func (f *Fleet) SetPriorities(pool string, on bool) {
	f.mu.Lock()
	p := f.pool(pool)
	turned := p.byPriority != on
	p.byPriority = on
	f.mu.Unlock()
	if turned {
		f.madeRoom(pool)
	}
}

// pool returns what the workers of a pool have learned, of which there may be none
// yet. It requires that f.mu is held.
func (f *Fleet) pool(name string) *pool {
	p := f.pools[name]
	if p == nil {
		p = newPool(f.cfg.Prior.vector())
		f.pools[name] = p
	}
	return p
}
