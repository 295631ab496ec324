package gateway

import (
	"hash/maphash"
	"math"
	"math/bits"
	"sync"

	"github.com/sluicegate/sluice/tenancy"
)

// lengths learns how long answers are, for each tenant and model, from those to
// requests that gave no max_tokens: what limits reserve for the next such request.
// It is an estimate only: nothing is cut off by it, and what exceeds it is charged
// as it runs. It is safe for concurrent use.
type lengths struct {
	seed   maphash.Seed
	shards [lengthShards]lengthShard
}

const (
	lengthShards = 16
	// maxLengths bounds the pairs that are known: some 20 MB.
	maxLengths = 1 << 16
	// lengthBins are three for each doubling, so that an estimate is at most a
	// quarter more than what it stands for.
	lengthBins       = 64
	binsPerDoubling  = 3
	leastLength      = 16
	leastLengthsSeen = 20
	leastMeanSeen    = 5
	// lengthQuantile of the answers are not longer than the estimate.
	lengthQuantile = 0.9
	// lengthMemory is how many answers count: older ones fade.
	lengthMemory = 128
)

type lengthShard struct {
	mu sync.Mutex // protects everything below
	// known finds them; list is the same set, for the hand that forgets the one
	// that nobody has asked for since it came by last.
	known map[lengthKey]*lengthStats
	list  []*lengthStats
	hand  int
}

type lengthKey struct {
	tenant, model string
	// said is the magnitude of max_tokens, in bits; 0 where none was said.
	said int
}

// lengthStats are the answers to one tenant by one model.
type lengthStats struct {
	key    lengthKey
	asked  bool
	seen   int
	weight float64 // of the next answer
	sum    float64 // of the bins
	bins   [lengthBins]float32
	expect int64
	tokens float64 // of all answers, by their weights
}

func (l *lengths) init() {
	l.seed = maphash.MakeSeed()
	for i := range l.shards {
		l.shards[i].known = make(map[lengthKey]*lengthStats)
	}
}

func (l *lengths) shard(k lengthKey) *lengthShard {
	return &l.shards[maphash.Comparable(l.seed, k)%lengthShards]
}

// expect is how long an answer is likely to be at most; false where too few are
// known.
func (l *lengths) expect(tenant, model string) (tokens int64, ok bool) {
	st, ok := l.ask(lengthKey{tenant: tenant, model: model})
	return st.expect, ok && st.seen >= leastLengthsSeen
}

// mean is how long an answer is on average where so many tokens (nil: nothing) were said
// to be the most: clients that know what they want say it, others say a large number
// whatever comes. It is false where too few are known.
func (l *lengths) mean(tenant, model string, said *int64) (tokens int64, ok bool) {
	st, ok := l.ask(lengthKey{tenant, model, magnitude(said)})
	if !ok {
		return 0, false
	}
	return int64(math.Ceil(st.tokens / st.sum)), st.seen >= leastMeanSeen
}

// ask returns what is known of answers of a kind, and notes that somebody asked.
func (l *lengths) ask(k lengthKey) (lengthStats, bool) {
	s := l.shard(k)
	s.mu.Lock()
	defer s.mu.Unlock()
	st := s.known[k]
	if st == nil {
		return lengthStats{}, false
	}
	st.asked = true
	return *st, true
}

// magnitude is the bits of a number that was said, 0 if none was.
func magnitude(said *int64) int {
	if said == nil {
		return 0
	}
	return bits.Len64(uint64(max(1, *said)))
}

// learn notes the length of one answer to a request that said nothing of it.
func (l *lengths) learn(tenant, model string, tokens int64) {
	l.note(lengthKey{tenant: tenant, model: model}, tokens)
}

// learnMean notes the length of one answer of which so many tokens were said to be the
// most.
func (l *lengths) learnMean(tenant, model string, said *int64, tokens int64) {
	l.note(lengthKey{tenant, model, magnitude(said)}, tokens)
}

func (l *lengths) note(k lengthKey, tokens int64) {
	if tokens < 0 {
		return
	}
	s := l.shard(k)
	s.mu.Lock()
	defer s.mu.Unlock()
	st := s.known[k]
	if st == nil {
		st = s.add(k)
	}
	st.learn(tokens)
}

// add makes room for a pair and begins it.
func (s *lengthShard) add(k lengthKey) *lengthStats {
	st := &lengthStats{key: k, weight: 1}
	s.known[k] = st
	if len(s.list) < maxLengths/lengthShards {
		s.list = append(s.list, st)
		return st
	}
	for s.list[s.hand].asked {
		s.list[s.hand].asked = false
		s.hand = (s.hand + 1) % len(s.list)
	}
	delete(s.known, s.list[s.hand].key)
	s.list[s.hand] = st
	s.hand = (s.hand + 1) % len(s.list)
	return st
}

func (st *lengthStats) learn(tokens int64) {
	st.seen++
	st.bins[lengthBin(tokens)] += float32(st.weight)
	st.sum += st.weight
	st.tokens += st.weight * float64(tokens)
	// Instead of all old answers losing weight, each new one has more.
	st.weight *= float64(lengthMemory) / (lengthMemory - 1)
	if st.weight > 1e6 {
		for i := range st.bins {
			st.bins[i] /= 1e6
		}
		st.weight, st.sum, st.tokens = st.weight/1e6, st.sum/1e6, st.tokens/1e6
	}
	st.expect = st.quantile()
}

// quantile is the upper end of the bin up to which enough answers are.
func (st *lengthStats) quantile() int64 {
	sum := 0.0
	for i := range st.bins {
		if sum += float64(st.bins[i]); sum >= lengthQuantile*st.sum {
			return max(leastLength, int64(math.Ceil(math.Exp2(float64(i)/binsPerDoubling))))
		}
	}
	return int64(math.Ceil(math.Exp2(float64(lengthBins-1) / binsPerDoubling)))
}

// lengthBin is the first bin whose upper end is not below a length.
func lengthBin(tokens int64) int {
	if tokens <= 1 {
		return 0
	}
	return min(int(math.Ceil(math.Log2(float64(tokens))*binsPerDoubling-1e-9)), lengthBins-1)
}

// expectOutput is how many tokens the answer to a request without max_tokens is
// likely to have, for each of its choices; nil where nobody knows.
func (ex *exchange) expectOutput() *int64 {
	if ex.req == nil || ex.req.MaxTokens != nil || !ex.route.generates {
		return nil
	}
	n, ok := ex.g.lengths.expect(ex.principal.Tenant.ID, ex.model.Name)
	if !ok {
		return nil
	}
	return &n
}

// learnOutput notes the length of an answer that came whole.
func (ex *exchange) learnOutput(end *ending) {
	u := &end.charge.usage
	if ex.req == nil || ex.decision == nil || ex.model == nil || !ex.route.generates || !u.Known || end.charge.estimated {
		return
	}
	if end.outcome != tenancy.OutcomeCompleted {
		return
	}
	answers := max(ex.decision.N, 1) * int64(max(ex.req.PromptCount, 1))
	each := (u.Output + answers - 1) / answers
	ex.g.answers.learnMean(ex.principal.Tenant.ID, ex.model.Name, ex.req.MaxTokens, each)
	if ex.req.MaxTokens == nil && ex.decision.MaxTokens != nil {
		ex.g.lengths.learn(ex.principal.Tenant.ID, ex.model.Name, each)
	}
}
