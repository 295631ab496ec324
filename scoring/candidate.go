package scoring

import "math"

// candidate is an eligible worker with what a pick found out about it.
type candidate struct {
	worker *worker
	// views are its ranks' views, chain is the index of the keys they are
	// matched with, -1 when the prompt's tokens are unknown.
	views []*view
	chain int

	// col is the view of the rank that matches best, depth what it matches,
	// trusted whether that is all there is.
	col     int
	depth   depth
	trusted bool

	// cached is the prompt's tokens in that view, assumed what a view that is
	// not trusted is credited with on top. work is the tokens left to compute,
	// with the cost of reading slow tiers; pairs is its attention pairs.
	cached, assumed int
	work            int
	pairs           float64

	// The prediction, in tokens, sequences and seconds; see Fleet.predict. raw
	// is the median, of which fixed is not learned; base and prefill are parts.
	// foreign are the requests of other senders in the worker's hands. line is what
	// ahead, running and fixed come from.
	ahead, running float64
	foreign        float64
	x              vector
	line           line
	speed          float64
	fixed, raw     float64
	// full is the longest of the waits that are not for what is computed there, held
	// the time that work set aside for the worker takes, kept how much longer it is
	// until what must be kept free will be, in seconds.
	full, held float64
	kept       float64
	// lacks is the room that the request needs, in tokens, where there is too little.
	lacks         int
	base, prefill float64
	p90           float64
	// bound is the rate at which requests come to the worker for what it holds.
	bound float64
	// delay is what the request costs others on this worker, in seconds; see
	// worker.delay.
	delay float64
}

const (
	// delayCap bounds the waiting of others that a choice counts, in times of
	// the request's own prefill: beyond it the queues are so long that who will
	// come and what will still be cached can't be told.
	delayCap = 10
	// evictedShare is the share of what a request evicts that is computed again.
	evictedShare = 0.5
)

// cost is what the choice minimises, in seconds.
func (c *candidate) cost() float64 { return c.raw + c.delay + c.held + c.kept }

// temper takes out of each prediction by how much the worker seems faster or
// slower than the pool's other candidates as far as that is no more than the
// scatter of its first tokens brings about by itself. Otherwise who happened to
// be measured fast gets request after request while another does less.
func (s *scratch) temper() {
	for i := range s.candidates {
		p := s.candidates[i].worker.predictor.pool
		p.seeming, p.candidates = 0, 0
	}
	for i := range s.candidates {
		c := &s.candidates[i]
		p := c.worker.predictor.pool
		p.seeming += c.seeming()
		p.candidates++
	}
	for i := range s.candidates {
		c := &s.candidates[i]
		p := &c.worker.predictor
		c.speed *= p.temper(c.seeming() - p.pool.seeming/float64(p.pool.candidates))
	}
}

// seeming is the logarithm of how many times longer c's worker is predicted to
// take for what this request needs there than its pool's coefficients say.
func (c *candidate) seeming() float64 {
	p := &c.worker.predictor
	return math.Log(c.speed * p.coef.dot(c.x) / p.pool.coef.dot(c.x))
}

// conclude makes the prediction from what predict found. free is the mean rate at
// which the candidates get requests that might have gone to any of them.
func (c *candidate) conclude(free float64) {
	p := &c.worker.predictor
	c.raw = clamp(c.fixed+c.speed*p.coef.dot(c.x), minTTFT.Seconds(), maxTTFT.Seconds())
	c.base = c.speed * p.coef[termBase]
	c.prefill = c.speed * (p.coef[termTokens]*float64(c.work)/1000 + p.coef[termPairs]*c.pairs)
	c.p90 = clamp(c.raw*p.upperFactor, c.raw, maxTTFT.Seconds())
	c.delay = c.worker.delay(c, free)
}

// keyChain is the request's keys for one way of hashing it. Candidates that
// agree on it share it, and there is mostly one.
type keyChain struct {
	size        int
	model, lora string
	keys        []Key
	hashed      bool // keys are there
}

// scratch is the memory of one pick, reused by the next.
type scratch struct {
	candidates []candidate
	views      []*view
	chains     []keyChain
	walk       walk
	// expected is how many speculative entries had been made before the
	// look-up.
	expected uint64
	// free is the mean rate at which the candidates get requests that might
	// have gone to any of them.
	free float64
	// trials says that workers on trial are the only candidates.
	trials bool
	// spared counts the workers left out for having just become ready.
	spared int
}

// reset empties s, but for its chains, and keeps its memory.
func (s *scratch) reset() {
	clear(s.candidates) // releases the workers of the last pick
	clear(s.views)
	s.candidates, s.views, s.trials, s.spared = s.candidates[:0], s.views[:0], false, 0
}

