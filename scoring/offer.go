package scoring

import (
	"math"
	"slices"
	"time"
)

// Unbounded is a bound that every wait is within.
const Unbounded = time.Duration(math.MaxInt64)

// staleMatch is how old what Prepare found out may be at the first offer.
const staleMatch = 20 * time.Millisecond

// Prepared is a request on its way to a worker, whether it is given one at once or
// waits for one. It holds no load. Make it with [Fleet.Prepare], offer it as often
// as it takes, also after an attempt that failed, and give it back with Release. It
// must not be used by two goroutines at a time.
//
// Its luck in what is left to chance (whether it is spared a worker that has just
// become ready) is drawn once, so that offering it again does not change it.
type Prepared struct {
	fleet *Fleet
	req   *Request
	// chains are the prompt's keys, kept from one offer to the next; s has them
	// while it has matched them for the offer to come, as of at.
	chains []keyChain
	s      *scratch
	at     time.Time
	// luck is what chance is derived from, once it is drawn.
	luck    uint64
	drawn   bool
	counted bool // that nobody could take it
}

// Terms are the conditions of an offer. The zero value permits a worker that has
// nothing else to do.
type Terms struct {
	// Pool is the one pool whose workers may take the request now, although those of
	// others are candidates; empty is any.
	Pool string
	// Bound is up to which wait a worker may take it; see [Fleet.Offer].
	Bound time.Duration
	// Keep is what must stay free after it.
	Keep Keep
	// Held is what is set aside for workers; nil is nothing.
	Held *Held
}

// Keep is room to be left free in a pool: for so many sequences, and so many tokens
// of KV cache. Each of the pool's ready workers has its even part.
type Keep struct{ Requests, Tokens float64 }

// Refusal is why an offer was not taken: what the request would have met at the
// worker that is the best for it.
type Refusal struct {
	// Best is the worker with the least cost, Pool its pool. It is worth waiting for:
	// another one may be free, but the request would cost more there.
	Best WorkerID
	Pool string
	// Work is the prompt tokens that Best would have to compute.
	Work int
	// Open says that Best is open by the terms, but in another pool than they name.
	Open bool
	// Room is the tokens of cache that the request and its answer need at Best, if it is
	// for want of these, now or later, that it does not get it; else 0.
	Room int
	// Wait is how long the request would wait at Best for what is there already, TTFT
	// the whole time to its first token, Wait included. Both are medians.
	Wait, TTFT time.Duration
	// Look is the earliest time at which the offer can be taken without anything
	// being reported to the fleet; zero if that is not to be expected.
	Look time.Time
}

// Held is work that was set aside for workers: of requests that wait for a worker
// and come before the one to be offered. It counts in the cost of these workers, as
// it will be there before the request, and not against the bound. Room that is held
// must stay free: otherwise small requests would take what comes, bit by bit, and a
// large one would wait for ever. The zero value holds nothing; a nil *Held may be read.
type Held struct {
	workers []WorkerID
	of      []held
}

// held is what is set aside for one worker: work, and room in its cache, in tokens.
type held struct{ work, room int }

// Add sets aside work at a worker, and room in its cache, in tokens.
func (h *Held) Add(id WorkerID, work, room int) {
	i := slices.Index(h.workers, id)
	if i < 0 {
		i = len(h.workers)
		h.workers, h.of = append(h.workers, id), append(h.of, held{})
	}
	h.of[i].work += work
	h.of[i].room = max(h.of[i].room, room)
}

// Reset forgets what was added and keeps the memory.
func (h *Held) Reset() { h.workers, h.of = h.workers[:0], h.of[:0] }

// at is what is held for a worker.
func (h *Held) at(id WorkerID) held {
	if h != nil {
		if i := slices.Index(h.workers, id); i >= 0 {
			return h.of[i]
		}
	}
	return held{}
}

// Prepare does what can be done for a request before it is offered: it finds out
// who could take it, hashes its prompt and looks it up. req is read by each offer, so
// it must stay as it is until Release, but that Exclude and Priority may be changed
// between offers. now must be fresh. The error is [ErrNoWorker], [ErrNotReady] or a [TooLong].
func (f *Fleet) Prepare(now time.Time, req *Request) (*Prepared, error) {
	p := f.prepared.Get().(*Prepared)
	p.fleet, p.req = f, req
	if err := f.match(now, p, false); err != nil {
		p.Release()
		return nil, err
	}
	return p, nil
}

// Release gives p's memory back. p must not be used from then on.
func (p *Prepared) Release() {
	f := p.fleet
	p.unmatch()
	*p = Prepared{chains: p.chains[:0]}
	f.prepared.Put(p)
}

// match gathers the candidates and looks the prompt up, for the next offer. all
// leaves nobody out for having just become ready.
func (f *Fleet) match(now time.Time, p *Prepared, all bool) error {
	if p.s == nil {
		p.s = f.scratch.Get().(*scratch)
		p.s.chains, p.chains = p.chains, nil
	}
	p.at = now
	if err := f.gather(now, p, all); err != nil {
		p.unmatch()
		return err
	}
	// Hashing and looking up a long prompt takes longer than all the rest, so it is
	// done without the lock.
	p.s.match(&f.idx, p.req)
	return nil
}

// unmatch gives the scratch memory back and keeps the keys.
func (p *Prepared) unmatch() {
	if p.s == nil {
		return
	}
	p.chains, p.s.chains = p.s.chains, nil
	p.fleet.scratch.Put(p.s)
	p.s = nil
}

// Offer gives the request to the worker with the least cost, as [Fleet.Pick] does,
// if that worker is open by the terms. Otherwise nothing is counted anywhere, the
// reservation is nil and the refusal says what there was: the request does not go to
// another worker that happens to be open. now must be fresh. The error is
// [ErrNoWorker], [ErrNotReady] or a [TooLong].
//
// A worker is open while a request waits there, for what is there already, no longer
// than the terms' Bound, or than one step of the engine takes, so that a step can't
// close it, and, if the terms keep nothing free, than what is left of the step under way
// and one more, so that each step begins full; and while it keeps what is to be kept free. One that has nothing to do is
// always open, unless it said itself that it has no room; see [Fleet.Saturated].
//
// Workers that are spared because they have just become ready are candidates, too,
// where none of the others is open to the request.
func (f *Fleet) Offer(now time.Time, p *Prepared, terms Terms) (*Reservation, Refusal, error) {
	return f.offer(now, p, &terms)
}

func (f *Fleet) offer(now time.Time, p *Prepared, terms *Terms) (*Reservation, Refusal, error) {
	defer p.unmatch()
	all := false
	for {
		if p.s == nil || all || now.Sub(p.at) > staleMatch {
			if err := f.match(now, p, all); err != nil {
				return nil, Refusal{}, err
			}
		}
		r, no := f.reserve(now, p, terms)
		switch {
		case r != nil || no.Best != 0 && p.s.spared == 0:
			return r, no, nil
		case no.Best != 0:
			all = true
		default: // all of them left while the lock was not held
			p.unmatch()
		}
	}
}
