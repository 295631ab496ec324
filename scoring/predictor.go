package scoring

import (
	"math"
	"slices"
	"time"
)

// Bounds of the learned coefficients and of a prediction. They are wide: a slow
// CPU and a fast accelerator both lie well inside.
const (
	minBase, maxBase       = 100 * time.Microsecond, 10 * time.Second
	minPerKilo, maxPerKilo = 500 * time.Microsecond, 20 * time.Second
	maxPerSeq              = 100 * time.Millisecond
	maxAttention           = time.Second

	minTTFT, maxTTFT = 100 * time.Microsecond, 10 * time.Minute
)

// The terms of the prediction; see [Coefficients].
const (
	termBase   = iota // 1
	termTokens        // uncached tokens ahead and own, in thousands
	termSeqs          // running sequences, times the steps they are in
	termPairs         // attention pairs ahead and own, in millions
	terms
)

const (

	// A worker's last sampled first tokens of each size class make up its
	// coefficients. Classes are apart so that an hour of cached prompts does
	// not wash out what a cold one takes.
	classes = 5
	sampled = 16
	// odd is the relative error from which on a first token counts less.
	odd = 0.25
	// pullFirst is how strongly the coefficients are drawn to a configured
	// prior, in first tokens and relative to the prior's size: weakly. pullPool
	// is how strongly to what the pool has learned, in first tokens like those
	// seen. The one turns into the other over the pool's first poolWindow.
	pullFirst, pullPool = 0.02, 2
	poolWindow          = 64
	// shared is what the first tokens of a whole pool count for in the
	// coefficients of each of its workers, in first tokens of its own.
	shared = 8
	// poolPatience is how many half-lives of a worker's knowledge the pool's has.
	poolPatience = 10
	// leastWeight is the weight below which a first token is forgotten.
	leastWeight = 1e-3
	// waitShare is the share of a prediction that a wait which is not learned may
	// have for the first token to be learned from.
	waitShare = 0.5

	// speedGain and speedClip bound how far one first token moves the speed
	// factor: 12 % of the error, and of no more than a factor of 2. A worker
	// that became three times slower is followed within 20 first tokens; one
	// odd first token moves the prediction by 8 % and is forgotten as fast.
	speedGain = 0.12
	speedClip = 0.7
	maxSpeed  = 2.8 // e^2.8 is 16
	lateness  = 10 * time.Millisecond
	// errorWindow is how many of a worker's last errors its quantiles are of.
	errorWindow = 64
	// settled is the number of first tokens after which the error quantiles are
	// the worker's own.
	settled = 16
	// unsettled is ln(actual/predicted) at the 90th percentile assumed before.
	unsettled = 0.7
	// doubt is how many standard errors a worker may seem faster or slower than
	// the rest of its pool without being believed to be; normalP90 is the 90th
	// percentile of a normal distribution in standard deviations.
	doubt     = 1.5
	normalP90 = 1.2816
)

// vector holds one number per term of the prediction, coefficients in seconds.
type vector [terms]float64

func (v vector) dot(u vector) float64 {
	return v[0]*u[0] + v[1]*u[1] + v[2]*u[2] + v[3]*u[3]
}

var (
	lowest  = vector{minBase.Seconds(), minPerKilo.Seconds(), 0, 0}
	highest = vector{maxBase.Seconds(), maxPerKilo.Seconds(), maxPerSeq.Seconds(), maxAttention.Seconds()}
)

func (c Coefficients) vector() vector {
	return vector{
		termBase: c.Base.Seconds(), termTokens: c.PerKilo.Seconds(), termSeqs: c.PerSeq.Seconds(), termPairs: c.Attention.Seconds(),
	}
}

func (v vector) coefficients() Coefficients {
	return Coefficients{seconds(v[termBase]), seconds(v[termTokens]), seconds(v[termSeqs]), seconds(v[termPairs])}
}

func seconds(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }

// predictor learns one worker's TTFT from its first tokens.
//
// The coefficients minimise the squared relative error over the remembered
// first tokens, plus a pull towards what the pool has learned, within fixed
// bounds. Relative, with the larger of prediction and truth as the measure,
// because a second is much for a cached prompt and little for a cold one, and
// because no single error can then exceed 1. On top, one factor follows the
// worker's momentary speed: it learns fast what concerns all terms alike.
type predictor struct {
	pool *pool
	coef vector
	recent

	logSpeed float64
	trained  int64
	// late is the speed that followed from lateOf at lateAt; see lately.
	late, lateOf float64
	lateAt       time.Time
	// known is the weight of the samples behind coef.
	known float64
	// last is when logSpeed was true, faded when the samples were last relaxed.
	last, faded time.Time

	// errors are the last values of ln(actual/predicted), unordered.
	errors        [errorWindow]float32
	noted         int64   // counts them
	median, upper float64 // their 50th and 90th percentile
	upperFactor   float64 // e^upper
}

// recent are the last first tokens by size class, in no order; those with no
// weight are none.
type recent struct {
	samples [classes][sampled]sample
	next    [classes]int
}

