package scoring

import (
	"math"
	"slices"
	"time"
)

// Request is what a pick needs to know of a request.
type Request struct {
	// Model is the name the client asked for.
	Model string
	// Pools are the permitted pools. With none, no worker is permitted.
	Pools []string
	// Tokens is the prompt as the engine sees it, or as much of its beginning as
	// is known; nil when nothing is. It is not retained.
	Tokens []uint32
	// Estimate is the prompt's length in tokens where Tokens is not the whole of
	// it. A lesser value than there are Tokens has no effect.
	Estimate int
	// Length is how many tokens a worker's context must have room for, as far as that is
	// certain; 0 is any. See [Fleet.SetContext].
	Length int
	// Output is how many tokens the answer is expected to have, all texts of it
	// together; 0 is none. Only offers with a bound go by it; see [Fleet.Offer].
	Output int
	// LoRA is the adapter's name; empty is taken from Model where that names an
	// adapter of the worker.
	LoRA string
	// Salt is the cache salt that goes with the request, or empty.
	Salt string
	// Unary says that the answer comes in one piece, so its first token can't
	// be seen: FirstToken then releases load but trains nothing, and until it or
	// Done is called the prefill counts as over once its predicted time is. What
	// is learned from it is worked out at its end; see [Reservation.Output].
	Unary bool
	// Priority is what the engine is told where its pool goes by it; less is earlier.
	// See [Fleet.SetPriorities].
	Priority int64
	// Only is the one worker that will do; zero is any.
	Only WorkerID
	// Exclude are the workers that already failed this request.
	Exclude []WorkerID
}

// A prediction within tieShare, or tieFloor seconds, of the least is a tie.
const (
	tieShare = 0.01
	tieFloor = 0.0005
	// leastShare is the share of picks that a worker is a candidate for when
	// its slow start begins.
	leastShare = 0.1
	// longest bounds a delay as it is shown, in seconds.
	longest = 1e9
)

// Pick chooses the worker with the least predicted cost, which is the request's
// own TTFT plus the delay it causes others there; ties by fewest requests in
// flight and then at random. It counts the request's load on it in the same
// critical section. now must be fresh. The error is [ErrNoWorker], [ErrNotReady] or a
// [TooLong]. The caller must call Done on the reservation.
func (f *Fleet) Pick(now time.Time, req *Request) (*Reservation, error) {
	p, err := f.Prepare(now, req)
	if err != nil {
		return nil, err
	}
	defer p.Release()
	r, _, err := f.Offer(now, p, Terms{Bound: Unbounded})
	return r, err
}

// permits reports whether the request may go to the worker, ready or not.
func (r *Request) permits(w *worker) bool {
	return (r.Only == 0 || r.Only == w.id) && w.serves(r.Model) && slices.Contains(r.Pools, w.spec.Pool)
}

// fits reports whether the worker's context has room for the request, as far as known.
func (r *Request) fits(w *worker) bool { return w.context == 0 || r.Length <= w.context }

// gather finds the eligible workers, their views and the chains these are
// matched with. all spares nobody.
func (f *Fleet) gather(now time.Time, p *Prepared, all bool) error {
	req, s := p.req, p.s
	f.mu.Lock()
	defer f.mu.Unlock()
	s.reset()
	serving, warm, longest := false, 0, 0
	for _, w := range f.workers {
		if w.retired || !req.permits(w) {
			continue
		}
		if !req.fits(w) {
			longest = max(longest, w.context)
			continue
		}
		serving = true
		if w.ready && !w.busyTrial() && !slices.Contains(req.Exclude, w.id) {
			s.add(w, req, f.cfg.BlockSize)
			if !w.starting(now, f.cfg.SlowStart) {
				warm++
			}
		}
	}
	if warm > 0 && warm < len(s.candidates) && !all {
		f.holdBack(now, p, warm)
	}
	if len(s.candidates) == 0 && serving {
		f.addTrials(req, s)
	}
	if len(s.candidates) == 0 {
		return f.nobody(p, serving, longest)
	}
	s.walk.reset(len(f.idx.taken))
	f.soon.expire(now)
	s.expected = f.soon.added
	return nil
}

// Serves returns nil if a worker is ready that may take the request, however long that
// would take, and else [ErrNotReady], [TooLong] or [ErrNoWorker]. It counts nothing.
func (f *Fleet) Serves(req *Request) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	serving, longest := false, 0
	for _, w := range f.workers {
		switch {
		case w.retired || !req.permits(w):
		case !req.fits(w):
			longest = max(longest, w.context)
		case w.ready && !slices.Contains(req.Exclude, w.id):
			return nil
		default:
			serving = true
		}
	}
	switch {
	case serving:
		return ErrNotReady
	case longest > 0:
		return &TooLong{longest}
	}
	return ErrNoWorker
}

