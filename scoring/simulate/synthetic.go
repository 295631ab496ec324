package simulate

import (
	"math"
	"math/rand/v2"
	"time"
)

// Arrivals says when the requests of a synthetic plan arrive: in a Poisson
// process of Rate requests a second, or, if Streams is not 0, whenever one of so
// many streams is free.
type Arrivals struct {
	Rate    float64
	Streams int
}

// spread gives the first turns of p their times of arrival.
func (a Arrivals) spread(p *Plan, seed uint64) {
	p.Streams = a.Streams
	if a.Streams > 0 {
		return
	}
	rng := rand.New(rand.NewPCG(seed, 0xa441))
	at := 0.0
	for i := range p.Requests {
		if r := &p.Requests[i]; !r.Turn {
			at += rng.ExpFloat64() / a.Rate
			r.At = time.Duration(at * float64(time.Second))
		}
	}
}

// Bucket is a group of equally long prefixes.
type Bucket struct {
	// Weight is the share of requests, relative to the other buckets'.
	Weight float64
	// Prefixes is how many there are, each of Tokens tokens, equally likely.
	Prefixes, Tokens int
}

// Prefixed is a load of prompts that begin with one of some prefixes and go on
// with tokens of their own.
type Prefixed struct {
	Name     string
	Requests int
	// Buckets hold the prefixes; with none every prompt is all its own.
	Buckets []Bucket
	// FreshMin to FreshMax tokens follow the prefix, OutputMin to OutputMax are
	// answered, evenly spread.
	FreshMin, FreshMax   int
	OutputMin, OutputMax int
	// Said is by how many times what clients say of their answers' lengths exceeds
	// them: 1 where they know; 0 where they say nothing.
	Said float64
}

// Mixed are the buckets of the mixed load: half of the requests on two long
// prefixes, a fifth on forty short ones, together more than a small cache holds.
func Mixed() []Bucket {
	return []Bucket{{50, 2, 3000}, {30, 8, 2000}, {20, 40, 1000}}
}

// Ids of segments: prefixes count from 1, what is a request's own from fresh.
const fresh = 1 << 32

// Plan makes the load's plan.
func (l Prefixed) Plan(a Arrivals, seed uint64) *Plan {
	p := &Plan{Name: l.Name, Requests: make([]Request, l.Requests)}
	rng := rand.New(rand.NewPCG(seed, 0x9ef1))
	total := 0.0
	for _, b := range l.Buckets {
		total += b.Weight
	}
	for i := range p.Requests {
		r := &p.Requests[i]
		if len(l.Buckets) > 0 {
			r.Prompt = append(r.Prompt, l.prefix(rng, total))
		}
		if n := between(rng, l.FreshMin, l.FreshMax); n > 0 {
			r.Prompt = append(r.Prompt, Segment{ID: salted(seed, fresh+uint64(i)), Tokens: n})
		}
		r.Output = between(rng, l.OutputMin, l.OutputMax)
		r.MaxTokens = int(math.Ceil(l.Said * float64(r.Output)))
	}
	a.spread(p, seed)
	return p
}

// prefix draws one.
func (l *Prefixed) prefix(rng *rand.Rand, total float64) Segment {
	x := rng.Float64() * total
	id := 1
	for i, b := range l.Buckets {
		if x -= b.Weight; x < 0 || i == len(l.Buckets)-1 {
			return Segment{ID: uint64(id + rng.IntN(b.Prefixes)), Tokens: b.Tokens}
		}
		id += b.Prefixes
	}
	panic("BUG: a prefix is drawn from no bucket")
}

// MultiTurn is a load of conversations that grow by a turn at a time.
type MultiTurn struct {
	Name string
	// Requests counts turns; the last conversation may be cut short.
	Requests int
	// TurnsMin to TurnsMax are the turns of a conversation, evenly spread.
	TurnsMin, TurnsMax int
	// System tokens begin every conversation, and are the same in all.
	System int
	// FreshMin to FreshMax tokens are new in each turn, OutputMin to OutputMax
	// are answered.
	FreshMin, FreshMax   int
	OutputMin, OutputMax int
	// Think is the mean time between an answer and the next turn, which is
	// exponentially distributed.
	Think time.Duration
}

// Plan makes the load's plan. In an open loop, it is conversations that arrive.
func (l MultiTurn) Plan(a Arrivals, seed uint64) *Plan {
	p := &Plan{Name: l.Name, Requests: make([]Request, l.Requests)}
	rng := rand.New(rand.NewPCG(seed, 0x3a7))
	turns := 0
	for i := range p.Requests {
		r := &p.Requests[i]
		r.Turn = turns > 0
		if turns == 0 {
			turns = between(rng, l.TurnsMin, l.TurnsMax)
			if l.System > 0 {
				r.Prompt = append(r.Prompt, Segment{ID: 1, Tokens: l.System})
			}
		} else {
			r.Think = time.Duration(rng.ExpFloat64() * float64(l.Think))
		}
		turns--
		r.Prompt = append(r.Prompt, Segment{ID: salted(seed, fresh+uint64(i)), Tokens: between(rng, l.FreshMin, l.FreshMax)})
		r.Output = between(rng, l.OutputMin, l.OutputMax)
	}
	a.spread(p, seed)
	return p
}

// between draws evenly from [lo, hi].
func between(rng *rand.Rand, lo, hi int) int { return lo + rng.IntN(hi-lo+1) }

// salted keeps what is fresh in one seed's load from being so in another's.
func salted(seed, id uint64) uint64 { return mix(seed)<<33 ^ id }