func (r *recent) add(x vector, y float64) {
	c := class(x)
	r.samples[c][r.next[c]] = sample{x, y, 1}
	r.next[c] = (r.next[c] + 1) % sampled
}

// weight is the sum of the samples' weights.
func (r *recent) weight() (sum float64) {
	for c := range r.samples {
		for i := range r.samples[c] {
			sum += r.samples[c][i].weight
		}
	}
	return sum
}

// sample is one first token: y seconds (less what is not learned) for x.
type sample struct {
	x         vector
	y, weight float64
}

// class is the size class of a first token with x.
func class(x vector) int {
	for i, kilo := range [classes - 1]float64{0.128, 0.512, 2.048, 8.192} {
		if x[termTokens] < kilo {
			return i
		}
	}
	return classes - 1
}

// start makes p predict what its pool has learned.
func (p *predictor) start(of *pool) {
	p.pool, p.coef = of, of.coef
	p.upper, p.upperFactor = unsettled, math.Exp(unsettled)
}

// speed is the factor on the coefficients as of now. What is not confirmed by
// new first tokens halves each half-life.
func (p *predictor) speed(now time.Time, halfLife time.Duration) float64 {
	if p.logSpeed == 0 {
		return 1
	}
	idle := max(0, now.Sub(p.last).Seconds()/halfLife.Seconds())
	return math.Exp(p.logSpeed * math.Exp2(-idle))
}

// lately relaxes p and is the speed, both as of at most lateness ago, in which little
// changes by time alone: to work it out takes longer than all else that a wait needs.
func (p *predictor) lately(now time.Time, halfLife time.Duration) float64 {
	if age := now.Sub(p.lateAt); p.trained == 0 || p.lateOf != p.logSpeed || age < 0 || age > lateness {
		p.relax(now, halfLife)
		p.late, p.lateOf, p.lateAt = p.speed(now, halfLife), p.logSpeed, now
	}
	return p.late
}

// temper returns the factor on a prediction that, by its logarithm, is off from
// the mean of the pool's candidates. Of a difference within the doubt nothing
// remains, of a large one nearly all: the non-negative garrote (L. Breiman,
// Technometrics 37, 1995).
//
// The standard error of what was learned follows from the scatter of the worker's
// errors: the speed factor is an exponentially weighted mean of them, and the
// coefficients come from so many first tokens.
func (p *predictor) temper(off float64) float64 {
	scatter := max(0, p.upper-p.median) / normalP90
	limit := doubt * doubt * scatter * scatter * (speedGain/(2-speedGain) + 1/(p.known+shared))
	if off*off <= limit {
		return math.Exp(-off)
	}
	return math.Exp(-limit / off)
}

// costs are the seconds of a token and of a million attention pairs at the given
// speed factor.
func (p *predictor) costs(speed float64) (perToken, perPair float64) {
	return speed * p.coef[termTokens] / 1000, speed * p.coef[termPairs]
}

// relax lets what was learned give way to the pool's coefficients: the weight
// of the samples halves for each half-life without a first token.
func (p *predictor) relax(now time.Time, halfLife time.Duration) {
	if p.trained == 0 {
		p.coef = p.pool.coef
		return
	}
	since := now.Sub(p.faded)
	if since < halfLife {
		return
	}
	halves := since / halfLife
	p.faded = p.faded.Add(halves * halfLife)
	f := math.Exp2(-float64(halves))
	for i := range p.samples {
		for j := range p.samples[i] {
			if p.samples[i][j].weight *= f; p.samples[i][j].weight < leastWeight {
				p.samples[i][j].weight = 0
			}
		}
	}
	p.solve()
}

// train learns from one first token: x is what the prediction was made from,
// predicted what it was, fixed the part of it that is not learned here. Where
// that is most of it, nothing is learned: what is left of the truth says more of
// the error of fixed. Otherwise the learned part has at least its share of the
// truth, so that a wait which did not come about doesn't make the worker fast.
// It reports whether anything was learned.
func (p *predictor) train(now time.Time, halfLife time.Duration, x vector, predicted, fixed, actual float64) (learned bool) {
	p.noteError(math.Log(actual / predicted))
	if fixed > waitShare*predicted {
		return false
	}
	y := max(actual-fixed, actual*(1-fixed/predicted), minTTFT.Seconds())
	p.add(x, y)
	p.pool.add(x, y)
	p.solve()

	was := math.Log(p.speed(now, halfLife))
	off := math.Log(y/p.coef.dot(x)) - was
	p.logSpeed = clamp(was+speedGain*clamp(off, -speedClip, speedClip), -maxSpeed, maxSpeed)
	p.last, p.faded = now, now
	p.trained++
	return true
}

// solve finds the coefficients by coordinate descent from the last ones, which
// converges because the pull makes the problem strictly convex, and needs few
// rounds because one first token changes little.
func (p *predictor) solve() {
	p.known = p.recent.weight()
	if p.known == 0 {
		p.coef = p.pool.coef
		return
	}
	var s sums
	s.add(&p.recent, p.coef, 1)
	// Without what the pool's other workers took, the noise of a worker's first
	// few decides who looks fast, and gets all the requests.
	s.add(&p.pool.recent, p.coef, shared/max(shared, p.pool.recent.weight()))
	p.descend(&s)
}

