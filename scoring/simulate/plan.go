package simulate

import (
	"fmt"
	"math"
	"math/rand/v2"
	"time"
)

// Plan is a load: requests and what sets each of them off. It says the same to
// every strategy, and is not changed by a run.
type Plan struct {
	// Name says what it is, for reports.
	Name     string
	Requests []Request
	// Streams closes the loop: that many requests are under way at any time, and
	// the next one in order arrives when one ends. 0 leaves the loop open:
	// requests arrive at their own times.
	Streams int
	// Tenants are those whose requests they are; with none all are one's.
	Tenants []Tenant
}

// Tenant is somebody who sends requests. It counts with a queue alone; see
// [Config].
type Tenant struct {
	Name string
	// Weight is its part against other tenants; 0 is 1.
	Weight float64
	// Returns is how often it sends a request again that was refused. It does so
	// when it was told to; or, with a Hurry, so long after the refusal whatever it
	// was told.
	Returns int
	Hurry   time.Duration
}

// Request is one request of a plan.
type Request struct {
	// Tenant is the index of whose it is, Class that of its class; see [Config].
	Tenant, Class int
	// Pools are the indices of the pools that it may go to; none is all.
	Pools []int
	// At is when it arrives, since the start. It counts in an open loop only,
	// and not for a later turn.
	At time.Duration
	// Turn says that this is a later turn of the conversation whose last turn is
	// the request before it in the plan. It arrives Think after that one's end,
	// and its prompt is that one's prompt, its answer, and Prompt.
	Turn  bool
	Think time.Duration
	// Prompt is the prompt's parts, one after another.
	Prompt []Segment
	// Output is the tokens of the answer, at least 1.
	Output int
	// MaxTokens is what its client says that the answer has at most; 0 is nothing.
	MaxTokens int
}

// Segment is a run of tokens. Equal ids mean equal tokens: a shorter segment
// holds the first ones of a longer one with the same id.
type Segment struct {
	ID     uint64
	Tokens int
}

// vocabulary is the number of token ids that prompts are made of.
const vocabulary = 1 << 17

// append appends the segment's tokens to dst: a splitmix64 sequence for each
// id (Steele, Lea, Flood: Fast splittable pseudorandom number generators, 2014).
func (s Segment) append(dst []uint32) []uint32 {
	state := mix(s.ID + 0x9e3779b97f4a7c15)
	for range s.Tokens {
		state += 0x9e3779b97f4a7c15
		dst = append(dst, uint32(mix(state)%vocabulary))
	}
	return dst
}

// mix is splitmix64's output function.
func mix(z uint64) uint64 {
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	return z ^ z>>31
}

// tokens is the length of the request's own parts.
func (r *Request) tokens() int {
	n := 0
	for _, s := range r.Prompt {
		n += s.Tokens
	}
	return n
}

// check reports the first request that cannot be served by engines whose
// contexts hold up to limit tokens.
func (p *Plan) check(limit int) error {
	if len(p.Requests) == 0 {
		return fmt.Errorf("%s has no requests", p.Name)
	}
	if p.Streams < 0 {
		return fmt.Errorf("%s: %d streams; it must not be negative", p.Name, p.Streams)
	}
	context := 0 // of the conversation so far
	for i := range p.Requests {
		r := &p.Requests[i]
		if !r.Turn {
			context = 0
		} else if i == 0 {
			return fmt.Errorf("%s: the first request is a later turn", p.Name)
		}
		own := r.tokens()
		context += own + r.Output
		switch {
		case r.Tenant < 0 || r.Tenant >= max(1, len(p.Tenants)):
			return fmt.Errorf("%s: request %d is of tenant %d; there are %d, counted from 0", p.Name, i+1, r.Tenant, max(1, len(p.Tenants)))
		case own < 1 || r.Output < 1:
			return fmt.Errorf("%s: request %d has %d tokens and asks for %d; both must be at least 1", p.Name, i+1, own, r.Output)
		case r.At < 0 || r.Think < 0:
			return fmt.Errorf("%s: request %d has a negative time", p.Name, i+1)
		case context > limit:
			return &TooLongError{Plan: p.Name, Request: i + 1, Tokens: context, Limit: limit}
		}
	}
	return nil
}

// checkPlaces reports the first request of a class or for a pool that there is not.
func (p *Plan) checkPlaces(cfg *Config) error {
	classes := 1
	if cfg.QoS != nil {
		classes = len(cfg.QoS.Classes)
	}
	for i := range p.Requests {
		r := &p.Requests[i]
		if r.Class < 0 || r.Class >= classes {
			return fmt.Errorf("%s: request %d is of class %d; there are %d, counted from 0", p.Name, i+1, r.Class, classes)
		}
		for _, pool := range r.Pools {
			if pool < 0 || pool >= len(cfg.pools()) {
				return fmt.Errorf("%s: request %d may go to pool %d; there are %d, counted from 0", p.Name, i+1, pool, len(cfg.pools()))
			}
		}
	}
	return nil
}

// until is when the last request of an open loop comes, never in a closed one.
func (p *Plan) until() time.Duration {
	if p.Streams > 0 {
		return never
	}
	last := time.Duration(0)
	for i := range p.Requests {
		last = max(last, p.Requests[i].At)
	}
	return last
}

// TooLongError says that a request does not fit into a worker's cache.
type TooLongError struct {
	Plan    string
	Request int // counted from 1
	// Tokens is the prompt and the answer, Limit what a worker holds.
	Tokens, Limit int
}

func (e *TooLongError) Error() string {
	return fmt.Sprintf("%s: request %d needs %d tokens of cache, a worker has %d", e.Plan, e.Request, e.Tokens, e.Limit)
}

// end says whether request i is the last one of its conversation.
func (p *Plan) end(i int) bool { return i+1 == len(p.Requests) || !p.Requests[i+1].Turn }

// Spread moves each arrival by a random time below window, which undoes time
// stamps that were rounded down to it.
func (p *Plan) Spread(window time.Duration, seed uint64) {
	if window <= 0 {
		return
	}
	rng := rand.New(rand.NewPCG(seed, 0x59d))
	for i := range p.Requests {
		p.Requests[i].At += time.Duration(rng.Int64N(int64(window)))
	}
}

// Hurry makes all arrive factor times faster. factor must be above 0.
func (p *Plan) Hurry(factor float64) {
	for i := range p.Requests {
		p.Requests[i].At = time.Duration(math.Round(float64(p.Requests[i].At) / factor))
	}
}
