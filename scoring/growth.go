package scoring

import (
	"slices"
	"time"
)

const (
	// spare is the part of a cache that offers leave free of what is expected to be held:
	// answers have other lengths than expected. docs/0004-scoring.md has what others do.
	spare = 0.03
	// firstGap is the time between two tokens of an answer that is assumed until one
	// has ended or the worker has said it, in seconds.
	firstGap = 0.05
	// gapGain is the weight of a new answer's pace.
	gapGain = 0.1
	// leastPaced is the least number of tokens of an answer that tells the pace.
	leastPaced = 8
	// leastGap is the least time between two tokens of an answer that is believed, in
	// seconds: no engine is as fast, but an answer that was held up comes all at once.
	leastGap = 0.0002
	// outlives is the part of what an answer has had that it is expected to have on
	// top when it is longer than was expected, leastMore the least of that in tokens.
	outlives, leastMore = 0.25, 16
)

// growth is how the memory that a worker's requests hold will grow and shrink, as
// far as can be told: a running answer takes a token more with each step until it
// ends. So the most is held just before one of the ends, and to know it at each of
// them is enough. The method is that of past-future scheduling (R. Gong and others,
// Past-Future Scheduler for LLM Serving under SLA Guarantees, ASPLOS 2025).
//
// Time is counted in tokens: all running answers get one at each step, so what is
// held at an end does not change while time passes. The clock goes on only with what
// is reported to the fleet, so no room comes that nobody is told of.
//
// Guarded by Fleet.mu.
type growth struct {
	clock float64   // tokens that a running answer has had since there were none before
	told  time.Time // when the clock was last put forward
	gap   float64   // seconds a token; 0 when unknown

	claims  []*claim // of the requests in the worker's hands, by end
	sumEnds float64  // of the claims
	// ends are what is held just before each of the claims' ends, in tokens, if they
	// are known: what goes with no claim is left out. most is not less than any.
	ends  []expectedEnd
	known bool
	most  float64
}

// expectedEnd is the end of one request and what is held just before it, by so many
// requests.
type expectedEnd struct {
	at, held float64
	requests float64
}

// forward puts the clock forward.
func (g *growth) forward(now time.Time) {
	passed := now.Sub(g.told).Seconds()
	if passed <= 0 {
		return
	}
	g.told = now
	if len(g.claims) == 0 {
		return
	}
	gap := g.gap
	if gap <= 0 {
		gap = firstGap
	}
	g.clock += passed / max(gap, leastGap)
	for len(g.claims) > 0 && g.claims[0].end <= g.clock { // it is longer than was expected
		h := g.claims[0]
		g.drop(h)
		h.end = g.clock + max(leastMore, outlives*(g.clock-h.start))
		g.put(h)
	}
}

// put enters a claim.
func (g *growth) put(h *claim) {
	at, _ := slices.BinarySearchFunc(g.claims, h, byEnd)
	g.claims = slices.Insert(g.claims, at, h)
	g.sumEnds += h.end
	g.known = false
}

// drop takes a claim out that is entered.
func (g *growth) drop(h *claim) {
	at, _ := slices.BinarySearchFunc(g.claims, h, byEnd)
	for g.claims[at] != h {
		at++
	}
	g.claims = slices.Delete(g.claims, at, at+1)
	if g.sumEnds -= h.end; len(g.claims) == 0 {
		g.sumEnds = 0 // sheds what rounding left
	}
	g.known = false
}

func byEnd(a, b *claim) int {
	switch {
	case a.end < b.end:
		return -1
	case a.end > b.end:
		return 1
	}
	return 0
}

// begin has an answer of so many tokens begin now.
func (g *growth) begin(h *claim, now time.Time, output int) {
	if len(g.claims) == 0 {
		g.told, g.clock = now, 0
	}
	h.length = float64(max(1, output))
	h.start, h.end = g.clock, g.clock+h.length
	g.put(h)
}

// again has an answer begin anew, as its first token has come. What it waited for that is
// no part of its length.
func (g *growth) again(h *claim, now time.Time) {
	g.forward(now)
	g.drop(h)
	h.start, h.end = g.clock, g.clock+h.length
	g.put(h)
}

// paced learns from an answer of so many tokens after its first that took so long.
func (g *growth) paced(took time.Duration, tokens int) {
	if tokens < leastPaced || took <= 0 {
		return
	}
	gap := max(took.Seconds()/float64(tokens), leastGap)
	if g.gap == 0 {
		g.gap = gap
	}
	g.gap += gapGain * (gap - g.gap)
}

// grown is what the answers are believed to have had, in tokens.
func (g *growth) grown() float64 {
	sum := 0.0
	for _, h := range g.claims {
		sum += g.clock - h.start
	}
	return sum
}

// look works the ends out anew if something has changed. waste is what a request
// holds beyond its tokens.
func (g *growth) look(waste float64) {
	if g.known {
		return
	}
	g.known = true
	g.ends = slices.Grow(g.ends[:0], len(g.claims))[:len(g.claims)]
	g.most = 0
	sum, n := 0.0, 0.0
	for i, h := range slices.Backward(g.claims) {
		n++
		sum += h.own - h.start + waste
		held := sum + n*h.end
		g.ends[i] = expectedEnd{h.end, held, n}
		g.most = max(g.most, held)
	}
}

// peak is the most that is expected to be held while a request runs that begins now
// with so many tokens of its own and an answer of that many more, what goes with no
// claim left out. Nothing above limit is looked for.
func (g *growth) peak(own float64, output int, waste, limit float64) float64 {
	g.look(waste)
	own += waste
	last := float64(max(1, output))
	if g.most+own+last <= limit {
		return g.most + own + last
	}
	most := own + last
	for i := range g.ends {
		e := &g.ends[i]
		left := e.at - g.clock
		if left >= last { // it still runs when the request ends
			return max(most, e.held-e.requests*(left-last)+own+last)
		}
		if most = max(most, e.held+own+left); most > limit {
			return most
		}
	}
	return most
}