// nobody counts a request that nobody can take, once. longest is the longest context of
// those that are too short for it. It requires that f.mu is held.
func (f *Fleet) nobody(p *Prepared, serving bool, longest int) error {
	first := !p.counted
	p.counted = true
	if serving {
		if first {
			f.stats.NotReady++
		}
		return ErrNotReady
	}
	if longest > 0 {
		if first {
			f.stats.TooLong++
		}
		return &TooLong{longest}
	}
	if first {
		f.stats.NoWorker++
	}
	return ErrNoWorker
}

// holdBack takes workers that have just become ready out of most picks, at
// first out of nine in ten, then less and less. Where few are warm, these get at
// most about twice their even part meanwhile: a fleet that grows at once must not
// send all to the few it had. It requires that f.mu is held and that warm other
// candidates are left.
func (f *Fleet) holdBack(now time.Time, p *Prepared, warm int) {
	s := p.s
	if !p.drawn {
		p.luck, p.drawn = f.rng.Uint64(), true
	}
	all := float64(len(s.candidates))
	least := max(leastShare, (all/2-float64(warm))/(all-float64(warm)))
	s.candidates = slices.DeleteFunc(s.candidates, func(c candidate) bool {
		w := c.worker
		if !w.starting(now, f.cfg.SlowStart) {
			return false
		}
		share := max(least, now.Sub(w.readySince).Seconds()/f.cfg.SlowStart.Seconds())
		return chance(p.luck, w.id) >= share
	})
	s.spared = int(all) - len(s.candidates)
}

// chance is a number in [0, 1) that is drawn for a request, by its luck, and a worker.
// It mixes as SplitMix64 does (G. Steele and others, OOPSLA 2014).
func chance(luck uint64, id WorkerID) float64 {
	x := luck + uint64(id)*0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return float64((x^x>>31)>>11) / (1 << 53)
}

// reserve chooses among the candidates and, if the one it chooses is open, counts the
// load. The refusal names no worker when all of them left while the lock was not held.
func (f *Fleet) reserve(now time.Time, p *Prepared, terms *Terms) (*Reservation, Refusal) {
	req, s := p.req, p.s
	f.mu.Lock()
	defer f.mu.Unlock()
	s.candidates = slices.DeleteFunc(s.candidates, func(c candidate) bool {
		return c.worker.removed || !c.worker.ready || !s.trials && c.worker.busyTrial()
	})
	if len(s.candidates) == 0 {
		return nil, Refusal{}
	}
	if f.soon.added != s.expected {
		s.rematch(&f.idx)
	}
	s.measure(req, &f.cfg)
	f.weigh(now, p, terms)
	var c *candidate
	why := ReasonStrategy
	if by := f.cfg.Strategy; by == StrategyTTFT {
		c, why = f.choose(s)
	} else {
		c = f.chooseBy(s, by)
	}
	open, wait := f.open(now, p, c, terms)
	if !open || terms.Pool != "" && c.worker.spec.Pool != terms.Pool {
		return nil, f.refuse(now, p, c, wait, open, terms)
	}
	r := f.count(now, req, s, c)
	f.keep(req, s, r, why)
	return r, Refusal{}
}

// weigh predicts what each candidate comes to. It requires that f.mu is held.
func (f *Fleet) weigh(now time.Time, p *Prepared, terms *Terms) {
	req, s := p.req, p.s
	s.free = 0
	var latest time.Time // when one of the candidates' pools last learned
	for i := range s.candidates {
		c := &s.candidates[i]
		var free float64
		c.bound, free = c.worker.rates(now)
		s.free += free / float64(len(s.candidates))
		if at := c.worker.predictor.pool.at; at.After(latest) {
			latest = at
		}
	}
	for i := range s.candidates {
		s.candidates[i].worker.predictor.pool.relax(latest, poolPatience*f.cfg.IdleHalfLife)
		f.predict(now, req, s, &s.candidates[i])
	}
	s.temper()
	if terms.Keep != (Keep{}) {
		f.readyWorkers()
	}
	for i := range s.candidates {
		c := &s.candidates[i]
		c.conclude(s.free)
		c.held = c.line.perToken * float64(terms.Held.at(c.worker.id).work) / float64(c.worker.engines())
		c.lacks = 0
		c.kept = f.keptWait(now, p, c, terms)
	}
}

