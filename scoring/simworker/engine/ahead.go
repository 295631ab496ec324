package engine

import (
	"errors"
	"time"
)

// Ahead is an engine in virtual time that has run ahead of the present: as far
// as no request that may yet arrive can change what it does. Requests are taken
// first come first served, so that is often far, and when a request that arrives
// now would draw its first token is then a matter of one request, not of the
// whole queue.
//
// It agrees with an engine that is driven step by step, each step beginning when
// the last one ends or, if that left none, when a request arrives, provided that
// a step which begins at some moment is taken to begin before the requests that
// arrive at that moment.
type Ahead struct {
	eng *Engine
	// begun and ends are those of the step under way; without one, ends is when
	// the last one ended.
	begun, ends time.Time
}

// NewAhead returns an idle engine with an empty cache. It fails with priorities:
// whatever arrives may go before whatever waits.
func NewAhead(cfg Config) (*Ahead, error) {
	if cfg.Priority {
		return nil, errors.New("engine: Priority is set; what an engine will do can't be told ahead of requests that may go first")
	}
	e, err := New(cfg)
	if err != nil {
		return nil, err
	}
	return &Ahead{eng: e}, nil
}

// Clone returns one in the same state, which goes on independently.
func (a *Ahead) Clone() *Ahead {
	return &Ahead{eng: a.eng.Clone(), begun: a.begun, ends: a.ends}
}

// Add queues a request that arrives now. now must not be before an earlier
// call's.
func (a *Ahead) Add(now time.Time, p *Prepared) error {
	a.advance(now)
	if _, err := a.eng.AddPrepared(now, p); err != nil {
		return err
	}
	a.join(now)
	return nil
}

// advance runs on as far as a request that arrives now, or later, changes
// nothing.
func (a *Ahead) advance(now time.Time) {
	for a.eng.stepped && (a.eng.left == 0 || !a.begun.After(now)) {
		a.eng.End(a.ends)
		a.begin(a.ends)
	}
}

// begin starts the next step, if there is anything to do.
func (a *Ahead) begin(now time.Time) {
	if st, ok := a.eng.Begin(now); ok {
		a.begun, a.ends = now, now.Add(st.Duration)
	}
}

// join takes what arrived now into the step under way, which has not begun yet
// then, or starts one.
func (a *Ahead) join(now time.Time) {
	e := a.eng
	if !e.stepped {
		a.begin(later(now, a.ends))
		return
	}
	budget := e.left
	e.scheduleWaiting(a.begun, &budget)
	e.left = 0
	if len(e.waiting) == 0 && len(e.running) < e.cfg.MaxSeqs {
		e.left = budget
	}
	a.ends = a.begun.Add(e.current().Duration)
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// FirstToken returns when the first token of a request that arrives now would
// come, if no request arrived after it. now must not be before an earlier
// call's. It fails as Add does, and changes nothing that Add would notice.
func (a *Ahead) FirstToken(now time.Time, p *Prepared) (time.Time, error) {
	a.advance(now)
	if err := a.eng.accepts(p); err != nil {
		return time.Time{}, err
	}
	if at, ok := a.work(now, p); ok {
		return at, nil
	}
	return a.rehearse(now, p)
}

// rehearse finds the first token by running a copy of the engine.
func (a *Ahead) rehearse(now time.Time, p *Prepared) (time.Time, error) {
	b := a.Clone()
	id, err := b.eng.AddPrepared(now, p)
	if err != nil {
		return time.Time{}, err
	}
	b.join(now)
	for b.eng.stepped {
		for _, o := range b.eng.End(b.ends).Outputs {
			if o.ID == id {
				return b.ends, nil
			}
		}
		b.begin(b.ends)
	}
	return time.Time{}, errors.New("engine: a request that runs alone never gets a token")
}

// decoder is a running sequence that will only draw tokens: one in each of the
// next steps, until it ends.
type decoder struct {
	context, left int
	room          int // tokens that fit into its last block
}

// work calculates the first token of p, which changes nothing in the engine.
// All others are past their prompt by the end of the step that p can join, so
// all there is to know is how many of them are left in each step. It gives up,
// and says so, where blocks may run out.
func (a *Ahead) work(now time.Time, p *Prepared) (at time.Time, ok bool) {
	e := a.eng
	budget, at := e.cfg.BatchTokens, later(now, a.ends)
	jitter := e.jitter
	var factor float64
	var l load
	var others []decoder
	if e.stepped {
		budget, at, factor = e.left, a.begun, e.factor
		l, others = e.load(), e.decoders()
	} else {
		factor = e.nextFactor(&jitter)
	}
	hits := e.pool.lookup(e.hits[:0], p.hashes[:min((len(p.tokens)-1)/e.cfg.BlockSize, len(p.hashes))])
	e.hits = hits
	free := e.pool.free - e.pool.freeAmong(hits)
	held := len(hits)
	for done := held * e.cfg.BlockSize; ; {
		n := min(len(p.tokens)-done, budget)
		need := e.blocksFor(done+n) - held
		if n <= 0 || need > free {
			return at, false
		}
		held, free = held+need, free-need
		l.prefill += n
		l.pairs += int64(n)*int64(done) + int64(n)*int64(n)/2
		at = at.Add(e.duration(l, factor))
		if done += n; done == len(p.tokens) {
			return at, true
		}
		l = load{}
		others, free = drawAll(others, &l, free, e.cfg.BlockSize)
		if free < 0 {
			return at, false
		}
		budget = e.cfg.BatchTokens - l.decode
		factor = e.nextFactor(&jitter)
	}
}

// decoders are the sequences of the step under way as they will be at its end.
func (e *Engine) decoders() []decoder {
	out := e.future[:0]
	for _, s := range e.batch {
		left := s.req.MaxTokens - s.generated() - 1
		if s.natural > 0 {
			left = min(left, s.natural-s.generated()-1)
		}
		left = min(left, e.cfg.MaxModelLen-len(s.tokens)-1)
		if left > 0 {
			out = append(out, decoder{
				context: len(s.tokens), left: left, room: len(s.blocks)*e.cfg.BlockSize - len(s.tokens),
			})
		}
	}
	e.future = out
	return out
}

// drawAll adds to l a step in which all of d draw a token, and returns those
// that go on, and the free blocks less those that were taken. Blocks of those
// that end are not given back, so there may be more.
func drawAll(d []decoder, l *load, free, blockSize int) ([]decoder, int) {
	l.decode = len(d)
	rest := d[:0]
	for _, s := range d {
		l.context += int64(s.context)
		if s.room--; s.room < 0 {
			s.room += blockSize
			free--
		}
		s.context++
		if s.left--; s.left > 0 {
			rest = append(rest, s)
		}
	}
	return rest, free
}

// nextFactor draws a step's jitter.
func (e *Engine) nextFactor(jitter *noise) float64 {
	if j := e.cfg.Timing.Jitter; j > 0 {
		return 1 + j*(2*jitter.unit()-1)
	}
	return 1
}