// descend is the search of solve.
func (p *predictor) descend(s *sums) {
	known := min(1, float64(p.pool.trained)/poolWindow)
	target, pull := p.pool.coef, vector{}
	if known < 1 {
		// A prior's proportions are worth more than its level.
		scale := p.level()
		for i := range target {
			target[i] = clamp(target[i]*scale, lowest[i], highest[i])
		}
	}
	for i := range pull {
		// Relative to the target's size, or to a small part of the permitted
		// range where that is zero.
		unit := max(target[i], highest[i]/1e4)
		pull[i] = max(1-known, 0.01)*pullFirst/(unit*unit) + known*pullPool*s.normal[i][i]/s.weight
	}
	for range 12 {
		for i := range p.coef {
			rest := s.moment[i] + pull[i]*target[i]
			for j, c := range p.coef {
				if j != i {
					rest -= s.normal[i][j] * c
				}
			}
			p.coef[i] = clamp(rest/(s.normal[i][i]+pull[i]), lowest[i], highest[i])
		}
	}
}

// level is the median of how many times longer the samples took than the pool's
// coefficients say.
func (p *predictor) level() float64 {
	var all [classes * sampled]float64
	n := 0
	for c := range p.samples {
		for _, s := range p.samples[c] {
			if s.weight > 0 {
				all[n] = s.y / p.pool.coef.dot(s.x)
				n++
			}
		}
	}
	slices.Sort(all[:n])
	return all[n/2]
}

// sums are the weighted sums over samples that coefficients are solved from: of
// x*x', of x*y and of the weights.
type sums struct {
	normal [terms]vector
	moment vector
	weight float64
}

// add counts samples, each with its weight times by. What coef says of them
// makes the scale of their errors, and tells the odd ones.
func (t *sums) add(r *recent, coef vector, by float64) {
	for c := range r.samples {
		for i := range r.samples[c] {
			s := &r.samples[c][i]
			if s.weight == 0 {
				continue
			}
			said := coef.dot(s.x)
			scale := max(s.y, said)
			w := by * s.weight
			if off := math.Abs(s.y-said) / scale; off > odd {
				w *= odd / off
			}
			t.weight += w
			w /= scale * scale
			for j := range terms {
				wx := w * s.x[j]
				for k := range terms {
					t.normal[j][k] += wx * s.x[k]
				}
				t.moment[j] += wx * s.y
			}
		}
	}
}

// noteError keeps the error of one prediction and brings the quantiles up to
// date.
func (p *predictor) noteError(e float64) {
	p.errors[p.noted%errorWindow] = float32(e)
	p.noted++
	n := int(min(p.noted, errorWindow))
	sorted := p.errors
	slices.Sort(sorted[:n])
	p.median, p.upper = float64(sorted[(n-1)/2]), float64(sorted[(n*9-1)/10])
	if n < settled {
		p.upper = max(p.upper, unsettled)
	}
	p.upperFactor = math.Exp(p.upper)
}

// clamp returns v within [lo, hi]; lo when v is not a number.
func clamp(v, lo, hi float64) float64 {
	if v > hi {
		return hi
	}
	if v >= lo {
		return v
	}
	return lo
}

// pool is what the workers of a pool have learned together: where a new one
// starts, and what an idle one returns to.
type pool struct {
	recent
	prior, coef vector
	trained     int64
	// byPriority is set by SetPriorities.
	byPriority bool
	// at is when it last learned, or was relaxed; zero before.
	at time.Time
	// For the pick at hand: how many of its workers are candidates and how many are
	// ready, and the sum of what scratch.temper compares.
	candidates int
	ready      int
	seeming    float64
}

func newPool(prior vector) *pool { return &pool{prior: prior, coef: prior} }

// relax lets what was learned give way to the prior: half of it for each
// half-life in which a pool that is permitted in its place learned and this one
// did not, the last time at latest. Otherwise a pool that was slow when it was
// last asked would not be asked again.
func (p *pool) relax(latest time.Time, halfLife time.Duration) {
	halves := latest.Sub(p.at) / halfLife
	if p.at.IsZero() || halves <= 0 {
		return
	}
	p.at = p.at.Add(halves * halfLife)
	keep := math.Exp2(-float64(halves))
	for i := range p.coef {
		p.coef[i] = clamp(p.prior[i]+keep*(p.coef[i]-p.prior[i]), lowest[i], highest[i])
	}
	p.trained = int64(keep * float64(min(p.trained, poolWindow)))
}

// learn moves the pool's coefficients towards a worker's.
func (p *pool) learn(now time.Time, coef vector) {
	p.at = now
	gain := max(1/float64(p.trained+1), 1.0/poolWindow)
	for i := range p.coef {
		p.coef[i] = clamp(p.coef[i]+gain*(coef[i]-p.coef[i]), lowest[i], highest[i])
	}
	p.trained++
}