// predict finds what a candidate's prediction is made of; see candidate.conclude.
// It requires that f.mu is held.
func (f *Fleet) predict(now time.Time, req *Request, s *scratch, c *candidate) {
	w := c.worker
	l := &c.line
	f.meet(now, w, req.Priority, float64(c.work), l)
	c.ahead = l.ahead
	c.running = (float64(w.running) + l.others) / float64(w.engines())
	steps := 1 + (c.ahead+float64(c.work))/float64(f.cfg.BatchTokens)
	c.x = vector{
		termBase:   1,
		termTokens: (c.ahead + float64(c.work)) / 1000,
		termSeqs:   c.running * steps,
		termPairs:  l.pairs + c.pairs,
	}
	c.full = max(l.slot,
		w.spaceWait(now, f.cfg.LoadStale, s.keys(c), s.size(c), req.prompt(), l.others),
		l.left)
	// What is ahead is computed in the same time.
	c.fixed = max(0, c.full-l.perToken*c.ahead-l.perPair*l.pairs)
	c.speed, c.foreign = l.speed, l.waiting+l.others
}

// attentionPairs counts, in millions, the (new token, token before it) pairs of
// a prefill of n tokens after cached ones.
func attentionPairs(n, cached float64) float64 { return n * (cached + n/2) / 1e6 }

// choose returns the candidate with the least predicted cost, and why. It
// requires that f.mu is held.
func (f *Fleet) choose(s *scratch) (best *candidate, why Reason) {
	least := math.Inf(1)
	for i := range s.candidates {
		least = min(least, s.candidates[i].cost())
	}
	tie := least + max(tieShare*least, tieFloor)
	ties, equals := 0, 0
	for i := range s.candidates {
		c := &s.candidates[i]
		if c.cost() > tie {
			continue
		}
		ties++
		switch n := c.worker.inFlight(); {
		case best == nil || n < best.worker.inFlight():
			best, equals = c, 1
		case n == best.worker.inFlight():
			if equals++; f.rng.IntN(equals) == 0 {
				best = c
			}
		}
	}
	switch {
	case len(s.candidates) == 1:
		return best, ReasonOnly
	case equals > 1:
		return best, ReasonChance
	case ties > 1:
		return best, ReasonFewest
	}
	return best, ReasonLeast
}

// count makes the reservation for the chosen candidate and adds its load. It
// requires that f.mu is held.
func (f *Fleet) count(now time.Time, req *Request, s *scratch, c *candidate) *Reservation {
	r := &Reservation{
		fleet: f, worker: c.worker, info: c.worker.info(),
		picked: now, predicted: seconds(c.raw), p90: seconds(c.p90), cached: c.cached, prompt: req.prompt(),
		unary: req.Unary, priority: req.Priority, work: c.work, pairs: c.pairs, x: c.x, raw: c.raw, fixed: c.fixed,
	}
	c.worker.insert(now, r, c.worker.behind(r))
	c.worker.enter(now, &r.holds, s.keys(c), s.size(c), r.prompt, req.Output)
	f.inFlight++
	f.stats.Picks++
	c.worker.picks++
	c.worker.arrive(now, s.bound(c, r.prompt))
	c.worker.lastPick = f.stats.Picks
	f.stats.PromptTokens += int64(r.prompt)
	f.stats.CachedTokens += int64(r.cached)
	if req.Tokens == nil {
		f.stats.UnknownTokens++
	}
	if c.chain >= 0 {
		keys := s.chains[c.chain].keys
		r.expects = f.soon.add(now, r, keys[min(int(c.depth.real), len(keys)):], c.col)
	}
	return r
}

// keep writes the pick into the ring of recent predictions. It requires that
// f.mu is held.
func (f *Fleet) keep(req *Request, s *scratch, r *Reservation, why Reason) {
	rec := f.ring.next()
	if rec == nil {
		return
	}
	r.record = rec.Seq
	rec.Picked, rec.Model = r.picked, req.Model
	rec.Prompt, rec.TokensKnown = r.prompt, req.Tokens != nil
	rec.Winner, rec.Why = r.info.ID, why
	for i := range s.candidates {
		c := &s.candidates[i]
		rec.Candidates = append(rec.Candidates, Prediction{
			Worker: c.worker.id,
			Total:  seconds(c.raw), P90: seconds(c.p90),
			Base: seconds(c.base), Prefill: seconds(c.prefill),
			Wait:   seconds(max(0, c.raw-c.base-c.prefill)),
			Delay:  seconds(min(c.cost()-c.raw, longest)),
			Cached: c.cached, Assumed: c.assumed,
			Ahead: int(c.ahead), Running: int(c.running),
		})
	}
}

// prompt is the prompt's length: known, or estimated as far as it isn't.
func (r *Request) prompt() int { return max(len(r.Tokens), r.Estimate) }