// add makes a worker a candidate. It requires that the fleet's mu is held.
func (s *scratch) add(w *worker, req *Request, blockSize int) {
	c := candidate{worker: w, chain: -1, col: w.views[0].col}
	if len(req.Tokens) > 0 {
		first := len(s.views)
		s.views = append(s.views, w.views...)
		c.views = s.views[first:]
		c.chain = s.chainFor(w.blockSize(blockSize), w.spec.Models[0], w.adapter(req))
	}
	s.candidates = append(s.candidates, c)
}

// chainFor returns the index of the chain with these properties.
func (s *scratch) chainFor(size int, model, lora string) int {
	for i := range s.chains {
		if c := &s.chains[i]; c.size == size && c.model == model && c.lora == lora {
			return i
		}
	}
	n := len(s.chains)
	if n < cap(s.chains) {
		s.chains = s.chains[:n+1] // an old one, for the memory of its keys
	} else {
		s.chains = append(s.chains, keyChain{})
	}
	c := &s.chains[n]
	*c = keyChain{size: size, model: model, lora: lora, keys: c.keys[:0]}
	return n
}

// keys are the prompt's keys as c's worker has them, nil when unknown.
func (s *scratch) keys(c *candidate) []Key {
	if c.chain < 0 {
		return nil
	}
	return s.chains[c.chain].keys
}

// size is the block size that goes with keys.
func (s *scratch) size(c *candidate) int {
	if c.chain < 0 {
		return 1
	}
	return s.chains[c.chain].size
}

// bound says how much of a request must go to c for what c holds: the share of
// the prompt that no other candidate holds.
func (s *scratch) bound(c *candidate, prompt int) float64 {
	other := 0
	for i := range s.candidates {
		if o := &s.candidates[i]; o != c {
			other = max(other, o.cached)
		}
	}
	if len(s.candidates) == 1 {
		return 1
	}
	return float64(max(0, c.cached-other)) / float64(max(1, prompt))
}

// match hashes the prompt once for each chain, if that is not done yet, and finds how
// far each candidate matches it.
func (s *scratch) match(x *index, req *Request) {
	for i := range s.chains {
		chain := &s.chains[i]
		if !chain.hashed {
			chain.keys = AppendKeys(chain.keys, Root(chain.model, chain.lora, req.Salt), req.Tokens, chain.size)
			chain.hashed = true
		}
		clear(s.walk.cols)
		for j := range s.candidates {
			if c := &s.candidates[j]; c.chain == i {
				for _, v := range c.views {
					s.walk.cols[v.col/64] |= 1 << (v.col % 64)
				}
			}
		}
		x.match(chain.keys, &s.walk)
		for j := range s.candidates {
			if c := &s.candidates[j]; c.chain == i {
				c.takeBest(s.walk.depths)
			}
		}
	}
}

// takeBest takes over the match of the rank that matches best. The engine
// chooses the rank by itself; that it chooses well is an assumption.
func (c *candidate) takeBest(depths []depth) {
	for i, v := range c.views {
		if d := depths[v.col]; i == 0 || d.all > c.depth.all {
			c.col, c.depth, c.trusted = v.col, d, v.trusted.Load()
		}
	}
}

// rematch goes on with matches that a pick made in the meantime may have
// lengthened.
func (s *scratch) rematch(x *index) {
	for i := range s.candidates {
		c := &s.candidates[i]
		if c.chain < 0 {
			continue
		}
		keys := s.chains[c.chain].keys
		for int(c.depth.all) < len(keys) && x.holds(keys[c.depth.all], c.col) {
			c.depth.all++
		}
	}
}

// measure turns matches into work. The engine computes at least a prompt's last
// token, and a hit ends at a block. A worker whose view is not to be trusted is
// assumed to hold no less than the trusted candidates do on average: unknown is
// not empty, and it must get its share of the requests.
func (s *scratch) measure(req *Request, cfg *Config) {
	prompt := req.prompt()
	mean, trusted := 0, 0
	for i := range s.candidates {
		c := &s.candidates[i]
		c.cached = 0
		if c.chain < 0 {
			continue
		}
		size := s.chains[c.chain].size
		c.cached = min(int(c.depth.all), (prompt-1)/size) * size
		if c.trusted {
			mean += c.cached
			trusted++
		}
	}
	if trusted > 0 {
		mean /= trusted
	}
	for i := range s.candidates {
		c := &s.candidates[i]
		c.assumed = 0
		if c.chain >= 0 && !c.trusted {
			c.assumed = max(0, min(mean, prompt-1)-c.cached)
		}
		held := c.cached + c.assumed
		slow := 0.0
		if c.depth.cpu|c.depth.disk != 0 {
			size := float64(s.chains[c.chain].size)
			slow = size * (cfg.CPUCost*float64(c.depth.cpu) + cfg.DiskCost*float64(c.depth.disk))
		}
		left := float64(prompt - held)
		c.pairs = attentionPairs(left, float64(held))
		c.work = int(math.Round(min(left+slow, float64(prompt))))
	}
}
